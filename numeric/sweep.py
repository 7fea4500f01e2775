"""Sweeps: an experiment, or a function of your own, at all combinations of swept values.

Each cell is stored as soon as it is done, in a file that is named after all that it depends on: a sweep
that was interrupted, or whose table grew, computes only what is missing. Results depend neither on the
number of workers nor on where they are.
"""

import hashlib
import inspect
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import numpy as np

from numeric.cells import compute_cell, read_cell, write_cell
from numeric.errors import InputError
from numeric.experiment import Experiment, build_experiment, read_entries, read_file
from numeric.files import code_digest
from numeric.grid import (
    Axis,
    Grid,
    axis_names,
    canonical,
    check_axes,
    read_grid,
    replaced,
    with_seeds,
)
from numeric.labelled import COUNTED, Labelled
from numeric.quantities import check_names, quantities
from numeric.query_experiment import QueryExperiment
from numeric.validate import whole_number
from numeric.workers import unordered

if TYPE_CHECKING:
    from xarray import Dataset

CELLS = "cells"
DEFAULT = ("flow",)
Index = tuple[int, ...]
TAKEN = (*COUNTED, "tau", "t", "step", "alpha", "sector", "watch", "loss", "m", "r", "b", "v")
"""Names of axes and variables that results may have."""


@dataclass(frozen=True)
class Sweep:
    """What is computed at each combination of values.

    Attributes
    ----------
    axes : tuple of Axis
    names : tuple of str
        One for each axis.
    call : callable
        Given the values by key, returns what computes a cell: picklable, without arguments.
    identity : callable
        Given the values by key, returns what a cell depends on beside the code.
    attributes : dict of str
        Of the dataset: the experiment's text and the like.
    """

    axes: tuple[Axis, ...]
    names: tuple[str, ...]
    call: Callable[[Mapping[str, Any]], Callable[[], object]]
    identity: Callable[[Mapping[str, Any]], object]
    attributes: dict[str, str] = field(default_factory=dict)

    def where(self, index: Index) -> dict[str, Any]:
        """Return a cell's values by name of axis."""
        values = (axis.values[i] for axis, i in zip(self.axes, index, strict=True))
        return dict(zip(self.names, values, strict=True))


def combinations(axes: tuple[Axis, ...]) -> Iterator[tuple[Index, dict[str, Any]]]:
    """Yield the index of each cell, and its values by key."""
    for index in itertools.product(*(range(len(axis.values)) for axis in axes)):
        values: dict[str, Any] = {}
        for axis, i in zip(axes, index, strict=True):
            values |= dict.fromkeys(axis.keys, axis.values[i])
        yield index, values


