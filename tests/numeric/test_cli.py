"""The command: what it prints, its exit codes, and the one line that every bad input gives."""

import errno
import io
import json
import os
import pty
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numeric.cli
from numeric.bayes import bayes_risk
from numeric.cli import main
from numeric.errors import FlowError
from numeric.experiment import load_experiment
from numeric.flow import flow
from numeric.loss import population_loss
from numeric.noise import initial_state
from numeric.sgd import sgd
from numeric.spectrum import spectrum

ROOT = Path(numeric.cli.__file__).parent.parent
TINY = """\
[task]
tokens = 2
[task.prior]
kind = "gaussian"
mean = [0.0]
covariance = [[4.0]]
[attention]
activation = "b-softmax"
heads = 2
[state]
m = [[0.9], [-0.8]]
r = [[0.1, 0.0], [0.0, 0.1]]
[flow]
eta = 0.3
dimension = 50
tau_max = 2.0
seed = 5
[sgd]
dimension = 20
runs = 3
"""
STATE = "[state]\nm = [[0.9], [-0.8]]\nr = [[0.1, 0.0], [0.0, 0.1]]\n"
ORDINARY = ("loss", "spectrum", "flow", "risk", "sgd")


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def entries(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    """Run a command with --json and return what it prints, and nothing else prints anything."""
    capsys.readouterr()
    assert main([*map(str, argv), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.endswith("}\n") and out.count("\n") == 1
    result = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert isinstance(result, dict)
    return result


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    """Run a command that is refused, and return its one line on standard error."""
    assert main([str(a) for a in argv]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headflow: error: ") and err.endswith("\n") and err.count("\n") == 1
    return err


def python(*argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *argv], env=environment, text=True, timeout=120,
                          capture_output=True, **options)


def test_loss_in_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = entries(capsys, "loss", tiny)
    experiment = load_experiment(tiny)
    assert experiment.state is not None
    loss = population_loss(experiment.state, experiment.task, experiment.attention)
    assert list(found) == ["loss", "error", "gradient"]
    assert (found["loss"], found["error"]) == (loss.value, loss.error)
    assert list(found["gradient"]) == ["m", "r", "b"]
    for name in ("m", "r", "b"):
        assert np.array_equal(found["gradient"][name], getattr(loss, name))


def test_a_gradient_in_b_only_where_biases_are_trained(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_text(TINY.replace("b-softmax", "softmax"))
    assert list(entries(capsys, "loss", tiny)["gradient"]) == ["m", "r"]
    assert "b" not in entries(capsys, "flow", tiny)
    assert "b" not in entries(capsys, "sgd", tiny)


def test_the_tolerance_of_the_loss_counts(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loose, tight = (entries(capsys, "loss", tiny, "--tol", tol) for tol in ("1e-3", "1e-11"))
    assert loose["error"] > tight["error"]
    assert abs(loose["loss"] - tight["loss"]) < 1e-3


@pytest.mark.parametrize("at", ["origin", "state"])
def test_spectrum_in_json(at: str, tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = entries(capsys, "spectrum", tiny, "--at", at)
    experiment = load_experiment(tiny)
    state = experiment.state if at == "state" else None
    expected = spectrum(experiment.task, experiment.attention, state)
    assert set(found) == {"point", "eigenvalues", "multiplicities", "sectors", "growth_rates",
                          "errors"}
    assert found["point"] == at
    assert found["sectors"] == list(expected.sectors)
    for name in ("eigenvalues", "multiplicities", "growth_rates", "errors"):
        assert np.array_equal(found[name], getattr(expected, name))
    assert all(isinstance(count, int) for count in found["multiplicities"])


def test_flow_in_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = entries(capsys, "flow", tiny)
    experiment = load_experiment(tiny)
    assert experiment.state is not None
    expected = flow(experiment.state, experiment.task, experiment.attention, 2.0)
    assert set(found) == {"tau", "loss", "m", "r", "b", "first_passage", "excursions", "status"}
    for name in ("tau", "loss", "m", "r", "b", "first_passage"):
        assert np.array_equal(found[name], getattr(expected, name)), name
    assert found["first_passage"] == [0.0]
    assert (found["excursions"], found["status"]) == ([], "completed")


def test_what_is_undefined_is_null(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_text(TINY.replace("0.9", "0.1").replace("0.8", "0.1").replace("runs = 3", "runs = 1"))
    assert entries(capsys, "flow", tiny)["first_passage"] == [None]
    one_run = entries(capsys, "sgd", tiny)
    assert np.shape(one_run["m_error"]) == np.shape(one_run["m"])
    assert one_run["m_error"][0] == [[None], [None]]
    assert one_run["runs"] == 1


def test_excursions_in_json(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from numeric.flow import Excursion

    def falling(*args: Any, **kwargs: Any) -> Any:
        return replace(flow(*args, **kwargs), excursions=(Excursion(0, 1.5, 0.25),))

    monkeypatch.setattr("numeric.flow.flow", falling)
    found = entries(capsys, "flow", tiny)["excursions"]
    assert found == [{"feature": 0, "tau": 1.5, "drop": 0.25}]
    assert main(["flow", str(tiny)]) == 0
    assert "feature 1: falls by 25% after its peak at tau = 1.5" in capsys.readouterr().out


def test_risk_in_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = entries(capsys, "risk", tiny)
    expected = bayes_risk(load_experiment(tiny).task)
    assert found == {"bayes_risk": expected.value, "error": expected.error}


@pytest.mark.parametrize(
    ("lines", "step", "kappa"),
    [
        ("", 0.05, 1.0),
        ("step = 0.1", 0.1, 2.0),
        ("batch = 2", 0.1, 1.0),
        ("kappa", 0.025, 0.5),
    ],
)
def test_sgd_in_json(lines: str, step: float, kappa: float, tiny: Path,
                     capsys: pytest.CaptureFixture[str]) -> None:
    text = TINY.replace("eta =", "kappa = 0.5\neta =") if lines == "kappa" else TINY + lines + "\n"
    tiny.write_text(text)
    found = entries(capsys, "sgd", tiny)
    experiment = load_experiment(tiny)
    assert experiment.state is not None
    batch = experiment.sgd.batch
    runs = sgd(experiment.state, experiment.task, experiment.attention, dimension=20, tau=2.0,
               step=step, batch=batch, runs=3, seed=experiment.sgd.seed)
    for name, value in {"step": step, "kappa": kappa, "batch": batch}.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name
    assert (found["runs"], found["dimension"]) == (3, 20)
    assert found["samples"] == runs.samples.tolist()
    assert np.allclose(found["tau"], runs.tau)
    for name in ("m", "r", "b"):
        values = getattr(runs, name)
        assert np.allclose(found[name], values.mean(axis=0), atol=1e-12), name
        assert np.allclose(found[f"{name}_error"], values.std(axis=0, ddof=1) / np.sqrt(3),
                           atol=1e-12), name


@pytest.mark.parametrize("command", [*ORDINARY, "spectrum --at state"])
def test_text_is_an_aligned_table(command: str, tiny: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), str(tiny)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("tiny: b-softmax, H = 2, F = 1, L = 2\n")
    assert "nan" not in out
    if command in ("loss", "flow", "sgd", "spectrum --at state"):
        assert "state: the file's" in out
    rows = [line for line in out.splitlines() if "   " in line and "(" not in line]
    assert len({len(line) for line in rows}) <= 1
    assert len(rows) >= {"loss": 0, "risk": 0}.get(command, 4)


@pytest.mark.parametrize("command", ["loss", "spectrum --at state", "flow", "sgd"])
def test_without_a_state_it_starts_from_random_keys(
    command: str, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny.write_text(TINY.replace(STATE, ""))
    assert main([*command.split(), str(tiny)]) == 0
    assert "state: random keys, eta = 0.3, D = 50, seed = 5" in capsys.readouterr().out
    experiment = load_experiment(tiny)
    start = initial_state(experiment.task, experiment.attention, 0.3, 50, 5)
    if command in ("flow", "sgd"):
        assert np.allclose(entries(capsys, command, tiny)["m"][0], start.m, atol=1e-12)
    if command == "loss":
        loss = population_loss(start, experiment.task, experiment.attention)
        assert entries(capsys, command, tiny)["loss"] == loss.value


def test_a_note_where_the_origin_is_no_saddle(tiny: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spectrum", str(tiny)]) == 0
    assert "note" not in capsys.readouterr().out
    tiny.write_text(TINY.replace("mean = [0.0]", "mean = [0.5]"))
    assert main(["spectrum", str(tiny)]) == 0
    assert "note: the mean signal is not zero" in capsys.readouterr().out


@pytest.mark.parametrize("command", ORDINARY)
def test_figures(command: str, tiny: Path, tmp_path: Path,
                 capsys: pytest.CaptureFixture[str]) -> None:
    plots = [tmp_path / "a.svg", tmp_path / "b.svg"]
    assert main([command, str(tiny), "--plot", str(plots[0])]) == 0
    assert capsys.readouterr().out.endswith(f"\nfigure: {plots[0]}\n")
    entries(capsys, command, tiny, "--plot", plots[1])
    assert plots[0].read_bytes() == plots[1].read_bytes()
    assert ET.parse(plots[0]).getroot().tag.endswith("svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.svg", "tiny.toml"]


def test_shipped_examples_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    found = entries(capsys, "spectrum", "two-features")
    assert found["growth_rates"][0] == pytest.approx(0.192)
    for name in numeric.cli.EXAMPLES:
        load_experiment(name)


@pytest.mark.parametrize("command", ORDINARY)
@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("tokens = 2", "tokens = 0", "task.tokens: found 0, expected a whole number >= 1"),
        ("tokens = 2", "tokens = 'two'", "task.tokens: found 'two'"),
        ("tokens = 2", "token = 2", "task.token: found an unknown key"),
        ("heads = 2", "", "attention.heads: found nothing"),
        ("[[4.0]]", "[[nan]]", "task.prior.covariance: found"),
        ("[[4.0]]", "[[4.0, 1.0]]", "task.prior.covariance: found"),
        ("[[4.0]]", "[[-4.0]]", "task.prior.covariance: found"),
        ("[flow]", "[flow", "file: found"),
        ("[flow]", "[flow]\nkappa = -1", "flow.kappa: found -1"),
        ("m = [[0.9], [-0.8]]", "m = [[0.9]]", "state"),
    ],
)
def test_bad_files(command: str, old: str, new: str, words: str, tiny: Path,
                   capsys: pytest.CaptureFixture[str]) -> None:
    tiny.write_text(TINY.replace(old, new))
    assert refused(capsys, command, tiny).startswith(f"headflow: error: {tiny}: {words}")


@pytest.mark.parametrize("command", [*ORDINARY, "run"])
def test_files_that_are_not_there(command: str, tmp_path: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert "two-features" in refused(capsys, command, tmp_path / "nothing.toml")
    assert "two-features" in refused(capsys, command, tmp_path)


@pytest.mark.parametrize("tol", ["nan", "0", "-1", "inf"])
@pytest.mark.parametrize("command", ["loss", "risk"])
def test_bad_tolerances(command: str, tol: str, tiny: Path,
                        capsys: pytest.CaptureFixture[str]) -> None:
    assert "tol: found" in refused(capsys, command, tiny, f"--tol={tol}")


@pytest.mark.parametrize("name", ["figure.bmp", "figure", "missing/figure.svg"])
@pytest.mark.parametrize("command", ORDINARY)
def test_bad_figures_are_refused_before_the_work(
    command: str, name: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for function in ("sgd.sgd", "flow.flow", "loss.population_loss", "bayes.bayes_risk",
                     "spectrum.spectrum"):
        monkeypatch.setattr(f"numeric.{function}", lambda *_, **__: pytest.fail("work was done"))
    assert "plot: found" in refused(capsys, command, tiny, "--plot", tmp_path / name)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (FlowError("flow: two\nlines"), 2, "headflow: error: flow: two lines\n"),
        (PermissionError(errno.EACCES, "Permission denied", "x.svg"), 2,
         "headflow: error: x.svg: permission denied\n"),
        (OSError("odd"), 2, "headflow: error: odd\n"),
        (MemoryError("Unable to allocate 1 TiB"), 2,
         "headflow: error: not enough memory: Unable to allocate 1 TiB\n"),
        (KeyboardInterrupt(), 130, "headflow: interrupted\n"),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, ""),
    ],
)
def test_errors_on_the_way(error: BaseException, code: int, line: str, tiny: Path,
                           capsys: pytest.CaptureFixture[str],
                           monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("numeric.flow.flow", fail)
    monkeypatch.setattr("numeric.cli._drop_output", lambda: None)
    assert main(["flow", str(tiny)]) == code
    assert capsys.readouterr() == ("", line)


def test_errors_of_the_program_itself_are_not_hidden(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr("numeric.flow.flow", fail)
    with pytest.raises(ValueError, match="a defect"):
        main(["flow", str(tiny)])


@pytest.mark.parametrize("argv", [[], ["walk"], ["loss"], ["loss", "a", "b"], ["loss", "a", "--x"],
                                  ["spectrum", "a", "--at", "b"], ["loss", "a", "--tol", "small"]])
def test_usage_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("usage: headflow") and ": error: " in err


@pytest.mark.parametrize("command", [*ORDINARY, "run", "derive"])
def test_help_ends_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines()[-1].startswith(f"example: headflow {command} ")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headflow ")


@dataclass
class Check:
    name: str
    value: float
    expected: float
    error: float
    z: float | None
    passed: bool


@dataclass
class Report:
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def test_run_reports_each_verdict(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    right = Check("loss", 0.5, 0.5, 0.1, 0.0, True)
    wrong = Check("growth rate", 0.25, 0.5, 0.01, None, False)
    reports = {"tiny": Report((right,)), "other": Report((right, wrong))}
    calls = []

    def run_experiment(experiment: Any, out: Path, progress: Any) -> Report:
        calls.append((experiment.name, out))
        progress("flow", 0.5)
        return reports[experiment.name]

    monkeypatch.setattr("numeric.run.run_experiment", run_experiment)
    other = tmp_path / "other.toml"
    other.write_text(TINY)
    out = tmp_path / "new" / "folder"
    assert main(["run", str(tiny), "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text == (f"tiny: theory and simulation agree; 0 of 1 checks failed; "
                    f"see {out / 'tiny' / 'report.md'}\n")
    assert out.is_dir()
    assert main(["run", str(other), str(tiny), "--out", str(out)]) == 1
    text = capsys.readouterr().out
    assert "other: theory and simulation DISAGREE; 1 of 2 checks failed" in text
    assert "  growth rate: 0.25, expected 0.5 (error 0.01)\n" in text
    assert "tiny: theory and simulation agree" in text
    assert [name for name, _ in calls] == ["tiny", "other", "tiny"]
    assert all(folder == out / name for name, folder in calls)

    calls.clear()
    assert "tiny" in refused(capsys, "run", tiny, tiny, "--out", out)
    assert "not a directory" in refused(capsys, "run", tiny, "--out", tiny / "folder")
    assert "exists" in refused(capsys, "run", tiny, "--out", tiny)
    assert "nothing.toml" in refused(capsys, "run", tiny, "nothing.toml", "--out", out)
    assert calls == []


def test_run_takes_the_shipped_examples_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def run_experiment(experiment: Any, out: Path, progress: Any) -> Report:
        calls.append(out)
        return Report(())

    monkeypatch.setattr("numeric.run.run_experiment", run_experiment)
    monkeypatch.chdir(tmp_path)
    assert main(["run"]) == 0
    assert calls == [Path("headflow-results") / name for name in numeric.cli.EXAMPLES]


def test_progress_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    clock = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: 10.0 * next(clock))
    for screen in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", screen)
        with numeric.cli._Progress("tiny: ") as progress:
            progress("flow", 0.0)
            progress("flow", 0.25)
            progress("flow", 0.2)
            progress("SGD", 0.0)
        shown = screen.getvalue().split("\r\x1b[K")
        if screen.isatty():
            assert shown[1:] == ["  0%   tiny: flow", " 25%   tiny: flow   0:30 left",
                                 " 25%   tiny: flow   1:00 left", "  0%   tiny: SGD", ""]
        else:
            assert shown == [""]


def test_the_installed_command_as_a_process(tiny: Path) -> None:
    good = python("-W", "error", "-m", "numeric.cli", "loss", str(tiny), "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["error"] < 1e-8
    bad = python("-m", "numeric.cli", "loss", str(tiny.parent))
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)


def test_help_is_instant() -> None:
    code = ("import sys; from numeric.cli import main; main(['--help']); "
            "print(sorted({'numpy', 'scipy', 'sympy', 'matplotlib'} & set(sys.modules)))")
    assert python("-c", code).stdout.endswith("\n[]\n")


def test_computing_loads_no_sympy_and_drawing_no_pyplot(tiny: Path, tmp_path: Path) -> None:
    code = ("import sys; from numeric.cli import main; "
            f"print(main(['loss', {str(tiny)!r}, '--plot', {str(tmp_path / 'a.svg')!r}]), "
            "sorted({'sympy', 'derive', 'matplotlib.pyplot'} & set(sys.modules)))")
    assert python("-c", code).stdout.endswith("\n0 []\n")


@pytest.mark.parametrize("argv", [["loss", "two-features", "--json"], ["--help"]])
def test_output_that_cannot_be_written(argv: list[str]) -> None:
    command = [sys.executable, "-m", "numeric.cli", *argv]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        broken = subprocess.run(command, env=environment, stdout=closed, stderr=subprocess.PIPE,
                                text=True, timeout=120)
    assert (broken.returncode, broken.stderr) == (141, "")
    if not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    with open("/dev/full", "w") as full:
        failed = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE,
                                text=True, timeout=120)
    assert (failed.returncode, failed.stderr) == (
        2, "headflow: error: no space left on device\n")


def test_progress_on_a_real_terminal(tiny: Path) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "numeric.cli", "flow", str(tiny), "--json"],
                          env=environment, stdout=subprocess.PIPE, stderr=follower, timeout=120)
    os.close(follower)
    shown = os.read(leader, 100_000).decode()
    os.close(leader)
    assert done.returncode == 0
    assert json.loads(done.stdout)["status"] == "completed"
    assert "%   flow" in shown and shown.endswith("\r\x1b[K")
