"""B3: the limiting field survives a perturbation of the token norms of order 1/sqrt d."""

from typing import Any

from matplotlib.figure import Figure

from numeric.claims.claim import (
    Claim,
    Condition,
    Measured,
    Part,
    Regime,
    Results,
    array,
    of,
    sampled,
)
from numeric.claims.claim import parts as make_parts
from numeric.claims.figures import panels
from numeric.query import QueryTask
from numeric.query_study import field_change
from numeric.style import COLOURS, MARKERS, styled

EXPONENT = Condition("exponent of the largest change of the field in d", high=-0.5)
FINAL = Condition("largest relative change at the largest d", high=0.05)
SETTINGS = {"c = 1": 1.0, "c = 3": 3.0}
REGIME = "norms times 1 + c ξ / √d, "
REGIMES = tuple(Regime(REGIME + x, (EXPONENT, FINAL)) for x in SETTINGS)
TASK = QueryTask(20, 100, 100, 1.0, 2.0, 0.1)


def change(spread: float, dimensions: list[int], seed: int) -> dict[str, Any]:
    """Largest change of the field, relative to its largest value, at several d."""
    return vars(field_change(TASK, dimensions, spread))


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Return changes for one spread, or two."""
    names = list(SETTINGS) if full else list(SETTINGS)[:1]
    dimensions = [50, 200, 800, 3200] if full else [50, 200, 800]
    return make_parts(
        seed,
        change,
        {f"norms, {x}": {"spread": SETTINGS[x], "dimensions": dimensions} for x in names},
    )


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Exponents, and the last change."""
    found = {}
    for name, x in of(results, "norms, ").items():
        relative = array(x["change"]) / array(x["size"])
        found[REGIME + name] = {
            EXPONENT.name: sampled(x["exponent"], x["error"]),
            FINAL.name: Measured(float(relative[-1])),
        }
    return found


@styled
def draw(results: Results) -> Figure:
    """Relative changes against d."""
    figure, (ax,) = panels()
    for i, (name, x) in enumerate(of(results, "norms, ").items()):
        sizes, relative = array(x["dimension"]), array(x["change"]) / array(x["size"])
        ax.plot(sizes, relative, MARKERS[i] + "-", color=COLOURS[i], label=name)
        ax.plot(sizes, relative[0] * sizes[0] / sizes, ":", color=COLOURS[i], linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel="dimension d", ylabel="largest change of the field")
    ticks = sorted({int(d) for x in of(results, "norms, ").values() for d in x["dimension"]})
    ax.set_xticks(ticks, [str(d) for d in ticks], rotation=30)
    ax.minorticks_off()
    ax.legend()
    return figure


CLAIM = Claim(
    id="B3",
    title="The field survives unequal token norms",
    statement=r"The limiting field survives a perturbation of the token norms of order $1 / \sqrt{d}$.",
    source="arXiv 2606.22406",
    status="proved",
    method=r"Norms are multiplied by $1 + c \xi / \sqrt{d}$ with normal $\xi$; the field is exact "
    r"with and without. Its largest change over $\alpha$, relative to the largest field, "
    r"should vanish as $d$ grows (dotted: $1/d$).",
    regimes=REGIMES,
    parts=parts,
    measure=measure,
    draw=draw,
)
