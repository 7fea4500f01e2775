"""Two heads at a time: ``B_hh'`` and its derivatives in the laws of a token's scores.

The races of two heads are won together at times u and v. What is needed of a law is its average of
``e(x, u) e(y, v)`` (neither has won) and of ``f(x, u) f(y, v)`` (both win), (x, y) the two scores. With
the expectation written as a product of matrices, ``f W f^T``, each head's functions are evaluated once,
whatever the number of pairs, and derivatives follow backwards: with P the loss derivative in such an
average, that in the first score's mean is the sum of ``(f' W) * (P f)``, entry by entry, and so on.

There are three forms of W:

hermite       Gauss-Hermite nodes, and functions by their Hermite coefficients: W is diagonal, rho^k
              (Mehler's formula), at any correlation rho. For scores that spread little.
equispaced    Equispaced nodes, W the bivariate density. The second score's density given the first is
              sharper than its own, by ``rest = sqrt(1 - rho^2)``, and its nodes are finer.
conditional   The second score has nodes of its own for each node of the first. For correlations near one.

Without normalization there is no race: one time, e = 1 and f = w.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numeric._generated import race
from numeric.activation import Kernels
from numeric.errors import QuadratureError
from numeric.law import Law, weight_of
from numeric.quadrature import (
    Array,
    Rule,
    equispaced_rule,
    gaussian_rule,
    hermite_basis,
    hermite_count,
)
from numeric.race import CHUNK, cut, race_variable

Indices = NDArray[np.intp]

# Least deviation of the second score given the first, in units of its own, for equispaced nodes.
LEAST_REST = 1 / 16
# Hermite nodes up to which they are preferred to conditional ones.
MOST_HERMITE = 96
# A conditional rule larger than this for one pair takes seconds: the scores are out of reach.
MOST_NODES, MOST_TIMES = 250_000, 700
# Numbers kept of a chunk of pairs between the two passes.
KEPT = 4_000_000

# Rows of a function: itself, its first two derivatives in the score, and that in the bias, if trained.
VALUE, FIRST, SECOND, BIAS = range(4)


@dataclass(frozen=True)
class Functions:
    """Race functions: won (P, N, n), and the rows (P, rows, N, n) of not won and of win."""

    g: Array
    e: Array
    f: Array

    def of(self, heads: Indices) -> "Functions":
        """Return those of some heads, with repetitions."""
        return Functions(self.g[heads], self.e[heads], self.f[heads])


@dataclass(frozen=True)
class Block:
    """Functions of some pairs of heads under one law: averages are ``first @ second.T``."""

    pairs: Indices
    first: Functions
    second: Functions
    mean_won: Array


def pair_races(
    null: Law,
    relevant: list[Law],
    bias: Array,
    kernel: Kernels,
    time: Rule,
    tokens: float,
    values: Array,
    digits: float,
) -> Array:
    """Return ``B_hh'`` of different heads; derivatives of ``sum v_h v_h' B_hh'`` go to the laws.

    Returns
    -------
    B : (H, H) array
        Zero on the diagonal.

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
    result = np.zeros((len(null.mean), len(null.mean)))
    laws = (null, *relevant)
    rules = [Nodes(law, bias, kernel, time[0], tokens, digits) for law in laws]
    per_pair = sum(18 * time[0].shape[1] * nodes.size for nodes in rules)
    size = max(1, min(KEPT // per_pair, CHUNK // time[0].shape[1] ** 2))
    for i in range(0, len(first), size):
        h, k = first[i : i + size], second[i : i + size]
        weight = 2 * values[h] * values[k]
        blocks = [list(nodes.blocks(h, k)) for nodes in rules]
        result[h, k] = _chunk(laws, blocks, h, k, time[1], tokens, weight)
    return result + result.T


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


def race_functions(
    kernel: Kernels, scores: Array, bias: Array, u: Array, order: int
) -> tuple[Array, ...]:
    """Race functions g, e and f and s with derivatives, of scores (P, n, ...) at times u (P, N)."""
    extra = (1,) * (scores.ndim - 1)
    ratios = weight_of(kernel, scores, bias.reshape(-1, *extra), order)
    value, *slopes = (x[:, None] for x in ratios)
    if kernel.NORMALIZATION == "none":
        moments = race.moment_functions_2 if order == 2 else race.moment_functions_4
        return moments(value, *slopes)
    functions = race.race_functions_2 if order == 2 else race.race_functions_4
    x = race_variable(value - u.reshape(*u.shape, *extra))
    return functions(x, *(x * slope for slope in slopes))


def head_functions(
    kernel: Kernels,
    scores: Array,
    bias: Array,
    u: Array,
    order: int = 2,
    weights: Array | None = None,
) -> Functions:
    """Rows of the race functions of scores (P, n) at race times u (P, N).

    With `weights`, scores are (P, n, k) and functions are averaged over the last axis.
    """
    found = race_functions(kernel, scores, bias, u, order)
    step = max(order, 3) + 1
    rows = step if order > 2 or "b" in kernel.PARAMETERS else 3
    functions: list[Array] = [found[0], *found[1 : 1 + rows], *found[1 + step : 1 + step + rows]]
    if weights is not None:
        functions = [x @ weights for x in functions]
    g, *others = functions
    return Functions(g, np.stack(others[:rows], axis=1), np.stack(others[rows:], axis=1))


class Nodes:
    """Nodes of one law's scores, and its pairs' functions on them."""

    def __init__(
        self,
        law: Law,
        bias: Array,
        kernel: Kernels,
        u: Array,
        tokens: float,
        digits: float,
        order: int = 2,
    ) -> None:
        self.law, self.bias, self.kernel, self.u = law, bias, kernel, u
        self.tokens, self.digits, self.order = tokens, digits, order
        self.sigma = np.sqrt(np.diag(law.cov))
        self.hermite = hermite_count(law.width, digits)
        self.rule = gaussian_rule(law.width, digits, tokens)
        self.size = len(self.rule[0])
        self._heads: dict[float, Functions] = {}

    def blocks(self, first: Indices, second: Indices) -> Iterator[Block]:
        """Split pairs by how they are integrated."""
        scale = self.sigma[first] * self.sigma[second]
        rho = np.divide(
            self.law.cov[first, second], scale, out=np.zeros(len(first)), where=scale > 0
        )
        rest = np.sqrt(np.maximum(1 - rho**2, 0.0))
        left = np.arange(len(first))
        if self.hermite > self.size:
            # Rules for rest = 2^(-k/2) serve all pairs down to there.
            levels = np.ceil(-2 * np.log2(np.maximum(rest, LEAST_REST / 2)))
            for level in np.unique(levels[rest >= LEAST_REST]):
                mine = np.flatnonzero(levels == level)
                yield self._equispaced(float(level), first, second, mine, rho)
            left = np.flatnonzero(rest < LEAST_REST)
        if len(left) and self.hermite <= MOST_HERMITE:
            yield self._hermite(first, second, left, rho)
        elif len(left):
            yield from self._conditional(first, second, left)

    def _on(self, z: Array, key: float) -> Functions:
        """Every head's functions on nodes z, evaluated once."""
        if key not in self._heads:
            scores = self.law.mean[:, None] + self.sigma[:, None] * z
            self._heads[key] = head_functions(self.kernel, scores, self.bias, self.u, self.order)
        return self._heads[key]

    def _equispaced(
        self, level: float, first: Indices, second: Indices, mine: Indices, rho: Array
    ) -> Block:
        z, weights = self.rule
        fine = equispaced_rule(self.law.width, self.digits, self.tokens, 2 ** (-level / 2))
        x = self._on(z, -1.0).of(first[mine])
        y = self._on(fine[0], level).of(second[mine])
        return Block(mine, x, _times(y, _bivariate(self.rule, fine, rho[mine])), x.g @ weights)

    def _hermite(self, first: Indices, second: Indices, mine: Indices, rho: Array) -> Block:
        z, basis = hermite_basis(self.hermite)
        if -3.0 not in self._heads:
            on = self._on(z, -2.0)
            self._heads[-3.0] = Functions(on.g @ basis, on.e @ basis, on.f @ basis)
        x, y = self._heads[-3.0].of(first[mine]), self._heads[-3.0].of(second[mine])
        powers = np.clip(rho[mine], -1.0, 1.0)[:, None, None] ** np.arange(len(z))
        scaled = Functions(y.g * powers, y.e * powers[:, None], y.f * powers[:, None])
        return Block(mine, x, scaled, x.g[:, :, 0])

    def _conditional(self, first: Indices, second: Indices, mine: Indices) -> Iterator[Block]:
        law, variance = self.law, self.sigma**2
        sigma = self.sigma[first]
        cross = np.divide(law.cov[first, second], sigma, out=np.zeros(len(first)), where=sigma > 0)
        rest = np.sqrt(np.maximum(variance[second] - cross**2, 0.0))
        # A remainder at rounding level is none: the two scores are one variable.
        rest[rest**2 <= 1e-14 * variance[second]] = 0.0
        # The second score follows the first with deviation `cross`, which may be the larger one.
        along = np.maximum(sigma, np.abs(cross))
        z, wz = gaussian_rule(law.scale * float(along[mine].max()), self.digits, self.tokens)
        y, wy = gaussian_rule(law.scale * float(rest[mine].max()), self.digits, self.tokens)
        if len(z) * len(y) > MOST_NODES:
            raise QuadratureError(
                f"scores: a pair of heads needs {len(z) * len(y)} nodes at {self.digits:.1f} digits, "
                f"expected at most {MOST_NODES}; the score deviations are out of reach"
            )
        size = max(1, CHUNK // (len(z) * len(y) * self.u.shape[1]))
        for i in range(0, len(mine), size):
            block = mine[i : i + size]
            h, k = first[block], second[block]
            x_scores = law.mean[h, None] + sigma[block, None] * z
            centre = law.mean[k, None] + cross[block, None] * z
            x = head_functions(self.kernel, x_scores, self.bias[h], self.u[h], self.order)
            scores = centre[:, :, None] + rest[block, None, None] * y
            other = head_functions(self.kernel, scores, self.bias[k], self.u[k], self.order, wy)
            other = Functions(other.g * wz, other.e * wz, other.f * wz)
            yield Block(block, x, other, x.g @ wz)


def _times(y: Functions, density: Array) -> Functions:
    """Multiply functions of the second score by each pair's density."""

    def product(rows: Array) -> Array:
        pairs, count, times, nodes = rows.shape
        flat = rows.reshape(pairs, count * times, nodes) @ density.mT
        return flat.reshape(pairs, count, times, -1)

    return Functions(y.g @ density.mT, product(y.e), product(y.f))


def _bivariate(rule: Rule, fine: Rule, correlation: Array) -> Array:
    """Standard bivariate normal density times the area of a cell: (P, n, n')."""
    (x, w_x), (y, w_y) = rule, fine
    rho = correlation[:, None, None]
    rest = 1 - rho**2
    x = x[:, None]
    excess = (rho * x * y - rho**2 * (x**2 + y**2) / 2) / rest
    return np.exp(excess) * (w_x[:, None] * w_y / np.sqrt(rest))


def _chunk(
    laws: tuple[Law, ...],
    blocks: list[list[Block]],
    first: Indices,
    second: Indices,
    du: Array,
    tokens: float,
    weight: Array,
) -> Array:
    """``B`` of some pairs (P,), and derivatives of ``weight . B``."""
    times = du.shape[1]
    averages = []
    for law_blocks in blocks:
        won, win = np.empty((2, len(first), times, times))
        for x in law_blocks:
            # 1 - e e' = g + e g': small probabilities keep their digits.
            won[x.pairs] = x.first.e[:, VALUE] @ x.second.g.mT + x.mean_won[:, :, None]
            win[x.pairs] = x.first.f[:, VALUE] @ x.second.f[:, VALUE].mT
        averages.append((cut(won), win))
    mix = np.array([law.weight for law in laws[1:]])
    won_1 = sum(p * won for p, (won, _) in zip(mix, averages[1:], strict=True))
    win_1 = sum(p * win for p, (_, win) in zip(mix, averages[1:], strict=True))
    won_0, win_0 = averages[0]
    b, in_null, in_rel, in_lost_0, in_lost_1 = race.any_wins(
        win_0, win_1, won_0, cut(won_1), tokens
    )
    area = du[first][:, :, None] * du[second][:, None, :]
    area_weighted = weight[:, None, None] * area
    shares = [(area_weighted * in_lost_0, area_weighted * in_null)]
    shares += [(p * area_weighted * in_lost_1, p * area_weighted * in_rel) for p in mix]
    for law, law_blocks, (lost, win) in zip(laws, blocks, shares, strict=True):
        for x in law_blocks:
            _gather(law, x, -lost[x.pairs], win[x.pairs], first[x.pairs], second[x.pairs])
    return (area * b).sum(axis=(1, 2))


def _gather(law: Law, x: Block, in_e: Array, in_f: Array, h: Indices, k: Indices) -> None:
    """Add a block's derivatives, given the loss derivatives (P, N, N) in its averages."""
    pairs, count = x.first.e.shape[:2]
    # Derivatives of every order in either score; those of third order and up are not used.
    total = np.zeros((pairs, count, count))
    for adjoint, left, right in ((in_e, x.first.e, x.second.e), (in_f, x.first.f, x.second.f)):
        back = (adjoint[:, None] @ right).reshape(pairs, count, -1)
        total += left.reshape(pairs, count, -1) @ back.mT
    np.add.at(law.g, h, total[:, FIRST, VALUE])
    np.add.at(law.g, k, total[:, VALUE, FIRST])
    np.add.at(law.Gamma, (h, h), total[:, SECOND, VALUE] / 2)
    np.add.at(law.Gamma, (k, k), total[:, VALUE, SECOND] / 2)
    np.add.at(law.Gamma, (h, k), total[:, FIRST, FIRST] / 2)
    np.add.at(law.Gamma, (k, h), total[:, FIRST, FIRST] / 2)
    if count > BIAS:
        np.add.at(law.b, h, total[:, BIAS, VALUE])
        np.add.at(law.b, k, total[:, VALUE, BIAS])
