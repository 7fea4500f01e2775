"""One way to an honest error: compute with growing numbers of digits, and watch the results settle."""

from collections.abc import Callable
from typing import TypeVar

from numeric.errors import QuadratureError
from numeric.quadrature import extrapolated_error

T = TypeVar("T")

STEP = 1.5
"""Digits between two resolutions."""


def refine(
    at: Callable[[float], T],
    distances: Callable[[T, T], tuple[float, ...]],
    tol: float,
    digits: float,
    least: float,
    most: float,
    scale: Callable[[T], float] = lambda _: 1.0,
) -> tuple[T, tuple[float, ...]]:
    """Raise the digits of a computation until its estimated error is small enough.

    Parameters
    ----------
    at : callable
        The result with so many digits; a QuadratureError says that they are out of reach.
    distances : callable
        Distances of two results; the error is extrapolated from the rate at which these shrink over
        three numbers of digits.
    tol : float
        Goal for the first error.
    digits : float
        Digits to begin with; they are lowered where they are out of reach.
    least, most : float
        Fewest and most digits.
    scale : callable
        Size of the sums that a result is made of: digits count from there.

    Returns
    -------
    result, errors
        The finest result that could be afforded, and its estimated errors.

    Raises
    ------
    QuadratureError
        If not even the fewest digits can be reached.
    """
    # Whole steps end at the most digits: a shorter last one would look like convergence.
    digits = most - STEP * int((most - min(max(digits, least), most)) / STEP)
    while True:
        try:
            steps = [at(digits - k * STEP) for k in (2, 1, 0)]
            break
        except QuadratureError:
            if digits - 1 < least:
                raise
            digits -= 1
    while True:
        coarse, middle, fine = steps[-3:]
        changes = zip(distances(coarse, middle), distances(middle, fine), strict=True)
        # Rules of few nodes may be the same at several numbers of digits.
        floor = scale(fine) * 10.0**-digits
        errors = tuple(max(extrapolated_error(*pair), floor) for pair in changes)
        if errors[0] <= tol or digits >= most:
            return fine, errors
        digits = min(digits + STEP, most)
        try:
            steps.append(at(digits))
        except QuadratureError:
            return fine, errors
