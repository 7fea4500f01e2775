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
from numeric.quadrature import Array, Rule, gaussian_rule, race_rule

Integrands = tuple[tuple[Array, ...], tuple[Array, ...]]

# Elements of one temporary array (a cache's worth), and of tables kept between two passes.
CHUNK, KEPT = 131_072, 3_000_000
# Freeing one large array raises glibc's threshold for returning memory to the system. Otherwise every
# evaluation asks for its temporaries anew, page by page, for up to half of its time.
np.empty(4_000_000)
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
        A token's log weight at each point: of one head, or of all pooled.
    weights : (R, N) array
        Quadrature weights.
    slope, curvature, bias : (R, N, d) arrays
        With ``p_h`` a score's share in the token's weight (one for one score): ``p_h w_h'/w_h``, which is
        the log weight's derivative, ``p_h w_h''/w_h``, and the derivative in the bias.
    """

    log_weight: Array
    weights: Array
    slope: Array
    curvature: Array
    bias: Array


def marginal_points(
    law: Law, bias: Array, kernel: Kernels, digits: float, tokens: float, reach: float | None = None
) -> Points:
    """One race per head: each head's own score."""
    sigma = np.sqrt(np.diag(law.cov))
    z, weights = gaussian_rule(float(sigma.max()), digits, tokens, reach)
    value, *ratios = weight_of(kernel, law.mean[:, None] + sigma[:, None] * z, bias[:, None])
    return Points(value, np.broadcast_to(weights, value.shape), *(x[..., None] for x in ratios))


def pooled_points(law: Law, bias: Array, kernel: Kernels, z: Array, weights: Array) -> Points:
    """One race for all heads, at deviations z (N, H) of the scores with weights (N,)."""
    value, *ratios = weight_of(kernel, law.mean + z, bias)
    with np.errstate(invalid="ignore"):
        total = logsumexp(value, axis=1)
        shares = np.exp(value - total[:, None])
    slope, curvature, in_bias = ((shares * x)[None] for x in ratios)
    return Points(total[None], weights[None], slope, curvature, in_bias)


def weight_of(kernel: Kernels, scores: Array, bias: Array, order: int = 2) -> tuple[Array, ...]:
    """Return a score weight (normalized: its log) and its derivatives.

    Of order 2: two in the score and one in the bias; of order 4: four in the score.

    Raises
    ------
    QuadratureError
        If the weight is not finite, or a normalized one not positive.
    """
    with np.errstate(all="ignore"):
        functions = kernel.weight_functions_2 if order == 2 else kernel.weight_functions_4
        found: tuple[Array, ...] = functions(scores, bias)
    value, *ratios = found
    bad = np.isnan(value) | (value == np.inf)
    if kernel.NORMALIZATION == "none":
        bad |= value == -np.inf
    else:
        # A weight that underflows to zero has no ratios, and none are needed.
        zero = value == -np.inf
        if zero.any():
            ratios = [np.where(zero, 0.0, x) for x in ratios]
    for x in ratios:
        bad = bad | ~np.isfinite(x)
    if bad.any():
        at = np.broadcast_to(scores, bad.shape)[bad][0]
        kind = "finite" if kernel.NORMALIZATION == "none" else "finite and positive"
        raise QuadratureError(f"activation: the weight is not {kind} and smooth at chi = {at:.6g}")
    return (value, *ratios)


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
        low, high = min(low, np.log(background) - 5), max(high, np.log(background))
    high += 2.5 * digits + 5
    count = int(np.clip(3 * (high - low), 96, MOST_COARSE_TIMES))
    time = np.linspace(low, high, count)
    lost = np.zeros((len(null.log_weight), count))
    if background:
        lost -= np.exp(np.minimum(np.log(background) - time, 700.0))
    if tokens > 1:
        lost += (tokens - 1) * _log_survival(_won(null, time))
    won = np.sum([weight * _won(points, time) for weight, points in relevant], axis=0)
    log_lost = np.maximum(lost + _log_survival(won), -700.0)
    width = np.min([_width(x) for x in (null, *(points for _, points in relevant))], axis=0)
    if background:
        # A racer of its own, with Gumbel noise and nothing else.
        width = np.minimum(width, np.pi / np.sqrt(6))
    return Location(time, np.maximum.accumulate(log_lost, axis=1), width)


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
    # What each law's averages of g (lost), g' (win) and g' - g'' (square) weigh in the loss.
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
        """Add a law's derivatives: chain rule through the log weight s of each race.

        ``d_i d_j F(s) = F'' s_i s_j + F' (delta_ij p_i w_i''/w_i - s_i s_j)``.
        """
        either = win + square
        for i, block in enumerate(self.blocks):
            _, d1, d2, d3, d4 = self._functions(i)
            weights = self.points.weights[:, block]
            first = _over_time(lost, d1) + _over_time(either, d2) - _over_time(square, d3)
            second = _over_time(lost, d2) + _over_time(either, d3) - _over_time(square, d4)
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
