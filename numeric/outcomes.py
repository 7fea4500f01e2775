"""What training finds: ends of flows from random keys, their losses, and the patterns of their heads.

A head is classified by its alignments with the features:

unused
    ``|m_h|`` is less than a fifth of the largest head's (or no head exceeds a tenth of one).
single direction
    one feature takes part.
mixture
    several do: those with ``|m_hf|`` above three tenths of the head's largest alignment.

So the classes refer to the axes of the prior as it is given: give it in those of its covariance
(`numeric.prior.rotated`), unless it is isotropic, where no axes are distinguished.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from numeric.bayes import Risk, bayes_risk
from numeric.flow import integrate_flow
from numeric.loss import population_loss
from numeric.phases import random_starts
from numeric.quadrature import Array
from numeric.sgd import run_sgd
from numeric.tabular import Tabular
from numeric.task import Attention, State, Task
from numeric.validate import one_of, real_array, real_number, whole_number

# Norm of a head, relative to the largest, below which it is unused; least norm of a used one.
UNUSED, LEAST = 0.2, 0.1
# Alignment, relative to the head's largest, from which on a feature takes part.
PART = 0.3
# Heads from which on pooled weights are simulated, for their flow is slow.
MANY = 4
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Pattern:
    """What each head is aligned with.

    Attributes
    ----------
    heads : tuple of tuple of int
        For each head the features that take part, counted from 1 and signed: (1, -2) is ``+e1 -e2``; ()
        for an unused head.
    """

    heads: tuple[tuple[int, ...], ...]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of unused heads, of single directions and of mixtures."""
        sizes = Counter(min(len(x), 2) for x in self.heads)
        return sizes[0], sizes[1], sizes[2]

    @property
    def features(self) -> tuple[int, ...]:
        """Features that take part in any head, counted from 1."""
        return tuple(sorted({abs(f) for head in self.heads for f in head}))

    def __str__(self) -> str:
        return ", ".join(
            "".join(f"{'+' if f > 0 else '-'}e{abs(f)}" for f in head) or "unused"
            for head in self.heads
        )

    @property
    def summary(self) -> str:
        """The counts in words."""
        unused, single, mixed = self.counts
        words = ("mixture", mixed), ("single direction", single), ("unused head", unused)
        return ", ".join(f"{n} {word}{'s' * (n > 1)}" for word, n in words if n)


def classify(m: ArrayLike) -> Pattern:
    """Return the pattern of alignments m (H, F), see the module's definition.

    Raises
    ------
    InputError
        If they are not a finite matrix.
    """
    m = real_array("m", m, (None, None))
    with np.errstate(over="ignore"):
        norms = np.minimum(np.linalg.norm(m, axis=1), np.finfo(float).max)
    least = max(UNUSED * norms.max(initial=0.0), LEAST)
    heads = []
    for row, norm in zip(m, norms, strict=True):
        part = np.flatnonzero(np.abs(row) > PART * np.abs(row).max(initial=0.0))
        heads.append(tuple(int(np.sign(row[f])) * (int(f) + 1) for f in part if norm >= least))
    return Pattern(tuple(heads))


@dataclass(frozen=True, repr=False)
class Outcomes(Tabular):
    """Ends of independent trainings.

    Attributes
    ----------
    states : State
        Batch of shape (runs,).
    losses, errors : (runs,) arrays
        Population loss there, and its error.
    moving : (runs,) array
        Largest entry of dE/dm that is left: training would have gone on where it is not small.
    patterns : tuple of Pattern
    bayes : Risk
    method : str
        "flow" or "sgd".
    """

    states: State
    losses: Array
    errors: Array
    moving: Array
    patterns: tuple[Pattern, ...]
    bayes: Risk
    method: str

    @property
    def groups(self) -> dict[str, Array]:
        """Losses by the patterns' summaries, the most frequent one first."""
        names = [x.summary for x in self.patterns]
        return {
            name: self.losses[[x == name for x in names]]
            for name, _ in Counter(names).most_common()
        }

    def rows(self) -> list[list[str]]:
        """Return a row for each pattern, the most frequent first; see `Tabular`."""
        return [
            ["pattern", "runs", "least loss", "largest loss"],
            *(
                [name, str(len(x)), f"{x.min():.6g}", f"{x.max():.6g}"]
                for name, x in self.groups.items()
            ),
        ]

    def __repr__(self) -> str:
        words = "; ".join(f"{len(x)} x ({name})" for name, x in self.groups.items())
        return f"<Outcomes: losses {self.losses.min():.6g} to {self.losses.max():.6g}: {words}>"


def training_outcomes(
    task: Task,
    attention: Attention,
    *,
    runs: int = 16,
    eta: float = 0.1,
    dimension: int = 1000,
    tau_max: float = 300.0,
    kappa: float = 0.0,
    seed: int = 0,
    method: str | None = None,
    workers: int = 1,
    progress: Callable[[float], object] | None = None,
) -> Outcomes:
    """Train from random keys, and look at what was found.

    Parameters
    ----------
    task : Task
    attention : Attention
    runs, seed : int
        Number of random initial keys, and the seed of them all.
    eta, dimension : float, int
        Keys are ``N(0, eta^2 I / D)``.
    tau_max, kappa : float
        When to stop, and the noise ``gamma D / N_b``; SGD needs some, and takes 0.2 where it is 0.
    method : {"flow", "sgd"}, optional
        The order-parameter flow, or SGD at that D, exact in law. By default the flow, except for pooled
        weights of four heads or more.
    workers : int
        Threads of SGD.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    Outcomes

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    runs, seed = whole_number("runs", runs, 1), whole_number("seed", seed, 0)
    tau_max = real_number("tau_max", tau_max, positive=True)
    kappa = real_number("kappa", kappa, minimum=0)
    if method is None:
        pooled = attention.kernel.NORMALIZATION == "pooled" and attention.heads >= MANY
        method = "sgd" if pooled else "flow"
    method = one_of("method", method, ("flow", "sgd"))
    workers = whole_number("workers", workers, 1)
    risk = bayes_risk(task)
    states = random_starts(task, attention, eta, dimension, seed, runs)
    if method == "sgd":
        found = run_sgd(
            states,
            task,
            attention,
            dimension=dimension,
            tau=[tau_max],
            kappa=kappa or 0.2,
            runs=runs,
            seed=seed,
            method="reduced",
            workers=workers,
            progress=progress,
        )
        b, v = (None if x is None else x[:, -1] for x in (found.b, found.v))
        states = State(found.m[:, -1], found.r[:, -1], b, v)
        ends = [states.at(i) for i in range(runs)]
    else:
        ends = []
        for i in range(runs):
            told = None if progress is None else _part(progress, i, runs)
            start = states.at(i)
            path = integrate_flow(start, task, attention, [0.0, tau_max], kappa, progress=told)
            ends.append(path.states.at(-1))
        order = {
            name: np.array([getattr(x, name) for x in ends])
            for name in ("m", "r", *attention.parameters)
        }
        states = State(**order)
    losses = [population_loss(x, task, attention, TOLERANCE) for x in ends]
    return Outcomes(
        states,
        np.array([float(x.value) for x in losses]),
        np.array([float(x.error) for x in losses]),
        np.array([np.abs(x.m).max(initial=0.0) for x in losses]),
        tuple(classify(x.m) for x in ends),
        risk,
        method,
    )


def _part(progress: Callable[[float], object], i: int, runs: int) -> Callable[[float], None]:
    """Progress of one run among all."""

    def told(fraction: float) -> None:
        progress((i + fraction) / runs)

    return told
