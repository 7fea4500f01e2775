"""Race integrals: the loss and its derivatives in the Gaussian law of a token's scores.

A token's scores are N(mean, cov). The other tokens follow one law, the relevant token a mixture. For
each race (one per head, or one for all heads pooled) and for each pair of heads this room computes
``A``, ``B`` of MODEL section 4, and the derivatives ``g = dE/dmean`` and ``Gamma`` (``dE = tr(Gamma
dcov)``) for every law, by differentiating under the integral sign:

    Gamma = (1/2) E hess f,    g = E grad f.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from numeric._generated import race
from numeric.errors import QuadratureError
from numeric.quadrature import Array, Rule, gaussian_rule, race_rule

Indices = NDArray[np.intp]
Integrands = tuple[tuple[Array, ...], tuple[Array, ...]]

# Elements of one temporary array (a cache's worth), and of tables kept between two passes.
CHUNK, KEPT = 131_072, 3_000_000
# A rule larger than this for one pair of heads takes seconds: the scores are out of reach.
MOST_NODES = 250_000


@dataclass
class Law:
    """A Gaussian law of a token's H scores, with the loss derivatives gathered so far.

    Attributes
    ----------
    weight : float
        Mixture weight (of the relevant token's law).
    mean, cov : (H,), (H, H) arrays
    g, Gamma, b : (H,), (H, H), (H,) arrays
        Derivatives of the loss in the mean, in the covariance and in the biases.
    """

    weight: float
    mean: Array
    cov: Array

    def __post_init__(self) -> None:
        heads = len(self.mean)
        self.g, self.Gamma, self.b = np.zeros(heads), np.zeros((heads, heads)), np.zeros(heads)


@dataclass(frozen=True)
class Points:
    """A law's quadrature points for a set of races.

    Attributes
    ----------
    log_weight : (R, N) array
        A token's log weight at each point.
    weights : (R, N) array
        Quadrature weights.
    shares : (R, N, d) array
        Share of each score in the token's weight, ``w_h / sum_h' w_h'`` (ones for one score).
    """

    log_weight: Array
    weights: Array
    shares: Array


def marginal_points(law: Law, digits: float, tokens: float, reach: float | None = None) -> Points:
    """One race per head: each head's own score."""
    sigma = np.sqrt(np.diag(law.cov))
    z, weights = gaussian_rule(float(sigma.max()), digits, tokens, reach)
    scores = law.mean[:, None] + sigma[:, None] * z
    return Points(scores, np.broadcast_to(weights, scores.shape), np.ones((*scores.shape, 1)))


def pooled_points(law: Law, bias: Array, z: Array, weights: Array) -> Points:
    """One race for all heads, from standard normal points z (N, H) with weights (N,).

    ``z`` are coordinates along the covariance's principal axes times their standard deviations when
    a product rule is used; see `numeric.loss`.
    """
    log_weights = bias + law.mean + z
    with np.errstate(invalid="ignore"):
        total = logsumexp(log_weights, axis=1)
    return Points(total[None], weights[None], np.exp(log_weights - total[:, None])[None])


def race_grid(
    null: Points, relevant: list[tuple[float, Points]], tokens: float, digits: float
) -> tuple[Array, Array]:
    """Race-time nodes and weights for each race, from coarse points of the laws."""
    everything = [null.log_weight, *(points.log_weight for _, points in relevant)]
    finite = [np.where(np.isfinite(x), x, np.nan) for x in everything]
    low = min(float(np.nanmin(x)) for x in finite) - 5
    high = max(float(np.nanmax(x)) for x in finite) + np.log(tokens) + 2.5 * digits + 5
    count = int(np.clip(3 * (high - low), 96, 1200))
    time = np.linspace(low, high, count)
    lost = np.zeros((len(null.log_weight), count))
    if tokens > 1:
        lost = (tokens - 1) * _log_survival(_won(null, time))
    won = np.sum([weight * _won(points, time) for weight, points in relevant], axis=0)
    log_lost = np.maximum(lost + _log_survival(won), -700.0)
    shapes = [_mean_and_width(x) for x in (null, *(points for _, points in relevant))]
    last_bump = np.max([mean for mean, _ in shapes], axis=0)
    width = np.min([width for _, width in shapes], axis=0)
    return race_rule(time, np.maximum.accumulate(log_lost, axis=1), width, last_bump, digits)


def _mean_and_width(points: Points) -> tuple[Array, Array]:
    """Mean of each race's log weight, and the deviation of its racers (Gumbel noise included)."""
    weights = np.where(np.isfinite(points.log_weight), points.weights, 0.0)
    values = np.where(weights > 0, points.log_weight, 0.0)
    total = weights.sum(axis=1)
    mean = (weights * values).sum(axis=1) / total
    variance = (weights * (values - mean[:, None]) ** 2).sum(axis=1) / total
    return mean, np.sqrt(variance + np.pi**2 / 6)


def _won(points: Points, time: Array) -> Array:
    """Probability to have won by each time, for every race: (R, n)."""
    tau = _tau(points.log_weight[:, None, :] - time[:, None])
    return (-np.expm1(-tau) @ points.weights[:, :, None])[..., 0]


def _tau(s: Array) -> Array:
    """``e^s``, cut where the race functions have underflowed."""
    return np.exp(np.minimum(s, 6.9))


def _log_survival(won: Array) -> Array:
    return np.log1p(-_cut(won))


def _cut(won: Array) -> Array:
    """Keep a probability of having won in [0, 1) against rounding of the quadrature weights."""
    return np.clip(won, 0.0, 1 - 1e-16)


def single_races(
    null: Law,
    relevant: list[Law],
    null_points: Points,
    relevant_points: list[Points],
    time: tuple[Array, Array],
    tokens: float,
    a_weight: Array,
    b_weight: Array,
) -> float:
    """Sum over races of ``-2 a_weight A + b_weight B``, derivatives added to the laws.

    ``B`` is that of one race against itself, with ``1/S^2 = int t exp(-t S) dt``.

    Returns
    -------
    float
    """
    u, du = time
    laws, points = [null, *relevant], [null_points, *relevant_points]
    tables = [_Table(p, u) for p in points]
    averages = [table.averages() for table in tables]
    mix = np.array([law.weight for law in relevant])
    (a, a_win, a_lost), (b, b_null, b_rel, b_lost_0, b_lost_1) = _integrands(averages, mix, tokens)
    w_a, w_b = -2 * a_weight[:, None] * du, b_weight[:, None] * du
    # What each law's averages of g (lost), g' (win) and g' - g'' (square) weigh in the loss.
    zero = np.zeros_like(u)
    adjoints = [(w_a * a_lost + w_b * b_lost_0, zero, w_b * b_null)]
    adjoints += [(x * w_b * b_lost_1, x * w_a * a_win, x * w_b * b_rel) for x in mix]
    for law, table, adjoint in zip(laws, tables, adjoints, strict=True):
        table.gather(law, *adjoint)
    return float(np.sum(w_a * a) + np.sum(w_b * b))


def race_of_points(
    null: Points, relevant: list[tuple[float, Points]], time: tuple[Array, Array], tokens: float
) -> tuple[float, float]:
    """Return (A, B) of one pooled race, without derivatives."""
    u, du = time
    averages = [_Table(p, u).averages() for p in (null, *(points for _, points in relevant))]
    mix = np.array([weight for weight, _ in relevant])
    (a, *_), (b, *_) = _integrands(averages, mix, tokens)
    return float(np.sum(du * a)), float(np.sum(du * b))


def _integrands(averages: list[list[Array]], mix: Array, tokens: float) -> Integrands:
    """Integrands of A and B with their derivatives, from the laws' averages of g, g' and g''."""
    won_0, win_0, second_0 = averages[0]
    won_1, win_1, second_1 = (
        np.tensordot(mix, np.array([a[k] for a in averages[1:]]), 1) for k in range(3)
    )
    won_0 = _cut(won_0)
    return race.relevant_wins(win_1, won_0, tokens), race.any_wins(
        win_0 - second_0, win_1 - second_1, won_0, _cut(won_1), tokens
    )


class _Table:
    """Race functions of a law's points at the race times, in blocks that bound the memory."""

    def __init__(self, points: Points, u: Array) -> None:
        self.points, self.u = points, u
        races, size = points.log_weight.shape
        block = max(1, CHUNK // (races * u.shape[1]))
        self.blocks = [slice(i, i + block) for i in range(0, size, block)]
        small = races * size * u.shape[1] <= KEPT
        self.kept = [self._compute(block) for block in self.blocks] if small else None

    def _functions(self, index: int) -> tuple[Array, ...]:
        return self._compute(self.blocks[index]) if self.kept is None else self.kept[index]

    def _compute(self, block: slice) -> tuple[Array, ...]:
        s = self.points.log_weight[:, None, block] - self.u[:, :, None]
        return race.score_functions_4(_tau(s))

    def averages(self) -> list[Array]:
        """Averages of g, g' and g'' at each race time: three (R, n) arrays."""
        total = [np.zeros_like(self.u) for _ in range(3)]
        for i, block in enumerate(self.blocks):
            functions = self._functions(i)
            weights = self.points.weights[:, block, None]
            for sum_, function in zip(total, functions, strict=False):
                sum_ += (function @ weights)[..., 0]
        return total

    def gather(self, law: Law, lost: Array, win: Array, square: Array) -> None:
        """Add a law's derivatives: chain rule through the shares of the total weight."""
        either = win + square
        for i, block in enumerate(self.blocks):
            _, d1, d2, d3, d4 = self._functions(i)
            weights, shares = self.points.weights[:, block], self.points.shares[:, block]
            first = _over_time(lost, d1) + _over_time(either, d2) - _over_time(square, d3)
            second = _over_time(lost, d2) + _over_time(either, d3) - _over_time(square, d4)
            first, second = first * weights, second * weights
            gradient = np.einsum("rn,rnh->rh", first, shares)
            if shares.shape[2] == 1:
                gradient = gradient[:, 0]
                law.Gamma[np.diag_indices(len(law.g))] += second.sum(axis=1) / 2
            else:
                gradient = gradient[0]
                outer = (shares[0] * (second - first)[0, :, None]).T @ shares[0]
                law.Gamma += (outer + np.diag(gradient)) / 2
            law.g += gradient
            law.b += gradient


def _over_time(adjoint: Array, function: Array) -> Array:
    """``sum_u adjoint(u) function(u, point)`` for every race: (R, N)."""
    return (adjoint[:, None, :] @ function)[:, 0, :]


def pair_races(
    null: Law,
    relevant: list[Law],
    time: tuple[Array, Array],
    tokens: float,
    weight: float,
    digits: float,
) -> float:
    """Sum over pairs of different heads of ``2 weight B_hh'``, derivatives added to the laws."""
    heads = len(null.mean)
    first, second = np.triu_indices(heads, 1)
    value = 0.0
    for chunk in _chunks(null, relevant, first, second, time, digits, tokens):
        value += _pair_chunk(
            null, relevant, first[chunk], second[chunk], time, tokens, weight, digits
        )
    return value


def _chunks(
    null: Law,
    relevant: list[Law],
    first: Indices,
    second: Indices,
    time: tuple[Array, Array],
    digits: float,
    tokens: float,
) -> Iterable[slice]:
    """Slices of the pairs that keep temporary arrays bounded."""
    if len(first) == 0:
        return
    largest = 1
    for law in (null, *relevant):
        _, outer, inner = _conditional(law, first, second, digits, tokens)
        largest = max(largest, len(outer[0]) * len(inner[0]))
    if largest > MOST_NODES:
        raise QuadratureError(
            f"scores: a pair of heads needs {largest} nodes at {digits:.1f} digits, expected at "
            f"most {MOST_NODES}; the score deviations are out of reach"
        )
    nodes = time[0].shape[1]
    size = max(1, CHUNK // (largest * nodes + 16 * nodes**2 * len(relevant)))
    for start in range(0, len(first), size):
        yield slice(start, start + size)


def _conditional(
    law: Law, first: Indices, second: Indices, digits: float, tokens: float
) -> tuple[tuple[Array, Array, Array], Rule, Rule]:
    """Regression of the second head's score on the first's, and the rules of both parts."""
    variance = np.diag(law.cov)
    sigma = np.sqrt(variance[first])
    cross = np.divide(law.cov[first, second], sigma, out=np.zeros(len(first)), where=sigma > 0)
    rest = np.sqrt(np.maximum(variance[second] - cross**2, 0.0))
    # A remainder at rounding level is none: the two scores are one variable.
    rest[rest**2 <= 1e-14 * variance[second]] = 0.0
    outer = gaussian_rule(float(sigma.max(initial=0.0)), digits, tokens)
    inner = gaussian_rule(float(rest.max(initial=0.0)), digits, tokens)
    return (sigma, cross, rest), outer, inner


# Rows of a stack of race functions (g, g', g'', g''') and of the constant, which turns
# averages of products into averages of single factors.
_ONE, _G, _D1, _D2, _D3 = range(5)


def _pair_moments(
    law: Law, first: Indices, second: Indices, time: Array, digits: float, tokens: float
) -> Array:
    """``E[f_k(x - u_i) f_l(y - v_j)]`` for rows k, l of the stack: (P, 5, 5, N, N)."""
    (sigma, cross, rest), (z, wz), (y, wy) = _conditional(law, first, second, digits, tokens)
    x_scores = law.mean[first, None] + sigma[:, None] * z
    centre = law.mean[second, None] + cross[:, None] * z
    left = _stack(x_scores[:, None, :] - time[first][:, :, None])
    scores = centre[:, :, None] + rest[:, None, None] * y
    right = _stack(scores[:, None, :, :] - time[second][:, :, None, None]) @ wy
    pairs, n = len(first), time.shape[1]
    left = (left * wz).transpose(1, 0, 2, 3).reshape(pairs, 5 * n, -1)
    right = right.transpose(1, 0, 2, 3).reshape(pairs, 5 * n, -1)
    product = left @ right.transpose(0, 2, 1)
    return product.reshape(pairs, 5, n, 5, n).transpose(0, 1, 3, 2, 4)


def _stack(s: Array) -> Array:
    tau = _tau(s)
    return np.stack([np.ones_like(tau), *race.score_functions_3(tau)])


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
    won = [_cut(x[:, _G, _ONE] + x[:, _ONE, _G] - x[:, _G, _G]) for x in moments]
    mix = np.array([law.weight for law in relevant])
    win_1 = sum(p * x[:, _D1, _D1] for p, x in zip(mix, moments[1:], strict=True))
    won_1 = sum(p * x for p, x in zip(mix, won[1:], strict=True))
    b, in_null, in_rel, in_lost_0, in_lost_1 = race.any_wins(
        moments[0][:, _D1, _D1], win_1, won[0], _cut(won_1), tokens
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
