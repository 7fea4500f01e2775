"""``python -m derive``: return codes, output, and errors of one line."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import derive
from derive import __main__ as command
from derive.__main__ import main
from derive.attention import ACTIVATIONS
from derive.emit import TARGET
from derive.errors import DeriveError

ROOT = Path(derive.__file__).resolve().parent.parent


def _one_line(error: str) -> str:
    assert error.endswith("\n")
    assert error.count("\n") == 1
    assert error.startswith("headflow: error: ")
    return error.removeprefix("headflow: error: ").strip()


def test_prints_the_chosen_activation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["softmax", "--format", "text"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# softmax attention\n")
    assert "\n    w(chi, b) = exp(chi)\n" in out
    assert out.count("\n# ") == 0
    assert err == ""


def test_prints_all_activations_as_latex_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command, "document", lambda attention, form, order: f"{attention.name} {form} {order}"
    )
    assert main([]) == 0
    assert capsys.readouterr() == ("".join(f"{name} latex 4\n" for name in ACTIVATIONS), "")
    assert main(["b-softmax", "softmax", "--order", "6"]) == 0
    assert capsys.readouterr() == ("b-softmax latex 6\nsoftmax latex 6\n", "")


@pytest.mark.parametrize("order", ["3", "8", "0", "-4", "4.0", "four", ""])
def test_an_unknown_order(order: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["softmax", f"--order={order}"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert _one_line(err) == f"--order: found {order!r}, expected one of 2, 4, 6"


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_python_format_is_the_generated_module(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([name, "--format", "python"]) == 0
    out = capsys.readouterr().out
    committed = (TARGET / f"{ACTIVATIONS[name].module}.py").read_text(encoding="utf-8")
    # Whether the hash is up to date is for --check to say.
    digest = re.compile(r"^Spec \w{16},", re.MULTILINE)
    assert digest.sub("", out) == digest.sub("", committed) + "\n"


@pytest.mark.parametrize("arguments", [["sofmax"], ["softmax", "sofmax"], ["", "softmax"]])
def test_unknown_name(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    message = _one_line(err)
    assert message.startswith("activation: found ")
    assert all(name in message for name in ACTIVATIONS)


OWN = """\
[attention]
weight = "3 * exp(2*chi + b)"
normalization = "per-head"
background = 0.5
trained = ["b", "v"]
heads = 3
"""


def test_an_experiment_file_with_its_own_activation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN)
    assert main([str(path), "--format", "python"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    scope: dict = {}
    exec(out, scope)
    assert scope["NAME"] == "user-defined"
    assert scope["PARAMETERS"] == ("b", "v")
    assert scope["weight_functions_2"](0.0, 0.0)[0] == pytest.approx(math.log(3), rel=1e-15)
    path.write_text('[attention]\nactivation = "erf"\n')
    assert main([str(path), "--format", "python"]) == 0
    assert main(["erf", "--format", "python"]) == 0
    of_file, of_name = capsys.readouterr().out.split('\n\n"""')
    assert of_file.strip('"') == of_name.strip().strip('"')


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("chi + b", "chi + c", "attention.weight: found"),
        ("per-head", "head", "attention.normalization: found 'head', expected one of"),
        ("0.5", "-0.5", "attention.background: found -0.5, expected"),
        ('["b", "v"]', "[]", "attention.trained: found [], expected"),
        ("[attention]", "[attentoin]", "attention: found None, expected a table"),
        ("[attention]", "[attention", "found "),
    ],
)
def test_a_bad_experiment_file(
    old: str, new: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(OWN.replace(old, new))
    assert main(["softmax", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert _one_line(err).startswith(f"{path}: {words}")
    assert main([str(tmp_path / "nothing.toml")]) == 2
    assert "nothing.toml: found No such file" in _one_line(capsys.readouterr().err)


def test_check_without_drift(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "drift", lambda: "")
    assert main(["--check"]) == 0
    assert capsys.readouterr() == ("generated kernels are up to date\n", "")


def test_check_prints_the_difference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "drift", lambda: "--- a/race.py\n+++ b/race.py\n")
    assert main(["--check"]) == 1
    assert capsys.readouterr() == ("--- a/race.py\n+++ b/race.py\n\n", "")


def test_write_lists_the_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "write", lambda: [Path("a.py"), Path("b.py")])
    assert main(["--write"]) == 0
    assert capsys.readouterr() == ("a.py\nb.py\n", "")


@pytest.mark.parametrize(
    ("action", "error", "words"),
    [
        (
            "write",
            PermissionError(13, "Permission denied", "folder/race.py"),
            "race.py: permission denied",
        ),
        ("write", DeriveError("k: x declared twice"), "k: x declared twice"),
        ("drift", OSError(5, "Input/output error"), "Input/output error"),
    ],
)
def test_failures_are_one_line_and_code_two(
    action: str,
    error: Exception,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(command, action, fail)
    assert main(["--write" if action == "write" else "--check"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in _one_line(err)


@pytest.mark.parametrize(
    "arguments",
    [["--check", "--write"], ["--format", "pdf"], ["--chekc"], ["--format"], ["--order"]],
)
def test_misused_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: headflow derive ")
    assert "Traceback" not in err


@pytest.mark.parametrize("action", ["--check", "--write"])
def test_an_unknown_name_is_refused_beside_an_action(
    action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "drift", lambda: "")
    monkeypatch.setattr(command, "write", lambda: [])
    try:
        code = main(["sofmax", action])
    except SystemExit as caught:
        code = int(caught.code or 0)
    assert code == 2


def test_help_names_activations_and_gives_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert ", ".join(ACTIVATIONS) in out
    assert "example: headflow derive softmax --format text" in out


def test_runs_as_a_module() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-m", "derive", *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )

    good, bad = run("--help"), run("sofmax")
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("usage: headflow derive ")
    assert (bad.returncode, bad.stdout) == (2, "")
    _one_line(bad.stderr)
