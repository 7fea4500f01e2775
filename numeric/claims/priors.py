"""Priors from plain numbers."""

import numpy as np
from numpy.typing import ArrayLike

from numeric.prior import DiscretePrior, GaussianPrior, MixturePrior


def gaussian(mean: ArrayLike, covariance: ArrayLike) -> GaussianPrior:
    """Return a Gaussian prior."""
    return GaussianPrior(np.array(mean, dtype=float), np.array(covariance, dtype=float))


def points(support: ArrayLike, probabilities: ArrayLike) -> DiscretePrior:
    """Return a discrete prior."""
    return DiscretePrior(np.array(support, dtype=float), np.array(probabilities, dtype=float))


def mixture(weights: ArrayLike, means: ArrayLike, covariances: ArrayLike) -> MixturePrior:
    """Return a mixture of Gaussians."""
    one, two, three = (np.array(x, dtype=float) for x in (weights, means, covariances))
    return MixturePrior(one, two, three)
