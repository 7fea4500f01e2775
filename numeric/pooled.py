"""Races of pooled weights: points of a token's law in as many dimensions as it has.

One race is run for all heads, so a token's whole score vector is integrated: by a product rule along the
principal axes of its law, each axis as fine as it needs, or by randomized quasi-Monte Carlo.
"""

from collections.abc import Iterator

import numpy as np

from numeric.activation import Kernels
from numeric.law import Law
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
from numeric.race import Points, locate, pooled_points, single_races, with_background

# Points of a product rule that only locates the race, and entries of an array of points times heads.
MOST_COARSE, MOST_ENTRIES = 4000, 4_000_000
NETS = 8


def pooled_races(
    null: Law, relevant: list[Law], points: list[Points], time: Rule, tokens: float
) -> float:
    one = np.ones(1)
    a, b = single_races(null, relevant, points[0], points[1:], time, tokens, one, one)
    return float(b[0] - 2 * a[0])


def product_rules(
    null: Law, relevant: list[Law], tokens: float, digits: float, most_points: int
) -> list[list[Rule]] | None:
    """A product rule for each law, or None where one has too many points."""
    rules = [_axis_rules(law, digits, tokens) for law in (null, *relevant)]
    most = min(most_points, MOST_ENTRIES // len(null.mean))
    return rules if max(map(product_size, rules)) <= most else None


def pooled_time(
    null: Law, relevant: list[Law], bias: Array, kernel: Kernels, tokens: float, digits: float
) -> Rule:
    null_coarse, *coarse = (
        _locating_points(law, bias, kernel, digits, tokens) for law in (null, *relevant)
    )
    mix = [law.weight for law in relevant]
    background = kernel.BACKGROUND
    where = locate(null_coarse, list(zip(mix, coarse, strict=True)), tokens, digits, background)
    return with_background(where.rule(digits), background)


def net_points(
    null: Law, relevant: list[Law], bias: Array, kernel: Kernels, tokens: float, net_size: int
) -> Iterator[list[Points]]:
    """Quasi-Monte Carlo points of all laws, for each of several independent nets."""
    for net in standard_normal_nets(len(bias), NETS, net_size):
        yield [
            pooled_points(law, bias, kernel, *_tilted(law, net, count))
            for law, count in ((null, tokens), *((law, 1.0) for law in relevant))
        ]


def _tilted(law: Law, net: Array, tokens: float) -> Rule:
    """Deviations of scores (N, H) from a net of standard normals, and weights.

    Of many tokens those win that have a high score in some head. Half of the points follow the law, the
    others, in equal parts, the law shifted towards high scores of each head, by as much as the best of so
    many tokens is. Weights are those of the whole mixture, so that none exceeds twice the average.
    """
    size, heads = net.shape
    deviations = net @ symmetric_root(law.cov)
    variance = np.diag(law.cov)
    with np.errstate(divide="ignore"):
        tilt = np.minimum(law.scale, np.sqrt(2 * np.log(tokens) / variance))
    tilt = np.where(variance > 0, tilt, 0.0)
    # Runs of a Sobol sequence are evenly spread; points of one parity are not.
    head = np.arange(size - size // 2) * heads // (size - size // 2)
    deviations[size // 2 :] += tilt[head, None] * law.cov[head]
    share = np.bincount(head, minlength=heads) / size
    ratio = np.exp(deviations * tilt - tilt**2 * variance / 2) @ share + size // 2 / size
    weights = 1 / ratio
    return deviations, weights / weights.sum()


def _axis_rules(law: Law, digits: float, tokens: float, reach: float | None = None) -> list[Rule]:
    """A one-dimensional rule for each axis, as fine as its largest effect on a score demands."""
    sigma, vectors = principal_axes(law.cov)
    amplitude = law.scale * sigma * np.abs(vectors).max(axis=0)
    # Below this the axis changes the loss by less than the last digit: second order in amplitude.
    amplitude = np.where(amplitude < 10 ** (-digits / 2 - 1), 0.0, amplitude)
    return [gaussian_rule(float(a), digits, tokens, reach) for a in amplitude]


def _locating_points(law: Law, bias: Array, kernel: Kernels, reach: float, tokens: float) -> Points:
    """Coarse points with good tails, to find when the race is run."""
    for digits in (3.0, 2.0, 1.0):
        rules = _axis_rules(law, digits, tokens, reach)
        if product_size(rules) <= MOST_COARSE:
            return product_points(law, bias, kernel, rules)
    z, weights = stretched_net(len(bias))
    return pooled_points(law, bias, kernel, z @ symmetric_root(law.cov), weights)


def product_points(law: Law, bias: Array, kernel: Kernels, rules: list[Rule]) -> Points:
    """Points of a product rule along a law's principal axes."""
    sigma, vectors = principal_axes(law.cov)
    z, weights = product_rule(rules)
    return pooled_points(law, bias, kernel, (z * sigma) @ vectors.T, weights)
