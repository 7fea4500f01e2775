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

from functools import lru_cache
from typing import cast

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.typing import NDArray
from scipy.special import ndtri

Array = NDArray[np.float64]
Rule = tuple[Array, Array]

# Rounding in a sum of a few hundred positive terms.
ROUNDOFF = 4e-15


@lru_cache(maxsize=512)
def _hermite(n: int) -> tuple[Array, Array]:
    z, weights = hermegauss(n)
    return cast(Rule, (z, weights / weights.sum()))


@lru_cache(maxsize=512)
def _trapezoid(n_left: int, n_right: int, step: float) -> tuple[Array, Array]:
    z: Array = step * np.arange(-n_left, n_right + 1, dtype=np.float64)
    weights: Array = np.exp(-z * z / 2) * (step / np.sqrt(2 * np.pi))
    return z, weights


def gaussian_rule(
    sigma: float, digits: float, tokens: float = 1.0, reach: float | None = None
) -> tuple[Array, Array]:
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
    # Rules change in a few steps only: a flow meets few jumps at the level of their error.
    sigma = 2.0 ** (np.ceil(4 * np.log2(sigma)) / 4)
    goal = np.log(10) * digits
    hermite = 1 + goal / (2 * np.log1p(1 / sigma) + 1.2) + (goal * sigma) ** 2 / 5
    width = np.pi / (2 * sigma)
    frequency = 1.1 * np.sqrt(2 * goal)
    if frequency > width:
        frequency = max(frequency, 1.35 * (goal + width**2 / 2) / width)
    step = 2 * np.pi / frequency
    edge = np.sqrt(2 * np.log(10) * (digits if reach is None else reach))
    left = int(np.ceil(edge / step))
    right = int(np.ceil((edge + min(sigma, np.sqrt(2 * np.log(tokens)))) / step))
    if hermite < left + right + 1:
        return _hermite(int(np.ceil(hermite)))
    return _trapezoid(left, right, float(step))


def race_rule(
    time: Array, log_lost: Array, width: Array, last_bump: Array, digits: float
) -> tuple[Array, Array]:
    """Nodes and weights in the race time for each head.

    Parameters
    ----------
    time : (n,) array
        Increasing coarse grid of race times that brackets every race.
    log_lost : (H, n) array
        Log distribution function of the winner's time, ``log F_h``, on that grid.
    width : (H,) array
        Smallest standard deviation of a racer (score and Gumbel noise) that runs in the race: F may
        be wider, with several bumps, but nothing in it is sharper.
    last_bump : (H,) array
        Largest mean of a law's log weight: the stretched part of the map lies beyond it.
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
        log_won = np.log(-np.expm1(log_lost))
    high = np.array([np.interp(-np.log(tail), -row, time) for row in log_won])
    # For a Gumbel variable, median minus 1 % quantile is 1.9 and the standard deviation 1.28.
    scale = np.maximum(np.minimum((median - body) / 1.9, width / 1.28), 0.5)
    centre = np.maximum(median, last_bump) - scale
    first, last = (_inverse_map((edge - centre) / scale) for edge in (low, high))
    # Nodes that a Gumbel race needs, and its extent in w.
    nodes, extent = 6 + 2.2 * digits, 2.6 + 0.35 * digits
    count = 1 + int(np.ceil(nodes * max(1.0, float(((last - first) / extent).max()))))
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


def symmetric_root(matrix: Array) -> Array:
    """Symmetric square root of a positive semi-definite matrix; rounding below zero is cut."""
    values, vectors = np.linalg.eigh(matrix)
    root: Array = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return root
