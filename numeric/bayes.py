"""Bayes risk of single-location retrieval.

The posterior of the relevant position is one pooled race of the weights ``w(xi)`` (`derive.task`
section 6), so the risk ``1 - E p_eps`` is one race integral whatever L, over the token law of xi in R^F.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax

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
# Race functions of all nets, and of a product rule.
MOST_SAMPLED, MOST_RACED = 2e8, 2e7
LEAST_DIGITS, MOST_DIGITS = 5.0, 13.0
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
        (won, _), (error,) = refine(
            lambda digits: _race(task, digits),
            lambda a, b: (abs(a[0] - b[0]) + abs(b[0] - b[1]),),
            tol,
            1 - np.log10(tol),
            LEAST_DIGITS,
            MOST_DIGITS,
        )
    except QuadratureError:
        return _sampled(task)
    return Risk(max(1 - won, 0.0), error, "quadrature")


def _race(task: Task, digits: float) -> tuple[float, float]:
    """Return (A, B) by a product rule."""
    laws = list(_laws(task))
    most = MOST_POINTS // len(laws)
    grids = [_product(mean, cov, task, digits, most) for _, mean, cov in laws]
    time = _locate(task, laws, digits)
    if time[0].size * sum(len(weights) for _, weights in grids) > MOST_RACED:
        raise QuadratureError(f"prior: {digits:.1f} digits need too many race functions")
    return _integrate(task, laws, grids, time)


def _sampled(task: Task) -> Risk:
    laws = list(_laws(task))
    time = _locate(task, laws, SAMPLED_DIGITS, sampled=True)
    affordable = MOST_SAMPLED / (NETS * len(laws) * time[0].size)
    if affordable < LEAST_NET:
        raise QuadratureError(
            "prior: the signals are so strong that no affordable rule resolves them"
        )
    size = min(NET_SIZE, 2 ** int(np.log2(affordable)))
    values = []
    weights = np.full(size, 1 / size)
    for net in standard_normal_nets(task.prior.features, NETS, size):
        grids = [(mean + net @ symmetric_root(cov), weights) for _, mean, cov in laws]
        values.append(1 - _integrate(task, laws, grids, time)[0])
    return Risk(
        max(float(np.mean(values)), 0.0),
        float(np.std(values, ddof=1) / np.sqrt(NETS)) + SAMPLED_TAIL,
        "quasi-Monte Carlo",
    )


def _locate(
    task: Task, laws: list[tuple[float, Array, Array]], digits: float, sampled: bool = False
) -> Rule:
    """Race-time rule, from coarse points with good tails.

    When the law itself is sampled, stretched points may do: they miss tails below `SAMPLED_TAIL`.
    """
    coarse = []
    for _, mean, cov in laws:
        try:
            grid = _product(mean, cov, task, 3.0, MOST_COARSE, digits)
        except QuadratureError:
            if not sampled:
                raise
            z, weights = stretched_net(len(mean))
            grid = mean + z @ symmetric_root(cov), weights
        coarse.append(_points(grid, task))
    mix = [weight for weight, _, _ in laws[1:]]
    where = locate(coarse[0], list(zip(mix, coarse[1:], strict=True)), float(task.tokens), digits)
    return where.rule(digits)


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
    # The log weight's slope along an axis, where the bulk of the law lies.
    slope = _slope(mean, task, axes, sigma)
    rules = [gaussian_rule(float(s), digits, task.tokens, reach) for s in slope]
    if product_size(rules) > most_points:
        raise QuadratureError(f"prior: a product rule of {digits:.1f} digits has too many points")
    z, weights = product_rule(rules)
    return mean + (z * sigma) @ axes.T, weights


def _slope(mean: Array, task: Task, axes: Array, sigma: Array) -> Array:
    """Largest change of the log weight per unit of each standardized axis."""
    probe = np.linspace(-4.0, 4.0, 33)
    result = []
    for k, s in enumerate(sigma):
        line = mean + np.multiply.outer(probe * s, axes[:, k])
        change = np.abs(np.diff(log_bayes_weight(line, task.prior))) / (probe[1] - probe[0])
        result.append(float(change.max()))
    return np.array(result)


def _points(grid: Rule, task: Task) -> Points:
    size = max(1, MOST_TERMS // len(task.prior.components()[0]))
    blocks = [grid[0][i : i + size] for i in range(0, len(grid[0]), size)]
    log_weight = np.concatenate([log_bayes_weight(xi, task.prior) for xi in blocks])[None]
    none = np.empty((*log_weight.shape, 0))
    return Points(log_weight, grid[1][None], none, none, none)


def _integrate(
    task: Task, laws: list[tuple[float, Array, Array]], grids: list[Rule], time: Rule
) -> tuple[float, float]:
    mix = [weight for weight, _, _ in laws[1:]]
    null, *relevant = (_points(grid, task) for grid in grids)
    return race_of_points(null, list(zip(mix, relevant, strict=True)), time, float(task.tokens))
