"""``headflow sweep``, ``show`` and ``plot``: a sweep, what its result holds, the standard figures."""

import argparse
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numeric.commands import table
from numeric.errors import InputError, Verbatim
from numeric.grid import SETTINGS, read_grid

if TYPE_CHECKING:
    from xarray import Dataset

FAILURES = 10  # different ones that are shown


Progress = Callable[[str, float], object]


def sweep(arguments: argparse.Namespace, progress: Progress) -> list[str]:
    """Run a sweep and write its result into a folder.

    Parameters
    ----------
    arguments : argparse.Namespace
        `file`, `over`, `compute`, `seeds`, `out`, `format`, `workers` and `scheduler`.
    progress : callable
        Called with the stage and the fraction of it that is done.

    Returns
    -------
    list of str
        Lines to print.

    Raises
    ------
    InputError
        If an argument is not as it must be.
    OSError
        If the folder cannot be written.
    """
    from numeric.dataset import require_xarray, save_result
    from numeric.sweep import run_sweep

    require_xarray()
    out = arguments.out or Path("headflow-sweep") / Path(arguments.file).stem
    if out.exists() and not out.is_dir():
        raise InputError("--out", str(out), "a folder, or none yet")

    def report(done: int, total: int) -> None:
        progress(f"{total} cells to compute", done / total)

    result = run_sweep(
        arguments.file,
        _over(arguments.over),
        compute=arguments.compute,
        seeds=arguments.seeds,
        folder=out,
        workers=arguments.workers,
        scheduler=arguments.scheduler,
        progress=report,
    )
    target = out / ("result.zarr" if arguments.format == "zarr" else "result.nc")
    save_result(result, target)
    return [*lines_of(result), "", f"result: {target}"]


def _over(given: list[str]) -> Mapping[str, tuple[Any, ...]]:
    """Read ``KEY=VALUES`` as TOML."""
    axes: dict[str, tuple[Any, ...]] = {}
    for text in given:
        expected = "KEY=VALUES as in TOML, such as task.tokens=[3,5]"
        try:
            entries = tomllib.loads(text)
        except ValueError as error:
            raise InputError("--over", Verbatim(f"{text!r} ({error})"), expected) from None
        if not entries or set(entries) & set(SETTINGS):
            raise InputError("--over", text, f"{expected}; --compute and --seeds are options")
        for axis in read_grid("--over", entries).axes:
            if axis.keys[0] in axes:
                raise InputError("--over", Verbatim(f"{axis.keys[0]} twice"), "each key once")
            axes[axis.keys[0]] = axis.values
    return axes


def show(arguments: argparse.Namespace, _: Progress) -> list[str]:
    """Summarize a result."""
    from numeric.dataset import load_result

    return lines_of(load_result(arguments.result), arguments.experiment)


def lines_of(result: "Dataset", experiment: bool = False) -> list[str]:
    """Return what a result holds: axes, variables with ranges and errors, cells that failed, versions."""
    attributes = result.attrs
    swept = json.loads(attributes.get("swept", "{}"))
    lines = [str(attributes.get("title", "")), ""]
    rows = [["axis", "labels", "", "key"]]
    for name in [*swept, *(x for x in result.dims if x not in swept)]:
        labels = result[name].values
        between = " ... ".join(dict.fromkeys(_short(x) for x in (*labels[:1], *labels[-1:])))
        rows.append([str(name), str(len(labels)), between, swept.get(name, "")])
    lines += [*table(rows), ""]
    rows = [["variable", "axes", "from", "to", "error up to", "missing"]]
    for name, values in result.data_vars.items():
        if str(name).endswith("_error"):
            continue
        known = values.values[~np.isnan(values.values)]
        ends = [f"{known.min():.6g}", f"{known.max():.6g}"] if known.size else ["", ""]
        error = values.attrs.get("largest_error")
        axes = ", ".join(str(x) for x in values.dims if x not in swept)
        missing = int(np.isnan(values.values).sum())
        error_words = "" if error is None else f"{error:.1e}"
        rows.append([str(name), axes, *ends, error_words, str(missing) if missing else ""])
    lines += table(rows)
    failed = json.loads(attributes.get("failed", "[]"))
    if "cells" in attributes:
        lines += ["", f"cells: {attributes['cells']} done, {len(failed)} failed"]
    errors: dict[str, list[str]] = {}
    for entry in failed:
        place = ", ".join(f"{name} = {value}" for name, value in entry["cell"].items())
        errors.setdefault(entry["error"], []).append(place)
    for error, places in list(errors.items())[:FAILURES]:
        more = f" (and {len(places) - 1} more)" if len(places) > 1 else ""
        lines.append(f"  {places[0]}{more}: {error}")
    if len(errors) > FAILURES:
        lines.append(f"  ... and {len(errors) - FAILURES} other errors, in the attribute 'failed'")
    found = json.loads(attributes["versions"])
    lines += ["", ", ".join(f"{name} {version}" for name, version in found.items())]
    if experiment:
        lines += ["", str(attributes.get("experiment", attributes.get("function", "")))]
    return lines


def _short(label: Any) -> str:
    text = f"{label:.6g}" if isinstance(label, float | np.floating) else str(label)
    return text if len(text) <= 24 else f"{text[:20]}..."


def plot(arguments: argparse.Namespace, _: Progress) -> list[str]:
    """Write the standard figures of a result into a folder."""
    from numeric import plots
    from numeric.dataset import load_result
    from numeric.sweep_plots import drawn_names, result_figure, selected, variable

    result = selected(load_result(arguments.result), arguments.select)
    names = arguments.variable or drawn_names(result)
    for name in names:
        variable(result, name)  # before any is written
    source = Path(arguments.result)
    out = arguments.out or (source if source.suffix == "" else source.parent)
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in names:
        path = out / f"{name}.{arguments.format}"
        plots.save(result_figure(result, name), path)
        lines.append(str(path))
    return lines
