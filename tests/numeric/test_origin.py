"""The expansion at the origin for any biases and values, from the definition of attention at 40 digits.

With keys k_h = c_h k along one direction, a token's scores are c_h s with one Gaussian s, so at L = 2 the
population loss is a double integral. Its second difference at a tiny scale is the expansion's oracle.
"""

from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
import sympy as sp

from derive.attention import Attention as Definition
from derive.symbols import b, chi
from numeric import (
    Attention,
    DiscretePrior,
    GaussianPrior,
    State,
    Task,
    hessian_spectrum,
    isotropic,
    population_loss,
)
from numeric._generated import ACTIVATIONS
from numeric.errors import QuadratureError
from numeric.loss import evaluate
from numeric.origin import at_rest, origin_attention, origin_eigenvalues, origin_expansion

USER = {
    "two rates": Definition(
        "two rates", sp.exp(2 * chi) + sp.exp(b - chi), "pooled", 2, trained=("b",)
    ),
    "bump": Definition("bump", sp.exp(-((chi - b) ** 2)), "per-head", 3, trained=("b", "v")),
    "cubic": Definition("cubic", chi + b * chi**2 + chi**3, "none", trained=("b",)),
}
EVERY = {**{name: name for name in ACTIVATIONS}, **USER}

# Weight, normalization and background, written down anew.
DEFINITIONS: dict[str, tuple[Callable, str, float]] = {
    "softmax": (lambda x, b: mp.exp(x), "per-head", 0),
    "softmax-v": (lambda x, b: mp.exp(x), "per-head", 0),
    "softmax-1": (lambda x, b: mp.exp(b + x), "per-head", 1),
    "b-softmax": (lambda x, b: mp.exp(b + x), "pooled", 0),
    "linear": (lambda x, b: 1 + x, "none", 0),
    "erf": (lambda x, b: 1 + mp.erf(b + x), "none", 0),
    "softplus": (lambda x, b: mp.log(1 + mp.exp(x)), "per-head", 0),
    "two rates": (lambda x, b: mp.exp(2 * x) + mp.exp(b - x), "pooled", 2),
    "bump": (lambda x, b: mp.exp(-((x - b) ** 2)), "per-head", 3),
    "cubic": (lambda x, b: x + b * x**2 + x**3, "none", 0),
}
AVERAGED = {"softmax", "softplus"}
BIAS, VALUES = (0.3, -0.7), (0.8, -0.3)
ALONG = (0.9, -0.4)
# Signal of a token along the key, besides noise of unit variance: alignment 3/5, residual 4/5.
SUPPORT, PROBABILITIES, ALIGNMENT, RESIDUAL = (1.5, -0.5), (0.4, 0.6), 0.6, 0.8


def state_of(attention: Attention, scale: float = 1.0) -> State:
    m = scale * ALIGNMENT * np.array(ALONG)[:, None]
    r = (scale * RESIDUAL) ** 2 * np.outer(ALONG, ALONG)
    return State(
        m,
        r,
        np.array(BIAS) if "b" in attention.parameters else None,
        np.array(VALUES) if "v" in attention.parameters else None,
    )


def hermite(n: int) -> list[tuple[mp.mpf, mp.mpf]]:
    """Nodes and weights of a standard normal, exact to degree 2 n - 1."""
    roots = mp.polyroots(
        [mp.mpf(x) for x in sp.Poly(sp.hermite(n, chi), chi).all_coeffs()], 500, 200
    )
    scale = mp.mpf(2) ** (n - 1) * mp.factorial(n) / mp.mpf(n) ** 2
    return [(mp.sqrt(2) * x, scale / mp.hermite(n - 1, x) ** 2) for x in roots]


def loss(name: str, scale: mp.mpf) -> mp.mpf:
    """E at L = 2 by its definition; keys are ``scale * c_h`` times one unit vector."""
    weight, normalization, background = DEFINITIONS[name]
    trained = EVERY[name].trained if name in USER else ACTIVATIONS[name].PARAMETERS
    bias = [mp.mpf(x) if "b" in trained else mp.mpf(0) for x in BIAS]
    default = mp.mpf(1) / 2 if name in AVERAGED else mp.mpf(1)
    value = [mp.mpf(x) if "v" in trained else default for x in VALUES]
    rule = hermite(8)
    total = mp.mpf(0)
    for z0, p0 in rule:
        for z1, p1 in rule:
            for theta, p in zip(SUPPORT, PROBABILITIES, strict=True):
                fields = [z0 + mp.mpf(ALIGNMENT) * mp.mpf(theta), z1]
                w = [
                    [weight(scale * mp.mpf(c) * x, bias[h]) for x in fields]
                    for h, c in enumerate(ALONG)
                ]
                if normalization == "pooled":
                    everything = background + sum(map(sum, w))
                    a = [sum(row[k] for row in w) / everything for k in range(2)]
                else:
                    below = [1 if normalization == "none" else background + sum(row) for row in w]
                    a = [sum(value[h] * w[h][k] / below[h] for h in range(2)) for k in range(2)]
                total += p0 * p1 * mp.mpf(p) * ((1 - a[0]) ** 2 + a[1] ** 2)
    return total


