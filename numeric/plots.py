"""Figures of losses, spectra, flows and simulations.

Figures are built without pyplot and leave matplotlib's settings as they were. Labels are plain
text, so that they can be searched in SVG files, and equal numbers give equal bytes.
"""

import io
import uuid
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from numeric.errors import InputError
from numeric.experiment import Experiment
from numeric.flow import Flow
from numeric.loss import Loss
from numeric.sgd import SGDRuns
from numeric.spectrum import Spectrum
from numeric.task import Task
from numeric.validate import FloatArray, whole_number

SUFFIXES = (".svg", ".png", ".pdf")

# The colours of Okabe and Ito, distinct with any colour vision; yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STABLE, UNSTABLE = COLOURS[0], COLOURS[1]
GREY = "#6E6E6E"

MOST_RUNS = 32  # are drawn one by one; of more, the mean and the standard deviation
MOST_SECTORS = 48
MOST_CELLS = 150  # of a heatmap show their values

_STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 2.0,
    "savefig.dpi": 160,
    "svg.fonttype": "none",
    "svg.hashsalt": "headflow",
    "pdf.fonttype": 42,
}
_METADATA: dict[str, dict[str, str | None]]
_METADATA = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}

P = ParamSpec("P")


def _styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw with this module's settings, whatever the user's are."""

    @wraps(draw)
    def styled(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style.context(["default", _STYLE]):
            return draw(*args, **kwargs)

    return styled


def check_path(path: str | Path) -> Path:
    """Return the path of a figure if one can be written there.

    Raises
    ------
    InputError
        If the suffix is none of `SUFFIXES`, the path is a folder, or its folder does not exist.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise InputError("plot", str(path), f"a file name that ends in {', '.join(SUFFIXES)}")
    if target.is_dir() or not target.parent.is_dir():
        raise InputError("plot", str(path), "a file in a folder that exists")
    return target


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as SVG, PNG or PDF, by the suffix; a file that exists is replaced as a whole.

    Raises
    ------
    InputError
        See `check_path`.
    OSError
        If the file cannot be written.
    """
    target = check_path(path)
    suffix = target.suffix.lower()
    content = io.BytesIO()
    with style.context(["default", _STYLE]):
        figure.savefig(content, format=suffix[1:], metadata=_METADATA[suffix])
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content.getvalue())
        temporary.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    finally:
        temporary.unlink(missing_ok=True)


def label(figure: Figure, experiment: Experiment) -> None:
    """Write which experiment a figure shows above it, unless it has a title of its own."""
    if figure.get_suptitle():
        return
    attention, task = experiment.attention, experiment.task
    words = f"{experiment.name}: {attention.activation}, H = {attention.heads}, L = {task.tokens}"
    figure.suptitle(words, fontsize=11, fontweight="bold")


@_styled
def loss_figure(loss: Loss) -> Figure:
    """Draw the gradient of one loss in m, r and, where it is trained, b; its value is the title."""
    panels = [("∂E/∂m", loss.m, "feature f"), ("∂E/∂r", loss.r, "head h′")]
    if loss.b is not None:
        panels.append(("∂E/∂b", loss.b[:, None], ""))
    heads = len(loss.m)
    widths = [max(values.shape[1], 1) for _, values, _ in panels]
    inches = [0.9 + 0.62 * min(width, 8) for width in widths]
    size = 0.9 + sum(inches), 1.5 + 0.5 * min(max(heads, 2), 10)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=inches)[0]
    for ax, (name, values, below) in zip(axes, panels, strict=True):
        _heatmap(ax, values, name, below)
        if below == "":
            ax.set_xticks([])
    title = f"Population loss E = {float(loss.value):.8g} ± {float(loss.error):.1e}"
    figure.suptitle(title, fontsize=11)
    return figure


@_styled
def spectrum_figure(spectrum: Spectrum) -> Figure:
    """Draw the eigenvalues of a Hessian by sector, with multiplicities and growth rates.

    Of more than `MOST_SECTORS` sectors, those of the lowest eigenvalues are shown.
    """
    shown = min(len(spectrum.eigenvalues), MOST_SECTORS)
    values = spectrum.eigenvalues[:shown]
    unstable = values < -spectrum.errors[:shown]
    figure = Figure(figsize=(8.6, 1.5 + 0.32 * max(shown, 3)), layout="constrained")
    ax, table = figure.subplots(1, 2, sharey=True, width_ratios=(5, 2))
    rows = np.arange(shown)
    groups = ("unstable: grows", unstable, UNSTABLE), ("stable or flat", ~unstable, STABLE)
    for label, mine, colour in groups:
        ax.hlines(rows[mine], 0, values[mine], color=colour, linewidth=3, alpha=0.5)
        if mine.any():
            ax.plot(values[mine], rows[mine], "o", color=colour, markersize=7, label=label)
    ax.axvline(0, color="#444444", linewidth=1)
    ax.set_yticks(rows, spectrum.sectors[:shown])
    ax.set_ylim(shown - 0.4, -0.6)
    ax.margins(x=0.08)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("Hessian eigenvalue λ,  in the coordinates (m, ρ),  r = ρρᵀ")
    ax.tick_params(axis="y", length=0)
    heads = [("growth rate −λ", "multiplicity", -1.0, "black")]
    lines = [
        (_number(rate, "+.4g"), f"{count}", float(row), UNSTABLE if grows else "black")
        for row, rate, count, grows in zip(
            rows, spectrum.growth_rates, spectrum.multiplicities, unstable, strict=False
        )
    ]
    for rate, count, row, colour in heads + lines:
        for place, text in ((0.52, rate), (1.0, count)):
            table.text(place, row, text, ha="right", va="center", color=colour)
    table.set_xlim(0, 1)
    table.set_axis_off()
    where = "the origin" if spectrum.point == "origin" else "the state"
    total = len(spectrum.eigenvalues)
    most = "" if shown == total else f" (lowest {shown} of {total})"
    ax.set_title(f"Hessian at {where}{most}")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@_styled
def flow_figure(
    flow: Flow,
    sgd: SGDRuns | None = None,
    *,
    bayes: float | None = None,
    features: Sequence[int] | None = None,
) -> Figure:
    """Draw the norm of each feature over heads, and the loss, against tau.

    Parameters
    ----------
    flow : Flow
    sgd : SGDRuns, optional
        Runs of the same experiment, drawn thin.
    bayes : float, optional
        Bayes risk, drawn as a dashed line.
    features : sequence of int, optional
        Indices of the features to show, from 0; by default the first seven.

    Raises
    ------
    InputError
        If there is no such feature.
    """
    total = flow.m.shape[2]
    chosen = _features(features, total)
    figure, top, bottom = _two_panels()
    if sgd is not None:
        _draw_runs(top, sgd, chosen, labelled=False)
    norms = np.linalg.norm(flow.m, axis=1)
    line = ".-" if len(flow.tau) <= 20 else "-"
    for f, colour in zip(chosen, COLOURS * (1 + len(chosen) // len(COLOURS)), strict=False):
        label, passage = _feature(f), flow.first_passage[f]
        if np.isfinite(passage):
            label += f"  (threshold at τ = {passage:.4g})"
            top.plot(
                passage,
                flow.threshold,
                "o",
                color=colour,
                markersize=8,
                markeredgecolor="white",
                zorder=4,
            )
        top.plot(flow.tau, norms[:, f], line, color=colour, label=label)
    for excursion in flow.excursions:
        if excursion.feature in chosen:
            peak = np.interp(excursion.tau, flow.tau, norms[:, excursion.feature])
            top.plot(excursion.tau, peak, "v", color="black", markersize=7, zorder=4)
            top.annotate(
                f"−{excursion.drop:.0%} later",
                (excursion.tau, peak),
                xytext=(6, 6),
                textcoords="offset points",
                fontsize=9,
            )
    if norms[:, chosen].max(initial=0.0) > 0.8 * flow.threshold:
        label = f"threshold {flow.threshold:g}"
        top.axhline(flow.threshold, color=GREY, linewidth=1, linestyle=":", label=label)
    top.set_ylim(bottom=0)
    top.set_title(_flow_title(flow, sgd, len(chosen), total))
    _legend(top)
    bottom.plot(flow.tau, flow.loss, line, color="black", label="flow")
    if bayes is not None:
        label = f"Bayes risk {bayes:.4g}"
        bottom.axhline(bayes, color=COLOURS[2], linewidth=1.5, linestyle="--", label=label)
        _legend(bottom)
    bottom.set_ylabel("population loss E")
    bottom.set_xlim(flow.tau[0], flow.tau[-1])
    return figure


@_styled
def sgd_figure(sgd: SGDRuns, features: Sequence[int] | None = None) -> Figure:
    """Draw the norm of each feature and the heads' mean residual overlap, run by run.

    Parameters
    ----------
    sgd : SGDRuns
    features : sequence of int, optional
        Indices of the features to show, from 0; by default the first seven.

    Raises
    ------
    InputError
        If there is no such feature.
    """
    chosen = _features(features, sgd.m.shape[3])
    figure, top, bottom = _two_panels()
    _draw_runs(top, sgd, chosen, labelled=True)
    top.set_ylim(bottom=0)
    top.set_title(_sgd_title(sgd))
    _legend(top)
    residual = np.trace(sgd.r, axis1=2, axis2=3) / sgd.r.shape[2]
    _draw_quantity(bottom, sgd.tau, residual, GREY, None)
    bottom.set_ylabel("mean residual  tr r / H")
    bottom.set_ylim(bottom=0)
    bottom.set_xlim(sgd.tau[0], max(sgd.tau[-1], sgd.step))
    return figure


@_styled
def alignment_figure(flow: Flow) -> Figure:
    """Draw the alignments m at the end of a flow, heads against features."""
    final = flow.m[-1]
    heads, features = final.shape
    size = 2.6 + 0.62 * min(max(features, 2), 12), 1.4 + 0.5 * min(heads + 1, 16)
    figure = Figure(figsize=size, layout="constrained")
    _heatmap(figure.subplots(), final, f"alignments m at τ = {flow.tau[-1]:.4g}", "feature f")
    return figure


@_styled
def risk_figure(tokens: ArrayLike, risks: ArrayLike, task: Task, risk: float) -> Figure:
    """Draw the Bayes risk against the number of tokens.

    Parameters
    ----------
    tokens, risks : (n,) array_like
        Numbers of tokens L and the Bayes risks there, all else equal.
    task : Task
    risk : float
        Bayes risk of the task, which is marked.
    """
    counts = np.asarray(tokens, dtype=float)
    figure = Figure(figsize=(6.0, 3.8), layout="constrained")
    ax = figure.subplots()
    uniform = "uniform weights  1 − 1/L"
    ax.plot(counts, 1 - 1 / counts, color=GREY, linewidth=1.5, linestyle="--", label=uniform)
    ax.plot(counts, np.asarray(risks, dtype=float), color=STABLE, label="Bayes risk")
    label = f"L = {task.tokens}: {risk:.6g}"
    ax.plot(task.tokens, risk, "o", color=UNSTABLE, markersize=8, zorder=4, label=label)
    ax.set_xscale("log")
    marked = counts[:: 1 + len(counts) // 12]
    ax.set_xticks(marked, [f"{count:.3g}" for count in marked])
    ax.minorticks_off()
    ax.set_ylim(0, 1)
    ax.set_xlabel("tokens L")
    ax.set_ylabel("risk  1 − E p(ε)")
    _legend(ax)
    return figure


def _two_panels() -> tuple[Figure, Axes, Axes]:
    figure = Figure(figsize=(6.6, 5.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    top.set_ylabel("feature norm ‖m(:, f)‖")
    bottom.set_xlabel("time τ  (learning rate × steps)")
    return figure, top, bottom


def _heatmap(ax: Axes, values: FloatArray, title: str, below: str) -> None:
    """Draw a matrix of one row per head, with its entries where there are few."""
    heads, columns = values.shape
    ax.set_title(title)
    ax.grid(visible=False)
    ax.set_ylabel("head h")
    ax.set_xlabel(below)
    if not values.size:
        ax.text(0.5, 0.5, "no features", ha="center", va="center", transform=ax.transAxes)
        ax.set_xticks([])
        ax.set_yticks([])
        return
    limit = float(np.abs(values).max()) or 1.0
    limit *= 1.15  # the darkest shades hide the numbers
    image = ax.imshow(
        values,
        cmap="RdBu_r",
        vmin=-limit,
        vmax=limit,
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, columns + 0.5, heads + 0.5, 0.5),
    )
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.tick_params(length=0)
    if values.size <= MOST_CELLS and columns <= 12:
        for (h, f), value in np.ndenumerate(values):
            ax.text(
                f + 1,
                h + 1,
                _number(value, ".2g"),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if abs(value) > 0.6 * limit else "black",
            )
        return
    ax.figure.colorbar(image, ax=ax)


def _draw_runs(ax: Axes, sgd: SGDRuns, features: Sequence[int], labelled: bool) -> None:
    norms = np.linalg.norm(sgd.m, axis=2)
    for f, colour in zip(features, COLOURS * (1 + len(features) // len(COLOURS)), strict=False):
        _draw_quantity(ax, sgd.tau, norms[..., f], colour, _feature(f) if labelled else None)


def _draw_quantity(
    ax: Axes, tau: FloatArray, values: FloatArray, colour: str, label: str | None
) -> None:
    """Draw values (runs, n): up to `MOST_RUNS` runs as lines and their mean, else mean and band."""
    mean = values.mean(axis=0)
    if len(values) <= MOST_RUNS:
        ax.plot(tau, values.T, color=colour, linewidth=0.8, alpha=0.45, zorder=1.5)
    else:
        error = values.std(axis=0, ddof=1)
        ax.fill_between(tau, mean - error, mean + error, color=colour, alpha=0.25, linewidth=0)
    if label is not None:
        ax.plot(tau, mean, color=colour, label=label)


def _features(features: Sequence[int] | None, total: int) -> list[int]:
    if features is None:
        return list(range(min(total, len(COLOURS))))
    return [whole_number("features", f, 0, total - 1) for f in features]


def _number(value: float, form: str) -> str:
    return format(value, form).replace("-", "−") if value else "0"


def _feature(index: int) -> str:
    return f"feature {index + 1}"


def _flow_title(flow: Flow, sgd: SGDRuns | None, shown: int, total: int) -> str:
    words = f"Order-parameter flow, κ = {flow.kappa:g}"
    if sgd is not None:
        words += f";  thin: {_sgd_title(sgd)}"
    return words if shown == total else f"{words}  ({shown} of {total} features)"


def _sgd_title(sgd: SGDRuns) -> str:
    runs = f"{len(sgd.m)} runs" + ", mean ± deviation" * (len(sgd.m) > MOST_RUNS)
    return f"SGD at D = {sgd.dimension}, κ = {sgd.kappa:.3g}, {runs}"


def _legend(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best")
