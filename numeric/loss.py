"""Exact population loss and its gradient, with an error.

``E = 1 - 2 A + B`` (MODEL section 1) by race integrals. Nothing is sampled unless a pooled activation
has more score dimensions than a product rule can cover; then the token's Gaussian is integrated by
randomized quasi-Monte Carlo and the standard error is part of the reported one.
"""

from dataclasses import dataclass, replace

import numpy as np

from numeric._generated import ACTIVATIONS, order_parameters
from numeric.errors import QuadratureError
from numeric.quadrature import (
    ROUNDOFF,
    Array,
    Rule,
    gaussian_rule,
    standard_normal_nets,
    stretched_net,
    symmetric_root,
)
from numeric.race import (
    Law,
    Points,
    marginal_points,
    pair_races,
    pooled_points,
    race_grid,
    single_races,
)
from numeric.task import Attention, State, Task
from numeric.validate import real_number

# Pooled races: points of a token's law up to which a product rule is used (one evaluation; a step of
# a flow), and the quasi-Monte Carlo nets used beyond.
MOST_POINTS, FLOW_POINTS, MOST_COARSE = 600_000, 40_000, 4000
# Entries of an array of scores, points times heads.
MOST_ENTRIES = 4_000_000
NETS, NET_SIZE, LARGEST_NET, SAMPLED_DIGITS = 8, 2048, 32_768, 7.0
LEAST_DIGITS, MOST_DIGITS = 3.0, 14.0


@dataclass(frozen=True)
class Loss:
    """A population loss with its gradient.

    Attributes
    ----------
    value, error : float
        ``E`` and an estimate of its absolute error (arrays for a batch of states).
    m, r, b : arrays
        ``dE/dm`` (H, F), ``dE/dr`` (H, H; symmetric, ``dE = tr(G dr)``) and ``dE/db`` (H,), the last
        ``None`` without biases.
    gradient_error : float
        Estimate of the largest absolute error of a gradient entry.
    method : str
        ``"quadrature"``, or ``"quasi-Monte Carlo"``.
    """

    value: float | Array
    error: float | Array
    m: Array
    r: Array
    b: Array | None
    gradient_error: float | Array
    method: str


def population_loss(state: State, task: Task, attention: Attention, tol: float = 1e-8) -> Loss:
    """Return the population loss, its gradient and their errors.

    Parameters
    ----------
    state : State
        Order parameters, m (..., H, F), r (..., H, H), b (..., H); a batch is evaluated one by one.
    task : Task
    attention : Attention
    tol : float
        Absolute error aimed at. The reported error says what was reached.

    Returns
    -------
    Loss
        All arrays carry the batch's shape.

    Raises
    ------
    InputError
        If the state does not fit the task and the attention, or `tol` is not positive.
    QuadratureError
        If the scores are so spread that no affordable rule reaches even three digits.

    Notes
    -----
    MODEL sections 1 and 4. The loss is evaluated with two numbers of digits; the error is their
    difference, reduced by one of the three digits gained between them.
    """
    tol = real_number("tol", tol, positive=True)
    state = state.check(attention, task.prior.features)
    if state.batch_shape:
        results = [
            population_loss(state.at(index), task, attention, tol)
            for index in np.ndindex(*state.batch_shape)
        ]
        return _stacked(results, state.batch_shape)

    def at(digits: float, net_size: int) -> Loss:
        digits = max(digits, LEAST_DIGITS)
        return evaluate(state, task, attention, digits, MOST_POINTS, net_size)

    pooled = ACTIVATIONS[attention.activation].NORMALIZATION == "pooled"
    digits = float(np.clip(1 - np.log10(tol), LEAST_DIGITS + 1, MOST_DIGITS - 2))
    net = 0
    while True:
        try:
            coarse, fine = at(digits - 3, net), at(digits, net)
            break
        except QuadratureError:
            # Fewer digits, then sampling where there is some to be had.
            if digits >= LEAST_DIGITS + 3:
                digits -= 1
            elif pooled and net == 0:
                digits, net = SAMPLED_DIGITS, NET_SIZE
            else:
                raise
    while True:
        error, gradient_error = _errors(coarse, fine)
        if error <= tol or (net >= LARGEST_NET if net else digits >= MOST_DIGITS):
            break
        try:
            if net:
                net = 4 * net
                fine = at(digits, net)
            else:
                digits = min(digits + 3, MOST_DIGITS)
                coarse, fine = fine, at(digits, 0)
        except QuadratureError:
            # Out of reach: the error of what could be afforded is reported.
            break
    return replace(fine, error=error, gradient_error=gradient_error)


