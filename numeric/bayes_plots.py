"""Figures of least losses, head counts, pruning and outcomes of training."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from numeric.curves import RiskCurves
from numeric.head_counts import HeadCount
from numeric.minimum import Minimum
from numeric.outcomes import Outcomes
from numeric.planting import Planting
from numeric.pruning import Pruning
from numeric.style import COLOURS, GREY, MARKERS, STABLE, UNSTABLE, legend, styled

WORDS = {
    "signal": "factor of all signals",
    "tokens": "number of tokens L",
    "heads": "number of heads H",
}


@styled
def minima_figure(found: Mapping[str, Minimum]) -> Figure:
    """Draw the least loss of each activation beside the Bayes risk."""
    figure = Figure(figsize=(6.2, 0.5 * len(found) + 1.6), layout="constrained")
    ax = figure.subplots()
    names = list(found)
    rows = np.arange(len(names))
    for row, x in zip(rows, found.values(), strict=True):
        ends = x.found[np.isfinite(x.found)]
        ax.plot(ends, np.full(len(ends), row), "|", color=GREY, markersize=9)
        ax.plot(x.loss, row, "o", color=STABLE)
    risk = next(iter(found.values())).bayes.value
    ax.axvline(risk, color=UNSTABLE, linestyle="--", label="Bayes risk")
    ax.plot([], [], "o", color=STABLE, label="least loss found")
    ax.plot([], [], "|", color=GREY, markersize=9, label="ends of descents")
    ax.set_yticks(rows, names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlabel("population loss E")
    legend(ax)
    return figure


@styled
def curves_figure(curves: RiskCurves) -> Figure:
    """Draw least losses against a quantity, and their gaps to the Bayes risk."""
    figure = Figure(figsize=(9.0, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    x = curves.values
    left.plot(x, curves.bayes, "--", color=GREY, label="Bayes risk", zorder=3)
    for i, name in enumerate(curves.minima):
        how = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        losses, (gaps, errors) = curves.losses(name), curves.gaps(name)
        left.plot(x, losses, label=name, markersize=4, linewidth=1.3, **how)
        seen = gaps > errors
        right.plot(x[seen], gaps[seen], label=name, markersize=4, linewidth=1.3, **how)
        if not seen.any():
            right.plot([], [], label=f"{name}: none", **how)
    for ax in (left, right):
        ax.set_xlabel(WORDS[curves.quantity])
        if curves.quantity == "heads":
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        elif curves.quantity == "tokens" and len(x) > 1 and x[-1] > 20 * x[0]:
            ax.set_xscale("log")
    left.set_ylabel("least loss found")
    right.set_ylabel("gap to the Bayes risk")
    right.set_yscale("log")
    legend(left)
    return figure


@styled
def head_figure(count: HeadCount) -> Figure:
    """Draw gaps to the Bayes risk against the number of heads."""
    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    ax = figure.subplots()
    seen = count.gaps > count.errors
    ax.plot(count.heads[seen], count.gaps[seen], "o-", color=STABLE, label="least loss found")
    nodes = np.isfinite(count.nodes) & (count.nodes > count.errors)
    if nodes.any():
        ax.plot(
            count.heads[nodes],
            count.nodes[nodes],
            "s--",
            color=UNSTABLE,
            label="heads at Gauss nodes",
        )
    if count.max_gap is not None:
        ax.axhline(count.max_gap, color=GREY, linewidth=1)
        ax.text(count.heads[0], count.max_gap, f"gap {count.max_gap:g}", va="bottom", color=GREY)
    ax.set_yscale("log")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlabel("number of heads H")
    ax.set_ylabel("loss above the Bayes risk")
    legend(ax)
    return figure


@styled
def pruning_figure(found: Mapping[str, Pruning], cost: float) -> Figure:
    """Draw losses against the number of heads that are left."""
    figure = Figure(figsize=(5.4, 3.8), layout="constrained")
    ax = figure.subplots()
    for i, (name, x) in enumerate(found.items()):
        left = len(x.losses) - np.arange(len(x.losses))
        ax.plot(left, x.losses, MARKERS[i] + "-", color=COLOURS[i], label=f"heads left {name}")
    full = next(iter(found.values())).losses[0]
    ax.axhline((1 + cost) * full, color=GREY, linewidth=1, label=f"full loss + {100 * cost:.3g} %")
    ax.invert_xaxis()
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlabel("heads left")
    ax.set_ylabel("population loss E")
    legend(ax)
    return figure


@styled
def outcomes_figure(found: Outcomes) -> Figure:
    """Draw the losses at which trainings end, by the pattern of their heads."""
    groups = found.groups
    figure = Figure(figsize=(7.0, 0.6 * len(groups) + 1.7), layout="constrained")
    ax = figure.subplots()
    for i, losses in enumerate(groups.values()):
        colour = COLOURS[i % len(COLOURS)]
        ax.plot(np.sort(losses), np.full(len(losses), i), "o", color=colour, alpha=0.6)
    ax.axvline(found.bayes.value, color=UNSTABLE, linestyle="--", label="Bayes risk")
    words = [f"{len(x)} of {len(found.losses)}: {name}" for name, x in groups.items()]
    ax.set_yticks(range(len(groups)), [x.replace(", ", "\n") for x in words])
    ax.set_ylim(len(groups) - 0.4, -0.6)
    ax.set_xlabel("population loss E at the end")
    legend(ax)
    return figure


@styled
def planting_figure(planted: Planting) -> Figure:
    """Draw the first passages of SGD on whole samples against those that are predicted."""
    figure = Figure(figsize=(4.8, 4.4), layout="constrained")
    ax = figure.subplots()
    features = planted.predicted.shape[1]
    for f in range(min(features, len(COLOURS))):
        ax.plot(
            planted.predicted[:, f],
            planted.observed[:, f],
            MARKERS[f],
            color=COLOURS[f],
            alpha=0.7,
            label=f"feature {f + 1}",
        )
    times = np.concatenate([planted.predicted.ravel(), planted.observed.ravel()])
    times = times[np.isfinite(times)]
    ends = np.array([times.min(initial=planted.tau_max), times.max(initial=0.0)])
    ax.plot(ends, ends, color=GREY, linewidth=1, label="equal")
    ax.fill_between(ends, 0.85 * ends, 1.15 * ends, color=GREY, alpha=0.15, label="within 15 %")
    ax.set_xlabel("first passage τ, predicted")
    ax.set_ylabel(f"first passage τ, SGD at D = {planted.dimension}")
    legend(ax)
    return figure
