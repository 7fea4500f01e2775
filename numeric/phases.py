"""How long training takes at dimension D: its phases, run by run, and how their durations grow with D.

Keys start at random, ``k_h ~ N(0, eta^2 I / D)``. With a mean signal they first align with it, all alike
(unspecialized phase, samples proportional to D); heads part later, from differences of order ``1 / sqrt
D`` that grow exponentially (samples proportional to D log D). Times are tau, ``samples = D tau / kappa``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import SeedSequence
from numpy.typing import ArrayLike
from scipy.stats import chi2, norm

from numeric.errors import InputError
from numeric.noise import initial_state
from numeric.quadrature import Array
from numeric.sgd import SGDRuns, run_sgd
from numeric.task import Attention, State, Task
from numeric.validate import real_array, real_number, whole_number
from numeric.watch import Watch, feature_norms, mean_alignment, specialization

ALIGNED = 0.5
"""Part of the unspecialized saddle's alignment that counts as aligned with the mean."""

CONFIDENCE = 0.99


def random_starts(
    task: Task, attention: Attention, eta: float, dimension: int, seed: int, runs: int
) -> State:
    """Draw initial states, one for each run; see `initial_state`.

    Returns
    -------
    State
        Of batch shape (runs,).
    """
    runs = whole_number("runs", runs, 1)
    children = SeedSequence(whole_number("seed", seed, 0)).spawn(runs)
    seeds = [int(child.generate_state(1, np.uint64)[0] >> 1) for child in children]
    drawn = [initial_state(task, attention, eta, dimension, s) for s in seeds]
    m, r = (np.array([getattr(x, name) for x in drawn]) for name in ("m", "r"))
    b, v = (
        None if getattr(drawn[0], name) is None else np.array([getattr(x, name) for x in drawn])
        for name in ("b", "v")
    )
    return State(m, r, b, v)


def phase_watches(task: Task, attention: Attention, threshold: float = 1.0) -> tuple[Watch, ...]:
    """Return what tells phases apart: alignment with the mean, specialization, each feature.

    Parameters
    ----------
    task : Task
    attention : Attention
    threshold : float
        Of the norm of features, and of the heads' differences. The mean head counts as aligned at half
        of what it has at the unspecialized saddle.

    Returns
    -------
    tuple of Watch
        The first only if the prior has a mean, the second only of several heads.
    """
    found: list[Watch] = []
    if task.prior.mean.any():
        from numeric.saddles import unspecialized_saddle

        saddle = unspecialized_saddle(task, attention).state
        reached = float(mean_alignment(task, attention, 1.0).norm(saddle.m))
        found.append(mean_alignment(task, attention, ALIGNED * reached))
    if attention.heads > 1:
        found.append(specialization(task, attention, threshold))
    return (*found, *feature_norms(task, attention, threshold))


def first_passages(
    task: Task,
    attention: Attention,
    watches: Sequence[Watch],
    *,
    dimension: int,
    eta: float,
    kappa: float,
    tau_max: float,
    runs: int = 32,
    seed: int = 0,
    batch: int = 1,
    method: str = "reduced",
    workers: int = 1,
    compiled: bool | None = None,
    checkpoint: str | Path | None = None,
    progress: Callable[[float], object] | None = None,
) -> SGDRuns:
    """Run SGD from random keys until all watched norms have passed, or up to a time.

    Parameters
    ----------
    task : Task
    attention : Attention
    watches : sequence of Watch
    dimension : int
    eta, kappa, tau_max : float
        Norm of the initial keys, noise level ``gamma D / batch``, and time at which runs end.
    runs, seed, batch, method, workers, compiled, checkpoint, progress
        See `run_sgd`.

    Returns
    -------
    SGDRuns
        `passages` (runs, k) are what counts; the state is recorded at the end alone.
    """
    seed = whole_number("seed", seed, 0)
    starts = random_starts(task, attention, eta, dimension, seed, runs)
    return run_sgd(
        starts,
        task,
        attention,
        dimension=dimension,
        tau=[real_number("tau_max", tau_max, positive=True)],
        kappa=kappa,
        batch=batch,
        runs=runs,
        seed=(seed + 1) % 2**63,
        method=method,
        watch=watches,
        stop=True,
        workers=workers,
        compiled=compiled,
        checkpoint=checkpoint,
        progress=progress,
    )


