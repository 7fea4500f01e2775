"""The command: what it prints, its exit codes, and the one line that every bad input gives."""

import argparse
import errno
import io
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import numeric.cli
from numeric import options
from numeric.bayes import bayes_risk
from numeric.checks import Check
from numeric.cli import main
from numeric.errors import FlowError
from numeric.experiment import load_experiment
from numeric.flow import Excursion, integrate_flow
from numeric.loss import population_loss
from numeric.noise import initial_state
from numeric.sgd import run_sgd
from numeric.spectrum import hessian_spectrum
from numeric.task import Attention, State, Task
from tests.numeric.command_line import Capture, entries, refused

Patch = pytest.MonkeyPatch
ROOT = Path(numeric.cli.__file__).parent.parent
STATE = "[state]\nm = [[0.9], [-0.8]]\nr = [[0.1, 0.0], [0.0, 0.1]]\n"
TINY = f"""\
[task]
tokens = 2
[task.prior]
kind = "gaussian"
mean = [0.0]
covariance = [[4.0]]
[attention]
activation = "b-softmax"
heads = 2
{STATE}[flow]
eta = 0.3
dimension = 50
tau_max = 2.0
seed = 5
[sgd]
dimension = 20
runs = 3
"""
ORDINARY = ("loss", "spectrum", "flow", "risk", "sgd")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def parts(path: Path) -> tuple[State, Task, Attention]:
    """Return what the numeric functions take of an experiment with a state."""
    experiment = load_experiment(path)
    assert experiment.state is not None
    return experiment.state, experiment.task, experiment.attention


def patch(monkeypatch: Patch, name: str, value: object) -> None:
    """Replace a function, given as module.function of `numeric`."""
    module, function = name.split(".")
    monkeypatch.setattr(import_module(f"numeric.{module}"), function, value)


def test_loss_and_risk_in_json(tiny: Path, capsys: Capture) -> None:
    found = entries(capsys, "loss", tiny)
    loss = population_loss(*parts(tiny))
    assert (found["loss"], found["error"]) == (loss.value, loss.error)
    assert (found["method"], found["gradient_error"]) == (loss.method, loss.gradient_error)
    assert list(found["gradient"]) == ["m", "r", "b"]
    for name, values in found["gradient"].items():
        assert np.array_equal(values, getattr(loss, name))
    assert entries(capsys, "loss", tiny, "--tol", "1e-3")["error"] > loss.error
    risk = bayes_risk(load_experiment(tiny).task)
    expected = {"bayes_risk": risk.value, "error": risk.error, "method": risk.method}
    assert entries(capsys, "risk", tiny) == expected


OWN = 'weight = "exp(chi + b)"\nnormalization = "per-head"\nbackground = 1\ntrained = ["b", "v"]'


@pytest.mark.parametrize(
    ("activation", "trained"),
    [
        ('activation = "softmax"', []),
        ('activation = "erf"', ["b", "v"]),
        (OWN, ["b", "v"]),
    ],
)
def test_only_what_is_trained_is_shown(
    activation: str, trained: list[str], tiny: Path, capsys: Capture
) -> None:
    text = TINY.replace('activation = "b-softmax"', activation)
    tiny.write_text(text.replace("tau_max = 2.0", "tau_max = 0.2"))
    assert list(entries(capsys, "loss", tiny)["gradient"]) == ["m", "r", *trained]
    for command in ("flow", "sgd"):
        found = entries(capsys, command, tiny)
        assert [name for name in ("b", "v") if name in found] == trained
    assert main(["spectrum", str(tiny), "--at", "state"]) == 0
    name = "user-defined" if activation == OWN else activation.split('"')[1]
    assert capsys.readouterr().out.startswith(f"tiny: {name}, H = 2, F = 1, L = 2\n")


@pytest.mark.parametrize("at", ["origin", "state"])
def test_spectrum_in_json(at: str, tiny: Path, capsys: Capture) -> None:
    found = entries(capsys, "spectrum", tiny, "--at", at)
    state, task, attention = parts(tiny)
    expected = hessian_spectrum(task, attention, state if at == "state" else None)
    assert (found.pop("point"), found.pop("sectors")) == (at, list(expected.sectors))
    assert found.pop("index") == expected.index
    assert set(found) == {"eigenvalues", "multiplicities", "growth_rates", "errors"}
    for name, values in found.items():
        assert np.array_equal(values, getattr(expected, name))
    assert all(isinstance(count, int) for count in found["multiplicities"])


