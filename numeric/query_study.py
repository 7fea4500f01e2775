"""What the convergence of one query rests on: the field's Lipschitz constant, its noise, its times."""

from dataclasses import dataclass

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.random import default_rng

from numeric.errors import InputError
from numeric.quadrature import Array
from numeric.query import QueryTask, alignments, query_objective
from numeric.query_sgd import sample
from numeric.validate import real_number, whole_number

NODES = 24


@dataclass(frozen=True)
class GradientMoments:
    """Moments of one sample's gradient along the sphere, towards u: ``d alpha / d gamma`` at gamma = 0.

    Attributes
    ----------
    mean, second, fourth : float
        ``E g``, ``E g^2`` and ``E g^4``; the mean is ``(1 - alpha^2) J'``.
    mean_error, second_error, fourth_error : float
        Standard errors.
    """

    mean: float
    second: float
    fourth: float
    mean_error: float
    second_error: float
    fourth_error: float


def field_lipschitz(task: QueryTask, points: int = 41) -> float:
    """Return the largest slope of the field ``(1 - alpha^2) J'(alpha)`` over [-1, 1].

    Parameters
    ----------
    task : QueryTask
    points : int
        Alignments from 0 to 1 at which it is computed; the field is odd.

    Raises
    ------
    InputError
        If `points` is not a whole number >= 2.

    Notes
    -----
    Claim B4: ``|(1 - alpha^2) J'' - 2 alpha J'|``, exact at the points.
    """
    at = np.linspace(0, 1, whole_number("points", points, 2))
    found = query_objective(task, at, 1e-8)
    return float(np.abs((1 - at**2) * found.curvature - 2 * at * found.slope).max())


def time_to_align(task: QueryTask, alignment: float = 0.9, start: float | None = None) -> float:
    """Return the time of the flow from one alignment to another.

    Parameters
    ----------
    task : QueryTask
    alignment : float
        Target, between the start and 1.
    start : float, optional
        By default ``d^(-1/2)``, that of a random query.

    Returns
    -------
    float
        ``int d alpha / ((1 - alpha^2) J')``; infinite if J' is not positive on the way.

    Raises
    ------
    InputError
        If the alignments are not ``0 < start < alignment < 1``.
    """
    first = task.dimension**-0.5 if start is None else real_number("start", start, positive=True)
    last = real_number("alignment", alignment, positive=True)
    if not first < last < 1:
        raise InputError("alignment", alignment, f"a number between {first:.6g} and 1")
    # In x = artanh alpha, d alpha = (1 - alpha^2) dx; near zero 1/J' is 1/alpha: equal steps in log x.
    z, weights = leggauss(NODES)
    ends = np.log(np.arctanh([first, last]))
    middle, half = ends.mean(), np.diff(ends)[0] / 2
    x = np.exp(middle + half * z)
    slope = query_objective(task, np.tanh(x), 1e-10).slope
    if not (slope > 0).all():
        return float("inf")
    return float(half * np.sum(weights * x / slope))


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
    rng, block = default_rng(whole_number("seed", seed, 0)), max(1, 2**20 // task.tokens)
    parts = [
        _tangents(task, at, min(block, samples - first), rng) for first in range(0, samples, block)
    ]
    g = np.concatenate(parts)
    values = [g, g**2, g**4]
    means = [float(x.mean()) for x in values]
    errors = [float(x.std(ddof=1) / np.sqrt(samples)) for x in values]
    return GradientMoments(*means, *errors)


def _tangents(task: QueryTask, alpha: float, count: int, rng: np.random.Generator) -> Array:
    """Gradients (count,) along the sphere: ``beta sum_i c_i (x_i.u - alpha x_i.q)``."""
    at = np.full(count, alpha)
    normals = rng.standard_normal((count, 3, task.tokens))
    signs = rng.choice((-1.0, 1.0), (count, 1 if task.shared else task.informative))
    s = sample(task, at, normals, signs, rng.chisquare(task.dimension - 2, count))
    y = alpha * s.x + np.sqrt(1 - alpha**2) * s.w
    result: Array = task.beta * (s.c * (s.x - alpha * y)).sum(axis=1)
    return result