@pytest.mark.parametrize("name", EVERY)
def test_every_order_against_the_definition(name: str) -> None:
    attention = Attention(EVERY[name], 2)
    task = Task(2, DiscretePrior(np.array(SUPPORT)[:, None], PROBABILITIES))

    def found(scale: float) -> float:
        return origin_expansion(state_of(attention, scale), task, attention).value

    step = mp.mpf(10) ** -10
    with mp.workdps(50):
        zero, plus, minus = loss(name, mp.mpf(0)), loss(name, step), loss(name, -step)
        first, second = (plus - minus) / (2 * step), (plus + minus - 2 * zero) / (2 * step**2)
    assert found(0.0) == pytest.approx(float(zero), rel=1e-14)
    assert (found(1.0) - found(-1.0)) / 2 == pytest.approx(float(first), rel=1e-13, abs=1e-15)
    even = (found(1.0) + found(-1.0)) / 2 - found(0.0)
    assert even == pytest.approx(float(second), rel=1e-12, abs=1e-15)
    assert abs(float(second)) > 1e-4


PRIOR = GaussianPrior([0.4, -0.3], [[1.0, 0.3], [0.3, 0.5]])


def random_state(attention: Attention, seed: int) -> State:
    rng = np.random.default_rng(seed)
    heads = attention.heads
    root = rng.normal(size=(heads, heads))
    given = {x: rng.normal(size=heads) for x in attention.parameters}
    return State(rng.normal(size=(heads, 2)), root @ root.T, **given)


@pytest.mark.parametrize("name", EVERY)
def test_gradient_of_the_expansion(name: str) -> None:
    """It is quadratic in m and linear in r: symmetric differences are exact."""
    attention, task = Attention(EVERY[name], 3), Task(4, PRIOR)
    state = random_state(attention, 5)
    found = origin_expansion(state, task, attention)

    def value(m: np.ndarray, r: np.ndarray) -> float:
        return origin_expansion(State(m, r, state.b, state.v), task, attention).value

    scale = max(1.0, np.abs(found.m).max(), np.abs(found.r).max())
    for index in np.ndindex(3, 2):
        step = np.zeros((3, 2))
        step[index] = 0.5
        slope = value(state.m + step, state.r) - value(state.m - step, state.r)
        assert found.m[index] == pytest.approx(slope, abs=1e-12 * scale)
    for i, j in np.ndindex(3, 3):
        vector = np.eye(3)[i] + np.eye(3)[j]
        slope = value(state.m, state.r + np.outer(vector, vector)) - value(state.m, state.r)
        assert vector @ found.r @ vector == pytest.approx(slope, abs=1e-12 * scale)
    assert np.array_equal(found.r, found.r.T)


@pytest.mark.parametrize("name", EVERY)
def test_exact_gradient_at_the_origin_is_that_of_the_expansion(name: str) -> None:
    attention, task = Attention(EVERY[name], 2), Task(4, PRIOR)
    given = random_state(attention, 2)
    zero = State(np.zeros((2, 2)), np.zeros((2, 2)), given.b, given.v)
    exact, found = evaluate(zero, task, attention, 12.0), origin_expansion(zero, task, attention)
    assert found.value == pytest.approx(float(exact.value), abs=1e-11)
    np.testing.assert_allclose(found.m, exact.m, atol=1e-10)
    np.testing.assert_allclose(found.r, exact.r, atol=1e-10)


@pytest.mark.parametrize("name", EVERY)
def test_attention_at_the_origin(name: str) -> None:
    """The loss of one attention s for all L tokens is (1 - s)^2 + (L - 1) s^2."""
    attention, task = Attention(EVERY[name], 2), Task(4, PRIOR)
    given = random_state(attention, 3)
    zero = State(np.zeros((2, 2)), np.zeros((2, 2)), given.b, given.v)
    s = origin_attention(zero, task, attention)
    exact = evaluate(zero, task, attention, 12.0)
    assert (1 - s) ** 2 + 3 * s**2 == pytest.approx(float(exact.value), abs=1e-11)
    # Nothing of it depends on the keys.
    assert s == origin_attention(given, task, attention)
    if exact.v is not None:
        state = State(zero.m, zero.r, zero.b, zero.v / (4 * s))
        assert origin_attention(state, task, attention) == pytest.approx(0.25, rel=1e-14)
        resting = evaluate(state, task, attention, 12.0)
        assert np.abs(resting.v).max() < 1e-10
        assert resting.b is None or np.abs(resting.b).max() < 1e-10


