"""Stochastic gradient ascent of one query on the sphere: independent runs, their ends with confidence.

A step is one of `numeric.query_steps`: on all coordinates, or on the alignment alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import ArrayLike
from scipy.special import stdtrit

from numeric.errors import InputError, Verbatim
from numeric.quadrature import Array
from numeric.query import QueryTask, alignments, first_time
from numeric.query_steps import RULES, Departure, Direct, Reduced
from numeric.validate import one_of, real_number, whole_number

RECORDINGS = 100
# Normals that are drawn at a time, unless a step needs more.
BLOCK = 2**20
MOST_NUMBERS = 100_000_000
# Normals of a token in a reduced step.
NORMALS = 3
# A run whose |alpha| ends below is stuck.
STUCK = 0.5
CONFIDENCE = 0.95


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
    steps : (n,) array
        Recorded numbers of steps.
    alpha : (runs, n) array
    settled : bool
        Whether the mean of |alpha| had come to rest, as far as that was asked for.
    """

    steps: Array
    alpha: Array
    settled: bool = False

    @property
    def stuck(self) -> int:
        """Number of runs whose |alpha| ends below 1/2."""
        return int((np.abs(self.alpha[:, -1]) < STUCK).sum())

    def final(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the mean of |alpha| at the end, and the half-width of its interval.

        Parameters
        ----------
        confidence : float
            Of the interval (Student's t), between 0 and 1; it is infinite for one run.
        """
        real_number("confidence", confidence, positive=True)
        if confidence >= 1:
            raise InputError("confidence", confidence, "a number between 0 and 1")
        last = np.abs(self.alpha[:, -1])
        if len(last) < 2:
            return float(last.mean()), np.inf
        quantile = stdtrit(len(last) - 1, (1 + confidence) / 2)
        return float(last.mean()), float(quantile * last.std(ddof=1) / np.sqrt(len(last)))

    def times_to(self, alignment: float) -> Array:
        """Return each run's first step with ``|alpha|`` at an alignment (runs,), infinite if none."""
        return np.array([first_time(self.steps, x, alignment) for x in self.alpha])

    def __repr__(self) -> str:
        mean, width = self.final()
        return (
            f"<QueryRuns: {len(self.alpha)} runs, |alpha| {mean:.6f} +- {width:.1g} after "
            f"{self.steps[-1]:.0f} steps, {self.stuck} stuck>"
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
    departure: Departure | None = None,
    settled: float | None = None,
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
        Number of runs, each with streams of its own, and the seed of them all.
    alpha : float or (runs,) array_like, optional
        Alignment at the start; by default that of a random query.
    method : {"reduced", "direct"}
        The alignment alone, or all d coordinates; the same law.
    rule : {"softmax", "oja", "power"}
        The ascent of J, Oja's rule with the same step sizes, or the power method, without any.
    departure : Departure, optional
        How tokens depart from the model; "direct" only, as is a spread of norms.
    settled : float, optional
        Stop when the mean of |alpha| over the runs has changed by less than this since half as many
        steps, and no run is stuck.
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
        for name, value in (("spread", task.spread), ("departure", departure)):
            if value:
                raise InputError(name, value, "none where method is not 'direct'")
    if not isinstance(schedule, Steps):
        raise InputError("schedule", schedule, "Steps")
    if settled is not None:
        settled = real_number("settled", settled, positive=True)
    recorded = _recorded(steps)
    size = task.tokens * (task.dimension if method == "direct" else NORMALS)
    check_sample(size)
    # Three streams for each run, so that results do not depend on how many steps are drawn at a time.
    rngs = [[default_rng(x) for x in child.spawn(3)] for child in SeedSequence(seed).spawn(runs)]
    if alpha is None:
        start = np.array([_random_alignment(task, rng[2]) for rng in rngs])
    else:
        start = np.broadcast_to(alignments(alpha), runs)
    ascent: Reduced | Direct
    if method == "reduced":
        ascent = Reduced(task, rule, start)
    else:
        ascent = Direct(task, rule, start, departure or Departure())
    last, done, at_rest = int(recorded[-1]), 0, False
    result = np.empty((runs, len(recorded)))
    result[:, recorded == 0] = start[:, None]
    block = max(1, BLOCK // (size * runs))
    while done < last and not at_rest:
        count = min(block, last - done)
        drawn = [ascent.draw(count, rng) for rng in rngs]
        draws = [np.stack(x, axis=1) for x in zip(*drawn, strict=True)]
        for k in range(count):
            ascent.step(schedule(done), tuple(x[k] for x in draws))
            done += 1
            if not (recorded == done).any():
                continue
            result[:, recorded == done] = ascent.alpha[:, None]
            if settled is not None and _at_rest(recorded, result, done, settled):
                at_rest = True
                break
        if progress is not None:
            progress(done / last)
    if progress is not None:
        progress(1.0)
    kept = recorded <= done
    return QueryRuns(recorded[kept].astype(np.float64), result[:, kept], at_rest)


def check_sample(numbers: int) -> None:
    """Refuse samples of so many random numbers that one does not fit into memory."""
    if numbers > MOST_NUMBERS:
        found = Verbatim(f"{numbers:.3g} numbers of a sample")
        raise InputError("task", found, f"at most {MOST_NUMBERS:,}")


def _recorded(steps: int | ArrayLike) -> Array:
    if np.iterable(steps):
        found = np.array([whole_number("steps", x, 0) for x in np.asarray(steps)])
        if not len(found) or (np.diff(found) <= 0).any():
            raise InputError("steps", steps, "increasing whole numbers, at least one")
        return found
    last = whole_number("steps", steps, 1)
    # The first steps may be all that matters, or the last.
    half = RECORDINGS // 2
    found = np.concatenate([np.linspace(0, last, half), np.geomspace(1, last, half)])
    return np.unique(np.rint(found).astype(np.int64))


def _at_rest(recorded: Array, alpha: Array, done: int, tolerance: float) -> bool:
    """Whether the mean of |alpha| rests since half of the steps done."""
    before = np.flatnonzero(2 * recorded <= done)
    if not len(before):
        return False
    now, then = (np.abs(alpha[:, i]) for i in (np.flatnonzero(recorded == done)[0], before[-1]))
    return bool(abs(now.mean() - then.mean()) < tolerance and (now >= STUCK).all())


def _random_alignment(task: QueryTask, rng: Generator) -> float:
    """Alignment of a uniformly random query."""
    x = rng.standard_normal()
    return float(x / np.sqrt(x * x + rng.chisquare(task.dimension - 1)))