def test_flow_in_json(tiny: Path, capsys: Capture) -> None:
    found = entries(capsys, "flow", tiny)
    expected = integrate_flow(*parts(tiny), 2.0)
    errors = {"loss_error", "gradient_error", "noise_error"}
    assert set(found) - errors == {
        *("tau", "loss", "m", "r", "b"),
        *("first_passage", "excursions", "status"),
    }
    assert all(found[name] == getattr(expected, name) for name in errors)
    for name in ("tau", "loss", "m", "r", "b", "first_passage"):
        assert np.array_equal(found[name], getattr(expected, name)), name
    assert (found["first_passage"], found["excursions"]) == ([0.0], [])


def test_what_is_undefined_is_null(tiny: Path, capsys: Capture) -> None:
    tiny.write_text(TINY.replace("0.9", "0.1").replace("0.8", "0.1").replace("= 3", "= 1"))
    assert entries(capsys, "flow", tiny)["first_passage"] == [None]
    one_run = entries(capsys, "sgd", tiny)
    assert np.shape(one_run["m_error"]) == np.shape(one_run["m"])
    assert one_run["m_error"][0] == [[None], [None]] and one_run["runs"] == 1


def test_excursions_in_json(tiny: Path, capsys: Capture, monkeypatch: Patch) -> None:
    def falling(*args: Any, **kwargs: Any) -> Any:
        return replace(integrate_flow(*args, **kwargs), excursions=(Excursion(0, 1.5, 0.25),))

    patch(monkeypatch, "flow.integrate_flow", falling)
    fall = {"feature": 0, "tau": 1.5, "drop": 0.25}
    assert entries(capsys, "flow", tiny)["excursions"] == [fall]
    assert main(["flow", str(tiny)]) == 0
    assert "feature 1: falls by 25% after its peak at tau = 1.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "step", "kappa"),
    [("", 0.05, 1.0), ("step = 0.1", 0.1, 2.0), ("batch = 2", 0.1, 1.0), ("kappa", 0.025, 0.5)],
)
def test_sgd_in_json(more: str, step: float, kappa: float, tiny: Path, capsys: Capture) -> None:
    tiny.write_text(TINY.replace("eta =", "kappa = 0.5\neta =") if more == "kappa" else TINY + more)
    found = entries(capsys, "sgd", tiny)
    batch = 2 if "batch" in more else 1
    runs = run_sgd(*parts(tiny), dimension=20, tau=2.0, step=step, batch=batch, runs=3, seed=1)
    settings = {"step": step, "kappa": kappa, "batch": batch, "runs": 3, "dimension": 20}
    assert {name: found[name] for name in settings} == pytest.approx(settings, rel=1e-12)
    assert found["samples"] == runs.samples.tolist()
    assert np.allclose(found["tau"], runs.tau)
    for name in ("m", "r", "b"):
        values = getattr(runs, name)
        error = values.std(axis=0, ddof=1) / np.sqrt(3)
        assert np.allclose(found[name], values.mean(axis=0), atol=1e-12), name
        assert np.allclose(found[f"{name}_error"], error, atol=1e-12), name


