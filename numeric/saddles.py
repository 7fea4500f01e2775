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

from numeric.alike import alike_gradient, alike_hessian, alike_loss, first_head
from numeric.errors import FlowError, InputError
from numeric.flow import integrate_flow
from numeric.hessian import Coordinates, factor_hessian
from numeric.loss import population_loss
from numeric.origin import origin_state, require_no_mean
from numeric.prior import marginal
from numeric.quadrature import Array
from numeric.spectrum import Spectrum, hessian_spectrum
from numeric.tabular import Tabular
from numeric.task import Attention, State, Task
from numeric.validate import real_number, whole_number

# Gradient from which Newton's method takes over, and times that the flow may take to get there.
NEAR, FIRST_HORIZON, DOUBLINGS = 1e-3, 25.0, 10
NEWTON_STEPS, HALVINGS, FARTHEST = 12, 6, 0.5
# Gradient of what counts as stationary.
RESTS = 1e-9
# Singular values of a Hessian, relative to the largest, below which a direction is flat.
FLAT = 1e-7
# Gradient along features that are not learned, where the prior is symmetric in them.
SYMMETRIC = 1e-8

Point = tuple[Array, Array, float]
"""Gradient, Hessian, and the gradient's error."""


@dataclass(frozen=True, repr=False)
class Saddle(Tabular):
    """A stationary state.

    Attributes
    ----------
    state : State
        With r = 0.
    learned : tuple of int
        Features with which heads are aligned, counted from 0.
    loss, loss_error, gradient : float
        Value, its error, and the largest entry of the gradient that is left.
    spectrum : Spectrum
        In (m, b, v) and along each residual dimension. Errors include that of the position.
    position_error : float
        Estimate of the distance to the true stationary state.
    """

    state: State
    learned: tuple[int, ...]
    loss: float
    loss_error: float
    gradient: float
    spectrum: Spectrum
    position_error: float

    def rows(self) -> list[list[str]]:
        """Return the rows of its spectrum; see `Tabular`."""
        return self.spectrum.rows()

    def __repr__(self) -> str:
        return (
            f"<Saddle of {len(self.state.m)} heads: m of the first {self.state.m[0]}, loss "
            f"{self.loss:.8g}, index {self.index}>"
        )

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
    require_no_mean(task)
    return unspecialized_saddle(task, attention)


def unspecialized_saddle(task: Task, attention: Attention, start: State | None = None) -> Saddle:
    """Return the stationary state of heads that are all alike, r = 0.

    Without mean signal this is the origin, where training starts, whether or not heads that are alike
    could descend from it; `start` leads elsewhere.

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
    zero = origin_state(task, attention)
    begin = (zero if start is None else start).single(attention, features)

    def alike(x: Array) -> State:
        others = dict(zip(attention.parameters, x[features:], strict=True))
        rows = {name: np.full(heads, value) for name, value in others.items()}
        return replace(zero, m=np.tile(x[:features], (heads, 1)), **rows)

    def descent(_: float, x: Array) -> Array:
        return -heads * alike_gradient(alike(x), task, attention)

    def at(x: Array) -> Point:
        found = alike_hessian(alike(x), task, attention)
        return found.gradient, found.mean, found.gradient_error

    found = None
    if start is not None or not task.prior.mean.any():
        found = _newton(at, first_head(begin, attention))
    if found is None:
        found = _newton(at, _at_rest(descent, first_head(zero, attention)))
    if found is None:
        raise FlowError("flow: heads that are all alike do not come to rest")
    state = alike(found.x)
    learned = [int(f) for f in np.flatnonzero(np.abs(found.x[:features]) > NEAR)]
    found = replace(found, error=found.error * np.sqrt(heads))
    spectrum = hessian_spectrum(task, attention, state, trained=True)
    return _saddle(state, learned, spectrum, found, alike_loss(state, task, attention))


def stationary_state(
    task: Task,
    attention: Attention,
    start: State,
    learned: Sequence[int] | None = None,
    slowest: float = 1e-5,
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
    slowest : float
        Growth rate, among the features that take part, below which a direction counts as at rest.

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
    slowest = real_number("slowest", slowest, minimum=0)
    taking_part = range(features) if learned is None else learned
    state, part, chosen = _restricted(start, taking_part, task, attention)
    horizon = FIRST_HORIZON * attention.heads
    for _ in range(DOUBLINGS):
        path = integrate_flow(state, part, attention, [0.0, horizon])
        state, horizon = path.states.at(-1), 2 * horizon
        layer = Coordinates(state, part, attention, attention.parameters)
        if np.abs(layer.gradient(layer.x)).max(initial=0.0) * attention.heads > NEAR:
            continue
        found = _polished(layer)
        if found is not None and found.lowest > -slowest:
            return _embedded(layer, found, chosen, task)
    raise FlowError(f"flow: it does not come to rest within tau = {horizon:.3g}")


def nearby_saddle(
    task: Task, attention: Attention, state: State, learned: Sequence[int]
) -> Saddle | None:
    """Return the stationary state that Newton's method finds from a state, or None.

    Parameters
    ----------
    task : Task
    attention : Attention
    state : State
        One state, m (H, F), b and v (H,); r is taken as zero.
    learned : sequence of int
        Features, counted from 0, that take part; see `stationary_state`.
    """
    state, part, chosen = _restricted(state, learned, task, attention)
    layer = Coordinates(state, part, attention, attention.parameters)
    found = _polished(layer)
    return None if found is None else _embedded(layer, found, chosen, task)


def _polished(layer: Coordinates) -> "_Found | None":
    """Newton's method from a state, with the features that it has."""

    def at(x: Array) -> Point:
        now = layer.at(x.reshape(layer.x.shape))
        loss = population_loss(now, layer.task, layer.attention, 1e-11)
        hessian = factor_hessian(now, layer.task, layer.attention, trained=True).matrix
        return (
            layer.along(x.reshape(layer.x.shape), loss).ravel(),
            hessian,
            float(loss.gradient_error),
        )

    return _newton(at, layer.x.ravel())


