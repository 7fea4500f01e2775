"""A8: the transition to specialized heads is sharp as D grows."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, array, sampled
from numeric.claims.claim import parts as make_parts
from numeric.claims.figures import panels
from numeric.claims.scaling import passages
from numeric.escape import escape_law
from numeric.prior import isotropic
from numeric.style import COLOURS, styled
from numeric.task import Attention, Task
from numeric.watch import specialization

RELATIVE = Condition("width of the law of τ over log D: D = 10^12 relative to 10^3", high=0.5)
TREND = Condition("spread of τ over log D in runs: largest relative to smallest D", high=0.9)
WIDTH = Condition("width of the law of τ: D = 10^12 relative to 10^6", high=0.5)
OWN = Regime("relative to log D", (RELATIVE, TREND))
ABSOLUTE = Regime("on the scale of τ itself", (WIDTH,))
TASK, ETA, KAPPA = Task(5, isotropic(1, 4.0)), 0.1, 2.0
LEVELS = (0.1, 0.5, 0.9)
SIZES = 10.0 ** np.arange(3, 13)


def law(heads: int, seed: int) -> dict[str, Any]:
    """Quantiles of the first passage, at every D."""
    found = escape_law(TASK, Attention("softmax", heads), ETA)
    quantiles = [[found.quantile(p, size) for p in LEVELS] for size in SIZES]
    return {"dimensions": SIZES, "quantiles": quantiles}


def runs(heads: int, dimensions: list[int], runs: int, seed: int) -> dict[str, Any]:
    """First passages in SGD."""
    layer = Attention("softmax", heads)
    how = {"eta": ETA, "kappa": KAPPA, "tau_max": 400.0, "runs": runs}
    found = passages(TASK, layer, specialization(TASK, layer), dimensions, seed, **how)
    return {"dimensions": dimensions, "tau": found}


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Return the law and runs."""
    size = {"dimensions": [100, 1000, 10**4] if full else [100, 1600], "runs": 400 if full else 300}
    return make_parts(seed, law, {"escape law": {"heads": 2}}) | make_parts(
        seed, runs, {"spread of passages": {"heads": 2, **size}}
    )


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Ratios of widths."""
    law, seen = results["escape law"], results["spread of passages"]
    quantiles, sizes = array(law["quantiles"]), array(law["dimensions"])
    width = quantiles[:, 2] - quantiles[:, 0]
    relative = width / np.log(sizes)
    first, last = array(seen["tau"][0]), array(seen["tau"][-1])
    logs = np.log(seen["dimensions"])
    ratio = last.std(ddof=1) / logs[-1] / (first.std(ddof=1) / logs[0])
    # The relative variance of a variance is (kurtosis - 1) / n.
    parts = [((((x - x.mean()) / x.std()) ** 4).mean() - 1) / len(x) for x in (first, last)]
    return {
        OWN.name: {
            RELATIVE.name: Measured(float(relative[-1] / relative[0])),
            TREND.name: sampled(ratio, ratio * np.sqrt(sum(parts)) / 2),
        },
        ABSOLUTE.name: {
            WIDTH.name: Measured(float(width[-1] / width[np.flatnonzero(sizes == 1e6)[0]]))
        },
    }


@styled
def draw(results: Results) -> Figure:
    """Quantiles of passages over log D, and widths."""
    figure, axes = panels(2)
    law = results["escape law"]
    sizes, quantiles = array(law["dimensions"]), array(law["quantiles"])
    relative = quantiles / np.log(sizes)[:, None]
    axes[0].fill_between(sizes, relative[:, 0], relative[:, 2], color=COLOURS[0], alpha=0.25)
    axes[0].plot(sizes, relative[:, 1], color=COLOURS[0], label="median, 10 % to 90 %")
    axes[0].set(xscale="log", xlabel="token dimension D", ylabel="τ / log D")
    axes[0].legend()
    axes[1].plot(sizes, quantiles[:, 2] - quantiles[:, 0], color=COLOURS[1])
    axes[1].set(xscale="log", xlabel="token dimension D", ylabel="width of τ (10 % to 90 %)")
    axes[1].set_ylim(0, None)
    return figure


CLAIM = Claim(
    id="A8",
    title="The transition is sharp as D grows",
    statement=r"The transition from unspecialized to specialized heads becomes sharp as $D \to "
    r"\infty$.",
    source="arXiv 2603.03993, Conjecture III.1",
    status="conjectured",
    method=r"The law of the first passage of heads' differences at every $D$ from the Hessian, and "
    r"SGD, exact in law. Passages grow as $\log D$ while their width stays: on the scale of "
    r"$\tau / \log D$ the transition is sharp, on that of $\tau$ it is not.",
    regimes=(OWN, ABSOLUTE),
    parts=parts,
    measure=measure,
    draw=draw,
)
