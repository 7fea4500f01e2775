"""The noise of single samples in the ascent of one query: moments, step sizes, early growth."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng

from numeric.errors import InputError, SimulationError
from numeric.quadrature import Array
from numeric.query import QueryTask, alignments, query_objective
from numeric.query_sgd import NORMALS, Steps, check_sample, run_query
from numeric.query_steps import draw_signs, sample
from numeric.query_study import time_to_align
from numeric.validate import real_number, whole_number

# Of runs for the early growth: alignment at the start, and step over that of fastest growth.
SMALL, GENTLE = 1e-4, 0.1
# Pairs of a pilot, and of those that run side by side.
PILOT, BATCH = 64, 512
# Normals that an early growth draws, but for the pilot, and those of a step budget.
MOST_NORMALS, BUDGET = 4_000_000_000, 400_000_000
# What the step of one run costs beside its normals, in normals.
OVERHEAD = 300
SAMPLES = 50, 4_000


@dataclass(frozen=True)
class GradientMoments:
    """Moments of one sample's gradient along the sphere.

    Attributes
    ----------
    mean, second, fourth : float
        ``E g``, ``E g^2`` and ``E g^4`` of ``g = d alpha / d gamma`` at gamma = 0, the component towards
        u; the mean is ``(1 - alpha^2) J'``.
    square : float
        Mean squared length of the gradient, all directions along the sphere included.
    mean_error, second_error, fourth_error, square_error : float
        Standard errors.
    """

    mean: float
    second: float
    fourth: float
    square: float
    mean_error: float
    second_error: float
    fourth_error: float
    square_error: float


@dataclass(frozen=True)
class StepBudget:
    """What the noise of single samples leaves of recovery with constant steps.

    A step gamma adds ``gamma^2 E|g|^2`` to the squared length of q, so alpha near zero grows by ``gamma
    J''(0) - gamma^2 E|g|^2 / 2`` a step, and near one ``1 - |alpha|`` rests at ``gamma E|g|^2 / (4
    J'(1))``. Both hold to leading order in gamma.

    Attributes
    ----------
    growth : float
        J''(0).
    step : float
        Step of fastest growth at the equator, ``J''(0) / E|g|^2``; at twice that there is none. At most
        ``1/J''(0)``, beyond which leading order says nothing; zero if the equator does not repel.
    steps : float
        Steps of that size from ``d^(-1/2)`` to 0.9; infinite where the flow does not get there.
    deficit : float
        ``(1 - |alpha|) / gamma`` at rest; infinite where alignment does not attract.
    square : float
        E|g|^2 at alpha = 0.
    step_error, deficit_error : float
        Standard errors; the step's is zero where it is ``1/J''(0)``.
    """

    growth: float
    step: float
    steps: float
    deficit: float
    square: float
    step_error: float
    deficit_error: float

    @property
    def limited(self) -> bool:
        """Whether the step is ``1/J''(0)``, whatever the noise."""
        return self.step > 0 and self.step == 1 / self.growth


@dataclass(frozen=True)
class EarlyGrowth:
    """Growth rate of alpha near zero in runs of the ascent, extrapolated to small steps.

    Attributes
    ----------
    rate, error : float
        Per unit of time (step size times steps), and its standard error.
    expected : float
        J''(0).
    step : float
        The larger of the two step sizes.
    """

    rate: float
    error: float
    expected: float
    step: float

    def agrees(self, within: float = 0.02) -> bool | None:
        """Whether rate and J''(0) agree within a fraction; None if the error is too large to tell.

        It is told where the fraction is four standard errors, or the difference exceeds both.
        """
        allowed, apart = within * self.expected, abs(self.rate - self.expected)
        if 4 * self.error <= allowed:
            return apart <= allowed
        return False if apart > allowed + 4 * self.error else None


def gradient_moments(
    task: QueryTask, alpha: float, *, samples: int = 20_000, seed: int = 0
) -> GradientMoments:
    """Sample the moments of one sample's gradient at an alignment.

    Parameters
    ----------
    task : QueryTask
        Of equal norms, d >= 4.
    alpha : float
    samples, seed : int

    Raises
    ------
    InputError
        If an argument is out of range.

    Notes
    -----
    Claim B4. Drawn as `numeric.query_sgd` draws a step, at a cost that does not depend on d.
    """
    if task.spread:
        raise InputError("spread", task.spread, "0 in a simulation")
    whole_number("dimension", task.dimension, 4)
    at = float(alignments(real_number("alpha", alpha)))
    samples = whole_number("samples", samples, 2)
    check_sample(NORMALS * task.tokens)
    rng, block = default_rng(whole_number("seed", seed, 0)), max(1, 2**20 // task.tokens)
    parts = [
        _tangents(task, at, min(block, samples - first), rng) for first in range(0, samples, block)
    ]
    g, square = np.concatenate(parts, axis=1)
    values = [g, g**2, g**4, square]
    means = [float(x.mean()) for x in values]
    errors = [float(x.std(ddof=1) / np.sqrt(samples)) for x in values]
    return GradientMoments(*means, *errors)


def step_budget(task: QueryTask, *, samples: int | None = None, seed: int = 0) -> StepBudget:
    """Return the steps that the noise of single samples allows, and how many are needed.

    Parameters
    ----------
    task : QueryTask
        Of equal norms, d >= 4.
    samples : int, optional
        Of the moments of the gradient; by default 4,000, or fewer of very many tokens.
    seed : int

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    if samples is None:
        samples = int(np.clip(BUDGET // (2 * NORMALS * task.tokens), *SAMPLES))
    found = query_objective(task, [0.0, 1.0], 1e-10)
    growth, slope = float(found.curvature[0]), float(found.slope[1])
    noise, end = (gradient_moments(task, a, samples=samples, seed=seed) for a in (0.0, 1.0))
    step, steps, deficit, limited = 0.0, np.inf, np.inf, False
    if growth > found.curvature_error[0]:
        limited = growth / noise.square >= 1 / growth  # by the growth, whatever the noise
        step = 1 / growth if limited else growth / noise.square
        # alpha grows by this much a step; the flow's time is in units of growth.
        each = step * growth - step**2 * noise.square / 2
        steps = time_to_align(task) * growth / each
    if slope > found.slope_error[1]:
        deficit = end.square / (4 * slope)
    errors = (
        0.0 if limited else step * noise.square_error / noise.square,
        end.square_error / (4 * abs(slope)),
    )
    return StepBudget(growth, step, steps, deficit, noise.square, *errors)


def early_growth(
    task: QueryTask,
    *,
    gamma: float | None = None,
    tol: float = 0.004,
    most_runs: int = 20_000,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> EarlyGrowth:
    """Measure how fast alpha grows near zero in stochastic gradient ascent.

    Parameters
    ----------
    task : QueryTask
        Whose equator repels; of equal norms, d >= 4.
    gamma : float, optional
        Constant step; by default a tenth of the step of fastest growth (`StepBudget`).
    tol : float
        Relative standard error aimed at.
    most_runs, seed : int
        Pairs of runs at most, and their seed.
    progress : callable, optional
        Called with the fraction done.

    Raises
    ------
    InputError
        If an argument is out of range, or the equator does not repel.
    SimulationError
        If growth is so slow that no simulation shows it.

    Notes
    -----
    Two runs from ``+-alpha_0`` see the same noise, in which their difference grows while it cancels. The
    rate is its logarithm over a time of ``1/J''(0)``, at gamma and at half of it, and extrapolated to
    zero. There are fewer pairs, and the error is larger, where they would take more than some minutes.
    """
    tol, most = real_number("tol", tol, positive=True), whole_number("most_runs", most_runs, 2)
    budget = step_budget(task, seed=seed)
    if budget.step == 0:
        raise InputError("task", task, "one whose equator repels, J''(0) > 0")
    gamma = GENTLE * budget.step if gamma is None else real_number("gamma", gamma, positive=True)
    steps = [max(1, round(1 / (size * budget.growth))) for size in (gamma, gamma / 2)]
    # A pilot tells how many pairs are needed.
    pairs = min(PILOT, most)
    affordable = MOST_NORMALS // (2 * (NORMALS * task.tokens + OVERHEAD) * sum(steps))
    if affordable < pairs:
        raise SimulationError(
            f"early growth: it takes {sum(steps):.3g} steps, too many to simulate"
        )
    found = EarlyGrowth(*_grown(task, gamma, steps, pairs, seed, None), budget.growth, gamma)
    needed = int(np.ceil(1.2 * pairs * (found.error / (tol * budget.growth)) ** 2))
    needed = min(needed, most, affordable)
    if needed > pairs:
        values = _grown(task, gamma, steps, needed, seed + 1, progress)
        found = EarlyGrowth(*values, budget.growth, gamma)
    return found


def _grown(
    task: QueryTask,
    gamma: float,
    steps: list[int],
    pairs: int,
    seed: int,
    progress: Callable[[float], object] | None,
) -> tuple[float, float]:
    """Extrapolated growth rate of so many pairs of runs, and its standard error."""
    rates, errors = [], []
    for k, count in enumerate(steps):
        size, grown = gamma / 2**k, []
        children = SeedSequence([seed, k]).spawn(-(-pairs // BATCH))
        for i, child in enumerate(children):
            runs = min(BATCH, pairs - i * BATCH)
            how = {"steps": [count], "runs": runs, "seed": int(child.generate_state(1)[0])}
            ends = [
                run_query(task, Steps(size, p=0, any_p=True), alpha=a, **how).alpha[:, 0]  # type: ignore[arg-type]
                for a in (SMALL, -SMALL)
            ]
            grown.append((ends[0] - ends[1]) / (2 * SMALL))
            if progress is not None:
                # The second pass takes twice as many steps.
                progress((k + (k + 1) * (i + 1) / len(children)) / 3)
        every = np.concatenate(grown)
        mean, time = float(every.mean()), size * count
        rates.append(float(np.log(mean)) / time)
        errors.append(float(every.std(ddof=1)) / np.sqrt(len(every)) / mean / time)
    return 2 * rates[1] - rates[0], float(np.hypot(2 * errors[1], errors[0]))


def _tangents(task: QueryTask, alpha: float, count: int, rng: Generator) -> Array:
    """Components towards u (times sqrt(1 - alpha^2)) and squared lengths of gradients, (2, count)."""
    at = np.full(count, alpha)
    normals, signs = rng.standard_normal((count, 3, task.tokens)), draw_signs(task, count, rng)
    chi = rng.chisquare((task.dimension - 2, task.dimension - 3), (count, 2))
    s, across = sample(task, at, normals, signs, chi[:, 0]), np.sqrt(1 - alpha**2)
    towards = (s.c * (across * s.x - alpha * s.w)).sum(axis=1)
    beyond = s.along() ** 2 + task.sigma**2 * s.rest() * chi[:, 1]
    result: Array = np.array([task.beta * across * towards, task.beta**2 * (towards**2 + beyond)])
    return result
