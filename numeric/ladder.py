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

from numeric.errors import FlowError, InputError, Verbatim
from numeric.flow import THRESHOLD, integrate_flow
from numeric.hessian import factor_hessian
from numeric.loss import population_loss
from numeric.origin import require_no_mean
from numeric.quadrature import Array
from numeric.saddles import Saddle, nearby_saddle
from numeric.task import Attention, State, Task

# Amplitude at which an orbit starts, of the feature that grows and of those that watch.
SEED, WATCH = 1e-2, 1e-4
# Alignments to start from.
LEAST = 1e-140
# Growth rates below this leave no saddle.
SLOWEST = 1e-8
# Growth times that are followed at once, after which an orbit has settled, and pieces of an orbit.
WINDOW, SETTLES, MOST_SEGMENTS, HALVINGS = 4.0, 3.0, 32, 12
# Change of learned alignments, biases or values, during a wait, up to which they count as at rest.
DRIFT = 0.02
MOST_WINDOWS = 200
# Times for which a drift is followed while nothing grows: at first, and at most.
PATIENCE, LONGEST = 25.0, 1e5


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


def saddle_ladder(state: State, task: Task, attention: Attention) -> tuple[Rung, ...]:
    """Predict the saddles that the flow visits, and when it leaves them.

    Parameters
    ----------
    state : State
        Initial state, with small m (H, F) such as `initial_state` gives. Its r does not count; biases and
        values are followed while they relax.
    task : Task
        Its prior symmetric in every feature.
    attention : Attention

    Returns
    -------
    tuple of Rung
        From the last one nothing grows, or no feature is left; a drift is followed for times of 10^5.

    Raises
    ------
    InputError
        If the prior has a mean or correlated features, or heads have no alignment to start from.
    FlowError
        If a feature grows, but not to norm 1, or learned features drift without end.
    """
    state = state.single(attention, task.prior.features)
    require_no_mean(task)
    moment = task.prior.second_moment
    if (moment - np.diag(np.diag(moment))).any():
        raise InputError(
            "prior",
            Verbatim(f"second moments {moment.tolist()}"),
            "features that are not correlated",
        )
    if not (np.abs(state.m).max(axis=0, initial=0.0) > LEAST).all():
        raise InputError("m", state.m, f"an alignment with every feature, beyond {LEAST:g}")
    climb = _Climb(state, task, attention)
    rungs: list[Rung] = []
    while climb.step(rungs):
        pass
    return tuple(rungs)


