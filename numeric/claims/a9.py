"""A9: softmax and softmax-v do not reach the Bayes risk when theta and -theta are both possible."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, array
from numeric.claims.claim import parts as make_parts
from numeric.claims.figures import panels
from numeric.claims.priors import points
from numeric.minimum import minimize_loss
from numeric.prior import Prior, flipped_spike, isotropic
from numeric.style import COLOURS, MARKERS, styled
from numeric.task import Attention, Task

GAP = Condition("least gap to the Bayes risk over activations and heads", low=1e-3)
NONE = Condition("gap of softmax to the Bayes risk", high=1e-8)
PRIORS = ("±2", "±1", "±3", "Gaussian, variance 4")
OWN = Regime("signals ±θ", (GAP,))
GAUSSIAN = Regime("a Gaussian prior", (GAP,))
CONTROL = Regime("control: θ alone, where softmax is Bayes", (NONE,))


def prior_of(name: str) -> Prior:
    """Return a prior of one feature."""
    if name == "2 alone":
        return points([[2.0]], [1.0])
    if name.startswith("±"):
        return flipped_spike([[float(name[1:])]])
    return isotropic(1, 4.0)


def gaps(prior: str, activations: list[str], heads: list[int], seed: int) -> dict[str, Any]:
    """Least losses of descents above the Bayes risk."""
    task = Task(5, prior_of(prior))
    found = [
        {"activation": x, "heads": h, "gap": y.gap, "error": y.gap_error}
        for x in activations
        for h in heads
        for y in [minimize_loss(task, Attention(x, h), starts=4, seed=seed, spectrum=False)]
    ]
    return {"gaps": found}


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Return descents for each prior."""
    heads = [1, 2, 4, 6] if full else [1, 2]
    names = PRIORS if full else (PRIORS[0], PRIORS[3])
    calls: dict[str, dict[str, Any]] = {
        f"gaps, {name}": {"prior": name, "activations": ["softmax", "softmax-v"], "heads": heads}
        for name in names
    }
    calls["gaps, 2 alone"] = {"prior": "2 alone", "activations": ["softmax"], "heads": [1]}
    return make_parts(seed, gaps, calls)


def least(results: Results, names: tuple[str, ...]) -> Measured:
    """Return the least of all gaps."""
    found = [
        x for name in names if f"gaps, {name}" in results for x in results[f"gaps, {name}"]["gaps"]
    ]
    best = min(found, key=lambda x: x["gap"])
    return Measured(best["gap"], best["error"])


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Least gaps."""
    return {
        OWN.name: {GAP.name: least(results, PRIORS[:3])},
        GAUSSIAN.name: {GAP.name: least(results, PRIORS[3:])},
        CONTROL.name: {NONE.name: least(results, ("2 alone",))},
    }


@styled
def draw(results: Results) -> Figure:
    """Gaps against the number of heads."""
    figure, (ax,) = panels()
    for i, name in enumerate(x for x in PRIORS if f"gaps, {x}" in results):
        for activation, line in (("softmax", "-"), ("softmax-v", ":")):
            chosen = [x for x in results[f"gaps, {name}"]["gaps"] if x["activation"] == activation]
            ax.plot(
                [x["heads"] for x in chosen],
                array([x["gap"] for x in chosen]),
                MARKERS[i] + line,
                color=COLOURS[i],
                label=f"{activation}, {name}",
            )
    ax.set(xlabel="heads", ylabel="least loss above Bayes", ylim=(0, None))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend(fontsize=7)
    return figure


CLAIM = Claim(
    id="A9",
    title="Softmax and softmax-v are suboptimal for signals ±θ",
    statement=r"Softmax and softmax-v attention do not reach the Bayes risk where $\theta$ and "
    r"$-\theta$ are both in the support.",
    source="arXiv 2603.03993, Prop. IV.1",
    status="proved",
    method=r"Descents from random starts over $m$, $r$ and $v$ with the exact loss and gradient; "
    r"the least loss above the Bayes risk. Descents find upper bounds: a positive gap is "
    r"evidence, no proof.",
    regimes=(OWN, GAUSSIAN, CONTROL),
    parts=parts,
    measure=measure,
    draw=draw,
)
