"""The exact loss where programs of this kind break: one token, a million, batches, huge scores, no
features, strong signals; and whether its reported errors are honest.
"""

from typing import Any

import numpy as np
import pytest
import scipy.special

from numeric.errors import InputError, QuadratureError
from numeric.loss import Loss, population_loss
from numeric.prior import DiscretePrior, isotropic
from numeric.task import Attention, State, Task
from tests.numeric.oracle import (
    LAYERS,
    NAMES,
    attention,
    random_prior,
    random_state,
    sample_loss,
    sampled_loss,
)

RACED = [name for name in NAMES if LAYERS[name].normalization != "none"]
SUMS_TO_ONE = [name for name in RACED if not LAYERS[name].background]


def entries(loss: Loss) -> dict[str, Any]:
    parts = {key: getattr(loss, key) for key in ("m", "r", "b", "v")}
    return {key: values for key, values in parts.items() if values is not None}


@pytest.mark.parametrize("tokens", [1.0, 5.0, 1e6])
@pytest.mark.parametrize("name", NAMES)
def test_scores_that_do_not_vary(name: str, tokens: float) -> None:
    """At m = 0, r = 0 all tokens weigh the same a: E = 1 - 2 a + L a^2."""
    rng, layer = np.random.default_rng(1), LAYERS[name]
    trained = {key: rng.uniform(-0.5, 0.5, 3) for key in layer.trained}
    state = State(np.zeros((3, 2)), np.zeros((3, 3)), **trained)
    task = Task(int(tokens), isotropic(2, 3.0))
    a = attention(layer, np.zeros((3, 2)), state.b, state.v)[0]
    if layer.normalization != "none":
        # The oracle had two tokens; other numbers of them join the denominator.
        weight = layer.weight(np.zeros(3), 0.0 if state.b is None else state.b)
        value = np.full(3, layer.value(3)) if state.v is None else state.v
        pooled = layer.normalization == "pooled"
        total = weight.sum() if pooled else weight
        a = float((weight * value / (layer.background + tokens * total)).sum())
    loss = population_loss(state, task, Attention(name, 3), 1e-10)
    expected = 1 - 2 * a + tokens * a**2
    assert loss.value == pytest.approx(expected, rel=1e-10, abs=1e-10)
    assert abs(loss.value - expected) <= loss.error + 1e-14 * expected
    if tokens == 1 and name in SUMS_TO_ONE:
        assert not (loss.m.any() or loss.r.any())


@pytest.mark.parametrize("name", SUMS_TO_ONE)
def test_one_token_is_certain(name: str) -> None:
    """Each head gives it all its value, whatever the scores."""
    state = random_state(np.random.default_rng(2), LAYERS[name], 2, 2, 30.0)
    loss = population_loss(state, Task(1, isotropic(2, 1.0)), Attention(name, 2), 1e-9)
    total = 1.0 if state.v is None else state.v.sum()
    assert loss.value == pytest.approx((total - 1) ** 2, abs=1e-15)
    assert not loss.m.any() and not loss.r.any()
    if loss.v is not None:
        assert loss.v == pytest.approx(np.full(2, 2 * (total - 1)))


@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-8, 1e-12])
@pytest.mark.parametrize("tokens", [10, 10**6])
def test_error_counts_from_the_size_of_the_sums(tokens: int, tol: float) -> None:
    """Nothing normalizes erf weights: the loss grows with L, and so do rounding and truncation."""
    # The normal distribution function's first two moments at scores of law N(0, q), in closed form:
    # w = 2 Phi(x sqrt 2), E w^2 = 4 P(two such thresholds) = 1 + 2/pi asin(2 q / (1 + 2 q)).
    m = 0.03
    null, relevant = (1 + 2 / np.pi * np.arcsin(2 * q / (1 + 2 * q)) for q in (m**2, 2 * m**2))
    expected = 1 - 2 + relevant + (tokens - 1) * null
    task = Task(tokens, isotropic(1, 1.0))
    loss = population_loss(State([[m]], [[0.0]]), task, Attention("erf", 1), tol)
    assert abs(loss.value - expected) <= loss.error + 1e-15 * expected
    assert loss.error <= max(tol, 1e-13 * expected)


