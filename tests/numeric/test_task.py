"""Priors, tasks, attention layers and states: what they accept, refuse and compute."""

import pickle
import sys
import types
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from numeric.errors import InputError
from numeric.task import (
    Attention,
    DiscretePrior,
    GaussianPrior,
    MixturePrior,
    Prior,
    State,
    Task,
    empirical,
    flipped_spike,
    isotropic,
)
from numeric.validate import psd_matrix, real_array, real_number, whole_number

ROOT = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]])


@pytest.fixture(autouse=True, scope="module")
def activations() -> Iterator[None]:
    """Three activations, so that the tests do not depend on which ones are generated."""
    package: Any = types.ModuleType("numeric._generated")
    package.ACTIVATIONS = {
        "softmax": types.SimpleNamespace(PARAMETERS=(), MAX_HEADS=None),
        "b-softmax": types.SimpleNamespace(PARAMETERS=("b",), MAX_HEADS=None),
        "erf": types.SimpleNamespace(PARAMETERS=("b", "v"), MAX_HEADS=1),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numeric._generated", package)
        yield


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
    "prior": (Task, (5, "gaussian"), "prior: found 'gaussian'"),
    "activation": (
        Attention,
        ("sotfmax", 2),
        "activation: found 'sotfmax', expected one of 'softmax'",
    ),
    "not a name": (Attention, (["softmax"], 2), "activation: found ['softmax'], expected one of"),
    "one head": (Attention, ("erf", 2), "heads: found 2, expected a whole number >= 1 and <= 1"),
    "no head": (Attention, ("softmax", 0), "heads: found 0"),
    "state m": (State, ([1, 2], np.eye(2)), "m: found an array of shape (2,)"),
    "state r": (State, (np.ones((2, 1)), 1e-9 * INDEFINITE), "r: found an eigenvalue"),
    "state batch": (State, (np.ones((3, 2, 1)), np.eye(2)), "r: found an array of shape (2, 2)"),
    "state b": (State, (np.ones((2, 1)), np.eye(2), [1]), "b: found an array of shape (1,)"),
}


@pytest.mark.parametrize(("make", "arguments", "words"), BAD.values(), ids=BAD.keys())
def test_bad_arguments(make: Callable[..., object], arguments: tuple[Any, ...], words: str) -> None:
    with np.errstate(all="raise"), pytest.raises(InputError) as caught:
        make(*arguments)
    assert str(caught.value).startswith(words)
    assert ", expected " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "tokens", [0, -3, 2.5, True, "5", np.nan, np.inf, None, 5j, np.True_, [5], 10**400]
)
def test_bad_tokens(tokens: Any) -> None:
    with pytest.raises(InputError, match=r"^tokens: found .*, expected a whole number >= 1"):
        Task(tokens, isotropic(1, 1))


@pytest.mark.parametrize("tokens", [1, 5.0, np.int8(5), np.float32(5), Fraction(5), 10**6, 10**12])
def test_good_tokens(tokens: Any) -> None:
    task = Task(tokens, isotropic(1, 1))
    assert type(task.tokens) is int
    assert task.tokens == tokens
    assert task.tokens**4 == int(tokens) ** 4
    assert task == Task(int(tokens), isotropic(1, 1))


def test_attention_parameters() -> None:
    assert Attention("softmax", 4).parameters == ()
    assert Attention("erf", 1.0).parameters == ("b", "v")  # type: ignore[arg-type]


def test_state_is_completed() -> None:
    state = State(np.ones((2, 3)), np.zeros((2, 2)))
    assert state.check(Attention("softmax", 2), 3) == state
    completed = state.check(Attention("b-softmax", 2), 3)
    assert completed == State(state.m, state.r, b=np.zeros(2))
    assert completed.check(Attention("b-softmax", 2), 3) == completed
    one = State(np.ones((5, 1, 3)), np.zeros((5, 1, 1)), b=np.full((5, 1), 2.0))
    completed = one.check(Attention("erf", 1), 3)
    assert completed == State(one.m, one.r, one.b, np.ones((5, 1)))


