"""Does SGD follow the flow? Deviations over a sweep of dimensions, their exponent, and a verdict.

At dimension D the mean of an order parameter over runs differs from the flow at the same kappa by a bias
that is a power series in 1/D, and a run fluctuates about the mean by ``O(1 / sqrt D)``. So means are
extrapolated to D -> infinity, and held against the flow: all comparisons together raise a false alarm
with probability `numeric.checks.FALSE_ALARM`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from numeric.checks import Check, order_parameters, statistical
from numeric.errors import InputError
from numeric.flow import Flow, integrate_flow
from numeric.quadrature import Array
from numeric.sgd import SGDRuns, run_sgd
from numeric.task import Attention, State, Task
from numeric.validate import real_number, whole_number

TIMES = 6
CONFIDENCE = 0.99
SOLVER = 1e-6
RESAMPLED = 200
"""Bootstrap samples of runs, for the errors of deviations and of their exponent."""


@dataclass(frozen=True, eq=False, repr=False)
class Agreement:
    """SGD beside the flow.

    Attributes
    ----------
    dimensions : (k,) array
    deviation, deviation_error : (k,) arrays
        Root mean square, over runs, entries and times, of a run's distance to the flow.
    exponent, exponent_error : float
        Of the deviation as a power of D; -1/2 in the limit.
    bias : (k,) array
        Root mean square, over entries and times, of the mean's distance to the flow.
    runs : tuple of SGDRuns
    flow : Flow
        At the times that are compared, and at kappa.
    course : Flow
        The same flow at the times of its solver, until tau_max.
    checks : tuple of Check
        One for each entry and time: the extrapolated mean against the flow.
    """

    dimensions: Array
    deviation: Array
    deviation_error: Array
    exponent: float
    exponent_error: float
    bias: Array
    runs: tuple[SGDRuns, ...]
    flow: Flow
    course: Flow
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return all(x.passed for x in self.checks)

    @property
    def worst(self) -> Check:
        """The comparison with the largest |z|."""
        return max(self.checks, key=lambda x: abs(x.z or 0.0))

    def __repr__(self) -> str:
        verdict = "agree" if self.passed else "disagree"
        return (
            f"<Agreement: SGD and flow {verdict}, largest |z| {abs(self.worst.z or 0.0):.2f} of "
            f"{len(self.checks)}; deviation ~ D^({self.exponent:.3f} +- {self.exponent_error:.3f})>"
        )


def compare_with_flow(
    state: State,
    task: Task,
    attention: Attention,
    *,
    dimensions: Sequence[int],
    kappa: float,
    tau_max: float,
    batch: int = 1,
    runs: int = 64,
    seed: int = 0,
    method: str = "reduced",
    workers: int = 1,
    checkpoint: str | Path | None = None,
    progress: Callable[[str, float], object] | None = None,
) -> Agreement:
    """Run SGD at several dimensions from one state, and compare it with the flow at the same kappa.

    Parameters
    ----------
    state : State
        One state.
    task : Task
    attention : Attention
    dimensions : sequence of int
        At least three, increasing: means are extrapolated by a polynomial in 1/D, of degree two if there
        are four.
    kappa : float
        ``gamma D / batch``, > 0, at all of them.
    tau_max : float
        Last time; the earliest first passage of the flow if that is earlier.
    batch, runs, seed, method, workers
        See `run_sgd`; `runs` at each dimension, at least 8.
    checkpoint : path, optional
        Folder to go on from, with one of `run_sgd` for each dimension.
    progress : callable, optional
        Called with the stage and the fraction of it that is done.

    Returns
    -------
    Agreement

    Raises
    ------
    InputError
        If an argument is not as above.
    """
    sizes = [whole_number("dimensions", x, 1) for x in dimensions]
    if len(sizes) < 3 or (np.diff(sizes) <= 0).any():
        raise InputError("dimensions", list(dimensions), "at least three increasing numbers")
    kappa = real_number("kappa", kappa, positive=True)
    tau_max = real_number("tau_max", tau_max, positive=True)
    runs, seed = whole_number("runs", runs, 8), whole_number("seed", seed, 0)
    state = state.single(attention, task.prior.features)
    tell = progress or (lambda *_: None)
    tell("flow", 0.0)
    course = integrate_flow(state, task, attention, tau_max, kappa)
    step, horizon = kappa * batch / sizes[0], horizon_of(course)
    if step > horizon:
        expected = f"at most {horizon / step * kappa:.3g}, for one step up to tau = {horizon:.3g}"
        raise InputError("kappa", kappa, expected)
    times = compared_times(course, step)
    path = integrate_flow(state, task, attention, times, kappa)
    found = []
    for i, size in enumerate(sizes):
        name = f"SGD at D = {size}"
        found.append(
            run_sgd(
                state,
                task,
                attention,
                dimension=size,
                tau=times,
                kappa=kappa,
                batch=batch,
                runs=runs,
                seed=(seed + i) % 2**63,
                method=method,
                workers=workers,
                checkpoint=None if checkpoint is None else Path(checkpoint) / f"D-{size}",
                progress=partial(tell, name),
            )
        )
    apart = [_entries(x) - _entries(path) for x in found]  # (runs, times, entries) each
    deviation, error, exponent, exponent_error = _deviations(apart, sizes, seed)
    return Agreement(
        dimensions=np.array(sizes, dtype=float),
        deviation=deviation,
        deviation_error=error,
        exponent=exponent,
        exponent_error=exponent_error,
        bias=np.array([np.sqrt((x.mean(axis=0) ** 2).mean()) for x in apart]),
        runs=tuple(found),
        flow=path,
        course=course,
        checks=tuple(_checks(found, path)),
    )


def extrapolated(dimensions: ArrayLike, means: Array, variances: Array) -> tuple[Array, Array]:
    """Return the limits D -> infinity of means, and their variances.

    Parameters
    ----------
    dimensions : (k,) array_like
    means, variances : (k, ...) arrays
        Of the means at each D.

    Returns
    -------
    limit, variance : (...) arrays
        Of a weighted fit of ``a + c / D``, and ``+ d / D^2`` where there are four dimensions or more. The
        variance includes the square of what the last power adds at the largest D: an estimate of what
        the next one would.
    """
    sizes = np.asarray(dimensions, dtype=float)
    degree = 2 if len(sizes) > 3 else 1
    powers = (sizes[0] / sizes)[:, None] ** np.arange(degree + 1)
    flat, spread = means.reshape(len(sizes), -1), variances.reshape(len(sizes), -1)
    limit, variance = np.empty(flat.shape[1]), np.empty(flat.shape[1])
    for i, (mean, var) in enumerate(zip(flat.T, spread.T, strict=True)):
        weight = 1 / np.maximum(var, 1e-300)
        covariance = np.linalg.inv((powers.T * weight) @ powers)
        fit = covariance @ (powers.T @ (weight * mean))
        limit[i] = fit[0]
        variance[i] = covariance[0, 0] + (fit[-1] * powers[-1, -1] * sizes[0] / sizes[-1]) ** 2
    return limit.reshape(means.shape[1:]), variance.reshape(means.shape[1:])


def horizon_of(path: Flow) -> float:
    """Return until when simulations are compared with a flow: its end, or its earliest first passage.

    Later, the noise of the start has been amplified so much that its spread hides any bias.
    """
    return float(min([*path.first_passage[path.first_passage > 0], path.tau[-1]]))


def compared_times(path: Flow, step: float) -> Array:
    """Return times up to `horizon_of` a flow, the start first, each a whole number of steps."""
    steps = np.maximum(1, np.rint(np.linspace(0.0, horizon_of(path), TIMES)[1:] / step))
    return np.concatenate([[0.0], np.unique(steps) * step])


def _entries(found: SGDRuns | Flow) -> Array:
    """Order parameters (..., n, entries), but for the start."""
    return np.stack(list(order_parameters(found).values()), axis=-1)[..., 1:, :]


def _deviations(
    apart: list[Array], sizes: list[int], seed: int
) -> tuple[Array, Array, float, float]:
    """Root mean square deviations, their exponent, and the errors of both by resampling runs."""
    squares = [(x**2).mean(axis=(1, 2)) for x in apart]
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
    drawn = np.array(
        [
            [np.sqrt(x[rng.integers(len(x), size=len(x))].mean()) for x in squares]
            for _ in range(RESAMPLED)
        ]
    )
    deviation = np.sqrt([x.mean() for x in squares])
    error = drawn.std(axis=0, ddof=1)
    weight = np.maximum(deviation, 1e-300) / np.maximum(error, 1e-300)

    def exponent(values: Array) -> float:
        return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-300)), 1, w=weight)[0])

    return (
        deviation,
        error,
        exponent(deviation),
        float(np.std([exponent(x) for x in drawn], ddof=1)),
    )


def _checks(found: list[SGDRuns], path: Flow) -> list[Check]:
    """The extrapolated means against the flow."""
    values = [_entries(x) for x in found]
    means = np.array([x.mean(axis=0) for x in values])
    variances = np.array([x.var(axis=0, ddof=1) / len(x) for x in values])
    limit, variance = extrapolated([x.dimension for x in found], means, variances)
    predicted, names = _entries(path), list(order_parameters(path))
    drift = path.gradient_error + path.noise_error
    # The solver's own error, the only one where nothing fluctuates.
    solver = SOLVER * (1 + np.abs(predicted).max(axis=1))
    checks = []
    for i, tau in enumerate(path.tau[1:]):
        for j, name in enumerate(names):
            error = float(np.sqrt(variance[i, j] + (drift * tau) ** 2 + solver[i] ** 2))
            label = f"{name} at tau = {tau:.4g}: SGD, extrapolated, against flow"
            checks.append(
                statistical(
                    label,
                    float(limit[i, j]),
                    float(predicted[i, j]),
                    error,
                    limit.size,
                    len(values[0]) - 1,
                )
            )
    return checks


def band(error: Array, confidence: float = CONFIDENCE) -> Array:
    """Return the half-width of a confidence band."""
    half: Array = norm.isf((1 - confidence) / 2) * error
    return half
