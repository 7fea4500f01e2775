"""How the unspecialized saddle changes with a parameter, and where heads start to part from it.

The parameter is whatever a function of one number makes of it: a variance, the mean signal, the number of
heads, or the number of tokens as a real number (`numeric.task.Task.continued`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from numeric.errors import InputError
from numeric.quadrature import Array
from numeric.saddles import Saddle, unspecialized_saddle
from numeric.task import Attention, Task
from numeric.validate import real_array

Problem = Callable[[float], tuple[Task, Attention]]

ACCURACY = 1e-10
"""Relative accuracy of a bifurcation's parameter."""


@dataclass(frozen=True)
class Branch:
    """The unspecialized saddle along a parameter.

    Attributes
    ----------
    values : (n,) array
    saddles : tuple of Saddle
    lowest : (n,) array
        Lowest eigenvalue of the heads' differences.
    bifurcations : (k,) array
        Parameters at which it crosses zero: specialization starts or ends.
    """

    values: Array
    saddles: tuple[Saddle, ...]
    lowest: Array
    bifurcations: Array

    def __repr__(self) -> str:
        return (
            f"<Branch: {len(self.values)} saddles from {self.values[0]:g} to {self.values[-1]:g}, "
            f"bifurcations at {self.bifurcations.tolist()}>"
        )


def follow_saddle(problem: Problem, values: ArrayLike) -> Branch:
    """Follow the unspecialized saddle along a parameter.

    Parameters
    ----------
    problem : callable
        Task and attention for each value of the parameter; at least two heads. For a real number of
        tokens, `Task.continued`.
    values : (n,) array_like
        Increasing values of the parameter.

    Returns
    -------
    Branch
        Bifurcations are located between values where the lowest eigenvalue changes sign.

    Raises
    ------
    InputError
        If values do not increase, or there is one head only.
    FlowError
        If there is no such saddle.
    """
    grid = _increasing("values", values)
    saddles: list[Saddle] = []
    for x in grid:
        task, attention = problem(float(x))
        before = saddles[-1].state if saddles else None
        same = before is not None and before.m.shape == (attention.heads, task.prior.features)
        saddles.append(unspecialized_saddle(task, attention, before if same else None))
    lowest = np.array([difference_eigenvalue(x) for x in saddles])
    signs = np.array([_sign(x) for x in saddles])
    roots = [float(x) for x in grid[signs == 0]]
    for i in np.flatnonzero(signs[:-1] * signs[1:] < 0):
        roots.append(_root(problem, float(grid[i]), float(grid[i + 1])))
    return Branch(grid, tuple(saddles), lowest, np.sort(roots))


def phase_boundary(
    problem: Callable[[float, float], tuple[Task, Attention]],
    values: ArrayLike,
    bracket: Sequence[float],
) -> Array:
    """Return, for each value of one parameter, where another one lets heads part.

    Parameters
    ----------
    problem : callable
        Task and attention for a value of each parameter.
    values : (n,) array_like
        Increasing values of the first parameter.
    bracket : (low, high)
        Where the second one is looked for.

    Returns
    -------
    (n,) array
        Where the lowest eigenvalue of the heads' differences at the unspecialized saddle vanishes: heads
        part where `difference_eigenvalue` is negative. Of several such places in the bracket it is one;
        NaN where the sign is the same at both ends.
    """
    grid, (low, high) = _increasing("values", values), _increasing("bracket", bracket)
    found = []
    for x in grid:

        def along(y: float, x: float = float(x)) -> tuple[Task, Attention]:
            return problem(x, y)

        ends = [_sign(unspecialized_saddle(*along(float(y)))) for y in (low, high)]
        if 0 in ends:
            found.append(float(low if ends[0] == 0 else high))
        else:
            apart = ends[0] * ends[1] < 0
            found.append(_root(along, float(low), float(high)) if apart else np.nan)
    return np.array(found)


def difference_eigenvalue(saddle: Saddle) -> float:
    """Return the lowest eigenvalue of the heads' differences along features.

    Raises
    ------
    InputError
        If there is one head only.
    """
    return _lowest(saddle)[0]


def _lowest(saddle: Saddle) -> tuple[float, float]:
    """That eigenvalue and its error. Biases and values alone may be flat."""
    spectrum = saddle.spectrum
    others = ("residual", "bias", "value")
    own = [x.startswith("difference") and not x.endswith(others) for x in spectrum.sectors]
    if not any(own):
        raise InputError("heads", len(saddle.state.m), "at least 2, so that heads can part")
    least = int(np.argmin(np.where(own, spectrum.eigenvalues, np.inf)))
    return float(spectrum.eigenvalues[least]), float(spectrum.errors[least])


def _sign(saddle: Saddle) -> int:
    """Sign of that eigenvalue, 0 within its error."""
    value, error = _lowest(saddle)
    return 0 if abs(value) <= error else int(np.sign(value))


def _root(problem: Problem, low: float, high: float) -> float:
    """Where the eigenvalue crosses zero; each saddle starts from the one before."""
    last: list[Saddle] = []

    def eigenvalue(x: float) -> float:
        task, attention = problem(x)
        start = last[-1].state if last else None
        last.append(unspecialized_saddle(task, attention, start))
        return difference_eigenvalue(last[-1])

    return float(brentq(eigenvalue, low, high, xtol=ACCURACY * max(abs(low), abs(high))))


def _increasing(name: str, values: ArrayLike) -> Array:
    found = real_array(name, values, (None,))
    if len(found) < 2 or (np.diff(found) <= 0).any():
        raise InputError(name, found, "at least two increasing numbers")
    return found
