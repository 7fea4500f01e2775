"""Second-order expansion of the population loss at the origin, for any biases and values.

`derive.expansion` derives what the fluctuations of one token's weight add to the loss; here they are
written in the order parameters, head by head.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from numeric._generated import order_parameters
from numeric.activation import Kernels
from numeric.errors import InputError, QuadratureError, Verbatim
from numeric.law import weight_of
from numeric.quadrature import Array
from numeric.task import Attention, State, Task

# Attention at the origin that values can make up for.
LEAST = 1e-50


@dataclass(frozen=True)
class Expansion:
    """A second-order expansion with its gradient.

    Attributes
    ----------
    value : float
    m, r : (H, F), (H, H) arrays
        Derivatives in m, and in r (symmetric, ``dE = tr(G dr)``).
    """

    value: float
    m: Array
    r: Array


def origin_expansion(state: State, task: Task, attention: Attention) -> Expansion:
    """Return the loss to second order in (m, sqrt r), with exact b and v.

    Parameters
    ----------
    state : State
        One state, m (H, F), r (H, H), b and v (H,).
    task : Task
    attention : Attention

    Returns
    -------
    Expansion
    """
    state = state.check(attention, task.prior.features)
    at = _Origin(state, task, attention)
    known = (float(attention.kernel.NORMALIZATION != "none"), task.tokens)
    value, *single = order_parameters.origin_share(at.share, at.value @ at.share, *known)
    pairs = order_parameters.origin_pair(at.share[:, None], at.share, *known)
    result, in_m, in_r = float(value[0]), np.zeros_like(state.m), np.zeros_like(state.r)
    unit = np.eye(task.prior.features)
    laws = (
        (task.prior.mean, unit + task.prior.second_moment, *single[:2], pairs[0]),
        (np.zeros(task.prior.features), unit, *single[2:], pairs[1]),
    )
    for mean, moment, linear, own, pair in laws:
        gain = (at.value * linear) @ at.together
        square = np.diag(at.value * own) + np.outer(at.value, at.value) * pair
        g = gain * at.slope
        Gamma = np.outer(at.slope, at.slope) * (at.together.T @ square @ at.together)
        Gamma += np.diag(gain * at.curvature)
        result += float(g @ state.m @ mean)
        result += float(np.sum(Gamma * (state.m @ moment @ state.m.T + state.r)))
        share_m, share_r = order_parameters.law_gradient(
            state.m, mean[:, None], moment, g[:, None], Gamma
        )
        in_m, in_r = in_m + share_m, in_r + share_r
    return Expansion(result, in_m, in_r)


def origin_attention(state: State, task: Task, attention: Attention) -> float:
    """Return the attention of every token at m = 0, r = 0.

    The loss of one attention for all is least where they sum to one; there neither biases nor values
    drift.
    """
    at = _Origin(state.check(attention, task.prior.features), task, attention)
    return float(at.value @ at.share)


def origin_state(task: Task, attention: Attention) -> State:
    """Return m = 0, r = 0 with b = 0 and equal values, `at_rest`."""
    heads, features = attention.heads, task.prior.features
    return at_rest(State(np.zeros((heads, features)), np.zeros((heads, heads))), task, attention)


def require_no_mean(task: Task) -> None:
    """Refuse a prior with a mean signal.

    Raises
    ------
    InputError
        If the prior has one: then the origin is no saddle.
    """
    if np.abs(task.prior.mean).max(initial=0.0) > 0:
        words = "no mean signal, so that the origin is a saddle"
        raise InputError("prior", Verbatim(f"mean {task.prior.mean.tolist()}"), words)


def at_rest(state: State, task: Task, attention: Attention) -> State:
    """Scale trained values so that nothing trained beside the keys drifts at m = 0, r = 0.

    Parameters
    ----------
    state : State
        One state; without trained values, or if all vanish, it is returned as it is.
    task : Task
    attention : Attention

    Returns
    -------
    State
        All tokens' attention sums to one at the origin.
    """
    state = state.check(attention, task.prior.features)
    total = task.tokens * origin_attention(state, task, attention)
    if state.v is None or total == 0:
        return state
    if not LEAST < abs(total) < 1 / LEAST:
        raise QuadratureError(
            f"activation: found weights whose attention is {total:.3g} at chi = 0, expected "
            f"{LEAST:g} to {1 / LEAST:g}"
        )
    return replace(state, v=state.v / total)


def origin_eigenvalues(
    state: State, task: Task, attention: Attention, nu: float
) -> tuple[float, float, float, float]:
    """Return the Hessian's eigenvalues at m = 0, r = 0 along a feature of second moment `nu`.

    Parameters
    ----------
    state : State
        All heads have the bias and the value of the first one.
    task : Task
    attention : Attention
    nu : float

    Returns
    -------
    mean, difference, residual_mean, residual_difference : float
    """
    trained = (float(getattr(state, name)[0]) for name in attention.parameters)
    with np.errstate(all="ignore"):
        found = attention.kernel.origin_eigenvalues(task.tokens, attention.heads, nu, *trained)
    mean, difference, residual_mean, residual_difference = map(float, found)
    if not np.isfinite(found).all():
        raise QuadratureError("activation: found a weight that is zero or not smooth at chi = 0")
    return mean, difference, residual_mean, residual_difference


class _Origin:
    """A token's weight at vanishing scores, all tokens being equal.

    ``share`` (R,) and ``value`` (R,) belong to the denominators, of which ``together`` (R, H) sums
    the heads; ``slope`` and ``curvature`` (H,) are what ``chi`` and ``chi^2`` add to a head's share.
    """

    def __init__(self, state: State, task: Task, attention: Attention) -> None:
        kernel, heads = attention.kernel, attention.heads
        pooled = kernel.NORMALIZATION == "pooled"
        bias, values = state.biases_and_values(attention)
        weight, first, second, _ = weight_of(kernel, np.zeros(heads), bias)
        share = _shares(weight, kernel, task.tokens)
        scale = np.ones(heads) if kernel.NORMALIZATION == "none" else share
        self.slope, self.curvature = scale * first, scale * second / 2
        self.together = np.ones((1, heads)) if pooled else np.eye(heads)
        self.share = self.together @ share
        self.value = np.ones(1) if pooled else values


def _shares(weight: Array, kernel: Kernels, tokens: int) -> Array:
    """Share of a token's weight in each head, all tokens being equal; ``weight`` is its logarithm."""
    if kernel.NORMALIZATION == "none":
        return weight
    total = logsumexp(weight) if kernel.NORMALIZATION == "pooled" else weight
    background = np.log(kernel.BACKGROUND) if kernel.BACKGROUND else -np.inf
    with np.errstate(invalid="ignore"):
        return np.exp(weight - np.logaddexp(total + np.log(tokens), background))
