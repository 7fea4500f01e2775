"""Signal priors: distributions of the amplitudes theta, all seen as finite Gaussian mixtures."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from numeric.errors import InputError
from numeric.validate import (
    ByValue,
    FloatArray,
    points,
    probability_vector,
    psd_matrix,
    read_only,
    real_array,
    real_number,
    store,
    whole_number,
)

MOST_FEATURES = 1000
"""The largest number of features of a named prior; the theory has O(1) of them."""


class Prior(ByValue, ABC):
    """Distribution of the signal amplitudes theta in R^F, seen as a finite Gaussian mixture.

    Its arrays are read-only, except samples. Amplitudes are O(1) in the token dimension D.
    """

    @abstractmethod
    def components(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the mixture.

        Returns
        -------
        weights : ndarray, shape (K,)
            They sum to 1; zeros are allowed.
        means : ndarray, shape (K, F)
        covariances : ndarray, shape (K, F, F)
            Positive semi-definite; zero for discrete priors.
        """

    @property
    def features(self) -> int:
        """Number F of latent features."""
        return int(self.components()[1].shape[1])

    @cached_property
    def mean(self) -> FloatArray:
        """Mean signal E theta, shape (F,); what may be rounding in the sum is zero."""
        weights, means, _ = self.components()
        mean = weights @ means
        rounding = np.finfo(float).eps * len(weights) * (weights @ np.abs(means))
        return read_only(np.where(np.abs(mean) > rounding, mean, 0.0))

    @cached_property
    def covariance(self) -> FloatArray:
        """Covariance of theta, shape (F, F)."""
        weights, means, covariances = self.components()
        centred = means - self.mean
        within = np.einsum("k,kij->ij", weights, covariances)
        return read_only(within + (centred.T * weights) @ centred)

    @cached_property
    def second_moment(self) -> FloatArray:
        """Second moment E theta theta^T, shape (F, F)."""
        return read_only(self.covariance + np.outer(self.mean, self.mean))

    @cached_property
    def is_discrete(self) -> bool:
        """Whether theta takes finitely many values."""
        return not self.components()[2].any()

    def sample(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Draw independent signals, shape (size, F); singular covariances are fine.

        Raises
        ------
        InputError
            If `size` is not a whole number >= 0.
        """
        weights, means, _ = self.components()
        labels = rng.choice(len(weights), whole_number("size", size, 0), p=weights)
        draws: FloatArray = means[labels]
        for k, root in enumerate(self._roots):
            mine = labels == k
            draws[mine] += rng.standard_normal((np.count_nonzero(mine), self.features)) @ root
        return draws

    @cached_property
    def _roots(self) -> FloatArray:
        """Symmetric square roots of the covariances; none at all if these are all zero."""
        values, vectors = np.linalg.eigh(self.components()[2][: 0 if self.is_discrete else None])
        roots: FloatArray = vectors * np.sqrt(values.clip(0))[..., None, :] @ vectors.mT
        return roots


@dataclass(frozen=True, eq=False)
class GaussianPrior(Prior):
    """One Gaussian, N(mean, covariance).

    Parameters
    ----------
    mean : array_like, shape (F,)
        F = 0 is allowed.
    covariance : array_like, shape (F, F)
        Positive semi-definite relative to its own scale; singular matrices are allowed.

    Raises
    ------
    InputError
        If a shape is another one, an entry not finite or `covariance` asymmetric or indefinite.
    """

    # field() drops the inherited properties, which would be taken as defaults
    mean: FloatArray = field()
    covariance: FloatArray = field()

    if TYPE_CHECKING:

        def __init__(self, mean: ArrayLike, covariance: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        mean = real_array("mean", self.mean, (None,))
        store(self, mean=mean, covariance=psd_matrix("covariance", self.covariance, len(mean)))

    def components(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the Gaussian as a mixture of one, see `Prior.components`."""
        return read_only(np.ones(1)), self.mean[None], self.covariance[None]


@dataclass(frozen=True, eq=False)
class DiscretePrior(Prior):
    """Finitely many signals.

    Parameters
    ----------
    support : array_like, shape (K, F)
        The values theta_k, K >= 1.
    probabilities : array_like, shape (K,)
        Their probabilities; zeros are allowed, and single-precision sums are renormalized.

    Raises
    ------
    InputError
        If a shape is wrong, an entry not finite, a probability negative or their sum not 1.
    """

    support: FloatArray
    probabilities: FloatArray

    if TYPE_CHECKING:

        def __init__(self, support: ArrayLike, probabilities: ArrayLike) -> None: ...

    def __post_init__(self) -> None:
        support = points("support", self.support)
        real_array("probabilities", self.probabilities, support.shape[:1])
        probabilities = probability_vector("probabilities", self.probabilities)
        store(self, support=support, probabilities=probabilities)

    @property
    def log_probabilities(self) -> FloatArray:
        """Logarithms of the probabilities, shape (K,); -inf where a probability is zero."""
        with np.errstate(divide="ignore"):
            return read_only(np.log(self.probabilities))

    def components(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the signals as Gaussians of zero covariance, see `Prior.components`."""
        count, features = self.support.shape
        covariances = np.broadcast_to(np.zeros((features, features)), (count, features, features))
        return self.probabilities, self.support, covariances


@dataclass(frozen=True, eq=False)
class MixturePrior(Prior):
    """A finite mixture of K >= 1 Gaussians.

    Parameters
    ----------
    weights : array_like, shape (K,)
        Probabilities of the components; zeros are allowed.
    means : array_like, shape (K, F)
    covariances : array_like, shape (K, F, F)
        Each positive semi-definite relative to its own scale; singular matrices are allowed.

    Raises
    ------
    InputError
        If a shape is wrong, an entry not finite, a weight negative, the sum of weights not 1, or a
        covariance asymmetric or indefinite.
    """

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray

    if TYPE_CHECKING:

        def __init__(
            self, weights: ArrayLike, means: ArrayLike, covariances: ArrayLike
        ) -> None: ...

    def __post_init__(self) -> None:
        weights = probability_vector("weights", self.weights)
        means = real_array("means", self.means, (len(weights), None))
        count, features = means.shape
        covariances = psd_matrix("covariances", self.covariances, features, (count,))
        store(self, weights=weights, means=means, covariances=covariances)

    def components(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the mixture itself, see `Prior.components`."""
        return self.weights, self.means, self.covariances


def marginal(prior: Prior, features: Sequence[int]) -> Prior:
    """Return the law of some of the amplitudes, in the order given.

    Parameters
    ----------
    prior : Prior
    features : sequence of int
        Features, counted from 0.
    """
    chosen = list(features)
    weights, means, covariances = prior.components()
    return MixturePrior(weights, means[:, chosen], covariances[:, chosen][:, :, chosen])


def rotated(prior: Prior, axes: ArrayLike) -> Prior:
    """Return the law of the amplitudes along other axes.

    Parameters
    ----------
    prior : Prior
    axes : (F, F) array_like
        Orthonormal columns.

    Raises
    ------
    InputError
        If they are not.
    """
    turn = real_array("axes", axes, (prior.features, prior.features))
    if not np.allclose(turn.T @ turn, np.eye(prior.features), atol=1e-10):
        raise InputError("axes", turn, "orthonormal columns")
    weights, means, covariances = prior.components()
    return MixturePrior(weights, means @ turn, turn.T @ covariances @ turn)


def scaled(prior: Prior, factor: float) -> Prior:
    """Return the law of all amplitudes times a number.

    Raises
    ------
    InputError
        If `factor` is not a finite number >= 0.
    """
    factor = real_number("factor", factor, minimum=0)
    weights, means, covariances = prior.components()
    return MixturePrior(weights, factor * means, factor**2 * covariances)


def isotropic(features: int, variance: float) -> GaussianPrior:
    """Return the Gaussian N(0, variance * identity) of R^features.

    Raises
    ------
    InputError
        If `features` is not a whole number from 0 to 1000, or `variance` not a finite number >= 0.
    """
    size = whole_number("features", features, 0, MOST_FEATURES)
    scale = real_number("variance", variance, minimum=0)
    return GaussianPrior(np.zeros(size), scale * np.eye(size))


def flipped_spike(directions: ArrayLike) -> DiscretePrior:
    """Return the prior with equal weight on each of the directions (K, F) and its opposite.

    Raises
    ------
    InputError
        If `directions` is not a non-empty list of points.
    """
    spikes = points("directions", directions)
    return empirical(np.concatenate([spikes, -spikes]))


def empirical(samples: ArrayLike) -> DiscretePrior:
    """Return the prior with equal weight on each of the samples (N, F).

    Raises
    ------
    InputError
        If `samples` is not a non-empty list of points.
    """
    support = points("samples", samples)
    return DiscretePrior(support, np.full(len(support), 1 / len(support)))
