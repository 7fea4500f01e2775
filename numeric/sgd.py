"""Stochastic gradient descent on the keys themselves, in D dimensions.

This is the process that the order-parameter flow is a limit of, with nothing reduced but symmetry:

- The law of the tokens is invariant under rotations, so the hidden directions are the first F axes,
  and the parts of the keys outside their span start on the next H.
- Tokens are exchangeable, so the relevant one is token 0.

Runs are independent and advance together. Each has a random stream of its own, so that run i is the
same however many runs there are, in whatever groups they advance, and whatever is recorded.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator, SeedSequence, default_rng
from numpy.typing import ArrayLike, NDArray

from numeric.activation import Kernels
from numeric.errors import InputError, SimulationError, Verbatim
from numeric.quadrature import symmetric_root
from numeric.scores import attention_weights, score_gradient
from numeric.task import Attention, State, Task
from numeric.validate import FloatArray, one_of, real_array, real_number, whole_number

NORMALS = 2**17
"""Normals held at a time, 1 MB: far above the cost of a call, and small enough for a cache."""

SIGNALS = 64
MOST_NUMBERS = 100_000_000
"""Signals that a run draws at a time, unless a step needs more."""

CHECK_EVERY = 1000
"""Steps between two checks that the keys are finite, beside those at recordings."""

RECORDINGS = 51  # when only the last time is given
MOST_SAMPLES = 2**53
PROGRESS_EVERY = 0.1  # seconds


@dataclass(frozen=True, eq=False, repr=False)
class SGDRuns:
    """Order parameters of independent runs of stochastic gradient descent.

    Attributes
    ----------
    tau : (n,) array
        Recorded times, `step` times the number of steps.
    samples : (n,) array of int
        Samples a run has used by then, `batch` times the number of steps; ``D tau / kappa``.
    m, r : (runs, n, H, F), (runs, n, H, H) arrays
    b, v : (runs, n, H) arrays or None
        Order parameters, see `State`; b and v where they are trained.
    kappa : float
        ``step * dimension / batch``.
    dimension, batch, step, seed
        As given; `step` is gamma, which follows from kappa if that was given.
    """

    tau: FloatArray
    samples: NDArray[np.int64]
    m: FloatArray
    r: FloatArray
    b: FloatArray | None
    v: FloatArray | None
    kappa: float
    dimension: int
    batch: int
    step: float
    seed: int

    def __repr__(self) -> str:
        runs, _, heads, features = self.m.shape
        return (
            f"<SGDRuns: {runs} runs of {heads} heads, {features} features, D = {self.dimension}, "
            f"kappa = {self.kappa:g}, tau up to {self.tau[-1]:g}>"
        )


def run_sgd(
    state: State,
    task: Task,
    attention: Attention,
    *,
    dimension: int,
    tau: ArrayLike,
    step: float | None = None,
    kappa: float | None = None,
    batch: int = 1,
    runs: int = 16,
    seed: int = 0,
    target: str = "token",
    progress: Callable[[float], object] | None = None,
) -> SGDRuns:
    """Run stochastic gradient descent on D-dimensional keys, from one set of order parameters.

    Parameters
    ----------
    state : State
        Where all runs start: m (H, F), r (H, H), b and v (H,). No batch axes.
    task : Task
    attention : Attention
    dimension : int
        Token dimension D >= F + H.
    tau : float or (n,) array_like
        Times to record, >= 0 and increasing, each rounded to a whole number of steps; or the last
        of about 50 equally spaced times that start at zero.
    step, kappa : float
        Step size gamma, or the noise level kappa = gamma D / batch: one of the two.
    batch : int
        Fresh samples of a step.
    runs, seed : int
        Number of runs, and the seed of them all.
    target : {"token", "location"}
        Loss of one sample: ``|x_eps - sum_l a_l x_l|^2 / D``, or its limit of orthonormal tokens,
        ``sum_l (1{l=eps} - a_l)^2``, whose mean is the population loss at every D.
    progress : callable, optional
        Called with the fraction done, ten times a second at most, and with 1 at the end.

    Returns
    -------
    SGDRuns

    Raises
    ------
    InputError
        If an argument is not as above, or the state does not fit the task and the attention.
    SimulationError
        If a parameter stops being finite.

    Notes
    -----
    `derive.task` sections 1 to 3. A run's stream gives the signals of one step or of as many as
    `SIGNALS` samples cover, then the tokens of those steps in order, and so on.
    """
    features = task.prior.features
    whole_number("tokens", task.tokens, 1)
    state = state.single(attention, features)
    least = features + attention.heads
    dimension = whole_number("dimension", dimension, 1)
    if dimension < least:
        raise InputError("dimension", dimension, f"at least features + heads = {least}")
    batch = whole_number("batch", batch, 1)
    runs = whole_number("runs", runs, 1)
    if task.tokens * dimension > MOST_NUMBERS:
        raise InputError("dimension", dimension, f"at most {MOST_NUMBERS:,} / tokens")
    if batch * features > MOST_NUMBERS:
        raise InputError("batch", batch, f"at most {MOST_NUMBERS:,} / features")
    if runs * dimension * attention.heads > MOST_NUMBERS:
        raise InputError("runs", runs, f"at most {MOST_NUMBERS:,} / (dimension * heads)")
    seed = whole_number("seed", seed, 0)
    target = one_of("target", target, ("token", "location"))
    if progress is not None and not callable(progress):
        raise InputError("progress", progress, "a function of the fraction done, or None")
    step, kappa = _step_size(step, kappa, dimension, batch)
    steps = _recorded_steps(tau, step, batch)
    descent = _Descent(task, attention, dimension, batch, step, target)
    k = np.zeros((attention.heads, dimension))
    k[:, :features] = state.m
    k[:, features : features + attention.heads] = symmetric_root(state.r)

    m = np.empty((runs, len(steps), *state.m.shape))
    r = np.empty((runs, len(steps), *state.r.shape))
    others = {name: np.empty((runs, len(steps), attention.heads)) for name in attention.parameters}
    seeds = SeedSequence(seed).spawn(runs)
    tell = _Progress(progress, runs * int(steps[-1]))
    for first in range(0, runs, descent.runs_at_a_time):
        chunk = slice(first, first + descent.runs_at_a_time)
        rngs = [default_rng(child) for child in seeds[chunk]]
        block = _Block(descent, rngs, k, state)
        for n, stop in enumerate(steps.tolist()):
            while block.done < stop:
                block.advance()
                tell(len(rngs))
            m[chunk, n], r[chunk, n] = block.order_parameters()
            for name, values in others.items():
                values[chunk, n] = block.others[name]
    if progress is not None:
        progress(1.0)
    times: FloatArray = step * steps.astype(np.float64)
    b, v = others.get("b"), others.get("v")
    return SGDRuns(times, batch * steps, m, r, b, v, kappa, dimension, batch, step, seed)


def gradient_sum(
    x: FloatArray,
    k: FloatArray,
    b: FloatArray | None,
    v: FloatArray | float,
    kernel: Kernels,
    target: str,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the loss derivatives in keys, biases and values, summed over samples.

    Parameters
    ----------
    x : (runs, samples, L, D) array
        Tokens, the relevant one first.
    k : (runs, H, D) array
    b : (runs, H) array or None
    v : (runs, H) array or float
    kernel : Kernels
        The activation.
    target : {"token", "location"}

    Returns
    -------
    in_k, in_b, in_v : (runs, H, D), (runs, H) and (runs, H) arrays
        The latter two have no meaning where the activation does not train them.
    """
    runs, samples, tokens, dimension = x.shape
    flat = x.reshape(runs, samples * tokens, dimension)
    # Samples and heads change places in views only: the data stay (runs, H, samples, L).
    chi = (k @ flat.mT).reshape(runs, -1, samples, tokens).swapaxes(1, 2)
    bias = None if b is None else b[:, None]
    value = v if isinstance(v, float) else v[:, None]
    p, a = attention_weights(chi, bias, value, kernel)
    a[..., 0] -= 1  # a - e_eps
    if target == "token":
        # X (X^T (a - e)) is cheaper than the Gram matrix X X^T of more than two tokens.
        miss = a[..., None, :] @ x
        slope = (x @ miss.mT)[..., 0]
        slope *= 2 / dimension
    else:
        slope = 2 * a
    c, in_b, in_v = score_gradient(chi, bias, value, p, slope, kernel)
    in_k = c.swapaxes(1, 2).reshape(runs, -1, samples * tokens) @ flat
    return in_k, in_b.sum(axis=1), in_v.sum(axis=1)


