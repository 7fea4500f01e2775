"""The exact loss against mpmath, Monte Carlo, closed forms, finite differences and symmetries.

Monte-Carlo comparisons: 32 with |z| < 5, a false alarm with probability below 2e-5 (seeds are fixed).
"""

from dataclasses import replace
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from numeric.loss import Loss, evaluate, population_loss
from numeric.prior import DiscretePrior, GaussianPrior, Prior, flipped_spike, isotropic
from numeric.task import Attention, State, Task
from tests.numeric.oracle import (
    LAYERS,
    NAMES,
    gradient,
    random_prior,
    random_state,
    sampled_loss,
    symmetric_gradient,
)

RACED = [name for name in NAMES if LAYERS[name].normalization != "none"]


def integral(function: Any, low: float = -12, high: float = 12) -> mp.mpf:
    """Gauss-Legendre rules of 48 nodes on each of four intervals."""
    edges = mp.linspace(low, high, 5)
    return mp.quad(function, edges, method="gauss-legendre", maxdegree=5)


# A token's weight and its square, as functions of one or both scores, with bias and value.
B, V = 0.3, 0.8
MP_WEIGHT = {
    "softmax-1": lambda x: mp.exp(x + B),
    "softplus": lambda x: mp.log1p(mp.exp(x)),
    "linear": lambda x: 1 + x,
    "erf": lambda x: 1 + mp.erf(x + B),
}


def gap_loss(q: float, laws: list[tuple[float, float, float]], v: float) -> float:
    """H = 1, L = 2, softmax: ``E (1 - v p)^2 + v^2 (1 - p)^2``, p = 1 / (1 + exp(-gap)).

    The gap between the two tokens' scores is Gaussian: its variance is the sum of theirs.
    """
    total = mp.mpf(0)
    for weight, mean, variance in laws:
        width = mp.sqrt(variance + q)

        def integrand(z: mp.mpf, mean: float = mean, width: mp.mpf = width) -> mp.mpf:
            p = 1 / (1 + mp.exp(-mean - width * z))
            return ((1 - v * p) ** 2 + (v * (1 - p)) ** 2) * mp.npdf(z)

        total += weight * integral(integrand)
    return float(total)


def two_score_loss(name: str, q: float, laws: list[tuple[float, float, float]], v: float) -> float:
    """H = 1, L = 2: the expectation over both scores, or of each where there is no denominator."""
    w, background = MP_WEIGHT[name], LAYERS[name].background
    total = mp.mpf(0)
    for weight, mean, variance in laws:
        root = mp.sqrt(variance)

        def relevant(z: mp.mpf, mean: float = mean, root: mp.mpf = root) -> mp.mpf:
            return w(mean + root * z)

        if LAYERS[name].normalization == "none":
            mine = integral(lambda z, f=relevant: (1 - v * f(z)) ** 2 * mp.npdf(z))
            total += weight * (mine + integral(lambda z: (v * w(mp.sqrt(q) * z)) ** 2 * mp.npdf(z)))
            continue
        inner, density = mp.linspace(-9, 9, 61), mp.mpf(18) / 60
        # Equispaced sums of smooth functions that decay converge exponentially.
        others = [(w(mp.sqrt(q) * y), mp.npdf(y) * density) for y in inner]
        for z in inner:
            one = relevant(z)
            for other, p in others:
                a = v / (background + one + other)
                total += weight * p * mp.npdf(z) * density * ((1 - a * one) ** 2 + (a * other) ** 2)
    return float(total)


TWO_TOKENS = [
    (0.8, 0.3, GaussianPrior([0.5], [[1.5]]), [(1.0, 0.4, 0.94 + 0.64 * 1.5)]),
    (1.2, 0.1, flipped_spike([[1.5]]), [(0.5, 1.8, 1.54), (0.5, -1.8, 1.54)]),
    (
        -0.5,
        0.0,
        DiscretePrior([[2.0], [0.0]], [0.3, 0.7]),
        [(0.3, -1.0, 0.25), (0.7, 0.0, 0.25)],
    ),
]


