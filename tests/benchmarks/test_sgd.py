"""Speed of SGD: direct against the cost of its normals, reduced against direct, D = 10^4 to 10^9.

Per run and sample, one thread; ways take turns in one process and the shortest time counts. Nothing here
asserts a time.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numeric.descent import Descent, Group
from numeric.direct import Direct
from numeric.phases import random_starts
from numeric.prior import isotropic
from numeric.reduced import Reduced
from numeric.sgd import run_sgd
from numeric.task import Attention, Task

pytestmark = pytest.mark.benchmark

TASK, LAYER, SEED, ROUNDS = Task(5, isotropic(2, 4.0)), Attention("softmax", 4), 1, 5
SMALL, HUGE = 10**4, 10**9
ROW = "| {} | {:,} | {} | {:.4g} µs | {:,.0f} | {:,.1f} |"


class Compiled(Reduced):
    """The reduced loop of numba."""

    compiled = True


def advanced(kind: type[Group], dimension: int, runs: int, steps: int) -> Callable[[], float]:
    """Return what takes some steps and tells the time of one run's sample."""
    starts = random_starts(TASK, LAYER, 0.3, dimension, SEED, runs)
    rngs = [np.random.default_rng(x) for x in np.random.SeedSequence(SEED).spawn(runs)]
    group = kind(Descent(TASK, LAYER, dimension, 1, 1 / dimension, "token"), rngs, starts)

    def once() -> float:
        stop, began = group.done + steps, time.perf_counter()
        while group.done < stop:
            group.advance(stop)
        return (time.perf_counter() - began) / (steps * runs)

    once()
    return once


def drawn(dimension: int) -> Callable[[], float]:
    """Return what draws the normals of as many tokens, and tells the time of a sample's."""
    rng, out = np.random.default_rng(SEED), np.empty((TASK.tokens, dimension))

    def once() -> float:
        began = time.perf_counter()
        for _ in range(50):
            rng.standard_normal(out=out)
        return (time.perf_counter() - began) / 50

    return once


def test_reduced_against_direct(tables: list[str]) -> None:
    ways: dict[tuple[str, int, int], Callable[[], float]] = {
        ("normals alone", SMALL, 1): drawn(SMALL),
        ("direct", SMALL, 3): advanced(Direct, SMALL, 3, 50),
        ("reduced, NumPy", SMALL, 512): advanced(Reduced, SMALL, 512, 100),
        ("reduced, NumPy", HUGE, 512): advanced(Reduced, HUGE, 512, 100),
        ("reduced, NumPy", SMALL, 16): advanced(Reduced, SMALL, 16, 1000),
        ("reduced, numba", SMALL, 16): advanced(Compiled, SMALL, 16, 10_000),
        ("reduced, numba", HUGE, 16): advanced(Compiled, HUGE, 16, 10_000),
    }
    times = {way: np.inf for way in ways}
    for _ in range(ROUNDS):
        for way, once in ways.items():
            times[way] = min(times[way], once())
    direct = times["direct", SMALL, 3]
    rows = [ROW.format(*way, 1e6 * x, 1 / x, direct / x) for way, x in times.items()]
    header = "| way | D | runs | a sample | samples/s | times direct |\n|---|---|---|---|---|---|"
    title = "SGD: softmax, H = 4, F = 2, L = 5, batch 1, one thread"
    tables.append("\n".join([f"**{title}**", "", header, *rows]))


def test_the_whole_call(tables: list[str]) -> None:
    """The same samples by `run_sgd`: start, recordings and compilation included."""
    state = random_starts(TASK, LAYER, 0.3, SMALL, SEED, 16)
    found = {}
    for method, tau in (("direct", 0.05), ("reduced", 0.05), ("reduced", 20.0)):
        how: dict[str, Any] = {"dimension": SMALL, "kappa": 1.0, "runs": 16, "tau": [tau]}
        began = time.perf_counter()
        run_sgd(state, TASK, LAYER, method=method, **how)
        found[method, tau] = time.perf_counter() - began
    rows = [
        f"| {method} | {tau:g} | {x:.3g} s | {16 * tau * SMALL / x:,.0f} |"
        for (method, tau), x in found.items()
    ]
    header = "| method | tau | time | samples/s |\n|---|---|---|---|"
    tables.append("\n".join(["**run_sgd at D = 10,000, 16 runs**", "", header, *rows]))
