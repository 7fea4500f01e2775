"""Sweeps: the same bits for any number of workers and any interruptions; failed cells; full disks."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

xarray = pytest.importorskip("xarray")

from numeric import Attention, GaussianPrior, Task, hessian_spectrum, run_sweep  # noqa: E402
from numeric import sweep as room  # noqa: E402
from numeric.cells import read_cell, write_cell  # noqa: E402
from numeric.errors import ExperimentError, InputError, SimulationError  # noqa: E402

ROOT = Path(room.__file__).parent.parent
FILE = """\
[task]
tokens = 5
prior = { kind = "gaussian", mean = [0.0, 0.0], covariance = [[4.0, 0.0], [0.0, 2.0]] }
[attention]
activation = "softmax"
heads = 2
[flow]
tau_max = 4.0
dimension = 50
[sgd]
dimension = 20
runs = 2
[sweep]
compute = ["spectrum"]
task.tokens = { first = 2, last = 11 }
attention.heads = { first = 1, last = 5 }
task.prior.covariance.0.0 = { first = 1.0, last = 4.0, count = 4 }
"""
CELLS = 200


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(FILE)
    return path


def same(x: Any, y: Any) -> bool:
    """Whether two datasets agree bit for bit, attributes included."""
    bits = all(x[name].values.tobytes() == y[name].values.tobytes() for name in x.variables)
    return bits and x.identical(y)


def test_a_cell_is_what_the_command_gives(file: Path) -> None:
    found = run_sweep(file)
    assert found.growth_rate.dims == ("tokens", "covariance.0.0", "heads", "sector")
    prior = GaussianPrior([0.0, 0.0], np.diag([2.0, 2.0]))
    expected = hessian_spectrum(Task(7, prior), Attention("softmax", 3))
    cell = found.growth_rate.sel({"tokens": 7, "heads": 3, "covariance.0.0": 2.0})
    for sector, rate in zip(expected.sectors, expected.growth_rates, strict=True):
        assert float(cell.sel(sector=sector)) == rate
    one = found.growth_rate.sel(heads=1)
    assert one.sel(sector="difference, feature 1").isnull().all()
    assert found.attrs["experiment"] == FILE and found.attrs["cells"] == "200 of 200"
    assert json.loads(found.attrs["swept"])["heads"] == "attention.heads"
    assert json.loads(found.attrs["seeds"]) == {"flow.seed": 0, "sgd.seed": 1}
    assert {"headflow", "numpy", "python"} <= set(json.loads(found.attrs["versions"]))
    assert found.eigenvalue.attrs["largest_error"] >= 0


def test_interrupted_five_times_and_resumed(file: Path, tmp_path: Path) -> None:
    whole = run_sweep(file)
    rng = np.random.default_rng(3)
    stops = np.sort(rng.choice(np.arange(1, CELLS), 5, replace=False))
    folder, computed = tmp_path / "out", []

    def stop_at(total: int) -> Any:
        def progress(done: int, missing: int) -> None:
            computed.append(done)
            if CELLS - missing + done == total:
                raise KeyboardInterrupt

        return progress

    for i, stop in enumerate(stops):
        with pytest.raises(KeyboardInterrupt):
            run_sweep(file, folder=folder, workers=1 + i % 2, progress=stop_at(int(stop)))
        assert len(list(folder.rglob("*.npz"))) >= stop
    assert same(run_sweep(file, folder=folder, progress=stop_at(-1)), whole)
    assert len(list(folder.rglob("*.npz"))) == CELLS
    computed.clear()
    assert same(run_sweep(file, folder=folder, progress=stop_at(-1)), whole)
    assert not computed  # all cells were kept


def test_killed_and_resumed(file: Path, tmp_path: Path) -> None:
    """SIGKILL at five moments of a sweep whose cells take a while."""
    file.write_text(FILE.replace('["spectrum"]', '["loss"]').replace("last = 5", "last = 2"))
    folder = tmp_path / "out"
    argv = [sys.executable, "-m", "numeric.cli", "sweep", str(file), "--out", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for stop in (5, 20, 35, 50, 65):
        with subprocess.Popen(
            argv, env=environment, start_new_session=True, stdout=-3, stderr=-3
        ) as process:
            began = time.monotonic()
            while process.poll() is None and len(list(folder.rglob("*.npz"))) < stop:
                time.sleep(0.01)
                assert time.monotonic() - began < 100
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert same(run_sweep(file, folder=folder, workers=2), run_sweep(file))


def test_workers_and_threads_do_not_matter(file: Path) -> None:
    over = {"task.tokens": [5], "attention.heads": [1, 2]}
    how: dict[str, Any] = {"compute": ["flow", "sgd", "loss"], "seeds": 2}
    file.write_text(FILE.partition("[sweep]")[0])
    one, two = (run_sweep(file, over, **how, workers=n) for n in (1, 2))
    assert same(one, two)
    assert json.loads(one.attrs["seeds"]) == {"flow.seed": [0, 1], "sgd.seed": [0, 1]}
    assert one.m.dims == ("tokens", "heads", "seed", "tau", "head", "feature")
    assert one.sgd_m.dims[:4] == ("tokens", "heads", "seed", "run")
    # Seeds are told apart, and each is that of the file with this seed.
    assert not np.array_equal(one.m.sel(seed=0), one.m.sel(seed=1))
    again = run_sweep(file, {"flow.seed": [1]}, compute=["flow"])
    np.testing.assert_array_equal(
        again.m.isel(seed=0).values, one.m.sel(tokens=5, heads=2, seed=1).values
    )


def test_failed_cells_do_not_stop_the_rest(file: Path, tmp_path: Path) -> None:
    over = {
        "task.tokens": [2, -3, 5],
        "attention.heads": [1, 10**6],
        "task.prior.covariance.0.0": [1.0],
    }
    found = run_sweep(file, over, folder=tmp_path)
    failed = json.loads(found.attrs["failed"])
    assert len(failed) == 4 and found.attrs["cells"] == "2 of 6"
    assert failed[0]["cell"] == {"tokens": 2, "heads": 10**6, "covariance.0.0": 1.0}
    assert "attention.heads: found 1000000" in failed[0]["error"]
    assert found.growth_rate.sel(tokens=-3).isnull().all()
    assert not found.growth_rate.sel(tokens=5, heads=1, sector="mean, feature 1").isnull().any()
    assert run_sweep(file, over, folder=tmp_path).identical(found)


def test_errors_that_may_pass_are_tried_again(tmp_path: Path) -> None:
    memory = tmp_path / "calls"

    def fails_once(x: int) -> float:
        with memory.open("a") as stream:
            stream.write("x")
        if x == 1:
            raise SimulationError("never")
        if x == 2 and len(memory.read_text()) < 5:
            raise MemoryError("too large")
        if x == 3:
            raise SystemExit("gone")
        return float(x)

    def run() -> tuple[Any, list[str]]:
        found = run_sweep(fails_once, {"x": [0, 1, 2, 3]}, folder=tmp_path / "out")
        return found, [x["error"] for x in json.loads(found.attrs["failed"])]

    assert run()[1] == ["never", "MemoryError: too large", "SystemExit: gone"]
    found, errors = run()
    assert errors == ["never", "SystemExit: gone"]
    assert memory.read_text() == "xxxxxx" and float(found.value.sel(x=2)) == 2.0


def test_a_function_of_ones_own() -> None:
    def rates(tokens: int, name: str) -> Any:
        return {"rate": tokens**2.0, "curve": (("x",), np.arange(tokens) * 1.0)}

    found = run_sweep(rates, {"tokens": [1, 3], "name": ["a", "b"]}, workers=2)
    assert found.rate.sel(tokens=3, name="b") == 9
    assert found.curve.dims == ("tokens", "name", "x_index")
    assert found.curve.sel(tokens=1, name="a").isnull().sum() == 2
    with pytest.raises(InputError, match=r"over: found \['token'\], expected the arguments of"):
        run_sweep(rates, {"token": [1]})
    with pytest.raises(InputError, match=r"compute: found \['flow'\], expected none"):
        run_sweep(rates, {"tokens": [1], "name": ["a"]}, compute=["flow"])
    no_axes = run_sweep(lambda: 3.0)
    assert float(no_axes.value) == 3.0


class Times:
    def __init__(self, k: int) -> None:
        self.k = k

    def __call__(self, a: int) -> float:
        return float(self.k * a)

    def method(self, a: int) -> float:
        return float(self.k * a)


def test_kept_cells_belong_to_what_a_function_is(tmp_path: Path) -> None:
    """Its code, what it closes over, its defaults, and what it is bound to: not to its address."""

    def closing(k: int) -> Any:
        def times(a: int) -> float:
            return float(k * a)

        return times

    for make in (Times, lambda k: Times(k).method, closing, lambda k: lambda a, k=k: float(k * a)):
        for k in (2, 3, 5):
            found = run_sweep(make(k), {"a": [7]}, folder=tmp_path)
            assert float(found.value[0]) == 7 * k
    pair = (lambda a: a + 1.0, lambda a: a + 2.0)
    assert [float(run_sweep(f, {"a": [1]}, folder=tmp_path).value[0]) for f in pair] == [2, 3]
    files = len(list(tmp_path.rglob("*.npz")))
    run_sweep(Times(2), {"a": [7]}, folder=tmp_path)
    assert len(list(tmp_path.rglob("*.npz"))) == files


def test_a_function_that_changes_its_arguments_changes_no_other_cell() -> None:
    def grows(a: list[int], b: int) -> float:
        a.append(b)
        return float(len(a))

    found = run_sweep(grows, {"a": [[1], [2, 3]], "b": [1, 2, 3]})
    np.testing.assert_array_equal(found.value.values, [[2, 2, 2], [3, 3, 3]])


def test_keys_that_overlap_are_refused(file: Path) -> None:
    over = {"task.prior.covariance": [[[1.0, 0.0], [0.0, 1.0]]]}
    with pytest.raises(InputError, match=r"swept, too, expected one of the two"):
        run_sweep(file, over)
    with pytest.raises(InputError, match=r"sweep: found 25000000 cells"):
        run_sweep(lambda a, b: 1.0, {"a": range(5000), "b": range(5000)})


def test_labels_stay_apart() -> None:
    found = run_sweep(lambda a: float(isinstance(a, str)), {"a": [1, "1", True, (1, 2), [1, 2]]})
    assert found.a.to_index().is_unique and found.value.values.tolist() == [0, 1, 0, 0, 0]


def test_names_of_axes_and_variables_are_different() -> None:
    found = run_sweep(lambda b: {"x": (("x",), [1.0])}, {"b": [1]})
    assert "expected another name" in json.loads(found.attrs["failed"])[0]["error"]
    mixed = run_sweep(lambda b: {"y": 1.0} if b else {"z": (("y",), [1.0])}, {"b": [0, 1]})
    assert "an axis and a variable" in json.loads(mixed.attrs["failed"])[0]["error"]
    with pytest.raises(InputError, match=r"over: found 'a', expected other names"):
        run_sweep(lambda a: {"a": 1.0}, {"a": [1]})


def test_a_worker_that_ends_is_one_error(tmp_path: Path) -> None:
    def ends(a: int) -> float:
        if a == 6:
            os._exit(3)
        return float(a)

    with pytest.raises(SimulationError, match="a worker process ended"):
        run_sweep(ends, {"a": range(8)}, folder=tmp_path, workers=2)


def test_times_that_differ_become_a_variable(file: Path) -> None:
    over = {"flow.tau_max": [1.0, 2.0], "task.tokens": [5], "attention.heads": [2]}
    found = run_sweep(file, over | {"task.prior.covariance.0.0": [4.0]}, compute=["flow"])
    assert found.m.dims[-3:] == ("tau_index", "head", "feature")
    np.testing.assert_allclose(
        found.tau.isel(tokens=0, heads=0)[..., -1].values.ravel(), [1.0, 2.0]
    )


@pytest.mark.parametrize(
    ("change", "how", "words"),
    [
        ({}, {"compute": ["flows"]}, r"compute: found 'flows', expected one of 'loss'"),
        ({}, {"workers": 0}, r"workers: found 0"),
        ({}, {"seeds": 1.5}, r"seeds: found 1\.5"),
        ({}, {"over": {"task.tokens": 3}}, r"task\.tokens: found 3, expected a sequence"),
        ({}, {"over": {"task.tokens": []}}, r"task\.tokens: found \[\], expected at least one"),
        ({}, {"over": {"task.tokens": [0, -1]}}, r"task\.tokens: found 0"),
        ({}, {"over": {"task.tokens": [3, 3]}}, r"task\.tokens: found 3 twice"),
        ({"task.tokens =": "task.token ="}, {}, r"task\.token: found an unknown key"),
        ({"tokens = 5": "tokens = 5\nspeed = 3"}, {}, r"task\.speed: found an unknown key"),
        ({"heads = { first = 1": "heads = { first = 0.5"}, {}, None),
    ],
)
def test_bad_sweeps_are_refused(
    file: Path, change: dict[str, str], how: dict[str, Any], words: str | None
) -> None:
    text = FILE
    for old, new in change.items():
        text = text.replace(old, new)
    file.write_text(text)
    with pytest.raises(InputError, match=words) as error:
        run_sweep(file, **how)
    assert "\n" not in str(error.value)


def test_another_file_shares_no_cells(file: Path, tmp_path: Path) -> None:
    over = {"task.tokens": [3], "attention.heads": [2], "task.prior.covariance.0.0": [1.0]}
    run_sweep(file, over, folder=tmp_path)
    file.write_text(FILE.replace("[0.0, 2.0]", "[0.0, 2.5]"))
    run_sweep(file, over, folder=tmp_path)
    assert len(list((tmp_path / "cells").iterdir())) == 2
    samples = tmp_path / "x.csv"
    empirical = 'prior = { kind = "empirical", file = "x.csv" }\n'
    file.write_text(FILE.replace(FILE.splitlines()[2] + "\n", empirical).partition("[sweep]")[0])
    for text in ("1\n-1\n", "2\n-2\n"):
        samples.write_text(text)
        found = run_sweep(file, folder=tmp_path, compute=["spectrum"])
        assert found.attrs["cells"] == "1 of 1"
    assert len(list((tmp_path / "cells").iterdir())) == 4


def test_damaged_cells_are_computed_again(file: Path, tmp_path: Path) -> None:
    over = {"task.tokens": [3, 4], "attention.heads": [2], "task.prior.covariance.0.0": [1.0]}
    whole = run_sweep(file, over, folder=tmp_path)
    first, second = sorted((tmp_path / "cells").iterdir())
    first.write_bytes(first.read_bytes()[:200])
    second.write_bytes(b"")
    assert read_cell(first) is None and read_cell(second) is None
    assert same(run_sweep(file, over, folder=tmp_path), whole)


def test_a_full_disk_loses_no_finished_cell(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []

    def full(path: Path, found: Any) -> None:
        if len(written) == 30:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write_cell(path, found)
        written.append(path)

    monkeypatch.setattr(room, "write_cell", full)
    with pytest.raises(OSError, match="No space left"):
        run_sweep(file, folder=tmp_path)
    monkeypatch.undo()
    assert all(read_cell(path) is not None for path in written)
    computed: list[int] = []
    run_sweep(file, folder=tmp_path, progress=lambda done, total: computed.append(total))
    assert set(computed) == {CELLS - 30}


def test_a_cell_written_to_a_full_file_system_names_its_path(tmp_path: Path) -> None:
    """Linux refuses to write to /dev/full."""
    from numeric.files import whole

    with pytest.raises(OSError) as error, whole(tmp_path / "none" / "cell.npz"):
        pass
    assert str(error.value.filename) == str(tmp_path / "none" / "cell.npz")


def test_unknown_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="no such file"):
        run_sweep(tmp_path / "none.toml")