@pytest.mark.parametrize("name", ["softmax", "softmax-v", "b-softmax"])
def test_heads_that_differ_enter_averages_with_weights(name: str) -> None:
    """`derive.task` section 5 with weights v_h, or softmax(b), instead of 1/H."""
    attention, task = Attention(name, 3), Task(5, PRIOR)
    state, tokens = random_state(attention, 9), 5
    total = 1.0
    if name == "softmax-v":
        total = float(state.v.sum())
        p = state.v / total
    elif name == "b-softmax":
        p = np.exp(state.b) / np.exp(state.b).sum()
    else:
        p = np.full(3, 1 / 3)
    moment = PRIOR.second_moment
    mbar, rbar = p @ state.m, p @ state.r @ p
    own = p @ np.einsum("hf,fg,hg->h", state.m, moment, state.m)
    pair = mbar @ moment @ mbar
    if name == "b-softmax":
        bracket = -2 * mbar @ PRIOR.mean - own + mbar @ mbar + rbar + 3 / tokens * pair
    else:
        linear = -2 * mbar @ PRIOR.mean - (1 - 2 / tokens) * own
        bracket = total * linear + total**2 * (mbar @ mbar + rbar + pair / tokens)
    uniform = (1 - total / tokens) ** 2 + (tokens - 1) * (total / tokens) ** 2
    expected = uniform + (1 - 1 / tokens) / tokens * bracket
    assert origin_expansion(state, task, attention).value == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("name", EVERY)
def test_eigenvalues_are_those_of_the_expansion(name: str) -> None:
    """Equal heads; second differences along a feature and along a residual direction."""
    heads = 3
    attention = Attention(EVERY[name], heads)
    task = Task(4, DiscretePrior([[1.5], [-1.5]], [0.5, 0.5]))
    given = {"b": 0.4, "v": -0.6}
    trained = {x: np.full(heads, given[x]) for x in attention.parameters}
    zero = State(np.zeros((heads, 1)), np.zeros((heads, heads)), **trained)
    base = origin_expansion(zero, task, attention).value
    found = origin_eigenvalues(zero, task, attention, 2.25)
    mean, difference = np.ones(heads) / np.sqrt(3), np.array([2.0, -1.0, -1.0]) / np.sqrt(6)
    for k, direction in enumerate((mean, difference)):
        moved = State(direction[:, None], zero.r, **trained)
        rho = State(zero.m, np.outer(direction, direction), **trained)
        for state, eigenvalue in ((moved, found[k]), (rho, found[k + 2])):
            value = 2 * (origin_expansion(state, task, attention).value - base)
            assert eigenvalue == pytest.approx(value, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("bias", [-800.0, 0.0, 800.0])
@pytest.mark.parametrize("name", ["softmax-1", "b-softmax", "erf"])
def test_extreme_biases_and_many_tokens(name: str, bias: float) -> None:
    attention, task = Attention(name, 2), Task(10**6, PRIOR)
    state = State(np.eye(2), np.eye(2), np.array([bias, -bias]))
    with np.errstate(all="raise", under="ignore"):
        found = origin_expansion(state, task, attention)
    assert np.isfinite(found.value)
    assert np.isfinite(found.m).all()
    if name == "b-softmax" and bias:
        # One head takes everything.
        one = int(np.argmax(state.b))
        alone = origin_expansion(
            State(state.m[[one]], state.r[[one]][:, [one]]), task, Attention("softmax", 1)
        )
        assert found.value == pytest.approx(alone.value, rel=1e-14)


def test_no_features_and_one_token() -> None:
    for name in ("softmax", "b-softmax", "softplus"):
        attention = Attention(name, 2)
        task = Task(1, PRIOR)
        state = State(np.ones((2, 2)), np.eye(2))
        assert abs(origin_expansion(state, task, attention).value) < 1e-15
        task = Task(3, GaussianPrior(np.zeros(0), np.zeros((0, 0))))
        found = origin_expansion(State(np.zeros((2, 0)), np.eye(2)), task, attention)
        assert found.m.shape == (2, 0)
        assert found.value > 2 / 3


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", ["softmax-v", "softmax-1", "linear", "erf"])
def test_nothing_drifts_at_rest(name: str, heads: int) -> None:
    zero = State(np.zeros((heads, 2)), np.zeros((heads, heads)))
    task, attention = Task(7, isotropic(2, 3.0)), Attention(name, heads)
    rest = at_rest(zero, task, attention)
    assert task.tokens * origin_attention(rest, task, attention) == pytest.approx(1, rel=1e-14)
    loss = population_loss(rest, task, attention, 1e-12)
    for gradient in (loss.b, loss.v):
        assert gradient is None or np.abs(gradient).max() < 1e-11


def test_weights_that_values_cannot_make_up_for() -> None:
    zero = State(np.zeros((1, 1)), np.zeros((1, 1)))
    tiny = Attention(Definition("tiny", sp.exp(chi) / 10**200, "none", trained=("v",)), 1)
    with pytest.raises(QuadratureError, match=r"^activation: .* expected 1e-50 to 1e\+50"):
        at_rest(zero, Task(5, isotropic(1, 4.0)), tiny)
    with pytest.raises(QuadratureError, match=r"^v: found a head value of 2e\+199"):
        population_loss(State([[0.5]], [[0.3]], None, [2e199]), Task(5, isotropic(1, 4.0)), tiny)
    vanishing = Attention(Definition("zero", chi**2 + b**2, "pooled", 1, ("b",)), 2)
    with pytest.raises(QuadratureError, match=r"^activation: "):
        hessian_spectrum(Task(5, isotropic(1, 4.0)), vanishing)
