"""Validators of arguments: each returns the value in canonical form or raises `InputError`.

Booleans are never numbers here, no number may be NaN or infinite, and arrays come back as read-only
float64 copies.
"""

import difflib
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import Field, fields
from numbers import Real
from types import EllipsisType
from typing import Any, ClassVar, TypeGuard

import numpy as np
from numpy.typing import NDArray

from numeric.errors import InputError, Verbatim, describe

FloatArray = NDArray[np.float64]
Shape = tuple[int | EllipsisType | None, ...]

LARGEST = 2**63 - 1
"""The largest whole number accepted anywhere."""

ROUND_OFF = 1e-10
"""How far, relative to its scale, a double-precision input may miss a property such as symmetry."""

SINGLE_ROUND_OFF = 1e-6
"""The same for sums and matrices that were computed in single precision."""

_MOST_AXES = 16


def store(instance: object, **values: object) -> None:
    """Set attributes of a frozen dataclass instance; for its own ``__post_init__`` only."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


class ByValue:
    """Equality and hash by the values of the dataclass fields, arrays included."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def _values(self) -> tuple[object, ...]:
        values = (getattr(self, f.name) for f in fields(self))
        return tuple(  # + 0.0 makes -0.0 the zero it equals
            (v.shape, (v + 0.0).tobytes()) if isinstance(v, np.ndarray) else v for v in values
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ByValue) or type(self) is not type(other):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))


def read_only(array: FloatArray) -> FloatArray:
    """Mark an array as read-only and return it."""
    array.setflags(write=False)
    return array


def choices_words(value: object, choices: Iterable[str]) -> str:
    """Return the words "one of ..." for a message, with a suggestion for a near miss."""
    names = list(choices)
    near = difflib.get_close_matches(value, names, 1) if isinstance(value, str) else []
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"one of {', '.join(map(repr, names))}{hint}"


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    """Validate a choice among names.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : object
        The candidate.
    choices : iterable of str
        What is allowed.

    Raises
    ------
    InputError
        If `value` is not among `choices`; the message lists them and suggests the nearest.
    """
    names = list(choices)
    if not isinstance(value, str) or value not in names:
        raise InputError(name, value, choices_words(value, names))
    return value


def whole_number(name: str, value: object, minimum: int, maximum: int = LARGEST) -> int:
    """Validate a whole number; a float of integral value is accepted.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : object
        The candidate.
    minimum, maximum : int
        The valid range, both ends included.

    Returns
    -------
    int
        A Python integer, so later powers of it cannot wrap around.

    Raises
    ------
    InputError
        If `value` is not a whole number of that range; booleans and text are not numbers.
    """
    number = None
    if _is_number(value):
        with suppress(ValueError, OverflowError):  # NaN, infinity
            number = int(value)
    if number is None or number != value or not minimum <= number <= maximum:
        bounded = maximum < LARGEST or (number is not None and number > maximum)
        upper = f" and <= {maximum}" if bounded else ""
        raise InputError(name, value, f"a whole number >= {minimum}{upper}")
    return number


def real_number(
    name: str, value: object, minimum: float | None = None, positive: bool = False
) -> float:
    """Validate a finite real number.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : object
        The candidate.
    minimum : float, optional
        The least allowed value.
    positive : bool
        Whether the number must also be > 0.

    Raises
    ------
    InputError
        If `value` is not such a number; booleans and text are not numbers.
    """
    number = _as_float(value)
    below = number is not None and (
        (minimum is not None and number < minimum) or (positive and number <= 0)
    )
    if number is None or not math.isfinite(number) or below:
        bounds = (f" >= {minimum:g}" if minimum is not None else "") + (" > 0" if positive else "")
        raise InputError(name, value, f"a finite number{bounds}")
    return number


def real_array(name: str, value: object, shape: Shape) -> FloatArray:
    """Validate an array of finite real numbers.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : array_like
        An array, or nested sequences of numbers.
    shape : tuple
        The shape; ``None`` stands for any length, a leading ``...`` for any leading axes. An empty
        sequence is accepted for every shape without entries, such as (0, 0).

    Returns
    -------
    ndarray of float64
        A read-only copy.

    Raises
    ------
    InputError
        If an entry is not a finite number (booleans and text are not numbers), rows are of unequal
        length, or the shape is another one.
    """
    words = ", ".join("any" if n is None else "..." if n is ... else str(n) for n in shape)
    expected = f"finite numbers in shape ({words}{',' if len(shape) == 1 else ''})"
    array = _as_floats(name, value, expected)
    lengths = tuple(n for n in shape if isinstance(n, int))
    if array.shape == (0,) and len(lengths) == len(shape) and 0 in lengths:
        array = array.reshape(lengths)
    if not _has_shape(array.shape, shape) or not np.isfinite(array).all():
        raise InputError(name, array, expected)
    return read_only(array)


