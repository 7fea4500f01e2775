"""Second derivatives of the loss in (m, r), exact, where heads meet in pairs.

The loss is a sum over heads and over pairs of heads of integrals over race times. Under each integral
is a function of averages over a token's law, ``Phi(a_1, a_2, ...)``, and a law enters an average only by
its density. With D_p the operator that a law's parameter p (a mean, a covariance) stands for, ``d/dx``
for a mean, ``(1/2) d^2/dx^2`` for a variance, ``d^2/dx dy`` for a covariance,

    Phi'' = sum_a Phi_a E D_p D_q a + sum_ab Phi_ab (E D_p a) (E D_q b),

and the chain rule leads from means and covariances ``m mu, m S m^T + r`` to (m, r).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from numeric._generated import race
from numeric.activation import Kernels
from numeric.heads import race_times
from numeric.law import Law
from numeric.pairs import Block, Indices, Nodes, race_functions
from numeric.quadrature import Array, Rule, gaussian_rule
from numeric.race import cut

# Derivatives in the two scores, and factor, of the operator of each parameter of a pair's law: the two
# means, then the variance, the covariance and the other variance.
OPERATORS = ((1, 0, 1.0), (0, 1, 1.0), (2, 0, 0.5), (1, 1, 1.0), (0, 2, 0.5))
# The same for one score: mean and variance.
SINGLE = ((1, 1.0), (2, 0.5))
ORDER = 4


@dataclass(frozen=True)
class Moments:
    """A component of the prior, or none: mean mu (F,) and second-moment matrix S = 1 + covariance."""

    mean: Array
    second: Array


class Curvature:
    """Sum of second derivatives, in m (H, F) and then r (H, H), both flattened.

    The loss changes by ``dx.G + dx.K dx / 2``, dx = (dm, dr) with dr symmetric.
    """

    def __init__(self, m: Array) -> None:
        self.m = m
        heads, features = m.shape
        self.matrix = np.zeros((heads * (features + heads),) * 2)

    def coordinates(self, *heads: int) -> Indices:
        """Places of the coordinates that some heads have: their m, then r of each pair in order."""
        count, features = self.m.shape
        own = [np.arange(features) + h * features for h in heads]
        pairs = [(h, k) for i, h in enumerate(heads) for k in heads[i:]]
        overlaps = np.array([count * features + h * count + k for h, k in pairs])
        return np.concatenate([*own, overlaps]).astype(np.intp)

    def add(self, places: Indices, block: Array) -> None:
        self.matrix[np.ix_(places, places)] += block

    def symmetric(self) -> Array:
        """Return the matrix with r's coordinates shared between (h, k) and (k, h)."""
        heads, features = self.m.shape
        signal = heads * features
        swap = np.arange(heads * heads).reshape(heads, heads).T.ravel()
        order = np.concatenate([np.arange(signal), signal + swap])
        share = (self.matrix + self.matrix[order]) / 2
        share = (share + share[:, order]) / 2
        return (share + share.T) / 2


def curvature(
    m: Array,
    null: Law,
    relevant: list[Law],
    moments: list[Moments],
    bias: Array,
    kernel: Kernels,
    tokens: float,
    values: Array,
    digits: float,
) -> Array:
    """Return the Hessian of the loss in (m, r): (H F + H H, H F + H H).

    Parameters
    ----------
    m : (H, F) array
    null, relevant : Law and list of Law
        Laws of a token's scores.
    moments : list of Moments
        Mean and second moment of the signal that each law stands for, the null law's first.
    bias, values : (H,) arrays
    kernel : Kernels
        Normalized head by head, or not at all.
    tokens, digits : float

    Returns
    -------
    array
        The loss changes by ``dx.gradient + dx.K dx / 2`` for dx = (dm, dr), dr symmetric.
    """
    result = Curvature(m)
    laws = [null, *relevant]
    single, double = race_times(null, relevant, bias, kernel, tokens, digits)
    _singles(result, laws, moments, bias, kernel, single, tokens, values, digits)
    nodes = [Nodes(x, bias, kernel, double[0], tokens, digits, ORDER) for x in laws]
    for h, k in zip(*np.triu_indices(len(m), 1), strict=True):
        pair = np.array([h]), np.array([k])
        blocks = [next(iter(x.blocks(*pair))) for x in nodes]
        _pair(result, laws, moments, blocks, (int(h), int(k)), double[1], tokens, values)
    return result.symmetric()


