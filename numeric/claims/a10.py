"""A10: Bayes-softmax with one head for each point of a discrete prior is the Bayes estimator."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from numeric.bayes import bayes_risk
from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, array, share_of
from numeric.claims.claim import parts as make_parts
from numeric.claims.figures import panels
from numeric.claims.priors import points
from numeric.loss import population_loss
from numeric.minimum import bayes_softmax_optimum, minimize_loss
from numeric.outcomes import training_outcomes
from numeric.style import COLOURS, GREY, styled
from numeric.task import Attention, Task

EQUAL = Condition("largest |loss − Bayes risk| at the closed form", high=1e-7)
REST = Condition("largest entry of dE/dm and dE/db there", high=1e-6)
REACHED = Condition("share of SGD runs that end within 0.02 of the Bayes risk", low=0.8)
FEWER = Condition("least gap with one head fewer", high=1e-3)
OWN = Regime("one head for each point", (EQUAL, REST))
TRAINED = Regime("what SGD reaches from random keys", (REACHED,))
SHORT = Regime("one head fewer than points", (FEWER,))
PRIORS: dict[str, tuple[list[list[float]], list[float]]] = {
    "±2": ([[2.0], [-2.0]], [0.5, 0.5]),
    "three unequal points": ([[2.5], [0.5], [-1.5]], [0.2, 0.5, 0.3]),
    "four points in the plane": (
        [[2.0, 0.0], [-1.0, 1.0], [0.0, -2.0], [1.0, 1.5]],
        [0.4, 0.3, 0.2, 0.1],
    ),
}


def task_of(name: str) -> Task:
    """Return the task of a prior."""
    return Task(5, points(*PRIORS[name]))


def closed_form(prior: str, seed: int) -> dict[str, Any]:
    """Loss at k_h = theta_h, b_h = log P(theta_h) - |theta_h|^2/2, beside the Bayes risk."""
    task = task_of(prior)
    state, risk = bayes_softmax_optimum(task), bayes_risk(task)
    loss = population_loss(state, task, Attention("b-softmax", len(state.m)))
    rest = max(float(np.abs(x).max()) for x in (loss.m, loss.b) if x is not None)
    return {
        "loss": float(loss.value),
        "bayes": risk.value,
        "error": float(loss.error) + risk.error,
        "gradient": rest,
        "gradient_error": float(loss.gradient_error),
    }


def fewer(prior: str, seed: int) -> dict[str, Any]:
    """Least loss with one head fewer."""
    heads = len(PRIORS[prior][0]) - 1
    found = minimize_loss(
        task_of(prior), Attention("b-softmax", heads), starts=4, seed=seed, spectrum=False
    )
    return {"gap": found.gap, "error": found.gap_error}


def trained(prior: str, runs: int, tau_max: float, seed: int) -> dict[str, Any]:
    """Losses at the ends of SGD runs from random keys."""
    layer = Attention("b-softmax", len(PRIORS[prior][0]))
    found = training_outcomes(
        task_of(prior),
        layer,
        runs=runs,
        eta=1.0,
        dimension=300,
        tau_max=tau_max,
        seed=seed,
        method="sgd",
    )
    return {"losses": found.losses, "bayes": found.bayes.value}


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Return the closed form for each prior, and training for one, or for each."""
    names = list(PRIORS) if full else list(PRIORS)[:2]
    calls = {f"closed form, {name}": {"prior": name} for name in PRIORS}
    short = {f"one head fewer, {name}": {"prior": name} for name in names}
    size = {"runs": 100, "tau_max": 400.0} if full else {"runs": 60, "tau_max": 60.0}
    ends = {f"SGD, {name}": {"prior": name, **size} for name in (names if full else names[:1])}
    return (
        make_parts(seed, closed_form, calls)
        | make_parts(seed, fewer, short)
        | make_parts(seed, trained, ends)
    )


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Differences to the Bayes risk."""
    forms = [results[f"closed form, {name}"] for name in PRIORS]
    worst = max(forms, key=lambda x: abs(x["loss"] - x["bayes"]))
    steep = max(forms, key=lambda x: float(x["gradient"]))
    short = [x for name, x in results.items() if name.startswith("one head fewer")]
    least = min(short, key=lambda x: float(x["gap"]))
    ends = [x for name, x in results.items() if name.startswith("SGD")]
    close = [array(x["losses"]) - x["bayes"] < 0.02 for x in ends]
    return {
        OWN.name: {
            EQUAL.name: Measured(abs(worst["loss"] - worst["bayes"]), worst["error"]),
            REST.name: Measured(steep["gradient"], steep["gradient_error"]),
        },
        TRAINED.name: {
            REACHED.name: share_of(int(np.concatenate(close).sum()), sum(map(len, close)))
        },
        SHORT.name: {FEWER.name: Measured(least["gap"], least["error"])},
    }


@styled
def draw(results: Results) -> Figure:
    """Ends of SGD, beside the Bayes risk."""
    figure, (ax,) = panels()
    names = [name for name in PRIORS if f"SGD, {name}" in results]
    for i, name in enumerate(names):
        x = results[f"SGD, {name}"]
        above = np.sort(array(x["losses"]) - x["bayes"])
        ax.plot(above, (np.arange(len(above)) + 1) / len(above), color=COLOURS[i], label=name)
    ax.axvline(0.02, color=GREY, linewidth=1, linestyle=":")
    ax.set(xlabel="loss above the Bayes risk at the end of SGD", ylabel="share of runs")
    ax.legend()
    return figure


CLAIM = Claim(
    id="A10",
    title="Bayes-softmax reaches the Bayes risk of a discrete prior",
    statement=r"With one head for each support point, $k_h = \sum_f \theta_{hf} k^*_f$ and $b_h = "
    r"\log P(\theta_h) - |\theta_h|^2 / 2$, Bayes-softmax reaches the Bayes risk.",
    source="arXiv 2603.03993, Prop. IV.2",
    status="proved",
    method=r"Loss and gradient at the closed form by quadrature, against the Bayes risk by a "
    r"quadrature of its own. The proposition says what can be represented; whether SGD "
    r"finds it from keys with $\eta = 1$ at $D = 300$ is measured.",
    regimes=(OWN, TRAINED, SHORT),
    parts=parts,
    measure=measure,
    draw=draw,
)
