"""The noise matrix V of finite-step SGD, and the random initial state.

``V_hh' = E sum_l c_hl c_h'l`` (`derive.task` section 3). Where all weights share one denominator, V is an
integral over one race and one token's scores (`derive.noise`); without a denominator, over one token's
scores alone. Several denominators couple up to four heads: then V is integrated over all H x L scores by
randomized quasi-Monte Carlo.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from numeric._generated import noise
from numeric.activation import Kernels
from numeric.errors import InputError
from numeric.law import Law, token_laws, weight_of
from numeric.origin import at_rest
from numeric.pooled import pooled_time, product_rules
from numeric.quadrature import (
    Array,
    Rule,
    principal_axes,
    product_rule,
    standard_normal_nets,
    symmetric_root,
)
from numeric.race import CHUNK, Points, cut, pooled_points, race_variable
from numeric.scores import attention_weights, score_gradient
from numeric.task import Attention, State, Task
from numeric.validate import real_number, whole_number

# Decimal digits of a product rule: the most for which it has few enough points. Where there is no race,
# a point costs less.
DIGITS = (10.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0)
MOST_POINTS, MOST_UNRACED = 10_000, 100_000
# Digits of the race time beside nets; and those that sixth powers of a share cost.
SAMPLED_DIGITS, SIXTH_POWERS = 5.0, 5.0
NETS, NET_SIZE = 8, 1024
LARGEST_ETA = 1e50
# Scores of one net, and the largest dimension of a Sobol sequence.
MOST_SCORES, MOST_DIMENSIONS = 2_000_000, 21_201


def noise_matrix(
    state: State, task: Task, attention: Attention, net_size: int = NET_SIZE
) -> tuple[Array, Array]:
    """Return V and its error.

    Parameters
    ----------
    state : State
        One state, m (H, F), r (H, H), b (H,), v (H,).
    task : Task
    attention : Attention
    net_size : int
        Points of each of the eight nets, where quasi-Monte Carlo is used; fewer when H L is large.

    Returns
    -------
    V, error : (H, H) arrays
        Symmetric, V positive semi-definite. The error is the distance to coarser rules, or the
        standard error of the nets.

    Raises
    ------
    InputError
        If the state does not fit, or separately normalized heads have more scores than a Sobol
        sequence covers.
    QuadratureError
        If the scores are so spread that no affordable rule resolves them.

    Notes
    -----
    `derive.task` section 3. The limit D -> infinity is taken: tokens are orthonormal.
    """
    return _noise(state, task, attention, net_size, lambda parts: parts.sum(axis=0))


def noise_parts(
    state: State, task: Task, attention: Attention, net_size: int = NET_SIZE
) -> tuple[Array, Array]:
    """Return what V takes from the other tokens and from the relevant one, (2, H, H), and the errors."""
    return _noise(state, task, attention, net_size, lambda parts: parts)


def _noise(
    state: State,
    task: Task,
    attention: Attention,
    net_size: int,
    of: Callable[[Array], Array],
) -> tuple[Array, Array]:
    """A linear function of both parts of V, and its error."""
    state = state.single(attention, task.prior.features)
    net_size = 2 ** int(np.log2(whole_number("net_size", net_size, 2)))
    heads, tokens, kernel = attention.heads, task.tokens, attention.kernel
    if attention.ignores_scores(tokens):
        nothing = of(np.zeros((2, heads, heads)))
        return nothing, nothing
    bias, value = state.biases_and_values(attention)
    layer = _Layer(*token_laws(state, task, attention), bias, value, kernel, float(tokens))
    if kernel.NORMALIZATION == "per-head" and heads > 1:
        return _averaged(map(of, layer.over_all_scores(tokens, net_size)))
    for digits in DIGITS:
        parts = layer.by_product_rule(digits)
        if parts is not None:
            found = of(parts)
            coarser = [layer.by_product_rule(digits - lost) for lost in (1, 1.5)]
            # Changes shrink with every digit, but one of them may be small by chance.
            one, two = (np.abs(of(x) - found).max() for x in coarser if x is not None)
            error = 2 * np.sqrt(one * two) + 10**-digits * np.abs(found).max()
            return found, np.full_like(found, error)
    time = layer.race_time(SAMPLED_DIGITS)
    return _averaged(of(layer.over_token(rules, time)) for rules in layer.nets(net_size))


def _averaged(found: Iterable[Array]) -> tuple[Array, Array]:
    """Mean over independent nets, and its standard error."""
    values = np.array(list(found))
    return values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))


@dataclass(frozen=True)
class _Layer:
    """An attention layer and the laws of its scores.

    A rule for a law is made of the deviations (N, H) of a token's scores from their mean, and weights.
    """

    null: Law
    relevant: list[Law]
    bias: Array
    value: Array
    kernel: Kernels
    tokens: float

    @property
    def laws(self) -> list[Law]:
        return [self.null, *self.relevant]

    @property
    def raced(self) -> bool:
        return self.kernel.NORMALIZATION != "none"

    def by_product_rule(self, digits: float) -> Array | None:
        """Both parts of V by product rules along the laws' principal axes, unless these are too large."""
        # Without a race slopes may be narrower than race functions: those of erf are.
        fine, most = (digits, MOST_POINTS) if self.raced else (2 * digits, MOST_UNRACED)
        axes = product_rules(self.null, self.relevant, self.tokens, fine, most)
        if axes is None:
            return None
        rules = []
        for law, rule in zip(self.laws, axes, strict=True):
            sigma, vectors = principal_axes(law.cov)
            z, weights = product_rule(rule)
            rules.append(((z * sigma) @ vectors.T, weights))
        return self.over_token(rules, self.race_time(digits))

    def nets(self, size: int) -> Iterator[list[Rule]]:
        """Quasi-Monte Carlo rules for all laws, from each of several independent nets.

        Points are spread further than a law: V weighs its right tail, up to where one of L tokens has
        all the weight.
        """
        axes = [principal_axes(law.cov) for law in self.laws]
        for net in standard_normal_nets(len(self.bias), NETS, size):
            rules = []
            for sigma, vectors in axes:
                amplitude = sigma * np.abs(vectors).max(axis=0)
                spread = 1 + np.minimum(amplitude**2, np.log(self.tokens) / 3)
                weights = np.exp(-(net**2 @ (spread - 1)) / 2)
                z = net * np.sqrt(spread) * sigma
                rules.append((z @ vectors.T, weights / weights.sum()))
            yield rules

    def race_time(self, digits: float) -> Rule | None:
        """Nodes (n,) and weights (n,) of the race time, if there is a race."""
        if not self.raced:
            return None
        u, du = pooled_time(
            self.null,
            self.relevant,
            self.bias,
            self.kernel,
            self.tokens,
            digits + SIXTH_POWERS,
        )
        return u[0], du[0]

    def over_token(self, rules: list[Rule], time: Rule | None) -> Array:
        """Return both parts of V as integrals over the scores of the token that is noisy."""
        slopes = self._plain(rules) if time is None else self._raced(rules, *time)
        null, *relevant = ((slope.T * weights) @ slope for slope, weights in slopes)
        found = np.array([null, np.sum(relevant, axis=0)])
        return (found + found.swapaxes(1, 2)) / 2

    def _plain(self, rules: list[Rule]) -> Iterator[Rule]:
        """Slopes ``da_l / dchi_hl`` (N, H) and weights (N,) for each law, without a denominator."""
        counts = [self.tokens - 1, *(law.weight for law in self.relevant)]
        for k, (law, count, (z, weights)) in enumerate(zip(self.laws, counts, rules, strict=True)):
            weight, slope, *_ = weight_of(self.kernel, law.mean + z, self.bias)
            residual = weight @ self.value - (k > 0)
            yield self.value * slope, 4 * count * weights * residual**2

    def _raced(self, rules: list[Rule], u: Array, du: Array) -> Iterator[Rule]:
        """Slopes of the log weight (N, H) and weights (N,) for each law, all else integrated."""
        points = [
            pooled_points(law, self.bias, self.kernel, *rule)
            for law, rule in zip(self.laws, rules, strict=True)
        ]
        mix = np.array([law.weight for law in self.relevant])
        null, *relevant = (_averages(p, u) for p in points)
        token = np.tensordot(mix, np.array(relevant), 1)
        moments = [cut(null[0]), null[3], null[5], *token[1:]]
        found = noise.noise_coefficients(*[*moments, self.tokens, self.value[0]])
        in_null, in_relevant = du * np.stack(found).reshape(2, 5, len(u))
        for p, share in zip(points, [in_null, *(x * in_relevant for x in mix)], strict=True):
            yield p.slope[0], p.weights[0] * _gathered(p, u, share)

    def over_all_scores(self, tokens: int, size: int) -> Iterator[Array]:
        """Return both parts of V integrated over all H x L scores and the relevant token's law."""
        heads = len(self.bias)
        tokens = whole_number("tokens", tokens, 1)
        most = (MOST_DIMENSIONS - 1) // heads
        if tokens > most:
            raise InputError(
                "tokens",
                tokens,
                f"at most {most} tokens for the noise matrix of {heads} heads",
            )
        affordable = 2 ** int(np.log2(MOST_SCORES / (heads * tokens)))
        size = min(size, max(16, affordable))
        root, *roots = (symmetric_root(law.cov) for law in self.laws)
        edges = np.cumsum([law.weight for law in self.relevant])
        for net in standard_normal_nets(heads * tokens + 1, NETS, size):
            z = net[:, 1:].reshape(size, tokens, heads)
            chi = z @ root
            component = np.searchsorted(edges, ndtr(net[:, 0]) * edges[-1])
            for k, law in enumerate(self.relevant):
                mine = component == k
                chi[mine, 0] = law.mean + z[mine, 0] @ roots[k]
            chi = np.ascontiguousarray(chi.transpose(0, 2, 1))
            p, a = attention_weights(chi, self.bias, self.value, self.kernel)
            slope = 2 * a
            slope[:, 0] -= 2
            c, *_ = score_gradient(chi, self.bias, self.value, p, slope, self.kernel)
            signal, flat = c[:, :, 0], c[:, :, 1:].transpose(1, 0, 2).reshape(heads, -1)
            yield np.array([flat @ flat.T, signal.T @ signal]) / size