def evaluate(
    state: State,
    task: Task,
    attention: Attention,
    digits: float,
    most_points: int = FLOW_POINTS,
    net_size: int = NET_SIZE,
) -> Loss:
    """Return the loss and gradient at one resolution: no error estimate but the sampling error.

    This is what a flow calls at every step; see `population_loss` for the other parameters.

    Parameters
    ----------
    digits : float
        Decimal digits of the rules.
    most_points : int
        Points that a pooled token's product rule may have; beyond, nets of `net_size` quasi-Monte
        Carlo points are used, or, if that is 0, a QuadratureError is raised.
    """
    kernel = ACTIVATIONS[attention.activation]
    if task.tokens == 1:
        # The one token has all the weight.
        b = None if state.b is None else np.zeros_like(state.b)
        return Loss(0.0, 0.0, np.zeros_like(state.m), np.zeros_like(state.r), b, 0.0, "quadrature")
    null, relevant = token_laws(state, task)
    tokens = float(task.tokens)
    if kernel.NORMALIZATION == "per-head":
        value = _per_head(null, relevant, tokens, digits)
        spread, method = 0.0, "quadrature"
    else:
        assert state.b is not None
        value, spread, method = _pooled(
            null, relevant, state.b, tokens, digits, most_points, net_size
        )
    m, r, b = _order_parameter_gradient(state, task, null, relevant)
    in_b = b if "b" in kernel.PARAMETERS else None
    return Loss(1 + value, spread, m, r, in_b, spread, method)


def token_laws(state: State, task: Task) -> tuple[Law, list[Law]]:
    """Return the Gaussian score law of an irrelevant token and the relevant token's mixture."""
    m, r = state.m, state.r
    null = Law(1.0, np.zeros(len(m)), m @ m.T + r)
    relevant = [
        Law(float(weight), m @ mean, null.cov + m @ covariance @ m.T)
        for weight, mean, covariance in zip(*task.prior.components(), strict=True)
        if weight > 0
    ]
    return null, relevant


def _order_parameter_gradient(
    state: State, task: Task, null: Law, relevant: list[Law]
) -> tuple[Array, Array, Array]:
    features = task.prior.features
    weights, means, covariances = task.prior.components()
    kept = weights > 0
    unit = np.eye(features)
    parts = [(null, np.zeros(features), unit)]
    parts += [
        (law, mean, unit + covariance)
        for law, mean, covariance in zip(relevant, means[kept], covariances[kept], strict=True)
    ]
    in_m, in_r, in_b = np.zeros_like(state.m), np.zeros_like(state.r), np.zeros(len(state.m))
    for law, mean, second in parts:
        share_m, share_r = order_parameters.law_gradient(
            state.m, mean[:, None], second, law.g[:, None], law.Gamma
        )
        in_m += share_m
        in_r += share_r
        in_b += law.b
    return in_m, in_r, in_b


def _per_head(null: Law, relevant: list[Law], tokens: float, digits: float) -> float:
    heads = len(null.mean)
    mix = [law.weight for law in relevant]
    coarse = [marginal_points(law, 3.0, tokens, digits) for law in (null, *relevant)]
    time = race_grid(coarse[0], list(zip(mix, coarse[1:], strict=True)), tokens, digits)
    points = [marginal_points(law, digits, tokens) for law in (null, *relevant)]
    value = np.full(heads, 1 / heads)
    single = single_races(null, relevant, points[0], points[1:], time, tokens, value, value**2)
    return single + pair_races(null, relevant, time, tokens, 1 / heads**2, digits)


