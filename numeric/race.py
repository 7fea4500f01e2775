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
from numeric.activation import Kernels
from numeric.errors import QuadratureError
from numeric.law import Law, weight_of
from numeric.quadrature import Array, Rule, gaussian_rule, race_rule

Integrands = tuple[tuple[Array, ...], tuple[Array, ...]]

# Elements of one temporary array (a cache's worth), and of tables kept between two passes.
CHUNK, KEPT = 131_072, 3_000_000
# Freeing one large array raises glibc's threshold for returning memory to the system. Otherwise every
# evaluation asks for its temporaries anew, page by page, for up to half of its time.
np.empty(4_000_000)
# Coarse race times, to locate a race, and their largest step; log probability of a race's tails there.
MOST_COARSE_TIMES, COARSEST, DECIDED = 6000, 2.0, 30.0
# Times that narrow down a race over a longer time.
FEW_TIMES = 400
# Standard deviation of Gumbel noise: no race is sharper.
GUMBEL = float(np.pi / np.sqrt(6))
# Breadths of a law in which an edge is followed.
BROAD = 16.0
# Quadrature weight of a point below which its race may be resolved badly.
NEGLIGIBLE = 1e-12
# Race functions of one law: some ten seconds.
MOST_WORK = 500_000_000


@dataclass(frozen=True)
class Points:
    """A law's quadrature points for a set of races.

    Attributes
    ----------
    log_weight : (R, N) array
        A token's log weight at each point: of one head, or of all pooled.
    weights : (R, N) array
        Quadrature weights.
    slope, curvature, bias : (R, N, d) arrays
        With ``p_h`` a score's share in the token's weight (one for one score): ``p_h w_h'/w_h``, which is
        the log weight's derivative, ``p_h w_h''/w_h``, and the derivative in the bias.
    cov : (H, H) array or None
        Covariance of the scores, where the log weight is a function of Gaussian scores.
    """

    log_weight: Array
    weights: Array
    slope: Array
    curvature: Array
    bias: Array
    cov: Array | None = None


def marginal_points(
    law: Law, bias: Array, kernel: Kernels, digits: float, tokens: float, reach: float | None = None
) -> Points:
    """One race per head: each head's own score."""
    sigma = np.sqrt(np.diag(law.cov))
    z, weights = gaussian_rule(law.width, digits, tokens, reach)
    value, *ratios = weight_of(kernel, law.mean[:, None] + sigma[:, None] * z, bias[:, None])
    weights = np.broadcast_to(weights, value.shape)
    slope, curvature, in_bias = (x[..., None] for x in ratios)
    return Points(value, weights, slope, curvature, in_bias, law.cov)


def pooled_points(law: Law, bias: Array, kernel: Kernels, z: Array, weights: Array) -> Points:
    """One race for all heads, at deviations z (N, H) of the scores with weights (N,)."""
    value, *ratios = weight_of(kernel, law.mean + z, bias)
    with np.errstate(invalid="ignore"):
        total = logsumexp(value, axis=1)
        shares = np.exp(value - total[:, None])
    slope, curvature, in_bias = ((shares * x)[None] for x in ratios)
    return Points(total[None], weights[None], slope, curvature, in_bias, law.cov)


@dataclass(frozen=True)
class Location:
    """Where races are run.

    Attributes
    ----------
    time : (n,) array
        Coarse grid of race times.
    log_lost : (R, n) array
        Log distribution function of each race's winning time.
    width : (R,) array
        Standard deviation of the sharpest racer.
    """

    time: Array
    log_lost: Array
    width: Array

    def rule(self, digits: float, narrowest: Array | None = None) -> Rule:
        """Race-time nodes and weights for each race.

        `narrowest` (R,) bounds the width of what the nodes must resolve, if it may be narrower than a
        law: two correlated heads are won at times that differ little.
        """
        width = self.width if narrowest is None else np.minimum(self.width, narrowest)
        return race_rule(self.time, self.log_lost, width, digits)