@dataclass(frozen=True)
class _Descent:
    """What every run has in common."""

    task: Task
    attention: Attention
    dimension: int
    batch: int
    step: float
    target: str

    @property
    def samples_at_a_time(self) -> int:
        """Samples of one step whose tokens are held together, one at least."""
        return min(self.batch, max(1, NORMALS // (self.task.tokens * self.dimension)))

    @property
    def steps_at_a_time(self) -> int:
        """Steps whose signals are drawn together: a draw from a prior is a slow call."""
        return max(1, SIGNALS // self.batch)

    @property
    def runs_at_a_time(self) -> int:
        """Runs whose tokens, keys and signals take up about `NORMALS` numbers each."""
        rows = max(self.samples_at_a_time * self.task.tokens, self.attention.heads)
        signals = self.steps_at_a_time * self.batch * self.task.prior.features
        return max(1, NORMALS // max(rows * self.dimension, signals))


class _Block:
    """A block of runs on its way, all from the same keys (H, D), biases and values (H,)."""

    def __init__(
        self, descent: _Descent, rngs: list[Generator], k: FloatArray, state: State
    ) -> None:
        self.descent, self.rngs, self.done = descent, rngs, 0
        self.k = np.repeat(k[None], len(rngs), axis=0)
        self.others = {
            name: np.repeat(getattr(state, name)[None], len(rngs), axis=0)
            for name in descent.attention.parameters
        }
        shape = descent.samples_at_a_time, descent.task.tokens, descent.dimension
        self._x = np.empty((len(rngs), *shape))

    def advance(self) -> None:
        """Take one step."""
        descent, held = self.descent, self.descent.samples_at_a_time
        attention, scale = descent.attention, descent.step / descent.batch
        if (slot := self.done % descent.steps_at_a_time) == 0:
            self._draw_signals()
        b, v = self.others.get("b"), self.others.get("v", attention.value)
        in_k = np.zeros_like(self.k)
        in_others = {"b": np.zeros(self.k.shape[:2]), "v": np.zeros(self.k.shape[:2])}
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, descent.batch, held):
                x = self._tokens(self._signals[:, slot, first : first + held])
                part = gradient_sum(x, self.k, b, v, attention.kernel, descent.target)
                in_k += part[0]
                in_others["b"] += part[1]
                in_others["v"] += part[2]
            in_k *= scale
            self.k -= in_k
            for name, values in self.others.items():
                values -= scale * in_others[name]
        self.done += 1
        if self.done % CHECK_EVERY == 0:
            self._check(self.k, *self.others.values())

    def order_parameters(self) -> tuple[FloatArray, FloatArray]:
        """Return m (runs, H, F) and r (runs, H, H)."""
        features = self.descent.task.prior.features
        m, rest = self.k[..., :features], self.k[..., features:]
        with np.errstate(over="ignore", invalid="ignore"):
            r = rest @ rest.mT
        self._check(m, r, *self.others.values())
        return m, r

    def _draw_signals(self) -> None:
        prior = self.descent.task.prior
        shape = self.descent.steps_at_a_time, self.descent.batch
        draws = np.stack([prior.sample(rng, shape[0] * shape[1]) for rng in self.rngs])
        self._signals = draws.reshape(len(self.rngs), *shape, prior.features)

    def _tokens(self, signals: FloatArray) -> FloatArray:
        """Draw the tokens that carry the signals (runs, samples, F)."""
        x = self._x[:, : signals.shape[1]]
        for rng, out in zip(self.rngs, x, strict=True):
            rng.standard_normal(out=out)
        x[:, :, 0, : signals.shape[2]] += signals
        return x

    def _check(self, *values: FloatArray) -> None:
        if not all(np.isfinite(value).all() for value in values):
            step = self.descent.step
            where = f"tau = {step * self.done:.6g}, after {self.done} steps of size {step:.6g}"
            raise SimulationError(
                f"a run has diverged by {where}: take a smaller step (or kappa, or a larger dimension)"
            )


class _Progress:
    """Reports of the fraction done, not too many."""

    def __init__(self, report: Callable[[float], object] | None, total: int) -> None:
        self._report, self._total, self._done = report, total, 0
        self._next = time.monotonic() + PROGRESS_EVERY

    def __call__(self, steps: int) -> None:
        self._done += steps
        if self._report is not None and time.monotonic() >= self._next:
            self._report(self._done / self._total)
            self._next = time.monotonic() + PROGRESS_EVERY


def _step_size(
    step: float | None, kappa: float | None, dimension: int, batch: int
) -> tuple[float, float]:
    """Return gamma and kappa, one of which is given."""
    if (step is None) == (kappa is None):
        found = Verbatim(f"step = {step} and kappa = {kappa}")
        raise InputError("step", found, "one of step and kappa")
    if step is None:
        kappa = real_number("kappa", kappa, positive=True)
        return real_number("step", kappa * batch / dimension, positive=True), kappa
    step = real_number("step", step, positive=True)
    return step, real_number("kappa", step * dimension / batch, positive=True)


def _recorded_steps(tau: ArrayLike, step: float, batch: int) -> NDArray[np.int64]:
    """Return the number of steps at each recorded time."""
    horizon = not np.iterable(tau)
    if horizon:
        times = np.linspace(0, real_number("tau", tau, minimum=0), RECORDINGS)
    else:
        times = real_array("tau", tau, (None,))
        if not len(times) or times[0] < 0 or (np.diff(times) <= 0).any():
            raise InputError("tau", tau, "increasing times >= 0, at least one")
    with np.errstate(over="ignore"):
        steps = np.rint(times / step)
    if not steps[-1] * batch < MOST_SAMPLES:
        raise InputError("tau", tau, f"times within {MOST_SAMPLES} samples, at step {step:.6g}")
    return (np.unique(steps) if horizon else steps).astype(np.int64)
