"""``headflow sweep``, ``show`` and ``plot``: files, lines, figures, and one line for what is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("xarray")

import numeric.cli
from numeric import load_result
from numeric.cli import main
from tests.numeric.command_line import refused

Capture = pytest.CaptureFixture[str]
FILE = """\
[task]
tokens = 5
prior = { kind = "isotropic", features = 2, variance = 4.0 }
[attention]
activation = "softmax"
heads = 2
[sweep]
compute = "spectrum"
task.tokens = [3, 5, 9, 17]
attention.heads = [2, 0]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    return path


def test_from_a_file_to_figures(file: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert main(["sweep", str(file), "--out", str(out), "--workers", "1"]) == 0
    text, errors = capsys.readouterr()
    assert errors == "" and text.endswith(f"result: {out / 'result.nc'}\n")
    assert "cells: 4 of 8 done, 4 failed" in text
    assert "tokens = 3, heads = 0 (and 3 more): " in text and "attention.heads: found 0" in text
    assert main(["show", str(out), "--experiment"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("mine: spectrum\n") and shown.endswith(FILE + "\n")
    assert main(["plot", str(out)]) == 0
    assert capsys.readouterr().out == f"{out / 'growth_rate.svg'}\n"
    words = (out / "growth_rate.svg").read_text()
    assert "difference, feature 1" in words and ">tokens<" in words
    argv = ["plot", str(out), "--variable", "eigenvalue", "--format", "png"]
    argv += ["--select", "heads=2", "sector=mean, residual", "--out", str(tmp_path / "figures")]
    assert main(argv) == 0
    assert (tmp_path / "figures" / "eigenvalue.png").read_bytes().startswith(b"\x89PNG")


def test_options_replace_the_table(file: Path, tmp_path: Path) -> None:
    argv = ["sweep", str(file), "--out", str(tmp_path), "--format", "zarr", "--seeds", "2"]
    argv += ["--over", "task.tokens=[4]", "--over", "attention.heads={first=1, last=2}"]
    assert main([*argv, "--compute", "spectrum", "loss", "--workers", "1"]) == 0
    found = load_result(tmp_path / "result.zarr")
    assert dict(found.sizes) | {"tokens": 1, "heads": 2, "seed": 2} == dict(found.sizes)
    assert "initial_loss" in found and "eigenvalue" in found


def test_mistakes_are_one_line(file: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    said = refused(capsys, "sweep", file, "--out", out, "--over", "task.tokens")
    assert "--over: found 'task.tokens'" in said
    for text in ("", "compute=['flow']", "seeds=3"):
        assert "--over: found" in refused(capsys, "sweep", file, "--out", out, "--over", text)
    twice = ["--over", "task.tokens=[3]", "--over", "task.tokens=[4]"]
    assert "--over: found task.tokens twice" in refused(capsys, "sweep", file, *twice)
    assert "--over: sweep.task.tokens: found 3" in refused(
        capsys, "sweep", file, "--out", out, "--over", "task.tokens=3"
    )
    assert "compute: found 'flows'" in refused(
        capsys, "sweep", file, "--out", out, "--compute", "flows"
    )
    assert "workers: found 0" in refused(capsys, "sweep", file, "--out", out, "--workers", "0")
    assert "none.toml: file: found no such file" in refused(capsys, "sweep", tmp_path / "none.toml")
    (tmp_path / "taken").write_text("x")
    assert "taken', expected a folder, or none yet" in refused(
        capsys, "sweep", file, "--out", tmp_path / "taken"
    )
    assert "RESULT: found" in refused(capsys, "show", tmp_path / "none.nc")
    assert main(["sweep", str(file), "--out", str(out), "--workers", "1"]) == 0
    capsys.readouterr()
    assert "--variable: found 'nothing'" in refused(capsys, "plot", out, "--variable", "nothing")
    for choice in ("tokens", "token=3", "tokens=x", "sector=none"):
        assert "--select: found" in refused(capsys, "plot", out, "--select", choice)
    assert not list(out.glob("*.svg"))


@pytest.mark.skipif(os.geteuid() != 0, reason="permissions are tried as another user")
def test_a_closed_folder_is_one_line(file: Path, tmp_path: Path) -> None:
    """As a user who may not write there."""
    script = (
        "import os, sys; from numeric.cli import main; first, second, *argv = sys.argv[1:]; "
        "assert main([*argv, '--out', first]) == 0; os.setgid(65534); os.setuid(65534); "
        "sys.exit(main([*argv, '--out', second]))"
    )
    root = Path(numeric.cli.__file__).parent.parent
    for folder in [file.parent, *file.parent.parents][:-2]:
        folder.chmod(0o755)
    out = tmp_path / "closed"
    argv = [str(tmp_path / "open"), str(out), "sweep", str(file), "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-c", script, *argv],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr == f"headflow: error: {out}: permission denied\n"


def test_a_query_experiment(tmp_path: Path) -> None:
    argv = ["sweep", "query-recovery", "--out", str(tmp_path), "--compute", "loss", "spectrum"]
    over = ["--over", "query.theta=[0.5, 1.0]", "--over", "query.dimension=[50]", "--workers", "1"]
    assert main([*argv, *over]) == 0
    found = load_result(tmp_path)
    assert found.J.dims == ("theta", "dimension", "alpha") and found.alignment.dims[-1] == "point"
    assert main(["plot", str(tmp_path)]) == 0
    assert {x.stem for x in tmp_path.glob("*.svg")} == {"J", "dJ", "ddJ", "alignment", "rate"}
