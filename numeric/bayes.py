"""Bayes risk of single-location retrieval.

The posterior of the relevant position is one pooled race of the weights ``w(xi)`` (`derive.task`
section 6), so the risk ``1 - E p_eps`` is one race integral whatever L, over the token law of xi in R^F.

Each component of the prior has a product rule of its own, or, where there are many, all share a grid: the
relevant token's density is ``w(xi)`` times any other token's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, ndtr, softmax

from numeric._generated import bayes
from numeric.errors import QuadratureError
from numeric.prior import Prior
from numeric.quadrature import (
    Array,
    Rule,
    gaussian_rule,
    principal_axes,
    product_rule,
    product_size,
    spacing,
    standard_normal_nets,
    stretched_net,
    symmetric_root,
)
from numeric.race import Points, locate, race_of_points
from numeric.refine import refine
from numeric.task import Task
from numeric.validate import real_array, real_number

# Points of a product rule over all laws, to integrate and to locate the race; then the nets that are
# used beyond, and the digits of their race-time rule.
MOST_POINTS, MOST_COARSE = 1_000_000, 20_000
NETS, NET_SIZE, LEAST_NET, SAMPLED_DIGITS = 8, 16_384, 512, 7.0
SAMPLED_TAIL = 1e-5
GOLDEN = (np.sqrt(5) - 1) / 2
# Race functions of all nets, and of a product rule.
MOST_SAMPLED, MOST_RACED = 2e8, 2e7
LEAST_DIGITS, MOST_DIGITS = 4.0, 13.0
# Laws above which they may share a grid, and above which they do without comparing; points of the grid,
# and race functions there.
MANY, COMPARED, MOST_GRID, MOST_SHARED = 3, 40, 8_000_000, 3e8
# Digits of a grid that only locates the race.
COARSE = 3.0
# Deviations of a Gaussian component within which its bulk lies.
BULK = 4.0
# Error of a product rule up to which sampling is not tried.
SAMPLING = 1e-5
# The log weight is quadratic in the signal; beyond this it is certainly out of reach.
LARGEST_SIGNAL = 1e5
# Points times components of a prior that are held at a time.
MOST_TERMS = 4_000_000


@dataclass(frozen=True)
class Risk:
    """A risk, its absolute error, and how it was integrated."""

    value: float
    error: float
    method: str
    nishimori: float = 0.0
    """``A - B`` at the Bayes estimator as it was integrated, zero if the integrals are exact."""


def log_bayes_weight(xi: Array, prior: Prior) -> Array:
    """Return ``log w(xi) = log E exp(theta.xi - |theta|^2/2)``.

    Parameters
    ----------
    xi : (..., F) array
        A token's coordinates along the features.
    prior : Prior

    Returns
    -------
    (...) array

    Notes
    -----
    `derive.task` section 6. Mixture components of probability zero do not count.
    """
    weights, means, covariances = prior.components()
    kept = weights > 0
    weights, means, covariances = weights[kept], means[kept], covariances[kept]
    if prior.is_discrete:
        zero = np.zeros(1)
        constant = bayes.log_weight(zero, means, zero).sum(axis=-1)
        terms = np.log(weights) + constant + np.asarray(xi) @ means.T
    else:
        values, axes = np.linalg.eigh(covariances)
        along = bayes.log_weight(
            np.einsum("...f,kfg->...kg", xi, axes),
            np.einsum("kf,kfg->kg", means, axes),
            np.maximum(values, 0.0),
        )
        terms = np.log(weights) + along.sum(axis=-1)
    result: Array = logsumexp(terms, axis=-1)
    return result


def bayes_posterior(xi: ArrayLike, prior: Prior) -> Array:
    """Return the posterior of the relevant position: the attention of the Bayes estimator.

    Parameters
    ----------
    xi : (..., L, F) array_like
        Coordinates of a sample's tokens along the features, ``xi_lf = k*_f . x_l``.
    prior : Prior

    Returns
    -------
    (..., L) array
        ``p_l = w(xi_l) / sum_l' w(xi_l')``; the estimate of the relevant token is ``sum_l p_l x_l``.

    Raises
    ------
    InputError
        If `xi` has another number of features, or is not finite.

    Notes
    -----
    `derive.task` section 6.
    """
    tokens = real_array("xi", xi, (..., None, prior.features))
    result: Array = softmax(log_bayes_weight(tokens, prior), axis=-1)
    return result


def bayes_risk(task: Task, tol: float = 1e-8) -> Risk:
    """Return the Bayes risk: the least population loss of any estimator of the position.

    Parameters
    ----------
    task : Task
    tol : float
        Absolute error aimed at; the reported error says what was reached.

    Returns
    -------
    Risk

    Raises
    ------
    InputError
        If `tol` is not positive.
    QuadratureError
        If signals are so strong that the race cannot be resolved.

    Notes
    -----
    `derive.task` section 6; arXiv 2603.03993, section IV. At the Bayes estimator ``A = B``, so the
    risk is ``1 - A``; both are computed and their difference is part of the error.
    """
    tol = real_number("tol", tol, positive=True)
    if task.tokens == 1:
        return Risk(0.0, 0.0, "exact")
    _, means, covariances = task.prior.components()
    size = max(np.abs(means).max(initial=0.0), np.sqrt(np.abs(covariances).max(initial=0.0)))
    if size > LARGEST_SIGNAL:
        raise QuadratureError(
            f"prior: found signals of size {size:.3g}, expected at most {LARGEST_SIGNAL:g}"
        )
    try:
        (won, square), (error,) = refine(
            lambda digits: _race(task, digits),
            lambda a, b: (abs(a[0] - b[0]) + abs(b[0] - b[1]),),
            tol,
            1 - np.log10(tol),
            LEAST_DIGITS,
            MOST_DIGITS,
        )
    except QuadratureError:
        return _sampled(task)
    result = Risk(max(1 - won, 0.0), error, "quadrature", won - square)
    if error <= max(tol, SAMPLING):
        return result
    try:
        sampled = _sampled(task)
    except QuadratureError:
        return result
    return min(result, sampled, key=lambda risk: risk.error)


def _race(task: Task, digits: float) -> tuple[float, float]:
    """Return (A, B) by a product rule."""
    laws = list(_laws(task))
    if len(laws) > MANY:
        shared = math.prod(map(len, _axes(task, digits, digits)))
        if len(laws) > COMPARED or shared < _each_size(task, laws, digits):
            return _shared(task, digits)
    most, tokens = MOST_POINTS // len(laws), float(task.tokens)
    mix = [weight for weight, _, _ in laws[1:]]
    null, *relevant = (
        _points(_product(mean, cov, task, COARSE, MOST_COARSE, digits), task)
        for _, mean, cov in laws
    )
    time = locate(null, list(zip(mix, relevant, strict=True)), tokens, digits).rule(digits)
    grids = [_product(mean, cov, task, digits, most) for _, mean, cov in laws]
    if time[0].size * sum(len(weights) for _, weights in grids) > MOST_RACED:
        raise QuadratureError(f"prior: {digits:.1f} digits need too many race functions")
    null, *relevant = (_points(grid, task) for grid in grids)
    return race_of_points(null, list(zip(mix, relevant, strict=True)), time, tokens)


def _shared(task: Task, digits: float) -> tuple[float, float]:
    """Return (A, B) by one equispaced grid for all components of the prior."""
    tokens = float(task.tokens)
    null, relevant = _grid(task, min(digits, COARSE), digits)
    time = locate(null, [(1.0, relevant)], tokens, digits).rule(digits)
    null, relevant = _grid(task, digits, digits)
    if time[0].size * relevant.weights.size > MOST_SHARED:
        raise QuadratureError(f"prior: {digits:.1f} digits need too many race functions")
    return race_of_points(null, [(1.0, relevant)], time, tokens)


def _grid(task: Task, digits: float, reach: float) -> tuple[Points, Points]:
    """One grid with the weights of the other tokens' law, and with those of the relevant one's."""
    axes = _axes(task, digits, reach)
    size = math.prod(len(x) for x in axes)
    if size > MOST_GRID:
        raise QuadratureError(f"prior: a shared grid of {digits:.1f} digits has {size:,} points")
    log_null, log_relevant = _densities(axes, task)
    # A point counts if its null or its relevant weight does, the former for each of so many tokens.
    counts = np.maximum(log_null + np.log(task.tokens), log_relevant) > -np.log(10) * (reach + 1)
    log_null, log_relevant = log_null[counts], log_relevant[counts]
    log_weight = log_relevant - log_null
    return _weighted(log_weight, softmax(log_null)), _weighted(log_weight, softmax(log_relevant))


def _each_size(task: Task, laws: list[tuple[float, Array, Array]], digits: float) -> int:
    """Points of a product rule for each law."""
    return sum(product_size(_rules(mean, cov, task, digits)) for _, mean, cov in laws)


def _axes(task: Task, digits: float, reach: float) -> list[Array]:
    """Equispaced coordinates along each feature that cover all laws of xi."""
    weights, means, covariances = task.prior.components()
    kept = weights > 0
    variance = np.diagonal(covariances, axis1=1, axis2=2)[kept]
    # The log weight's slope is a posterior mean of the signal, at most that of the bulk of a component.
    slope = (np.abs(means[kept]) + BULK * variance / np.sqrt(1 + variance)).max(axis=0)
    axes: list[Array] = []
    for f, sigma in enumerate(slope):
        step, left, right = spacing(float(sigma), digits, task.tokens, reach)
        edge = max(left, right) * step * np.sqrt(1 + variance[:, f])
        low, high = ((means[kept, f] + sign * edge) for sign in (-1, 1))
        first, last = int(np.floor(low.min() / step)), int(np.ceil(high.max() / step))
        axes.append(step * np.arange(min(first, -left), max(last, right) + 1, dtype=np.float64))
    return axes


def _densities(axes: list[Array], task: Task) -> Rule:
    """Log densities of the other tokens' xi and of the relevant one's on a grid (N,), up to a factor."""
    log_null = np.zeros(1)
    for x in axes:
        log_null = np.add.outer(log_null, -(x**2) / 2).ravel()
    if not task.prior.is_discrete:
        xi, _ = product_rule([(x, np.ones(len(x))) for x in axes])
        return log_null, log_null + _log_weights(xi, task)
    # A sum of products over features: matrix products, one for each value of the first coordinate.
    weights, points, _ = task.prior.components()
    if not axes:
        return log_null, np.zeros(1)
    first, *others = (np.exp(-((x[:, None] - points[:, f]) ** 2) / 2) for f, x in enumerate(axes))
    density = []
    for table in weights * first:
        for factor in others[:-1]:
            table = (np.atleast_2d(table)[:, None] * factor).reshape(-1, len(weights))
        density.append((table @ others[-1].T).ravel() if others else table.sum(keepdims=True))
    return log_null, np.log(np.maximum(np.concatenate(density), 1e-300))


def _sampled(task: Task) -> Risk:
    """Risk by quasi-Monte Carlo; the relevant token's component is sampled, too."""
    features, tokens = task.prior.features, float(task.tokens)
    _, *laws = _laws(task)
    widest = int(np.argmax(np.diag(task.prior.second_moment))) if features else 0
    # In order along a feature, neighbours in the net are neighbours in the prior.
    laws.sort(key=lambda law: float(law[1][widest]) if features else 0.0)
    ends = np.cumsum([weight for weight, _, _ in laws])[:-1]
    means = np.array([mean for _, mean, _ in laws])
    roots = np.array([symmetric_root(cov) for _, _, cov in laws])

    def points(z: Array, uniform: Array, weights: Array) -> tuple[Points, Points]:
        label = np.searchsorted(ends, uniform)
        relevant = means[label] + np.einsum("nf,nfg->ng", z, roots[label])
        return _points((z, weights), task), _points((relevant, weights), task)

    z, weights = stretched_net(features)
    null, relevant = points(z, np.arange(len(z)) * GOLDEN % 1, weights)
    time = locate(null, [(1.0, relevant)], tokens, SAMPLED_DIGITS).rule(SAMPLED_DIGITS)
    affordable = MOST_SAMPLED / (2 * NETS * time[0].size)
    if affordable < LEAST_NET:
        raise QuadratureError(
            "prior: the signals are so strong that no affordable rule resolves them"
        )
    size = min(NET_SIZE, 2 ** int(np.log2(affordable)))
    weights, values = np.full(size, 1 / size), []
    for net in standard_normal_nets(features + 1, NETS, size):
        null, relevant = points(net[:, :features], ndtr(net[:, features]), weights)
        values.append(1 - race_of_points(null, [(1.0, relevant)], time, tokens)[0])
    return Risk(
        max(float(np.mean(values)), 0.0),
        float(np.std(values, ddof=1) / np.sqrt(NETS)) + SAMPLED_TAIL,
        "quasi-Monte Carlo",
    )