class _Climb:
    """Where the learned features are, and the amplitudes (H, F) of the others."""

    def __init__(self, state: State, task: Task, attention: Attention) -> None:
        self.task, self.attention = task, attention
        self.here = replace(state, m=np.zeros_like(state.m), r=np.zeros_like(state.r))
        self.amplitudes = state.m.copy()
        self.learned: tuple[int, ...] = ()
        self.now = self.passed = 0.0

    @property
    def rest(self) -> list[int]:
        """Features that are not learned."""
        return [f for f in range(self.task.prior.features) if f not in self.learned]

    def step(self, rungs: list[Rung]) -> bool:
        """Wait and leave: one rung more, or several at once. Whether the flow goes on."""
        arrived, patience = self._sizes(), PATIENCE
        for _ in range(MOST_WINDOWS):
            blocks = self._blocks() if self.rest else {}
            when = {f: _time_to(SEED, blocks[f], self.amplitudes[:, f]) for f in self.rest}
            feature = min(self.rest, key=lambda f: when[f], default=None)
            if feature is not None and not np.isfinite(when[feature]):
                # What is learned may drift on, until something grows again.
                if patience < LONGEST and self._speed() * patience > DRIFT:
                    self._follow(patience, [])
                    patience *= 2
                    continue
                feature = None
            if feature is None:
                stays = self.here, None, self.learned, None
                rungs.append(Rung(*stays, 0.0, np.inf, np.inf, np.inf))
                return False
            rate = -float(np.linalg.eigvalsh(blocks[feature])[0])
            if self._speed() * when[feature] > DRIFT:
                self._follow(min(when[feature], WINDOW / rate), [])
                continue
            left = self.here
            for f in self.rest:
                self.amplitudes[:, f] = expm(-blocks[f] * when[feature]) @ self.amplitudes[:, f]
            self.now += when[feature]
            passages = self._orbit(feature, rate)
            if passages:
                rates = {f: -float(np.linalg.eigvalsh(blocks[f])[0]) for f in passages}
                self._add(rungs, left, rates, passages, arrived)
                return True
        raise FlowError("flow: features that are not learned neither grow to norm 1 nor vanish")

    def _add(
        self,
        rungs: list[Rung],
        left: State,
        rates: dict[int, float],
        passages: dict[int, float],
        arrived: dict[int, float],
    ) -> None:
        """One rung for each feature that the orbit learned; only the first one left a saddle."""
        saddle = nearby_saddle(self.task, self.attention, left, self.learned)
        for f in sorted(passages, key=lambda f: passages[f]):
            leading = -np.log(arrived[f]) / rates[f]
            waiting = passages[f] - self.passed
            rungs.append(
                Rung(left, saddle, self.learned, f, rates[f], leading, waiting, passages[f])
            )
            self.learned = tuple(sorted([*self.learned, f]))
            self.passed, saddle = passages[f], None

    def _orbit(self, feature: int, rate: float) -> dict[int, float]:
        """Follow the flow until some features are learned, and some time longer: their passages.

        Nothing if the feature that grew falls back, as another one may make it do.
        """
        sizes = self._sizes()
        active = [f for f in self.rest if f == feature or sizes[f] > WATCH]
        m = self.here.m.copy()
        m[:, active] = self.amplitudes[:, active]
        self.here = replace(self.here, m=m)
        passages: dict[int, float] = {}
        for _ in range(MOST_SEGMENTS):
            began = self.now
            found = self._follow(WINDOW / rate, active)
            passages |= {f: began + t for f, t in found.items() if f not in passages}
            if passages and self.now - max(passages.values()) > SETTLES / rate:
                break
            if not passages and np.linalg.norm(self.here.m[:, active]) < SEED / 2:
                break
            if not passages and self._speed() * WINDOW / rate < DRIFT / 100:
                raise FlowError(
                    f"flow: feature {feature + 1} grows from a saddle, but not to norm {THRESHOLD:g}"
                )
        # What is not learned is an amplitude again.
        m = self.here.m.copy()
        for f in set(active) - set(passages):
            self.amplitudes[:, f], m[:, f] = m[:, f].copy(), 0.0
        self.here = replace(self.here, m=m)
        return passages

    def _sizes(self) -> dict[int, float]:
        return {f: float(np.linalg.norm(self.amplitudes[:, f])) for f in self.rest}

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

    def _follow(self, duration: float, active: list[int]) -> dict[int, float]:
        """Follow the flow; return first passages, after its start, of the active features.

        The others that are not learned are scaled up to `WATCH`, so that they are resolved, and grow
        linearly: where they grow too far, a shorter time is followed.
        """
        m, scales = self.here.m.copy(), {}
        for f, size in self._sizes().items():
            if f not in active:
                scales[f] = WATCH / max(size, 1e-300)
                m[:, f] = scales[f] * self.amplitudes[:, f]
        for _ in range(HALVINGS):
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
            if all(np.linalg.norm(end.m[:, f]) <= 2 * SEED for f in scales):
                break
            duration /= 2
        here = end.m.copy()
        for f, scale in scales.items():
            self.amplitudes[:, f] = end.m[:, f] / scale
            here[:, f] = 0.0
        self.here = replace(end, m=here)
        self.now += duration
        return {f: t for f in active if np.isfinite(t := float(path.first_passage[f]))}


def _time_to(size: float, block: Array, amplitude: Array) -> float:
    """Time in which the growing part of an amplitude reaches some size, or infinity."""
    values, vectors = np.linalg.eigh(block)
    parts = np.abs(vectors.T @ amplitude)
    growing = (values < -SLOWEST) & (parts > 0)
    if not growing.any():
        return np.inf
    logs, rates = np.log(parts[growing]), -values[growing]

    def excess(time: float) -> float:
        return float(np.logaddexp.reduce(2 * (logs + rates * time))) / 2 - np.log(size)

    if excess(0.0) >= 0:
        return 0.0
    last = float(((np.log(size) - logs) / rates).min()) * (1 + 1e-12) + 1e-12
    return float(brentq(excess, 0.0, last, xtol=1e-12))
