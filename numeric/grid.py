"""The table ``[sweep]`` of an experiment file: lists and ranges of any of its keys.

An entry is a key of the file, below ``sweep``, and a list of its values, or a range such as
``{ first = 1.0, last = 4.0, count = 7 }``, both ends included. A number in a key counts entries of a list
from 0: ``task.prior.covariance.0.0``. Cells are all combinations.
"""

import json
import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np

from numeric.errors import NOTHING, ExperimentError, InputError, Verbatim
from numeric.tables import Table
from numeric.validate import one_of, real_number, whole_number

MOST_CELLS = 1_000_000
RANGE = "a list, or a range such as { first = 1.0, last = 4.0, count = 7 }"
SEEDED = {"flow": "flow.seed", "sgd": "sgd.seed", "ascent": "ascent.seed"}
"""Which keys the axis ``seed`` sets."""
SETTINGS = ("compute", "seeds")


@dataclass(frozen=True)
class Axis:
    """One swept key.

    Attributes
    ----------
    keys : tuple of str
        Dotted keys that take the value: one, except for seeds.
    values : tuple
    """

    keys: tuple[str, ...]
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        seen: set[object] = set()
        for value in self.values:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            name: object = value if number and value == value else canonical(value)
            if name in seen:
                raise InputError(self.keys[0], Verbatim(f"{value!r} twice"), "values that differ")
            seen.add(name)


@dataclass(frozen=True)
class Grid:
    """What a sweep varies and computes.

    Attributes
    ----------
    axes : tuple of Axis
    compute : tuple of str
        Names of `numeric.quantities`; empty if not given.
    seeds : int
        Number of seeds; 0 for the file's own.
    """

    axes: tuple[Axis, ...] = ()
    compute: tuple[str, ...] = ()
    seeds: int = 0


def canonical(value: object) -> str:
    """Return a text that two values share only if they have one type and are equal.

    Raises
    ------
    InputError
        If there is no telling: it cannot be pickled.
    """
    if value is None or type(value) in (bool, int, float, str):
        return json.dumps(value)
    try:
        if type(value) in (list, tuple):
            return f"{type(value).__name__}[{', '.join(map(canonical, value))}]"  # type: ignore[call-overload]
        if type(value) is dict:
            return f"{{{', '.join(sorted(f'{canonical(k)}: {canonical(x)}' for k, x in value.items()))}}}"
        from joblib import hash as digest

        return f"{type(value).__module__}.{type(value).__qualname__} {digest(value)}"
    except InputError:
        raise
    except Exception as error:
        expected = f"what can be pickled, to know it again ({type(error).__name__})"
        raise InputError("value", value, expected) from None


