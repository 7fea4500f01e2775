"""The least population loss that an activation can reach, beside the Bayes risk.

Descents with exact gradients from many starts, over all of (m, rho, b, v), ``r = rho rho^T``; the best is
made precise by Newton's method (`numeric.saddles`). That r vanishes at a minimum is found, not assumed.
Bayes-softmax reaches the Bayes risk of a discrete prior with one head for each support point.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import xlogy

from numeric.bayes import Risk, bayes_risk
from numeric.errors import FlowError, InputError, QuadratureError
from numeric.loss import evaluate, population_loss
from numeric.origin import at_rest
from numeric.quadrature import Array
from numeric.saddles import nearby_saddle
from numeric.spectrum import Spectrum
from numeric.task import Attention, State, Task
from numeric.validate import whole_number

# Digits of the loss in a descent, its steps at most, and the largest coordinate that it may reach.
DIGITS, STEPS, FARTHEST = 7.0, 400, 60.0
# Sizes of random starts, in turn, and of rho in them.
SIZES, RESIDUAL = (0.3, 1.0, 2.0), 0.3
# Losses that count as the same.
SAME = 1e-7
TOLERANCE = 1e-10


@dataclass(frozen=True, repr=False)
class Minimum:
    """The lowest state that was found.

    Attributes
    ----------
    state : State
        With r = 0 unless that raises the loss.
    loss, loss_error : float
    residual : float
        Largest entry of r at the end of the descent; where it is not small, the loss does not depend on
        r, or r is not zero.
    spectrum : Spectrum or None
        There; None if Newton's method did not converge, as where the infimum lies at infinity.
    bayes : Risk
    found : (n,) array
        Losses at which the descents ended, in the order of the starts.
    """

    state: State
    loss: float
    loss_error: float
    residual: float
    spectrum: Spectrum | None
    bayes: Risk
    found: Array

    @property
    def gap(self) -> float:
        """Loss above the Bayes risk."""
        return self.loss - self.bayes.value

    @property
    def gap_error(self) -> float:
        """Error of the gap."""
        return self.loss_error + self.bayes.error

    @property
    def index(self) -> int | None:
        """Number of unstable directions, zero at a minimum; None where there is no spectrum."""
        return None if self.spectrum is None else self.spectrum.index

    def __repr__(self) -> str:
        return (
            f"<Minimum: loss {self.loss:.8g} +- {self.loss_error:.1e}, gap to Bayes {self.gap:.3g}, "
            f"best of {len(self.found)} descents>"
        )


def bayes_softmax_optimum(task: Task) -> State:
    """Return the state at which Bayes-softmax is the Bayes estimator of a discrete prior.

    Parameters
    ----------
    task : Task
        Its prior discrete; support points of probability zero get no head.

    Returns
    -------
    State
        One head for each support point: ``m_h = theta_h``, ``b_h = log P_h - |theta_h|^2 / 2``, r = 0.

    Raises
    ------
    InputError
        If the prior is not discrete.

    Notes
    -----
    `derive.task` section 6: ``w(xi) = sum_h P_h exp(theta_h.xi - |theta_h|^2 / 2)``.
    """
    if not task.prior.is_discrete:
        raise InputError("prior", type(task.prior).__name__, "a discrete prior")
    weights, points, _ = task.prior.components()
    kept = weights > 0
    weights, points = weights[kept], points[kept]
    biases = xlogy(1.0, weights) - (points**2).sum(axis=1) / 2
    return State(points, np.zeros((len(points), len(points))), biases)


def minimize_loss(
    task: Task,
    attention: Attention,
    *,
    starts: int = 12,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> Minimum:
    """Search for the least population loss of an attention layer.

    Parameters
    ----------
    task : Task
    attention : Attention
    starts, seed : int
        Number of descents, in turn from signals of the prior and from normal alignments, all with r of
        some size, and the seed of them all. Pooled weights start with r of rank one.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    Minimum

    Raises
    ------
    InputError
        If an argument is out of range.
    FlowError
        If no descent ends anywhere.
    """
    starts, seed = whole_number("starts", starts, 1), whole_number("seed", seed, 0)
    risk = bayes_risk(task)
    layer = _Layer(task, attention)
    found, ends = np.full(starts, np.inf), []
    for i, child in enumerate(np.random.SeedSequence(seed).spawn(starts)):
        begin = _start(i, np.random.default_rng(child), task, attention)
        end = layer.descend(begin)
        if end is not None:
            found[i] = end[0]
            ends.append(end)
        if progress is not None:
            progress((i + 1) / starts)
    if not ends:
        raise FlowError("minimum: no descent ends")
    _, x = min(ends, key=lambda end: end[0])
    state = layer.state(x)
    residual = float(np.abs(state.r).max(initial=0.0))
    still = replace(state, r=0 * state.r)
    if layer.loss(still) <= layer.loss(state) + SAME:
        state = still
    spectrum = None
    if not state.r.any():
        try:
            saddle = nearby_saddle(task, attention, state, range(task.prior.features))
        except (FlowError, InputError, QuadratureError):
            saddle = None
        if saddle is not None and saddle.loss <= found.min() + SAME:
            state, spectrum = saddle.state, saddle.spectrum
    loss = population_loss(state, task, attention, TOLERANCE)
    return Minimum(state, float(loss.value), float(loss.error), residual, spectrum, risk, found)


class _Layer:
    """The loss as a function of a flat vector: m, rho and what is trained, head by head."""

    def __init__(self, task: Task, attention: Attention) -> None:
        self.task, self.attention = task, attention
        self.heads, self.features = attention.heads, task.prior.features
        # Pooled weights integrate over all dimensions of a token's scores: one residual one is enough.
        pooled = attention.kernel.NORMALIZATION == "pooled"
        self.rank = 1 if pooled else self.heads

    def state(self, x: Array) -> State:
        rows = x.reshape(self.heads, -1)
        end = self.features + self.rank
        rho = rows[:, self.features : end]
        others = {name: rows[:, end + i] for i, name in enumerate(self.attention.parameters)}
        r = rho @ rho.T
        return State(rows[:, : self.features], (r + r.T) / 2, **others)

    def loss(self, state: State) -> float:
        return float(evaluate(state, self.task, self.attention, DIGITS).value)

    def vector(self, state: State, rho: Array) -> Array:
        others = [getattr(state, name)[:, None] for name in self.attention.parameters]
        return np.concatenate([state.m, rho, *others], axis=1).ravel()

    def descend(self, begin: tuple[State, Array]) -> tuple[float, Array] | None:
        """Where a descent ends, and the loss there."""
        state, residual = begin
        x = self.vector(state, residual[:, : self.rank])
        try:
            end = minimize(
                self._loss,
                x,
                jac=True,
                method="L-BFGS-B",
                bounds=[(-FARTHEST, FARTHEST)] * len(x),
                options={"maxiter": STEPS, "ftol": 1e-13, "gtol": 1e-8},
            )
        except (QuadratureError, FloatingPointError):
            return None
        return (float(end.fun), end.x) if np.isfinite(end.fun) else None

    def _loss(self, x: Array) -> tuple[float, Array]:
        state = self.state(x)
        loss = evaluate(state, self.task, self.attention, DIGITS)
        rho = x.reshape(self.heads, -1)[:, self.features : self.features + self.rank]
        others = [getattr(loss, name)[:, None] for name in self.attention.parameters]
        gradient = np.concatenate([loss.m, 2 * loss.r @ rho, *others], axis=1)
        return float(loss.value), gradient.ravel()


def _start(
    i: int, rng: np.random.Generator, task: Task, attention: Attention
) -> tuple[State, Array]:
    """One state to start from, and rho (H, H)."""
    heads, features = attention.heads, task.prior.features
    residual = RESIDUAL * rng.standard_normal((heads, heads))
    if i % 2 == 0:
        drawn = task.prior.sample(rng, heads)
        b = -(drawn**2).sum(axis=1) / 2 - np.log(heads)
        if "b" in attention.parameters:
            state = at_rest(State(drawn, np.zeros((heads, heads)), b), task, attention)
            return State(drawn, state.r, b, state.v), residual
        m = drawn
    else:
        m = SIZES[(i // 2) % len(SIZES)] * rng.standard_normal((heads, features))
    return at_rest(State(m, np.zeros((heads, heads))), task, attention), residual