@pytest.mark.parametrize(
    ("state", "heads", "features", "words"),
    [
        (State(np.ones((2, 3)), np.eye(2)), 3, 3, "m: found an array of shape (2, 3)"),
        (State(np.ones((2, 3)), np.eye(2)), 2, 2, "m: found an array of shape (2, 3)"),
        (State(np.ones((2, 3)), np.eye(2), b=np.ones(2)), 2, 3, "b: found an array of shape (2,)"),
        (State(np.ones((2, 3)), np.eye(2), v=np.ones(2)), 2, 3, "v: found an array of shape (2,)"),
    ],
)
def test_state_of_another_layer(state: State, heads: int, features: int, words: str) -> None:
    with pytest.raises(InputError) as caught:
        state.check(Attention("softmax", heads), features)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("features", [0, 2])
def test_batch(features: int) -> None:
    rng = np.random.default_rng(0)
    m = rng.normal(size=(4, 3, 2, features))
    r = np.einsum("...ij,...kj->...ik", *2 * (rng.normal(size=(4, 3, 2, 2)),))
    batch = State(m, r, b=m.sum(axis=-1))
    assert batch.batch_shape == (4, 3)
    element = batch.at((-1, np.int64(1)))  # type: ignore[arg-type]
    assert element == State(m[3, 1], r[3, 1], b=m[3, 1].sum(axis=-1))
    assert element.batch_shape == ()
    assert element.at(()) == element
    for index in (0, (0, 3), (-5, 0), (0, 0, 0), (0, True), "a"):
        with pytest.raises(InputError, match=r"^index: found "):
            batch.at(index)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^r: found an eigenvalue"):
        State(m[:, 0], np.stack([np.eye(2) * 1e9] * 3 + [-1e-9 * np.eye(2)]))


def test_single_precision_matrices() -> None:
    """The product of single-precision factors is singular up to its own round-off only."""
    factor = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    product = factor @ factor.T
    product[0, 1] = np.nextafter(product[0, 1], np.float32(10))
    kept = psd_matrix("r", product, 6)
    np.testing.assert_array_equal(kept, kept.T)
    np.testing.assert_allclose(kept, product, rtol=1e-6)


class Indivisible:
    """Not a number, and no array either."""


@pytest.mark.parametrize(
    "value",
    [
        [True],
        [1, True],
        [1.0, np.True_],
        np.array([True]),
        ["1"],
        np.array(["1"]),
        [None],
        [1j],
        np.array([1j]),
        [10**400],
        [float("inf")],
        np.array([np.longdouble("1e4000")]),
        [[1, 2], [3]],
        [np.ones((2, 2)), np.ones((2, 3))],
        "12",
        None,
        {"a": 1},
        {1.0},
        Indivisible(),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        eval("[" * 80 + "1.0" + "]" * 80),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_real_array_refuses(value: object) -> None:
    with (
        np.errstate(all="raise"),
        pytest.raises(InputError, match=r"^x: found .*, expected finite"),
    ):
        real_array("x", value, (None,))


def test_real_array_accepts() -> None:
    for value in ([1, 2], (1.0, np.float32(2)), np.array([1, 2], dtype=np.uint8), [Fraction(1), 2]):
        kept = real_array("x", value, (2,))
        np.testing.assert_array_equal(kept, [1.0, 2.0])
        assert kept.dtype == np.float64
        assert not kept.flags.writeable
    assert real_array("x", [], (0, 0)).shape == (0, 0)
    assert real_array("x", np.ones((4, 5, 2)), (..., None, 2)).shape == (4, 5, 2)
    with pytest.raises(InputError, match=r"expected finite numbers in shape \(\.\.\., any, 2\)$"):
        real_array("x", [1, 2], (..., None, 2))


@pytest.mark.parametrize("value", [True, "1", None, np.nan, np.inf, 10**400, 1j, [1.0], -1, 0])
def test_real_number_refuses(value: object) -> None:
    with pytest.raises(InputError, match=r"^x: found .*, expected a finite number > 0$"):
        real_number("x", value, positive=True)


def test_real_number_accepts() -> None:
    assert real_number("x", np.float32(0.5), minimum=0.5) == 0.5
    assert type(real_number("x", 3)) is float
    assert whole_number("x", -2, -2, -2) == -2