def check_axes(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return axes of which none sets what another one sets, and not too many cells.

    Raises
    ------
    InputError
        If two keys are the same or one is part of the other, or there are more than `MOST_CELLS` cells.
    """
    keys = [key for axis in axes for key in axis.keys]
    for i, key in enumerate(keys):
        for other in keys[:i]:
            if f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}."):
                raise InputError(f"sweep.{key}", Verbatim(f"{other} swept, too"), "one of the two")
    cells = math.prod(len(axis.values) for axis in axes)
    if cells > MOST_CELLS:
        raise InputError("sweep", Verbatim(f"{cells} cells"), f"at most {MOST_CELLS}")
    return axes


def read_grid(file: str, entries: object) -> Grid:
    """Read a table [sweep].

    Parameters
    ----------
    file : str
        For messages.
    entries : dict
        The table.

    Raises
    ------
    ExperimentError
        If an entry is no list or range, a key appears twice, or there are more than `MOST_CELLS` cells.
    """
    table = Table(file, "sweep", entries)
    with table.named():
        compute = table.entries.get("compute", ())
        names = (compute,) if isinstance(compute, str) else compute
        if not isinstance(names, list | tuple) or not all(isinstance(x, str) for x in names):
            raise InputError("compute", compute, "names of what is computed, such as ['flow']")
        seeds = whole_number("seeds", table.entries.get("seeds", 0), 0, MOST_CELLS)
    keys = {name: x for name, x in table.entries.items() if name not in SETTINGS}
    with table.named():
        axes = tuple(Axis((key,), values) for key, values in _leaves(file, "", keys))
    grid = Grid(axes, tuple(names), seeds)
    cells = math.prod(len(axis.values) for axis in axes) * max(seeds, 1)
    if cells > MOST_CELLS:
        raise ExperimentError(file, "sweep", Verbatim(f"{cells} cells"), f"at most {MOST_CELLS}")
    return grid


def _leaves(
    file: str, prefix: str, entries: Mapping[str, object]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Find all lists and ranges in nested tables, with their dotted keys."""
    for name, entry in entries.items():
        key = f"{prefix}.{name}" if prefix else name
        if isinstance(entry, list):
            if not entry:
                raise ExperimentError(file, f"sweep.{key}", entry, "at least one value")
            yield key, tuple(entry)
        elif isinstance(entry, dict) and entry and not {"first", "last"} & set(entry):
            yield from _leaves(file, key, entry)
        elif isinstance(entry, dict) and entry:
            yield key, Table(file, f"sweep.{key}", entry).build(_range)
        else:
            raise ExperimentError(file, f"sweep.{key}", entry, RANGE)


def _range(
    first: object,
    last: object,
    count: object = None,
    step: object = None,
    spacing: object = "linear",
    whole: object = False,
) -> tuple[Any, ...]:
    """Values from first to last: so many, or by steps (of 1, if neither is given)."""
    spacing = one_of("spacing", spacing, ("linear", "log"))
    if not isinstance(whole, bool):
        raise InputError("whole", whole, "true or false")
    low, high = real_number("first", first), real_number("last", last)
    if spacing == "log" and not (low > 0 and high > 0):
        name, value = ("first", low) if low <= 0 else ("last", high)
        raise InputError(name, value, "a number > 0, for a logarithmic range")
    if count is not None and step is not None:
        raise InputError("step", step, "none beside a count")
    if count is None:
        if spacing == "log":
            raise InputError("count", NOTHING, "a whole number >= 1, for a logarithmic range")
        stride = real_number("step", 1 if step is None else step)
        steps = (high - low) / stride if stride else -1.0
        if not 0 <= steps < MOST_CELLS:
            expected = f"a step from {low:g} towards {high:g}, of fewer than {MOST_CELLS} values"
            raise InputError("step", stride, expected)
        values = low + stride * np.arange(math.floor(steps + 1e-9) + 1)
    else:
        number = whole_number("count", count, 1, MOST_CELLS)
        if number == 1 and low != high:
            raise InputError("count", count, "at least 2, for two ends")
        with np.errstate(all="ignore"):
            values = (np.geomspace if spacing == "log" else np.linspace)(low, high, number)
    if not np.isfinite(values).all():
        raise InputError("last", last, f"a number whose distance from {low:g} is finite")
    if whole:
        return tuple(int(x) for x in dict.fromkeys(np.rint(values).tolist()))
    # A whole number that is off by rounding only is meant to be whole.
    near = np.rint(values)
    values = np.where(np.abs(values - near) <= 1e-12 * np.abs(values), near, values)
    if all(isinstance(x, int) for x in (first, last)) and (values == near).all():
        return tuple(int(x) for x in values)
    return tuple(float(x) for x in values)


def with_seeds(grid: Grid, entries: Mapping[str, Any]) -> tuple[Axis, ...]:
    """Return all axes: those of the grid, and one of seeds that count from the file's first one.

    Parameters
    ----------
    grid : Grid
    entries : dict
        The whole file.

    Raises
    ------
    InputError
        If a seed is swept, too.
    """
    if not grid.seeds:
        return grid.axes
    query = "query" in entries
    keys = tuple(SEEDED[x] for x in (("ascent",) if query else ("flow", "sgd")))
    for axis in grid.axes:
        if axis.keys[0] in (*keys, *(key.partition(".")[0] for key in keys)):
            raise InputError("sweep.seeds", grid.seeds, f"none beside a sweep of {axis.keys[0]}")
    table, _, name = keys[0].partition(".")
    given = entries.get(table)
    first = given.get(name, 1 if query else 0) if isinstance(given, Mapping) else 1 if query else 0
    first = whole_number(keys[0], first, 0, 2**53)
    return (*grid.axes, Axis(keys, tuple(range(first, first + grid.seeds))))


def axis_names(axes: tuple[Axis, ...], taken: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return a short name for each axis: the end of its key that no other has and that is not taken.

    Parameters
    ----------
    axes : tuple of Axis
    taken : tuple of str
        Names of other axes and of variables.
    """
    names: list[str] = []
    for axis in axes:
        if len(axis.keys) > 1:
            names.append("seed")
            continue
        parts = axis.keys[0].split(".")
        starts = [i for i in range(len(parts) - 1, -1, -1) if not parts[i].isdigit()] or [0]
        ends = [".".join(parts[i:]) for i in starts]
        others = [x.keys[0] for x in axes if x is not axis]
        clear = [
            x
            for x in ends
            if x not in taken and not any(y == x or y.endswith(f".{x}") for y in others)
        ]
        names.append(clear[0] if clear else axis.keys[0])
    return tuple(names)


def replaced(entries: Mapping[str, Any], key: str, value: object) -> dict[str, Any]:
    """Return a file's tables with another value at a dotted key.

    Raises
    ------
    InputError
        If the key leads through something that is no table, or to an entry that a list does not have.
    """
    found = deepcopy(dict(entries))
    place: Any = found
    *path, last = key.split(".")
    for part in path:
        if isinstance(place, list):
            place = place[_index(key, part, place)]
        elif isinstance(place, dict):
            place = place.setdefault(part, {})
        else:
            raise InputError(f"sweep.{key}", place, f"a table or list above {part!r}")
    if isinstance(place, list):
        place[_index(key, last, place)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise InputError(f"sweep.{key}", place, f"a table or list above {last!r}")
    return found


def _index(key: str, part: str, place: list[Any]) -> int:
    if (
        not part.isascii()
        or not part.isdecimal()
        or part != str(int(part))
        or int(part) >= len(place)
    ):
        expected = (
            f"an index from 0 to {len(place) - 1}" if place else "no index: the list is empty"
        )
        raise InputError(f"sweep.{key}", Verbatim(part), expected)
    return int(part)
