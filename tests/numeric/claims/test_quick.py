"""All quick claims, against the committed ledger; and a physics that is wrong turns them.

Claims are computed with the seeds of the ledger, so that no random number decides: verdicts change only
if the code does.
"""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numeric import escape_law, flow, head_count, prune_heads, query_study
from numeric.alike import alike_hessian
from numeric.claims.ledger import Entry, changed, committed, settle
from numeric.claims.registry import IDS, claims
from numeric.loss import evaluate
from numeric.minimum import bayes_softmax_optimum
from numeric.phases import first_passages
from numeric.prior import DiscretePrior, isotropic
from numeric.query_steps import Reduced
from numeric.task import Attention, State, Task


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one for all processes: claims share parts."""
    root = tmp_path_factory.getbasetemp()
    return (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "claims"


def settled(name: str, folder: Path | None = None) -> Entry:
    (entry,) = settle(claims([name]), folder=folder)
    return entry


# The longest ones: `headflow claims` compares all verdicts, too.
LONG = ("A13",)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[pytest.mark.slow] if x in LONG else []) for x in IDS]
)
def test_quick_verdicts_are_those_of_the_ledger(name: str, folder: Path) -> None:
    entry = settled(name, folder)
    assert not entry.error
    assert changed([entry], committed()) == []
    figure = entry.claim.draw(entry.results)
    assert figure.axes and all(ax.has_data() for ax in figure.axes)


Patch = pytest.MonkeyPatch


def gradient_of_wrong_sign(patch: Patch) -> None:
    def wrong(*given: Any) -> Any:
        found = evaluate(*given)
        return replace(found, m=-found.m)

    patch.setattr(flow, "evaluate", wrong)


def no_mean_signal(patch: Patch) -> None:
    def wrong(task: Task, *given: Any, **how: Any) -> Any:
        return first_passages(
            Task(task.tokens, isotropic(1, 1.0)), *given, **how | {"tau_max": 5.0}
        )

    patch.setattr("numeric.claims.scaling.first_passages", wrong)


def hessian_of_twenty_tokens(patch: Patch) -> None:
    def wrong(state: State, task: Task, layer: Attention) -> Any:
        return alike_hessian(state, replace(task, tokens=20), layer)

    patch.setattr("numeric.claims.a3.alike_hessian", wrong)


def axes_swapped(patch: Patch) -> None:
    """The least variance is taken along half of the largest one's direction."""
    turn = np.array([[1.0, -1.0], [1.0, 1.0]]) / np.sqrt(2)

    def wrong(prior: Any) -> Any:
        moment = prior.second_moment - np.outer(prior.mean, prior.mean)
        return turn @ moment @ turn.T

    patch.setattr("numeric.claims.directions.covariance_of", wrong)


def variances_swapped(patch: Patch) -> None:
    patch.setattr("numeric.claims.training.VARIANCES", np.array([4.0, 6.0, 9.0]))


def activations_swapped(patch: Patch) -> None:
    from numeric.claims import a7

    patch.setattr(a7, "SETTINGS", tuple((y, x) for x, y in a7.SETTINGS))


def rates_that_differ(patch: Patch) -> None:
    """Every run grows at a rate of its own."""

    class Wrong:
        def __init__(self, *given: Any) -> None:
            self.law = escape_law(*given)

        def quantile(self, p: float, size: float) -> float:
            return self.law.quantile(p, size) * 2 * p

    patch.setattr("numeric.claims.a8.escape_law", Wrong)


def no_negative_signals(patch: Patch) -> None:
    patch.setattr(
        "numeric.claims.a9.flipped_spike",
        lambda x: DiscretePrior(np.array(x), np.array([1.0])),
    )


def biases_without_norms(patch: Patch) -> None:
    def wrong(task: Task) -> State:
        found = bayes_softmax_optimum(task)
        return replace(found, b=found.b + (found.m**2).sum(axis=1) / 2)

    patch.setattr("numeric.claims.a10.bayes_softmax_optimum", wrong)


def softmax_instead(patch: Patch) -> None:
    patch.setattr("numeric.claims.a11.head_count", partial(head_count, activation="softmax"))


def average_over_heads_that_are_gone(patch: Patch) -> None:
    def wrong(state: State, task: Task, layer: Attention) -> Any:
        heads = layer.heads
        state = replace(state, v=np.full(heads, 1 / heads))
        return prune_heads(state, task, Attention("softmax-v", heads))

    patch.setattr("numeric.claims.training.prune_heads", wrong)


def features_swapped(patch: Patch) -> None:
    from numeric.claims import a13

    patch.setattr(a13, "task_of", lambda x, task_of=a13.task_of: task_of(x[::-1]))
    patch.setattr(a13, "delays", lambda **_: {"passages": [[[1, 2], [2, 4]]], "predicted": [1]})


def field_of_wrong_sign(patch: Patch) -> None:
    objective = query_study.query_objective

    def wrong(*given: Any) -> Any:
        found = objective(*given)
        return replace(found, slope=-found.slope, curvature=-found.curvature)

    patch.setattr(query_study, "query_objective", wrong)


def descent(patch: Patch) -> None:
    step = Reduced.step
    patch.setattr(Reduced, "step", lambda self, gamma, draws: step(self, -gamma, draws))


def norms_of_order_one(patch: Patch) -> None:
    def wrong(task: Any, **changes: float) -> Any:
        if "spread" in changes:
            changes["spread"] *= task.dimension**0.5 / 10
        return replace(task, **changes)

    patch.setattr(query_study, "replace", wrong)


def noise_that_does_not_shrink(patch: Patch) -> None:
    patch.setattr("numeric.claims.b4.SETTINGS", {"σ = 1/√d": (1.0, 0.0), "σ = 1": (1.0, 0.0)})


@pytest.mark.parametrize(
    ("name", "regime", "mistake"),
    [
        ("A1", 0, gradient_of_wrong_sign),
        ("A2", 0, no_mean_signal),
        pytest.param("A3", 0, hessian_of_twenty_tokens, marks=pytest.mark.slow),
        ("A4", 0, axes_swapped),
        ("A5", 0, axes_swapped),
        pytest.param("A6", 1, variances_swapped, marks=pytest.mark.slow),
        ("A7", 2, activations_swapped),
        ("A8", 0, rates_that_differ),
        ("A9", 0, no_negative_signals),
        ("A10", 0, biases_without_norms),
        ("A11", 0, softmax_instead),
        pytest.param("A12", 0, average_over_heads_that_are_gone, marks=pytest.mark.slow),
        ("A13", 0, features_swapped),
        ("B1", 0, field_of_wrong_sign),
        ("B2", 0, descent),
        ("B3", 0, norms_of_order_one),
        ("B4", 0, noise_that_does_not_shrink),
    ],
)
def test_wrong_physics_turns_a_claim(
    name: str, regime: int, mistake: Any, monkeypatch: Patch, folder: Path
) -> None:
    """A regime that the ledger supports, or leaves open, is refuted."""
    before = list(committed()["quick"]["claims"][name]["regimes"].values())[regime]["verdict"]
    assert before != "refuted"
    mistake(monkeypatch)
    entry = settled(name, folder if name == "A7" else None)
    assert entry.findings[regime].verdict == "refuted"