def _race_variables(points: Points, u: Array) -> Iterator[tuple[slice, Array]]:
    """Token weights times race times, (n, block) for blocks of points that bound the memory."""
    block = max(1, CHUNK // len(u))
    for i in range(0, points.log_weight.shape[1], block):
        s = points.log_weight[0, i : i + block] - u[:, None]
        yield slice(i, i + block), race_variable(s)


def _averages(points: Points, u: Array) -> Array:
    """Averages of ``1 - exp(-tau)`` and of ``tau^j exp(-tau)``, j = 0 ... 4, at each time: (6, n)."""
    total = np.zeros((6, len(u)))
    for block, tau in _race_variables(points, u):
        weights = points.weights[0, block]
        total[0] -= np.expm1(-tau) @ weights
        power = np.exp(-tau)
        for average in total[1:]:
            average += power @ weights
            power *= tau
    return total


def _gathered(points: Points, u: Array, shares: Array) -> Array:
    """``sum_u sum_j share_j(u) tau^j exp(-tau)``, j = 2 ... 6, at each point: (N,)."""
    total = np.zeros(points.log_weight.shape[1])
    for block, tau in _race_variables(points, u):
        power = tau**2 * np.exp(-tau)
        for share in shares:
            total[block] += share @ power
            power *= tau
    return total


def initial_state(task: Task, attention: Attention, eta: float, dimension: int, seed: int) -> State:
    """Draw the order parameters of keys ``k_h ~ N(0, eta^2 I / D)``, exactly in law.

    Parameters
    ----------
    task : Task
    attention : Attention
    eta : float
        Norm of a key, O(1).
    dimension : int
        Token dimension D >= F + H; m = O(eta / sqrt D), r close to eta^2 times the identity.
    seed : int

    Returns
    -------
    State
        Biases are zero; trained values are equal, and rest at the origin (`numeric.origin`).

    Raises
    ------
    InputError
        If `eta` is not positive or `dimension` too small.

    Notes
    -----
    `derive.task` section 3.
    """
    from scipy.stats import wishart  # slow to import

    eta = real_number("eta", eta, positive=True)
    if eta > LARGEST_ETA:
        raise InputError("eta", eta, f"at most {LARGEST_ETA:g}")
    heads, features = attention.heads, task.prior.features
    dimension = whole_number("dimension", dimension, features + heads)
    rng = np.random.default_rng(np.random.SeedSequence(whole_number("seed", seed, 0)))
    scale = eta**2 / dimension
    m = np.sqrt(scale) * rng.standard_normal((heads, features))
    overlap = scale * np.atleast_2d(
        wishart.rvs(dimension - features, np.eye(heads), random_state=rng)
    )
    return at_rest(State(m, (overlap + overlap.T) / 2), task, attention)
