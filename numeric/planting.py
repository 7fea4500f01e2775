"""Whole samples planted in noise, beside what the theory of their leading features predicts.

The simulation is SGD on tokens that carry whole samples (all directions are features,
`numeric.reduced`). The prediction is the flow of the leading features from the same keys, the weaker
directions being part of r.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from numeric.errors import InputError
from numeric.flow import integrate_flow
from numeric.phases import random_starts
from numeric.prior import Prior
from numeric.quadrature import Array
from numeric.sgd import run_sgd
from numeric.signals import Signals, condensed
from numeric.task import Attention, Task
from numeric.validate import real_number, whole_number
from numeric.watch import feature_norms

# Components of a prior that a flow can afford, and Gaussians instead of more.
MANY, COMPONENTS = 32, 8


@dataclass(frozen=True, repr=False)
class Planting:
    """First passages of the features' norms, run by run.

    Attributes
    ----------
    predicted, observed : (runs, F) arrays
        Times tau; infinite if there is none up to `tau_max`.
    tau_max, kappa, dimension
        As given.
    samples : int
        Samples of a run up to `tau_max`.
    """

    predicted: Array
    observed: Array
    tau_max: float
    kappa: float
    dimension: int
    samples: int

    @property
    def order_right(self) -> NDArray[np.bool_]:
        """Whether features pass in the predicted order, in each run: (runs,).

        Features that pass neither here nor there do not count; some feature must pass.
        """
        one, other = (
            np.sign(x[:, :, None] - x[:, None])
            for x in map(_finite, (self.predicted, self.observed))
        )
        passed = np.isfinite(self.observed).any(axis=1)
        return np.asarray((one == other).all(axis=(1, 2)) & passed)

    @property
    def ratios(self) -> Array:
        """Observed over predicted times (runs, F); NaN where one of them is infinite."""
        both = np.isfinite(self.predicted) & np.isfinite(self.observed)
        result: Array = np.where(both, self.observed, np.nan) / np.where(both, self.predicted, 1.0)
        return result

    def __repr__(self) -> str:
        right = int(self.order_right.sum())
        return f"<Planting: order right in {right} of {len(self.observed)} runs>"


def plant_signals(
    signals: Signals,
    attention: Attention,
    *,
    tokens: int,
    dimension: int,
    tau_max: float,
    prior: Prior | None = None,
    eta: float = 0.1,
    kappa: float = 0.5,
    runs: int = 20,
    seed: int = 0,
    threshold: float = 1.0,
    workers: int = 1,
    progress: Callable[[str, float], object] | None = None,
) -> Planting:
    """Train on whole samples in noise, and predict when their features are learned.

    Parameters
    ----------
    signals : Signals
    attention : Attention
    tokens, dimension : int
        L, and the token dimension D: at least the numbers of a sample, plus heads.
    tau_max : float
    prior : Prior, optional
        Law of the features for the prediction; by default that of all samples, `condensed` to eight
        Gaussians where there are more than 32: the flow's cost grows with their number.
    eta, kappa : float
        Keys ``N(0, eta^2 I / D)``, and the noise ``gamma D / N_b`` of the simulation; the prediction is
        for small steps.
    runs, seed : int
        Number of random keys, and the seed of them all.
    threshold : float
        Norm of all heads' alignments with a feature that counts as learned.
    workers : int
        Threads of the simulation; results do not depend on it.
    progress : callable, optional
        Called with a stage and the fraction of it that is done.

    Returns
    -------
    Planting

    Raises
    ------
    InputError
        If an argument is out of range.
    """
    if not isinstance(signals, Signals):
        raise InputError("signals", signals, "Signals, as `real_signals` returns them")
    threshold = real_number("threshold", threshold, positive=True)
    tau_max = real_number("tau_max", tau_max, positive=True)
    size = signals.amplitudes.shape[1]
    dimension = whole_number("dimension", dimension, size + attention.heads)
    law = predictable(signals.prior) if prior is None else prior
    if not isinstance(law, Prior) or law.features != signals.features:
        raise InputError("prior", law, f"a prior of {signals.features} features")
    whole, seen = Task(tokens, signals.whole), Task(tokens, law)
    starts = random_starts(whole, attention, eta, dimension, seed, runs)
    tell = progress or (lambda *_: None)
    found = run_sgd(
        starts,
        whole,
        attention,
        dimension=dimension,
        tau=[tau_max],
        kappa=kappa,
        runs=runs,
        seed=seed,
        method="reduced",
        watch=feature_norms(whole, attention, threshold)[: signals.features],
        stop=True,
        workers=workers,
        progress=lambda fraction: tell("simulation", fraction),
    )
    predicted = np.full_like(found.passages, np.inf)
    for i in range(len(predicted)):
        start = signals.seen(starts.at(i))
        path = integrate_flow(start, seen, attention, [0.0, tau_max], threshold=threshold)
        predicted[i] = np.where(np.isnan(path.first_passage), np.inf, path.first_passage)
        tell("prediction", (i + 1) / len(predicted))
    samples = int(found.samples[-1])
    return Planting(predicted, found.passages, tau_max, found.kappa, dimension, samples)


def predictable(prior: Prior) -> Prior:
    """Return a prior, or a condensed one where it has too many components for a flow."""
    many = len(prior.components()[0]) > MANY
    return condensed(prior, COMPONENTS) if many and prior.is_discrete else prior


def _finite(times: Array) -> Array:
    return np.where(np.isfinite(times), times, 1e300)