@pytest.mark.parametrize("command", [*ORDINARY, "spectrum --at state"])
def test_text_and_figures(command: str, tiny: Path, capsys: Capture) -> None:
    plots = [tiny.with_name(name) for name in ("a.svg", "b.svg")]
    assert main([*command.split(), str(tiny), "--plot", str(plots[0])]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("tiny: b-softmax, H = 2, F = 1, L = 2\n") and err == ""
    assert out.endswith(f"\nfigure: {plots[0]}\n")
    assert ("state: the file's" in out) == (command not in ("risk", "spectrum"))
    rows = [line for line in out.splitlines() if "   " in line and "(" not in line]
    assert len({len(line) for line in rows}) <= 1  # aligned
    assert len(rows) >= {"loss": 0, "risk": 0}.get(command, 4)
    entries(capsys, *command.split(), tiny, "--plot", plots[1])
    assert plots[0].read_bytes() == plots[1].read_bytes()
    assert ET.parse(plots[0]).getroot().tag.endswith("svg")
    assert sorted(path.name for path in tiny.parent.iterdir()) == ["a.svg", "b.svg", "tiny.toml"]


@pytest.mark.parametrize("command", ["loss", "spectrum --at state", "flow", "sgd"])
def test_without_a_state_keys_are_random(command: str, tiny: Path, capsys: Capture) -> None:
    tiny.write_text(TINY.replace(STATE, ""))
    assert main([*command.split(), str(tiny)]) == 0
    assert (
        "state: random keys, eta = 0.3, flow.dimension = 50, flow.seed = 5"
        in capsys.readouterr().out
    )
    task, attention = load_experiment(tiny).task, load_experiment(tiny).attention
    start = initial_state(task, attention, 0.3, 50, 5)
    if command in ("flow", "sgd"):
        assert np.allclose(entries(capsys, command, tiny)["m"][0], start.m, atol=1e-12)
    elif command == "loss":
        loss = population_loss(start, task, attention)
        assert entries(capsys, command, tiny)["loss"] == loss.value


def test_a_note_where_the_origin_is_no_saddle(tiny: Path, capsys: Capture) -> None:
    for mean, noted in (("0.0", False), ("0.5", True)):
        tiny.write_text(TINY.replace("mean = [0.0]", f"mean = [{mean}]"))
        assert main(["spectrum", str(tiny)]) == 0
        assert ("note: the mean signal is not zero" in capsys.readouterr().out) == noted


@pytest.mark.parametrize("command", ORDINARY)
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tokens = 2", "tokens = 0", "task.tokens: found 0, expected a whole number >= 1"),
        ("tokens = 2", "token = 2", "task.token: found an unknown key"),
        ("heads = 2", "", "attention.heads: found nothing"),
        ("[[4.0]]", "[[nan]]", "task.prior.covariance: found"),
        ("[[4.0]]", "[[-4.0]]", "task.prior.covariance: found"),
        ("[flow]", "[flow", "file: found"),
        ("[flow]", "[flow]\nkappa = -1", "flow.kappa: found -1"),
        ("m = [[0.9], [-0.8]]", "m = [[0.9]]", "state"),
    ],
)
def test_bad_files(
    command: str, old: str, new: str, words: str, tiny: Path, capsys: Capture
) -> None:
    tiny.write_text(TINY.replace(old, new))
    assert refused(capsys, command, tiny).startswith(f"headflow: error: {tiny}: {words}")


@pytest.mark.parametrize("command", [*ORDINARY, "run"])
def test_bad_arguments(command: str, tiny: Path, capsys: Capture) -> None:
    for path in (tiny.parent / "nothing.toml", tiny.parent):
        assert "two-features" in refused(capsys, command, path)
    for tol in ("nan", "0", "-1", "inf") if command in ("loss", "risk") else ():
        assert "tol: found" in refused(capsys, command, tiny, f"--tol={tol}")


@pytest.mark.parametrize("command", ORDINARY)
def test_bad_figures_are_refused_before_the_work(
    command: str, tiny: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    work = (
        "sgd.run_sgd",
        "flow.integrate_flow",
        "loss.population_loss",
        "bayes.bayes_risk",
        "spectrum.hessian_spectrum",
    )
    for name in work:
        patch(monkeypatch, name, lambda *_, **__: pytest.fail("work was done"))
    for name in ("figure.bmp", "figure", "missing/figure.svg"):
        assert "plot: found" in refused(capsys, command, tiny, "--plot", tiny.parent / name)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (FlowError("flow: two\nlines"), 2, "error: flow: two lines"),
        (PermissionError(errno.EACCES, "Denied", "X.svg"), 2, "error: X.svg: denied"),
        (OSError("Odd"), 2, "error: Odd"),
        (MemoryError("1 TiB"), 2, "error: not enough memory: 1 TiB"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    ],
)
def test_errors_on_the_way(
    error: BaseException, code: int, line: str, tiny: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    patch(monkeypatch, "flow.integrate_flow", Mock(side_effect=error))
    patch(monkeypatch, "cli._drop_output", lambda: None)
    assert main(["flow", str(tiny)]) == code
    assert capsys.readouterr() == ("", line and f"headflow: {line}\n")
    patch(
        monkeypatch, "flow.integrate_flow", Mock(side_effect=ValueError("a defect, not bad input"))
    )
    with pytest.raises(ValueError, match="a defect"):
        main(["flow", str(tiny)])


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["walk"],
        ["loss"],
        ["loss", "a", "b"],
        ["loss", "a", "--x"],
        ["spectrum", "a", "--at", "b"],
        ["loss", "a", "--tol", "small"],
    ],
)
def test_usage_errors(argv: list[str], capsys: Capture) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("usage: headflow") and ": error: " in err


