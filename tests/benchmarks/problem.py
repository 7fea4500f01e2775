"""The problem that losses are timed on: eight softmax heads at three moments of learning three features.

Errors are those of the loss and, the largest of an entry, of its gradient in the coordinates (m, rho)
of the flow, ``r = rho rho^T``, against this package's own value at 12 digits.
"""

import time
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from numeric.loss import Loss, evaluate
from numeric.prior import GaussianPrior
from numeric.quadrature import Array
from numeric.task import Attention, State, Task

HEADS, TOKENS = 8, 10
VARIANCES = (2.0, 1.5, 1.0)
FEATURES = len(VARIANCES)
STATES = ("early", "middle", "trained")
GOALS = (1e-3, 1e-6)
QUANTITIES = ("loss", "gradient")
DIGITS = tuple(np.arange(1.0, 9.0, 0.5).tolist())
EXACT_DIGITS = 12.0
# Seconds for which a short job is repeated before the next one's turn.
TURN = 0.05


def task(tokens: int = TOKENS) -> Task:
    """Return the task, with any number of tokens."""
    return Task(tokens, GaussianPrior(np.zeros(FEATURES), np.diag(VARIANCES)))


def attention(heads: int = HEADS, activation: str = "softmax") -> Attention:
    """Return the attention layer."""
    return Attention(activation, heads)


def factors(name: str, heads: int = HEADS) -> tuple[Array, Array]:
    """Return m (H, F) and rho (H, H) of a state."""
    rng = np.random.default_rng(STATES.index(name))
    m = rng.standard_normal((heads, FEATURES))
    if name == "early":
        return 0.1 * m, 0.1 * np.eye(heads)
    if name == "middle":
        return 0.3 * m, 0.3 * rng.standard_normal((heads, heads))
    learned = np.zeros((heads, FEATURES))
    for h in range(heads):
        learned[h, h // 2 % FEATURES] = 1.2 * (-1) ** h
    return learned + 0.02 * m, 0.1 * np.eye(heads)


def state(name: str, heads: int = HEADS) -> State:
    """Return a state."""
    m, rho = factors(name, heads)
    return State(m, rho @ rho.T)


@cache
def exact(name: str, tokens: int = TOKENS) -> Loss:
    """Return the loss and its gradient at a state."""
    return evaluate(state(name), task(tokens), attention(), EXACT_DIGITS)


def errors(name: str, value: ArrayLike, in_m: Array, in_rho: Array) -> tuple[Array, Array]:
    """Return the errors of losses (...) and of gradients in m (..., H, F) and rho (..., H, H)."""
    truth, rho = exact(name), factors(name)[1]
    parts = (in_m - truth.m, in_rho - 2 * truth.r @ rho)
    gradient = np.max([np.abs(x).max(axis=(-2, -1)) for x in parts], axis=0)
    return np.abs(np.asarray(value) - truth.value), gradient


def own_errors(name: str, loss: Loss) -> tuple[float, float]:
    """Return the errors of a loss and gradient of this package."""
    found = errors(name, loss.value, loss.m, 2 * loss.r @ factors(name)[1])
    return float(found[0]), float(found[1])


def fastest(jobs: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Return the shortest time of each job in seconds.

    Jobs take turns, so that other work on the machine disturbs them alike.
    """
    clock = time.perf_counter
    best = {}
    for name, job in jobs.items():
        job()
        best[name] = np.inf
    end, rounds = clock() + seconds, 0
    while rounds < 2 or clock() < end:
        rounds += 1
        for name, job in jobs.items():
            turn = clock() + TURN
            while True:
                start = clock()
                job()
                best[name] = min(best[name], clock() - start)
                if clock() > turn:
                    break
    return best