def run_sweep(
    what: str | os.PathLike[str] | Callable[..., object],
    over: Mapping[str, Sequence[Any]] | None = None,
    *,
    compute: str | Sequence[str] = (),
    seeds: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    workers: int = 1,
    scheduler: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> "Dataset":
    """Compute all cells of a sweep, and return them as one dataset.

    Parameters
    ----------
    what : path, name of an example, or callable
        An experiment file, whose table [sweep] counts, too; or a function of the swept values, by name,
        which returns a result (`Flow`, `Spectrum`, ...), a number, or a mapping of names to numbers or
        to ``(names of axes, array)``.
    over : mapping, optional
        Values of each swept key (``"task.tokens"``) or argument, instead of what [sweep] says of it.
    compute : str or sequence of str
        For a file: among loss, spectrum, flow, risk, minima, sgd (of the query model loss, spectrum,
        flow, sgd); by default what [sweep] says, or the flow.
    seeds : int, optional
        For a file: number of seeds of random keys and of SGD, counted from the file's: an axis ``seed``.
    folder : path, optional
        Where finished cells are kept, and taken from. Of a function they belong to its text: after a
        change of anything else that it uses take another folder.
    workers : int
        Processes, each with one BLAS thread.
    scheduler : str, optional
        Address of a Dask scheduler (extra ``cluster``).
    progress : callable, optional
        Called with the numbers of cells that are done, and of those to do, without those kept.

    Returns
    -------
    xarray.Dataset
        With the swept axes first; NaN where a cell failed. ``attrs["failed"]`` says why, as JSON.

    Raises
    ------
    InputError
        If an argument is out of range, or no cell is a valid experiment.
    OSError
        If a cell cannot be stored; those before it are.
    """
    from numeric.dataset import assembled, path_of, require_xarray

    require_xarray()
    workers = whole_number("workers", workers, 1, 4096)
    over = {} if over is None else over
    if not isinstance(over, Mapping):
        raise InputError("over", over, "a mapping of keys or arguments to their values")
    compute = (compute,) if isinstance(compute, str) else compute
    if callable(what):
        for name, given in (("compute", compute), ("seeds", seeds)):
            if given:
                raise InputError(name, given, "none for a function of your own")
        sweep = of_function(what, over)
    else:
        sweep = of_file(what, over, compute, seeds)
    place = None if folder is None else path_of("folder", folder) / CELLS
    done: dict[Index, Labelled] = {}
    failed: dict[Index, str] = {}
    for index, found in _cells(sweep, place, workers, scheduler, progress):
        if isinstance(found, Labelled):
            taken = {*found.variables, *found.labels} & set(sweep.names)
            if taken:
                name = min(taken)
                expected = "other names of what is swept: the results have this one, too"
                raise InputError("over", name, expected)
            done[index] = found
        else:
            failed[index] = found
    return assembled(sweep, done, failed)


def of_file(
    what: str | os.PathLike[str],
    over: Mapping[str, Sequence[Any]],
    compute: Sequence[str] = (),
    seeds: int | None = None,
) -> Sweep:
    """Return the sweep of an experiment file; see `run_sweep`."""
    text, name, path = read_file(what)
    name = name.encode("utf-8", "backslashreplace").decode()
    file = name if path is None else str(path)
    entries = read_entries(text, file)
    grid = read_grid(file, entries.pop("sweep", {}))
    axes = {axis.keys[0]: axis for axis in grid.axes} | {x.keys[0]: x for x in _axes(over)}
    grid = Grid(
        tuple(axes.values()),
        grid.compute,
        grid.seeds if seeds is None else whole_number("seeds", seeds, 0, 1_000_000),
    )
    found = check_axes(with_seeds(grid, entries))
    folder = Path(".") if path is None else path.parent

    def tables(values: Mapping[str, Any]) -> dict[str, Any]:
        now = entries
        for key, value in values.items():
            now = replaced(now, key, value)
        return now

    first = _first_valid(found, lambda values: build_experiment(tables(values), name, folder, path))
    names = check_names(first, compute or grid.compute or DEFAULT, "compute")

    def identity(values: Mapping[str, Any]) -> object:
        now = tables(values)
        return [now, names, _samples(now, folder)]

    used: dict[str, object] = dict(seeds_of(first))
    used |= {key: list(axis.values) for axis in found for key in axis.keys if key in used}
    return Sweep(
        found,
        axis_names(found, TAKEN),
        lambda values: partial(_experiment_cell, tables(values), name, folder, path, names),
        identity,
        {
            "title": f"{name}: {', '.join(names)}",
            "experiment": text,
            "seeds": json.dumps(used),
        },
    )


def seeds_of(experiment: Experiment | QueryExperiment) -> dict[str, int]:
    """Return an experiment's seeds by their keys."""
    if isinstance(experiment, QueryExperiment):
        return {"ascent.seed": experiment.ascent.seed}
    return {"flow.seed": experiment.flow.seed, "sgd.seed": experiment.sgd.seed}


def of_function(function: Callable[..., object], over: Mapping[str, Sequence[Any]]) -> Sweep:
    """Return the sweep of a function of one's own; see `run_sweep`."""
    name = getattr(function, "__qualname__", type(function).__name__)
    try:
        text = inspect.getsource(function if hasattr(function, "__code__") else type(function))
    except (OSError, TypeError):
        text = name
    axes = check_axes(_axes(over))
    try:
        inspect.signature(function).bind(**dict.fromkeys(over))
    except TypeError as error:
        raise InputError("over", sorted(over), f"the arguments of {name} ({error})") from None
    return Sweep(
        axes,
        tuple(axis.keys[0] for axis in axes),
        # A function that changes its arguments must not change other cells'.
        lambda values: partial(function, **deepcopy(dict(values))),
        lambda values: [_about(function), text, dict(values)],
        {"title": name, "function": text},
    )


def _about(function: Any) -> object:
    """What a function is beside its text: its code, what it has bound, and what it closes over."""
    own = getattr(function, "__func__", function)
    bound = getattr(function, "__self__", None)
    code = getattr(own, "__code__", None)
    if code is None:
        return canonical(function)
    cells = [cell.cell_contents for cell in own.__closure__ or ()]
    defaults = [own.__defaults__, own.__kwdefaults__]
    held = [canonical(x) for x in (cells, defaults) if x]
    return [_code(code), held, "" if bound is None else canonical(bound)]


def _code(code: CodeType) -> object:
    constants = [_code(x) if isinstance(x, CodeType) else repr(x) for x in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]


def _axes(over: Mapping[str, Sequence[Any]]) -> tuple[Axis, ...]:
    axes = []
    for key, given in over.items():
        if isinstance(given, str | bytes) or not np.iterable(given):
            raise InputError(str(key), given, "a sequence of values")
        plain = np.number, np.bool_, np.str_
        values = tuple(x.item() if isinstance(x, plain) else x for x in given)
        if not values:
            raise InputError(str(key), given, "at least one value")
        axes.append(Axis((str(key),), values))
    return tuple(axes)


def _first_valid(axes: tuple[Axis, ...], build: Callable[[Mapping[str, Any]], Any]) -> Any:
    """Return the first cell's experiment that is valid; if none is, raise the first error."""
    error: InputError | None = None
    for _, values in combinations(axes):
        try:
            return build(values)
        except InputError as found:
            error = error or found
    assert error is not None
    raise error


def _experiment_cell(
    tables: dict[str, Any], name: str, folder: Path, path: Path | None, names: tuple[str, ...]
) -> Labelled:
    return quantities(build_experiment(tables, name, folder, path), names)


def _samples(tables: Mapping[str, Any], folder: Path) -> str:
    """Digest of the file of samples that a prior names, if there is one."""
    task = tables.get("task")
    prior = task.get("prior") if isinstance(task, dict) else None
    file = prior.get("file") if isinstance(prior, dict) else None
    if not isinstance(file, str):
        return ""
    try:
        return hashlib.sha256((folder / file).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return ""  # the cell will say so


def _cells(
    sweep: Sweep,
    place: Path | None,
    workers: int,
    scheduler: str | None,
    progress: Callable[[int, int], object] | None,
) -> Iterator[tuple[Index, Labelled | str]]:
    """Yield every cell, those that are kept first, the others as they are done and stored."""
    code = code_digest()
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    missing: list[tuple[Index, Mapping[str, Any], Path | None]] = []
    for index, values in combinations(sweep.axes):
        path = None
        if place is not None:
            about = canonical([sweep.identity(values), code])
            path = place / f"{hashlib.sha256(about.encode()).hexdigest()[:24]}.npz"
            kept = read_cell(path)
            if kept is not None:
                yield index, kept
                continue
        missing.append((index, values, path))
    jobs = ((i, sweep.call(values)) for i, (_, values, _) in enumerate(missing))
    if progress is not None and missing:
        progress(0, len(missing))
    with closing(unordered(compute_cell, jobs, workers, scheduler)) as results:
        for count, (i, found, keep) in enumerate(results):
            index, _, path = missing[i]
            if path is not None and keep:
                write_cell(path, found)
            if progress is not None:
                progress(count + 1, len(missing))
            yield index, found
