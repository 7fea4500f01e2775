"""B4: the drift's Lipschitz constant and the moments of the noise stay controlled as d grows."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, array, sampled
from numeric.claims.claim import parts as make_parts
from numeric.claims.figures import panels
from numeric.query import QueryTask
from numeric.query_noise import gradient_moments
from numeric.query_study import field_lipschitz
from numeric.style import COLOURS, MARKERS, styled

LIPSCHITZ = Condition("Lipschitz constant of the field: largest d relative to smallest", high=1.5)
FOURTH = Condition(
    "fourth moment of the gradient towards u: largest d relative to smallest", high=2.0
)
SQUARE = Condition("mean squared gradient: largest d relative to smallest", high=2.0)
CONDITIONS = (LIPSCHITZ, FOURTH, SQUARE)
SETTINGS: dict[str, tuple[float, float]] = {
    "σ = 1/√d": (5.0, -0.5),
    "σ = 1": (1.0, 0.0),
}
REGIMES = tuple(Regime(name, CONDITIONS) for name in SETTINGS)
ALIGNMENTS = (0.0, 0.5, 0.9)


def moments(
    beta: float, power: float, dimensions: list[int], samples: int, seed: int
) -> dict[str, Any]:
    """Return Lipschitz constants and moments at several d, with sigma = d^power."""
    tasks = [QueryTask(20, 100, d, 1.0, beta, float(d) ** power) for d in dimensions]
    found = [
        [gradient_moments(task, a, samples=samples, seed=seed + i) for a in ALIGNMENTS]
        for i, task in enumerate(tasks)
    ]
    names = ("fourth", "square", "fourth_error", "square_error")
    return {
        "dimensions": dimensions,
        "lipschitz": [field_lipschitz(task, 21) for task in tasks],
        **{name: [[getattr(x, name) for x in row] for row in found] for name in names},
    }


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Return moments for both scalings of the noise."""
    size = {
        "dimensions": [30, 100, 1000, 10**4, 10**6] if full else [30, 300, 3000],
        "samples": 100_000 if full else 10_000,
    }
    return make_parts(
        seed,
        moments,
        {f"moments, {x}": {"beta": b, "power": p, **size} for x, (b, p) in SETTINGS.items()},
    )


def ratio(results: Results, name: str, kind: str) -> Measured:
    """Return the largest ratio, over alignments, of a moment at the last d and at the first."""
    x = results[f"moments, {name}"]
    values, errors = array(x[kind]), array(x[f"{kind}_error"])
    ratios = values[-1] / values[0]
    relative = np.hypot(errors[-1] / values[-1], errors[0] / values[0])
    worst = int(ratios.argmax())
    return sampled(ratios[worst], ratios[worst] * relative[worst])


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Ratios over the range of d."""
    return {
        name: {
            LIPSCHITZ.name: Measured(
                results[f"moments, {name}"]["lipschitz"][-1]
                / results[f"moments, {name}"]["lipschitz"][0]
            ),
            FOURTH.name: ratio(results, name, "fourth"),
            SQUARE.name: ratio(results, name, "square"),
        }
        for name in SETTINGS
    }


@styled
def draw(results: Results) -> Figure:
    """Lipschitz constants and moments against d, relative to the smallest d."""
    figure, axes = panels(len(SETTINGS))
    for ax, name in zip(axes, SETTINGS, strict=True):
        x = results[f"moments, {name}"]
        series = {
            "Lipschitz constant": array(x["lipschitz"]),
            "fourth moment towards u": array(x["fourth"])[:, 0],
            "mean squared gradient": array(x["square"])[:, 0],
        }
        for i, (words, values) in enumerate(series.items()):
            ax.plot(
                x["dimensions"], values / values[0], MARKERS[i] + "-", color=COLOURS[i], label=words
            )
        ax.set(xscale="log", yscale="log", xlabel="dimension d", title=name)
        ax.set_ylabel("relative to the smallest d")
    axes[0].legend(fontsize=7)
    return figure


CLAIM = Claim(
    id="B4",
    title="Drift and noise stay controlled as d grows",
    statement=r"The Lipschitz constant of the drift and the moments of the stochastic gradient stay "
    r"controlled in the scaling.",
    source="arXiv 2606.22406",
    status="assumed",
    method=r"Lipschitz constant of $(1 - \alpha^2) J'$, exact; fourth moment of one sample's "
    r"gradient towards $u$ and its mean square, sampled at $\alpha = 0$, 0.5 and 0.9, at "
    r"several $d$. With $\sigma = 1 / \sqrt{d}$ they should not grow.",
    regimes=REGIMES,
    parts=parts,
    measure=measure,
    draw=draw,
)
