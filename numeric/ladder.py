"""The ladder of saddles that training climbs, and how long it waits on each.

While some features are learned, the alignments with another one grow as ``da/dtau = -K a``, K (H, H) the
Hessian block along it: the prior is symmetric in it, so nothing else mixes in. On a saddle K is constant,
and from an amplitude a the wait lasts ``log(1/a) / rate`` up to a constant. That constant, and what the
other features gain meanwhile, belong to the orbit from one saddle to the next; they do not depend on a.
So one orbit per rung, started at amplitude `SEED`, gives the waiting times for any token dimension D,
whose amplitudes are ``O(1/sqrt D)``. Where learned features still drift, as biases do for long, the
drift is followed instead of being waited for.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import expm
from scipy.optimize import brentq

from numeric.errors import FlowError, InputError
from numeric.flow import THRESHOLD, integrate_flow
from numeric.hessian import factor_hessian
from numeric.loss import population_loss
from numeric.origin import at_rest
from numeric.quadrature import Array
from numeric.saddles import Saddle, nearby_saddle
from numeric.task import Attention, State, Task

# Amplitude at which an orbit starts, of the feature that grows and of those that watch.
SEED, WATCH = 1e-2, 1e-4
# Growth rates below this leave no saddle.
SLOWEST = 1e-8
# Growth times for which an orbit is followed, and for which a drift is followed at a time.
ORBIT, WINDOW = 8.0, 4.0
# Change of learned alignments, biases or values, during a wait, up to which they count as at rest.
DRIFT = 0.02
MOST_WINDOWS = 200


@dataclass(frozen=True)
class Rung:
    """A state in which the flow waits, and the feature by which it leaves.

    Attributes
    ----------
    state : State
        Of the learned features, when the flow leaves it; all others vanish, and r = 0.
    saddle : Saddle or None
        The stationary state there; None if learned features drift to the end.
    learned : tuple of int
        Features, counted from 0.
    feature : int or None
        The next one; None where the flow stays.
    rate : float
        Its growth rate when the flow leaves.
    leading : float
        Waiting time to leading order, ``log(1/amplitude) / rate`` from the amplitude on arrival.
    waiting : float
        From the first passage before (at first from the start) to the next one.
    passage : float
        Predicted first passage of norm 1; infinite where the flow stays.
    """

    state: State
    saddle: Saddle | None
    learned: tuple[int, ...]
    feature: int | None
    rate: float
    leading: float
    waiting: float
    passage: float


def ladder(state: State, task: Task, attention: Attention) -> tuple[Rung, ...]:
    """Predict the saddles that the flow visits, and when it leaves them.

    Parameters
    ----------
    state : State
        Initial state, with small m (H, F) such as `initial_state` gives; its r does not count.
    task : Task
        Its prior symmetric in every feature.
    attention : Attention

    Returns
    -------
    tuple of Rung
        From the last one nothing grows, or no feature is left.

    Raises
    ------
    InputError
        If the prior has a mean, or heads have no alignment to start from.
    FlowError
        If a feature grows, but not to norm 1, or learned features drift without end.
    """
    state = state.single(attention, task.prior.features)
    if np.abs(task.prior.mean).max(initial=0.0) > 0:
        raise InputError("prior", task.prior.mean, "no mean signal, so that the origin is a saddle")
    if not state.m.any(axis=0).all():
        raise InputError("m", state.m, "an alignment with every feature to start from")
    climb = _Climb(state, task, attention)
    rungs: list[Rung] = []
    while climb.step(rungs):
        pass
    return tuple(rungs)


class _Climb:
    """Where the learned features are, and the amplitudes (H, F) of the others."""

    def __init__(self, state: State, task: Task, attention: Attention) -> None:
        self.task, self.attention = task, attention
        still = replace(state, m=np.zeros_like(state.m), r=np.zeros_like(state.r))
        self.here = at_rest(still, task, attention)
        self.amplitudes = state.m.copy()
        self.learned: tuple[int, ...] = ()
        self.now = self.passed = 0.0

    def step(self, rungs: list[Rung]) -> bool:
        """Wait and leave: one rung more. Whether the flow goes on."""
        arrived = {f: float(np.linalg.norm(self.amplitudes[:, f])) for f in self.rest}
        for _ in range(MOST_WINDOWS):
            blocks = self._blocks() if self.rest else {}
            when = {f: _time_to(SEED, blocks[f], self.amplitudes[:, f]) for f in self.rest}
            feature = min(self.rest, key=lambda f: when[f], default=None)
            if feature is None or not np.isfinite(when[feature]):
                stays = self.here, None, self.learned, None
                rungs.append(Rung(*stays, 0.0, np.inf, np.inf, np.inf))
                return False
            rate = -float(np.linalg.eigvalsh(blocks[feature])[0])
            if self._speed() * when[feature] <= DRIFT:
                break
            self._follow(min(when[feature], WINDOW / rate), dict.fromkeys(self.rest, WATCH))
        else:
            raise FlowError("flow: learned features drift without end")
        saddle = nearby_saddle(self.task, self.attention, self.here, self.learned)
        left = self.here, saddle, self.learned, feature
        for f in self.rest:
            self.amplitudes[:, f] = expm(-blocks[f] * when[feature]) @ self.amplitudes[:, f]
        self.now += when[feature]
        sizes = {f: WATCH for f in self.rest if f != feature}
        behind = self._follow(ORBIT / rate, sizes, feature)
        passage = self.now + behind
        self.learned = tuple(sorted([*self.learned, feature]))
        leading = -np.log(arrived[feature]) / rate
        rungs.append(Rung(*left, rate, leading, passage - self.passed, passage))
        self.passed = passage
        return True

    @property
    def rest(self) -> list[int]:
        """Features that are not learned."""
        return [f for f in range(self.task.prior.features) if f not in self.learned]

    def _blocks(self) -> dict[int, Array]:
        """Hessian block (H, H) of the alignments with each feature that is not learned."""
        matrix = factor_hessian(self.here, self.task, self.attention).matrix
        heads, features = self.here.m.shape
        full = matrix.reshape(heads, features, heads, features)
        return {f: full[:, f, :, f] for f in self.rest}

    def _speed(self) -> float:
        """How fast learned alignments, biases and values still move."""
        loss = population_loss(self.here, self.task, self.attention, 1e-7)
        parts = [x for x in (loss.m, loss.b, loss.v) if x is not None]
        return max(float(np.abs(x).max(initial=0.0)) for x in parts)

    def _follow(
        self, duration: float, sizes: dict[int, float], feature: int | None = None
    ) -> float:
        """Follow the flow, amplitudes scaled to `sizes`; return the first passage of a feature.

        That feature keeps its amplitude, the others are small enough to grow linearly.
        """
        m, scales = self.here.m.copy(), {}
        for f, size in sizes.items():
            scales[f] = size / max(float(np.linalg.norm(self.amplitudes[:, f])), 1e-300)
            m[:, f] = scales[f] * self.amplitudes[:, f]
        if feature is not None:
            m[:, feature] = self.amplitudes[:, feature]
        path = integrate_flow(
            replace(self.here, m=m),
            self.task,
            self.attention,
            [0.0, duration],
            threshold=THRESHOLD,
            digits=8.0,
            rtol=1e-7,
        )
        end = path.states.at(-1)
        here = end.m.copy()
        for f, scale in scales.items():
            self.amplitudes[:, f] = end.m[:, f] / scale
            here[:, f] = 0.0
        self.here = replace(end, m=here)
        self.now += duration
        if feature is None:
            return 0.0
        if not np.isfinite(path.first_passage[feature]):
            raise FlowError(f"flow: feature {feature + 1} grows from a saddle but not to norm 1")
        return float(path.first_passage[feature]) - duration


def _time_to(size: float, block: Array, amplitude: Array) -> float:
    """Time in which an amplitude grows to some size, or infinity."""
    values, vectors = np.linalg.eigh(block)
    parts = vectors.T @ amplitude

    def excess(time: float) -> float:
        with np.errstate(divide="ignore"):
            logs = np.log(np.abs(parts)) - values * time
        return float(np.logaddexp.reduce(2 * logs)) / 2 - np.log(size)

    growing = (values < -SLOWEST) & (np.abs(parts) > 0)
    if excess(0.0) >= 0:
        return 0.0
    if not growing.any():
        return np.inf
    logs = (np.log(size) - np.log(np.abs(parts[growing]))) / -values[growing]
    return float(brentq(excess, 0.0, float(logs.min()) * (1 + 1e-12) + 1e-12, xtol=1e-12))
