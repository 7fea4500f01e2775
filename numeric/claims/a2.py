"""A2: heads first align with the mean signal, after samples proportional to D."""

from typing import Any

from matplotlib.figure import Figure

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, of
from numeric.claims.claim import parts as make_parts
from numeric.claims.figures import against_dimension, panels
from numeric.claims.priors import gaussian
from numeric.claims.scaling import growth, passages
from numeric.phases import phase_watches
from numeric.style import styled
from numeric.task import Attention, Task

LATE = Condition("runs that have not aligned by τ = 100", high=0)
SLOPE = Condition("growth of τ with log D, relative to τ", -0.05, 0.05)
SETTINGS = {
    "mean 1, η = 0.1": {"mean": 1.0, "eta": 0.1, "heads": 2},
    "mean 0.3": {"mean": 0.3, "eta": 0.1, "heads": 2},
    "mean 3": {"mean": 3.0, "eta": 0.1, "heads": 2},
    "η = 1": {"mean": 1.0, "eta": 1.0, "heads": 2},
    "eight heads": {"mean": 1.0, "eta": 0.1, "heads": 8},
}
REGIMES = tuple(Regime(name, (LATE, SLOPE)) for name in SETTINGS)


def align(
    mean: float, eta: float, heads: int, dimensions: list[int], runs: int, seed: int
) -> dict[str, Any]:
    """First passages of the mean head's alignment, at half of the unspecialized saddle's."""
    task, layer = Task(5, gaussian([mean], [[1.0]])), Attention("softmax", heads)
    how = {"eta": eta, "kappa": 1.0, "tau_max": 100.0, "runs": runs}
    found = passages(task, layer, phase_watches(task, layer)[0], dimensions, seed, **how)
    return {"dimensions": dimensions, "tau": found}


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Passages in one setting, or in several."""
    names = list(SETTINGS) if full else list(SETTINGS)[:1]
    size = {"dimensions": [1000, 10**4, 10**5], "runs": 64}
    if not full:
        size = {"dimensions": [1000, 4000, 16_000], "runs": 64}
    return make_parts(seed, align, {f"align, {x}": {**SETTINGS[x], **size} for x in names})


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Slopes of lines in log D through mean passages."""
    found = {}
    for name, x in of(results, "align, ").items():
        late, slope = growth(x["dimensions"], x["tau"])
        found[name] = {LATE.name: late, SLOPE.name: slope}
    return found


@styled
def draw(results: Results) -> Figure:
    """Times to align against D."""
    figure, (ax,) = panels()
    for i, (name, x) in enumerate(of(results, "align, ").items()):
        against_dimension(ax, x["dimensions"], x["tau"], name, i)
    ax.set(ylabel="τ to align with the mean", ylim=(0, None))
    ax.legend()
    return figure


CLAIM = Claim(
    id="A2",
    title="Heads align with the mean signal after Θ(D) samples",
    statement=r"In the unspecialized phase all heads align with the mean signal $\mathbb{E}\theta$, "
    r"after $\Theta(D)$ samples.",
    source="arXiv 2603.03993, Prop. III.3",
    status="proved",
    method=r"SGD, exact in law, from keys $N(0, \eta^2 I / D)$ with $\kappa = 1$: the time at "
    r"which the mean head has half of its alignment at the unspecialized saddle. Samples "
    r"are $D \tau / \kappa$, so $\tau$ must not grow with $\log D$.",
    regimes=REGIMES,
    parts=parts,
    measure=measure,
    draw=draw,
)
