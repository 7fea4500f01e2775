"""Exact population loss and its gradient, with an error.

``E = 1 - 2 A + B`` (`derive.task` section 1) by race integrals. Nothing is sampled unless a pooled
activation has more score dimensions than a product rule can cover; then the token's Gaussian is
integrated by randomized quasi-Monte Carlo and the standard error is part of the reported one.
"""

from dataclasses import dataclass, replace

import numpy as np

from numeric._generated import ACTIVATIONS, order_parameters
from numeric.errors import QuadratureError
from numeric.pairs import pair_races, pair_width
from numeric.pooled import net_points, pooled_races, pooled_time, product_points, product_rules
from numeric.quadrature import Array, extrapolated_error
from numeric.race import Law, marginal_points, race_grid, single_races
from numeric.task import Attention, State, Task
from numeric.validate import real_number

# Points of a pooled token's product rule: for one evaluation, and for a step of a flow.
MOST_POINTS, FLOW_POINTS = 600_000, 40_000
# Quasi-Monte Carlo points of one net, where that is not enough.
NET_SIZE, LARGEST_NET, SAMPLED_DIGITS = 2048, 32_768, 7.0
LEAST_DIGITS, MOST_DIGITS = 4.0, 14.0
# Scores beyond this are certainly out of reach, and their squares might overflow.
LARGEST_SCORE = 1e6


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
        If the scores are so spread that no affordable rule reaches even four digits.

    Notes
    -----
    `derive.task` sections 1 and 4. The loss is evaluated with three numbers of digits, and the
    error is extrapolated from the rate at which their differences shrink; where they do not, it says so.
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
        return evaluate(state, task, attention, max(digits, 2.0), MOST_POINTS, net_size)

    pooled = ACTIVATIONS[attention.activation].NORMALIZATION == "pooled"
    digits = float(np.clip(1 - np.log10(tol), LEAST_DIGITS, MOST_DIGITS - 2))
    net = 0
    while True:
        try:
            steps = [at(digits - 3, net), at(digits - 1.5, net), at(digits, net)]
            break
        except QuadratureError:
            # Fewer digits, then sampling where there is some to be had.
            if digits >= LEAST_DIGITS + 1:
                digits -= 1
            elif pooled and net == 0:
                digits, net = SAMPLED_DIGITS, NET_SIZE
            else:
                raise
    while True:
        error, gradient_error = _errors(steps)
        if error <= tol or (net >= LARGEST_NET if net else digits >= MOST_DIGITS):
            break
        try:
            if net:
                net = 4 * net
                steps.append(at(digits, net))
            else:
                digits = min(digits + 1.5, MOST_DIGITS)
                steps.append(at(digits, 0))
        except QuadratureError:
            # Out of reach: the error of what could be afforded is reported.
            break
    if not np.isfinite([float(steps[-1].value), error]).all():
        raise QuadratureError(
            "scores: the loss is not finite; the score deviations are out of reach"
        )
    return replace(steps[-1], error=error, gradient_error=gradient_error)


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
        return Loss(
            0.0,
            0.0,
            np.zeros_like(state.m),
            np.zeros_like(state.r),
            b,
            0.0,
            "quadrature",
        )
    null, relevant = token_laws(state, task)
    tokens = float(task.tokens)

    def loss(value: float, error: float = 0.0, method: str = "quadrature") -> Loss:
        m, r, b = _order_parameter_gradient(state, task, null, relevant)
        in_b = b if "b" in kernel.PARAMETERS else None
        return Loss(1 + value, error, m, r, in_b, error, method)

    if kernel.NORMALIZATION == "per-head":
        return loss(_per_head(null, relevant, tokens, digits))
    assert state.b is not None
    rules = product_rules(null, relevant, tokens, digits, most_points)
    time = pooled_time(null, relevant, state.b, tokens, digits)
    if rules is not None:
        points = [
            product_points(law, state.b, rule)
            for law, rule in zip((null, *relevant), rules, strict=True)
        ]
        return loss(pooled_races(null, relevant, points, time, tokens))
    if net_size == 0:
        raise QuadratureError(
            f"scores: a product rule of {digits:.1f} digits has more than {most_points} points; "
            "the score deviations are out of its reach"
        )
    found = []
    for points in net_points(null, relevant, state.b, net_size):
        for law in (null, *relevant):
            law.clear()
        found.append(loss(pooled_races(null, relevant, points, time, tokens)))
    return _averaged(found)


