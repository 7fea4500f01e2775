"""Figures of saddles: what they say, their axes and legends, and the files they make."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from numeric import plots, saddle_plots
from numeric.continuation import Branch, follow_saddle
from numeric.escape import EscapeLaw
from numeric.flow import COMPLETED, Flow
from numeric.ladder import Rung
from numeric.prior import isotropic
from numeric.saddles import origin_saddle
from numeric.spectrum import Spectrum
from numeric.task import Attention, State, Task
from tests.numeric.test_plots import svg_text

TASK, SOFTMAX = Task(5, isotropic(2, 4.0)), Attention("softmax", 2)
SPECTRUM = Spectrum(
    "state",
    np.array([-0.2, 0.0, 0.1]),
    np.array([3, 3, 1]),
    ("difference, feature 1", "difference, residual", "mean, residual"),
    np.zeros(3),
    2,
)
STABLE = Spectrum("state", np.array([0.1]), np.array([1]), ("mean, feature 1",), np.zeros(1), 2)


def a_flow() -> Flow:
    """A made-up flow whose first feature passes 1 at tau = 5."""
    tau = np.linspace(0, 10, 21)
    m = np.zeros((21, 2, 2))
    m[:, 0, 0] = tau / 5
    r = np.zeros((21, 2, 2))
    passage = np.array([5.0, np.nan])
    return Flow(tau, 0.8 - tau / 100, m, r, None, None, passage, (), 0.0, 0.0, 0.0, COMPLETED)


@cache
def some_rungs() -> tuple[Rung, ...]:
    """Leaving the origin at tau = 5 by the first feature; then the flow stays."""
    state = State(np.zeros((2, 2)), np.zeros((2, 2)))
    first = Rung(state, origin_saddle(TASK, SOFTMAX), (), 0, 0.4, 4.0, 5.0, 5.0)
    return first, Rung(state, None, (0,), None, 0.0, np.inf, np.inf, np.inf)


def a_law(rate: float = 0.5) -> EscapeLaw:
    """A made-up law of one component that grows at a constant rate, without noise."""
    tau = np.linspace(0, 40, 33)
    rates, noise = np.full(33, rate), np.zeros(33)
    log_variance = np.log(0.01) + 2 * rate * tau
    starts, after = np.array([0.0, 20.0]), np.full((1, 2), 3.0)
    return EscapeLaw(0, 1.0, 0.0, 1, tau, rates, noise, log_variance, starts, after, 0.1)


@cache
def a_branch() -> Branch:
    return follow_saddle(lambda x: (TASK.continued(x), SOFTMAX), [1.5, 2.5])


def figure_of(name: str) -> Figure:
    match name:
        case "ladder":
            return saddle_plots.ladder_figure(some_rungs(), a_flow())
        case "along":
            return saddle_plots.along_figure(a_flow(), [SPECTRUM] * 12 + [STABLE] * 9)
        case "branch":
            return saddle_plots.branch_figure(a_branch(), "tokens L")
        case "boundary":
            return saddle_plots.boundary_figure([1, 2], [0.5, np.nan], ("mean μ", "tokens L"))
    return saddle_plots.escape_figure(a_law(), [1e3, 1e4, 1e5])


WORDS = {
    "ladder": [
        *("feature norm ‖m(:, f)‖", "loss E", "time τ", "feature 1", "feature 2"),
        *("predicted first passages", "loss of the saddles"),
    ],
    "along": [
        *("Hessian eigenvalue λ", "unstable directions", "time τ"),
        *("stable or flat", "residual (bulk)"),
    ],
    "branch": ["Hessian eigenvalue λ", "tokens L", "bifurcation", "heads’ differences, lowest"],
    "boundary": ["mean μ", "tokens L", "Boundary of specialization"],
    "escape": [
        *("token dimension D", "first passage of norm 1, feature 1", "median"),
        *("10 % to 90 %", "λ = 0.5"),
    ],
}


@pytest.mark.parametrize("name", WORDS)
def test_svg_files_hold_their_labels_as_text(name: str, tmp_path: Path) -> None:
    plots.save(figure_of(name), tmp_path / "figure.svg")
    text = svg_text(tmp_path / "figure.svg")
    for words in WORDS[name]:
        assert words in text


@pytest.mark.parametrize("name", WORDS)
def test_axes_are_labelled_and_have_legends(name: str) -> None:
    axes = figure_of(name).axes
    assert all(ax.get_ylabel() for ax in axes) and axes[-1].get_xlabel()
    if name != "boundary":  # its one curve is what the title says
        assert axes[0].get_legend() is not None
    if name == "ladder":
        assert axes[1].get_legend() is not None
    for ax in axes:
        if (box := ax.get_legend()) is not None:
            words = [x.get_text() for x in box.get_texts()]
            assert len(words) == len(set(words)) and all(words)


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_files(name: str, suffix: str, tmp_path: Path) -> None:
    for attempt in ("a", "b"):
        plots.save(figure_of(name), tmp_path / f"{attempt}{suffix}")
    content = (tmp_path / f"a{suffix}").read_bytes()
    assert content.startswith({".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}[suffix])
    assert content == (tmp_path / f"b{suffix}").read_bytes()


def test_the_ladder_marks_predicted_passages() -> None:
    top, bottom = figure_of("ladder").axes
    for ax in (top, bottom):
        dashed = [x for x in ax.lines if x.get_linestyle() == "--"]
        assert [x.get_xdata()[0] for x in dashed] == [5.0]  # type: ignore[index]
    (saddle,) = bottom.collections
    (segment,) = saddle.get_segments()  # type: ignore[attr-defined]
    assert segment == pytest.approx(np.array([[0.0, 0.8], [5.0, 0.8]]))


def test_spectra_are_counted_and_coloured() -> None:
    top, bottom = figure_of("along").axes
    assert list(bottom.lines[0].get_ydata()) == [3] * 12 + [0] * 9
    shown = np.concatenate([np.asarray(x.get_offsets()) for x in top.collections])
    assert len(shown) == 12 * 3 + 9 and shown[:, 1].min() == -0.2


def test_the_branch_marks_its_bifurcation() -> None:
    (ax,) = figure_of("branch").axes
    diamonds = [x for x in ax.lines if x.get_marker() == "D"]
    assert [x.get_xdata()[0] for x in diamonds] == pytest.approx([2.0])  # type: ignore[index]
    assert [x.get_text() for x in ax.texts] == ["2"]


def test_quantiles_of_the_escape() -> None:
    """At a constant rate the median is a straight line in log D, the one of the leading order."""
    (ax,) = figure_of("escape").axes
    assert ax.get_xscale() == "log"
    median, leading = (np.asarray(x.get_ydata(), dtype=float) for x in ax.lines)
    assert median == pytest.approx(leading, rel=1e-8)
    law = a_law()
    assert median == pytest.approx([law.quantile(0.5, d) for d in (1e3, 1e4, 1e5)])
    band = ax.collections[0].get_paths()[0].vertices
    assert np.ptp(np.asarray(band)[:, 1]) > np.ptp(median)
