"""A1: SGD follows the gradient flow of the order parameters."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.random import SeedSequence, default_rng

from numeric.agreement import compare_with_flow
from numeric.checks import order_parameters, threshold
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
from numeric.claims.directions import softmax_losses
from numeric.claims.figures import panels
from numeric.claims.priors import gaussian
from numeric.flow import integrate_flow
from numeric.loss import population_loss
from numeric.noise import initial_state
from numeric.quadrature import symmetric_root
from numeric.style import COLOURS, MARKERS, styled
from numeric.task import Attention, Task

TASK = Task(5, gaussian([0.5, 0.0], [[2.0, 0.0], [0.0, 1.0]]))
DIFFERING = Condition("means of order parameters that differ from the flow", high=0)
EXPONENT = Condition("exponent of a run's distance to the flow in D", -0.6, -0.4)
LOSS = Condition("loss in D dimensions minus E(m, r)", -0.02, 0.02)
OWN = Regime("softmax, two heads", (DIFFERING, EXPONENT, LOSS))
OTHERS = {name: Regime(name, (DIFFERING, EXPONENT)) for name in ("softmax-1", "b-softmax", "erf")}
BARE = Regime("steps of order 1/D without the term κV", (DIFFERING,))


def follow(
    activation: str, heads: int, dimensions: list[int], runs: int, seed: int
) -> dict[str, Any]:
    """SGD at several D beside the flow at the same kappa, and beside the bare gradient flow."""
    layer, kappa = Attention(activation, heads), 2.0
    state = initial_state(TASK, layer, 1.0, 50, 3)
    found = compare_with_flow(
        state,
        TASK,
        layer,
        dimensions=dimensions,
        kappa=kappa,
        tau_max=8.0,
        runs=runs,
        seed=seed,
    )
    bare = integrate_flow(state, TASK, layer, found.flow.tau)
    predicted = np.stack(list(order_parameters(bare).values()), axis=-1)[1:].ravel()
    z = [abs(x.value - y) / x.error for x, y in zip(found.checks, predicted, strict=True)]
    return {
        "dimensions": dimensions,
        "deviation": found.deviation,
        "deviation_error": found.deviation_error,
        "exponent": [found.exponent, found.exponent_error],
        "differing": sum(not x.passed for x in found.checks),
        "bare_differing": int((np.array(z) > threshold(len(z))).sum()),
    }


def loss(dimension: int, samples: int, seed: int) -> dict[str, Any]:
    """The loss |x_eps - sum a_l x_l|^2 / D of D-dimensional tokens, and the population loss."""
    layer, rng = Attention("softmax", 2), default_rng(SeedSequence(seed))
    state = initial_state(TASK, layer, 1.0, 10, 5)
    features, tokens = TASK.prior.features, TASK.tokens
    basis = np.linalg.qr(rng.standard_normal((dimension, features + 2)))[0].T
    keys = state.m @ basis[:features] + symmetric_root(state.r) @ basis[features:]
    values = []
    for first in range(0, samples, 500):
        count = min(500, samples - first)
        x = rng.standard_normal((count, tokens, dimension))
        x[:, 0] += TASK.prior.sample(rng, count) @ basis[:features]
        values.append(softmax_losses(keys, x))
    every = np.concatenate(values)
    return {
        "population": float(population_loss(state, TASK, layer).value),
        "mean": every.mean(),
        "error": every.std(ddof=1) / np.sqrt(len(every)),
    }


def parts(full: bool, seed: int) -> dict[str, Part]:
    """SGD of one activation, or of four, and a loss."""
    dimensions = [400, 800, 1600, 3200] if full else [200, 400, 800, 1600]
    names = {"softmax": 2, "softmax-1": 2, "b-softmax": 2, "erf": 1} if full else {"softmax": 2}
    calls = {
        f"follow-{name}": {
            "activation": name,
            "heads": heads,
            "dimensions": dimensions,
            "runs": 400 if full else 128,
        }
        for name, heads in names.items()
    }
    size = {"dimension": 1000, "samples": 40_000} if full else {"dimension": 400, "samples": 20_000}
    return make_parts(seed, follow, calls) | make_parts(seed, loss, {"loss": size})


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Numbers of comparisons that differ, exponents, and the loss in D dimensions."""
    found, own = {}, results["loss"]
    for regime in (OWN, *OTHERS.values()):
        name = "softmax" if regime is OWN else regime.name
        if f"follow-{name}" in results:
            x = results[f"follow-{name}"]
            found[regime.name] = {
                DIFFERING.name: Measured(x["differing"]),
                EXPONENT.name: sampled(*x["exponent"]),
            }
    found[OWN.name][LOSS.name] = sampled(own["mean"] - own["population"], own["error"])
    bare = results["follow-softmax"]["bare_differing"]
    return found | {BARE.name: {DIFFERING.name: Measured(bare)}}


@styled
def draw(results: Results) -> Figure:
    """Distances to the flow against D, and a line of slope -1/2."""
    figure, (ax,) = panels()
    for i, (name, x) in enumerate(of(results, "follow-").items()):
        sizes, apart = array(x["dimensions"]), array(x["deviation"])
        ax.errorbar(
            sizes,
            apart,
            2 * array(x["deviation_error"]),
            color=COLOURS[i],
            marker=MARKERS[i],
            markersize=5,
            linestyle="none",
            label=name,
        )
        line = apart[0] * (sizes / sizes[0]) ** -0.5
        ax.plot(sizes, line, color=COLOURS[i], linewidth=1, label="D^(−1/2)" if not i else None)
    ax.set(xscale="log", yscale="log", xlabel="token dimension D", ylabel="rms distance to flow")
    ax.legend()
    return figure


CLAIM = Claim(
    id="A1",
    title="SGD follows the gradient flow of the order parameters",
    statement=r"As $D \to \infty$ the loss depends on $m$, $r$, $b$ and $v$ alone, and SGD follows "
    r"their gradient flow.",
    source="arXiv 2603.03993, Prop. III.2",
    status="proved",
    method=r"SGD at several $D$ from one state, against the flow at the same $\kappa = \gamma D / "
    r"N_b$: means, extrapolated to $D \to \infty$, entry by entry (false-alarm rate "
    r"$10^{-6}$), and the exponent of a run's distance to the flow, which should be $-1/2$. "
    r"The loss of $D$-dimensional tokens at random keys, against the population loss of "
    r"their $(m, r)$. Where $\gamma$ is of order $1/D$, the bare gradient flow lacks the "
    r"noise term $\kappa V$ of $dr/d\tau$.",
    regimes=(OWN, *OTHERS.values(), BARE),
    parts=parts,
    measure=measure,
    draw=draw,
)
