"""``headflow sgd`` with its options: JSON, text, figures, exit codes, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from numeric import cli
from numeric.cli import main
from numeric.phases import Scaling
from numeric.sgd_plots import agreement_figure, scaling_figure
from tests.numeric.command_line import Capture, entries, refused
from tests.numeric.test_agreement import compared

SMALL = """
[task]
tokens = 4
[task.prior]
kind = "gaussian"
mean = [1.5]
covariance = [[1.0]]
[attention]
activation = "softmax"
heads = 2
[state]
m = [[0.3], [-0.1]]
r = [[0.1, 0.0], [0.0, 0.1]]
[flow]
tau_max = 4.0
kappa = 1.0
[sgd]
dimension = 60
runs = 12
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_methods_and_workers(small: Path, capsys: Capture) -> None:
    direct = entries(capsys, "sgd", small)
    reduced = entries(capsys, "sgd", small, "--method", "reduced")
    assert direct["m"] != reduced["m"]
    assert np.shape(direct["m"]) == np.shape(reduced["m"])
    assert entries(capsys, "sgd", small, "--method", "reduced", "--workers", "3") == reduced
    small.write_text(SMALL + 'method = "reduced"\n')
    assert entries(capsys, "sgd", small) == reduced
    assert entries(capsys, "sgd", small, "--method", "direct") == direct


def test_checkpoints(small: Path, capsys: Capture) -> None:
    folder = small.parent / "kept"
    first = entries(capsys, "sgd", small, "--checkpoint", folder)
    assert (folder / "run.json").exists()
    assert entries(capsys, "sgd", small, "--checkpoint", folder) == first
    small.write_text(SMALL.replace("runs = 12", "runs = 13"))
    assert "checkpoint" in refused(capsys, "sgd", small, "--checkpoint", folder)


def test_checkpoints_of_each_dimension(small: Path, capsys: Capture) -> None:
    for options in (("--compare", "flow"), ("--scaling", "50", "100")):
        folder = small.parent / options[0]
        first = entries(capsys, "sgd", small, *options, "--checkpoint", folder)
        assert len(list(folder.glob("D-*/run.json"))) == (4 if "flow" in options else 2)
        assert entries(capsys, "sgd", small, *options, "--checkpoint", folder) == first


def test_comparison(small: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    found = entries(capsys, "sgd", small, "--compare", "flow")
    assert found["dimensions"] == [60, 120, 240, 480]
    assert found["passed"] is True and all(x["passed"] for x in found["checks"])
    figure = small.with_name("a.svg")
    assert main(["sgd", str(small), "--compare", "flow", "--plot", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "SGD and flow agree (false alarms: 1e-06 in all)" in out
    assert "rms deviation from the flow" in figure.read_text()
    monkeypatch.setattr("numeric.checks.threshold", lambda comparisons: 0.0)
    assert main(["sgd", str(small), "--compare", "flow"]) == cli.DISAGREE
    assert "SGD and flow DISAGREE" in capsys.readouterr().out


def test_scaling(small: Path, capsys: Capture) -> None:
    found = entries(capsys, "sgd", small, "--scaling", "50", "100", "200")
    assert found["phases"] == ["mean", "specialization", "feature 1"]
    assert np.shape(found["passages"]) == (3, 12, 3)
    assert found["fits"][0]["slope_error"] > 0
    figure = small.with_name("a.svg")
    assert main(["sgd", str(small), "--scaling", "50", "100", "--plot", str(figure)]) == 0
    out = capsys.readouterr().out
    assert "mean: against log D a slope of" in out
    assert "not all runs passed by tau = 4" in out
    assert "token dimension D" in figure.read_text()


@pytest.mark.parametrize(
    "options",
    [
        "--workers 0",
        "--compare flow --scaling 50 100",
        "--scaling 50",
        "--scaling 100 50",
        "--scaling 2 3",
    ],
)
def test_options_refused(options: str, small: Path, capsys: Capture) -> None:
    refused(capsys, "sgd", small, *options.split())
    assert [x.name for x in small.parent.iterdir()] == ["small.toml"]


def test_one_run_has_no_spread(small: Path, capsys: Capture) -> None:
    small.write_text(SMALL.replace("runs = 12", "runs = 1"))
    assert "sgd.runs" in refused(capsys, "sgd", small, "--scaling", "50", "100")


@pytest.mark.parametrize("options", ["--method fast", "--compare theory", "--scaling ten twenty"])
def test_options_that_are_no_choice(options: str, small: Path) -> None:
    assert main(["sgd", str(small), *options.split()]) == 2


def test_figures_have_labels() -> None:
    figure = agreement_figure(compared(dimensions=[100, 200, 400], runs=8))
    left, right = figure.axes
    assert left.get_xlabel() == "token dimension D" and left.get_ylabel()
    assert right.get_xlabel() and right.get_legend() is not None
    words = [x.get_text() for x in right.get_legend().get_texts()]
    assert words == ["flow, feature 1", "flow, feature 2", "mean of 8 runs"]
    sizes = np.array([100.0, 1000.0])
    fit = Scaling(sizes, sizes, sizes, sizes, 0.5, 0.1, 1.0, 0.5, 3.0, 0.1, 0.5)
    passages = [np.array([[1.0, np.inf], [2.0, np.inf]]), np.array([[2.0, np.inf], [3.0, 4.0]])]
    ax = scaling_figure(sizes, passages, ["mean", "heads"], [fit, None]).axes[0]
    assert ax.get_xscale() == "log" and ax.get_ylabel()
    labels = [x.get_text() for x in ax.get_legend().get_texts()]
    assert sorted(labels) == ["heads", "mean", "slope 0.5 (99 %: 0.242 to 0.758) in log D"]
