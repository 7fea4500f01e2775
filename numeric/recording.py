"""Groups of runs, followed to the end: what they record, in threads, with progress and checkpoints."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numeric.checkpoint import GroupStore, restore_streams, streams
from numeric.descent import Group

PROGRESS_EVERY = 0.1  # seconds
ALIVE = 0.75
"""Part of a group's runs that go on, below which it is made smaller."""


class Halted(Exception):
    """Another group has failed, or the user has interrupted."""


class Recording:
    """What a group has recorded: the first axis is the run, the second one the recording."""

    def __init__(self, group: Group, steps: NDArray[np.int64]) -> None:
        runs, heads, features = group.starts.shape
        shape = runs, len(steps), heads
        self.m = np.full((*shape, features), np.nan)
        self.r = np.full((*shape, heads), np.nan)
        self.others = {name: np.full(shape, np.nan) for name in group.others}
        self.passed = np.full(group.passed.shape, -1, dtype=np.int64)
        self.alive, self.count, self.finished = np.arange(runs), 0, False

    def record_due(self, group: Group, steps: NDArray[np.int64]) -> None:
        """Record the order parameters of the runs that go on, as often as this step is asked for."""
        while not self.finished and self.count < len(steps) and group.done == steps[self.count]:
            where = self.alive, self.count
            self.m[where], self.r[where] = group.order_parameters()
            for name, values in self.others.items():
                values[where] = group.others[name]
            self.count += 1

    def drop(self, group: Group) -> None:
        """Leave runs that have passed everything behind, if they are many."""
        going = np.asarray((group.passed < 0).any(axis=1))
        self.finished = not bool(going.any())
        if going.any() and going.mean() < ALIVE:
            self.passed[self.alive] = group.passed
            self.alive = self.alive[going]
            group.keep(going)

    def save(self, group: Group, store: GroupStore) -> None:
        """Store what is recorded, and what the rest depends on."""
        store.save(
            {
                **{f"recorded_{name}": x for name, x in self._arrays().items()},
                **{f"state_{name}": x for name, x in group.arrays().items()},
                "streams": streams(group.rngs),
                "alive": self.alive,
                "place": np.array([self.count, group.done, self.finished]),
            }
        )

    def load(self, group: Group, store: GroupStore) -> None:
        """Go on from what is stored."""
        saved = store.load()
        if saved is None:
            return
        prefix = "state_"
        arrays = {k.removeprefix(prefix): x for k, x in saved.items() if k.startswith(prefix)}
        try:
            for name, values in self._arrays().items():
                values[...] = saved[f"recorded_{name}"]
            self.alive = saved["alive"]
            self.count, done, finished = (int(x) for x in saved["place"])
            self.finished = bool(finished)
            group.rngs = [group.rngs[i] for i in self.alive]
            restore_streams(group.rngs, saved["streams"])
            group.restore(arrays, done)
        except (KeyError, ValueError, IndexError, TypeError):
            raise store.unreadable from None

    def _arrays(self) -> dict[str, Any]:
        return {"m": self.m, "r": self.r, "passed": self.passed, **self.others}


def follow(
    group: Group,
    steps: NDArray[np.int64],
    stop: bool,
    store: GroupStore | None,
    halt: threading.Event,
    tell: "Progress",
) -> Recording:
    """Follow a group of runs to the end."""
    found = Recording(group, steps)
    if store:
        found.load(group, store)
        tell(group.done * len(group.rngs))
    found.record_due(group, steps)
    while found.count < len(steps) and not found.finished:
        if halt.is_set():
            raise Halted
        before = group.done
        group.advance(int(steps[found.count]))
        tell((group.done - before) * len(group.rngs))
        # Before runs are dropped, those that have just ended included.
        found.record_due(group, steps)
        if group.resumable:
            if stop:
                found.drop(group)
            if store and store.due and not found.finished:
                found.save(group, store)
    found.passed[found.alive] = group.passed
    found.finished = True
    if store:
        found.save(group, store)
    return found


def gathered(
    one: Callable[[int], Recording], firsts: range, workers: int, halt: threading.Event
) -> list[Recording]:
    """Follow all groups, in threads if there are several workers; the first error ends all."""
    if workers == 1 or len(firsts) == 1:
        return [one(first) for first in firsts]
    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(one, first) for first in firsts]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            halt.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [future.result() for future in futures]


class Progress:
    """Reports of the fraction done, not too many."""

    def __init__(self, report: Callable[[float], object] | None, total: int) -> None:
        self._report, self._total, self._done = report, max(total, 1), 0
        self._lock = threading.Lock()
        self._next = time.monotonic() + PROGRESS_EVERY

    def __call__(self, steps: int) -> None:
        with self._lock:
            self._done += steps
            if self._report is not None and time.monotonic() >= self._next:
                self._report(self._done / self._total)
                self._next = time.monotonic() + PROGRESS_EVERY
