"""A11: for continuous priors Bayes-softmax approaches the Bayes risk as heads discretize the prior."""

from typing import Any

from matplotlib.figure import Figure

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, array, of
from numeric.claims.claim import parts as make_parts
from numeric.claims.figures import panels
from numeric.claims.priors import gaussian
from numeric.head_counts import head_count
from numeric.style import COLOURS, MARKERS, styled
from numeric.task import Task

FALLS = Condition("largest ratio of gaps of one head more", high=1.0)
SMALL = Condition("gap to the Bayes risk with the most heads", high=1e-3)
VARIANCES = {
    "one feature of variance 4": [4.0],
    "one feature of variance 16": [16.0],
    "two features of variance 4 and 2": [4.0, 2.0],
}
REGIMES = tuple(Regime(name, (FALLS, SMALL)) for name in VARIANCES)


def count(variances: list[float], most: int, seed: int) -> dict[str, Any]:
    """Gaps against the number of heads."""
    size = len(variances)
    covariance = [[v * (i == j) for j in range(size)] for i, v in enumerate(variances)]
    task = Task(5, gaussian([0.0] * size, covariance))
    found = head_count(task, most=most, starts=2, seed=seed)
    return {"heads": found.heads, "gaps": found.gaps, "errors": found.errors}


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Return head counts for one prior, or three."""
    names = list(VARIANCES) if full else list(VARIANCES)[:1]
    return make_parts(
        seed,
        count,
        {f"heads, {x}": {"variances": VARIANCES[x], "most": 6 if full else 3} for x in names},
    )


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Ratios of successive gaps, and the last one."""
    found = {}
    for name, x in of(results, "heads, ").items():
        gaps, errors = array(x["gaps"]), array(x["errors"])
        ratios = gaps[1:] / gaps[:-1]
        worst = int(ratios.argmax())
        error = ratios[worst] * (errors[worst + 1] / gaps[worst + 1] + errors[worst] / gaps[worst])
        found[name] = {
            FALLS.name: Measured(ratios[worst], abs(error)),
            SMALL.name: Measured(gaps[-1], errors[-1]),
        }
    return found


@styled
def draw(results: Results) -> Figure:
    """Gaps against the number of heads."""
    figure, (ax,) = panels()
    for i, (name, x) in enumerate(of(results, "heads, ").items()):
        ax.plot(x["heads"], array(x["gaps"]), MARKERS[i] + "-", color=COLOURS[i], label=name)
    ax.set(yscale="log", xlabel="heads", ylabel="least loss above Bayes")
    ax.legend(fontsize=7)
    return figure


CLAIM = Claim(
    id="A11",
    title="Continuous priors: Bayes-softmax approaches the Bayes risk with more heads",
    statement=r"For a continuous prior the risk of Bayes-softmax approaches the Bayes risk as its "
    r"heads discretize the prior.",
    source="arXiv 2603.03993, section IV",
    status="numerical",
    method=r"Least losses of $H = 1, 2, \dots$ heads by descents that start from Gauss quadratures "
    r"of the prior, from split heads and at random, above the Bayes risk.",
    regimes=REGIMES,
    parts=parts,
    measure=measure,
    draw=draw,
)
