"""The main job end to end on a tiny experiment; that it sees broken physics; and SGD against the flow
as the token dimension D grows.

The runs' own comparisons share a false-alarm rate of 1e-6; seeds are fixed.
"""

import json
import os
import pickle
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numeric import direct
from numeric import run as room
from numeric.errors import InputError, SimulationError
from numeric.experiment import Experiment, SGDSettings, parse_experiment
from numeric.flow import integrate_flow
from numeric.prior import GaussianPrior
from numeric.report import write_report
from numeric.run import Report, kappa_of, run_experiment, start_of
from numeric.sgd import run_sgd
from numeric.task import Attention, State, Task

TEXT = """
[task]
tokens = 4
prior = { kind = "gaussian", mean = [0.0], covariance = [[3.0]] }
[attention]
activation = "softmax"
heads = 2
[state]
m = [[0.8], [-0.5]]
r = [[0.3, 0.0], [0.0, 0.2]]
[flow]
tau_max = 2.0
kappa = 1.0
[sgd]
dimension = 40
runs = 200
seed = 3
"""
TINY = parse_experiment(TEXT, "tiny")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path, list[Any]]:
    out = tmp_path_factory.mktemp("results") / "new" / "tiny"
    told: list[Any] = []
    report = run_experiment(TINY, out, lambda stage, fraction: told.append((stage, fraction)))
    return report, out, told


def read_summary(out: Path) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads((out / "summary.json").read_text(), parse_constant=refuse)


def test_files(finished: tuple[Report, Path, list[Any]]) -> None:
    report, out, _ = finished
    figures = [f"{n}.{s}" for n in ("flow", "sgd", "alignment", "spectrum") for s in ("svg", "png")]
    texts = ["summary.json", "report.md", "derivation.md"]
    # No temporary files are left.
    assert sorted(p.name for p in out.iterdir()) == sorted(figures + texts)
    assert all((out / name).stat().st_size > 200 for name in figures + texts)
    assert report.passed


def test_summary_and_page(finished: tuple[Report, Path, list[Any]]) -> None:
    report, out, _ = finished
    found = read_summary(out)
    assert found["verdict"] == "agree"
    assert found["experiment"] == "tiny"
    # Expansion, spectrum, growth, three losses, Bayes; two entries of m, three of r at five times.
    assert len(found["checks"]) == 7 + 5 * 5
    page = (out / "report.md").read_text(encoding="utf-8")
    for check in found["checks"]:
        assert list(check) == ["name", "value", "expected", "error", "z", "passed"]
        assert isinstance(check["passed"], bool)
        assert all(np.isfinite(check[k]) for k in ("value", "expected", "error"))
        assert check["z"] is None or np.isfinite(check["z"])
        assert f"| {check['name']} |" in page
    statistical = [check for check in found["checks"] if check["z"] is not None]
    assert len(statistical) == 3 + 25
    assert found["bayes_risk"]["value"] < min(report.flow.loss)
    assert found["sgd"]["samples"] == 80
    assert found["seconds"] > 0


def test_progress(finished: tuple[Report, Path, list[Any]]) -> None:
    _, _, told = finished
    stages = list(dict.fromkeys(stage for stage, _ in told))
    assert stages[0] == "spectrum"
    assert told[-1] == ("report", 1.0)
    assert {"Bayes risk", "checks", "SGD at D = 40", "SGD at D = 20"} <= set(stages)
    assert all(0 <= fraction <= 1 for _, fraction in told)


