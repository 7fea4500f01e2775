"""Stationary states of the flow on training's path: the saddles where it waits, and the minimum.

A prior that is symmetric in a feature leaves the states without that feature invariant. So the flow of
the features that are learned already, without the others, ends on a saddle of the whole loss; Newton's
method with the exact gradient and Hessian makes it precise. The overlap r is zero at all of them:
residual directions carry no signal. Without mean signal the first saddle is the origin; with one, heads
that are all alike descend to the unspecialized saddle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.integrate import solve_ivp

from numeric.alike import alike_gradient, alike_hessian
from numeric.errors import FlowError, InputError
from numeric.flow import integrate_flow
from numeric.hessian import Coordinates, factor_hessian
from numeric.loss import Loss, population_loss
from numeric.origin import at_rest
from numeric.prior import marginal
from numeric.quadrature import Array
from numeric.spectrum import Spectrum, hessian_spectrum
from numeric.task import Attention, State, Task
from numeric.validate import whole_number

# Gradient from which Newton's method takes over, and times that the flow may take to get there.
NEAR, FIRST_HORIZON, DOUBLINGS = 1e-3, 25.0, 14
NEWTON_STEPS = 30
# Singular values of a Hessian, relative to the largest, below which a direction is flat.
FLAT = 1e-7
# Gradient along features that are not learned, where the prior is symmetric in them.
SYMMETRIC = 1e-8


@dataclass(frozen=True)
class Saddle:
    """A stationary state.

    Attributes
    ----------
    state : State
        With r = 0.
    learned : tuple of int
        Features with which heads are aligned, counted from 0.
    loss : Loss
        Value and gradient there, with errors.
    spectrum : Spectrum
        In (m, b, v) and along each residual dimension. Errors include that of the position.
    position_error : float
        Estimate of the distance to the true stationary state.
    """

    state: State
    learned: tuple[int, ...]
    loss: Loss
    spectrum: Spectrum
    position_error: float

    @property
    def index(self) -> int:
        """Number of unstable directions; residual ones count once per residual dimension."""
        return self.spectrum.index


def origin_saddle(task: Task, attention: Attention) -> Saddle:
    """Return the saddle at m = 0, r = 0 of a prior without mean.

    Raises
    ------
    InputError
        If the prior has a mean: then the origin is not stationary.
    """
    if np.abs(task.prior.mean).max(initial=0.0) > 0:
        raise InputError("prior", task.prior.mean, "no mean signal, so that the origin is a saddle")
    zero = State(np.zeros((attention.heads, task.prior.features)), np.zeros((attention.heads,) * 2))
    return _saddle(at_rest(zero, task, attention), (), task, attention, 0.0, 0.0)


def unspecialized_saddle(task: Task, attention: Attention, start: State | None = None) -> Saddle:
    """Return the stationary state of heads that are all alike, r = 0.

    Parameters
    ----------
    task : Task
    attention : Attention
        Any number of heads: the cost is that of two.
    start : State, optional
        A state nearby, such as the saddle of a similar task; only its first head counts.

    Raises
    ------
    FlowError
        If the descent does not come to rest.
    """
    heads, features = attention.heads, task.prior.features
    zero = at_rest(State(np.zeros((heads, features)), np.zeros((heads, heads))), task, attention)
    begin = (zero if start is None else start).single(attention, features)

    def alike(x: Array) -> State:
        others = dict(zip(attention.parameters, x[features:], strict=True))
        rows = {name: np.full(heads, value) for name, value in others.items()}
        return replace(zero, m=np.tile(x[:features], (heads, 1)), **rows)

    def descent(_: float, x: Array) -> Array:
        return -heads * alike_gradient(alike(x), task, attention)

    x0 = np.concatenate([begin.m[0], *(getattr(begin, p)[:1] for p in attention.parameters)])
    if start is None and np.abs(task.prior.mean).max(initial=0.0) > 0:
        x0 = _at_rest(descent, x0)

    def at(x: Array) -> tuple[Array, Array, float]:
        found = alike_hessian(alike(x), task, attention)
        return found.gradient, found.mean, found.gradient_error

    x, error, slope = _newton(at, x0)
    learned = tuple(int(f) for f in np.flatnonzero(np.abs(x[:features]) > NEAR))
    return _saddle(alike(x), learned, task, attention, error * np.sqrt(heads), slope)


def stationary_state(
    task: Task, attention: Attention, start: State, learned: Sequence[int] | None = None
) -> Saddle:
    """Follow the flow to where it comes to rest, with some features only, and make it precise.

    Parameters
    ----------
    task : Task
    attention : Attention
    start : State
        One state, m (H, F), b and v (H,); r is taken as zero.
    learned : sequence of int, optional
        Features, counted from 0, that take part; m is zero along the others, in which the prior must
        be symmetric. All of them by default: the result is then a minimum, as a rule.

    Returns
    -------
    Saddle

    Raises
    ------
    InputError
        If `learned` are not different features, or the others do not stay at zero.
    FlowError
        If the flow does not come to rest.
    """
    features = task.prior.features
    start = start.single(attention, features)
    chosen = _chosen(range(features) if learned is None else learned, features)
    part = Task(task.tokens, marginal(task.prior, chosen))
    r = np.zeros_like(start.r)
    state = replace(start, m=start.m[:, chosen], r=r)
    state = _relaxed(state, part, attention)
    layer = Coordinates(state, part, attention, attention.parameters)

    def at(x: Array) -> tuple[Array, Array, float]:
        now = layer.at(x.reshape(layer.x.shape))
        loss = population_loss(now, part, attention, 1e-11)
        others = [getattr(loss, name)[:, None] for name in attention.parameters]
        gradient = np.concatenate([loss.m, *others], axis=1).ravel()
        hessian = factor_hessian(now, part, attention, trained=True).matrix
        return gradient, hessian, float(loss.gradient_error)

    x, error, slope = _newton(at, layer.x.ravel())
    found = layer.at(x.reshape(layer.x.shape))
    m = np.zeros((attention.heads, features))
    m[:, chosen] = found.m
    saddle = _saddle(replace(found, m=m), tuple(chosen), task, attention, error, slope)
    others = np.delete(saddle.loss.m, chosen, axis=1)
    if np.abs(others).max(initial=0.0) > SYMMETRIC + float(saddle.loss.gradient_error):
        raise InputError("learned", chosen, "all features in which the prior is not symmetric")
    return saddle


def _chosen(learned: Sequence[int], features: int) -> list[int]:
    chosen = [whole_number("learned", f, 0, features - 1) for f in learned]
    if len(set(chosen)) < len(chosen):
        raise InputError("learned", list(learned), "different features")
    return chosen


def _saddle(
    state: State,
    learned: tuple[int, ...],
    task: Task,
    attention: Attention,
    error: float,
    slope: float,
) -> Saddle:
    """A stationary state known to `error`, where the Hessian changes by `slope` per unit length."""
    spectrum = hessian_spectrum(task, attention, state, trained=True)
    spectrum = replace(spectrum, errors=spectrum.errors + slope * error)
    loss = population_loss(state, task, attention, 1e-10)
    return Saddle(state, learned, loss, spectrum, error)


def _relaxed(state: State, task: Task, attention: Attention) -> State:
    """Follow the flow until the gradient is small."""
    horizon = FIRST_HORIZON * attention.heads
    for _ in range(DOUBLINGS):
        path = integrate_flow(state, task, attention, [0.0, horizon])
        state = path.states.at(-1)
        loss = population_loss(state, task, attention, 1e-7)
        parts = [x for x in (loss.m, loss.b, loss.v) if x is not None]
        if max(float(np.abs(x).max(initial=0.0)) for x in parts) * attention.heads < NEAR:
            return state
        horizon *= 2
    raise FlowError(f"flow: it does not come to rest within tau = {2 * horizon:.3g}")


def _at_rest(descent: Callable[[float, Array], Array], x: Array) -> Array:
    """Descend a gradient until it is small."""
    horizon = FIRST_HORIZON
    for _ in range(DOUBLINGS):
        solution = solve_ivp(descent, (0.0, horizon), x, method="LSODA", rtol=1e-6, atol=1e-8)
        x = solution.y[:, -1]
        if solution.status < 0 or not np.isfinite(x).all():
            break
        if np.abs(descent(0.0, x)).max() < NEAR:
            return x
        horizon *= 2
    raise FlowError("flow: heads that are all alike do not come to rest")


def _newton(
    at: Callable[[Array], tuple[Array, Array, float]], x: Array
) -> tuple[Array, float, float]:
    """Newton's method: the stationary point, its error, and how fast the Hessian changes there.

    Flat directions, such as rotations that leave the loss as it is, are left alone.
    """
    gradient, hessian, error = at(x)
    slope = 0.0
    for _ in range(NEWTON_STEPS):
        inverse = np.linalg.pinv(hessian, rcond=FLAT, hermitian=True)
        step = -inverse @ gradient
        size = float(np.linalg.norm(gradient))
        if size <= error:
            break
        for _ in range(NEWTON_STEPS):
            found = at(x + step)
            if np.linalg.norm(found[0]) < size:
                break
            step = step / 4
        else:
            break  # as precise as the gradient is
        length = float(np.linalg.norm(step))
        slope = max(slope, float(np.linalg.norm(found[1] - hessian, 2)) / max(length, 1e-4))
        x = x + step
        gradient, hessian, error = found
    inverse = np.linalg.pinv(hessian, rcond=FLAT, hermitian=True)
    distance = float(np.linalg.norm(inverse, 2)) * (
        float(np.linalg.norm(gradient)) + error * np.sqrt(len(x))
    )
    return x, distance, slope
