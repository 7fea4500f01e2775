"""Experiment files of the query model and every command that takes one: JSON, text, figures, refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from numeric.cli import main
from numeric.errors import ExperimentError
from numeric.experiment import load_experiment, parse_experiment
from numeric.query import QueryTask, query_objective
from numeric.query_command import surroundings
from numeric.query_experiment import QueryExperiment
from numeric.query_run import monte_carlo_objective
from numeric.query_sgd import Steps, run_query
from tests.numeric.command_line import Capture, entries, refused

TEXT = """
[query]
informative = 6
nuisance = 10
dimension = 16
theta = 1.5
beta = 2.0
sigma = "1/sqrt(d)"
[ascent]
gamma_0 = 2.0
t_0 = 10.0
p = 0.7
steps = 400
runs = 8
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT)
    return path


def read(text: str) -> QueryExperiment:
    found = parse_experiment(text, "mine")
    assert isinstance(found, QueryExperiment)
    return found


def test_a_file_is_read() -> None:
    found = read(TEXT)
    assert found.task == QueryTask(6, 10, 16, 1.5, 2.0, 0.25)
    assert found.ascent.schedule == Steps(2.0, 10.0, 0.7) and found.ascent.runs == 8
    assert "n_I = 6, own signs, n_0 = 10, d = 16" in found.title
    shared = read(TEXT.replace("theta", "shared = true\ntheta"))
    assert shared.task.shared and "one sign" in shared.title
    shipped = load_experiment("query-recovery")
    assert isinstance(shipped, QueryExperiment) and shipped.task.nuisance == 10_000


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("informative = 6", "informative = 0", "query.informative"),
        ("informative = 6", "", "query.informative"),
        ("dimension = 16", "dimension = 1", "query.dimension"),
        ("dimension = 16", 'dimension = "x"', "query.dimension"),
        ('"1/sqrt(d)"', '"1/d"', "query.sigma"),
        ('"1/sqrt(d)"', "0.0", "query.sigma"),
        ("beta = 2.0", "beta = -1", "query.beta"),
        ("beta = 2.0", "gamma = 2", "query.gamma"),
        ("p = 0.7", "p = 0.5", "ascent.p"),
        ("p = 0.7", "p = true", "ascent.p"),
        ("gamma_0 = 2.0", "", "ascent.gamma_0"),
        ("steps = 400", "steps = 1.5", "ascent.steps"),
        ("runs = 8", 'runs = 8\nmethod = "x"', "ascent.method"),
        ("runs = 8", 'runs = 8\nrule = "x"', "ascent.rule"),
        ("runs = 8", "runs = 8\nalpha = 2", "ascent.alpha"),
        ("runs = 8", "runs = 8\n[flow]\nt_max = 0", "flow.t_max"),
        ("runs = 8", "runs = 8\n[flow]\nalpha = 1.1", "flow.alpha"),
        ("runs = 8", "runs = 8\n[task]\ntokens = 3", "task"),
        ("[query]", "[query.x]", "query.x"),
    ],
)
def test_a_bad_file_is_refused(old: str, new: str, key: str) -> None:
    assert old in TEXT
    with pytest.raises(ExperimentError, match=f"^mine: {key}: "):
        read(TEXT.replace(old, new))


def test_loss(mine: Path, capsys: Capture) -> None:
    found = entries(capsys, "loss", mine)
    exact = query_objective(read(TEXT).task, found["alpha"])
    np.testing.assert_allclose(found["curvature"], exact.curvature, rtol=1e-9)
    assert main(["loss", str(mine)]) == 0
    assert "J''" in capsys.readouterr().out


def test_spectrum(mine: Path, capsys: Capture, tmp_path: Path) -> None:
    found = entries(capsys, "spectrum", mine)
    zero, one = found["fixed_points"]
    assert zero["alpha"] == 0 and not zero["stable"] and one["stable"]
    assert found["step_budget"]["growth"] == zero["rate"]
    assert surroundings(read(TEXT), cells=3).growth.shape == (3, 3)
    for option in (["--at", "state"], ["--along", "flow"], ["--dimension", "50"]):
        assert option[0] in refused(capsys, "spectrum", mine, *option)


def test_flow(mine: Path, capsys: Capture, tmp_path: Path) -> None:
    found = entries(capsys, "flow", mine)
    assert found["alpha"][0] == pytest.approx(0.25) and found["alpha"][-1] > 0.99
    path = tmp_path / "still.toml"
    path.write_text(TEXT + "[flow]\nalpha = 0\n")
    assert set(entries(capsys, "flow", path)["alpha"]) == {0.0}
    path.write_text(TEXT + "[flow]\nalpha = 0.1\nt_max = 0.01\n")
    assert main(["flow", str(path)]) == 0
    assert "not reached" in capsys.readouterr().out


