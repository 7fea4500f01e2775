"""Standard figures of a result: each quantity against time, or against what was swept."""

import itertools
import json
import textwrap
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from numeric.errors import InputError
from numeric.style import COLOURS, MARKERS, styled
from numeric.validate import choices_words, real_number

if TYPE_CHECKING:
    from xarray import DataArray, Dataset

P = ParamSpec("P")

AVERAGED = ("run", "seed")
COURSES = ("tau", "t", "step", "alpha")
PANELS = 6
MAP = 4
"""Values of each of two swept numbers from which on a quantity is drawn as a map."""
LINES = len(COLOURS)
MOST_TICKS = 24
BAND = (0.1, 0.5, 0.9)
DETAILS = (
    "m",
    "r",
    "b",
    "v",
    "eigenvalue",
    "multiplicity",
    "samples",
    "kappa",
    "residual",
    "stuck",
)
"""What is drawn on request only: of an attention layer its norms are."""


def quietly(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw without NumPy's warning where all runs and seeds are NaN: nothing is drawn there."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with warnings.catch_warnings(action="ignore", category=RuntimeWarning):
            return draw(*args, **kwargs)

    return drawn


def drawn_names(result: "Dataset") -> tuple[str, ...]:
    """Return the quantities that are drawn unless others are asked for."""

    def is_detail(name: str) -> bool:
        return (
            name.endswith("_error")
            or name.split("_")[-1] in DETAILS
            or name.startswith("initial_dE")
        )

    names = [f"{x}norm" for x in ("", "sgd_", "least_") if _has_heads(result, f"{x}m")]
    return (
        *names,
        *(str(x) for x in result.data_vars if not is_detail(str(x)) and x not in COURSES),
    )


def _has_heads(result: "Dataset", name: str) -> bool:
    return name in result.data_vars and "head" in result[name].dims


def variable(result: "Dataset", name: str) -> "DataArray":
    """Return a variable, or the norm ``(sum_h m_hf^2)^(1/2)`` of each feature.

    Raises
    ------
    InputError
        If there is none of this name.
    """
    stem = name.removesuffix("norm")
    if name.endswith("norm") and _has_heads(result, f"{stem}m"):
        found: Any = np.sqrt((result[f"{stem}m"] ** 2).sum("head", skipna=True, min_count=1))
        return found.assign_attrs(long_name="feature norm ‖m(:, f)‖").rename(name)
    if name not in result.data_vars:
        raise InputError(
            "--variable",
            name,
            choices_words(name, dict.fromkeys((*drawn_names(result), *map(str, result)))),
        )
    return result[name]


def selected(result: "Dataset", choices: Sequence[str]) -> "Dataset":
    """Return the part of a result at labels given as ``NAME=VALUE``, the nearest of numbers.

    Raises
    ------
    InputError
        If there is no such axis or label.
    """
    for choice in choices:
        name, given, value = choice.partition("=")
        if not given or name not in result.dims:
            names = ", ".join(map(str, result.dims))
            raise InputError("--select", choice, f"NAME=VALUE, a name among {names}")
        labels = result[name].values
        texts = labels.astype(str).tolist()
        if labels.dtype.kind in "iuf":
            try:
                wanted = real_number("--select", float(value))
            except ValueError:
                raise InputError("--select", choice, f"a number after {name}=") from None
            place = int(np.abs(labels - wanted).argmin())
        elif value in texts:
            place = texts.index(value)
        else:
            raise InputError("--select", choice, choices_words(value, texts))
        result = result.isel({name: place})
    return result


@styled
@quietly
def result_figure(result: "Dataset", name: str) -> Figure:
    """Draw one quantity of a result.

    Parameters
    ----------
    result : xarray.Dataset
    name : str
        A variable, or ``norm`` for the norms of the features.

    Returns
    -------
    Figure
        Against time where the quantity has it; else a map over two swept numbers of at least four values
        each; else against a swept one. Of runs and seeds the median is shown, and the band from the 10 to
        the 90 % quantile.

    Raises
    ------
    InputError
        If there is no such quantity.
    """
    found, same = _varying(result, variable(result, name).squeeze())
    swept = [x for x in _swept(result) if x in found.dims and x not in AVERAGED]
    course = next((str(x) for x in found.dims if _is_course(str(x))), None)
    numbers = [x for x in swept if _is_number(found, x)]
    long = [x for x in numbers if found.sizes[x] >= MAP]
    if course is None and len(long) >= 2:
        return _maps(found, long[0], long[1], same)
    others = [str(x) for x in found.dims if x not in AVERAGED]
    along = course or next(iter(numbers or swept or others), None)
    return _curves(result, found, along, [x for x in others if x != along], same)


def _varying(result: "Dataset", found: "DataArray") -> tuple["DataArray", str]:
    """Leave out swept axes along which nothing changes; say which."""
    same = []
    for name in _swept(result):
        if name in found.dims and np.array_equal(
            found.values,
            np.broadcast_to(found.isel({name: [0]}).values, found.shape),
            equal_nan=True,
        ):
            found = found.isel({name: 0}, drop=True)
            same.append(name)
    return found, f"; the same for all labels of {' and '.join(same)}" if same else ""


def _swept(result: "Dataset") -> list[str]:
    return list(json.loads(result.attrs.get("swept", "{}")))


def _is_course(name: str) -> bool:
    return name.removesuffix("_index").split("_")[-1] in COURSES


def _is_number(found: "DataArray", name: str) -> bool:
    return bool(found[name].dtype.kind in "iuf")


def _split(found: "DataArray", names: list[str]) -> tuple[list[dict[str, int]], str]:
    """Indices of all panels, the first few, and words if there are more."""
    every = [
        dict(zip(names, index, strict=True))
        for index in itertools.product(*(range(found.sizes[x]) for x in names))
    ]
    more = f" (the first {PANELS} of {len(every)} panels)" if len(every) > PANELS else ""
    return every[:PANELS], more


def _words(found: "DataArray", place: dict[str, int]) -> str:
    return ", ".join(f"{name} = {_label(found[name].values[i])}" for name, i in place.items())


def _label(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.replace("$", r"\$")


def _panels(count: int, width: float, height: float) -> tuple[Figure, NDArray[Any]]:
    columns = 2 if count == 4 else min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(width * columns, 5.4), height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    for ax in axes[count:]:
        ax.set_axis_off()
    for ax in axes[:count][-columns:]:  # nothing is drawn below
        ax.tick_params(labelbottom=True)
    return figure, axes[:count]


def _label_axes(axes: NDArray[Any], across: str, up: str) -> None:
    """Name both axes at the outer panels."""
    columns = axes[0].get_gridspec().ncols
    for ax in axes[-columns:]:
        ax.set_xlabel(across)
    for ax in axes[::columns]:
        ax.set_ylabel(up)


def _maps(found: "DataArray", across: str, up: str, same: str) -> Figure:
    """Draw maps over two swept numbers, one panel for each label of other axes."""
    middle = found.median([x for x in AVERAGED if x in found.dims]).sortby([across, up])
    places, more = _split(middle, [str(x) for x in middle.dims if x not in (across, up)])
    finite = middle.values[np.isfinite(middle.values)]
    figure, axes = _panels(len(places), 4.0, 3.6)
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    image = None
    for ax, place in zip(axes, places, strict=True):
        values = middle.isel(place).transpose(up, across).values
        edges = []
        for name, set_scale in ((across, ax.set_xscale), (up, ax.set_yscale)):
            labels = middle[name].values
            logarithmic = _is_logarithmic(labels)
            set_scale("log" if logarithmic else "linear")
            edges.append(_edges(labels, logarithmic))
        image = ax.pcolormesh(
            *edges,
            np.ma.masked_invalid(values),
            vmin=low,
            vmax=high,
            cmap="viridis",
            rasterized=True,
        )
        ax.set_title(_words(middle, place))
        ax.set_facecolor("#DDDDDD")  # where there is no value
        ax.grid(visible=False)
    _label_axes(axes, across, up)
    if image is not None:
        figure.colorbar(image, ax=list(axes), label=f"{found.name}")
    _title(figure, found, same + more)
    return figure


def _title(figure: Figure, found: "DataArray", more: str) -> None:
    words = _label(f"{found.attrs.get('long_name', '')}{more}".removeprefix("; "))
    # About 11 letters fit into an inch.
    figure.suptitle(textwrap.fill(words, int(11 * figure.get_figwidth())), fontsize=11)


def _curves(
    result: "Dataset", found: "DataArray", along: str | None, others: list[str], same: str
) -> Figure:
    """Draw curves along one axis: of the axis with most labels in colours, of others in panels."""
    if along is not None and not _is_course(along) and _is_number(found, along):
        found = found.sortby(along)
    hue = max(others, key=lambda x: found.sizes[x], default=None)
    if hue is not None and _is_number(found, hue):
        found = found.sortby(hue)
    places, more = _split(found, [x for x in others if x != hue])
    figure, axes = _panels(len(places), 4.6, 3.6)
    averaged = [x for x in AVERAGED if x in found.dims]
    band = [found.reduce(np.nanquantile, averaged, q=q) for q in BAND] if averaged else None
    middle = found if band is None else band[1]
    count = 1 if hue is None else found.sizes[hue]
    colours = _colours(found, hue, count)
    name = "" if along is None else along.removesuffix("_index")
    name_of_error = f"{found.name}_error"
    known = not averaged and name_of_error in result.data_vars
    errors = result[name_of_error].clip(min=0) if known else None
    for ax, place in zip(axes, places, strict=True):
        for i in range(count):
            at = place | ({} if hue is None else {hue: i})
            x, ticks = _abscissa(result, middle, along, at)
            y = np.atleast_1d(middle.isel(at).values)
            if not np.isfinite(y).any():
                continue
            label = None if hue is None else _label(found[hue].values[i])
            style: dict[str, Any] = {"color": colours[i], "label": label}
            if along is None or not _is_course(along):
                style |= {"marker": MARKERS[i % len(MARKERS)]}
            if errors is not None and set(errors.dims) == set(found.dims):
                margin = np.atleast_1d(errors.isel(at).values)
                ax.errorbar(x, y, margin, capsize=2, **style)
            else:
                ax.plot(x, y, **style)
            if band is not None:
                low, high = (np.atleast_1d(band[k].isel(at).values) for k in (0, 2))
                ax.fill_between(x, low, high, color=colours[i], alpha=0.2, linewidth=0)
            if ticks is not None:
                step = -(-len(ticks) // MOST_TICKS)
                short = [t if len(t) <= 24 else f"{t[:22]}…" for t in ticks]
                turned = 90 if len(ticks) > 6 else 20 if max(map(len, short)) > 6 else 0
                ax.set_xticks(x[::step], short[::step], rotation=turned)
        ax.set_title(_words(found, place))
        if not np.isfinite(middle.isel(place)).any():
            ax.text(0.5, 0.5, "no finite value", transform=ax.transAxes, ha="center")
        if along is not None and not _is_course(along) and _is_number(found, along):
            ax.set_xscale("log" if _is_logarithmic(found[along].values) else "linear")
            if found[along].dtype.kind in "iu" and ax.get_xscale() == "linear":
                ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    stem = name.removeprefix("sgd_")
    _label_axes(axes, {"tau": "time τ  (learning rate × steps)"}.get(stem, name), str(found.name))
    if hue is not None and count > 1:
        drawn: dict[str, Any] = {}
        for ax in axes:
            drawn |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        names = [x for x in map(_label, found[hue].values) if x in drawn][:: -(-count // 10)]
        if names:
            handles = [drawn[x] for x in names]
            figure.legend(handles, names, title=hue, loc="outside right center")
    quantiles = "" if band is None else f"; median over {' and '.join(averaged)}, 10 to 90 %"
    _title(figure, found, quantiles + same + more)
    return figure


def _abscissa(
    result: "Dataset", found: "DataArray", along: str | None, at: dict[str, int]
) -> tuple[NDArray[Any], list[str] | None]:
    """Positions along an axis, and the names of labels that are no numbers."""
    if along is None:
        return np.zeros(1), [""]
    stem = along.removesuffix("_index")
    if stem != along and stem in result:
        times = result[stem]
        times = times.isel({x: i for x, i in at.items() if x in times.dims})
        rest = [x for x in times.dims if x != along]
        return times.isel(dict.fromkeys(rest, 0)).values, None
    labels = found[along].values
    if labels.dtype.kind in "iuf":
        return labels, None
    return np.arange(len(labels)), [_label(x) for x in labels]


def _colours(found: "DataArray", hue: str | None, count: int) -> list[Any]:
    """Distinct colours for a few labels, shades in their order for many."""
    if hue is None or count <= LINES:
        return list(COLOURS[:count])
    return list(colormaps["viridis"](np.linspace(0.0, 0.92, count)))


def _is_logarithmic(values: NDArray[Any]) -> bool:
    """Whether values span a decade and their ratios are more even than their steps."""
    if len(values) < 3 or values.min() <= 0 or values.max() < 10 * values.min():
        return False
    ratios, steps = np.diff(np.log(values)), np.diff(values)
    return bool(ratios.std() * abs(steps.mean()) < steps.std() * abs(ratios.mean()) * 0.5)


def _edges(values: NDArray[Any], logarithmic: bool) -> NDArray[Any]:
    """Edges of cells around labels, halfway between them on their scale."""
    x = np.log(values) if logarithmic else np.asarray(values, dtype=float)
    between = (x[1:] + x[:-1]) / 2
    edges = np.concatenate([[2 * x[0] - between[0]], between, [2 * x[-1] - between[-1]]])
    return np.exp(edges) if logarithmic else edges
