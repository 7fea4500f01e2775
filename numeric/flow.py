"""Order-parameter flow: the D -> infinity limit of training.

``dm/dtau = -dE/dm``, ``dr/dtau = -2 (G r + r G) + kappa V``, ``db/dtau = -dE/db`` and ``dv/dtau =
-dE/dv`` (`derive.task` section 3). At kappa = 0 a factor rho of ``r = rho rho^T`` flows, ``drho/dtau =
-2 G rho``, so r is positive semi-definite by construction and keeps its rank. At kappa > 0 the overlap
itself flows; V is positive semi-definite, so r is in exact arithmetic, and its projection onto that cone
removes what integration leaves below zero.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp

from numeric._generated import order_parameters
from numeric.errors import FlowError, InputError
from numeric.loss import Loss, evaluate, gradient_distance
from numeric.noise import noise_matrix
from numeric.quadrature import Array, principal_axes
from numeric.spectrum import hessian_spectrum
from numeric.tabular import Tabular
from numeric.task import Attention, State, Task
from numeric.validate import real_array, real_number

THRESHOLD = 1.0
DROP = 0.1
ON_SADDLE = "on a saddle: direction undetermined"
STATIONARY = "stationary: the alignments do not move"
COMPLETED = "completed"
# Points of a product rule when the loss of a flow's state is checked.
CHECK_POINTS = 400_000
# A state this large diverges.
LARGEST_STATE = 1e50
# Rounding in a derivative of order one: the solver need not follow it.
ROUNDING = 1e-17
# Alignments below which the gradient is linear in them, and the part of it that may be rounding.
LINEAR, LOST = 1e-6, 0.01
# Shortest time between two records.
SHORTEST = 1e-12
METHODS = ("LSODA", "Radau", "BDF", "RK45", "DOP853")


@dataclass(frozen=True)
class Excursion:
    """A learned feature's later loss: its norm fell by a fraction `drop` below its peak at `tau`."""

    feature: int
    tau: float
    drop: float


@dataclass(frozen=True, repr=False)
class Flow(Tabular):
    """A solution of the flow.

    Attributes
    ----------
    tau : (n,) array
    loss : (n,) array
    m, r : (n, H, F), (n, H, H) arrays
    b, v : (n, H) arrays or None
    first_passage : (F,) array
        First tau with ``norm(m[:, f]) > threshold``; NaN if there is none.
    excursions : tuple of Excursion
        Drops of more than 10 % after a first passage.
    loss_error, gradient_error : float
        Largest errors of the loss, and of an entry of its gradient, at checked times.
    noise_error : float
        Largest standard error of an entry of ``kappa V`` at checked times.
    status : str
        ``"completed"``, or that the flow started on a saddle and cannot leave it, or that the
        alignments do not move at all.
    """

    tau: Array
    loss: Array
    m: Array
    r: Array
    b: Array | None
    v: Array | None
    first_passage: Array
    excursions: tuple[Excursion, ...]
    loss_error: float
    gradient_error: float
    noise_error: float
    status: str
    kappa: float = 0.0
    threshold: float = field(default=THRESHOLD)

    @property
    def states(self) -> State:
        """All states as one batch."""
        return State(self.m, self.r, self.b, self.v)

    def rows(self) -> list[list[str]]:
        """Return a row for each feature; see `Tabular`."""
        norms = np.linalg.norm(self.m, axis=1)
        return [
            ["feature", f"first passage of {self.threshold:g}", "last norm", "largest norm"],
            *(
                [
                    str(f + 1),
                    f"{passage:.6g}" if np.isfinite(passage) else "not reached",
                    f"{norms[-1, f]:.6g}",
                    f"{norms[:, f].max():.6g}",
                ]
                for f, passage in enumerate(self.first_passage)
            ),
        ]

    def __repr__(self) -> str:
        heads, features = self.m.shape[1:]
        return (
            f"<Flow of {heads} heads, {features} features, kappa = {self.kappa:g}: tau = "
            f"{self.tau[0]:g} to {self.tau[-1]:g}, loss {self.loss[0]:.6g} to {self.loss[-1]:.6g}, "
            f"{self.status}>"
        )