def locate(
    null: Points,
    relevant: list[tuple[float, Points]],
    tokens: float,
    digits: float,
    background: float = 0.0,
) -> Location:
    """Locate each race from coarse points of the laws."""
    everything = [null.log_weight, *(points.log_weight for _, points in relevant)]
    finite = [np.where(np.isfinite(x), x, np.nan) for x in everything]
    low = min(float(np.nanmin(x)) for x in finite) - 5
    high = max(float(np.nanmax(x)) for x in finite) + np.log(tokens)
    if background:
        # Long before its time it has not won, which leaves nothing to resolve.
        low, high = max(low, np.log(background) - 6), max(high, np.log(background))
    high += 2.5 * digits + 5

    def log_lost(time: Array) -> Array:
        lost = np.zeros((len(null.log_weight), len(time)))
        if background:
            lost -= background * np.exp(-time)
        if tokens > 1:
            lost += (tokens - 1) * _log_survival(_won(null, time))
        won = np.sum([weight * _won(points, time) for weight, points in relevant], axis=0)
        return np.maximum.accumulate(np.maximum(lost + _log_survival(won), -700.0), axis=1)

    while True:
        wide = high - low > COARSEST * MOST_COARSE_TIMES
        count = FEW_TIMES if wide else int(np.clip(3 * (high - low), 96, MOST_COARSE_TIMES))
        time = np.linspace(low, high, count)
        lost = log_lost(time)
        if not wide:
            break
        # Far apart log weights: look closer at where races are decided.
        running = np.flatnonzero(((lost > -DECIDED) & (lost < -np.exp(-DECIDED))).any(axis=0))
        first, last = (running[0], running[-1]) if len(running) else (0, len(time) - 1)
        narrow = time[max(first - 1, 0)], time[min(last + 1, len(time) - 1)]
        if narrow[1] - narrow[0] > 0.9 * (high - low):
            raise QuadratureError(
                f"scores: a race takes a time of {high - low:.3g}, expected at most "
                f"{COARSEST * MOST_COARSE_TIMES:g}; the log weights are too far apart"
            )
        low, high = narrow
    width = np.min([_width(x) for x in (null, *(points for _, points in relevant))], axis=0)
    if background:
        # A racer of its own, with Gumbel noise and nothing else.
        width = np.minimum(width, GUMBEL)
    return Location(time, lost, width)


def _width(points: Points) -> Array:
    """Deviation of the sharpest part of each race's log weights, with Gumbel noise: (R,).

    A log weight that is linear in Gaussian scores is as broad everywhere; where another one is flat, its
    law has an edge or an atom.
    """
    if points.cov is None:
        # Nothing is known but the law's breadth; an edge in a very broad one is not followed.
        weights = np.where(np.isfinite(points.log_weight), points.weights, 0.0)
        values = np.where(weights > 0, points.log_weight, 0.0)
        mean = (weights * values).sum(axis=1, keepdims=True)
        breadth = np.sqrt((weights * (values - mean) ** 2).sum(axis=1))
        return np.maximum(GUMBEL, breadth / BROAD)
    if points.slope.shape[2] == 1:
        local = points.slope[:, :, 0] ** 2 * np.diag(points.cov)[:, None]
    else:
        local = np.einsum("rnh,hk,rnk->rn", points.slope, points.cov, points.slope, optimize=True)
    counts = (points.weights > NEGLIGIBLE) & np.isfinite(points.log_weight)
    least = np.min(local, axis=1, where=counts, initial=np.inf)
    return np.sqrt(np.where(np.isfinite(least), least, 0.0) + GUMBEL**2)


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
    time: Rule,
    tokens: float,
    a_weight: Array,
    b_weight: Array,
) -> tuple[Array, Array]:
    """Return A and B of each race; derivatives of ``-2 a_weight A + b_weight B`` go to the laws.

    ``B`` is that of one race against itself, with ``1/S^2 = int t exp(-t S) dt``.

    Returns
    -------
    A, B : (R,) arrays
    """
    u, du = time
    laws, points = [null, *relevant], [null_points, *relevant_points]
    tables = [_Table(p, u) for p in points]
    averages = [table.averages() for table in tables]
    mix = np.array([law.weight for law in relevant])
    (a, a_win, a_lost), (b, b_null, b_rel, b_lost_0, b_lost_1) = _integrands(averages, mix, tokens)
    w_a, w_b = -2 * a_weight[:, None] * du, b_weight[:, None] * du
    # What each law's averages of g (lost), g' (win) and s (square) weigh in the loss.
    zero = np.zeros_like(u)
    adjoints = [(w_a * a_lost + w_b * b_lost_0, zero, w_b * b_null)]
    adjoints += [(x * w_b * b_lost_1, x * w_a * a_win, x * w_b * b_rel) for x in mix]
    for law, table, adjoint in zip(laws, tables, adjoints, strict=True):
        table.gather(law, *adjoint)
    return (du * a).sum(axis=1), (du * b).sum(axis=1)


