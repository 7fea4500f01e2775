"""Results as xarray datasets, in NetCDF or Zarr files (extra ``lab``)."""

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from numeric.errors import InputError, Verbatim, one_line
from numeric.files import code_digest, named
from numeric.labelled import COUNTED, Labelled, labelled
from numeric.report import versions

if TYPE_CHECKING:
    from xarray import Dataset

    from numeric.sweep import Index, Sweep

SUFFIXES = (".nc", ".zarr")
NAMES = tuple(f"result{suffix}" for suffix in SUFFIXES)
MISSING = Verbatim("no such package")
INSTALL = 'python -m pip install "headflow[lab]"'


def require_xarray() -> None:
    """Raise an InputError if a package of the extra ``lab`` is not installed."""
    for name in ("xarray", "h5netcdf", "h5py", "zarr"):
        try:
            import_module(name)
        except ImportError:
            raise InputError(name, MISSING, f"the extra 'lab': {INSTALL}") from None


def to_dataset(found: object, **attributes: str) -> "Dataset":
    """Return a result as a dataset with named axes.

    Parameters
    ----------
    found : Flow, SGDRuns, Spectrum, Saddle, Loss, Risk, Minimum, QueryFlow, QueryRuns or mapping
        See `numeric.labelled.labelled`.
    **attributes : str
        More attributes of the dataset, such as the text of the experiment file.

    Returns
    -------
    xarray.Dataset
        Versions and the largest errors are attributes.

    Raises
    ------
    InputError
        If it is no result, or xarray is not installed.
    """
    require_xarray()
    arrays = labelled(found)
    coordinates = dict(arrays.labels)
    data = {name: (x.dims, x.values, x.meaning) for name, x in arrays.variables.items()}
    return _dataset(
        data,
        coordinates,
        {"title": type(found).__name__, **{name: str(x) for name, x in attributes.items()}},
    )


def assembled(
    sweep: "Sweep", done: Mapping["Index", Labelled], failed: Mapping["Index", str]
) -> "Dataset":
    """Return all cells of a sweep as one dataset, NaN where there is nothing.

    Parameters
    ----------
    sweep : Sweep
    done : dict of Labelled
        By index.
    failed : dict of str
        By index, the error.

    Returns
    -------
    xarray.Dataset
        Labels that differ between cells are joined; of an axis such as tau whose numbers differ, the
        numbers become a variable.
    """
    shape = tuple(len(axis.values) for axis in sweep.axes)
    done, failed = _alike(done, failed)
    coordinates, moved = _joined(list(done.values()))
    places = {name: {x: i for i, x in enumerate(y.tolist())} for name, y in coordinates.items()}
    data: dict[str, tuple[tuple[str, ...], NDArray[Any], str]] = {}
    for index, cell in done.items():
        spread = {name: ((name,), cell.labels[name], "") for name in moved if name in cell.labels}
        arrays = {name: (x.dims, x.values, x.meaning) for name, x in cell.variables.items()}
        for name, (dims, values, meaning) in (spread | arrays).items():
            renamed = tuple(moved.get(x, x) for x in dims)
            if name not in data:
                size = shape + tuple(len(coordinates[x]) for x in renamed)
                data[name] = (sweep.names + renamed, np.full(size, np.nan), meaning)
            where = [
                np.arange(n) if x in moved else [places[x][y] for y in cell.labels[x].tolist()]
                for x, n in zip(dims, values.shape, strict=True)
            ]
            data[name][1][(*index, *np.ix_(*where))] = values
    coordinates |= {
        name: _coordinate(axis.values) for name, axis in zip(sweep.names, sweep.axes, strict=True)
    }
    attributes = sweep.attributes | {
        "swept": json.dumps(
            {x: " and ".join(y.keys) for x, y in zip(sweep.names, sweep.axes, strict=True)}
        ),
        "cells": f"{len(done)} of {int(np.prod(shape))}",
        "failed": json.dumps(
            [{"cell": sweep.where(x), "error": failed[x]} for x in sorted(failed)], default=repr
        ),
    }
    return _dataset(data, coordinates, attributes)


def _alike(
    done: Mapping["Index", Labelled], failed: Mapping["Index", str]
) -> tuple[dict["Index", Labelled], dict["Index", str]]:
    """Cells in order; one whose axes are not those of earlier ones counts as failed."""
    kept: dict[Index, Labelled] = {}
    errors = dict(failed)
    axes: dict[str, tuple[str, ...]] = {}
    for index, cell in sorted(done.items()):
        other = [n for n, x in cell.variables.items() if axes.get(n, x.dims) != x.dims]
        labels = {dim for dims in axes.values() for dim in dims}
        twice = (labels & set(cell.variables)) | (set(axes) & set(cell.labels))
        if twice:
            errors[index] = str(InputError(min(twice), "an axis and a variable", "two names"))
        elif other:
            found = cell.variables[other[0]].dims
            expected = f"the axes of earlier cells, {axes[other[0]]}"
            errors[index] = str(InputError(other[0], found, expected))
        else:
            kept[index] = cell
            axes |= {n: x.dims for n, x in cell.variables.items()}
    return kept, errors