def test_sgd(mine: Path, capsys: Capture, tmp_path: Path) -> None:
    found = entries(capsys, "sgd", mine)
    plain = run_query(read(TEXT).task, Steps(2.0, 10.0, 0.7), steps=400, runs=8, seed=1)
    np.testing.assert_array_equal(found["alpha"], plain.alpha)
    assert found["final"] == plain.final()[0] and found["stuck"] == 0
    figure = tmp_path / "runs.svg"
    assert main(["sgd", str(mine), "--method", "direct", "--plot", str(figure)]) == 0
    assert "stuck" in capsys.readouterr().out and "alignment" in figure.read_text()
    assert entries(capsys, "sgd", mine, "--compare", "flow")["passed"]
    for option in (["--scaling", "50"], ["--checkpoint", str(tmp_path / "x")]):
        assert option[0] in refused(capsys, "sgd", mine, *option)


@pytest.mark.parametrize("command", ["risk", "minima", "heads", "prune", "outcomes", "plant"])
def test_commands_of_the_other_model_are_refused(mine: Path, capsys: Capture, command: str) -> None:
    assert "[query]" in refused(capsys, command, mine)


def test_figures(mine: Path, capsys: Capture, tmp_path: Path) -> None:
    for command, words in (
        ("loss", "objective J"),
        ("flow", "alignment"),
        ("spectrum", "growth rate"),
    ):
        figure = tmp_path / f"{command}.svg"
        if command == "spectrum":  # a large phase diagram
            from numeric import plots, query_plots

            plots.save(query_plots.growth_figure(surroundings(read(TEXT), cells=4)), figure)
        else:
            assert main([command, str(mine), "--plot", str(figure)]) == 0
        assert words in figure.read_text()


def test_run(mine: Path, capsys: Capture, tmp_path: Path) -> None:
    assert main(["run", str(mine), "--out", str(tmp_path)]) == 0
    out = tmp_path / "mine"
    found = json.loads((out / "summary.json").read_text())
    names = {x["name"] for x in found["checks"]}
    assert found["verdict"] == "agree" and len(names) == len(found["checks"]) >= 10
    assert any("all coordinates" in x for x in names)
    assert "Growth at the equator" in (out / "derivation.md").read_text()
    report = (out / "report.md").read_text()
    assert "agree" in report and all((out / f"{x}.svg").exists() for x in ("objective", "ascent"))


def test_a_run_where_nothing_is_recovered(tmp_path: Path, capsys: Capture) -> None:
    """A majority of one sign: the theory says that all runs stay, and they do."""
    text = TEXT.replace("informative = 6", "informative = 60").replace(
        "nuisance = 10", "nuisance = 2"
    )
    path = tmp_path / "majority.toml"
    path.write_text(text.replace("theta", "shared = true\ntheta"))
    assert main(["run", str(path), "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "majority" / "summary.json").read_text())
    assert found["early_growth"] is None and found["ascent"]["stuck"] == 8
    assert any("noise carried 0 of 8 runs" in x for x in found["notes"])
    assert not any("stay below" in x["name"] for x in found["checks"])


def test_growth_of_another_rule_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "oja.toml"
    path.write_text(TEXT.replace("[ascent]", '[ascent]\nrule = "oja"'))
    assert "ascent.rule: found 'oja', expected softmax" in refused(
        capsys, "sgd", path, "--compare", "flow"
    )


@pytest.mark.parametrize("change", ["spread = 1.0", "dimension = 3"])
def test_a_run_that_cannot_be_compared_is_refused(
    change: str, tmp_path: Path, capsys: Capture
) -> None:
    text = TEXT.replace("dimension = 16\n", "" if "dimension" in change else "dimension = 16\n")
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("theta", f"{change}\ntheta"))
    assert change.split()[0] in refused(capsys, "run", path, "--out", tmp_path / "out")
    assert not (tmp_path / "out" / "mine").exists()


def test_a_wrong_objective_is_seen() -> None:
    """The oracle's error is small enough to see a change of 3 % in theta."""
    task = read(TEXT).task
    mean, error = monte_carlo_objective(task, 0.7, 100_000, 0)
    exact = float(query_objective(task, 0.7).value)
    other = float(query_objective(QueryTask(6, 10, 16, 1.545, 2.0, 0.25), 0.7).value)
    assert abs(mean - exact) < 5 * error < abs(mean - other)
