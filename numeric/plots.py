"""Figures of losses, spectra, flows and simulations.

Figures are built without pyplot and leave matplotlib's settings as they were. Labels are plain
text, so that they can be searched in SVG files, and equal numbers give equal bytes.
"""

import io
import textwrap
import uuid
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from numeric.errors import InputError
from numeric.experiment import Experiment
from numeric.flow import Flow
from numeric.loss import Loss
from numeric.query_experiment import QueryExperiment
from numeric.sgd import SGDRuns
from numeric.spectrum import Spectrum
from numeric.style import (
    COLOURS,
    GREY,
    METADATA,
    MOST_RUNS,
    MOST_SECTORS,
    STABLE,
    STYLE,
    UNSTABLE,
    draw_quantity,
    heatmap,
    legend,
    number,
    styled,
    two_panels,
)
from numeric.task import Task
from numeric.validate import whole_number

SUFFIXES = (".svg", ".png", ".pdf")


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
    with style.context(["default", STYLE]):
        figure.savefig(content, format=suffix[1:], metadata=METADATA[suffix])
    temporary = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content.getvalue())
        temporary.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from None
    finally:
        temporary.unlink(missing_ok=True)


def label(figure: Figure, experiment: Experiment | QueryExperiment) -> None:
    """Write which experiment a figure shows above it, unless it has a title of its own."""
    if not figure.get_suptitle():
        # About 11 letters fit into an inch.
        words = textwrap.fill(experiment.title, int(11 * figure.get_figwidth()))
        figure.suptitle(words, fontsize=11, fontweight="bold")


@styled
def loss_figure(loss: Loss) -> Figure:
    """Draw the gradient of one loss in m, r and trained b and v; its value is the title."""
    panels = [("∂E/∂m", loss.m, "feature f"), ("∂E/∂r", loss.r, "head h′")]
    for name, values in (("b", loss.b), ("v", loss.v)):
        if values is not None:
            panels.append((f"∂E/∂{name}", values[:, None], ""))
    heads = len(loss.m)
    widths = [max(values.shape[1], 1) for _, values, _ in panels]
    inches = [0.9 + 0.62 * min(width, 8) for width in widths]
    size = 0.9 + sum(inches), 1.5 + 0.5 * min(max(heads, 2), 10)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, width_ratios=inches)[0]
    for ax, (name, values, below) in zip(axes, panels, strict=True):
        heatmap(ax, values, name, below)
        if below == "":
            ax.set_xticks([])
    title = f"Population loss E = {float(loss.value):.8g} ± {float(loss.error):.1e}"
    figure.suptitle(title, fontsize=11)
    return figure


@styled
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
        (
            number(rate, "+.4g") if abs(rate) > error else "0",
            f"{count}",
            float(row),
            UNSTABLE if grows else "black",
        )
        for row, rate, error, count, grows in zip(
            rows,
            spectrum.growth_rates,
            spectrum.errors,
            spectrum.multiplicities,
            unstable,
            strict=False,
        )
    ]
    for rate, count, row, colour in heads + lines:
        for place, text in ((0.52, rate), (1.0, count)):
            table.text(place, row, text, ha="right", va="center", color=colour)
    table.set_xlim(0, 1)
    table.set_axis_off()
    saddle = {"origin": "the origin", "unspecialized": "the unspecialized saddle"}
    where = saddle.get(spectrum.point, "the state")
    total = len(spectrum.eigenvalues)
    most = "" if shown == total else f" (lowest {shown} of {total})"
    ax.set_title(f"Hessian at {where}{most}")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@styled
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
    figure, top, bottom = two_panels()
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
    legend(top)
    bottom.plot(flow.tau, flow.loss, line, color="black", label="flow")
    if bayes is not None:
        label = f"Bayes risk {bayes:.4g}"
        bottom.axhline(bayes, color=COLOURS[2], linewidth=1.5, linestyle="--", label=label)
        legend(bottom)
    bottom.set_ylabel("population loss E")
    bottom.set_xlim(flow.tau[0], flow.tau[-1])
    return figure


@styled
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
    figure, top, bottom = two_panels()
    _draw_runs(top, sgd, chosen, labelled=True)
    top.set_ylim(bottom=0)
    top.set_title(_sgd_title(sgd))
    legend(top)
    residual = np.trace(sgd.r, axis1=2, axis2=3) / sgd.r.shape[2]
    draw_quantity(bottom, sgd.tau, residual, GREY, None)
    bottom.set_ylabel("mean residual  tr r / H")
    bottom.set_ylim(bottom=0)
    bottom.set_xlim(sgd.tau[0], max(sgd.tau[-1], sgd.step))
    return figure


@styled
def alignment_figure(flow: Flow) -> Figure:
    """Draw the alignments m at the end of a flow, heads against features."""
    final = flow.m[-1]
    heads, features = final.shape
    size = 2.6 + 0.62 * min(max(features, 2), 12), 1.4 + 0.5 * min(heads + 1, 16)
    figure = Figure(figsize=size, layout="constrained")
    heatmap(figure.subplots(), final, f"alignments m at τ = {flow.tau[-1]:.4g}", "feature f")
    return figure


@styled
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
    legend(ax)
    return figure


def _draw_runs(ax: Axes, sgd: SGDRuns, features: Sequence[int], labelled: bool) -> None:
    norms = np.linalg.norm(sgd.m, axis=2)
    for f, colour in zip(features, COLOURS * (1 + len(features) // len(COLOURS)), strict=False):
        draw_quantity(ax, sgd.tau, norms[..., f], colour, _feature(f) if labelled else None)


def _features(features: Sequence[int] | None, total: int) -> list[int]:
    if features is None:
        return list(range(min(total, len(COLOURS))))
    return [whole_number("features", f, 0, total - 1) for f in features]


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