def points(name: str, value: object) -> FloatArray:
    """Validate a non-empty list of points.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : array_like, shape (K, F)
        K >= 1 points of R^F; F may be 0.

    Raises
    ------
    InputError
        If there is no point, an entry is not a finite number, or the shape is another one.
    """
    array = real_array(name, value, (None, None))
    if not len(array):
        raise InputError(name, array, "at least one row")
    return array


def probability_vector(name: str, value: object) -> FloatArray:
    """Validate probabilities; sums off by single-precision round-off are renormalized.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : array_like, shape (K,)
        K >= 1 probabilities; zeros are allowed.

    Raises
    ------
    InputError
        If an entry is negative or not finite, or the sum misses 1 by more than 1e-6.
    """
    expected = "numbers >= 0 that sum to 1"
    array = real_array(name, value, (None,))
    outside = np.flatnonzero((array < 0) | (array > 1 + SINGLE_ROUND_OFF))
    if len(outside):
        raise InputError(name, Verbatim(f"{array[outside[0]]} at {outside[:1].tolist()}"), expected)
    total = math.fsum(array)
    if not abs(total - 1) <= SINGLE_ROUND_OFF:
        raise InputError(name, Verbatim(f"a sum of {total:.12g}"), expected)
    return read_only(array / total)


def psd_matrix(name: str, value: object, size: int, batch: Shape = ()) -> FloatArray:
    """Validate symmetric positive semi-definite matrices, relative to the scale of each.

    Parameters
    ----------
    name : str
        The argument's name, for the message.
    value : array_like, shape (*batch, size, size)
        The matrices; singular ones are accepted.
    size : int
        Number of rows and columns.
    batch : tuple
        Shape of the leading axes, in the notation of `real_array`.

    Returns
    -------
    ndarray of float64, shape (*batch, size, size)
        Exactly symmetric: the lower triangles, mirrored. Eigenvalues may be negative by round-off
        (1e-10 of the largest entry, 1e-6 if `value` is a single-precision array), so square roots
        must clip them.

    Raises
    ------
    InputError
        If the shape is another one, or a matrix is asymmetric or indefinite by more than round-off.
    """
    matrices = real_array(name, value, (*batch, size, size))
    single = isinstance(value, np.ndarray) and value.dtype in (np.float32, np.float16)
    tolerance = SINGLE_ROUND_OFF if single else ROUND_OFF
    scale = np.abs(matrices).max(axis=(-2, -1), keepdims=True, initial=0)
    with np.errstate(under="ignore"):
        unit = matrices / np.where(scale > 0, scale, 1)
        skewness = np.abs(unit - unit.mT).max(axis=(-2, -1), initial=0)
        lowest = np.linalg.eigvalsh((unit + unit.mT) / 2).min(axis=-1, initial=0)
    expected = "a symmetric positive semi-definite matrix"
    if (skewness > tolerance).any():
        found = f"an asymmetry {skewness.max():.3g} times the largest entry"
        raise InputError(name, Verbatim(found), expected)
    if (lowest < -tolerance).any():
        found = f"an eigenvalue {lowest.min():.3g} times the largest entry"
        raise InputError(name, Verbatim(found), expected)
    return read_only(np.tril(matrices) + np.tril(matrices, -1).mT)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _as_float(value: object) -> float | None:
    if not _is_number(value):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):  # e.g. 10**400
        return None


def _as_floats(name: str, value: object, expected: str) -> FloatArray:
    try:
        raw = value if isinstance(value, np.ndarray) else np.array(value, dtype=object)
    except ValueError:  # arrays that do not stack
        raise InputError(name, Verbatim("rows of unequal length"), expected) from None
    if raw.dtype.kind not in "iufO" or raw.ndim > _MOST_AXES:
        raise InputError(name, value, expected)
    if raw.dtype.kind != "O":
        with np.errstate(over="ignore"):  # a long double may become infinite, and is then refused
            return np.array(raw, dtype=np.float64)
    if raw.ndim == 0 and _as_float(raw.item()) is None:
        raise InputError(name, value, expected)
    array = np.empty(raw.shape)
    for index, entry in np.ndenumerate(raw):
        number = _as_float(entry)
        if number is None:
            ragged = isinstance(entry, list | tuple | np.ndarray)
            where = f"{describe(entry)} at {list(index)}"
            found = Verbatim("rows of unequal length" if ragged else where)
            raise InputError(name, found, expected)
        array[index] = number
    return array


def _has_shape(found: tuple[int, ...], shape: Shape) -> bool:
    if shape[:1] == (...,):
        shape = shape[1:]
        found = found[max(len(found) - len(shape), 0) :]
    return len(found) == len(shape) and all(
        want in (None, have) for want, have in zip(shape, found, strict=True)
    )
