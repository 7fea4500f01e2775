"""Real signals: from an array of embeddings or images to the theory's prior, and back to whole tokens.

Samples are centred and scaled; their features are the directions of largest variance. The theory sees the
amplitudes along these; a simulation that plants whole samples in noise takes all directions for features,
also the weaker ones that the theory leaves out.
"""

import warnings
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from numeric.errors import InputError, Verbatim
from numeric.prior import DiscretePrior, MixturePrior, Prior, empirical
from numeric.quadrature import Array
from numeric.task import State
from numeric.validate import points, read_only, real_number, whole_number

# Variances along the first direction; beyond, squares lose their digits.
LEAST = 1e-200


@dataclass(frozen=True, eq=False, repr=False)
class Signals:
    """Samples in the coordinates of their own principal directions.

    Attributes
    ----------
    mean : (p,) array
        What was subtracted; zero if nothing was.
    scale : float
        What centred samples were multiplied by.
    directions : (p, p) array
        Orthonormal columns, by decreasing variance; one of them may be the rest of the mean.
    variances : (p,) array
        Second moments of the scaled samples along them.
    amplitudes : (N, p) array
        Scaled samples along them.
    features : int
        How many of them, the first ones, the theory keeps.
    """

    mean: Array
    scale: float
    directions: Array
    variances: Array
    amplitudes: Array
    features: int

    @property
    def prior(self) -> DiscretePrior:
        """The law of the features' amplitudes: every sample with equal probability."""
        return empirical(self.amplitudes[:, : self.features])

    @property
    def whole(self) -> DiscretePrior:
        """The law of the amplitudes along all directions, to plant whole samples."""
        return empirical(self.amplitudes)

    def seen(self, state: State) -> State:
        """Return a state of all p directions as the theory sees it: the weaker ones are part of r.

        Parameters
        ----------
        state : State
            One or a batch, m (..., H, p).
        """
        if state.m.shape[-1] != self.amplitudes.shape[1]:
            words = Verbatim(f"alignments with {state.m.shape[-1]} directions")
            raise InputError("state", words, f"all {self.amplitudes.shape[1]}")
        rest = state.m[..., self.features :]
        return replace(state, m=state.m[..., : self.features], r=state.r + rest @ rest.mT)

    @property
    def explained(self) -> float:
        """Part of the second moment along the features."""
        total = float(self.variances.sum())
        return float(self.variances[: self.features].sum()) / total if total > 0 else 1.0

    def __repr__(self) -> str:
        count, size = self.amplitudes.shape
        nu = ", ".join(f"{x:.3g}" for x in self.variances[: self.features])
        return f"<Signals: {count} samples of {size} numbers, {self.features} features of nu {nu}>"


def real_signals(
    samples: ArrayLike, features: int, *, variance: float | None = None, centred: bool = True
) -> Signals:
    """Return samples along their principal directions.

    Parameters
    ----------
    samples : (N, p) array_like
        Embeddings or flattened images.
    features : int
        Number F of directions that the theory keeps, at most the rank of the samples.
    variance : float, optional
        Scale the samples so that the largest second moment along a direction is this; O(1) in D. By
        default they are taken as they are.
    centred : bool
        Whether the samples' mean is subtracted. If not, directions are those of the second moment about
        zero.

    Returns
    -------
    Signals

    Raises
    ------
    InputError
        If an argument is not as above, or the samples are all alike.

    Notes
    -----
    `derive.task` section 1. The directions' signs are such that the largest entry is positive.
    """
    data = points("samples", samples)
    count, size = data.shape
    features = whole_number("features", features, 1, size)
    if not isinstance(centred, bool):
        raise InputError("centred", centred, "True or False")
    mean = data.mean(axis=0) if centred else np.zeros(size)
    data = data - mean
    # In units of the largest number, whose square might overflow.
    unit = float(np.abs(data).max()) or 1.0
    data = data / unit
    moment = data.T @ data / count
    values, axes = np.linalg.eigh((moment + moment.T) / 2)
    values, axes = values[::-1].clip(0), axes[:, ::-1]
    if not values[features - 1] > 1e-12 * values[0]:
        rank = int((values > 1e-12 * values[0]).sum()) if values[0] > 0 else 0
        raise InputError("features", features, f"at most {rank}, the rank of the samples")
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(size)])
    axes = axes * signs
    factor = unit
    if variance is not None:
        factor = float(np.sqrt(real_number("variance", variance, positive=True) / values[0]))
    if not LEAST < factor**2 * values[0] < 1 / LEAST:
        found = Verbatim(f"a variance of {factor * float(np.sqrt(values[0])):.3g}^2")
        raise InputError("samples", found, f"variances from {LEAST:g} to {1 / LEAST:g}")
    return Signals(
        read_only(mean),
        factor / unit,
        read_only(axes),
        read_only(factor**2 * values),
        read_only(factor * (data @ axes)),
        features,
    )


def condensed(prior: Prior, components: int, *, seed: int = 0) -> MixturePrior:
    """Return a mixture of few Gaussians with the mean and covariance of a discrete prior.

    Support points are clustered by the k-means method; each cluster becomes one Gaussian with its mean
    and covariance, so that mean, covariance and, approximately, the shape are kept. The cost of losses
    and flows grows with the number of components: compare two numbers to see what is lost.

    Parameters
    ----------
    prior : Prior
        A discrete one.
    components : int
        Number of clusters at most; 1 gives the Gaussian with the prior's covariance.
    seed : int
        Of the first centres.

    Raises
    ------
    InputError
        If the prior is not discrete, or `components` not a whole number >= 1.
    """
    from scipy.cluster.vq import kmeans2

    if not prior.is_discrete:
        raise InputError("prior", type(prior).__name__, "a discrete prior")
    components = whole_number("components", components, 1)
    weights, support, _ = prior.components()
    rng = np.random.default_rng(whole_number("seed", seed, 0))
    different = np.unique(support[weights > 0], axis=0)
    if components >= len(different) or not prior.features:
        centres = different[:1] if not prior.features else different
    else:
        with warnings.catch_warnings(action="ignore"):  # a cluster may end up empty
            centres, _ = kmeans2(different, components, minit="++", rng=rng)
    label = ((support[:, None] - centres) ** 2).sum(axis=2).argmin(axis=1)
    kept = [k for k in range(len(centres)) if weights[label == k].sum() > 0]
    share = np.array([weights[label == k].sum() for k in kept])
    means = np.array([weights[label == k] @ support[label == k] for k in kept]) / share[:, None]
    covariances = []
    for k, p, mean in zip(kept, share, means, strict=True):
        rest = support[label == k] - mean
        covariances.append((rest.T * weights[label == k]) @ rest / p)
    return MixturePrior(share / share.sum(), means, np.array(covariances))