def _laws(task: Task) -> Iterator[tuple[float, Array, Array]]:
    """Laws of xi: the other tokens', then the relevant token's components with their weights."""
    features = task.prior.features
    unit = np.eye(features)
    yield 1.0, np.zeros(features), unit
    for weight, mean, covariance in zip(*task.prior.components(), strict=True):
        if weight > 0:
            yield float(weight), mean, unit + covariance


def _product(
    mean: Array,
    cov: Array,
    task: Task,
    digits: float,
    most_points: int,
    reach: float | None = None,
) -> Rule:
    """Product rule for xi ~ N(mean, cov): points (N, F) and weights (N,)."""
    sigma, axes = principal_axes(cov)
    rules = _rules(mean, cov, task, digits, reach)
    if product_size(rules) > most_points:
        raise QuadratureError(f"prior: a product rule of {digits:.1f} digits has too many points")
    z, weights = product_rule(rules)
    return mean + (z * sigma) @ axes.T, weights


def _rules(
    mean: Array, cov: Array, task: Task, digits: float, reach: float | None = None
) -> list[Rule]:
    """One rule for each principal axis of N(mean, cov)."""
    sigma, axes = principal_axes(cov)
    # The log weight's slope along an axis, where the bulk of the law lies.
    slope = _slope(mean, task, axes, sigma)
    return [gaussian_rule(float(s), digits, task.tokens, reach) for s in slope]


def _slope(mean: Array, task: Task, axes: Array, sigma: Array) -> Array:
    """Largest change of the log weight per unit of each standardized axis."""
    probe = np.linspace(-4.0, 4.0, 33)
    result = []
    for k, s in enumerate(sigma):
        line = mean + np.multiply.outer(probe * s, axes[:, k])
        change = np.abs(np.diff(log_bayes_weight(line, task.prior))) / (probe[1] - probe[0])
        result.append(float(change.max()))
    return np.array(result)


def _log_weights(xi: Array, task: Task) -> Array:
    size = max(1, MOST_TERMS // len(task.prior.components()[0]))
    return np.concatenate(
        [log_bayes_weight(xi[i : i + size], task.prior) for i in range(0, len(xi), size)]
    )


def _points(grid: Rule, task: Task) -> Points:
    return _weighted(_log_weights(grid[0], task), grid[1])


def _weighted(log_weight: Array, weights: Array) -> Points:
    """Points (N,) of one race, without derivatives."""
    none = np.empty((1, len(log_weight), 0))
    return Points(log_weight[None], weights[None], none, none, none)
