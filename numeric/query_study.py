"""The field of one query as a function of its parameters: fixed points, phase diagram, regularity."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.stats import linregress

from numeric.errors import InputError
from numeric.quadrature import Array
from numeric.query import QueryTask, query_objective
from numeric.validate import one_of, real_array, real_number, whole_number

NODES = 24
PARAMETERS = ("informative", "nuisance", "dimension", "theta", "beta", "sigma")


@dataclass(frozen=True)
class FixedPoint:
    """A fixed point of ``d alpha / dt = (1 - alpha^2) J'(alpha)``.

    Attributes
    ----------
    alpha : float
        From 0 to 1; there is one at -alpha, too.
    rate, error : float
        Derivative of the field there: ``(1 - alpha^2) J'' - 2 alpha J'``. A displacement grows as
        ``exp(rate t)``; at alpha = 1 this is that of ``1 - alpha``, twice that of q - u.
    """

    alpha: float
    rate: float
    error: float

    @property
    def stable(self) -> bool | None:
        """Whether it attracts; none if the rate is zero within its error."""
        return None if abs(self.rate) <= self.error else self.rate < 0

    @property
    def kind(self) -> str:
        """The same in a word."""
        return {True: "attracts", False: "repels", None: "marginal"}[self.stable]


@dataclass(frozen=True)
class GrowthMap:
    """Growth rates of alpha at the equator over two parameters.

    Attributes
    ----------
    task : QueryTask
        All other parameters.
    names : tuple of two str
        Parameters along x and y.
    x, y : arrays
    growth, error : (y, x) arrays
        J''(0). A query leaves the equator after a time of about ``log(d) / (2 J''(0))``; where the rate
        is not positive, never.
    """

    task: QueryTask
    names: tuple[str, str]
    x: Array
    y: Array
    growth: Array
    error: Array


@dataclass(frozen=True)
class FieldChange:
    """How much unequal norms of tokens change the field, against the dimension.

    Attributes
    ----------
    dimension : array
    change, size : arrays
        Largest change of ``(1 - alpha^2) J'`` over alpha, and the largest field itself.
    exponent, error : float
        Of the relative change in d, and its standard error.
    """

    dimension: Array
    change: Array
    size: Array
    exponent: float
    error: float


def fixed_points(task: QueryTask, points: int = 41) -> tuple[FixedPoint, ...]:
    """Return the fixed points of the flow with alpha from 0 to 1, and their stability.

    Parameters
    ----------
    task : QueryTask
    points : int
        Alignments between which zeros of J' are looked for; two that are closer are missed.

    Raises
    ------
    InputError
        If `points` is not a whole number >= 2.
    """
    at = np.linspace(0, 1, whole_number("points", points, 2))
    fine = query_objective(task, at, 1e-12)
    # A sign within the error is none.
    slope = np.where(np.abs(fine.slope) > fine.slope_error, fine.slope, 0.0)
    found = [0.0]
    for a, b, left, right in zip(at[1:-1], at[2:], slope[1:-1], slope[2:], strict=True):
        if left * right < 0:
            found.append(brentq(lambda x: float(query_objective(task, x, 1e-12).slope), a, b))
    return tuple(_fixed_point(task, a) for a in (*found, 1.0))


def _fixed_point(task: QueryTask, alpha: float) -> FixedPoint:
    at = query_objective(task, alpha, 1e-12)
    rate = (1 - alpha**2) * at.curvature - 2 * alpha * at.slope
    error = (1 - alpha**2) * at.curvature_error + 2 * alpha * at.slope_error
    return FixedPoint(alpha, float(rate), float(error))


def growth_map(
    task: QueryTask,
    x: tuple[str, ArrayLike],
    y: tuple[str, ArrayLike],
    *,
    fixed_noise: bool = False,
    progress: Callable[[float], object] | None = None,
) -> GrowthMap:
    """Return the growth rate at the equator over two parameters.

    Parameters
    ----------
    task : QueryTask
        All other parameters.
    x, y : (str, array_like)
        Name of a parameter of `QueryTask`, and its values.
    fixed_noise : bool
        Along the dimension: keep sigma, instead of ``sigma sqrt(d)``.
    progress : callable, optional
        Called with the fraction done.

    Raises
    ------
    InputError
        If a name or a value is not one of `QueryTask`.
    """
    names = tuple(one_of(label, name[0], PARAMETERS) for label, name in (("x", x), ("y", y)))
    if names[0] == names[1]:
        raise InputError("y", names[1], f"another parameter than x ({names[0]})")
    values = [
        real_array(name, given[1], (None,)) for name, given in zip(names, (x, y), strict=True)
    ]
    shape = len(values[1]), len(values[0])
    found = np.empty((2, *shape))
    for i, j in np.ndindex(shape):
        cell = dict(zip(names, (float(values[0][j]), float(values[1][i])), strict=True))
        at = query_objective(varied(task, cell, fixed_noise), 0.0, 1e-10)
        found[:, i, j] = at.curvature, at.curvature_error
        if progress is not None:
            progress((i * shape[1] + j + 1) / np.prod(shape))
    return GrowthMap(task, (names[0], names[1]), *values, *found)


def varied(task: QueryTask, values: dict[str, float], fixed_noise: bool = False) -> QueryTask:
    """Return a task with other values of some parameters; ``sigma sqrt(d)`` is kept by default."""
    whole = ("informative", "nuisance", "dimension")
    given = {k: int(v) if k in whole and v == int(v) else v for k, v in values.items()}
    if "dimension" in given and "sigma" not in given and not fixed_noise:
        given["sigma"] = task.sigma * np.sqrt(task.dimension / given["dimension"])
    return replace(task, **given)  # type: ignore[arg-type]


def field_change(
    task: QueryTask, dimensions: ArrayLike, spread: float = 1.0, points: int = 9
) -> FieldChange:
    """Compare the field of tokens of unequal norms with that of equal ones, exactly.

    Parameters
    ----------
    task : QueryTask
        Of equal norms; ``sigma sqrt(d)`` is kept.
    dimensions : (n,) array_like of int
        At least three.
    spread : float
        c > 0: norms are multiplied by ``1 + c xi / sqrt d``.
    points : int
        Alignments between 0 and 1.

    Raises
    ------
    InputError
        If an argument is out of range.

    Notes
    -----
    Claim B3.
    """
    sizes = real_array("dimensions", dimensions, (None,))
    if len(sizes) < 3:
        raise InputError("dimensions", dimensions, "at least three dimensions")
    spread = real_number("spread", spread, positive=True)
    at = np.linspace(0, 1, whole_number("points", points, 1) + 2)[1:-1]
    fields = np.array(
        [
            [
                (1 - at**2) * query_objective(replace(one, spread=c), at, 1e-10).slope
                for c in (0.0, spread)
            ]
            for one in (varied(task, {"dimension": d}) for d in sizes)
        ]
    )
    change = np.abs(fields[:, 1] - fields[:, 0]).max(axis=1)
    size = np.abs(fields[:, 0]).max(axis=1)
    fit = linregress(np.log(sizes), np.log(change / size))
    return FieldChange(sizes, change, size, float(fit.slope), float(fit.stderr))


def field_lipschitz(task: QueryTask, points: int = 41) -> float:
    """Return the largest slope of the field ``(1 - alpha^2) J'(alpha)`` over [-1, 1].

    Parameters
    ----------
    task : QueryTask
    points : int
        Alignments from 0 to 1 at which it is computed; the field is odd.

    Raises
    ------
    InputError
        If `points` is not a whole number >= 2.

    Notes
    -----
    Claim B4: ``|(1 - alpha^2) J'' - 2 alpha J'|``, exact at the points.
    """
    at = np.linspace(0, 1, whole_number("points", points, 2))
    found = query_objective(task, at, 1e-8)
    return float(np.abs((1 - at**2) * found.curvature - 2 * at * found.slope).max())


def time_to_align(task: QueryTask, alignment: float = 0.9, start: float | None = None) -> float:
    """Return the time of the flow from one alignment to another.

    Parameters
    ----------
    task : QueryTask
    alignment : float
        Target, between the start and 1.
    start : float, optional
        By default ``d^(-1/2)``, that of a random query.

    Returns
    -------
    float
        ``int d alpha / ((1 - alpha^2) J')``; infinite if J' is not positive beyond its error on the way.

    Raises
    ------
    InputError
        If the alignments are not ``0 < start < alignment < 1``.
    """
    first = task.dimension**-0.5 if start is None else real_number("start", start, positive=True)
    last = real_number("alignment", alignment, positive=True)
    if not first < last < 1:
        raise InputError("alignment", alignment, f"a number between {first:.6g} and 1")
    # In x = artanh alpha, d alpha = (1 - alpha^2) dx; near zero 1/J' is 1/alpha: equal steps in log x.
    z, weights = leggauss(NODES)
    ends = np.log(np.arctanh([first, last]))
    middle, half = ends.mean(), np.diff(ends)[0] / 2
    x = np.exp(middle + half * z)
    found = query_objective(task, np.tanh(x), 1e-10)
    if not (found.slope > found.slope_error).all():
        return float("inf")
    return float(half * np.sum(weights * x / found.slope))