@pytest.mark.parametrize(("m", "r", "prior", "laws"), TWO_TOKENS, ids=["gauss", "spike", "rest"])
@pytest.mark.parametrize("name", NAMES)
def test_one_head_two_tokens_against_mpmath(
    name: str, m: float, r: float, prior: Prior, laws: list[tuple[float, float, float]]
) -> None:
    trained = {key: [x] for key, x in (("b", B), ("v", V)) if key in LAYERS[name].trained}
    v, q = V if "v" in trained else 1.0, m * m + r
    loss = population_loss(
        State([[m]], [[r]], **trained), Task(2, prior), Attention(name, 1), 1e-12
    )
    with mp.workdps(20):
        expected = two_score_loss(name, q, laws, v) if name in MP_WEIGHT else gap_loss(q, laws, v)
    assert abs(loss.value - expected) < 1e-11
    assert loss.error < 3e-11


@pytest.mark.slow
@pytest.mark.parametrize("name", RACED)
def test_one_head_three_tokens_against_nested_integrals(name: str) -> None:
    """All three scores on equispaced nodes, from the definition of the weights."""
    rng, layer = np.random.default_rng(3), LAYERS[name]
    state, task = random_state(rng, layer, 1, 1), Task(3, GaussianPrior([0.5], [[1.5]]))
    q = state.m[0, 0] ** 2 + state.r[0, 0]
    z = np.linspace(-8, 8, 161)
    p = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    first = 0.5 * state.m[0, 0] + np.sqrt(q + 1.5 * state.m[0, 0] ** 2) * z
    b = 0.0 if state.b is None else state.b[0]
    v = layer.value(1) if state.v is None else state.v[0]
    one, other = layer.weight(first, b), layer.weight(np.sqrt(q) * z, b)
    total = layer.background + one[:, None, None] + other[:, None] + other
    squares = (1 - v * one[:, None, None] / total) ** 2
    squares += (v * other[:, None] / total) ** 2 + (v * other / total) ** 2
    expected = np.einsum("ijk,i,j,k", squares, p, p, p)
    loss = population_loss(state, task, Attention(name, 1), 1e-12)
    assert abs(loss.value - expected) < 1e-11


def monte_carlo(name: str, case: int, samples: int, tokens: int, heads: int) -> float:
    rng, layer = np.random.default_rng(1000 + case), LAYERS[name]
    features = int(rng.integers(1, 4))
    task = Task(tokens, random_prior(rng, features, ("gaussian", "discrete", "mixture")[case % 3]))
    state = random_state(rng, layer, heads, features)
    loss = population_loss(state, task, Attention(name, heads), 1e-6)
    value, error = sampled_loss(layer, state, task, samples, case)
    return float(abs(loss.value - value) / np.hypot(error, loss.error))


@pytest.mark.parametrize(("tokens", "heads"), [(2, 3), (5, 2), (40, 1)])
@pytest.mark.parametrize("name", NAMES)
def test_against_monte_carlo(name: str, tokens: int, heads: int) -> None:
    samples = 100_000 if tokens < 10 else 30_000
    assert monte_carlo(name, tokens + NAMES.index(name), samples, tokens, heads) < 5


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2, 50, 1000])
@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_against_many_monte_carlo_samples(name: str, heads: int, tokens: int) -> None:
    samples = 10_000_000 // (tokens + 23)
    assert monte_carlo(name, 100 * heads + tokens, samples, tokens, heads) < 5


@pytest.mark.parametrize("tokens", [1, 2, 7, 1_000_000])
@pytest.mark.parametrize("heads", [1, 2, 5])
def test_linear_attention_in_closed_form(heads: int, tokens: int) -> None:
    """``a_l = v.(1 + chi_l)``: the loss needs first and second moments of the scores alone."""
    rng = np.random.default_rng(heads)
    prior = random_prior(rng, 3, "mixture")
    state = random_state(rng, LAYERS["linear"], heads, 3)
    loss = population_loss(state, Task(tokens, prior), Attention("linear", heads), 1e-8)
    q = state.m @ state.m.T + state.r
    mean = state.m @ prior.mean
    second = q + state.m @ prior.second_moment @ state.m.T
    ones = np.ones((heads, heads))
    square = ones + mean[:, None] + mean + second + (tokens - 1) * (ones + q)
    v = state.v
    expected = 1 - 2 * v @ (1 + mean) + v @ square @ v
    size = 1 + abs(expected)
    assert loss.value == pytest.approx(expected, abs=1e-9 * size)
    assert loss.v == pytest.approx(2 * (square @ v - 1 - mean), abs=1e-9 * size)
    assert loss.r == pytest.approx(tokens * np.outer(v, v), abs=1e-9 * size)
    in_m = np.outer(v, 2 * (v.sum() - 1) * prior.mean)
    in_m += 2 * np.outer(v, v @ state.m @ (tokens * np.eye(3) + prior.second_moment))
    assert loss.m == pytest.approx(in_m, abs=1e-9 * size)


