"""Exact population loss and its gradient, with an error.

``E = 1 - 2 A + B`` (`derive.task` section 1) by race integrals, or by plain moments of the scores where
weights are not normalized. Nothing is sampled unless a pooled activation has more score dimensions
than a product rule can cover; then the token's Gaussian is integrated by randomized quasi-Monte Carlo,
and the sampling error is part of the reported one.
"""

from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from numeric._generated import order_parameters
from numeric.errors import QuadratureError
from numeric.heads import head_races
from numeric.law import Law, token_laws
from numeric.pooled import net_points, pooled_races, pooled_time, product_points, product_rules
from numeric.quadrature import ROUNDOFF, Array, Rule
from numeric.race import Points
from numeric.refine import STEP, refine
from numeric.task import Attention, State, Task
from numeric.validate import real_number

# Points of a pooled token's product rule: for one evaluation, and for a step of a flow.
MOST_POINTS, FLOW_POINTS = 600_000, 40_000
# Quasi-Monte Carlo points of one net, where that is not enough.
NET_SIZE, LARGEST_NET, SAMPLED_DIGITS = 2048, 32_768, 7.0
# Error of a product rule up to which sampling is not tried.
SAMPLING = 1e-6
LEAST_DIGITS, MOST_DIGITS = 4.0, 14.0


@dataclass(frozen=True)
class Loss:
    """A population loss with its gradient.

    Attributes
    ----------
    value, error : float
        ``E`` and an estimate of its absolute error (arrays for a batch of states).
    m, r : arrays
        ``dE/dm`` (H, F) and ``dE/dr`` (H, H; symmetric, ``dE = tr(G dr)``).
    b, v : arrays or None
        ``dE/db`` (H,) and ``dE/dv`` (H,), where they are trained.
    gradient_error : float
        Estimate of the largest absolute error of a gradient entry.
    method : str
        ``"quadrature"``, or ``"quasi-Monte Carlo"``.
    scale : float
        Size of the terms that cancel in the value, of order one for normalized weights: no digit
        below 1e-15 of it is known.
    """

    value: float | Array
    error: float | Array
    m: Array
    r: Array
    b: Array | None
    v: Array | None
    gradient_error: float | Array
    method: str
    scale: float | Array = 1.0


def population_loss(state: State, task: Task, attention: Attention, tol: float = 1e-8) -> Loss:
    """Return the population loss, its gradient and their errors.

    Parameters
    ----------
    state : State
        Order parameters, m (..., H, F), r (..., H, H), b and v (..., H); a batch is evaluated one by
        one.
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
        If the scores are so spread that no affordable rule resolves them. One that can be afforded, but
        is not fine enough, shows in the error.

    Notes
    -----
    `derive.task` sections 1 and 4. The loss is evaluated with three numbers of digits at least, and the
    error is extrapolated from the rate at which their differences shrink; where they do not, it says so.
    """
    tol = real_number("tol", tol, positive=True)
    state = state.check(attention, task.prior.features)
    if state.batch_shape:
        if 0 in state.batch_shape:
            return _no_losses(state)
        results = [
            population_loss(state.at(index), task, attention, tol)
            for index in np.ndindex(*state.batch_shape)
        ]
        return _stacked(results, state.batch_shape)

    pooled = attention.kernel.NORMALIZATION == "pooled"

    def at(digits: float) -> Loss:
        return evaluate(state, task, attention, max(digits, 2.0), MOST_POINTS, 0)

    def distances(a: Loss, b: Loss) -> tuple[float, float]:
        return abs(float(a.value) - float(b.value)), gradient_distance(a, b)

    result = None
    with suppress(QuadratureError) if pooled else nullcontext():
        fine, (error, gradient_error) = refine(
            at,
            distances,
            tol,
            1 - np.log10(tol),
            LEAST_DIGITS,
            MOST_DIGITS,
            lambda loss: float(loss.scale),
        )
        result = replace(
            fine,
            error=error + float(fine.error),
            gradient_error=gradient_error + float(fine.gradient_error),
        )
    if result is None or (pooled and result.error > max(tol, SAMPLING)):
        # A product rule is out of its reach; sampling may do better.
        sampled = _sampled(state, task, attention, tol)
        if result is None or sampled.error < result.error:
            result = sampled
    numbers = (result.value, result.error, result.gradient_error)
    if not np.isfinite([float(x) for x in numbers]).all():
        raise QuadratureError(
            "scores: the loss is not finite; the score deviations are out of reach"
        )
    return result


def _sampled(state: State, task: Task, attention: Attention, tol: float) -> Loss:
    """Evaluate by nets of growing size."""
    size = NET_SIZE
    while True:
        result = evaluate(state, task, attention, SAMPLED_DIGITS, 0, size)
        if result.error <= tol or size >= LARGEST_NET:
            return result
        size *= 4


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
    # Overflow shows in the result, which is checked where it is used.
    with np.errstate(over="ignore", invalid="ignore"):
        return _evaluate(state, task, attention, digits, most_points, net_size)


