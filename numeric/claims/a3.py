"""A3: specialization starts after samples proportional to D log D."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from numeric.alike import alike_hessian
from numeric.claims.claim import (
    Claim,
    Condition,
    Measured,
    Part,
    Regime,
    Results,
    array,
    of,
)
from numeric.claims.claim import parts as make_parts
from numeric.claims.figures import against_dimension, panels
from numeric.claims.priors import gaussian
from numeric.claims.scaling import growth, passages
from numeric.saddles import unspecialized_saddle
from numeric.style import styled
from numeric.task import Attention, Task
from numeric.watch import specialization

LATE = Condition("runs that have not specialized by τ = 400", high=0)
SLOPE = Condition("slope of τ in log D, in units of 1/(2λ)", 0.8, 1.25)
SMALL = {"tokens": 5, "mean": 0.0, "eta": 0.1}
SETTINGS = {
    "no mean, η = 0.1": SMALL,
    "mean 0.2": {**SMALL, "mean": 0.2},
    "η = 1": {**SMALL, "eta": 1.0},
    "mean 0.5": {**SMALL, "mean": 0.5},
    "mean 2": {**SMALL, "mean": 2.0},
    "L = 2, where λ = 0": {**SMALL, "tokens": 2},
}
REGIMES = tuple(Regime(name, (LATE, SLOPE)) for name in SETTINGS)


def specialize(
    tokens: int, mean: float, eta: float, dimensions: list[int], runs: int, seed: int
) -> dict[str, Any]:
    """First passages of the norm of the heads' differences, and the saddle's growth rate."""
    task, layer = Task(tokens, gaussian([mean], [[4.0]])), Attention("softmax", 4)
    how = {"eta": eta, "kappa": 2.0, "tau_max": 400.0, "runs": runs}
    found = passages(task, layer, specialization(task, layer), dimensions, seed, **how)
    saddle = unspecialized_saddle(task, layer).state
    rate = -float(alike_hessian(saddle, task, layer).difference[0, 0])
    return {"dimensions": dimensions, "tau": found, "rate": rate}


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Passages in every setting."""
    dimensions, runs = ([100, 1000, 10**4], 400) if full else ([100, 550, 3000], 160)
    size = {"dimensions": dimensions, "runs": runs}
    # Where heads never part each run takes all the time there is.
    few = {"dimensions": dimensions[:2], "runs": 16}
    calls = {}
    for name, setting in SETTINGS.items():
        if full or name not in ("mean 0.2", "mean 0.5", "η = 1"):
            slow = setting["mean"] == 2.0 or setting["tokens"] == 2
            calls[f"specialize, {name}"] = {**setting, **(few if slow else size)}
    return make_parts(seed, specialize, calls)


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Runs that stay, and slopes of lines in log D beside the Hessian's growth rates."""
    found = {}
    for name, x in of(results, "specialize, ").items():
        late, slope = growth(x["dimensions"], x["tau"], 2 * x["rate"])
        found[name] = {LATE.name: late, SLOPE.name: slope}
    return found


@styled
def draw(results: Results) -> Figure:
    """Times to specialize against D."""
    figure, (ax,) = panels()
    for i, (name, x) in enumerate(of(results, "specialize, ").items()):
        if all(np.isfinite(array(y)).all() for y in x["tau"]):
            against_dimension(ax, x["dimensions"], x["tau"], name, i)
    ax.set(ylabel="τ to specialize", ylim=(0, None))
    ax.legend()
    return figure


CLAIM = Claim(
    id="A3",
    title="Specialization starts after Θ(D log D) samples",
    statement=r"For a small mean signal and small initial keys, heads begin to specialize after "
    r"$\Theta(D \log D)$ samples.",
    source="arXiv 2603.03993, Prop. III.4, Lemma A.5",
    status="proved",
    method=r"SGD, exact in law, from keys $N(0, \eta^2 I / D)$, four heads, one feature of "
    r"variance 4, $\kappa = 2$: the time at which the norm of the heads' differences passes "
    r"1. Samples are $D \tau / \kappa$, so $\tau$ should grow as $\log(D) / (2 \lambda)$, "
    r"with $\lambda$ the growth rate of the heads' differences at the unspecialized saddle.",
    regimes=REGIMES,
    parts=parts,
    measure=measure,
    draw=draw,
)