def integrate_flow(
    state: State,
    task: Task,
    attention: Attention,
    tau: ArrayLike,
    kappa: float = 0.0,
    *,
    threshold: float = THRESHOLD,
    digits: float = 6.0,
    rtol: float = 1e-6,
    method: str = "LSODA",
    progress: Callable[[float], None] | None = None,
) -> Flow:
    """Integrate the flow from one state.

    Parameters
    ----------
    state : State
        Initial order parameters, m (H, F), r (H, H), b and v (H,).
    task : Task
    attention : Attention
    tau : float or (n,) array
        Horizon (201 equally spaced times) or increasing times, the first being the start.
    kappa : float
        ``gamma D / N_b`` of the SGD that is described; 0 is the small-step limit.
    threshold : float
        Norm of ``m[:, f]`` that counts as learned.
    digits : float
        Decimal digits of the gradient at each step.
    rtol : float
        Relative accuracy of the integration; absolute accuracy is scaled to the initial alignment.
    method : str
        A solver of `scipy.integrate.solve_ivp`; LSODA switches to a stiff method where needed.
    progress : callable, optional
        Called with the fraction of the horizon that is done.

    Returns
    -------
    Flow

    Raises
    ------
    InputError
        For times that do not increase, a batch of states, a negative kappa or an unknown method.
    FlowError
        If a derivative is not finite or the solver gives up.

    Notes
    -----
    `derive.task` section 3; arXiv 2603.03993, Prop. III.2.
    """
    times = _times(tau)
    kappa = real_number("kappa", kappa, minimum=0)
    threshold = real_number("threshold", threshold, positive=True)
    digits = real_number("digits", digits, minimum=1)
    rtol = real_number("rtol", rtol, positive=True)
    if method not in METHODS:
        raise InputError("method", method, "one of " + ", ".join(METHODS))
    state = state.single(attention, task.prior.features)
    pack = _Packing(state, kappa)

    frozen = False

    def velocity(time: float, y: Array) -> Array:
        now = pack.state(y)
        loss = evaluate(now, task, attention, digits)
        noise = noise_matrix(now, task, attention)[0] if kappa else None
        result = pack.velocity(y, loss, noise)
        if frozen:
            result[: state.m.size] = 0.0
        if not np.isfinite(result).all():
            raise FlowError(f"flow: derivative at tau = {time:.6g} is not finite")
        if progress is not None:
            progress((time - times[0]) / (times[-1] - times[0]))
        return result

    start = pack.initial(state)
    drift = velocity(times[0], start)[: state.m.size]
    # With m = 0 and no mean signal dE/dm vanishes for ever; rounding must not choose a direction.
    frozen = state.m.size > 0 and not state.m.any() and bool(np.abs(drift).max() <= 1e-15)
    largest = float(np.abs(state.m).max(initial=0.0))
    stationary = frozen or (state.m.size > 0 and not drift.any())
    rounding = ROUNDING
    if 0 < largest < LINEAR and np.abs(drift).max() <= 1e-15 and not task.prior.mean.any():
        # Alignments so small grow linearly; what differs from that is rounding.
        scale = LINEAR / largest
        larger = velocity(times[0], pack.initial(replace(state, m=scale * state.m)))
        rounding = float(np.abs(drift - larger[: state.m.size] / scale).max())
        if rounding > LOST * np.abs(drift).max():
            raise FlowError(
                f"flow: alignments of {largest:.3g} are lost in the gradient's rounding"
            )
    events = [pack.passage(f, threshold) for f in range(task.prior.features)]
    scale = float(np.clip(largest, 1e-150, 1.0)) if largest else 1.0
    solution = solve_ivp(
        velocity,
        (times[0], times[-1]),
        start,
        method=method,
        t_eval=times,
        events=events or None,
        rtol=rtol,
        atol=pack.tolerance(max(rtol * scale, rounding), rtol),
    )
    if solution.status < 0 or not np.isfinite(solution.y).all():
        raise FlowError(
            f"flow: the solver stopped at tau = {solution.t[-1]:.6g}: {solution.message}"
        )
    path = [pack.state(y) for y in solution.y.T]
    losses = [evaluate(s, task, attention, digits) for s in path]
    checked = np.unique(np.linspace(0, len(path) - 1, 5).astype(int))
    found = [_errors(path[i], losses[i], task, attention, digits) for i in checked]
    loss_error, gradient_error = (max(x) for x in zip(*found, strict=True))
    noise_error = (
        max(
            (kappa * float(noise_matrix(path[i], task, attention)[1].max()) for i in checked),
            default=0.0,
        )
        if kappa
        else 0.0
    )
    m = np.array([s.m for s in path])
    passage = _first_passage(state.m, threshold, times[0], solution.t_events)
    return Flow(
        tau=solution.t,
        loss=np.array([float(x.value) for x in losses]),
        m=m,
        r=np.array([s.r for s in path]),
        b=None if path[0].b is None else np.array([s.b for s in path]),
        v=None if path[0].v is None else np.array([s.v for s in path]),
        first_passage=passage,
        excursions=excursions(solution.t, m, passage),
        loss_error=loss_error,
        gradient_error=gradient_error,
        noise_error=noise_error,
        status=_status(state, task, attention, stationary),
        kappa=kappa,
        threshold=threshold,
    )


def _status(state: State, task: Task, attention: Attention, stationary: bool) -> str:
    """What to say of a flow whose alignments cannot move at the start."""
    if not stationary:
        return COMPLETED
    rates = hessian_spectrum(task, attention, state).growth_rates
    return ON_SADDLE if (rates > 1e-9).any() else STATIONARY


