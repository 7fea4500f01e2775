"""A12: about H - F softmax heads can be pruned at little cost."""

import numpy as np
from matplotlib.figure import Figure

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, mean_of
from numeric.claims.figures import panels
from numeric.claims.training import HEADS, OWN, VARIANCES, gathered, trainings
from numeric.style import COLOURS, GREY, styled

SPARE = HEADS - len(VARIANCES)
REMOVED = Condition(f"heads that can go, minus (H − F) = {SPARE}", low=-1.0)
SETTINGS = {
    "softmax, at a loss of 5 % more": (OWN[0], 0.05),
    "softmax, at 1 % more": (OWN[0], 0.01),
    "b-softmax, at 5 % more": (OWN[2], 0.05),
}
REGIMES = tuple(Regime(name, (REMOVED,)) for name in SETTINGS)


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Training to the end and removal of heads; runs of A6."""
    return trainings(full, seed, (OWN[0], OWN[2]))


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Mean numbers of heads that can go at a cost."""
    found = {}
    for name, (setting, cost) in SETTINGS.items():
        losses = gathered(results, setting)["removed"]
        if len(losses):
            cheap = losses <= (1 + cost) * losses[:, :1]
            # A later removal may be cheap again.
            gone = np.array([np.flatnonzero(x).max() for x in cheap])
            found[name] = {REMOVED.name: mean_of(gone - SPARE)}
    return found


@styled
def draw(results: Results) -> Figure:
    """Losses against the number of removed heads."""
    figure, (ax,) = panels()
    for i, name in enumerate(("softmax", "b-softmax")):
        losses = gathered(results, OWN[2 * i])["removed"]
        if len(losses):
            lines = ax.plot((losses / losses[:, :1]).T, color=COLOURS[i], alpha=0.5, linewidth=1)
            lines[0].set_label(name)
    ax.axvline(SPARE, color=GREY, linewidth=1, linestyle=":", label="H − F")
    ax.set(xlabel="heads removed", ylabel="loss, relative to that of all heads", ylim=(0.95, 2))
    ax.legend()
    return figure


CLAIM = Claim(
    id="A12",
    title="About H − F heads can be pruned at little cost",
    statement=r"After training about $H - F$ of the $H$ softmax heads can be pruned at little cost.",
    source="arXiv 2603.03993, section IV",
    status="numerical",
    method=r"Of runs of A6 at their end ($H = 8$, $F = 3$, $\eta = 1$) heads are removed one by "
    r"one, always the one whose exact loss costs least; counted are those that can go at a "
    r"loss of 5 % more.",
    regimes=REGIMES,
    parts=parts,
    measure=measure,
    draw=draw,
)
