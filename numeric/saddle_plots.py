"""Figures of saddles: the ladder, spectra along a flow, branches and their bifurcations, the escape."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from numeric.continuation import Branch
from numeric.escape import EscapeLaw
from numeric.flow import Flow
from numeric.ladder import Rung
from numeric.spectrum import Spectrum
from numeric.style import COLOURS, GREY, STABLE, UNSTABLE, legend, styled, two_panels

QUANTILES = (0.1, 0.5, 0.9)


@styled
def ladder_figure(rungs: Sequence[Rung], flow: Flow) -> Figure:
    """Draw the flow's feature norms and loss, with the predicted passages and the saddles' losses."""
    figure, top, bottom = two_panels()
    norms = np.linalg.norm(flow.m, axis=1)
    for f in range(min(norms.shape[1], len(COLOURS))):
        top.plot(flow.tau, norms[:, f], color=COLOURS[f], label=f"feature {f + 1}")
    bottom.plot(flow.tau, flow.loss, color="black", label="loss E")
    began = 0.0
    for rung in rungs:
        ends = min(rung.passage, float(flow.tau[-1]))
        if rung.saddle is not None:
            words = "loss of the saddles" if not rung.learned else ""
            bottom.hlines(rung.saddle.loss, began, ends, color=COLOURS[3], linewidth=1, label=words)
        if rung.feature is not None and np.isfinite(rung.passage):
            passages = "predicted first passages" if not rung.learned else None
            for ax in (top, bottom):
                ax.axvline(rung.passage, color=GREY, linewidth=1, linestyle="--", label=passages)
            top.plot(rung.passage, flow.threshold, "o", color=COLOURS[rung.feature % len(COLOURS)])
        began = ends
    bottom.set_ylabel("loss E")
    legend(top)
    legend(bottom)
    return figure


@styled
def along_figure(flow: Flow, spectra: Sequence[Spectrum]) -> Figure:
    """Draw the Hessian's eigenvalues along a flow; negative ones are coloured."""
    figure, top, bottom = two_panels()
    for time, spectrum in zip(flow.tau, spectra, strict=True):
        values, bulk = spectrum.eigenvalues, spectrum.residual
        for mine, mark in ((~bulk, "o"), (bulk, "x")):
            colours = np.where(spectrum.unstable[mine], UNSTABLE, STABLE)
            top.scatter(np.full(mine.sum(), time), values[mine], c=colours, marker=mark, s=18)
    for mark, colour, words in (
        ("o", UNSTABLE, "unstable"),
        ("o", STABLE, "stable or flat"),
        ("x", STABLE, "residual (bulk)"),
    ):
        top.scatter([], [], c=colour, marker=mark, s=18, label=words)
    top.axhline(0, color="#444444", linewidth=1)
    top.set_ylabel("Hessian eigenvalue λ")
    bottom.plot(flow.tau, [x.index for x in spectra], ".-", color="black")
    bottom.set_ylabel("unstable directions")
    legend(top)
    return figure


@styled
def branch_figure(branch: Branch, parameter: str) -> Figure:
    """Draw the lowest eigenvalue of the heads' differences along a parameter, and its zeros."""
    figure = Figure(figsize=(6.2, 3.6), layout="constrained")
    ax = figure.subplots()
    ax.plot(branch.values, branch.lowest, ".-", color=STABLE, label="heads’ differences, lowest")
    ax.axhline(0, color="#444444", linewidth=1)
    for i, x in enumerate(branch.bifurcations):
        words = "bifurcation" if i == 0 else None
        ax.plot(x, 0, "D", color=UNSTABLE, label=words)
        ax.annotate(f"{x:.4g}", (x, 0), xytext=(4, 6), textcoords="offset points")
    ax.set_xlabel(parameter)
    ax.set_ylabel("Hessian eigenvalue λ")
    ax.set_title("Unspecialized saddle")
    legend(ax)
    return figure


@styled
def boundary_figure(values: ArrayLike, boundary: ArrayLike, names: tuple[str, str]) -> Figure:
    """Draw where, in the plane of two parameters, heads start to part from the unspecialized saddle."""
    figure = Figure(figsize=(5.4, 4.0), layout="constrained")
    ax = figure.subplots()
    ax.plot(values, boundary, ".-", color=UNSTABLE)
    ax.set_xlabel(names[0])
    ax.set_ylabel(names[1])
    ax.set_title("Boundary of specialization")
    return figure


@styled
def escape_figure(law: EscapeLaw, dimensions: ArrayLike) -> Figure:
    """Draw the quantiles of the first passage against the token dimension."""
    sizes = np.asarray(dimensions, dtype=float)
    low, middle, high = (np.array([law.quantile(p, d) for d in sizes]) for p in QUANTILES)
    figure = Figure(figsize=(6.2, 4.0), layout="constrained")
    ax = figure.subplots()
    ax.fill_between(sizes, low, high, color=STABLE, alpha=0.2, label="10 % to 90 %", linewidth=0)
    ax.plot(sizes, middle, color=STABLE, label="median")
    slope = np.log(sizes / sizes[0]) / (2 * law.rate)
    words = f"slope 1/(2λ), λ = {law.rate:.4g}"
    ax.plot(sizes, middle[0] + slope, color=GREY, linestyle="--", linewidth=1, label=words)
    ax.set_xscale("log")
    ax.set_xlabel("token dimension D")
    ax.set_ylabel(f"first passage of norm {law.threshold:g}, feature {law.feature + 1}  (τ)")
    legend(ax)
    return figure