def _errors(
    state: State, loss: Loss, task: Task, attention: Attention, digits: float
) -> tuple[float, float]:
    """Distance of a loss and its gradient to those with another digit, and their sampling errors."""
    better = evaluate(state, task, attention, digits + 1, CHECK_POINTS)
    apart = gradient_distance(loss, better)
    return (
        abs(float(better.value - loss.value)) + float(better.error) + float(loss.error),
        apart + float(better.gradient_error) + float(loss.gradient_error),
    )


def excursions(tau: Array, m: Array, first_passage: Array) -> tuple[Excursion, ...]:
    """Return, per feature, the largest drop of its norm below its running peak after learning it.

    Parameters
    ----------
    tau : (n,) array
    m : (n, H, F) array
    first_passage : (F,) array

    Returns
    -------
    tuple of Excursion
        Only drops of more than 10 %.
    """
    found = []
    for f, passed in enumerate(first_passage):
        later = tau >= passed
        if not later.any():
            continue
        norms, times = np.linalg.norm(m[later, :, f], axis=1), tau[later]
        peaks = np.maximum.accumulate(norms)
        drops = 1 - norms / np.where(peaks > 0, peaks, 1.0)
        worst = int(np.argmax(drops))
        if drops[worst] > DROP:
            peak = int(np.argmax(norms[: worst + 1]))
            found.append(Excursion(f, float(times[peak]), float(drops[worst])))
    return tuple(found)


class _Packing:
    """The solver's vector: m, a factor of r (kappa = 0) or r's upper triangle, then b and v."""

    def __init__(self, state: State, kappa: float) -> None:
        self.heads, self.features = state.m.shape
        self.kappa = kappa
        self.trained = [name for name in ("b", "v") if getattr(state, name) is not None]
        self.upper = np.triu_indices(self.heads)

    def initial(self, state: State) -> Array:
        if self.kappa:
            overlap = state.r[self.upper]
        else:
            sigma, axes = principal_axes(state.r)
            overlap = (axes * sigma).ravel()
        others = [getattr(state, name) for name in self.trained]
        return np.concatenate([state.m.ravel(), overlap, *others])

    def _split(self, y: Array) -> tuple[Array, Array, dict[str, Array]]:
        size = self.heads * self.features
        end = len(y) - self.heads * len(self.trained)
        overlap = y[size:end]
        if self.kappa:
            full = np.zeros((self.heads, self.heads))
            full[self.upper] = overlap
            overlap = full + np.triu(full, 1).T
        else:
            overlap = overlap.reshape(self.heads, self.heads)
        others = dict(zip(self.trained, y[end:].reshape(-1, self.heads), strict=True))
        return y[:size].reshape(self.heads, self.features), overlap, others

    def state(self, y: Array) -> State:
        m, overlap, others = self._split(y)
        if not np.abs(y).max(initial=0.0) <= LARGEST_STATE:
            raise FlowError("flow: the state diverges")
        if self.kappa:
            sigma, axes = principal_axes(overlap)
            r = (axes * sigma**2) @ axes.T
        else:
            r = overlap @ overlap.T
        return State(m, (r + r.T) / 2, **others)

    def tolerance(self, keys: float, others: float) -> Array:
        """Absolute tolerances: biases and values are of order one, however small the keys are."""
        size = self.heads * self.features
        size += len(self.upper[0]) if self.kappa else self.heads**2
        return np.append(np.full(size, keys), np.full(self.heads * len(self.trained), others))

    def velocity(self, y: Array, loss: Loss, noise: Array | None) -> Array:
        _, overlap, _ = self._split(y)
        if noise is not None:
            change = order_parameters.overlap_flow(overlap, loss.r, noise, self.kappa)[self.upper]
        else:
            change = order_parameters.factor_flow(overlap, loss.r).ravel()
        others = [-getattr(loss, name) for name in self.trained]
        return np.concatenate([-loss.m.ravel(), change, *others])

    def passage(self, feature: int, threshold: float) -> Callable[[float, Array], float]:
        def crossing(_: float, y: Array) -> float:
            m = y[: self.heads * self.features].reshape(self.heads, self.features)
            return float(np.linalg.norm(m[:, feature])) - threshold

        crossing.direction = 1  # type: ignore[attr-defined]
        return crossing


def _times(tau: ArrayLike) -> Array:
    """Recording times; a horizon becomes 201 of them."""
    if np.ndim(tau) == 0:
        horizon = real_number("tau", tau, minimum=SHORTEST)
        return np.linspace(0.0, horizon, 201)
    times = real_array("tau", tau, (None,))
    if len(times) < 2 or (np.diff(times) < SHORTEST).any():
        raise InputError("tau", times, "a positive horizon, or at least two increasing times")
    return times


def _first_passage(
    m: Array, threshold: float, start: float, crossings: list[Array] | None
) -> Array:
    """Times of the first upward crossings; the start where a feature is beyond the threshold."""
    result = np.full(m.shape[1], np.nan)
    for f, times in enumerate(crossings or []):
        if np.linalg.norm(m[:, f]) > threshold:
            result[f] = start
        elif len(times):
            result[f] = times[0]
    return result
