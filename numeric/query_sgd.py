"""Stochastic gradient ascent of one query on the sphere, on all coordinates or on the alignment alone.

A sample has tokens x_i, weights a_i and output ``o = sum_i a_i x_i``; the gradient of ``|o|^2 / 2`` in q
is ``beta sum_i c_i x_i`` with ``c_i = a_i (x_i.o - |o|^2)``, and ``q <- (q + gamma_t gradient) / |...|``.

The alignment alone is a Markov chain (`_reduced_step`): the tokens' two coordinates in the plane of u
and q are drawn, and of the d - 2 others only what a step feels. With ``O = sum_i a_i z_i`` there, of
squared norm ``sigma^2 |a|^2 chi^2_{d-2}``, each ``z_i = (a_i / |a|^2) O + e_i``, the e_i Gaussian and
independent of O with covariance ``sigma^2 (1 - a a^T / |a|^2)`` over tokens: along O they are drawn, and
across it only ``|sum_i c_i e_i|^2 = sigma^2 (|c|^2 - (a.c)^2 / |a|^2) chi^2_{d-3}`` counts. A step costs
as much as there are tokens, whatever d.

For comparison, classical subspace tracking on the same tokens: Oja's rule, whose gradient is
``sum_i (q.x_i) x_i / n``, and the power method, which replaces q by it. Their reduced steps need only
``|sum_i Y_i z_i|^2 = sigma^2 |Y|^2 chi^2_{d-2}``.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import ArrayLike
from scipy.special import softmax

from numeric.errors import InputError, Verbatim
from numeric.quadrature import Array
from numeric.query import QueryTask, alignments
from numeric.validate import one_of, real_number, whole_number

RECORDINGS = 101
RULES = ("softmax", "oja", "power")
# Normals that are drawn at a time, unless a step needs more.
BLOCK = 2**20
MOST_NUMBERS = 100_000_000


@dataclass(frozen=True)
class Steps:
    """Step sizes ``gamma_t = gamma_0 / (t_0 + t)^p``, t = 0, 1, ...

    Parameters
    ----------
    gamma_0, t_0 : float
        Both > 0.
    p : float
        From 1/2, excluded, to 1: the sum diverges, that of squares does not (Robbins and Monro).
    any_p : bool
        Allow every p >= 0, 0 for constant steps.

    Raises
    ------
    InputError
        If a parameter is outside its range.
    """

    gamma_0: float
    t_0: float = 1.0
    p: float = 1.0
    any_p: bool = False

    def __post_init__(self) -> None:
        real_number("gamma_0", self.gamma_0, positive=True)
        real_number("t_0", self.t_0, positive=True)
        p = real_number("p", self.p, minimum=0)
        if not self.any_p and not 0.5 < p <= 1:
            raise InputError("p", p, "1/2 < p <= 1 (Robbins and Monro), or any_p = True")

    def __call__(self, t: int) -> float:
        """Return gamma_t."""
        return float(self.gamma_0 / (self.t_0 + t) ** self.p)


@dataclass(frozen=True, repr=False)
class QueryRuns:
    """Alignments of independent runs.

    Attributes
    ----------
    steps : (n,) array of int
        Recorded numbers of steps.
    alpha : (runs, n) array
    """

    steps: Array
    alpha: Array

    def __repr__(self) -> str:
        last = np.abs(self.alpha[:, -1])
        return (
            f"<QueryRuns: {len(last)} runs, |alpha| {last.mean():.6f} after {self.steps[-1]:.0f}>"
        )


def run_query(
    task: QueryTask,
    schedule: Steps,
    *,
    steps: int | ArrayLike,
    runs: int = 30,
    alpha: ArrayLike | None = None,
    seed: int = 0,
    method: str = "reduced",
    rule: str = "softmax",
    progress: Callable[[float], object] | None = None,
) -> QueryRuns:
    """Run stochastic gradient ascent of the query.

    Parameters
    ----------
    task : QueryTask
        d >= 4 for "reduced".
    schedule : Steps
    steps : int or (n,) array_like of int
        The last of about 100 recorded numbers of steps, or all of them, increasing.
    runs, seed : int
        Number of runs, each with a stream of its own, and the seed of them all.
    alpha : float or (runs,) array_like, optional
        Alignment at the start; by default that of a random query.
    method : {"reduced", "direct"}
        The alignment alone, or all d coordinates; the same law.
    rule : {"softmax", "oja", "power"}
        The ascent of J, Oja's rule with the same step sizes, or the power method, without any.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    QueryRuns

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    runs, seed = whole_number("runs", runs, 1), whole_number("seed", seed, 0)
    method, rule = one_of("method", method, ("reduced", "direct")), one_of("rule", rule, RULES)
    if method == "reduced":
        whole_number("dimension", task.dimension, 4)
    if task.spread:
        raise InputError("spread", task.spread, "0 in a simulation")
    if not isinstance(schedule, Steps):
        raise InputError("schedule", schedule, "Steps")
    if np.iterable(steps):
        recorded = np.array([whole_number("steps", x, 0) for x in np.asarray(steps)])
        if not len(recorded) or (np.diff(recorded) <= 0).any():
            raise InputError("steps", steps, "increasing whole numbers, at least one")
    else:
        last = whole_number("steps", steps, 1)
        recorded = np.unique(np.rint(np.linspace(0, last, RECORDINGS)).astype(np.int64))
    size = task.tokens * (task.dimension if method == "direct" else 3)
    if size > MOST_NUMBERS:
        found = Verbatim(f"{size:.3g} numbers of a sample")
        raise InputError("task", found, f"at most {MOST_NUMBERS:,}")
    if alpha is not None:
        alpha = np.broadcast_to(alignments(alpha), runs)
    # Three streams for each run, so that results do not depend on how many steps are drawn at a time.
    rngs = [[default_rng(x) for x in child.spawn(3)] for child in SeedSequence(seed).spawn(runs)]
    given = [None] * runs if alpha is None else [float(x) for x in alpha]
    now = np.array([_start(task, x, rng[2]) for x, rng in zip(given, rngs, strict=True)])
    last = int(recorded[-1])
    result = np.empty((runs, len(recorded)))
    result[:, recorded == 0] = now[:, None]
    q = None if method == "reduced" else np.array([_lifted(x, task) for x in now])
    block = max(1, BLOCK // (size * runs))
    for first in range(0, last, block):
        count = min(block, last - first)
        draws = [_draw(task, count, rng, method) for rng in rngs]
        normals, signs, chi = (np.stack(x, axis=1) for x in zip(*draws, strict=True))
        for k in range(count):
            gamma = schedule(first + k)
            if q is None:
                reduced = _reduced_step if rule == "softmax" else _reduced_tracking
                size_of = gamma if rule != "power" else np.inf
                now = reduced(task, now, size_of, normals[k], signs[k], chi[k])
            else:
                q = _direct_step(task, q, gamma, normals[k], signs[k], rule)
                now = q[:, 0]
            result[:, recorded == first + k + 1] = now[:, None]
        if progress is not None:
            progress((first + count) / last)
    if progress is not None:
        progress(1.0)
    return QueryRuns(recorded.astype(np.float64), result)


def _draw(
    task: QueryTask, count: int, rngs: list[Generator], method: str
) -> tuple[Array, Array, Array]:
    """Normals, signs and chi-squares of so many steps of one run."""
    shape = (3, task.tokens) if method == "reduced" else (task.tokens, task.dimension)
    normals = rngs[0].standard_normal((count, *shape))
    signs = rngs[1].choice((-1.0, 1.0), (count, 1 if task.shared else task.informative))
    freedom = (task.dimension - 2, task.dimension - 3) if method == "reduced" else (1, 1)
    return normals, signs, rngs[2].chisquare(freedom, (count, 2))


def _start(task: QueryTask, alpha: float | None, rng: Generator) -> float:
    """Alignment of a uniformly random query, unless it is given."""
    if alpha is not None:
        return alpha
    x = rng.standard_normal()
    return float(x / np.sqrt(x * x + rng.chisquare(task.dimension - 1)))


def _lifted(alpha: float, task: QueryTask) -> Array:
    q = np.zeros(task.dimension)
    q[0], q[1] = alpha, np.sqrt(max(1 - alpha**2, 0.0))
    return q


def _direct_step(
    task: QueryTask, q: Array, gamma: float, normals: Array, signs: Array, rule: str
) -> Array:
    """One step of queries q (runs, d)."""
    x = task.sigma * normals
    x[:, : task.informative, 0] += task.theta * signs
    if rule != "softmax":
        gradient = np.einsum("rn,rnd->rd", np.einsum("rnd,rd->rn", x, q), x) / task.tokens
        q = gradient if rule == "power" else q + gamma * gradient
        return q / np.linalg.norm(q, axis=1, keepdims=True)
    a = softmax(task.beta * np.einsum("rnd,rd->rn", x, q), axis=1)
    o = np.einsum("rn,rnd->rd", a, x)
    c = a * (np.einsum("rnd,rd->rn", x, o) - (o**2).sum(axis=1, keepdims=True))
    q = q + gamma * task.beta * np.einsum("rn,rnd->rd", c, x)
    return q / np.linalg.norm(q, axis=1, keepdims=True)


@dataclass(frozen=True)
class Sample:
    """What one step feels of samples of many runs: arrays (runs, n) and, of `length`, (runs, 1).

    Attributes
    ----------
    x, w : arrays
        Coordinates along u, and along the part of q that is orthogonal to it.
    e, length : arrays
        Parts of the tokens along O beside ``(a_i / |a|^2) O``, and the length of O.
    share, c : arrays
        ``a_i / |a|^2``, and the coefficients of the gradient over beta.
    """

    x: Array
    w: Array
    e: Array
    length: Array
    share: Array
    c: Array


def sample(task: QueryTask, alpha: Array, normals: Array, signs: Array, chi: Array) -> Sample:
    """Return samples at alignments (runs,).

    Parameters
    ----------
    task : QueryTask
    alpha : (runs,) array
    normals : (runs, 3, n) array
    signs : (runs, n_I or 1) array
    chi : (runs,) array
        Of d - 2 degrees of freedom.
    """
    across = np.sqrt(np.maximum(1 - alpha**2, 0.0))
    x, w, e = (task.sigma * normals[:, k] for k in range(3))
    x[:, : task.informative] += task.theta * signs
    a = softmax(task.beta * (alpha[:, None] * x + across[:, None] * w), axis=1)
    square = (a**2).sum(axis=1, keepdims=True)
    share = a / square
    length = task.sigma * np.sqrt(square * chi[:, None])
    e -= share * (a * e).sum(axis=1, keepdims=True)
    o_x, o_w = ((a * part).sum(axis=1, keepdims=True) for part in (x, w))
    overlap = x * o_x + w * o_w + share * length**2 + e * length
    return Sample(x, w, e, length, share, a * (overlap - (o_x**2 + o_w**2 + length**2)))


def _reduced_step(
    task: QueryTask, alpha: Array, gamma: float, normals: Array, signs: Array, chi: Array
) -> Array:
    """One step of alignments (runs,): normals (runs, 3, n), signs (runs, n_I or 1), chi (runs, 2)."""
    s = sample(task, alpha, normals, signs, chi[:, 0])

    def dot(one: Array, other: Array) -> Array:
        return np.einsum("rn,rn->r", one, other)

    along = dot(s.c, s.share) * s.length[:, 0] + dot(s.c, s.e)
    # a a^T / |a|^2 is share share^T / |share|^2.
    rest = np.maximum(dot(s.c, s.c) - dot(s.c, s.share) ** 2 / dot(s.share, s.share), 0.0)
    beyond = along**2 + task.sigma**2 * rest * chi[:, 1]
    rate = gamma * task.beta
    u = alpha + rate * dot(s.c, s.x)
    v = np.sqrt(np.maximum(1 - alpha**2, 0.0)) + rate * dot(s.c, s.w)
    result: Array = u / np.sqrt(u**2 + v**2 + rate**2 * beyond)
    return result


def _reduced_tracking(
    task: QueryTask, alpha: Array, gamma: float, normals: Array, signs: Array, chi: Array
) -> Array:
    """One step of Oja's rule, or of the power method if gamma is infinite; see `_reduced_step`."""
    across = np.sqrt(np.maximum(1 - alpha**2, 0.0))
    x, w = (task.sigma * normals[:, k] for k in range(2))
    x[:, : task.informative] += task.theta * signs
    y = alpha[:, None] * x + across[:, None] * w
    old, rate = (1.0, gamma / task.tokens) if np.isfinite(gamma) else (0.0, 1.0)
    u = old * alpha + rate * (y * x).sum(axis=1)
    v = old * across + rate * (y * w).sum(axis=1)
    beyond = task.sigma**2 * (y**2).sum(axis=1) * chi[:, 0]
    result: Array = u / np.sqrt(u**2 + v**2 + rate**2 * beyond)
    return result
