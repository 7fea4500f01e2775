"""Generated files: written whole, byte for byte reproducible, and compared with a derivation."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import derive
from derive import emit
from derive.emit import TARGET, drift, write
from derive.errors import DeriveError

ROOT = Path(derive.__file__).resolve().parent.parent


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the committed folder, compared with the committed sources themselves."""
    sources = {p.name: p.read_text(encoding="utf-8") for p in TARGET.glob("*.py")}
    monkeypatch.setattr(emit, "render", lambda: sources)
    folder = tmp_path / "copy"
    shutil.copytree(TARGET, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_committed_files_are_a_fresh_derivation() -> None:
    assert drift() == ""


def test_another_hash_seed_writes_the_committed_bytes(tmp_path: Path) -> None:
    """Another one than that of the test before, which is random unless it was set."""
    program = (
        "import sys, pathlib\nfrom derive.emit import write\n"
        "print(*(p.name for p in write(pathlib.Path(sys.argv[1]))))\n"
        "assert not {'numeric', 'scipy', 'matplotlib'} & set(sys.modules)\n"
    )
    expected = {p.name: p.read_bytes() for p in TARGET.glob("*.py")}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, str(tmp_path / "new")],
        env=os.environ | {"PYTHONHASHSEED": "20260", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.returncode == 0
    assert sorted(run.stdout.split()) == sorted(expected)
    assert {p.name: p.read_bytes() for p in (tmp_path / "new").iterdir()} == expected


def test_an_activation_of_ones_own_is_derived_to_the_same_bytes() -> None:
    """Under three hash seeds: the kernels of a definition, and the file that defines it."""
    program = (
        "from derive.user import user_attention\n"
        "own = user_attention('2 + tanh(b - chi) + 0.3*exp(-chi**2)', 'none', 0, ['b', 'v'])\n"
        "print(own.weight, own.kernel_source())\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program],
            env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in (0, 7, 20260)
    ]
    texts = {run.communicate()[0] for run in runs}
    assert [run.returncode for run in runs] == [0] * 3
    (text,) = texts
    assert "def score_gradient(" in text


def test_writing_over_old_files_leaves_no_temporary_file(copy: Path) -> None:
    (copy / "race.py").write_text("old\n", encoding="utf-8")
    written = write(copy)
    assert {p.name for p in copy.iterdir()} == {p.name for p in written}
    assert all(p.read_bytes() == (TARGET / p.name).read_bytes() for p in written)
    assert all(p.stat().st_mode & 0o777 == 0o644 for p in written)


def test_a_failing_derivation_touches_no_file(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> dict[str, str]:
        raise DeriveError("no")

    monkeypatch.setattr(emit, "render", fail)
    before = {p.name: p.read_bytes() for p in copy.iterdir()}
    with pytest.raises(DeriveError):
        write(copy)
    assert {p.name: p.read_bytes() for p in copy.iterdir()} == before


def test_drift_of_an_untouched_copy_is_empty(copy: Path) -> None:
    assert drift(copy) == ""


def test_drift_shows_a_changed_line(copy: Path) -> None:
    path = copy / "bayes.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("np.log(nu + 1)", "np.log(nu + 2)"), encoding="utf-8")
    report = drift(copy)
    assert report.startswith("--- a/bayes.py\n+++ b/bayes.py\n@@ ")
    lines = [line for line in report.splitlines() if re.match(r"[-+] ", line)]
    assert [line[0] for line in lines] == ["-", "+"]
    assert "np.log(nu + 2)" in lines[0]
    assert "np.log(nu + 1)" in lines[1]


def test_drift_shows_a_missing_and_an_extra_file(copy: Path) -> None:
    (copy / "softmax.py").unlink()
    (copy / "stale.py").write_text("LEFT = 1\n", encoding="utf-8")
    report = drift(copy)
    assert "+++ b/softmax.py\n@@ -0,0 +1," in report
    assert "--- a/stale.py\n" in report
    assert "\n-LEFT = 1\n" in report
    assert report.count("+++ ") == 2


def test_drift_of_a_folder_that_does_not_exist_is_everything(copy: Path) -> None:
    report = drift(copy / "nowhere")
    assert report.count("+++ ") == len(list(TARGET.glob("*.py")))
    assert not re.search(r"^-(?!--)", report, re.MULTILINE)


@pytest.mark.parametrize("change", ["empty file", "line endings"])
def test_drift_compares_bytes(copy: Path, change: str) -> None:
    if change == "empty file":
        (copy / "stale.py").touch()
    else:
        path = copy / "race.py"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert drift(copy) != ""


def test_writing_repairs_all_drift(copy: Path) -> None:
    (copy / "stale.py").write_text("LEFT = 1\n", encoding="utf-8")
    write(copy)
    assert drift(copy) == ""


def test_a_failed_replacement_leaves_no_temporary_file(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write(copy)
    assert not list(copy.glob("*.tmp"))