def _joined(cells: list[Labelled]) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Labels of each axis over all cells; axes whose numbers differ, with the names of their indices."""
    found: dict[str, list[NDArray[Any]]] = {}
    for cell in cells:
        for name, labels in cell.labels.items():
            found.setdefault(name, []).append(labels)
    joined: dict[str, NDArray[Any]] = {}
    moved: dict[str, str] = {}
    for name, arrays in found.items():
        first = arrays[0]
        if all(np.array_equal(first, x) for x in arrays):
            joined[name] = first
        elif name in COUNTED or first.dtype.kind not in "iuf":
            every = dict.fromkeys(label for x in arrays for label in x.tolist())
            joined[name] = np.array(sorted(every) if name in COUNTED else list(every))
        else:
            moved[name] = f"{name}_index"
            joined[moved[name]] = np.arange(1, max(map(len, arrays)) + 1)
    return joined, moved


def _coordinate(values: tuple[Any, ...]) -> NDArray[Any]:
    """Swept values as labels that differ: numbers, or else texts."""
    if all(isinstance(x, int | float) and not isinstance(x, bool) for x in values):
        found = np.array(values)
        if found.dtype.kind in "iuf" and len(np.unique(found)) == len(values):
            return found
    plain = [one_line(x if isinstance(x, str) else _text(x)) for x in values]
    told_apart = len(set(plain)) == len(plain)
    return np.array(plain if told_apart else [f"{x} ({i + 1})" for i, x in enumerate(plain)])


def _text(value: object) -> str:
    try:
        return json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _dataset(
    data: Mapping[str, tuple[tuple[str, ...], NDArray[Any], str]],
    coordinates: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, str],
) -> "Dataset":
    import xarray

    found = xarray.Dataset(
        {
            name: (dims, values, {"long_name": words})
            for name, (dims, values, words) in data.items()
        },
        coordinates,
        {**attributes, "versions": json.dumps(versions()), "code": code_digest()},
    )
    for name in data:
        error = data.get(f"{name}_error")
        if error is not None:
            known = error[1][np.isfinite(error[1])]
            found[name].attrs["ancillary_variables"] = f"{name}_error"
            found[name].attrs["largest_error"] = float(known.max()) if known.size else np.nan
    return found


def save_result(dataset: "Dataset", path: str | os.PathLike[str]) -> None:
    """Write a dataset as NetCDF (.nc) or Zarr (.zarr), whole or not at all.

    Parameters
    ----------
    dataset : xarray.Dataset
    path : path
        One that exists is replaced.

    Raises
    ------
    InputError
        If the suffix is none of these, or there is something at the path that is no result.
    OSError
        If it cannot be written.
    """
    require_xarray()
    import xarray

    if not isinstance(dataset, xarray.Dataset):
        raise InputError("dataset", dataset, "a dataset, such as that of to_dataset or run_sweep")
    target = path_of("path", path)
    if target.suffix not in SUFFIXES:
        raise InputError("path", str(path), f"a name that ends in {' or '.join(SUFFIXES)}")
    if target.exists() and target.is_dir() != (target.suffix == ".zarr"):
        raise InputError("path", str(path), "a file" if target.is_dir() else "a folder")
    if target.is_dir() and not (target / "zarr.json").exists() and any(target.iterdir()):
        raise InputError("path", str(path), "a Zarr folder, or none")
    with named(target), tempfile.TemporaryDirectory(dir=target.parent, prefix=".result") as folder:
        temporary = Path(folder) / target.name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of texts in Zarr, whose format is not yet final
            if target.suffix == ".nc":
                dataset.to_netcdf(temporary, engine="h5netcdf")
            else:
                dataset.to_zarr(temporary, consolidated=False)
        if target.is_dir():
            shutil.move(target, Path(folder) / "old")
        os.replace(temporary, target)


def path_of(name: str, given: object) -> Path:
    if not isinstance(given, str | os.PathLike) or "\0" in str(given):
        raise InputError(name, given, "a path")
    return Path(given)


def load_result(path: str | os.PathLike[str]) -> "Dataset":
    """Read a dataset that `save_result` or ``headflow sweep`` wrote.

    Parameters
    ----------
    path : path
        A .nc or .zarr, or a folder with ``result.nc`` or ``result.zarr``.

    Returns
    -------
    xarray.Dataset

    Raises
    ------
    InputError
        If there is no such result.
    """
    require_xarray()
    import xarray

    target = path_of("RESULT", path)
    if target.suffix not in SUFFIXES and target.is_dir():
        inside = [target / name for name in NAMES if (target / name).exists()]
        if not inside:
            found = Verbatim(f"{str(path)!r}, a folder without {' or '.join(NAMES)}")
            raise InputError("RESULT", found, "a result of headflow sweep")
        target = max(inside, key=lambda x: x.stat().st_mtime)
    if target.suffix not in SUFFIXES or not target.exists():
        expected = f"a {' or '.join(SUFFIXES)} that exists, or a folder of headflow sweep"
        raise InputError("RESULT", str(path), expected)
    try:
        engine: Any = "h5netcdf" if target.suffix == ".nc" else "zarr"
        extra: dict[str, Any] = {} if target.suffix == ".nc" else {"consolidated": False}
        with xarray.open_dataset(target, engine=engine, **extra) as opened:
            found_ = opened.load()
    except ImportError:
        raise InputError("xarray", MISSING, f"the extra 'lab': {INSTALL}") from None
    except Exception as error:
        words = Verbatim(f"{str(path)!r}: {type(error).__name__}")
        raise InputError("RESULT", words, "a dataset that is whole") from None
    if "versions" not in found_.attrs:
        raise InputError("RESULT", str(path), "a result of headflow, which names its versions")
    return found_
