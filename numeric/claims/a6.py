"""A6: features are learned one after the other, in the order of their variances."""

import numpy as np
from matplotlib.figure import Figure

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, array
from numeric.claims.figures import panels
from numeric.claims.training import BEYOND, LARGE, OWN, flows, gathered, trainings
from numeric.style import COLOURS, styled

LEARNED = Condition("runs that learn no feature", high=0)
ORDER = Condition("runs out of order", high=0)
DROPS = Condition("runs in which a learned feature loses more than 10 %", high=0)
ALL = (LEARNED, ORDER, DROPS)
REGIMES = (
    Regime("softmax and b-softmax, η = 0.01 and 1", ALL),
    *(Regime(name, ALL) for name in (*OWN, LARGE)),
    Regime("softmax, flow at κ = 0", ALL),
    *(Regime(name, ALL) for name in BEYOND),
)


def out_of_order(passages: np.ndarray) -> np.ndarray:
    """Return which runs (n, F) pass a feature before one of larger variance; NaN is never."""
    late = np.where(np.isnan(passages), np.inf, passages)
    # Two that are never learned are in order.
    wrong: np.ndarray = (late[:, 1:] <= late[:, :-1]) & np.isfinite(late[:, 1:])
    return np.asarray(wrong.any(axis=1))


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Training of the paper's four settings; in full, flows and other regimes."""
    others = (LARGE, *BEYOND) if full else BEYOND[-2:]
    return trainings(full, seed, OWN + others) | flows(full, seed)


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Numbers of runs that contradict the claim."""
    names: dict[str, tuple[str, tuple[str, ...]]]
    names = {x.name: ("train", (x.name,)) for x in REGIMES}
    names |= {REGIMES[0].name: ("train", OWN), "softmax, flow at κ = 0": ("flow", OWN[:2])}
    found = {}
    for regime, (kind, settings) in names.items():
        every = [x for x in (gathered(results, name, kind) for name in settings) if x]
        if every:
            passages = np.concatenate([x["passages"] for x in every])
            drops = np.concatenate([x["drops"] for x in every])
            found[regime] = {
                LEARNED.name: Measured(int(np.isnan(passages).all(axis=1).sum())),
                ORDER.name: Measured(int(out_of_order(passages).sum())),
                DROPS.name: Measured(int((drops > 0.1).sum())),
            }
    return found


@styled
def draw(results: Results) -> Figure:
    """Norms of the features in one run of each setting, and first passages of all."""
    figure, axes = panels(2)
    for i, name in enumerate(OWN):
        passages = gathered(results, name)["passages"]
        for f in range(3):
            axes[1].plot(
                passages[:, f],
                i + 0.18 * (f - 1) + 0 * passages[:, f],
                "o",
                color=COLOURS[f],
                alpha=0.5,
                markersize=4,
                label=f"feature {f + 1}" if not i else None,
            )
    axes[1].set(xscale="log", xlabel="first passage τ", yticks=range(4), yticklabels=OWN)
    axes[1].invert_yaxis()
    axes[1].legend(loc="upper center", bbox_to_anchor=(0.4, 1.2), ncols=3, handletextpad=0.1)
    run = results[f"train, {OWN[0]}, 1"]
    for f, norms in enumerate(array(run["norms"]).T):
        axes[0].plot(array(run["tau"]), norms, color=COLOURS[f])
    axes[0].axhline(1, color="#444444", linewidth=1, linestyle=":")
    axes[0].set(xlabel="τ", ylabel="feature norm ‖m(:, f)‖", title=f"one run: {OWN[0]}")
    return figure


CLAIM = Claim(
    id="A6",
    title="Features are learned in the order of their variances",
    statement=r"Features are learned one after the other, in the order of their variances $\nu_1 > "
    r"\nu_2 > \dots$, and stay learned.",
    source="arXiv 2603.03993, Result III.1",
    status="conjectured",
    method=r"Three features, eight heads, five tokens, random keys of norm $\eta$: first times at "
    r"which $\|m_{:f}\|$ exceeds 1, and the largest later drop of each norm. SGD is exact "
    r"in law at $D = 1000$, $\kappa = 1$; in full, a hundred runs of each setting and flows "
    r"at $\kappa = 0$.",
    regimes=REGIMES,
    parts=parts,
    measure=measure,
    draw=draw,
)
