"""When training leaves the origin: the law of the first passage at every token dimension D.

Without mean signal the alignments with feature f move, while they are small, as an Ornstein-Uhlenbeck
process of the heads' differences (for one head: of its alignment),

    d a = lambda(tau) a dtau + sqrt(kappa Q(tau) / D) dW,     a(0) ~ N(0, eta^2 / D) in each component,

in H - 1 dimensions: lambda is minus the Hessian's eigenvalue at m = 0 and the overlap r(tau) of the
flow there, and Q the variance of one sample's gradient. So ``|a|^2 = s(tau) chi^2 / D`` with ``s = e^(2
Lambda) (eta^2 + kappa int e^(-2 Lambda) Q dtau)``, Lambda the integral of lambda. At an amplitude `SEED`
noise no longer counts; from there the flow reaches the threshold in a time that depends on the direction
of a, and on r. To leading order the passage is at ``log(D) / (2 lambda)``, the Theta(log D) law.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.interpolate import CubicSpline, PchipInterpolator
from scipy.optimize import brentq
from scipy.stats import chi2

from numeric.alike import alike_hessian
from numeric.errors import FlowError, InputError
from numeric.flow import THRESHOLD, integrate_flow
from numeric.noise import noise_parts
from numeric.origin import at_rest, require_no_mean
from numeric.prior import rotated
from numeric.quadrature import Array
from numeric.spectrum import feature_axes
from numeric.task import Attention, State, Task
from numeric.validate import real_number, whole_number

# Amplitude from which the flow is followed; times at which rates are computed, and growth times that
# these cover.
SEED, TIMES, COVERED = 0.03, 33, 24.0
# Directions of the heads' differences, and times (twice as many without noise, which costs time), from
# which the flow is followed; growth times within which it arrives as a rule, and must arrive.
DIRECTIONS, STARTS, ARRIVES = 8, 9, (8.0, 60.0)
SLOWEST = 1e-8
SMALLEST = 1e-6  # norm of initial keys, and largest inverse of it


def magnetization_diffusion(state: State, task: Task, attention: Attention) -> tuple[Array, Array]:
    """Return the diffusion matrix of ``sqrt(D) m`` at m = 0, and its error.

    One step moves m by minus step times ``sum_l c_hl xi_lf``, xi_lf the tokens' coordinates along k*_f.
    At m = 0 these do not depend on the scores, so that their covariance is ``V_hh' delta_ff' + V1_hh'
    M_ff'`` with V1 the relevant token's part of the noise matrix V and M the prior's second moment.

    Parameters
    ----------
    state : State
        One state with m = 0.
    task : Task
        Its prior without mean.
    attention : Attention

    Returns
    -------
    Q, error : (H, F, H, F) arrays
        ``d (sqrt(D) m) = - sqrt(D) dE/dm dtau + sqrt(kappa) dW`` with ``dW dW^T = Q dtau``. With r = 0,
        and equal biases and values, all heads feel the same noise: Q vanishes along their differences.

    Raises
    ------
    InputError
        If m or the prior's mean is not zero.
    """
    state = state.single(attention, task.prior.features)
    if state.m.any():
        raise InputError("m", state.m, "zero alignments")
    require_no_mean(task)
    (null, relevant), (null_error, error) = noise_parts(state, task, attention)
    moment, unit = task.prior.second_moment, np.eye(task.prior.features)
    found = np.einsum("hk,fg->hfkg", null + relevant, unit)
    found += np.einsum("hk,fg->hfkg", relevant, moment)
    margin = np.einsum("hk,fg->hfkg", null_error + error, unit)
    margin += np.einsum("hk,fg->hfkg", error, np.abs(moment))
    return found, margin


@dataclass(frozen=True, repr=False)
class EscapeLaw:
    """The law of a feature's first passage.

    Attributes
    ----------
    feature : int
        Counted from 0, in the order of `numeric.spectrum.feature_axes`.
    threshold : float
        Norm of m along the feature that counts as learned.
    kappa : float
    dimensions : int
        Components of the amplitude: H - 1, or 1 of one head.
    tau, log_variance : (n,) arrays
        Times, and there the logarithm of ``s = D <|a|^2> / dimensions``: ``D |a|^2 / s`` is
        chi-square distributed, with as many degrees of freedom as `dimensions`.
    rates, noise : (n,) arrays
        There, the growth rate lambda, and the variance Q of one sample's gradient.
    starts : (n',) array
        Times at which the amplitude may reach `SEED`.
    after : (k, n') array
        Times from there to the threshold, over directions that are equally likely.
    mean_rate : float
        Growth rate of the mean head at the start, beside which `rates` count only as D grows.
    """

    feature: int
    threshold: float
    kappa: float
    dimensions: int
    tau: Array
    rates: Array
    noise: Array
    log_variance: Array
    starts: Array
    after: Array
    mean_rate: float

    def __repr__(self) -> str:
        return (
            f"<EscapeLaw: feature {self.feature} to norm {self.threshold:g}, rate {self.rate:.6g} "
            f"at the start, kappa = {self.kappa:g}>"
        )

    @property
    def rate(self) -> float:
        """Growth rate at the start; without noise ``log D / (2 rate)`` is the passage to leading order.

        With noise r grows, slowly but without end, and lambda falls with it.
        """
        return float(self.rates[0])

    def passage(self, start: Array) -> Array:
        """Return when the threshold is passed (k, n), given when the amplitude reaches `SEED` (n,)."""
        found: Array = start + self._after(np.clip(start, self.starts[0], self.starts[-1]))
        return found

    @cached_property
    def _after(self) -> PchipInterpolator:
        return PchipInterpolator(self.starts, self.after, axis=1)

    @cached_property
    def _spread(self) -> CubicSpline:
        return CubicSpline(self.tau, self.log_variance)

    def probability(self, tau: float, dimension: float) -> float:
        """Return the probability of a passage before a time.

        Parameters
        ----------
        tau : float
        dimension : float
            Token dimension D.
        """
        tau = real_number("tau", tau)
        dimension = real_number("dimension", dimension, minimum=1)
        if tau < 0:
            return 0.0
        # When must the amplitude have reached SEED? An initial one beyond it did before the start.
        ends = -float(self.after.max()), max(self.tau[-1], tau) + 1.0
        grid = np.concatenate([ends[:1], self.tau, ends[1:]])
        since = np.array([np.interp(tau, x, grid) for x in self.passage(grid)])
        log_variance = self._spread(np.clip(since, 0, self.tau[-1]))
        log_variance += 2 * self.rates[0] * np.minimum(since, 0.0)
        log_variance += 2 * self.rates[-1] * np.maximum(since - self.tau[-1], 0.0)
        needed = np.exp(np.minimum(2 * np.log(SEED) + np.log(dimension) - log_variance, 700.0))
        return float(chi2.sf(needed, self.dimensions).mean())

    def quantile(self, probability: float, dimension: float) -> float:
        """Return the time before which a passage has a probability.

        Parameters
        ----------
        probability : float
            Between 0 and 1, both excluded.
        dimension : float
            Token dimension D >= 1.

        Raises
        ------
        InputError
            If an argument is out of range.
        """
        p = real_number("probability", probability, positive=True)
        if p >= 1:
            raise InputError("probability", probability, "a number between 0 and 1")
        size = real_number("dimension", dimension, minimum=1)
        level = chi2.isf(p, self.dimensions)
        late = self.tau[-1]
        late += (2 * np.log(SEED) + np.log(size) - np.log(level) - self.log_variance[-1]) / (
            2 * self.rates[-1]
        )
        high = max(late, self.tau[-1]) + float(self.after.max())
        while self.probability(high, size) < p:
            high *= 2
        if self.probability(0.0, size) >= p:
            return 0.0
        return float(brentq(lambda t: self.probability(t, size) - p, 0.0, high, xtol=1e-10))


def escape_law(
    task: Task,
    attention: Attention,
    eta: float,
    kappa: float = 0.0,
    *,
    feature: int | None = None,
    threshold: float = THRESHOLD,
    seed: int = 0,
) -> EscapeLaw:
    """Predict when a feature is learned from random initial keys ``k_h ~ N(0, eta^2 I / D)``.

    Parameters
    ----------
    task : Task
        Its prior without mean.
    attention : Attention
    eta, kappa : float
        Norm of the initial keys, and ``gamma D / N_b`` (0: the limit of small steps).
    feature : int, optional
        In the order of `numeric.spectrum.feature_axes`, from 0; by default the one that grows fastest.
    threshold : float
    seed : int
        Of the directions, among heads, from which the flow is followed to the threshold.

    Returns
    -------
    EscapeLaw

    Raises
    ------
    InputError
        If the prior has a mean, or the feature does not grow.
    FlowError
        If the flow does not reach the threshold.

    Notes
    -----
    The limit D -> infinity at fixed ``tau - log(D) / (2 lambda)``: corrections are O(1/sqrt D). They are
    larger, ``O(D^(-(1 - mu/lambda)/2))``, if the mean head grows, too, at a rate mu > 0 (`mean_rate`):
    strong signals make it, in softmax those with ``nu (1 - 3/L) > 1``. With eta
    of order one r changes much on the way, and the interpolated flow is good to about 1 %. It takes some
    seconds (two heads, no noise) to a minute; quantiles for any D then take milliseconds.
    """
    eta = real_number("eta", eta, positive=True)
    if not SMALLEST <= eta <= 1 / SMALLEST:
        raise InputError("eta", eta, f"from {SMALLEST:g} to {1 / SMALLEST:g}")
    kappa = real_number("kappa", kappa, minimum=0)
    if kappa > 1 / SMALLEST:
        raise InputError("kappa", kappa, f"at most {1 / SMALLEST:g}")
    threshold = real_number("threshold", threshold, positive=True)
    if threshold <= SEED:
        raise InputError("threshold", threshold, f"more than {SEED:g}")
    require_no_mean(task)
    moments, axes = feature_axes(task)
    if not len(moments):
        raise InputError("prior", "no features", "a feature that can be learned")
    if feature is None:
        feature = int(np.argmax(moments))
    feature = whole_number("feature", feature, 0, len(moments) - 1)
    # In the prior's principal axes a feature is a coordinate.
    task, heads = task.with_prior(rotated(task.prior, axes)), attention.heads
    start = State(np.zeros((heads, len(moments))), eta**2 * np.eye(heads))
    start = at_rest(start, task, attention)
    first = _rate(start, feature, task, attention)
    if first <= SLOWEST:
        raise InputError("feature", feature, f"one that grows (its rate is {first:.3g})")
    tau = np.linspace(0.0, COVERED / first, TIMES)
    states = _quiet_states(start, task, attention, tau, kappa)
    rates = np.array([_rate(x, feature, task, attention) for x in states])
    if rates[-1] <= SLOWEST:
        words = f"one that keeps growing (its rate falls from {first:.3g} to {rates[-1]:.3g})"
        raise InputError("feature", feature, words)
    noise = np.zeros(TIMES)
    if kappa:
        noise = np.array([_noise(x, feature, task, attention) for x in states])
    gain = CubicSpline(tau, rates).antiderivative()(tau)
    fed = CubicSpline(tau, np.exp(np.minimum(-2 * gain, 700.0)) * noise).antiderivative()(tau)
    log_variance = 2 * gain + np.log(eta**2 + kappa * np.maximum(fed, 0.0))
    dimensions = max(heads - 1, 1)
    places = np.linspace(0, TIMES - 1, STARTS if kappa else 2 * STARTS - 1).astype(int)
    follow = _Arrivals(feature, task, attention, kappa, threshold, rates.min())
    directions = _directions(heads, seed)
    last = np.array([follow(states[places[-1]], x) for x in directions])
    shift = np.array([follow(states[i], directions[0]) for i in places[:-1]]) - last[0]
    after = last[:, None] + np.append(shift, 0.0)
    return EscapeLaw(
        feature,
        threshold,
        kappa,
        dimensions,
        tau,
        rates,
        noise,
        log_variance,
        tau[places],
        after,
        -float(alike_hessian(start, task, attention).mean[feature, feature]),
    )


def _quiet_states(
    start: State, task: Task, attention: Attention, tau: Array, kappa: float
) -> list[State]:
    """The flow at m = 0, with all heads alike but for rounding."""
    path = integrate_flow(start, task, attention, tau, kappa)
    heads = attention.heads
    unit, apart = np.eye(heads), np.ones((heads, heads)) - np.eye(heads)
    found = []
    for i in range(len(tau)):
        state = path.states.at(i)
        own = float(np.trace(state.r)) / heads
        other = float((state.r * apart).sum()) / max(heads * (heads - 1), 1)
        same = {name: np.full(heads, getattr(state, name).mean()) for name in attention.parameters}
        found.append(replace(state, m=start.m, r=own * unit + other * apart, **same))
    return found


def _rate(state: State, feature: int, task: Task, attention: Attention) -> float:
    """Growth rate of the heads' differences along a feature; of one head, of its alignment."""
    found = alike_hessian(state, task, attention)
    block = found.difference if attention.heads > 1 else found.own
    return -float(block[feature, feature])


def _noise(state: State, feature: int, task: Task, attention: Attention) -> float:
    """Variance of one sample's gradient along the same."""
    matrix = magnetization_diffusion(state, task, attention)[0][:, feature, :, feature]
    heads = attention.heads
    if heads == 1:
        return float(matrix[0, 0])
    # Trace over differences: of the H - 1 components, each has the same variance.
    return float(np.trace(matrix) - matrix.sum() / heads) / (heads - 1)


def _directions(heads: int, seed: int) -> Array:
    """Directions (k, H) of the heads' differences, all equally likely, up to permutations of heads."""
    rng = np.random.default_rng(np.random.SeedSequence(whole_number("seed", seed, 0)))
    found = rng.standard_normal((DIRECTIONS, heads))
    if heads > 1:
        found -= found.mean(axis=1, keepdims=True)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    distinct: Array = np.unique(np.round(np.sort(found, axis=1), 12), axis=0)
    return distinct


@dataclass(frozen=True)
class _Arrivals:
    """How long the flow takes from amplitude `SEED` to the threshold."""

    feature: int
    task: Task
    attention: Attention
    kappa: float
    threshold: float
    rate: float

    def __call__(self, state: State, direction: Array) -> float:
        m = np.zeros_like(state.m)
        m[:, self.feature] = SEED * direction
        for times in ARRIVES:
            path = integrate_flow(
                replace(state, m=m),
                self.task,
                self.attention,
                [0.0, times / self.rate],
                self.kappa,
                threshold=self.threshold,
            )
            found = float(path.first_passage[self.feature])
            if np.isfinite(found):
                return found
        raise FlowError(
            f"flow: norm {self.threshold:g} is not reached within tau = {times / self.rate:.3g}; "
            "alignments may saturate below it"
        )