def _averaged(found: list[Loss]) -> Loss:
    """Mean over independent nets, with standard errors of the loss and of the gradient."""

    def mean(name: str) -> Array:
        return np.mean([getattr(x, name) for x in found], axis=0)

    def error(name: str) -> float:
        spread = np.std([getattr(x, name) for x in found], axis=0, ddof=1) / np.sqrt(len(found))
        return float(spread.max(initial=0.0))

    biased = found[0].b is not None
    gradient_error = max(error(name) for name in ("m", "r", *(("b",) if biased else ())))
    return Loss(
        float(mean("value")),
        error("value"),
        mean("m"),
        mean("r"),
        mean("b") if biased else None,
        gradient_error,
        "quasi-Monte Carlo",
    )


def token_laws(state: State, task: Task) -> tuple[Law, list[Law]]:
    """Return the Gaussian score law of an irrelevant token and the relevant token's mixture."""
    m, r = state.m, state.r
    with np.errstate(over="ignore", invalid="ignore"):
        null = Law(1.0, np.zeros(len(m)), m @ m.T + r)
        relevant = [
            Law(float(weight), m @ mean, null.cov + m @ covariance @ m.T)
            for weight, mean, covariance in zip(*task.prior.components(), strict=True)
            if weight > 0
        ]
    for law in (null, *relevant):
        size = max(np.abs(law.mean).max(initial=0.0), np.sqrt(np.diag(law.cov).max(initial=0.0)))
        if not size <= LARGEST_SCORE:
            raise QuadratureError(
                f"scores: found means or deviations of {size:.3g}, expected at most {LARGEST_SCORE:g}"
            )
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
    in_m, in_r, in_b = (
        np.zeros_like(state.m),
        np.zeros_like(state.r),
        np.zeros(len(state.m)),
    )
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
    null_coarse, *coarse = (marginal_points(x, 3.0, tokens, digits) for x in (null, *relevant))
    located = list(zip(mix, coarse, strict=True))
    time = race_grid(null_coarse, located, tokens, digits)
    points = [marginal_points(law, digits, tokens) for law in (null, *relevant)]
    value = np.full(heads, 1 / heads)
    loss = single_races(null, relevant, points[0], points[1:], time, tokens, value, value**2)
    if heads > 1:
        time = race_grid(null_coarse, located, tokens, digits, pair_width(null, relevant))
        loss += pair_races(null, relevant, time, tokens, 1 / heads**2, digits)
    return loss


def _errors(steps: list[Loss]) -> tuple[float, float]:
    """Errors of the last of several evaluations of growing resolution."""
    coarse, middle, fine = steps[-3:]
    if fine.method != "quadrature":
        return float(fine.error), float(fine.gradient_error)
    return (
        extrapolated_error(
            abs(float(middle.value - coarse.value)), abs(float(fine.value - middle.value))
        ),
        extrapolated_error(gradient_distance(coarse, middle), gradient_distance(middle, fine)),
    )


def gradient_distance(a: Loss, b: Loss) -> float:
    """Largest difference of two gradients' entries."""
    pairs = [(a.m, b.m), (a.r, b.r)]
    if a.b is not None and b.b is not None:
        pairs.append((a.b, b.b))
    return max(float(np.abs(x - y).max(initial=0.0)) for x, y in pairs)


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
