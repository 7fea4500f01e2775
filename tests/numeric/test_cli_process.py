"""The command as a process: what it loads, pipes that break, and a real terminal."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import numeric.cli

ROOT = Path(numeric.cli.__file__).parent.parent
TINY = """\
[task]
tokens = 2
prior = { kind = "isotropic", features = 1, variance = 4.0 }
[attention]
activation = "b-softmax"
heads = 2
[flow]
eta = 0.3
dimension = 50
tau_max = 2.0
[sgd]
dimension = 20
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def process(*argv: str, buffered: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a Python process whose output is captured, unless the options say where it goes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"[buffered:]}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run([sys.executable, *argv], env=environment, text=True, timeout=120, **pipes)


def test_the_command_as_a_process(tiny: Path) -> None:
    good = process("-W", "error", "-m", "numeric.cli", "spectrum", "two-features", "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["growth_rates"][0] == pytest.approx(0.192)
    bad = process("-m", "numeric.cli", "loss", str(tiny.parent))
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)


def test_help_is_instant_and_no_command_loads_more_than_it_needs(tiny: Path) -> None:
    plot, own = str(tiny.with_suffix(".svg")), tiny.with_name("own.toml")
    weight = 'weight = "exp(chi)"\nnormalization = "per-head"'
    own.write_text(TINY.replace('activation = "b-softmax"', weight))
    heavy = {"numpy", "sympy", "matplotlib", "derive", "matplotlib.pyplot"}
    for argv, loaded in (
        (["--help"], []),
        (["loss", str(tiny)], ["numpy"]),
        (["loss", str(tiny), "--plot", plot], ["matplotlib", "numpy"]),
        # Only an activation of one's own has to be derived.
        (["loss", str(own)], ["derive", "numpy", "sympy"]),
    ):
        code = (
            f"import sys; from numeric.cli import main; main({argv!r}); "
            f"print(sorted({heavy!r} & set(sys.modules)))"
        )
        assert process("-c", code).stdout.endswith(f"\n{loaded}\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("buffered", [True, False])
def test_output_that_cannot_be_written(buffered: bool, tiny: Path) -> None:
    argv = ("-m", "numeric.cli", "loss", str(tiny), "--json")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        broken = process(*argv, buffered=buffered, stdout=closed)
    assert (broken.returncode, broken.stderr) == (141, "")
    with open("/dev/full", "w") as full:
        failed = process(*argv, buffered=buffered, stdout=full)
    assert (failed.returncode, failed.stderr) == (2, "headflow: error: no space left on device\n")


def test_progress_on_a_real_terminal(tiny: Path) -> None:
    leader, follower = pty.openpty()
    done = process("-m", "numeric.cli", "flow", str(tiny), "--json", stderr=follower)
    os.close(follower)
    shown = os.read(leader, 100_000).decode()
    os.close(leader)
    assert json.loads(done.stdout)["status"] == "completed"
    assert "%   flow" in shown and shown.endswith("\r\x1b[K")