@dataclass(frozen=True)
class Scaling:
    """How a duration tau, which is kappa times samples / D, depends on D.

    Attributes
    ----------
    dimensions : (k,) array
    mean, error : (k,) arrays
        Mean duration over runs and its standard error.
    spread : (k,) array
        Standard deviation over runs.
    slope, slope_error : float
        Of the mean against log D, a weighted fit.
    intercept : float
    line_p, constant_p : float
        Probabilities of deviations at least as large, if a line in log D, or a constant, were true.
    constant, constant_error : float
        The weighted mean: samples are `constant` times D / kappa.
    """

    dimensions: Array
    mean: Array
    error: Array
    spread: Array
    slope: float
    slope_error: float
    intercept: float
    line_p: float
    constant: float
    constant_error: float
    constant_p: float

    def interval(self, confidence: float = CONFIDENCE) -> tuple[float, float]:
        """Return the confidence interval of the slope.

        Parameters
        ----------
        confidence : float
            Between 0 and 1.
        """
        level = real_number("confidence", confidence, positive=True)
        if level >= 1:
            raise InputError("confidence", confidence, "a number between 0 and 1")
        width = float(norm.isf((1 - level) / 2)) * self.slope_error
        return self.slope - width, self.slope + width


def fit_scaling(dimensions: ArrayLike, durations: Sequence[ArrayLike]) -> Scaling:
    """Fit durations against log D, and against a constant.

    Parameters
    ----------
    dimensions : (k,) array_like
        At least two, increasing.
    durations : sequence of k (runs,) array_like
        First passages tau; all finite, at least two each.

    Returns
    -------
    Scaling

    Raises
    ------
    InputError
        If there are too few, or a duration is infinite: that run did not pass.
    """
    sizes = real_array("dimensions", dimensions, (None,))
    if len(sizes) < 2 or (np.diff(sizes) <= 0).any() or sizes[0] <= 0:
        raise InputError("dimensions", dimensions, "at least two increasing positive numbers")
    if len(durations) != len(sizes):
        raise InputError("durations", f"{len(durations)} sets", f"one for each of {len(sizes)}")
    values = []
    for x in durations:
        if not np.isfinite(np.asarray(x, dtype=float)).all():
            raise InputError("durations", "a run that has not passed", "passages of all runs")
        values.append(real_array("durations", x, (None,)))
        if len(values[-1]) < 2:
            raise InputError("durations", values[-1], "at least two runs")
    mean = np.array([x.mean() for x in values])
    spread = np.array([x.std(ddof=1) for x in values])
    error = spread / np.sqrt([len(x) for x in values])
    if not (error > 0).all():
        raise InputError("durations", "runs that are all the same", "runs that differ")
    design = np.stack([np.ones(len(sizes)), np.log(sizes)], axis=1) / error[:, None]
    covariance = np.linalg.inv(design.T @ design)
    intercept, slope = covariance @ (design.T @ (mean / error))
    residual = (mean - intercept - slope * np.log(sizes)) / error
    constant = float((mean / error**2).sum() / (1 / error**2).sum())
    apart = (mean - constant) / error
    freedom = len(sizes) - 2
    return Scaling(
        dimensions=sizes,
        mean=mean,
        error=error,
        spread=spread,
        slope=float(slope),
        slope_error=float(np.sqrt(covariance[1, 1])),
        intercept=float(intercept),
        line_p=float(chi2.sf((residual**2).sum(), freedom)) if freedom else 1.0,
        constant=constant,
        constant_error=float((1 / error**2).sum() ** -0.5),
        constant_p=float(chi2.sf((apart**2).sum(), len(sizes) - 1)),
    )
