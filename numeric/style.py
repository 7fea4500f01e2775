"""How figures look: colours, settings, and the panels that several figures share."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from numeric.validate import FloatArray

# The colours of Okabe and Ito, distinct with any colour vision; yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
STABLE, UNSTABLE = COLOURS[0], COLOURS[1]
GREY = "#6E6E6E"

MOST_RUNS = 32  # are drawn one by one; of more, the mean and the standard deviation
MOST_SECTORS = 48
MOST_CELLS = 150  # of a heatmap show their values

STYLE = {
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
METADATA: dict[str, dict[str, str | None]]
METADATA = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draw with these settings, whatever the user's are."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style.context(["default", STYLE]):
            return draw(*args, **kwargs)

    return drawn


def two_panels() -> tuple[Figure, Axes, Axes]:
    figure = Figure(figsize=(6.6, 5.6), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    top.set_ylabel("feature norm ‖m(:, f)‖")
    bottom.set_xlabel("time τ  (learning rate × steps)")
    return figure, top, bottom


def heatmap(ax: Axes, values: FloatArray, title: str, below: str) -> None:
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
                number(value, ".2g"),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if abs(value) > 0.6 * limit else "black",
            )
        return
    ax.figure.colorbar(image, ax=ax)


def draw_quantity(
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


def number(value: float, form: str) -> str:
    return format(value, form).replace("-", "−") if value else "0"


def legend(ax: Axes) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best")
