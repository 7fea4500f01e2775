"""Figures of simulations over many dimensions: agreement with the flow, and durations of phases."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from numpy.typing import ArrayLike

from numeric.agreement import Agreement, band
from numeric.phases import Scaling
from numeric.style import COLOURS, GREY, STABLE, UNSTABLE, legend, styled

MOST_LINES = len(COLOURS)


@styled
def agreement_figure(found: Agreement) -> Figure:
    """Draw deviations from the flow against D, and alignments of the largest D on top of the flow."""
    figure = Figure(figsize=(8.6, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = found.dimensions
    width = band(found.deviation_error)
    margin = float(band(np.array(found.exponent_error)))
    power = f"{found.exponent:.2f} ± {margin:.2f}".replace("-", "−")
    words = f"a run: D to the power {power}"
    left.errorbar(sizes, found.deviation, width, fmt="o-", color=STABLE, capsize=3, label=words)
    left.plot(sizes, found.bias, "s--", color=UNSTABLE, label="mean of the runs")
    half = found.deviation[0] * np.sqrt(sizes[0] / sizes)
    left.plot(sizes, half, ":", color=GREY, label="slope −1/2")
    left.set_xscale("log")
    left.set_yscale("log")
    _dimension_axis(left, sizes)
    left.set_ylabel("rms deviation from the flow")
    left.set_title("approach to the flow as D grows")
    legend(left)
    path, runs = found.course, found.runs[-1]
    shown = path.tau <= runs.tau[-1]
    heads, features = path.m.shape[1:]
    error = band(runs.m.std(axis=0, ddof=1) / np.sqrt(len(runs.m)))
    for h, f in np.ndindex(heads, min(features, MOST_LINES)):
        colour, words = COLOURS[f], f"flow, feature {f + 1}" if h == 0 else "_"
        right.plot(path.tau[shown], path.m[shown, h, f], color=colour, linewidth=1.2, label=words)
        right.errorbar(
            runs.tau,
            runs.m[:, :, h, f].mean(axis=0),
            error[:, h, f],
            fmt="o",
            color=colour,
            markerfacecolor="white",
            capsize=3,
            label=f"mean of {len(runs.m)} runs" if h == f == 0 else "_",
        )
    right.set_xlabel("time τ")
    right.set_ylabel("alignment m of each head")
    right.set_title(f"all {heads} heads at D = {runs.dimension:,}")
    legend(right)
    return figure


@styled
def scaling_figure(
    dimensions: ArrayLike,
    passages: Sequence[ArrayLike],
    names: Sequence[str],
    fits: Sequence[Scaling | None],
) -> Figure:
    """Draw durations of phases against D.

    Parameters
    ----------
    dimensions : (k,) array_like
    passages : sequence of k (runs, n) array_like
        Infinite ones are left out.
    names : sequence of n str
    fits : sequence of n Scaling or None
    """
    sizes = np.asarray(dimensions, dtype=float)
    figure = Figure(figsize=(6.2, 4.0), layout="constrained")
    ax = figure.subplots()
    for n, (name, fit) in enumerate(zip(names, fits, strict=True)):
        if n == MOST_LINES:
            break
        colour, label = COLOURS[n], name
        for size, values in zip(sizes, passages, strict=True):
            mine = np.asarray(values, dtype=float)[:, n]
            mine = mine[np.isfinite(mine)]
            if len(mine):
                ax.errorbar(
                    size, mine.mean(), mine.std(), fmt="o", color=colour, capsize=3, label=label
                )
                label = "_"
        if label == name:
            ax.plot([], [], "o", color=colour, label=f"{name}: not passed")
        if fit is not None:
            line = fit.intercept + fit.slope * np.log(sizes)
            low, high = fit.interval()
            words = f"slope {fit.slope:.3g} (99 %: {low:.3g} to {high:.3g}) in log D"
            ax.plot(sizes, line, color=colour, linewidth=1, label=words)
    ax.set_xscale("log")
    _dimension_axis(ax, sizes)
    ax.set_ylabel("duration τ = κ · samples / D  (bars: spread over runs)")
    ax.set_ylim(bottom=0)
    legend(ax)
    return figure


def _dimension_axis(ax: Axes, sizes: np.ndarray) -> None:
    """Ticks at the dimensions themselves."""
    ax.set_xticks(sizes, [f"{x:,.0f}" if x < 1e6 else f"{x:g}" for x in sizes])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("token dimension D")