@pytest.mark.parametrize("bias", [-10.0, -15.0, -20.0, -27.0, -1e3])
def test_a_weight_that_cancels_to_nothing(bias: float) -> None:
    state = State([[0.5]], [[0.3]], [bias], [1.0])
    loss = population_loss(state, Task(5, isotropic(1, 4.0)), Attention("erf", 1))
    assert abs(loss.value - 1) < 1e-10
    assert loss.error < 1e-8


@pytest.mark.parametrize("name", ["softmax-1", "linear", "erf"])
def test_one_token_against_one_integral(name: str) -> None:
    """``E (1 - a)^2`` of one score, where a token alone is not certain."""
    state = random_state(np.random.default_rng(3), LAYERS[name], 1, 1)
    variance = state.m[0, 0] ** 2 * (1 + 2.0) + state.r[0, 0]
    z = np.linspace(-9, 9, 401)
    p = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    chi = (np.sqrt(variance) * z)[:, None, None]
    expected = sample_loss(attention(LAYERS[name], chi, state.b, state.v)) @ p
    loss = population_loss(state, Task(1, isotropic(1, 2.0)), Attention(name, 1), 1e-11)
    assert loss.value == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_batches_keep_their_shape(name: str, tokens: int) -> None:
    """H = 1, F = 0 on a batch of four states, and on one of 2 x 2."""
    task, attention_ = Task(tokens, isotropic(0, 1.0)), Attention(name, 1)
    r = np.array([1.0, 0.5, 0.0, 2.0]).reshape(4, 1, 1)
    state = State(np.zeros((4, 1, 0)), r)
    loss = population_loss(state, task, attention_, 1e-6)
    assert np.shape(loss.value) == np.shape(loss.error) == np.shape(loss.gradient_error) == (4,)
    shapes = {"m": (4, 1, 0), "r": (4, 1, 1)} | dict.fromkeys(LAYERS[name].trained, (4, 1))
    assert {key: values.shape for key, values in entries(loss).items()} == shapes
    for i in range(4):
        alone = population_loss(state.at((i,)), task, attention_, 1e-6)
        assert alone.value == loss.value[i]
        for key, values in entries(loss).items():
            assert np.array_equal(getattr(alone, key), values[i])
    square = population_loss(
        State(np.zeros((2, 2, 1, 0)), r.reshape(2, 2, 1, 1)), task, attention_, 1e-6
    )
    assert np.array_equal(np.ravel(square.value), loss.value)
    assert square.r.shape == (2, 2, 1, 1)


@pytest.mark.parametrize("tokens", [10**6, 10**9])
@pytest.mark.parametrize("name", SUMS_TO_ONE)
def test_many_tokens(name: str, tokens: int) -> None:
    """No integer wraps around; a signal of no use leaves 1 - 1/L, a spread of scores costs q / L."""
    task, layer = Task(tokens, isotropic(1, 0.0)), Attention(name, 1)
    flat = population_loss(State([[0.0]], [[0.0]]), task, layer, 1e-10)
    assert flat.value == pytest.approx(1 - 1 / tokens, abs=1e-13)
    spread = population_loss(State([[0.3]], [[0.1]]), task, layer, 1e-12)
    assert 1 - 1 / tokens < spread.value < 1
    assert all(np.isfinite(values).all() for values in entries(spread).values())


