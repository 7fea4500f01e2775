"""Stochastic gradient descent at finite token dimension: on the keys, or by the order parameters.

`numeric.direct` draws all D coordinates of every token. `numeric.reduced` draws what the order
parameters need, exact in law, at a cost that does not depend on D. Runs are independent. Each has a
random stream of its own, so that run i is the same however many runs there are, in whatever groups or
threads they advance, whatever is recorded, and wherever they were interrupted.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.random import SeedSequence, default_rng
from numpy.typing import ArrayLike, NDArray

from numeric import direct, reduced
from numeric.checkpoint import Checkpoint, digest
from numeric.descent import Descent, Group
from numeric.errors import InputError, Verbatim
from numeric.recording import Progress, Recording, gathered
from numeric.recording import follow as advance_to_end
from numeric.task import Attention, State, Task
from numeric.validate import FloatArray, one_of, real_array, real_number, whole_number
from numeric.watch import Watch, check_watches

MOST_NUMBERS = 100_000_000
"""Signals that a run draws at a time, unless a step needs more."""

WORTH_COMPILING = 50_000
"""Samples of a run from which compiling the loop saves time."""

RECORDINGS = 51  # when only the last time is given
MOST_SAMPLES = 2**53
MOST_WORKERS = 256


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
        Order parameters, see `State`; b and v where they are trained. NaN where a run had stopped.
    kappa : float
        ``step * dimension / batch``.
    dimension, batch, step, seed
        As given; `step` is gamma, which follows from kappa if that was given.
    watches : tuple of Watch
    passages : (runs, k) array
        First times at which the watched norms exceeded their thresholds, infinite if they did not.
    compiled : bool
        Whether the loop was.
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
    watches: tuple[Watch, ...] = ()
    passages: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    compiled: bool = False

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
    method: str = "direct",
    watch: Sequence[Watch] = (),
    stop: bool = False,
    workers: int = 1,
    checkpoint: str | Path | None = None,
    compiled: bool | None = None,
    progress: Callable[[float], object] | None = None,
) -> SGDRuns:
    """Run stochastic gradient descent at token dimension D.

    Parameters
    ----------
    state : State
        Where all runs start: m (H, F), r (H, H), b and v (H,); or with a first axis over runs.
    task : Task
    attention : Attention
    dimension : int
        Token dimension D >= F + H; "direct" needs the memory for it, "reduced" goes up to 10^15.
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
    method : {"direct", "reduced"}
        Keys of D coordinates, or the same law by the order parameters alone.
    watch : sequence of Watch
        Norms whose first passages are noted, after every step (see `numeric.watch`).
    stop : bool
        Whether a run ends when all of them are passed.
    workers : int
        Threads. Results do not depend on it.
    checkpoint : path, optional
        Folder for what is done so far: written every second or so, and kept; the same call goes on from
        there, or returns at once if it was finished.
    compiled : bool, optional
        Whether numba compiles the loop of "reduced" (extra ``fast``). By default, if it is installed
        and the runs are long enough. Results differ by rounding.
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
    `derive.task` sections 1 to 3; `numeric.reduced` derives the reduction.
    """
    features, heads = task.prior.features, attention.heads
    whole_number("tokens", task.tokens, 1)
    runs = whole_number("runs", runs, 1)
    state = _starts(state, attention, features, runs)
    method = one_of("method", method, ("direct", "reduced"))
    dimension = whole_number("dimension", dimension, 1, 10**15)
    if dimension < features + heads:
        raise InputError("dimension", dimension, f"at least features + heads = {features + heads}")
    batch = whole_number("batch", batch, 1)
    if dimension < reduced.least_dimension(heads, features):
        method = "direct"  # nothing is left to reduce
    if batch * features > MOST_NUMBERS and method == "direct":
        raise InputError("batch", batch, f"at most {MOST_NUMBERS:,} / features")
    size = dimension if method == "direct" else features + 2 * heads + 1
    if task.tokens * size > MOST_NUMBERS:
        name = "dimension" if method == "direct" else "tokens"
        found = dimension if method == "direct" else task.tokens
        raise InputError(name, found, f"tokens * {size:,} numbers at most {MOST_NUMBERS:,}")
    if runs * size * heads > MOST_NUMBERS:
        raise InputError("runs", runs, f"at most {MOST_NUMBERS:,} / {size * heads:,}")
    seed = whole_number("seed", seed, 0)
    target = one_of("target", target, ("token", "location"))
    watches = check_watches(watch, heads, features)
    for name, flag in (("stop", stop), ("compiled", compiled)):
        if not isinstance(flag, bool) and (name == "stop" or flag is not None):
            raise InputError(name, flag, "True or False")
    if stop and not watches:
        raise InputError("stop", stop, "something to watch")
    workers = whole_number("workers", workers, 1, MOST_WORKERS)
    if progress is not None and not callable(progress):
        raise InputError("progress", progress, "a function of the fraction done, or None")
    step, kappa = _step_size(step, kappa, dimension, batch)
    steps = _recorded_steps(tau, step, batch)
    entries = heads * (features + heads + len(attention.parameters))
    if runs * len(steps) * entries > MOST_NUMBERS:
        raise InputError("tau", tau, f"fewer times: {MOST_NUMBERS:,} numbers recorded at most")
    if compiled and method == "direct":
        raise InputError("compiled", compiled, "none beside the direct method")
    compiled = method == "reduced" and _compiles(compiled, attention, int(steps[-1]) * batch)

    descent = Descent(task, attention, dimension, batch, step, target, watches, stop)
    kind: type[Group] = direct.Direct if method == "direct" else reduced.Reduced
    most = (direct if method == "direct" else reduced).runs_at_a_time(descent)
    group = min(most, -(-runs // workers))
    store = None
    if checkpoint is not None:
        key = digest(descent, state, steps, runs, seed, method, compiled, stop)
        store = Checkpoint(checkpoint, key, group)
        group = store.group
    seeds = SeedSequence(seed).spawn(runs)
    halt, tell = threading.Event(), Progress(progress, runs * int(steps[-1]))

    def follow(first: int) -> Recording:
        mine = slice(first, min(first + group, runs))
        rngs = [default_rng(child) for child in seeds[mine]]
        parts = (None if x is None else x[mine] for x in (state.m, state.r, state.b, state.v))
        begun = kind(descent, rngs, State(*parts))  # type: ignore[arg-type]
        begun.compiled = compiled
        return advance_to_end(begun, steps, stop, store.of(first) if store else None, halt, tell)

    parts = gathered(follow, range(0, runs, group), workers, halt)
    if progress is not None:
        progress(1.0)
    m, r, passed = (np.concatenate([getattr(x, k) for x in parts]) for k in ("m", "r", "passed"))
    others = {
        name: np.concatenate([x.others[name] for x in parts]) for name in attention.parameters
    }
    if stop:
        ended = np.where((passed >= 0).all(axis=1), passed.max(axis=1), MOST_SAMPLES)
        over = steps > ended[:, None]
        for values in (m, r, *others.values()):
            values[over] = np.nan
    return SGDRuns(
        tau=step * steps.astype(np.float64),
        samples=batch * steps,
        m=m,
        r=r,
        b=others.get("b"),
        v=others.get("v"),
        kappa=kappa,
        dimension=dimension,
        batch=batch,
        step=step,
        seed=seed,
        watches=watches,
        passages=np.where(passed < 0, np.inf, step * passed),
        compiled=compiled,
    )


def _starts(state: State, attention: Attention, features: int, runs: int) -> State:
    """Return one state for each run."""
    state = state.check(attention, features)
    if state.batch_shape not in ((), (runs,)):
        found = Verbatim(f"a batch of shape {state.batch_shape}")
        raise InputError("state", found, f"one state, or one for each of {runs} runs")

    def each(x: FloatArray | None, axes: int) -> FloatArray | None:
        return None if x is None else np.broadcast_to(x, (runs, *x.shape[-axes:]))

    m, r, b, v = (each(x, n) for x, n in ((state.m, 2), (state.r, 2), (state.b, 1), (state.v, 1)))
    return State(m, r, b, v)  # type: ignore[arg-type]


def _compiles(wanted: bool | None, attention: Attention, samples: int) -> bool:
    """Whether the loop is compiled."""
    if wanted is False or (wanted is None and samples < WORTH_COMPILING):
        return False
    try:
        from numeric.compiled import can_compile
    except ImportError:
        if wanted:
            found = Verbatim("True without numba")
            expected = "numba, which the extra 'fast' brings"
            raise InputError("compiled", found, expected) from None
        return False
    can = can_compile(attention.activation)
    if wanted and not can:
        found = Verbatim(f"True for {attention.name}")
        raise InputError("compiled", found, "an activation that numba can compile")
    return can


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
