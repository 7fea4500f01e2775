"""Race integrals of two heads: ``B_hh'`` and its derivatives in the laws of a token's scores.

The races of two heads are won together at times u and v; what is needed of a law is

    M_kl(u_i, v_j) = E f_k(x - u_i) f_l(y - v_j),    (x, y) the two scores,

for the race functions f_k and their derivatives. On equispaced scores the expectation is a product of
three matrices, ``f_k W f_l^T``, W the bivariate density: each head's f is evaluated once, whatever the
number of pairs. A correlation rho sharpens W along its diagonal, and the step shrinks by
``sqrt(2 (1 - |rho|))``. Where that is too fine, or where the scores hardly spread, the second score
is integrated given the first.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from numeric._generated import race
from numeric.errors import QuadratureError
from numeric.quadrature import Array, Rule, equispaced_rule, gaussian_rule
from numeric.race import CHUNK, Law, cut, race_variable

Indices = NDArray[np.intp]

# Correlations up to which the product of matrices is used, with the step divided by so much.
REFINEMENTS = ((0.5, 1.0), (0.875, 2.0))
# A conditional rule larger than this for one pair takes seconds: the scores are out of reach.
MOST_NODES, MOST_TIMES = 250_000, 700

# Rows of a stack of race functions (g, g', g'', g''') and of the constant, which turns
# averages of products into averages of single factors.
ROWS = 5
_ONE, _G, _D1, _D2, _D3 = range(ROWS)


def pair_races(
    null: Law,
    relevant: list[Law],
    time: Rule,
    tokens: float,
    weight: float,
    digits: float,
) -> float:
    """Sum over pairs of different heads of ``2 weight B_hh'``, derivatives added to the laws.

    Raises
    ------
    QuadratureError
        If strongly correlated scores spread so much that no affordable rule resolves them.
    """
    first, second = np.triu_indices(len(null.mean), 1)
    if time[0].shape[1] > MOST_TIMES:
        raise QuadratureError(
            f"scores: two correlated heads need {time[0].shape[1]} race times each, expected at most "
            f"{MOST_TIMES}; the score deviations are out of reach"
        )
    size = max(1, CHUNK // (ROWS**2 * time[0].shape[1] ** 2)) * 8
    return sum(
        _pair_chunk(
            null,
            relevant,
            first[i : i + size],
            second[i : i + size],
            time,
            tokens,
            weight,
            digits,
        )
        for i in range(0, len(first), size)
    )


def pair_width(null: Law, relevant: list[Law]) -> Array:
    """Smallest deviation, for each head, of the difference of its race times with another's: (H,).

    Divided by sqrt 2, so that it is that of one race time where the heads are independent.
    """
    widths = []
    for law in (null, *relevant):
        variance = np.diag(law.cov)
        apart = np.maximum(variance[:, None] + variance - 2 * law.cov, 0.0) / 2
        np.fill_diagonal(apart, np.inf)
        widths.append(np.sqrt(apart.min(axis=1) + np.pi**2 / 6))
    return np.min(widths, axis=0)


def _pair_moments(
    law: Law, first: Indices, second: Indices, time: Array, digits: float, tokens: float
) -> Array:
    """``M_kl(u_i, v_j)`` for rows k, l of the stack: (P, 5, 5, N, N)."""
    nodes = time.shape[1]
    result = np.empty((len(first), ROWS * nodes, ROWS * nodes))
    sigma = np.sqrt(np.diag(law.cov))
    scale = sigma[first] * sigma[second]
    correlation = np.divide(
        law.cov[first, second], scale, out=np.zeros(len(first)), where=scale > 0
    )
    left = np.ones(len(first), dtype=bool)
    for largest, refinement in REFINEMENTS:
        rule = equispaced_rule(float(sigma.max(initial=0.0)), digits, tokens, refinement)
        mine = np.flatnonzero(left & (np.abs(correlation) <= largest))
        if rule is None or len(mine) == 0:
            continue
        left[mine] = False
        stacks = _stack(law.mean[:, None, None] + sigma[:, None, None] * rule[0] - time[:, :, None])
        for block in _blocks(mine, len(rule[0]) ** 2):
            density = _bivariate(rule, correlation[block])
            result[block] = stacks[first[block]] @ density @ stacks[second[block]].mT
    mine = np.flatnonzero(left)
    if len(mine):
        for block, product in _conditional(law, first, second, mine, time, digits, tokens):
            result[block] = product
    return result.reshape(-1, ROWS, nodes, ROWS, nodes).transpose(0, 1, 3, 2, 4)


def _bivariate(rule: Rule, correlation: Array) -> Array:
    """Standard bivariate normal density times the area of a cell: (P, n, n)."""
    z, weights = rule
    rho = correlation[:, None, None]
    rest = 1 - rho**2
    x, y = z[:, None], z
    excess = (rho * x * y - rho**2 * (x**2 + y**2) / 2) / rest
    return np.exp(excess) * (weights[:, None] * weights / np.sqrt(rest))


def _conditional(
    law: Law,
    first: Indices,
    second: Indices,
    mine: Indices,
    time: Array,
    digits: float,
    tokens: float,
) -> Iterator[tuple[Indices, Array]]:
    """Moments of some pairs by integrating the second score given the first."""
    variance = np.diag(law.cov)
    sigma = np.sqrt(variance[first])
    cross = np.divide(law.cov[first, second], sigma, out=np.zeros(len(first)), where=sigma > 0)
    rest = np.sqrt(np.maximum(variance[second] - cross**2, 0.0))
    # A remainder at rounding level is none: the two scores are one variable.
    rest[rest**2 <= 1e-14 * variance[second]] = 0.0
    z, wz = gaussian_rule(float(sigma[mine].max()), digits, tokens)
    y, wy = gaussian_rule(float(rest[mine].max()), digits, tokens)
    if len(z) * len(y) > MOST_NODES:
        raise QuadratureError(
            f"scores: a pair of heads needs {len(z) * len(y)} nodes at {digits:.1f} digits, "
            f"expected at most {MOST_NODES}; the score deviations are out of reach"
        )
    for block in _blocks(mine, len(z) * len(y) * time.shape[1]):
        x_scores = law.mean[first[block], None] + sigma[block, None] * z
        centre = law.mean[second[block], None] + cross[block, None] * z
        left = _stack(x_scores[:, None, :] - time[first[block]][:, :, None])
        scores = centre[:, :, None] + rest[block, None, None] * y
        right = _stack(scores[:, None, :, :] - time[second[block]][:, :, None, None], wy)
        yield block, (left * wz) @ right.mT


def _blocks(mine: Indices, size: int) -> Iterator[Indices]:
    """Split indices so that arrays of so many entries each stay within a cache."""
    count = max(1, CHUNK // size)
    for i in range(0, len(mine), count):
        yield mine[i : i + count]


def _stack(s: Array, weights: Array | None = None) -> Array:
    """Constant and race functions of s (P, N, n), or their averages over a last axis: (P, 5 N, n)."""
    tau = race_variable(s)
    functions: list[Array] = [np.ones_like(tau), *race.score_functions_3(tau)]
    if weights is not None:
        functions = [f @ weights for f in functions]
    return np.concatenate(functions, axis=1)


def _pair_chunk(
    null: Law,
    relevant: list[Law],
    first: Indices,
    second: Indices,
    time: tuple[Array, Array],
    tokens: float,
    weight: float,
    digits: float,
) -> float:
    u, du = time
    moments = [_pair_moments(law, first, second, u, digits, tokens) for law in (null, *relevant)]
    won = [cut(x[:, _G, _ONE] + x[:, _ONE, _G] - x[:, _G, _G]) for x in moments]
    mix = np.array([law.weight for law in relevant])
    win_1 = sum(p * x[:, _D1, _D1] for p, x in zip(mix, moments[1:], strict=True))
    won_1 = sum(p * x for p, x in zip(mix, won[1:], strict=True))
    b, in_null, in_rel, in_lost_0, in_lost_1 = race.any_wins(
        moments[0][:, _D1, _D1], win_1, won[0], cut(won_1), tokens
    )
    area = 2 * weight * du[first][:, :, None] * du[second][:, None, :]
    adjoints = [(area * in_lost_0, area * in_null)]
    adjoints += [(p * area * in_lost_1, p * area * in_rel) for p in mix]
    for law, x, (lost, win) in zip((null, *relevant), moments, adjoints, strict=True):
        _gather_pairs(law, x, lost, win, first, second)
    return float(np.sum(area * b))


def _gather_pairs(
    law: Law, x: Array, lost: Array, win: Array, first: Indices, second: Indices
) -> None:
    """Add the derivatives of ``lost . (1 - E e e') + win . E f f'`` with e = 1 - g, f = g'."""

    def total(adjoint: Array, term: Array) -> Array:
        return np.einsum("pij,pij->p", adjoint, term)

    # d(1 - e e') = g' (1 - g) dx + (1 - g) g' dy + ...
    in_x = total(lost, x[:, _D1, _ONE] - x[:, _D1, _G]) + total(win, x[:, _D2, _D1])
    in_y = total(lost, x[:, _ONE, _D1] - x[:, _G, _D1]) + total(win, x[:, _D1, _D2])
    in_xx = total(lost, x[:, _D2, _ONE] - x[:, _D2, _G]) + total(win, x[:, _D3, _D1])
    in_yy = total(lost, x[:, _ONE, _D2] - x[:, _G, _D2]) + total(win, x[:, _D1, _D3])
    in_xy = total(win, x[:, _D2, _D2]) - total(lost, x[:, _D1, _D1])
    np.add.at(law.g, first, in_x)
    np.add.at(law.g, second, in_y)
    np.add.at(law.Gamma, (first, first), in_xx / 2)
    np.add.at(law.Gamma, (second, second), in_yy / 2)
    np.add.at(law.Gamma, (first, second), in_xy / 2)
    np.add.at(law.Gamma, (second, first), in_xy / 2)
