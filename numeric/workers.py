"""Independent jobs side by side: processes of this machine, or a Dask cluster."""

import asyncio
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from numeric.errors import InputError, SimulationError, Verbatim

PATIENCE = 10.0  # seconds for a scheduler to answer


def unordered(
    function: Callable[..., Any],
    jobs: Iterable[tuple[Any, ...]],
    workers: int = 1,
    scheduler: str | None = None,
) -> Generator[Any, None, None]:
    """Call a function with the arguments of each job, and yield what it returns as soon as it does.

    Parameters
    ----------
    function : callable
    jobs : iterable of tuple
        Taken as workers become free.
    workers : int
        Processes; one is this process.
    scheduler : str, optional
        Address of a Dask scheduler, whose workers then take all jobs.

    Raises
    ------
    InputError
        If the scheduler does not answer, or `distributed` is not installed.
    SimulationError
        If a process of this machine ends in the middle of a job.
    """
    if scheduler is None and workers == 1:
        yield from (function(*job) for job in jobs)
        return
    from joblib import Parallel, delayed, parallel_config

    with _connected(scheduler) as client:
        kind: dict[str, Any] = {"backend": "loky", "inner_max_num_threads": 1}
        if client is not None:
            kind = {"backend": "dask", "client": client}
            workers = sum(client.nthreads().values())
        with parallel_config(**kind):
            run = Parallel(n_jobs=workers, return_as="generator_unordered", pre_dispatch="2*n_jobs")
            found = run(delayed(function)(*job) for job in jobs)
            try:
                # Not `yield from`, which would close what is found before the end below does.
                for result in found:  # noqa: UP028
                    yield result
            except BrokenExecutor:
                words = (
                    "a worker process ended, perhaps for lack of memory; what is finished is kept"
                )
                raise SimulationError(words) from None
            finally:
                with warnings.catch_warnings(action="ignore"):  # of jobs that are given up
                    found.close()


@contextmanager
def _connected(scheduler: str | None) -> Iterator[Any]:
    """Connect to a scheduler that has workers; without one, to nothing."""
    if scheduler is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError:
        expected = 'none, or python -m pip install "headflow[cluster]"'
        raise InputError("scheduler", scheduler, expected) from None
    try:
        with ThreadPoolExecutor(1) as thread:  # a notebook has an event loop of its own
            thread.submit(asyncio.run, _reach(scheduler)).result()
        client = Client(scheduler, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        found = Verbatim(f"{scheduler!r}, which does not answer ({type(error).__name__})")
        raise InputError("scheduler", found, "the address of a Dask scheduler, host:port") from None
    with client:
        if not client.nthreads():
            raise InputError(
                "scheduler", Verbatim(f"{scheduler!r} without workers"), "some workers"
            )
        yield client


async def _reach(scheduler: str) -> None:
    """Connect to a scheduler and hang up.

    A client that fails to connect is never closed: collected as garbage while another one starts, it
    waits for a lock for ever.
    """
    from distributed.comm.core import connect

    connection = await asyncio.wait_for(connect(scheduler, timeout=PATIENCE), PATIENCE)
    await connection.close()