def _singles(
    result: Curvature,
    laws: list[Law],
    moments: list[Moments],
    bias: Array,
    kernel: Kernels,
    time: Rule,
    tokens: float,
    values: Array,
    digits: float,
) -> None:
    """``-2 v A_h + v^2 B_hh`` of every head."""
    u, du = time
    found = []
    for law in laws:
        sigma = np.sqrt(np.diag(law.cov))
        z, weights = gaussian_rule(law.width, digits, tokens)
        functions = race_functions(kernel, law.mean[:, None] + sigma[:, None] * z, bias, u, ORDER)
        g, *rows = (x @ weights for x in functions)
        e, f, s = (np.array(rows[i * 5 : i * 5 + 5]) for i in range(3))
        won = np.array([cut(g), *-e[1:]])
        found.append((f, s, won))
    mix = [law.weight for law in laws[1:]]
    (_, s_0, won_0), *others = found
    f_1, s_1, won_1 = (sum(p * x[i][0] for p, x in zip(mix, others, strict=True)) for i in range(3))
    a = race.relevant_wins_2(f_1, won_0[0], tokens)
    b = race.any_wins_2(s_0[0], s_1, won_0[0], cut(np.asarray(won_1)), tokens)
    for h, value in enumerate(values):
        w_a, w_b = -2 * value * du[h], value**2 * du[h]
        # The averages: f_1, s_0, s_1, won_0, won_1.
        first = np.zeros((5, u.shape[1]))
        second = np.zeros((5, 5, u.shape[1]))
        _spread(first, second, (0, 3), w_a, [x[h] for x in a[1:]])
        _spread(first, second, (1, 2, 3, 4), w_b, [x[h] for x in b[1:]])
        # Which averages a law has, with derivatives: the null law, then each relevant one.
        tables: list[tuple[tuple[int, Array], ...]] = [((1, s_0[:, h]), (3, won_0[:, h]))]
        tables += [
            tuple((i, p * x[j][:, h]) for i, j in ((0, 0), (2, 1), (4, 2)))
            for p, x in zip(mix, others, strict=True)
        ]
        places = result.coordinates(h)
        for law_table, moment in zip(tables, moments, strict=True):
            operators = np.array(
                [
                    [c * d * sum(first[i] @ x[p + q] for i, x in law_table) for q, d in SINGLE]
                    for p, c in SINGLE
                ]
            )
            in_cov = 0.5 * sum(first[i] @ x[2] for i, x in law_table)
            jacobian = _single_jacobian(result.m[h], moment)
            block = jacobian.T @ operators @ jacobian
            features = len(moment.mean)
            block[:features, :features] += 2 * in_cov * moment.second
            result.add(places, block)
        changes = np.zeros((5, len(places), u.shape[1]))
        for law_table, moment in zip(tables, moments, strict=True):
            jacobian = _single_jacobian(result.m[h], moment)
            for i, x in law_table:
                slopes = np.array([c * x[p] for p, c in SINGLE])
                changes[i] += jacobian.T @ slopes
        result.add(places, _quadratic(changes, second))