@pytest.mark.parametrize(
    "kind",
    ["mixture", *(pytest.param(x, marks=pytest.mark.slow) for x in ("gaussian", "discrete"))],
)
@pytest.mark.parametrize("name", NAMES)
def test_gradient_against_finite_differences(name: str, kind: str) -> None:
    rng = np.random.default_rng(5)
    features = 1 if LAYERS[name].normalization == "pooled" else 2
    task, attention = Task(4, random_prior(rng, features, kind)), Attention(name, 2)
    state = random_state(rng, LAYERS[name], 2, features, 0.5)
    state = replace(state, r=state.r + 0.2 * np.eye(2))
    digits = 11.0
    loss = evaluate(state, task, attention, digits, 600_000)

    def value(**moved: Any) -> float:
        return float(evaluate(replace(state, **moved), task, attention, digits, 600_000).value)

    scale = max(1.0, np.abs(loss.m).max(), np.abs(loss.r).max())
    for key in ("m", *LAYERS[name].trained):
        expected = gradient(lambda x, key=key: value(**{key: x}), getattr(state, key))
        assert np.abs(getattr(loss, key) - expected).max() < 1e-8 * scale, key
    expected = symmetric_gradient(lambda r: value(r=r), state.r)
    assert np.abs(loss.r - expected).max() < 1e-8 * scale
    assert np.abs(loss.r - loss.r.T).max() < 1e-14 * scale
    assert (loss.b is None, loss.v is None) == (state.b is None, state.v is None)


def fine(state: State, prior: Prior, name: str, tokens: int = 5) -> Loss:
    return evaluate(state, Task(tokens, prior), Attention(name, len(state.m)), 11.0, 1_500_000)


@pytest.mark.parametrize("name", NAMES)
def test_symmetries(name: str) -> None:
    """Heads change places; theta and m change sign; with b-softmax all biases shift."""
    rng = np.random.default_rng(11)
    prior = DiscretePrior(rng.normal(size=(3, 2)), [0.2, 0.5, 0.3])
    state = random_state(rng, LAYERS[name], 3, 2, 0.4)
    loss = fine(state, prior, name)
    order = np.array([2, 0, 1])
    trained = {key: getattr(state, key)[order] for key in LAYERS[name].trained}
    moved = fine(State(state.m[order], state.r[np.ix_(order, order)], **trained), prior, name)
    size = 1 + abs(loss.value)
    assert abs(moved.value - loss.value) < 1e-11 * size
    assert np.abs(moved.m - loss.m[order]).max() < 1e-9 * size
    for key in trained:
        assert np.abs(getattr(moved, key) - getattr(loss, key)[order]).max() < 1e-9 * size
    flipped = fine(replace(state, m=-state.m), flipped_prior(prior), name)
    assert abs(flipped.value - loss.value) < 1e-12 * size
    assert np.abs(flipped.m + loss.m).max() < 1e-11 * size
    if name == "b-softmax":
        for shift in (800.0, -800.0):
            assert (
                abs(fine(replace(state, b=state.b + shift), prior, name).value - loss.value) < 1e-12
            )


def flipped_prior(prior: DiscretePrior) -> DiscretePrior:
    return DiscretePrior(-prior.support, prior.probabilities)


@pytest.mark.parametrize("name", NAMES)
def test_a_prior_of_both_signs_leaves_the_sign_of_m_open(name: str) -> None:
    rng = np.random.default_rng(12)
    state = random_state(rng, LAYERS[name], 2, 2, 0.5)
    prior = flipped_spike(rng.normal(size=(2, 2)))
    loss, other = (fine(replace(state, m=m), prior, name) for m in (state.m, -state.m))
    assert loss.value == pytest.approx(other.value, rel=1e-12)
    assert loss.m == pytest.approx(-other.m, abs=1e-10)
    assert np.abs(fine(replace(state, m=0 * state.m), prior, name).m).max() < 1e-12


