"""Race integrals: the loss and its derivatives in the Gaussian law of a token's scores.

A token's scores are N(mean, cov). The other tokens follow one law, the relevant token a mixture. For
each race (one per head, or one for all heads pooled; `pairs` has those of two heads) this room computes
``A``, ``B`` of `derive.task` section 4, and the derivatives ``g = dE/dmean`` and ``Gamma`` (``dE =
tr(Gamma dcov)``) for every law, by differentiating under the integral sign:

    Gamma = (1/2) E hess f,    g = E grad f.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from numeric._generated import race
from numeric.errors import QuadratureError
from numeric.quadrature import Array, Rule, gaussian_rule, race_rule

Integrands = tuple[tuple[Array, ...], tuple[Array, ...]]

# Elements of one temporary array (a cache's worth), and of tables kept between two passes.
CHUNK, KEPT = 131_072, 3_000_000
# Coarse race times, to locate a race.
MOST_COARSE_TIMES = 6000
# Race functions of one law: some ten seconds.
MOST_WORK = 500_000_000


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
        self.clear()

    def clear(self) -> None:
        """Forget the derivatives gathered so far."""
        heads = len(self.mean)
        self.g, self.Gamma, self.b = (
            np.zeros(heads),
            np.zeros((heads, heads)),
            np.zeros(heads),
        )


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
    """One race for all heads, at deviations z (N, H) of the scores with weights (N,)."""
    log_weights = bias + law.mean + z
    with np.errstate(invalid="ignore"):
        total = logsumexp(log_weights, axis=1)
    return Points(total[None], weights[None], np.exp(log_weights - total[:, None])[None])


def race_grid(
    null: Points,
    relevant: list[tuple[float, Points]],
    tokens: float,
    digits: float,
    narrowest: Array | None = None,
) -> Rule:
    """Race-time nodes and weights for each race, from coarse points of the laws.

    `narrowest` (R,) bounds the width of what the nodes must resolve, if it may be narrower than a
    law: two correlated heads are won at times that differ little.
    """
    everything = [null.log_weight, *(points.log_weight for _, points in relevant)]
    finite = [np.where(np.isfinite(x), x, np.nan) for x in everything]
    low = min(float(np.nanmin(x)) for x in finite) - 5
    high = max(float(np.nanmax(x)) for x in finite) + np.log(tokens) + 2.5 * digits + 5
    count = int(np.clip(3 * (high - low), 96, MOST_COARSE_TIMES))
    time = np.linspace(low, high, count)
    lost = np.zeros((len(null.log_weight), count))
    if tokens > 1:
        lost = (tokens - 1) * _log_survival(_won(null, time))
    won = np.sum([weight * _won(points, time) for weight, points in relevant], axis=0)
    log_lost = np.maximum(lost + _log_survival(won), -700.0)
    width = np.min([_width(x) for x in (null, *(points for _, points in relevant))], axis=0)
    if narrowest is not None:
        width = np.minimum(width, narrowest)
    return race_rule(time, np.maximum.accumulate(log_lost, axis=1), width, digits)


def _width(points: Points) -> Array:
    """Standard deviation of each race's racers: of the log weight, and of Gumbel noise."""
    weights = np.where(np.isfinite(points.log_weight), points.weights, 0.0)
    values = np.where(weights > 0, points.log_weight, 0.0)
    total = weights.sum(axis=1)
    mean = (weights * values).sum(axis=1) / total
    variance = (weights * (values - mean[:, None]) ** 2).sum(axis=1) / total
    return np.sqrt(variance + np.pi**2 / 6)


def _won(points: Points, time: Array) -> Array:
    """Probability to have won by each time, for every race: (R, n)."""
    size = max(1, CHUNK // len(time))
    total = np.zeros((len(points.log_weight), len(time)))
    for i in range(0, points.log_weight.shape[1], size):
        block = slice(i, i + size)
        tau = race_variable(points.log_weight[:, None, block] - time[:, None])
        total += (-np.expm1(-tau) @ points.weights[:, block, None])[..., 0]
    return total


def race_variable(s: Array) -> Array:
    """``e^s``, cut where the race functions have underflowed."""
    return np.exp(np.minimum(s, 6.9))


def _log_survival(won: Array) -> Array:
    return np.log1p(-cut(won))


def cut(won: Array) -> Array:
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
    null: Points,
    relevant: list[tuple[float, Points]],
    time: tuple[Array, Array],
    tokens: float,
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
    won_0 = cut(won_0)
    return race.relevant_wins(win_1, won_0, tokens), race.any_wins(
        win_0 - second_0, win_1 - second_1, won_0, cut(won_1), tokens
    )


class _Table:
    """Race functions of a law's points at the race times, in blocks that bound the memory."""

    def __init__(self, points: Points, u: Array) -> None:
        self.points, self.u = points, u
        races, size = points.log_weight.shape
        work = races * size * u.shape[1]
        if work > MOST_WORK:
            raise QuadratureError(
                f"scores: {work:.3g} race functions are needed, expected at most {MOST_WORK:.3g}; the "
                "scores are too far apart"
            )
        block = max(1, CHUNK // (races * u.shape[1]))
        self.blocks = [slice(i, i + block) for i in range(0, size, block)]
        small = work <= KEPT
        self.kept = [self._compute(block) for block in self.blocks] if small else None

    def _functions(self, index: int) -> tuple[Array, ...]:
        return self._compute(self.blocks[index]) if self.kept is None else self.kept[index]

    def _compute(self, block: slice) -> tuple[Array, ...]:
        s = self.points.log_weight[:, None, block] - self.u[:, :, None]
        return race.score_functions_4(race_variable(s))

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
            weights, shares = (
                self.points.weights[:, block],
                self.points.shares[:, block],
            )
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