def with_background(time: Rule, background: float) -> Rule:
    """Weight a rule by ``exp(-background e^-u)``: the background has not won."""
    if not background:
        return time
    u, du = time
    return u, du * np.exp(-background * np.exp(-u))


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
    """Integrands of A and B with their derivatives, from the laws' averages of g, g' and s."""
    won_0, _, square_0 = averages[0]
    won_1, win_1, square_1 = (
        np.tensordot(mix, np.array([a[k] for a in averages[1:]]), 1) for k in range(3)
    )
    won_0 = cut(won_0)
    return race.relevant_wins(win_1, won_0, tokens), race.any_wins(
        square_0, square_1, won_0, cut(won_1), tokens
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
        return race.score_functions(race_variable(s))

    def averages(self) -> list[Array]:
        """Averages of g, g' and s at each race time: three (R, n) arrays."""
        total = [np.zeros_like(self.u) for _ in range(3)]
        for i, block in enumerate(self.blocks):
            functions = self._functions(i)
            weights = self.points.weights[:, block, None]
            for sum_, k in zip(total, (0, 1, 4), strict=True):
                sum_ += (functions[k] @ weights)[..., 0]
        return total

    def gather(self, law: Law, lost: Array, win: Array, square: Array) -> None:
        """Add a law's derivatives: chain rule through the log weight s of each race.

        ``d_i d_j F(s) = F'' s_i s_j + F' (delta_ij p_i w_i''/w_i - s_i s_j)``.
        """
        for i, block in enumerate(self.blocks):
            _, d1, d2, d3, _, s1, s2 = self._functions(i)
            weights = self.points.weights[:, block]
            first = _over_time(lost, d1) + _over_time(win, d2) + _over_time(square, s1)
            second = _over_time(lost, d2) + _over_time(win, d3) + _over_time(square, s2)
            first, second = first * weights, second * weights
            slope, curvature, bias = (
                x[:, block] for x in (self.points.slope, self.points.curvature, self.points.bias)
            )
            in_mean = np.einsum("rn,rnh->rh", first, slope)
            diagonal = np.einsum("rn,rnh->rh", first, curvature)
            if slope.shape[2] == 1:
                # One head's race each.
                outer = np.einsum("rn,rnh->rh", second - first, slope**2)
                law.Gamma[np.diag_indices(len(law.g))] += (outer + diagonal)[:, 0] / 2
                law.g += in_mean[:, 0]
                law.b += np.einsum("rn,rnh->r", first, bias)
            else:
                outer = (slope[0] * (second - first)[0, :, None]).T @ slope[0]
                law.Gamma += (outer + np.diag(diagonal[0])) / 2
                law.g += in_mean[0]
                law.b += np.einsum("n,nh->h", first[0], bias[0])


def _over_time(adjoint: Array, function: Array) -> Array:
    """``sum_u adjoint(u) function(u, point)`` for every race: (R, N)."""
    return (adjoint[:, None, :] @ function)[:, 0, :]
