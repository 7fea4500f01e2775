"""A Dask cluster of two processes gives the bits of one process; schedulers that are none are refused."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

dask = pytest.importorskip("dask")
distributed = pytest.importorskip("distributed")
pytest.importorskip("xarray")

from numeric import run_sweep  # noqa: E402
from numeric.errors import InputError  # noqa: E402
from numeric.workers import unordered  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as found:
        yield found.scheduler_address


SMALL = """\
[task]
tokens = 5
prior = { kind = "isotropic", features = 1, variance = 4.0 }
[attention]
weight = "exp(chi / 2)"
normalization = "per-head"
heads = 2
[flow]
tau_max = 3.0
dimension = 50
[sweep]
compute = ["flow", "loss", "spectrum"]
seeds = 2
task.tokens = [3, 5]
attention.heads = [1, 2]
"""


def square(x: float) -> float:
    return x * x


def test_jobs_on_a_cluster(cluster: str) -> None:
    found = unordered(square, ((float(x),) for x in range(20)), scheduler=cluster)
    assert sorted(found) == [float(x * x) for x in range(20)]


def test_a_sweep_on_a_cluster(cluster: str, tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    one = run_sweep(file)
    on_cluster = run_sweep(file, scheduler=cluster, folder=tmp_path)
    assert on_cluster.identical(one)
    assert all(one[x].values.tobytes() == on_cluster[x].values.tobytes() for x in one.variables)


def test_two_processes() -> None:
    assert sorted(unordered(square, ((float(x),) for x in range(5)), workers=2)) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere", "tcp://127.0.0.1:x", ""])
def test_no_scheduler(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numeric.workers.PATIENCE", 1.0)
    with pytest.raises(InputError, match=r"scheduler: found .*, expected the address") as error:
        list(unordered(square, [(1.0,)], scheduler=address))
    assert "\n" not in str(error.value)
    assert dask.config.get("scheduler", None) is None  # nothing outlasts it


def test_a_scheduler_that_does_not_answer_leaves_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails would be collected later, perhaps in the middle of another one's start."""
    monkeypatch.setattr("numeric.workers.PATIENCE", 0.5)
    started: list[object] = []
    monkeypatch.setattr("distributed.Client", lambda *x, **y: started.append(x))
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(InputError, match="which does not answer"):
            list(unordered(square, [(1.0,)], scheduler=address))
    assert not started


def test_a_cluster_from_within_an_event_loop(cluster: str) -> None:
    """As in a notebook."""

    async def run() -> list[float]:
        return list(unordered(square, ((float(x),) for x in range(3)), scheduler=cluster))

    assert sorted(asyncio.run(run())) == [0, 1, 4]
