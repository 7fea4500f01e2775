"""B1: the objective depends on alpha alone; +-u attract and alpha = 0 repels."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.random import SeedSequence, default_rng
from scipy.special import softmax

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, array
from numeric.claims.claim import parts as make_parts
from numeric.claims.figures import panels
from numeric.query import QueryTask, query_objective
from numeric.query_study import fixed_points
from numeric.style import COLOURS, styled

ALONE = Condition("largest |z| of objectives of random queries against J(α)", high=5)
REPELS = Condition("least growth rate at α = 0", low=0)
ATTRACTS = Condition("largest growth rate at α = 1", high=0)
OTHERS = Condition("fixed points in between", high=0)
STABILITY = (REPELS, ATTRACTS, OTHERS)
OWN = Regime("a sign for each token", (ALONE, *STABILITY))
MINORITY = Regime("one sign for all, informative tokens a minority", STABILITY)
MAJORITY = Regime("one sign for all, informative tokens a majority", STABILITY)
GRIDS = {OWN.name: False, MINORITY.name: True, MAJORITY.name: True}
TASK = QueryTask(informative=3, nuisance=5, dimension=8, theta=1.5, beta=1.5, sigma=0.7)


def grid(shared: bool, majority: bool, full: bool) -> list[QueryTask]:
    """Return tasks over signal, temperature, dimension and numbers of tokens."""
    counts = [(200, 20), (1000, 10)] if majority else [(1, 10), (20, 100), (100, 10_000)]
    betas = [0.3, 1.0, 3.0, 10.0] if full else [1.0, 5.0]
    return [
        QueryTask(i, n, d, theta, beta, d**-0.5, shared=shared)
        for i, n in counts
        for d in ([20, 100, 1000] if full else [100])
        for theta in ([0.25, 0.5, 1.0, 2.0] if full else [0.5, 1.0])
        for beta in betas
    ]


def stability(shared: bool, majority: bool, full: bool, seed: int) -> dict[str, Any]:
    """Growth rates at the fixed points, and how many there are in between."""
    start, end, between, errors = [], [], [], []
    for task in grid(shared, majority, full):
        points = fixed_points(task, 21)
        # Rates relative to the largest slope of the field, whose scale runs over decades.
        unit = max(abs(x.rate) for x in points)
        start.append(points[0].rate / unit)
        end.append(points[-1].rate / unit)
        errors.append(max(x.error for x in points) / unit)
        between.append(len(points) - 2)
    return {"start": start, "end": end, "between": between, "errors": errors}


def rotated(samples: int, queries: int, seed: int) -> dict[str, Any]:
    """Monte-Carlo objectives of random unit queries in random frames, beside J of their alignment."""
    rng, z, task = default_rng(SeedSequence(seed)), [], TASK
    for _ in range(queries):
        q, u = (x / np.linalg.norm(x) for x in rng.standard_normal((2, task.dimension)))
        x = task.sigma * rng.standard_normal((samples, task.tokens, task.dimension))
        signs = rng.choice([-1.0, 1.0], (samples, task.informative, 1))
        x[:, : task.informative] += task.theta * signs * u
        a = softmax(task.beta * x @ q, axis=1)
        values = (np.einsum("nl,nld->nd", a, x) ** 2).sum(axis=1) / 2
        expected = float(query_objective(task, float(q @ u)).value)
        z.append((values.mean() - expected) / (values.std(ddof=1) / np.sqrt(samples)))
    return {"z": z}


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Return the three regimes, and random queries."""
    calls = {
        f"fixed points, {name}": {"shared": shared, "majority": name == MAJORITY.name, "full": full}
        for name, shared in GRIDS.items()
    }
    size = {"samples": 200_000, "queries": 40} if full else {"samples": 50_000, "queries": 10}
    return make_parts(seed, stability, calls) | make_parts(seed, rotated, {"random queries": size})


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Least and largest growth rates, relative to the fastest."""
    found = {}
    for name in GRIDS:
        x = results[f"fixed points, {name}"]
        low, high = int(np.argmin(x["start"])), int(np.argmax(x["end"]))
        found[name] = {
            REPELS.name: Measured(x["start"][low], x["errors"][low]),
            ATTRACTS.name: Measured(x["end"][high], x["errors"][high]),
            OTHERS.name: Measured(max(x["between"])),
        }
    found[OWN.name][ALONE.name] = Measured(
        float(np.abs(array(results["random queries"]["z"])).max())
    )
    return found


@styled
def draw(results: Results) -> Figure:
    """Fields of alpha with own signs and with one sign."""
    figure, axes = panels(2)
    alpha = np.linspace(0, 1, 41)
    for ax, (i, n), words in zip(
        axes, ((20, 100), (200, 20)), ("minority", "majority"), strict=True
    ):
        for k, shared in enumerate((False, True)):
            task = QueryTask(i, n, 100, 1.0, 2.0, 0.1, shared=shared)
            field = (1 - alpha**2) * query_objective(task, alpha, 1e-8).slope
            label = "one sign for all" if shared else "a sign for each token"
            ax.plot(alpha, field / np.abs(field).max(), color=COLOURS[k], label=label)
        ax.axhline(0, color="#444444", linewidth=1)
        title = f"n_I = {i}, n_0 = {n} (informative {words})"
        ax.set(xlabel="alignment α", ylabel="field dα/dt (scaled)", title=title)
    axes[0].legend(loc="upper left", fontsize=8)
    return figure


CLAIM = Claim(
    id="B1",
    title="The objective depends on α alone; ±u attract, α = 0 repels",
    statement=r"The population objective depends on $\alpha = q \cdot u$ alone; $\pm u$ attract, and "
    r"$\alpha = 0$ repels.",
    source="arXiv 2606.22406",
    status="proved",
    method=r"Monte-Carlo objectives of random queries in random frames against $J(\alpha)$; growth "
    r"rates at the fixed points of $d\alpha/dt = (1 - \alpha^2) J'(\alpha)$, exact, over a "
    r"grid of signal, temperature, dimension and numbers of tokens, relative to the fastest "
    r"of each task. If all informative tokens have one sign and are a majority, the least "
    r"attention to noise is at $\alpha = 0$.",
    regimes=(OWN, MINORITY, MAJORITY),
    parts=parts,
    measure=measure,
    draw=draw,
)
