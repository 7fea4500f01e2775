"""Quadrature rules: Gaussian expectations over scores and the race time.

A rule is asked for a number of digits; the nodes needed are known in advance from where the integrands
stop being analytic, and whoever uses a rule compares two numbers of digits to learn the true error.

Scores
    ``exp(-t e^(sigma z))`` is bounded only for ``|Im z| < pi/(2 sigma)``. Equispaced sums then converge
    as ``exp(-pi^2/(sigma h))`` (``exp(-2 pi^2/h^2)`` for small sigma), Gauss-Hermite sums only as
    ``exp(-pi sqrt(2n)/(2 sigma))``; the cheaper of the two is taken.
Race time
    The winner's time has distribution function ``F(u)``. Its right tail is ``exp(-u)``, so with
    ``u = c + a (w + exp(w))`` the integrand decays doubly exponentially on that side, and equispaced
    nodes in w converge exponentially. The scale a follows the width of F, which makes the number of
    nodes independent of L and of the score variances.
"""

import math
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.special import ndtri

from numeric.errors import QuadratureError

Array = NDArray[np.float64]
Rule = tuple[Array, Array]

# Nodes of one score, and of the race time; beyond, the scores are out of reach.
MOST_NODES, MOST_TIMES = 200_000, 20_000

# Rounding in a sum of a few hundred positive terms.
ROUNDOFF = 4e-15


@lru_cache(maxsize=512)
def _hermite(n: int) -> tuple[Array, Array]:
    z, weights = hermegauss(n)
    return cast(Rule, (z, weights / weights.sum()))


@lru_cache(maxsize=128)
def hermite_basis(n: int) -> Rule:
    """Gauss-Hermite nodes z (n,), and the matrix (n, n) from values there to Hermite coefficients.

    Column k is ``w_i He_k(z_i) / sqrt(k!)``, so that ``f @ basis`` has ``E f He_k / sqrt(k!)``.
    """
    z, weights = _hermite(n)
    previous, current = np.zeros(n), np.ones(n)
    columns = []
    for k in range(n):
        columns.append(weights * current)
        following = (z * current - np.sqrt(k) * previous) / np.sqrt(k + 1)
        previous, current = current, following
    return z, np.array(columns).T


@lru_cache(maxsize=512)
def _trapezoid(n_left: int, n_right: int, step: float) -> tuple[Array, Array]:
    z: Array = step * np.arange(-n_left, n_right + 1, dtype=np.float64)
    weights: Array = np.exp(-z * z / 2)
    return z, weights / weights.sum()


def gaussian_rule(
    sigma: float, digits: float, tokens: float = 1.0, reach: float | None = None
) -> Rule:
    """Nodes and weights for ``E f(sigma z)``, z standard normal, f a race function.

    Parameters
    ----------
    sigma : float
        Standard deviation of the score along this axis.
    digits : float
        Decimal digits wanted.
    tokens : float
        Number of tokens: with many, the largest of their scores reaches further into the right
        tail, by at most ``min(sigma, sqrt(2 log L))`` standard deviations.
    reach : float, optional
        Digits to which the tails are covered, if not `digits`.

    Returns
    -------
    z, weights : (n,) arrays
        Nodes in units of the standard deviation, and weights that sum to one.
    """
    if sigma <= 0:
        return _hermite(1)
    step, left, right = spacing(sigma, digits, tokens, reach)
    count = hermite_count(sigma, digits)
    if count < left + right + 1:
        return _hermite(count)
    return _trapezoid(left, right, step)


def equispaced_rule(sigma: float, digits: float, tokens: float, rest: float = 1.0) -> Rule:
    """Equispaced nodes as in `gaussian_rule`, fine enough for a normal density of deviation `rest`.

    Such is the density of one score given another one, in units of its own deviation.
    """
    step, left, right = spacing(sigma, digits, tokens, rest=rest)
    return _trapezoid(left, right, step)


def _quantized(sigma: float) -> float:
    """Round up in a few steps, so that a flow meets few jumps at the level of a rule's error."""
    return float(2.0 ** (np.ceil(4 * np.log2(sigma)) / 4))


def hermite_count(sigma: float, digits: float) -> int:
    """Gauss-Hermite nodes that a race function of a score of deviation sigma needs."""
    if sigma <= 0:
        return 1
    sigma, goal = _quantized(sigma), np.log(10) * digits
    return int(np.ceil(1 + goal / (2 * np.log1p(1 / sigma) + 1.2) + (goal * sigma) ** 2 / 5))


def spacing(
    sigma: float, digits: float, tokens: float, reach: float | None = None, rest: float = 1.0
) -> tuple[float, int, int]:
    """Step of an equispaced rule as in `gaussian_rule`, and its nodes to the left and right of zero.

    At a distance y from the real axis a density of deviation `rest` grows as ``exp(y^2/(2 rest^2))``.
    """
    sigma, goal = _quantized(sigma), np.log(10) * digits
    width = np.pi / (2 * sigma)
    frequency = 1.1 * np.sqrt(2 * goal) / rest
    if frequency > width / rest**2:
        frequency = max(frequency, 1.35 * (goal + (width / rest) ** 2 / 2) / width)
    step = 2 * np.pi / frequency
    edge = np.sqrt(2 * np.log(10) * (digits if reach is None else reach))
    right = edge + min(sigma, np.sqrt(2 * np.log(tokens)))
    if not (edge + right) / step <= MOST_NODES:
        raise QuadratureError(
            f"scores: a deviation of {sigma:.3g} needs more than {MOST_NODES} nodes, expected at most "
            "some ten thousand"
        )
    return float(step), int(np.ceil(edge / step)), int(np.ceil(right / step))