def subcommands() -> dict[str, argparse.ArgumentParser]:
    actions = options.parser()._subparsers._group_actions  # type: ignore[union-attr]
    return dict(actions[0].choices)  # type: ignore[arg-type]


def test_every_option_has_words() -> None:
    found = subcommands()
    assert {"run", "claims", "sweep", "show", "plot", "minima", "derive"} <= set(found)
    for name, parser in found.items():
        for action in parser._actions:
            assert action.help, (name, action.dest)


@pytest.mark.parametrize("command", sorted(subcommands()))
def test_help_ends_with_an_example(command: str, capsys: Capture) -> None:
    assert main([command, "--help"]) == 0
    out, err = capsys.readouterr()
    _, example, words = " ".join(out.split()).rpartition("example: ")
    assert example and words.startswith(f"headflow {command} ") and err == ""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headflow ")


def fake_runs(monkeypatch: Patch, **checks: tuple[Check, ...]) -> list[Path]:
    """Make runs of these experiments instant; return the list in which their folders appear."""
    folders = []

    def run_experiment(experiment: Any, out: Path, progress: Any) -> SimpleNamespace:
        folders.append(out)
        progress("flow", 0.5)
        found = checks[experiment.name]
        return SimpleNamespace(checks=found, passed=all(check.passed for check in found))

    patch(monkeypatch, "run.run_experiment", run_experiment)
    patch(monkeypatch, "query_run.run_query_experiment", run_experiment)
    return folders


def test_run_reports_each_verdict(
    tiny: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    right = Check("loss", 0.5, 0.5, 0.1, 0.0, True)
    wrong = Check("growth rate", 0.25, 0.5, 0.01, None, False)
    shipped: dict[str, tuple[Check, ...]] = {name: () for name in numeric.cli.EXAMPLES}
    calls = fake_runs(monkeypatch, tiny=(right,), other=(right, wrong), **shipped)
    other = tmp_path / "other.toml"
    other.write_text(TINY)
    out = tmp_path / "new" / "folder"
    assert main(["run", str(tiny), "--out", str(out)]) == 0
    assert capsys.readouterr().out == (
        "tiny: theory and simulation agree; 0 of 1 checks failed; "
        f"see {out / 'tiny' / 'report.md'}\n"
    )
    assert out.is_dir()
    assert main(["run", str(other), str(tiny), "--out", str(out)]) == 1
    text = capsys.readouterr().out
    assert text.startswith("other: theory and simulation DISAGREE; 1 of 2 checks failed")
    assert "  growth rate: 0.25, expected 0.5 (error 0.01)\ntiny: theory and sim" in text
    assert calls == [out / "tiny", out / "other", out / "tiny"]

    calls.clear()
    assert "tiny" in refused(capsys, "run", tiny, tiny, "--out", out)
    assert "not a directory" in refused(capsys, "run", tiny, "--out", tiny / "folder")
    assert "nothing.toml" in refused(capsys, "run", tiny, "nothing.toml", "--out", out)
    assert calls == []

    monkeypatch.chdir(tmp_path)
    assert main(["run"]) == 0
    assert calls == [Path("headflow-results") / name for name in shipped]


def test_progress_shows_percentage_stage_and_time_left(monkeypatch: Patch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(time, "monotonic", Mock(side_effect=[0.0, 10.0, 20.0, 30.0]))
    with numeric.cli._Progress("tiny: ") as progress:
        for stage, fraction in (("flow", 0.0), ("flow", 0.25), ("flow", 0.2), ("SGD", 0.0)):
            progress(stage, fraction)
    assert screen.getvalue().split("\r\x1b[K")[1:] == [
        "  0%   tiny: flow",
        " 25%   tiny: flow   0:30 left",
        " 25%   tiny: flow   1:00 left",
        "  0%   tiny: SGD",
        "",
    ]