def test_softmax_and_its_relatives() -> None:
    """Values 1/H are softmax, to the last bit; so is softmax-1 with a bias beyond the background."""
    rng = np.random.default_rng(13)
    plain = random_state(rng, LAYERS["softmax"], 3, 2)
    prior = random_prior(rng, 2, "mixture")
    softmax = fine(plain, prior, "softmax")
    for third in (None, np.full(3, 1 / 3)):
        valued = fine(replace(plain, v=third), prior, "softmax-v")
        assert valued.value == softmax.value
        assert np.array_equal(valued.m, softmax.m) and np.array_equal(valued.r, softmax.r)
    values = np.array([0.5, -0.2, 0.9])
    valued = fine(replace(plain, v=values), prior, "softmax-v")
    for bias in (40.0, 800.0):
        far = fine(replace(plain, b=np.full(3, bias), v=values), prior, "softmax-1")
        assert far.value == pytest.approx(valued.value, abs=1e-11)
        assert far.m == pytest.approx(valued.m, abs=1e-10)
        assert far.v == pytest.approx(valued.v, abs=1e-10)
        assert np.abs(far.b).max() < 1e-10
    for bias in (-40.0, -800.0):
        with np.errstate(all="raise", under="ignore"):
            near = fine(replace(plain, b=np.full(3, bias), v=values), prior, "softmax-1")
        assert near.value == pytest.approx(1.0, abs=1e-14)
        assert np.abs(near.m).max() < 1e-14


@pytest.mark.parametrize("name", [name for name in NAMES if "v" in LAYERS[name].trained])
def test_the_loss_is_quadratic_in_the_values(name: str) -> None:
    rng = np.random.default_rng(14)
    prior = random_prior(rng, 1, "gaussian")
    state = random_state(rng, LAYERS[name], 2, 1)
    nothing = fine(replace(state, v=np.zeros(2)), prior, name)
    assert nothing.value == pytest.approx(1.0, abs=1e-12)
    one, two = (fine(replace(state, v=x * state.v), prior, name) for x in (1, -2))
    size = 1 + abs(two.value)
    assert 1 + nothing.v @ state.v + (one.v - nothing.v) @ state.v / 2 == pytest.approx(one.value)
    assert two.v - nothing.v == pytest.approx(-2 * (one.v - nothing.v), abs=1e-10 * size)


@pytest.mark.parametrize("name", NAMES)
def test_identical_heads_are_one_head(name: str) -> None:
    """Of three times the value; pooled or averaged, of the same."""
    state, prior, layer = State([[0.9]], [[0.2]]), isotropic(1, 2.0), LAYERS[name]
    triple = State(np.full((3, 1), 0.9), np.full((3, 3), 0.2))
    if "v" in layer.trained:
        triple = replace(triple, v=np.full(3, 0.3))
        state = replace(state, v=np.array([0.9]))
    one, three = (fine(x, prior, name, 7) for x in (state, triple))
    assert one.value == pytest.approx(three.value, rel=1e-11)
    assert one.m[0] == pytest.approx(three.m.sum(axis=0), abs=1e-9)
    assert one.r[0, 0] == pytest.approx(three.r.sum(), abs=1e-9)


def test_pooled_attention_of_one_head_is_softmax() -> None:
    state, prior = State([[0.9]], [[0.2]]), random_prior(np.random.default_rng(1), 1, "mixture")
    pooled = fine(replace(state, b=np.array([0.7])), prior, "b-softmax")
    plain = fine(state, prior, "softmax")
    assert pooled.value == pytest.approx(plain.value, abs=1e-11)
    assert pooled.m == pytest.approx(plain.m, abs=1e-10)
    assert abs(pooled.b[0]) < 1e-11


@pytest.mark.parametrize("prior", [isotropic(2, 3.0), GaussianPrior([0.0, 0.0], np.ones((2, 2)))])
def test_remainder_of_the_published_expansion_is_of_fourth_order(prior: Prior) -> None:
    """Softmax near the origin, second moment M, no mean signal (paper A; section 5 of the model)."""
    state = random_state(np.random.default_rng(3), LAYERS["softmax"], 2, 2)
    L, M, scales, remainders = 5, prior.second_moment, (0.06, 0.03, 0.015), []
    for scale in scales:
        m, r = scale * state.m, scale**2 * state.r
        mean = m.mean(axis=0)
        form = mean @ mean + r.mean() + mean @ M @ mean / L
        form -= (1 - 2 / L) * np.trace(m @ M @ m.T) / 2
        expanded = (1 - 1 / L) * (1 + form / L)
        remainders.append(abs(fine(State(m, r), prior, "softmax", L).value - expanded))
    slope = np.polyfit(np.log(scales), np.log(remainders), 1)[0]
    assert 3.9 < slope < 4.1