def _pair(
    result: Curvature,
    laws: list[Law],
    moments: list[Moments],
    blocks: list[Block],
    heads: tuple[int, int],
    du: Array,
    tokens: float,
    values: Array,
) -> None:
    """``2 v_h v_k B_hk`` of one pair."""
    h, k = heads
    area = 2 * values[h] * values[k] * np.outer(du[h], du[k]).ravel()
    mix = [1.0, *(law.weight for law in laws[1:])]
    averages = []
    for x in blocks:
        won = x.first.e[0, 0] @ x.second.g[0].T + x.mean_won[0][:, None]
        win = x.first.f[0, 0] @ x.second.f[0, 0].T
        averages.append((win.ravel(), cut(won).ravel()))
    win_1, won_1 = (
        sum(p * x[i] for p, x in zip(mix[1:], averages[1:], strict=True)) for i in (0, 1)
    )
    win_0, won_0 = averages[0]
    found = race.any_wins_2(win_0, win_1, won_0, cut(np.asarray(won_1)), tokens)
    # The averages: win_0, win_1, won_0, won_1.
    first = np.zeros((4, area.size))
    second = np.zeros((4, 4, area.size))
    _spread(first, second, (0, 1, 2, 3), area, found[1:])
    places = result.coordinates(h, k)
    changes = np.zeros((4, len(places), area.size))
    for index, (x, p, moment) in enumerate(zip(blocks, mix, moments, strict=True)):
        win, won = (0, 2) if index == 0 else (1, 3)
        # won = 1 - E e e'
        parts = ((win, p, x.first.f[0], x.second.f[0]), (won, -p, x.first.e[0], x.second.e[0]))
        jacobian = _pair_jacobian(result.m[h], result.m[k], moment)
        derivative = np.zeros((ORDER + 1, ORDER + 1))
        for average, factor, left, right in parts:
            weight = factor * first[average].reshape(left.shape[1], -1)
            back = (weight @ right).reshape(len(right), -1)
            derivative += left.reshape(len(left), -1) @ back.T
            slopes = [c * factor * (left[i] @ right[j].T).ravel() for i, j, c in OPERATORS]
            changes[average] += jacobian.T @ np.array(slopes)
        operators = np.array(
            [[c * d * derivative[i + p, j + q] for p, q, d in OPERATORS] for i, j, c in OPERATORS]
        )
        block = jacobian.T @ operators @ jacobian
        f = len(moment.mean)
        own, other, cross = (
            c * derivative[i, j] for i, j, c in (OPERATORS[2], OPERATORS[4], OPERATORS[3])
        )
        block[:f, :f] += 2 * own * moment.second
        block[f : 2 * f, f : 2 * f] += 2 * other * moment.second
        block[:f, f : 2 * f] += cross * moment.second
        block[f : 2 * f, :f] += cross * moment.second
        result.add(places, block)
    result.add(places, _quadratic(changes, second))


def _spread(
    first: Array, second: Array, places: Sequence[int], weight: Array, derivatives: Sequence[Array]
) -> None:
    """Add a kernel's gradient and upper Hessian triangle, times a weight, at some averages."""
    count = len(places)
    for i, x in zip(places, derivatives[:count], strict=True):
        first[i] += weight * x
    upper = [(i, j) for n, i in enumerate(places) for j in places[n:]]
    for (i, j), x in zip(upper, derivatives[count:], strict=True):
        second[i, j] += weight * x
        if i != j:
            second[j, i] += weight * x


def _quadratic(changes: Array, second: Array) -> Array:
    """``sum_ab changes_a second_ab changes_b`` over race times: (d, d)."""
    pushed = np.einsum("abn,bdn->adn", second, changes, optimize=True)
    return np.einsum("acn,adn->cd", changes, pushed, optimize=True)


def _single_jacobian(m: Array, moment: Moments) -> Array:
    """Derivatives of (mean, variance) in (m_h, r_hh): (2, F + 1)."""
    zero = np.zeros(1)
    return np.array(
        [np.concatenate([moment.mean, zero]), np.concatenate([2 * moment.second @ m, zero + 1])]
    )


def _pair_jacobian(m: Array, other: Array, moment: Moments) -> Array:
    """Derivatives of (means, C_hh, C_hk, C_kk) in (m_h, m_k, r_hh, r_hk, r_kk): (5, 2 F + 3)."""
    features = len(m)
    result = np.zeros((5, 2 * features + 3))
    first, second = slice(0, features), slice(features, 2 * features)
    result[0, first] = result[1, second] = moment.mean
    result[2, first] = 2 * moment.second @ m
    result[3, first] = moment.second @ other
    result[3, second] = moment.second @ m
    result[4, second] = 2 * moment.second @ other
    result[2:, 2 * features :] = np.eye(3)
    return result