@pytest.mark.parametrize("name", NAMES)
def test_huge_score_gaps(name: str) -> None:
    """A relevant token 800 above the others, or 800 below them."""
    task = Task(3, DiscretePrior([[800.0]], [1.0]))
    for m, found in ((1.0, True), (-1.0, False)):
        with np.errstate(all="raise", under="ignore"):
            loss = population_loss(State([[m]], [[0.0]]), task, Attention(name, 1), 1e-8)
        assert np.isfinite(loss.value)
        assert all(np.isfinite(values).all() for values in entries(loss).values())
        if name in SUMS_TO_ONE and name != "softplus" and found:
            assert loss.value == pytest.approx(0.0, abs=1e-7)
        elif name == "softplus":
            value, error = sampled_loss(LAYERS[name], State([[m]], [[0.0]]), task, 50_000, 1)
            assert abs(loss.value - value) < 5 * np.hypot(error, loss.error) + 1e-12
        elif not found and name in SUMS_TO_ONE:
            # Two tokens share the attention: 1 + E (p^2 + (1 - p)^2), p a logistic of N(0, 2).
            z = np.linspace(-9, 9, 201)
            p = scipy.special.expit(np.sqrt(2) * z)
            weight = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
            assert loss.value == pytest.approx(1 + weight @ (p**2 + (1 - p) ** 2), abs=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_reported_error_covers_the_true_one(name: str) -> None:
    """Of the loss and of its gradient, for scores of deviation 0.01 to 4 and up to 10^6 tokens."""
    rng = np.random.default_rng(21)
    for case in range(16):
        heads, features = int(rng.integers(1, 4)), int(rng.integers(0, 3))
        prior = random_prior(rng, features, ("gaussian", "discrete")[case % 3 > 0])
        task = Task(int(rng.choice([1, 2, 3, 10, 1000, 10**6])), prior)
        state = random_state(rng, LAYERS[name], heads, features, 10 ** rng.uniform(-2, 0.3))
        layer = Attention(name, heads)
        loss, better = (population_loss(state, task, layer, tol) for tol in (1e-5, 1e-9))
        slack = 4 if "Monte" in loss.method else 1
        apart = abs(loss.value - better.value)
        assert apart <= slack * loss.error + 4 * better.error, case
        for key, values in entries(loss).items():
            apart = np.abs(values - getattr(better, key)).max(initial=0)
            assert apart <= slack * loss.gradient_error + 4 * better.gradient_error, (case, key)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("small", [0.0, 0.01, 0.3])
@pytest.mark.parametrize("name", ["softmax", "softmax-1", "softplus"])
def test_correlated_heads_of_unequal_size(name: str, small: float, order: tuple[int, int]) -> None:
    """No residual and one feature: scores are one variable, of deviation 4 in the other head."""
    m = np.array([[small], [4.0]])[list(order)]
    state, task = State(m, np.zeros((2, 2))), Task(2, isotropic(1, 1.0))
    loss = population_loss(state, task, Attention(name, 2), 1e-9)
    z = np.linspace(-8, 8, 641)
    p = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    grid = np.stack(np.meshgrid(np.sqrt(2) * z, z, indexing="ij"), axis=-1)
    found = sample_loss(attention(LAYERS[name], np.moveaxis(m * grid[..., None, :], -2, -2)))
    assert loss.value == pytest.approx(float(p @ found @ p), abs=2e-9)
    assert loss.error < 1e-8


SLOW = {("softmax-1", 2), ("softplus", 2), *((name, 3) for name in NAMES)}


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        pytest.param(name, heads, marks=pytest.mark.slow if (name, heads) in SLOW else ())
        for name in NAMES
        for heads in (1, 2, 3)
    ],
)
def test_out_of_reach_is_said(name: str, heads: int) -> None:
    """Correlated scores of deviation 20 and more: an honest error, or a typed refusal."""
    rng = np.random.default_rng(heads)
    root = 20 * rng.normal(size=(heads, heads))
    state, task = State(np.zeros((heads, 1)), root @ root.T), Task(5, isotropic(1, 1.0))
    try:
        loss = population_loss(state, task, Attention(name, heads), 1e-5)
    except QuadratureError as error:
        assert "\n" not in str(error)
    else:
        value, spread = sampled_loss(LAYERS[name], state, task, 20_000, 1)
        assert abs(loss.value - value) < 5 * np.hypot(spread, loss.error)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1e7, 1e160])
def test_scores_beyond_all_reach_are_refused(name: str, size: float) -> None:
    state, task = State([[size]], [[0.0]]), Task(5, isotropic(1, 1.0))
    with pytest.raises(QuadratureError, match=r"^scores: .*expected at most 1e\+06$"):
        population_loss(state, task, Attention(name, 1))


@pytest.mark.parametrize("tol", [0.0, -1.0, np.nan, "fine"])
def test_bad_tolerance_is_refused(tol: object) -> None:
    state, task = State([[0.0]], [[0.0]]), Task(2, isotropic(1, 1.0))
    with pytest.raises(InputError, match="tol"):
        population_loss(state, task, Attention("softmax", 1), tol)
