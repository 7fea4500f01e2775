"""Panels that the figures of several claims share."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from numeric.claims.claim import array
from numeric.style import COLOURS, GREY, MARKERS


def panels(columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of panels side by side."""
    figure = Figure(figsize=(1.2 + 3.4 * columns, 3.2), layout="constrained")
    return figure, list(figure.subplots(1, columns, squeeze=False)[0])


def against_dimension(
    ax: Axes, dimensions: ArrayLike, durations: Sequence[ArrayLike], name: str, place: int = 0
) -> None:
    """Draw mean durations with error bars against D, and single runs behind them."""
    colour = COLOURS[place]
    sizes, found = array(dimensions), [array(x) for x in durations]
    for size, x in zip(sizes, found, strict=True):
        ax.plot(np.full(len(x), size), x, ".", color=colour, alpha=0.2, markersize=3)
    mean = np.array([x.mean() for x in found])
    error = np.array([x.std(ddof=1) / np.sqrt(len(x)) for x in found])
    ax.errorbar(
        sizes,
        mean,
        2 * error,
        color=colour,
        marker=MARKERS[place],
        markersize=5,
        label=name,
    )
    ax.set_xscale("log")
    ax.set_xlabel("token dimension D")


def allowed(ax: Axes, low: float, high: float) -> None:
    """Shade the values that a condition allows."""
    ax.axhspan(low, high, color=GREY, alpha=0.15, linewidth=0, zorder=0, label="allowed")