def _evaluate(
    state: State,
    task: Task,
    attention: Attention,
    digits: float,
    most_points: int,
    net_size: int,
) -> Loss:
    kernel, heads = attention.kernel, attention.heads
    bias, v = state.biases_and_values(attention)
    if attention.ignores_scores(task.tokens):
        excess = 0.0 if kernel.NORMALIZATION == "pooled" else float(v.sum()) - 1
        return Loss(
            excess**2,
            0.0,
            np.zeros_like(state.m),
            np.zeros_like(state.r),
            np.zeros(heads) if "b" in kernel.PARAMETERS else None,
            np.full(heads, 2 * excess) if "v" in kernel.PARAMETERS else None,
            0.0,
            "quadrature",
        )
    null, relevant = token_laws(state, task, attention)
    tokens = float(task.tokens)

    def loss(value: float, in_v: Array | None = None, size: float = 1.0) -> Loss:
        m, r, b = _order_parameter_gradient(state, task, null, relevant)
        # Scores lose the digits that a large bias takes.
        rounding = ROUNDOFF * size + EPSILON * float(np.abs(bias).max())
        return Loss(
            1 + value,
            rounding,
            m,
            r,
            b if "b" in kernel.PARAMETERS else None,
            in_v if "v" in kernel.PARAMETERS else None,
            rounding,
            "quadrature",
            size,
        )

    if kernel.NORMALIZATION != "pooled":
        a, b = head_races(null, relevant, bias, kernel, tokens, v, digits)
        size = 1 + float(np.abs(v) @ np.abs(b) @ np.abs(v) + 2 * np.abs(v) @ np.abs(a))
        return loss(float(v @ b @ v - 2 * v @ a), 2 * (b @ v - a), size)
    rules = product_rules(null, relevant, tokens, digits, most_points)
    time = pooled_time(null, relevant, bias, kernel, tokens, digits)
    if rules is not None:
        points = [
            product_points(law, bias, kernel, rule)
            for law, rule in zip((null, *relevant), rules, strict=True)
        ]
        return loss(pooled_races(null, relevant, points, time, tokens))
    if net_size == 0:
        raise QuadratureError(
            f"scores: a product rule of {digits:.1f} digits has more than {most_points} points; "
            "the score deviations are out of its reach"
        )

    def sampled(points: list[Points], time: Rule) -> Loss:
        for law in (null, *relevant):
            law.clear()
        return loss(pooled_races(null, relevant, points, time, tokens))

    nets = net_points(null, relevant, bias, kernel, tokens, net_size)
    first = next(nets)
    result = _averaged([sampled(first, time), *(sampled(points, time) for points in nets)])
    # All nets share the race times, so their spread does not tell those times' error.
    coarser = pooled_time(null, relevant, bias, kernel, tokens, digits - STEP)
    one, other = sampled(first, time), sampled(first, coarser)
    return replace(
        result,
        error=float(result.error) + abs(float(one.value) - float(other.value)),
        gradient_error=float(result.gradient_error) + gradient_distance(one, other),
    )


GRADIENT = ("m", "r", "b", "v")
EPSILON = float(np.finfo(float).eps)


def _averaged(found: list[Loss]) -> Loss:
    """Mean over independent nets; errors are the half-widths of a 99.9 % confidence interval."""
    spread = float(stdtrit(len(found) - 1, 0.9995)) / np.sqrt(len(found))

    def error(name: str) -> float:
        values = [getattr(x, name) for x in found]
        return (
            0.0 if values[0] is None else float(spread * np.std(values, 0, ddof=1).max(initial=0))
        )

    means: dict[str, Any] = {
        name: None
        if getattr(found[0], name) is None
        else np.mean([getattr(x, name) for x in found], 0)
        for name in GRADIENT
    }
    return Loss(
        float(np.mean([x.value for x in found])),
        error("value") + float(found[0].error),
        **means,
        gradient_error=max(map(error, GRADIENT)) + float(found[0].gradient_error),
        method="quasi-Monte Carlo",
    )


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


def gradient_distance(a: Loss, b: Loss) -> float:
    """Largest difference of two gradients' entries."""
    return max(
        float(np.abs(x - getattr(b, name)).max(initial=0.0))
        for name in GRADIENT
        if (x := getattr(a, name)) is not None
    )


def _no_losses(state: State) -> Loss:
    """The losses of an empty batch."""
    none = np.zeros(state.batch_shape)
    return Loss(none, none, state.m, state.r, state.b, state.v, none, "quadrature", none)


def _stacked(results: list[Loss], shape: tuple[int, ...]) -> Loss:
    def gather(name: str) -> Array:
        values = np.array([getattr(result, name) for result in results])
        return values.reshape(shape + values.shape[1:])

    methods = {result.method for result in results}
    parts: dict[str, Any] = {
        name: None if getattr(results[0], name) is None else gather(name)
        for name in ("value", "error", *GRADIENT, "gradient_error", "scale")
    }
    return Loss(**parts, method=" and ".join(sorted(methods)))
