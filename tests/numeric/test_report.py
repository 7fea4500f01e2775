"""The files of a run: whole or not there, strict JSON, and a page that says what was checked."""

import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from numeric import report as room
from numeric.bayes import Risk
from numeric.checks import Check
from numeric.experiment import parse_experiment
from numeric.files import strict_json, write_text
from numeric.flow import Excursion, integrate_flow
from numeric.report import summary, write_report
from numeric.run import Report
from numeric.sgd import run_sgd
from numeric.spectrum import hessian_spectrum

TEXT = """
task = { tokens = 3, prior = { kind = "gaussian", mean = [0.0], covariance = [[3.0]] } }
attention = { activation = "softmax", heads = 2 }
state = { m = [[0.4], [-0.3]], r = [[0.1, 0.0], [0.0, 0.1]] }
flow = { tau_max = 1.0, kappa = 1.0, seed = 5 }
sgd = { dimension = 20, runs = 3, seed = 9 }
"""
CHECKS = (
    Check("exact against sampled", 0.5, 0.51, 0.01, -1.0, True),
    Check("order of a remainder", 3.98, 4.0, 0.1, None, True),
    Check("planted failure", 2.0, 1.0, 0.0, np.inf, False),
)


@pytest.fixture(scope="module")
def report() -> Report:
    experiment = parse_experiment(TEXT, "tiny")
    task, attention, state = experiment.task, experiment.attention, experiment.state
    path = integrate_flow(state, task, attention, [0.0, 0.5, 1.0], 1.0)
    path = replace(path, excursions=(Excursion(0, 0.5, 0.25),))
    runs = run_sgd(state, task, attention, dimension=20, tau=[0.0, 0.5, 1.0], kappa=1.0, runs=3)
    spectrum, risk = hessian_spectrum(task, attention), Risk(0.4, 1e-7, "quadrature")
    return Report(
        experiment, state, spectrum, path, path, runs, 1.0, risk, CHECKS, "nothing grows", 1.25
    )


def strict(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_is_strict() -> None:
    data = {
        "array": np.array([[1.0, np.nan], [np.inf, -0.5]]),
        "integers": np.arange(3),
        "scalars": (np.float64(0.1), np.int64(7), np.bool_(True), None, "text", -np.inf),
        2: {"nested": [np.array([], dtype=float)]},
    }
    text = strict_json(data)
    assert strict(text) == {
        "array": [[1.0, None], [None, -0.5]],
        "integers": [0, 1, 2],
        "scalars": [0.1, 7, True, None, "text", None],
        "2": {"nested": [[]]},
    }


def test_numbers_survive_json() -> None:
    values = np.random.default_rng(0).normal(size=100) * 10.0 ** np.arange(-50, 50)
    assert strict(strict_json({"x": values}))["x"] == values.tolist()


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    for text in ("first\n", "second, with é\n"):
        write_text(path, text)
        assert path.read_text(encoding="utf-8") == text
    assert [p.name for p in tmp_path.iterdir()] == ["page.md"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("broken", ["os.replace", "os.fdopen", "os.chmod"])
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.md"
    write_text(path, "old\n")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(broken, fail)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new\n")
    monkeypatch.undo()
    assert path.read_text() == "old\n"
    assert [p.name for p in tmp_path.iterdir()] == ["page.md"]


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "missing" / "page.md", "text\n")


def test_summary(report: Report) -> None:
    found = strict(strict_json(summary(report)))
    assert found["experiment"] == "tiny"
    assert found["verdict"] == "disagree"
    assert found["false_alarm_rate"] == 1e-6
    keys = {"name", "value", "expected", "error", "z", "passed"}
    assert all(set(check) == keys for check in found["checks"])
    assert [check["name"] for check in found["checks"]] == [check.name for check in CHECKS]
    assert [check["passed"] for check in found["checks"]] == [True, True, False]
    assert [check["z"] for check in found["checks"]] == [-1.0, None, None]
    assert found["bayes_risk"] == {"value": 0.4, "error": 1e-7}
    assert found["flow"]["final_loss"] == report.flow.loss[-1]
    assert found["flow"]["first_passage"] == [None]
    assert found["flow"]["excursions"] == [{"feature": 0, "tau": 0.5, "drop": 0.25}]
    assert found["sgd"]["samples"] == 20
    assert found["sgd"]["kappa"] == 1.0
    assert found["seeds"] == {"flow": 5, "sgd": 9}
    assert found["versions"]["numpy"] == np.__version__


def test_verdict_needs_all_checks(report: Report) -> None:
    good = replace(report, checks=CHECKS[:2])
    assert good.passed
    assert summary(good)["verdict"] == "agree"
    assert not report.passed


def test_all_files(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path)
    figures = {f"{name}.{suffix}" for name in room.FIGURES for suffix in ("svg", "png")}
    names = {p.name for p in tmp_path.iterdir()}
    assert names == figures | {"summary.json", "report.md", "derivation.md"}
    for name in figures:
        head = (tmp_path / name).read_bytes()[:200]
        assert head.startswith(b"\x89PNG") if name.endswith("png") else b"<?xml" in head
    assert strict((tmp_path / "summary.json").read_text()) == strict(strict_json(summary(report)))
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "DISAGREE** in 2 of 3 checks" in page
    for check in CHECKS:
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {check.name} |")]
        assert line.endswith("| yes |" if check.passed else "| **no** |")
        assert line.count("|") == 7
    assert "| 1 | not reached |" in page
    assert "feature 1 fell 25 % below its peak at tau = 0.500" in page
    for sector in report.spectrum.sectors:
        assert f"| {sector} |" in page
    for target in ("derivation.md", "summary.json", *(f"{name}.svg" for name in room.FIGURES)):
        assert f"({target})" in page
    assert "softmax" in (tmp_path / "derivation.md").read_text(encoding="utf-8")


def test_summary_is_written_last(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its presence says that the run is complete: a figure that fails leaves none."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room.plots, "save", fail)
    with pytest.raises(OSError, match="No space"):
        write_report(report, tmp_path)
    assert not (tmp_path / "summary.json").exists()
