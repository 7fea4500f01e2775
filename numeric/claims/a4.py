"""A4: the negative directions at the unspecialized point are the eigenvectors of Cov theta."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results, array, sampled
from numeric.claims.claim import parts as make_parts
from numeric.claims.directions import (
    ANGLE,
    COUNT,
    curvature_score,
    directions,
    directions_found,
    finite_curvature,
    finite_samples,
    power,
)
from numeric.claims.figures import allowed, panels
from numeric.claims.priors import gaussian
from numeric.saddles import unspecialized_saddle
from numeric.style import COLOURS, styled
from numeric.task import Attention, Task

POWER = Condition("power of the mean with which the angle vanishes", 1.5, 2.5)
SIGN = Condition("largest curvature of D-dimensional losses along one", high=0)
FINITE = Condition("largest |z| of these against the Hessian", high=5)
WEAK, STRONG = [[0.6, 0.2], [0.2, 0.4]], [[3.0, 1.0], [1.0, 2.0]]
HEADS, TOKENS = 3, 5
SETTINGS = {
    "small mean (0.05)": (0.05, WEAK),
    "mean 0.5": (0.5, WEAK),
    "mean 1": (1.0, WEAK),
    "mean 2": (2.0, WEAK),
    "mean 0.05 but ν (1 − 3/L) > 1": (0.05, STRONG),
}
OWN = next(iter(SETTINGS))
REGIMES = tuple(
    Regime(name, (COUNT, ANGLE, *((POWER, SIGN, FINITE) if name == OWN else ())))
    for name in SETTINGS
)


def spectrum(size: float, covariance: list[list[float]], seed: int) -> dict[str, Any]:
    """Return saddle and spectrum at a mean of this size, along an axis that is no eigenvector."""
    task = Task(TOKENS, gaussian([size, 0.0], covariance))
    layer = Attention("softmax", HEADS)
    state = unspecialized_saddle(task, layer).state
    return directions(state, task, layer)


def simulated(size: float, dimension: int, samples: int, seed: int) -> dict[str, Any]:
    """Return the curvature of D-dimensional losses at the same saddle."""
    task = Task(TOKENS, gaussian([size, 0.0], WEAK))
    m = unspecialized_saddle(task, Attention("softmax", HEADS)).state.m[0]
    return finite_curvature(m, task, HEADS, dimension, samples, seed)


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Return one for each size of the mean."""
    calls = {
        f"spectrum, {name}": {"size": size, "covariance": covariance}
        for name, (size, covariance) in SETTINGS.items()
    }
    calls["spectrum, half of it"] = {"size": SETTINGS[OWN][0] / 2, "covariance": WEAK}
    return make_parts(seed, spectrum, calls) | make_parts(
        seed,
        simulated,
        {"curvature in D dimensions": {"size": SETTINGS[OWN][0], **finite_samples(full)}},
    )


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Angles, numbers of directions, and scores of the finite-D curvatures."""
    found = {}
    for name, (_, covariance) in SETTINGS.items():
        rank = int(np.linalg.matrix_rank(array(covariance)))
        found[name] = directions_found(results[f"spectrum, {name}"], rank)
    own, half = results[f"spectrum, {OWN}"], results["spectrum, half of it"]
    seen = results["curvature in D dimensions"]
    curvature, error = array(seen["curvature"]), array(seen["error"])
    flattest = int(np.argmax(curvature))
    found[OWN] |= {
        POWER.name: power(own, half),
        SIGN.name: sampled(curvature[flattest], error[flattest]),
        FINITE.name: curvature_score(seen, own),
    }
    return found


@styled
def draw(results: Results) -> Figure:
    """Angles against the size of the mean."""
    figure, (ax,) = panels()
    for i, (words, strong) in enumerate((("ν (1 − 3/L) < 1", False), ("ν (1 − 3/L) > 1", True))):
        chosen = [x for x, (_, c) in SETTINGS.items() if (c is STRONG) is strong]
        sizes = [SETTINGS[x][0] for x in chosen]
        angles = [results[f"spectrum, {x}"]["angle"] for x in chosen]
        ax.plot(sizes, angles, "o-" if i == 0 else "s", color=COLOURS[i], label=words, linewidth=1)
    allowed(ax, 0, ANGLE.high)
    ax.set(xlabel="mean signal", ylabel="angle to eigenvectors of Cov θ", xscale="log")
    ax.legend()
    return figure


CLAIM = Claim(
    id="A4",
    title="At the unspecialized point negative directions are eigenvectors of Cov θ",
    statement=r"At the unspecialized point, for a small mean signal, the negative directions of the "
    r"Hessian are the eigenvectors of $\mathrm{Cov}\,\theta$.",
    source="arXiv 2603.03993, Lemma III.1",
    status="proved",
    method=r"The unspecialized saddle and its Hessian along head differences, for a mean along no "
    r"eigenvector of $\mathrm{Cov}\,\theta$; and second differences of losses of "
    r"$D$-dimensional tokens along these, two heads moved apart. Where the origin is "
    r"unstable to heads that stay alike, $\nu (1 - 3/L) > 1$, the saddle is not near the "
    r"origin however small the mean is.",
    regimes=REGIMES,
    parts=parts,
    measure=measure,
    draw=draw,
)
