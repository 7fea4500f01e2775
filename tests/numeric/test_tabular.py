"""Results in a notebook: one line, and a table of the numbers they have."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from numeric import (
    Attention,
    GaussianPrior,
    State,
    Task,
    flipped_spike,
    head_count,
    hessian_spectrum,
    integrate_flow,
    prune_heads,
    risk_curves,
    training_outcomes,
    unspecialized_saddle,
)
from numeric.tabular import Tabular

TASK = Task(4, GaussianPrior([0.0, 0.0], np.diag([4.0, 2.0])))
SOFTMAX = Attention("softmax", 2)
STATE = State(np.eye(2), 0.01 * np.eye(2))
SIGNS = Task(3, flipped_spike([[1.0]]))


@pytest.mark.parametrize(
    ("make", "head", "rows"),
    [
        (lambda: hessian_spectrum(TASK, SOFTMAX), "sector", 6),
        (lambda: unspecialized_saddle(TASK, SOFTMAX), "sector", 6),
        (lambda: integrate_flow(STATE, TASK, SOFTMAX, 1.0), "feature", 2),
        (lambda: prune_heads(STATE, TASK, SOFTMAX), "head removed", 2),
        (lambda: head_count(SIGNS, most=2, starts=1), "heads", 2),
        (lambda: risk_curves(SIGNS, [SOFTMAX], "signal", [1.0, 2.0], starts=1), "signal", 2),
        (lambda: training_outcomes(TASK, SOFTMAX, runs=2, tau_max=5.0), "pattern", None),
    ],
)
def test_tables(make: Callable[[], Tabular], head: str, rows: int | None) -> None:
    found = make()
    html = found._repr_html_()
    table = found.rows()
    assert table[0][0] == head and (rows is None or len(table) == rows + 1)
    assert {len(row) for row in table} == {len(table[0])}
    assert html.count("<tr>") == len(table) and html.count("<th>") == len(table[0])
    words = re.sub(r"<[^>]*>", " ", html)
    assert all(cell.replace("<", "&lt;") in words for row in table for cell in row)
    assert len(repr(found)) < 400 and "array(" not in repr(found)


def test_text_is_escaped() -> None:
    class One(Tabular):
        def rows(self) -> list[list[str]]:
            return [["<a>"], ["1 & 2"]]

        def __repr__(self) -> str:
            return "<One: x < y>"

    assert One()._repr_html_() == (
        "<p>One: x &lt; y</p><table><tr><th>&lt;a&gt;</th></tr><tr><td>1 &amp; 2</td></tr></table>"
    )
