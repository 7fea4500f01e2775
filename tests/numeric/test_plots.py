"""Figures: what they show, on what they show nothing, and the bytes they write."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from numeric import plots
from numeric.errors import InputError
from numeric.flow import COMPLETED, Excursion, Flow
from numeric.loss import Loss
from numeric.prior import isotropic
from numeric.sgd import SGDRuns
from numeric.spectrum import Spectrum
from numeric.task import Task

IN_M = np.array([[0.1, -0.2]] * 3)
LOSS = Loss(0.75, 1e-9, IN_M, 0.1 * np.eye(3), np.ones(3), np.full(3, 0.3), 1e-8, "quadrature")
SPECTRUM = Spectrum(
    "origin",
    np.array([-0.2, 0.0, 0.1]),
    np.array([3, 3, 1]),
    ("difference, feature 1", "difference, residual", "mean, residual"),
    np.zeros(3),
    2,
)


def a_flow(heads: int = 3, features: int = 2) -> Flow:
    """A made-up flow whose first feature grows through 1 at tau = 5 and falls later."""
    tau = np.linspace(0, 10, 21)
    m = np.zeros((21, heads, features))
    m[:, 0] = (tau / 5)[:, None]
    passage = np.full(features, np.nan)
    passage[:1] = 5.0
    falls = (Excursion(0, 8.0, 0.25),) if features else ()
    r = np.broadcast_to(np.eye(heads), (21, heads, heads))
    return Flow(tau, 0.8 - tau / 100, m, r, None, None, passage, falls, 0.0, 0.0, 0.0, COMPLETED)


def some_runs(runs: int, features: int = 2) -> SGDRuns:
    rng = np.random.default_rng(3)
    tau = np.linspace(0, 10, 6)
    m = rng.normal(size=(runs, 6, 3, features))
    r = np.broadcast_to(np.eye(3), (runs, 6, 3, 3))
    return SGDRuns(tau, (50 * tau).astype(np.int64), m, r, None, None, 1.0, 50, 1, 0.02, 0)


def every_figure() -> dict[str, Figure]:
    return {
        "loss": plots.loss_figure(LOSS),
        "spectrum": plots.spectrum_figure(SPECTRUM),
        "flow": plots.flow_figure(a_flow(), some_runs(3), bayes=0.5),
        "alignment": plots.alignment_figure(a_flow()),
        "sgd": plots.sgd_figure(some_runs(3)),
        "risk": plots.risk_figure([2, 4, 8], [0.2, 0.3, 0.4], Task(4, isotropic(1, 2.0)), 0.3),
    }


def svg_text(path: Path) -> str:
    root = ET.parse(path).getroot()
    return "\n".join(
        "".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")
    )


WORDS = {
    "loss": ["∂E/∂m", "∂E/∂r", "∂E/∂b", "∂E/∂v", "head h", "feature f", "E = 0.75", "−0.2", "0.3"],
    "spectrum": [
        "Hessian eigenvalue λ",
        "growth rate −λ",
        "multiplicity",
        "+0.2",
        "−0.1",
        "difference, feature 1",
        "mean, residual",
        "unstable",
        "the origin",
    ],
    "flow": [
        "feature norm ‖m(:, f)‖",
        "population loss E",
        "time τ",
        "feature 2",
        "threshold 1",
        "(threshold at τ = 5)",
        "−25% later",
        "Bayes risk 0.5",
        "SGD at D = 50, κ = 1, 3 runs",
    ],
    "alignment": ["alignments m at τ = 10", "head h", "feature f"],
    "sgd": ["feature norm ‖m(:, f)‖", "tr r / H", "time τ", "SGD at D = 50"],
    "risk": ["tokens L", "risk", "L = 4: 0.3", "1 − 1/L"],
}


@pytest.mark.parametrize("name", WORDS)
def test_svg_files_hold_their_labels_as_text(name: str, tmp_path: Path) -> None:
    plots.save(every_figure()[name], tmp_path / "figure.svg")
    text = svg_text(tmp_path / "figure.svg")
    for words in WORDS[name]:
        assert words in text


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("spectrum", ".svg"), ("risk", ".svg"), ("flow", ".svg"), ("flow", ".png"), ("loss", ".pdf")],
)
def test_files_are_the_same_bytes_twice(name: str, suffix: str, tmp_path: Path) -> None:
    for attempt in ("a", "b"):
        plots.save(every_figure()[name], tmp_path / f"{attempt}{suffix}")
    content = (tmp_path / f"a{suffix}").read_bytes()
    assert content == (tmp_path / f"b{suffix}").read_bytes()
    assert content.startswith({".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}[suffix])


def test_settings_of_the_user_neither_matter_nor_change(tmp_path: Path) -> None:
    plots.save(every_figure()["flow"], tmp_path / "a.svg")
    with matplotlib.rc_context({"font.size": 23, "svg.fonttype": "path", "axes.grid": False}):
        before = dict(matplotlib.rcParams)
        plots.save(every_figure()["flow"], tmp_path / "b.svg")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("name", ["figure.bmp", "figure", ".svg", "missing/figure.svg", "."])
def test_paths_that_cannot_hold_a_figure_are_refused(name: str, tmp_path: Path) -> None:
    figure = plots.alignment_figure(a_flow())
    with pytest.raises(InputError, match="plot"):
        plots.save(figure, tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "figure.SVG"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match=r"No space left on device: '.*figure\.SVG'"):
            plots.save(plots.alignment_figure(a_flow()), target)
    assert target.read_text() == "old"
    plots.save(plots.alignment_figure(a_flow()), target)
    assert [path.name for path in tmp_path.iterdir()] == ["figure.SVG"]
    assert "alignments" in svg_text(target)


def test_a_task_without_features_has_figures_too(tmp_path: Path) -> None:
    loss = replace(LOSS, m=np.zeros((3, 0)), b=None, v=None)
    for figure in (
        plots.loss_figure(loss),
        plots.alignment_figure(a_flow(features=0)),
        plots.flow_figure(a_flow(features=0), some_runs(2, features=0)),
        plots.sgd_figure(some_runs(2, features=0)),
    ):
        plots.save(figure, tmp_path / "figure.svg")
    plots.save(plots.loss_figure(loss), tmp_path / "figure.svg")
    text = svg_text(tmp_path / "figure.svg")
    assert "no features" in text
    assert "∂E/∂b" not in text and "∂E/∂v" not in text


def test_large_states_have_legible_figures(tmp_path: Path) -> None:
    flow = a_flow(heads=80, features=50)
    for name, figure in {
        "flow": plots.flow_figure(flow),
        "alignment": plots.alignment_figure(flow),
        "loss": plots.loss_figure(
            replace(LOSS, m=flow.m[-1], r=np.eye(80), b=np.ones(80), v=np.ones(80))
        ),
    }.items():
        plots.save(figure, tmp_path / f"{name}.svg")
        assert figure.get_size_inches().max() < 16
    assert "(7 of 50 features)" in svg_text(tmp_path / "flow.svg")


def test_features_can_be_chosen(tmp_path: Path) -> None:
    plots.save(plots.flow_figure(a_flow(), features=[1]), tmp_path / "figure.svg")
    text = svg_text(tmp_path / "figure.svg")
    assert "feature 2" in text and "feature 1" not in text
    with pytest.raises(InputError, match="features: found 2"):
        plots.flow_figure(a_flow(), features=[2])


def test_few_times_are_marked_and_a_far_threshold_is_left_out(tmp_path: Path) -> None:
    flow = a_flow()
    low = replace(
        flow,
        tau=flow.tau[:2],
        loss=flow.loss[:2],
        m=flow.m[:2],
        r=flow.r[:2],
        first_passage=np.full(2, np.nan),
        excursions=(),
    )
    top, bottom = plots.flow_figure(low).axes
    assert [line.get_marker() for line in (*top.lines, *bottom.lines)] == ["."] * 3
    assert top.get_ylim()[1] < 0.5
    assert {line.get_marker() for line in plots.flow_figure(flow).axes[1].lines} == {"None"}


def test_many_runs_become_a_mean_with_a_band(tmp_path: Path) -> None:
    plots.save(plots.sgd_figure(some_runs(plots.MOST_RUNS + 1)), tmp_path / "figure.svg")
    assert "33 runs, mean ± deviation" in svg_text(tmp_path / "figure.svg")
    few, many = (plots.sgd_figure(some_runs(n)).axes[0] for n in (plots.MOST_RUNS, 33))
    assert len(few.lines) == 2 * (plots.MOST_RUNS + 1)
    assert len(many.lines) == 2 and len(many.collections) == 2


def test_a_long_spectrum_shows_its_unstable_end(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 100)
    names = tuple(f"mean, feature {i}" for i in range(100))
    long = Spectrum("state", values, np.ones(100, dtype=int), names, np.zeros(100), 100)
    figure = plots.spectrum_figure(long)
    assert figure.get_size_inches().max() < 20
    plots.save(figure, tmp_path / "figure.svg")
    text = svg_text(tmp_path / "figure.svg")
    assert "lowest 48 of 100" in text and "mean, feature 0\n" in text
    assert "mean, feature 99" not in text


def test_eigenvalues_within_their_error_are_not_called_unstable(tmp_path: Path) -> None:
    flat = replace(SPECTRUM, eigenvalues=np.array([-1e-9, 0.0, 0.1]), errors=np.full(3, 1e-8))
    plots.save(plots.spectrum_figure(flat), tmp_path / "figure.svg")
    assert "unstable" not in svg_text(tmp_path / "figure.svg")
