"""Figures of one query: objective, alignment in flow and ascent, phase diagram, rules, other tokens."""

from collections.abc import Mapping

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from numeric.query import QueryFlow, QueryTask, query_objective
from numeric.query_compare import RuleTimes
from numeric.query_sgd import QueryRuns, Steps
from numeric.query_study import GrowthMap, fixed_points
from numeric.style import COLOURS, GREY, MARKERS, STABLE, UNSTABLE, draw_quantity, legend, styled

WORDS = {
    "informative": "informative tokens n_I",
    "nuisance": "uninformative tokens n_0",
    "dimension": "dimension d",
    "theta": "signal θ",
    "beta": "inverse temperature β",
    "sigma": "noise σ of a coordinate",
}
RULE_WORDS = {"softmax": "softmax attention", "oja": "Oja's rule", "power": "power method"}
ABSENT = "#D9D9D9"


@styled
def objective_figure(task: QueryTask) -> Figure:
    """Draw the objective and the field of the alignment, with its fixed points."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    half = np.linspace(0, 1, 41)
    found = query_objective(task, half, 1e-8)
    alpha = np.concatenate([-half[:0:-1], half])
    left.plot(alpha, np.concatenate([found.value[:0:-1], found.value]), color=STABLE)
    left.set_ylabel("objective J")
    field = (1 - half**2) * found.slope
    right.plot(alpha, np.concatenate([-field[:0:-1], field]), color=STABLE)
    right.axhline(0, color=GREY, linewidth=1)
    right.set_ylabel("field  dα/dt = (1 − α²) J′")
    shown = set()
    for point in fixed_points(task):
        colour = {True: STABLE, False: "white", None: GREY}[point.stable]
        for at in sorted({-point.alpha, point.alpha}):
            right.plot(
                at,
                0,
                "o",
                markersize=8,
                markerfacecolor=colour,
                markeredgecolor=STABLE,
                label=None if point.kind in shown else point.kind,
                zorder=4,
            )
            shown.add(point.kind)
    for ax in (left, right):
        ax.set_xlabel("alignment α = q · u")
    legend(right)
    return figure


@styled
def alignment_figure(
    flow: QueryFlow | None, runs: QueryRuns | None = None, schedule: Steps | None = None
) -> Figure:
    """Draw alignments against time: the flow, and runs of the ascent at the sum of their steps.

    Without a schedule runs are drawn against their number of steps.
    """
    figure = Figure(figsize=(6.0, 3.9), layout="constrained")
    ax = figure.subplots()
    ax.set_xlabel("time t")
    if runs is not None:
        t = runs.steps
        if schedule is None:
            ax.set_xlabel("steps")
        else:
            ax.set_xlabel("time t = sum of step sizes")
            sizes = [0.0, *(schedule(k) for k in range(int(runs.steps[-1])))]
            t = np.cumsum(sizes)[runs.steps.astype(int)]
        draw_quantity(ax, t, np.abs(runs.alpha), UNSTABLE, f"{len(runs.alpha)} runs and their mean")
        positive = t[t > 0]
        if len(positive) > 1 and positive[-1] > 100 * positive[0]:
            ax.set_xscale("log")
            ax.set_xlim(positive[0], positive[-1])
    if flow is not None:
        ax.plot(flow.t, np.abs(flow.alpha), color=STABLE, label="flow", zorder=3)
    ax.set_ylim(0, 1.03)
    ax.set_ylabel("alignment |α|")
    legend(ax)
    return figure


@styled
def growth_figure(found: GrowthMap) -> Figure:
    """Draw growth rates at the equator over two parameters; grey where the equator does not repel."""
    figure = Figure(figsize=(5.8, 4.2), layout="constrained")
    ax = figure.subplots()
    ax.grid(visible=False)
    ax.set_facecolor(ABSENT)
    grows = found.growth > found.error
    rates = np.ma.array(found.growth, mask=~grows)
    if grows.any():
        least = max(float(rates.min()), 1e-6 * float(rates.max()))
        norm = LogNorm(least, float(rates.max()) * (1 + 1e-9))
        mesh = ax.pcolormesh(found.x, found.y, rates, cmap="viridis", norm=norm, shading="nearest")
        figure.colorbar(mesh, ax=ax, label="growth rate J″(0) of α at 0")
    if not grows.all():
        ax.plot([], [], "s", color=ABSENT, markersize=10, label="no growth")
        ax.legend(loc="upper left", frameon=True)
    ax.axvline(getattr(found.task, found.names[0]), color="white", linewidth=1)
    ax.axhline(getattr(found.task, found.names[1]), color="white", linewidth=1)
    for name, values, axis in zip(found.names, (found.x, found.y), ("x", "y"), strict=True):
        getattr(ax, f"set_{axis}label")(WORDS[name])
        if values[0] > 0 and values[-1] > 10 * values[0]:
            getattr(ax, f"set_{axis}scale")("log")
        getattr(ax, f"set_{axis}lim")(values[0], values[-1])
    return figure


@styled
def rules_figure(found: RuleTimes) -> Figure:
    """Draw steps to an alignment against a parameter: medians, and single runs."""
    figure = Figure(figsize=(5.6, 3.9), layout="constrained")
    ax = figure.subplots()
    for i, (rule, steps) in enumerate(found.steps.items()):
        colour, median = COLOURS[i], found.medians(rule)
        label = RULE_WORDS[rule]
        if not np.isfinite(median).any():
            label += ": none gets there"
        ax.plot(found.values, median, MARKERS[i] + "-", color=colour, label=label)
        runs = np.where(np.isfinite(steps), steps, np.nan)
        ax.plot(found.values, runs, ".", color=colour, alpha=0.35, markersize=4)
    ax.set_yscale("log")
    if found.values.min() > 0 and found.values.max() > 20 * found.values.min():
        ax.set_xscale("log")
    ax.set_xlabel(WORDS[found.name])
    ax.set_ylabel(f"steps until |α| ≥ {found.alignment:g}")
    legend(ax)
    return figure


@styled
def departures_figure(found: Mapping[str, QueryRuns]) -> Figure:
    """Draw mean alignments of runs on tokens that depart from the model."""
    figure = Figure(figsize=(6.0, 3.9), layout="constrained")
    ax, last = figure.subplots(), 1.0
    for i, (name, runs) in enumerate(found.items()):
        alpha, last = np.abs(runs.alpha), max(last, runs.steps[-1])
        colour, mean = COLOURS[i % len(COLOURS)], alpha.mean(axis=0)
        ax.plot(runs.steps, mean, color=colour, label=name)
        ax.fill_between(
            runs.steps, alpha.min(axis=0), alpha.max(axis=0), color=colour, alpha=0.12, linewidth=0
        )
    if last > 100:
        ax.set_xscale("log")
        ax.set_xlim(1, last)
    ax.set_ylim(0, 1.03)
    ax.set_xlabel("steps  (bands: all runs)")
    ax.set_ylabel("alignment |α|")
    legend(ax)
    return figure
