"""Priors: what they accept, refuse, compute and sample."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numeric.errors import InputError
from numeric.prior import (
    DiscretePrior,
    GaussianPrior,
    MixturePrior,
    Prior,
    empirical,
    flipped_spike,
    isotropic,
)
from numeric.validate import psd_matrix

ROOT = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])
PRIORS: dict[str, Callable[[], Prior]] = {
    "gaussian": lambda: GaussianPrior(np.array([1.0, -2.0]), ROOT @ ROOT.T),
    "singular": lambda: GaussianPrior(np.zeros(2), 0.7 * np.ones((2, 2))),
    "discrete": lambda: DiscretePrior(ROOT.T, np.array([0.5, 0.0, 0.5])),
    "mixture": lambda: MixturePrior(
        np.array([0.25, 0.75]),
        np.array([[3.0, 0.0], [-1.0, 1.0]]),
        np.array([[[1.0, 0.5], [0.5, 2.0]], [[0.0, 0.0], [0.0, 4.0]]]),
    ),
    "isotropic": lambda: isotropic(3, 2.0),
    "flipped spike": lambda: flipped_spike([[1.0, 2.0], [0.5, 0.0]]),
    "empirical": lambda: empirical(ROOT),
    "no features": lambda: GaussianPrior(np.zeros(0), np.zeros((0, 0))),
}


@pytest.fixture(params=PRIORS.values(), ids=list(PRIORS))
def prior(request: pytest.FixtureRequest) -> Prior:
    made = request.param()
    assert isinstance(made, Prior)
    return made


def test_moments_agree_with_samples(prior: Prior) -> None:
    """Five standard errors on 74 entries in all: one false alarm in 2 * 10^4 other seeds."""
    size = 200_000
    draws = prior.sample(np.random.default_rng(3), size)
    assert draws.shape == (size, prior.features)
    error = 5 * draws.std(axis=0) / size**0.5 + 1e-12
    assert (np.abs(draws.mean(axis=0) - prior.mean) <= error).all()
    products = draws[:, :, None] * draws[:, None, :]
    error = 5 * products.std(axis=0) / size**0.5 + 1e-12
    assert (np.abs(products.mean(axis=0) - prior.second_moment) <= error).all()
    centred = prior.second_moment - np.outer(prior.mean, prior.mean)
    np.testing.assert_allclose(prior.covariance, centred, atol=1e-12)


def test_components_are_a_mixture(prior: Prior) -> None:
    weights, means, covariances = prior.components()
    count, features = means.shape
    assert weights.shape == (count,)
    assert weights.sum() == pytest.approx(1, abs=1e-15)
    assert covariances.shape == (count, features, features)
    assert prior.is_discrete == (not covariances.any())


def test_priors_are_values(prior: Prior) -> None:
    copy = pickle.loads(pickle.dumps(prior))
    assert copy == prior
    assert hash(copy) == hash(prior)
    assert prior != isotropic(1, 9.0)
    assert prior != "prior"
    arrays = [a for a in (*vars(prior).values(), *prior.components()) if isinstance(a, np.ndarray)]
    arrays += [prior.mean, prior.covariance, prior.second_moment]
    assert not any(array.flags.writeable for array in arrays)


def test_sampling_is_reproducible_and_size_checked(prior: Prior) -> None:
    first, second = (prior.sample(np.random.default_rng(1), 5) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert prior.sample(np.random.default_rng(1), 0).shape == (0, prior.features)
    with pytest.raises(InputError, match=r"^size: found -1"):
        prior.sample(np.random.default_rng(1), -1)


def test_singular_samples_stay_in_the_range() -> None:
    for features in (2, 5, 20):  # round-off makes some eigenvalues negative
        made = GaussianPrior(np.zeros(features), 0.7 * np.ones((features, features)))
        draws = made.sample(np.random.default_rng(0), 100)
        np.testing.assert_allclose(draws, draws[:, :1] * np.ones(features), atol=1e-6)
        assert draws.std() > 0.5


def test_stored_arrays_are_copies() -> None:
    mean = np.zeros(2)
    made = GaussianPrior(mean, np.eye(2))
    mean[0] = 7
    assert made.mean[0] == 0
    assert made == GaussianPrior(np.array([-0.0, 0.0]), np.eye(2))
    assert hash(made) == hash(GaussianPrior(np.array([-0.0, 0.0]), np.eye(2)))


def test_named_priors() -> None:
    spike = flipped_spike([[1.0, 2.0]])
    np.testing.assert_array_equal(spike.support, [[1, 2], [-1, -2]])
    np.testing.assert_array_equal(spike.probabilities, [0.5, 0.5])
    assert isotropic(2, 3) == GaussianPrior(np.zeros(2), 3 * np.eye(2))
    assert empirical([[1.0], [1.0]]).covariance == [[0.0]]
    assert isotropic(0, 1).features == 0


def test_probabilities() -> None:
    support = np.eye(3)
    exact = np.array([0.5, 0.25, 0.25])
    np.testing.assert_array_equal(DiscretePrior(support, exact).probabilities, exact)
    loose = DiscretePrior(support, exact * (1 + 1e-7)).probabilities
    np.testing.assert_allclose(loose, exact, rtol=1e-15)
    third = DiscretePrior(support, np.full(3, 1 / 3, dtype=np.float32)).probabilities
    np.testing.assert_allclose(third, 1 / 3, rtol=1e-15)
    half = DiscretePrior(support, np.array([0.0, 0.5, 0.5]))
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(half.log_probabilities, [-np.inf, -np.log(2), -np.log(2)])


INDEFINITE = np.array([[1.0, 2.0], [2.0, 1.0]])
BAD: dict[str, tuple[Callable[..., object], tuple[Any, ...], str]] = {
    "indefinite": (
        GaussianPrior,
        ([0, 0], 1e-9 * INDEFINITE),
        "covariance: found an eigenvalue -0.5",
    ),
    "tiny indefinite": (GaussianPrior, ([0, 0], 1e-300 * INDEFINITE), "covariance: found an eig"),
    "negative variance": (GaussianPrior, ([0, 0], np.diag([4, -1e-6])), "covariance: found an eig"),
    "asymmetric": (GaussianPrior, ([0, 0], [[1, 0], [1e-9, 1]]), "covariance: found an asymmetry"),
    "shape": (GaussianPrior, ([0, 0], np.eye(3)), "covariance: found an array of shape (3, 3)"),
    "mean": (GaussianPrior, ([[0, 0]], np.eye(2)), "mean: found an array of shape (1, 2)"),
    "nan mean": (
        GaussianPrior,
        ([0, np.nan], np.eye(2)),
        "mean: found an array of shape (2,) with nan",
    ),
    "scalar mean": (GaussianPrior, (0.0, np.eye(2)), "mean: found an array of shape ()"),
    "sum": (DiscretePrior, (np.eye(3), [0.2, 0.2, 0.2]), "probabilities: found a sum of 0.6"),
    "sum 1e-5": (
        DiscretePrior,
        (np.eye(2), [0.5, 0.50001]),
        "probabilities: found a sum of 1.00001",
    ),
    "negative": (DiscretePrior, (np.eye(2), [-0.5, 1.5]), "probabilities: found -0.5 at [0]"),
    "nan": (
        DiscretePrior,
        (np.eye(2), [np.nan, 1]),
        "probabilities: found an array of shape (2,) with",
    ),
    "huge": (DiscretePrior, (np.eye(2), [1e308, 1e308]), "probabilities: found 1e+308 at [0]"),
    "count": (DiscretePrior, (np.eye(2), [1.0]), "probabilities: found an array of shape (1,)"),
    "no support": (
        DiscretePrior,
        (np.zeros((0, 2)), []),
        "support: found an array of shape (0, 2)",
    ),
    "support": (DiscretePrior, ([1, 2], [0.5, 0.5]), "support: found an array of shape (2,)"),
    "ragged": (DiscretePrior, ([[1], [2, 3]], [0.5, 0.5]), "support: found rows of unequal length"),
    "means": (MixturePrior, ([1], [[0], [0]], [[[1]]]), "means: found an array of shape (2, 1)"),
    "mixture": (
        MixturePrior,
        ([0.5, 0.5], np.zeros((2, 2)), [INDEFINITE, np.eye(2) * 1e9]),
        "covariances: found an eigenvalue -0.5",
    ),
    "no component": (MixturePrior, ([], np.zeros((0, 1)), []), "weights: found a sum of 0"),
    "variance": (isotropic, (2, -1), "variance: found -1, expected a finite number >= 0"),
    "features": (isotropic, (10**9, 1), "features: found 1000000000"),
    "directions": (flipped_spike, ([],), "directions: found an array of shape (0,)"),
    "samples": (empirical, (np.zeros((0, 2)),), "samples: found an array of shape (0, 2)"),
    "text": (empirical, ([["a"]],), "samples: found 'a' at [0, 0]"),
}


@pytest.mark.parametrize(("make", "arguments", "words"), BAD.values(), ids=BAD.keys())
def test_bad_arguments(make: Callable[..., object], arguments: tuple[Any, ...], words: str) -> None:
    with np.errstate(all="raise"), pytest.raises(InputError) as caught:
        make(*arguments)
    assert str(caught.value).startswith(words)
    assert ", expected " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_single_precision_matrices() -> None:
    """The product of single-precision factors is singular up to its own round-off only."""
    factor = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    product = factor @ factor.T
    product[0, 1] = np.nextafter(product[0, 1], np.float32(10))
    kept = psd_matrix("r", product, 6)
    np.testing.assert_array_equal(kept, kept.T)
    np.testing.assert_allclose(kept, product, rtol=1e-6)