def test_same_seed_same_summary(
    finished: tuple[Report, Path, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice into one folder, whose earlier files are replaced; figures are compared elsewhere."""
    monkeypatch.setattr("numeric.plots.save", lambda *_: None)
    (tmp_path / "summary.json").write_text("of an earlier run")
    run_experiment(TINY, tmp_path)
    first, again = read_summary(finished[1]), read_summary(tmp_path)
    for found in (first, again):
        del found["seconds"]
    assert again == first
    assert (tmp_path / "report.md").read_bytes() == (finished[1] / "report.md").read_bytes()


@pytest.mark.parametrize(
    "weight",
    ["exp(chi + b)", pytest.param("1 + chi / (1 + chi**2) + b**2", marks=pytest.mark.slow)],
)
def test_an_activation_of_ones_own(
    weight: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From text to verdict; biases and values are compared as well."""
    monkeypatch.setattr("numeric.plots.save", lambda *_: None)
    raced = weight.startswith("exp")
    own = f'weight = "{weight}"\ntrained = ["b", "v"]\n'
    own += 'normalization = "per-head"\nbackground = 0.5' if raced else 'normalization = "none"'
    text = TEXT.replace('activation = "softmax"', own).replace("tau_max = 2.0", "tau_max = 0.5")
    experiment = parse_experiment(text, "own")
    report = run_experiment(experiment, tmp_path)
    assert report.passed, [check for check in report.checks if not check.passed]
    found = read_summary(tmp_path)
    names = {check["name"].split(" at ")[0] for check in found["checks"]}
    assert {"m[1,1]", "r[1,2]", "b[1]", "b[2]", "v[1]", "v[2]"} <= names
    derivation = (tmp_path / "derivation.md").read_text(encoding="utf-8")
    assert derivation.startswith("# user-defined attention")
    assert "user-defined, H = 2 heads" in (tmp_path / "report.md").read_text(encoding="utf-8")
    # Of a layer that another process sent, only the kernels are left.
    copy = pickle.loads(pickle.dumps(experiment.attention))
    write_report(replace(report, experiment=replace(experiment, attention=copy)), tmp_path)
    derivation = (tmp_path / "derivation.md").read_text(encoding="utf-8")
    assert derivation.startswith("# user-defined attention")
    assert "def weight_functions_2(" in derivation


def broken_physics(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    original = direct.gradient_sum

    def scaled(*arguments: Any) -> tuple[np.ndarray, ...]:
        return tuple(factor * part for part in original(*arguments))

    monkeypatch.setattr(direct, "gradient_sum", scaled)
    monkeypatch.setattr("numeric.plots.save", lambda *_: None)


def test_ascent_instead_of_descent_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_physics(monkeypatch, -1.0)
    report = run_experiment(TINY, tmp_path)
    assert not report.passed
    found = read_summary(tmp_path)
    assert found["verdict"] == "disagree"
    failed = [check["name"] for check in found["checks"] if not check["passed"]]
    assert failed
    assert all("SGD" in name for name in failed)
    assert "**no**" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_a_wrong_step_size_is_seen(
    tmp_path: Path, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_physics(monkeypatch, factor)
    more = replace(TINY, sgd=SGDSettings(dimension=200, runs=400, seed=3))
    assert not run_experiment(more, tmp_path).passed


def test_one_run_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    alone = replace(TINY, sgd=SGDSettings(dimension=40, runs=1))
    with pytest.raises(InputError, match=r"^sgd\.runs: found 1, .*$"):
        run_experiment(alone, out)
    assert not out.exists()


def no_long_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def begun(*_: object) -> None:
        raise SimulationError("long work has begun")

    for name in ("hessian_spectrum", "bayes_risk", "integrate_flow", "run_sgd"):
        monkeypatch.setattr(room, name, begun)


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_long_work(monkeypatch)
    (tmp_path / "file").write_text("not a folder")
    for out in (tmp_path / "file", tmp_path / "file" / "tiny"):
        with pytest.raises(OSError, match="file"):
            run_experiment(TINY, out)
    assert (tmp_path / "file").read_text() == "not a folder"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="permissions of POSIX")
def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read-only for others and, if the tests run as root, entered as another user."""
    import numeric.report  # noqa: F401

    no_long_work(monkeypatch)
    me = os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        try:
            if me == 0:
                os.seteuid(65534)
            with pytest.raises(PermissionError):
                run_experiment(TINY, Path(folder))
        finally:
            os.seteuid(me)
            os.chmod(folder, 0o755)


def test_start_and_kappa() -> None:
    assert start_of(TINY) is TINY.state
    assert kappa_of(TINY) == 1.0
    assert kappa_of(replace(TINY, sgd=SGDSettings(dimension=40, batch=2, step=0.1))) == 2.0
    still = replace(TINY, flow=replace(TINY.flow, kappa=0.0), state=None)
    assert kappa_of(still) == 1.0
    drawn = start_of(still)
    assert drawn.m.shape == (2, 1)
    assert drawn == start_of(still)
    assert drawn != start_of(replace(still, flow=replace(still.flow, seed=1)))


def rms_deviation(
    experiment: Experiment, dimension: int, runs: int, tau: float, seed: int
) -> tuple[float, float]:
    """Root mean square over runs and entries of m of SGD minus the flow, and its standard error."""
    task, attention, state = experiment.task, experiment.attention, experiment.state
    assert state is not None
    path = integrate_flow(state, task, attention, [0.0, tau], 1.0, digits=8.0, rtol=1e-8)
    found = run_sgd(
        state, task, attention, dimension=dimension, tau=[tau], kappa=1.0, runs=runs, seed=seed
    )
    square = ((found.m[:, -1] - path.m[-1]) ** 2).mean(axis=(1, 2))
    rms = float(np.sqrt(square.mean()))
    return rms, float(square.std(ddof=1) / np.sqrt(runs)) / (2 * rms)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["softmax", "b-softmax"])
def test_deviation_shrinks_like_the_root_of_the_dimension(
    activation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """SGD at kappa = 1 from one state at fixed tau: fluctuations of order D^(-1/2), bias 1/D."""
    prior = GaussianPrior([0.0, 0.0], [[4.0, 0.0], [0.0, 2.0]])
    experiment = replace(
        TINY,
        task=Task(5, prior),
        attention=Attention(activation, 2),
        state=State([[0.5, -0.2], [-0.3, 0.4]], [[0.3, 0.05], [0.05, 0.2]]),
    )
    dimensions, runs = np.array([250, 500, 1000, 2000]), (400, 300, 200, 150)
    found = [
        rms_deviation(experiment, int(d), n, 1.0, 40 + i)
        for i, (d, n) in enumerate(zip(dimensions, runs, strict=True))
    ]
    rms, error = np.array(found).T
    x, y, weight = np.log(dimensions), np.log(rms), (rms / error) ** 2
    centred = x - np.average(x, weights=weight)
    spread = (weight * centred**2).sum()
    slope, sigma = (weight * centred * y).sum() / spread, 1 / np.sqrt(spread)
    with capsys.disabled():
        print(f"\n{activation}: RMS {rms.round(5)} +- {error.round(5)}: {slope:.3f} +- {sigma:.3f}")
    assert sigma < 0.05
    assert abs(slope + 0.5) < max(0.1, 3 * sigma)