def _pooled(
    null: Law,
    relevant: list[Law],
    bias: Array,
    tokens: float,
    digits: float,
    most_points: int,
    net_size: int,
) -> tuple[float, float, str]:
    laws, one = (null, *relevant), np.ones(1)
    mix = [law.weight for law in relevant]
    axes = [_principal_axes(law) for law in laws]
    rules = [_axis_rules(axis, digits, tokens) for axis in axes]
    coarse = [
        _locating_points(law, bias, axis, digits, tokens)
        for law, axis in zip(laws, axes, strict=True)
    ]
    time = race_grid(coarse[0], list(zip(mix, coarse[1:], strict=True)), tokens, digits)

    def loss(points: list[Points]) -> float:
        return single_races(null, relevant, points[0], points[1:], time, tokens, one, one)

    if max(map(_size, rules)) <= min(most_points, MOST_ENTRIES // len(bias)):
        points = [
            _product_points(*x) for x in zip(laws, [bias] * len(laws), axes, rules, strict=True)
        ]
        return loss(points), 0.0, "quadrature"
    if net_size == 0:
        raise QuadratureError(
            f"scores: a product rule of {digits:.1f} digits has more than {most_points} points; "
            "the score deviations are out of its reach"
        )
    weights = np.full(net_size, 1 / net_size)
    roots = [symmetric_root(law.cov) for law in laws]
    values = [
        loss(
            [
                pooled_points(law, bias, net @ root, weights)
                for law, root in zip(laws, roots, strict=True)
            ]
        )
        for net in standard_normal_nets(len(bias), NETS, net_size)
    ]
    for law in laws:
        law.g, law.Gamma, law.b = law.g / NETS, law.Gamma / NETS, law.b / NETS
    error = float(np.std(values, ddof=1) / np.sqrt(NETS))
    return float(np.mean(values)), error, "quasi-Monte Carlo"


def _principal_axes(law: Law) -> tuple[Array, Array]:
    """Standard deviations and unit vectors (columns) of a law's principal axes."""
    values, vectors = np.linalg.eigh(law.cov)
    return np.sqrt(np.maximum(values, 0.0)), vectors


def _axis_rules(
    axes: tuple[Array, Array], digits: float, tokens: float, reach: float | None = None
) -> list[Rule]:
    """A one-dimensional rule for each axis, as fine as its largest effect on a score demands."""
    sigma, vectors = axes
    amplitude = sigma * np.abs(vectors).max(axis=0)
    # Below this the axis changes the loss by less than the last digit: second order in amplitude.
    amplitude = np.where(amplitude < 10 ** (-digits / 2 - 1), 0.0, amplitude)
    return [gaussian_rule(float(a), digits, tokens, reach) for a in amplitude]


def _size(rules: list[Rule]) -> int:
    return int(np.prod([len(z) for z, _ in rules], dtype=float))


def _locating_points(
    law: Law, bias: Array, axes: tuple[Array, Array], reach: float, tokens: float
) -> Points:
    """Coarse points with good tails, to find when the race is run."""
    for digits in (3.0, 2.0, 1.0):
        rules = _axis_rules(axes, digits, tokens, reach)
        if _size(rules) <= MOST_COARSE:
            return _product_points(law, bias, axes, rules)
    z, weights = stretched_net(len(bias))
    return pooled_points(law, bias, z @ symmetric_root(law.cov), weights)


def _product_points(law: Law, bias: Array, axes: tuple[Array, Array], rules: list[Rule]) -> Points:
    sigma, vectors = axes
    grids = np.meshgrid(*(z for z, _ in rules), indexing="ij")
    z = np.stack([grid.ravel() for grid in grids], axis=1)
    weights = np.ones(1)
    for _, w in rules:
        weights = np.multiply.outer(weights, w).ravel()
    return pooled_points(law, bias, (z * sigma) @ vectors.T, weights)


def _errors(coarse: Loss, fine: Loss) -> tuple[float, float]:
    """Errors of the fine evaluation from its distance to the coarse one."""
    if fine.method != "quadrature":
        return float(fine.error), float(fine.error)
    gained = 0.1
    parts = [(coarse.m, fine.m), (coarse.r, fine.r)]
    if fine.b is not None and coarse.b is not None:
        parts.append((coarse.b, fine.b))
    gradient = max((float(np.abs(x - y).max(initial=0.0)) for x, y in parts), default=0.0)
    return (
        gained * abs(float(coarse.value - fine.value)) + ROUNDOFF,
        gained * gradient + ROUNDOFF,
    )


def _stacked(results: list[Loss], shape: tuple[int, ...]) -> Loss:
    def gather(name: str) -> Array:
        values = np.array([getattr(result, name) for result in results])
        return values.reshape(shape + values.shape[1:])

    b = None if results[0].b is None else gather("b")
    methods = {result.method for result in results}
    return Loss(
        gather("value"),
        gather("error"),
        gather("m"),
        gather("r"),
        b,
        gather("gradient_error"),
        " and ".join(sorted(methods)),
    )
