"""The least population loss that an activation can reach, beside the Bayes risk.

Descents with exact gradients from many starts, over all of (m, rho, b, v), ``r = rho rho^T``; the best is
made precise by Newton's method (`numeric.saddles`). That r vanishes at a minimum is found, not assumed.
Bayes-softmax reaches the Bayes risk of a discrete prior with one head for each support point.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import xlogy

from numeric.bayes import Risk, bayes_risk
from numeric.errors import FlowError, InputError, QuadratureError
from numeric.hessian import Coordinates
from numeric.loss import Loss, evaluate, population_loss
from numeric.origin import at_rest
from numeric.quadrature import Array
from numeric.saddles import nearby_saddle
from numeric.spectrum import Spectrum
from numeric.task import Attention, State, Task
from numeric.validate import whole_number

# Digits of the loss in all descents and in the end of the best ones, steps, and the largest coordinate.
DIGITS, FINE, STEPS, FARTHEST = 7.0, 10.0, 400, 60.0
# How often a descent begins again.
ATTEMPTS = 4
# How many of the best descents are followed to the end.
BEST = 2
# Sizes of random starts, in turn, and of rho in them.
SIZES, RESIDUAL = (0.3, 1.0, 2.0), 0.3
# Signals drawn for each head that starts at one.
DRAWS = 16
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
    stiffness : float
        Lowest eigenvalue of dE/dr at the state: rho of any residual direction raises the loss to second
        order if it is positive, and r = 0 is a local minimum; zero where the loss does not depend on r.
    spectrum : Spectrum or None
        There; None if Newton's method did not converge, as where the infimum lies at infinity, or was
        not asked for.
    bayes : Risk
    found : (n,) array
        Losses at which the descents ended, in the order of the starts.
    """

    state: State
    loss: float
    loss_error: float
    residual: float
    stiffness: float
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
    begin: Sequence[State] = (),
    residual: bool = True,
    spectrum: bool = True,
    bayes: Risk | None = None,
    progress: Callable[[float], object] | None = None,
) -> Minimum:
    """Search for the least population loss of an attention layer.

    Parameters
    ----------
    task : Task
    attention : Attention
    starts, seed : int
        Number of random descents, in turn from signals of the prior, far from each other, and from normal
        alignments, and the seed of them all.
    begin : sequence of State
        More states to descend from, such as the minimum of a similar task; then `starts` may be 0.
    residual : bool
        Whether random descents start with r of some size (of rank one for pooled weights), or at r = 0.
    spectrum : bool
        Whether Newton's method makes the best state precise and its spectrum is computed: for pooled
        weights this takes longer than the descents.
    bayes : Risk, optional
        The task's Bayes risk, where it is known already.
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
    for name, flag in (("residual", residual), ("spectrum", spectrum)):
        if not isinstance(flag, bool):
            raise InputError(name, flag, "True or False")
    if bayes is not None and not isinstance(bayes, Risk):
        raise InputError("bayes", bayes, "a Risk, or None")
    if not isinstance(begin, Sequence) or not all(isinstance(x, State) for x in begin):
        raise InputError("begin", begin, "a sequence of State")
    states = [state.single(attention, task.prior.features) for state in begin]
    starts = whole_number("starts", starts, 0 if states else 1)
    children = np.random.SeedSequence(whole_number("seed", seed, 0)).spawn(starts)
    states += [
        _start(i, np.random.default_rng(child), task, attention, residual)
        for i, child in enumerate(children)
    ]
    risk = bayes_risk(task) if bayes is None else bayes
    found, ends = np.full(len(states), np.inf), []
    for i, state in enumerate(states):
        end = _descend(state, task, attention, DIGITS)
        if end is not None:
            found[i] = end[0]
            ends.append(end)
        if progress is not None:
            progress((i + 1) / len(states))
    if not ends:
        raise FlowError("minimum: no descent ends")
    ends.sort(key=lambda end: end[0])
    ends += [finer for _, state in ends[:BEST] if (finer := _descend(state, task, attention, FINE))]
    _, state = min(ends, key=lambda end: end[0])
    left = float(np.abs(state.r).max(initial=0.0))
    loss = population_loss(state, task, attention, TOLERANCE)
    if left:
        state, loss = _without_residual(state, loss, task, attention)
    curvature = None
    if spectrum and not state.r.any():
        try:
            saddle = nearby_saddle(task, attention, state, range(task.prior.features))
        except (FlowError, InputError, QuadratureError):
            saddle = None
        if saddle is not None and saddle.loss <= float(loss.value) + SAME:
            state, curvature = saddle.state, saddle.spectrum
            loss = population_loss(state, task, attention, TOLERANCE)
    stiffness = float(np.linalg.eigvalsh(loss.r).min())
    value, error = float(loss.value), float(loss.error)
    return Minimum(state, value, error, left, stiffness, curvature, risk, found)


def _without_residual(
    state: State, loss: Loss, task: Task, attention: Attention
) -> tuple[State, Loss]:
    """Where a descent without r ends, unless that raises the loss by more than is known of it."""
    begin = replace(state, r=np.zeros_like(state.r))
    end = _descend(begin, task, attention, FINE) or _descend(begin, task, attention, DIGITS)
    if end is None:
        return state, loss
    still = population_loss(end[1], task, attention, TOLERANCE)
    known = SAME + float(still.error) + float(loss.error)
    return (end[1], still) if float(still.value) <= float(loss.value) + known else (state, loss)


def _descend(
    state: State, task: Task, attention: Attention, digits: float
) -> tuple[float, State] | None:
    """Where a descent ends, and the loss there; None if it leaves what can be computed."""
    layer = Coordinates(state, task, attention, attention.parameters)
    shape = layer.x.shape
    best, lowest = layer.x.ravel(), np.inf
    if not best.size:
        return float(evaluate(state, task, attention, digits).value), state

    def loss_at(x: Array) -> tuple[float, Array]:
        nonlocal best, lowest
        rows = x.reshape(shape)
        loss = evaluate(layer.at(rows), task, attention, digits)
        if float(loss.value) < lowest:
            best, lowest = x.copy(), float(loss.value)
        return float(loss.value), layer.along(rows, loss).ravel()

    for _ in range(ATTEMPTS):
        before = lowest
        try:
            minimize(
                loss_at,
                best,
                jac=True,
                method="L-BFGS-B",
                bounds=[(-FARTHEST, FARTHEST)] * layer.x.size,
                options={
                    "maxiter": STEPS,
                    "ftol": 10 ** (-digits - 3),
                    "gtol": 10 ** (-digits),
                    "maxcor": 20,
                },
            )
            break
        except (QuadratureError, FloatingPointError):
            # A step went too far: begin again at the best state so far.
            if not lowest < before:
                break
    return (lowest, layer.at(best.reshape(shape))) if np.isfinite(lowest) else None


def _start(
    i: int, rng: np.random.Generator, task: Task, attention: Attention, residual: bool
) -> State:
    """One state to start from."""
    heads, features = attention.heads, task.prior.features
    rho = RESIDUAL * residual * rng.standard_normal((heads, heads))
    # Pooled weights integrate over all dimensions of a token's scores: one residual one is enough.
    if attention.kernel.NORMALIZATION == "pooled":
        rho = rho[:, :1]
    r = rho @ rho.T
    if i % 2:
        m = SIZES[(i // 2) % len(SIZES)] * rng.standard_normal((heads, features))
        return at_rest(State(m, r), task, attention)
    m = _spread(task.prior.sample(rng, DRAWS * heads), heads, rng)
    others = {}
    if "b" in attention.parameters:
        others["b"] = -(m**2).sum(axis=1) / 2 - np.log(heads)
    state = State(m, r, **others)
    if attention.kernel.NORMALIZATION == "none":
        return at_rest(state, task, attention)
    # Heads at signals take all attention there, whatever a background leaves them elsewhere.
    return state.check(attention, features)


def _spread(points: Array, count: int, rng: np.random.Generator) -> Array:
    """Choose points that are far from each other: the next with a probability of its squared distance."""
    chosen = [points[0]]
    while len(chosen) < count:
        distance = np.min([((points - x) ** 2).sum(axis=1) for x in chosen], axis=0)
        total = distance.sum()
        share = distance / total if total > 0 else np.full(len(points), 1 / len(points))
        chosen.append(points[rng.choice(len(points), p=share)])
    return np.array(chosen)