def race_rule(time: Array, log_lost: Array, width: Array, digits: float) -> Rule:
    """Nodes and weights in the race time for each head.

    Parameters
    ----------
    time : (n,) array
        Increasing coarse grid of race times that brackets every race.
    log_lost : (H, n) array
        Log distribution function of the winner's time, ``log F_h``, on that grid.
    width : (H,) array
        Standard deviation of the sharpest thing in the race (a racer's score and Gumbel noise, or the
        difference of two): F may be wider, with several bumps or a ridge.
    digits : float
        Decimal digits wanted.

    Returns
    -------
    u, weights : (H, N) arrays
        Nodes (increasing) and weights of ``int du``.
    """
    tail = 10.0 ** -(digits + 1)
    low, body, median = (
        np.array([np.interp(np.log(q), row, time) for row in log_lost]) for q in (tail, 0.01, 0.5)
    )
    with np.errstate(divide="ignore"):
        log_won = np.maximum(np.log(-np.expm1(log_lost)), -700.0)
    # For a Gumbel variable, median minus 1 % quantile is 1.9 and the standard deviation 1.28.
    natural = (median - body) / 1.9
    scale = np.maximum(np.minimum(natural, width / 1.28), 0.5)
    # The stretched part of the map begins at the median, or, where something sharper than F runs
    # through it, beyond nearly all of F.
    narrow = np.clip(2 * (natural / scale - 1), 0.0, 1.0)
    beyond = np.log(0.5) - narrow * np.log(10) * digits / 2
    knee, high = (
        np.array([np.interp(-x, -row, time) for x, row in zip(edge, log_won, strict=True)])
        for edge in (beyond, np.full(len(log_won), np.log(tail)))
    )
    centre = knee - scale
    first, last = (_inverse_map((edge - centre) / scale) for edge in (low, high))
    # Nodes that a Gumbel race needs, and its extent in w.
    nodes, extent = 6 + 2.2 * digits, 2.6 + 0.35 * digits
    needed = nodes * max(1.0, float(((last - first) / extent).max()))
    if not needed <= MOST_TIMES:
        raise QuadratureError(
            f"scores: a race over a time of {float((high - low).max()):.3g} needs {needed:.3g} nodes, "
            f"expected at most {MOST_TIMES}; the scores are too far apart"
        )
    count = 1 + int(np.ceil(needed))
    step = (last - first) / (count - 1)
    w = first[:, None] + step[:, None] * np.arange(count)
    growth = np.exp(w)
    u = centre[:, None] + scale[:, None] * (w + growth)
    return u, (scale * step)[:, None] * (1 + growth)


def _inverse_map(y: Array) -> Array:
    """Solve ``w + exp(w) = y`` by Newton's method."""
    w = np.where(y > 1, np.log(np.maximum(y, 1.0)), y)
    for _ in range(12):
        growth = np.exp(w)
        w = w - (w + growth - y) / (1 + growth)
    return w


@lru_cache(maxsize=16)
def standard_normal_nets(dimension: int, nets: int, size: int, seed: int = 0) -> Array:
    """Independently scrambled Sobol points mapped to the standard normal: (nets, size, dimension).

    The scrambles are fixed by `seed`, so an integral is a smooth function of its parameters.
    """
    from scipy.stats import qmc  # slow to import, and rarely needed

    result = np.empty((nets, size, dimension))
    for net, child in zip(result, np.random.SeedSequence(seed).spawn(nets), strict=True):
        sobol = qmc.Sobol(dimension, rng=np.random.default_rng(child))
        net[:] = ndtri(np.clip(sobol.random(size), 1e-16, 1 - 1e-16))
    return result


@lru_cache(maxsize=16)
def stretched_net(dimension: int, size: int = 2048, stretch: float = 1.3) -> Rule:
    """A coarse rule for a standard normal in many dimensions: (size, dimension) and weights.

    Stretching the points covers the tails down to 1e-5; it serves to locate a race, not to integrate.
    """
    z = standard_normal_nets(dimension, 1, size)[0]
    weights = np.exp(-(stretch**2 - 1) * (z**2).sum(axis=1) / 2)
    return stretch * z, weights / weights.sum()


def extrapolated_error(first: float, second: float) -> float:
    """Error that is left when successive changes shrink from `first` to `second`.

    Twice what a geometric series of that ratio leaves, and not less than the last change.
    """
    second = max(second, 0.1 * first)
    ratio = min(second / first, 0.9) if first > 0 else 0.9
    return second * max(1.0, 2 * ratio / (1 - ratio)) + ROUNDOFF


def principal_axes(matrix: Array) -> Rule:
    """Standard deviations and unit vectors (columns) of a covariance; rounding below zero is cut.

    Vectors point to high scores, where rules reach further for the best of many tokens.
    """
    values, vectors = np.linalg.eigh(matrix)
    vectors = vectors * np.where(vectors.sum(axis=0) >= 0, 1.0, -1.0)
    return np.sqrt(np.maximum(values, 0.0)), vectors


def product_rule(rules: list[Rule]) -> Rule:
    """Product of one-dimensional rules: points (N, d) and weights (N,)."""
    points, weights = np.zeros((1, len(rules))), np.ones(1)
    for axis, (z, w) in enumerate(rules):
        points = np.repeat(points, len(z), axis=0)
        points[:, axis] = np.tile(z, len(weights))
        weights = np.multiply.outer(weights, w).ravel()
    return points, weights


def product_size(rules: list[Rule]) -> int:
    """Number of points of a product of rules."""
    return math.prod(len(z) for z, _ in rules)


def symmetric_root(matrix: Array) -> Array:
    """Symmetric square root of a positive semi-definite matrix; rounding below zero is cut."""
    sigma, vectors = principal_axes(matrix)
    root: Array = (vectors * sigma) @ vectors.T
    return root
