"""A5: the same as A4 at small finite alignment, without mean and with independent features."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from numeric.claims.claim import Claim, Condition, Measured, Part, Regime, Results
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
from numeric.claims.priors import gaussian, mixture
from numeric.prior import Prior
from numeric.style import COLOURS, MARKERS, styled
from numeric.task import Attention, State, Task

POWER = Condition("power of |m| with which the angle vanishes", 1.5, 2.5)
FINITE = Condition("largest |z| of D-dimensional curvatures against the Hessian", high=5)
VARIANCES = np.diag([3.0, 2.0])
HEADS, TOKENS = 3, 5
OWN = "|m| = 0.05"
SETTINGS = {
    OWN: (0.05, "independent"),
    "|m| = 0.5": (0.5, "independent"),
    "|m| = 1": (1.0, "independent"),
    "|m| = 0.05, dependent θ": (0.05, "dependent"),
    "|m| = 0.05, variances 2.1 and 2": (0.05, "nearly equal"),
}
REGIMES = tuple(
    Regime(name, (COUNT, ANGLE, *((POWER, FINITE) if name == OWN else ()))) for name in SETTINGS
)


def prior(kind: str) -> Prior:
    """Return one without mean; dependent features have the same covariance."""
    if kind != "dependent":
        variances = VARIANCES if kind == "independent" else np.diag([2.1, 2.0])
        return gaussian([0.0, 0.0], variances)
    c = 0.8 * np.sqrt(6.0)
    apart = [[[3.0, c], [c, 2.0]], [[3.0, -c], [-c, 2.0]]]
    return mixture([0.5, 0.5], np.zeros((2, 2)), apart)


def aligned(size: float) -> np.ndarray:
    """Return alignments m (F,) of this size, along no feature."""
    return size * np.array([0.6, 0.8])


def spectrum(size: float, kind: str, seed: int) -> dict[str, Any]:
    """Return the spectrum at heads that are all aligned alike."""
    task, layer = Task(TOKENS, prior(kind)), Attention("softmax", HEADS)
    state = State(np.tile(aligned(size), (HEADS, 1)), np.zeros((HEADS, HEADS)))
    return directions(state, task, layer)


def simulated(size: float, dimension: int, samples: int, seed: int) -> dict[str, Any]:
    """Return the curvature of D-dimensional losses there."""
    task = Task(TOKENS, prior("independent"))
    return finite_curvature(aligned(size), task, HEADS, dimension, samples, seed)


def parts(full: bool, seed: int) -> dict[str, Part]:
    """Return one for each setting."""
    calls: dict[str, dict[str, Any]] = {
        f"Hessian, {name}": {"size": size, "kind": kind} for name, (size, kind) in SETTINGS.items()
    }
    calls["Hessian, half of it"] = {"size": SETTINGS[OWN][0] / 2, "kind": "independent"}
    return make_parts(seed, spectrum, calls) | make_parts(
        seed,
        simulated,
        {"curvature at finite m": {"size": SETTINGS[OWN][0], **finite_samples(full)}},
    )


def measure(results: Results) -> dict[str, dict[str, Measured]]:
    """Angles, numbers of directions, and scores of the finite-D curvatures."""
    found = {
        name: directions_found(results[f"Hessian, {name}"], len(VARIANCES)) for name in SETTINGS
    }
    own, half = results[f"Hessian, {OWN}"], results["Hessian, half of it"]
    found[OWN] |= {
        POWER.name: power(own, half),
        FINITE.name: curvature_score(results["curvature at finite m"], own),
    }
    return found


@styled
def draw(results: Results) -> Figure:
    """Angles against the size of the alignment."""
    figure, (ax,) = panels()
    for i, name in enumerate(["independent", "dependent", "nearly equal"]):
        chosen = [x for x, (_, kind) in SETTINGS.items() if kind == name]
        sizes = [SETTINGS[x][0] for x in chosen]
        angles = [results[f"Hessian, {x}"]["angle"] for x in chosen]
        label = {"nearly equal": "variances 2.1 and 2"}.get(name, f"{name} θ")
        ax.plot(sizes, angles, MARKERS[i] + "-", color=COLOURS[i], label=label)
    allowed(ax, 0, ANGLE.high)
    ax.set(xlabel="alignment |m| of every head", ylabel="angle to Cov θ (radian)", xscale="log")
    ax.legend()
    return figure


CLAIM = Claim(
    id="A5",
    title="The same at small finite alignment",
    statement=r"Without mean signal and with independent $\theta_f$, the same holds at small finite "
    r"$m$: negative directions are eigenvectors of $\mathrm{Cov}\,\theta$.",
    source="arXiv 2603.03993, Lemma A.11",
    status="proved",
    method=r"The Hessian along head differences at heads that are all aligned alike, along no "
    r"feature; second differences of losses of $D$-dimensional tokens. The angle should "
    r"vanish as $|m|^2$.",
    regimes=REGIMES,
    parts=parts,
    measure=measure,
    draw=draw,
)
