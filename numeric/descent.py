"""What all runs of one stochastic gradient descent share, and how they are followed.

Both ways of simulating it, `numeric.direct` and `numeric.reduced`, keep the keys of each run as rows of
coordinates, the F hidden directions first, and advance a group of runs sample by sample.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from numeric.errors import SimulationError
from numeric.quadrature import Array, symmetric_root
from numeric.task import Attention, State, Task
from numeric.watch import Watch


@dataclass(frozen=True)
class Descent:
    """Settings of the descent.

    Parameters
    ----------
    task : Task
    attention : Attention
    dimension, batch : int
        Token dimension D, and samples N_b of a step.
    step : float
        Step size gamma.
    target : {"token", "location"}
        See `numeric.run_sgd`.
    watches : sequence of Watch
        Norms whose first passages are noted.
    stop : bool
        Whether a run that has passed them all does not count any more.
    """

    task: Task
    attention: Attention
    dimension: int
    batch: int
    step: float
    target: str
    watches: Sequence[Watch] = ()
    stop: bool = False

    @property
    def scale(self) -> float:
        """Step size of a sum over the samples of a step."""
        return self.step / self.batch


class Group(ABC):
    """A group of runs on their way.

    Parameters
    ----------
    descent : Descent
    rngs : list of Generator
        One stream for each run.
    state : State
        Where they start, batch shape (runs,).

    Attributes
    ----------
    done : int
        Steps taken.
    passed : (runs, n) array of int
        Steps after which each watched norm first exceeded its threshold; -1 if it has not yet.
    """

    compiled = False

    def __init__(self, descent: Descent, rngs: list[Generator], state: State) -> None:
        self.descent, self.rngs, self.done = descent, rngs, 0
        self.starts = state.m
        self.others = {name: getattr(state, name).copy() for name in descent.attention.parameters}
        size = state.m.shape[1] * state.m.shape[2]
        rows = [x.rows for x in descent.watches]
        self.rows = np.concatenate([np.empty((0, size)), *rows])
        self.ends = np.cumsum([len(x) for x in rows], dtype=np.int64)
        self.passed = np.full((len(rngs), len(rows)), -1, dtype=np.int64)
        self.note_passages(state.m)

    @abstractmethod
    def advance(self, stop: int) -> None:
        """Take steps up to a number of them, or fewer: as many as the numbers drawn together allow."""

    @property
    @abstractmethod
    def resumable(self) -> bool:
        """Whether `arrays` and the generators' states are all that the runs depend on from here on."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that the runs depend on from here on, all with the run as first axis."""

    @abstractmethod
    def restore(self, arrays: dict[str, NDArray[Any]], done: int) -> None:
        """Take over arrays from another time."""

    @abstractmethod
    def order_parameters(self) -> tuple[Array, Array]:
        """Return m (runs, H, F) and r (runs, H, H)."""

    def keep(self, which: NDArray[np.bool_]) -> None:
        """Go on with some of the runs only."""
        self.rngs = [rng for rng, kept in zip(self.rngs, which, strict=True) if kept]
        self.restore({name: x[which] for name, x in self.arrays().items()}, self.done)

    def note_passages(self, m: Array) -> None:
        """Note which watched norms exceed their thresholds now."""
        if not len(self.ends):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            # Sums whose order does not depend on the number of runs, as BLAS's does.
            squares = np.einsum("ra,na->rn", m.reshape(len(m), -1), self.rows) ** 2
            begins = [0, *self.ends[:-1]]
            beyond = [
                squares[:, i:j].sum(axis=1) > 1 for i, j in zip(begins, self.ends, strict=True)
            ]
        self.passed[(self.passed < 0) & np.stack(beyond, axis=1)] = self.done

    def check(self, *values: Array) -> None:
        """Refuse values that are not finite, each with the run as first axis, of runs that count.

        Raises
        ------
        SimulationError
        """
        counts = np.ones(len(self.passed), dtype=bool)
        if self.descent.stop:
            counts = np.asarray((self.passed < 0).any(axis=1))
        if not all(np.isfinite(value[counts]).all() for value in values):
            step = self.descent.step
            where = f"tau = {step * self.done:.6g}, after {self.done} steps of size {step:.6g}"
            raise SimulationError(
                f"a run has diverged by {where}: take a smaller step (or kappa, or a larger dimension)"
            )


def roots(r: Array) -> Array:
    """Return symmetric roots of overlaps (runs, H, H)."""
    return np.array([symmetric_root(x) for x in r]).reshape(r.shape)
