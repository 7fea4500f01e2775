"""A13: at D = 10^4 feature 1 is learned first, feature 2 after a further delay of order log D."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from numeric.claims.a6 import out_of_order
from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, array, of
from numeric.claims.claim import parts as make_parts
from numeric.claims.figures import panels
from numeric.claims.priors import gaussian
from numeric.flow import integrate_flow
from numeric.ladder import saddle_ladder
from numeric.noise import initial_state
from numeric.phases import first_passages
from numeric.style import COLOURS, styled
from numeric.task import Attention, Task
from numeric.watch import feature_norms

NEVER = Condition("runs that do not learn both by τ = 400", high=0)
ORDER = Condition("runs that learn feature 2 first", high=0)
DELAY = Condition("slope of the delay in log D, relative to the predicted one", 0.8, 1.25)
OWN = Regime("variances 4 and 2, η = 0.1", (NEVER, ORDER, DELAY))
CLOSE = Regime("variances 4 and 3.8", (NEVER, ORDER, DELAY))
SETTINGS = {OWN.name: [4.0, 2.0], CLOSE.name: [4.0, 3.8]}
LAYER, ETA, KAPPA, DIMENSION = Attention("softmax", 4), 0.1, 4.0, 10**4
HORIZON, SIZES = 500.0, [10**6, 10**9]


def task_of(variances: list[float]) -> Task:
    """Return a task of two features."""
    return Task(5, gaussian([0.0, 0.0], np.diag(variances)))


def learn(variances: list[float], runs: int, seed: int) -> dict[str, Any]:
    """First passages of both features in SGD."""
    task = task_of(variances)
    found = first_passages(
        task,
        LAYER,
        feature_norms(task, LAYER),
        dimension=DIMENSION,
        eta=ETA,
        kappa=KAPPA,
        tau_max=400.0,
        runs=runs,
        seed=seed,
    )
    return {"passages": found.passages}


def delays(variances: list[float], starts: int, seed: int) -> dict[str, Any]:
    """First passages of flows from the same directions at several D, and predicted slopes."""
    task, found, predicted = task_of(variances), [], []
    for i in range(starts):
        begin = [initial_state(task, LAYER, ETA, size, seed + i) for size in SIZES]
        paths = [integrate_flow(x, task, LAYER, [0.0, HORIZON], digits=4, rtol=1e-4) for x in begin]
        found.append([path.first_passage for path in paths])
        waits = [saddle_ladder(x, task, LAYER)[1].waiting for x in begin]
        predicted.append((waits[1] - waits[0]) / np.log(SIZES[1] / SIZES[0]))
    return {"passages": found, "predicted": predicted}


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Return SGD and flows, for one or two pairs of variances."""
    names = list(SETTINGS) if full else [OWN.name]
    runs, starts = (100, 16) if full else (12, 2)
    return make_parts(
        seed, learn, {f"SGD, {x}": {"variances": SETTINGS[x], "runs": runs} for x in names}
    ) | make_parts(
        seed, delays, {f"flows, {x}": {"variances": SETTINGS[x], "starts": starts} for x in names}
    )


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Order of SGD, and the slope of the flows' delay."""
    found = {}
    for name, x in of(results, "flows, ").items():
        passages, flows = array(results[f"SGD, {name}"]["passages"]), array(x["passages"])
        # Along one direction the delay becomes linear in log D.
        delay = flows[:, :, 1] - flows[:, :, 0]
        slopes = (delay[:, 1] - delay[:, 0]) / np.log(SIZES[1] / SIZES[0])
        slopes /= array(x["predicted"])
        found[name] = {
            NEVER.name: Measured(int(np.isnan(passages).any(axis=1).sum())),
            ORDER.name: Measured(int(out_of_order(passages).sum())),
            DELAY.name: Measured(float(slopes.mean()), float(np.ptp(slopes))),
        }
    return found


@styled
def draw(results: Results) -> Figure:
    """First passages against D."""
    followed = of(results, "flows, ")
    figure, axes = panels(len(followed))
    for ax, (name, x) in zip(axes, followed.items(), strict=True):
        flows = array(x["passages"])
        passages = array(results[f"SGD, {name}"]["passages"])
        for f in range(2):
            ax.plot(SIZES, flows[:, :, f].T, color=COLOURS[f], linewidth=1)
            ax.plot(
                0 * passages[:, f] + DIMENSION, passages[:, f], "o", color=COLOURS[f], alpha=0.4
            )
            ax.plot([], [], "o-", color=COLOURS[f], label=f"feature {f + 1}")
        ax.set(xscale="log", xlabel="token dimension D", ylabel="first passage τ", title=name)
        ax.set_ylim(0, None)
        ax.legend()
    return figure


CLAIM = Claim(
    id="A13",
    title="Falsifier: feature 1 first, feature 2 after a delay of order log D",
    statement=r"At $D = 10^4$, with $\nu_1 > \nu_2$ and no mean signal, feature 1 is learned first, "
    r"and feature 2 after a further delay of order $\log D$.",
    source="arXiv 2603.03993, section III",
    status="numerical",
    method=r"Four heads. SGD, exact in law, $\kappa = 4$ (points): order of the first passages "
    r"at $D = 10^4$. Flows from keys of the same directions (lines): the slope "
    r"of the delay in $\log D$, relative to what the growth rates at the saddles predict.",
    regimes=(OWN, CLOSE),
    parts=parts,
    measure=measure,
    draw=draw,
)