def _embedded(layer: Coordinates, found: "_Found", chosen: Sequence[int], task: Task) -> Saddle:
    """The stationary state among all features."""
    attention = layer.attention
    rest = layer.at(found.x.reshape(layer.x.shape))
    m = np.zeros((attention.heads, task.prior.features))
    m[:, chosen] = rest.m
    state = replace(rest, m=m)
    loss = population_loss(state, task, attention, 1e-10)
    spectrum = hessian_spectrum(task, attention, state, trained=True)
    return _saddle(state, chosen, spectrum, found, (float(loss.value), float(loss.error)))


def _restricted(
    state: State, learned: Sequence[int], task: Task, attention: Attention
) -> tuple[State, Task, list[int]]:
    """The state and the task with some features only, r = 0; those left out must stay at zero."""
    state = state.single(attention, task.prior.features)
    chosen = _chosen(learned, task.prior.features)
    m = np.zeros_like(state.m)
    m[:, chosen] = state.m[:, chosen]
    still = replace(state, m=m, r=np.zeros_like(state.r))
    loss = population_loss(still, task, attention, SYMMETRIC)
    others = np.delete(loss.m, chosen, axis=1)
    if np.abs(others).max(initial=0.0) > SYMMETRIC + float(loss.gradient_error):
        raise InputError("learned", chosen, "all features in which the prior is not symmetric")
    part = task.with_prior(marginal(task.prior, chosen))
    return replace(still, m=m[:, chosen]), part, chosen


def _chosen(learned: Sequence[int], features: int) -> list[int]:
    if not isinstance(learned, Sequence | range) or isinstance(learned, str):
        raise InputError("learned", learned, "a sequence of features")
    chosen = [whole_number("learned", f, 0, features - 1) for f in learned]
    if len(set(chosen)) < len(chosen):
        raise InputError("learned", list(learned), "different features")
    return chosen


def _saddle(
    state: State,
    learned: Sequence[int],
    spectrum: Spectrum,
    found: "_Found",
    loss: tuple[float, float],
) -> Saddle:
    """A stationary state, known as well as Newton's method found it."""
    spectrum = replace(spectrum, errors=spectrum.errors + found.slope * found.error)
    return Saddle(state, tuple(learned), *loss, found.gradient, spectrum, found.error)


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


@dataclass(frozen=True)
class _Found:
    """A stationary point x (n,), its error, how fast the Hessian changes, its lowest eigenvalue, and
    the gradient that is left.
    """

    x: Array
    error: float
    slope: float
    lowest: float
    gradient: float


def _newton(at: Callable[[Array], Point], x: Array) -> _Found | None:
    """Newton's method, or None where it does not converge.

    Flat directions, such as rotations that leave the loss as it is, are left alone.
    """
    gradient, hessian, error = at(x)
    slope = 0.0
    for _ in range(NEWTON_STEPS):
        size = float(np.linalg.norm(gradient))
        if size <= error:
            break
        inverse = np.linalg.pinv(hessian, rcond=FLAT, hermitian=True)
        step = -inverse @ gradient
        whole = float(np.linalg.norm(step))
        if whole > FARTHEST * (1 + float(np.linalg.norm(x))):
            return None
        for _ in range(HALVINGS):
            found = at(x + step)
            # Measured in steps, curved valleys do not mislead (Deuflhard's natural monotonicity).
            if np.linalg.norm(inverse @ found[0]) < whole:
                break
            step = step / 4
        else:
            break  # as precise as the gradient is
        length = float(np.linalg.norm(step))
        slope = max(slope, float(np.linalg.norm(found[1] - hessian, 2)) / max(length, 1e-4))
        x = x + step
        gradient, hessian, error = found
    size = float(np.linalg.norm(gradient))
    if size > max(RESTS, 10 * error):
        return None
    inverse = np.linalg.pinv(hessian, rcond=FLAT, hermitian=True)
    distance = float(np.linalg.norm(inverse, 2)) * (size + error * np.sqrt(len(x)))
    lowest = float(np.linalg.eigvalsh(hessian).min(initial=np.inf))
    return _Found(x, distance, slope, lowest, float(np.abs(gradient).max(initial=0.0)))
