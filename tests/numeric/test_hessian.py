"""Hessians at a state against differences of the gradient, closed forms, limits and symmetries."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from numeric.errors import InputError, QuadratureError
from numeric.hessian import factor, factor_hessian, loss_hessian
from numeric.loss import Loss, evaluate, population_loss
from numeric.prior import DiscretePrior, Prior, flipped_spike, isotropic
from numeric.task import Attention, State, Task
from tests.numeric.oracle import EXACT, LAYERS, gradient, random_prior, random_state

DIFFERENT = [name for name in EXACT if name != "softmax-v"]  # softmax with other values
SIMILAR = ("softplus", "linear")


def some_state(name: str, heads: int = 2, features: int = 2, seed: int = 5) -> State:
    state = random_state(np.random.default_rng(seed), LAYERS[name], heads, features, 0.5)
    return replace(state, r=state.r + 0.2 * np.eye(heads))


def some_prior(kind: str, features: int = 2) -> Prior:
    return random_prior(np.random.default_rng(6), features, kind)


def packed(loss: Loss) -> np.ndarray:
    return np.concatenate([loss.m.ravel(), loss.r.ravel()])


def differences(state: State, task: Task, attention: Attention) -> np.ndarray:
    """Rows: derivatives of (dE/dm, dE/dr) in m, and along symmetric changes of r."""
    heads, features = state.m.shape

    def at(**moved: Any) -> np.ndarray:
        return packed(evaluate(replace(state, **moved), task, attention, 11.0))

    in_m = gradient(lambda m: at(m=m), state.m, 0.03).reshape(heads * features, -1)
    in_r = gradient(lambda c: at(r=state.r + (c + c.T) / 2), np.zeros((heads, heads)), 0.03)
    return np.concatenate([in_m, in_r.reshape(heads * heads, -1)])


@pytest.mark.parametrize(("kind", "tokens"), [("gaussian", 4), ("discrete", 10**6)])
@pytest.mark.parametrize(
    "name",
    ["softmax", "softmax-1", "erf", *(pytest.param(x, marks=pytest.mark.slow) for x in SIMILAR)],
)
def test_against_differences_of_the_gradient(name: str, kind: str, tokens: int) -> None:
    state, attention = some_state(name), Attention(name, 2)
    task = Task(tokens, some_prior(kind))
    found = loss_hessian(state, task, attention, 1e-10)
    expected = differences(state, task, attention)
    size = np.abs(expected).max()
    assert np.abs(found.matrix - expected).max() < 1e-7 * size
    assert np.abs(found.matrix - found.matrix.T).max() < 1e-12 * size
    assert found.error < 1e-7 * max(1.0, size)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [2, 100, 10**6])
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", EXACT)
def test_more_heads_and_tokens_against_differences(name: str, heads: int, tokens: int) -> None:
    state, attention = some_state(name, heads, 2, heads), Attention(name, heads)
    task = Task(tokens, some_prior("mixture"))
    found = loss_hessian(state, task, attention, 1e-10)
    expected = differences(state, task, attention)
    assert np.abs(found.matrix - expected).max() < 1e-7 * np.abs(expected).max()


@pytest.mark.parametrize("tokens", [1, 5, 10**6])
@pytest.mark.parametrize("heads", [1, 3])
def test_linear_attention_in_closed_form(heads: int, tokens: int) -> None:
    """The loss is quadratic in m and linear in r: ``2 v_h v_k (L + M)`` and nothing else."""
    state, prior = some_state("linear", heads), some_prior("mixture")
    found = loss_hessian(state, Task(tokens, prior), Attention("linear", heads), 1e-8)
    moment = tokens * np.eye(2) + prior.second_moment
    expected = np.zeros((heads * (2 + heads),) * 2)
    expected[: 2 * heads, : 2 * heads] = np.kron(2 * np.outer(state.v, state.v), moment)
    assert np.abs(found.matrix - expected).max() < 1e-8 * np.abs(expected).max()


SPECIAL: dict[str, tuple[State, Prior]] = {
    "singular r": (State([[0.4, -0.2], [0.1, 0.5]], np.full((2, 2), 0.7)), some_prior("discrete")),
    "r = 0": (State([[0.4, -0.2], [0.1, 0.5]], np.zeros((2, 2))), some_prior("gaussian")),
    "no signal": (State([[0.4, -0.2], [0.1, 0.5]], 0.2 * np.eye(2)), isotropic(2, 0.0)),
    "identical heads": (State(np.full((2, 2), 0.4), np.full((2, 2), 0.3)), some_prior("gaussian")),
    "one feature": (State([[0.5], [1.5]], np.zeros((2, 2))), flipped_spike([[1.2]])),
    "no features": (State(np.zeros((2, 0)), np.array([[0.5, 0.4], [0.4, 0.6]])), isotropic(0, 1)),
    "unequal scales": (State([[0.02], [2.0]], np.zeros((2, 2))), isotropic(1, 1.0)),
    "origin": (State(np.zeros((2, 2)), np.zeros((2, 2))), some_prior("gaussian")),
}


@pytest.mark.parametrize("where", SPECIAL)
@pytest.mark.parametrize(
    "name",
    ["softmax", "softmax-1", "erf", *(pytest.param(x, marks=pytest.mark.slow) for x in SIMILAR)],
)
def test_singular_states_are_limits(name: str, where: str) -> None:
    """Polynomials through regular states ``r + e``, e = 0.04, 0.02, 0.01, 0.005, at e = 0."""
    state, prior = SPECIAL[where]
    trained = {"b": np.array([0.3, -0.2]), "v": np.array([0.4, 0.7])}
    state = replace(state, **{key: trained[key] for key in LAYERS[name].trained})
    task, attention = Task(3, prior), Attention(name, 2)
    found = loss_hessian(state, task, attention, 1e-9)
    steps = np.array([0.04, 0.02, 0.01, 0.005])
    near = [
        loss_hessian(replace(state, r=state.r + e * np.eye(2)), task, attention, 1e-9).matrix
        for e in steps
    ]
    factors = [np.prod([x / (x - e) for x in steps if x != e]) for e in steps]
    expected = sum(f * x for f, x in zip(factors, near, strict=True))
    size = max(1.0, np.abs(expected).max())
    assert np.abs(found.matrix - expected).max() < 3e-5 * size
    assert found.error < 1e-7 * size
    assert np.abs(found.matrix - found.matrix.T).max() < 1e-12 * size


def factored(state: State, rho: np.ndarray, task: Task, attention: Attention) -> np.ndarray:
    """Differences of the gradient in (m, rho), heads outermost."""
    features = state.m.shape[1]

    def at(x: np.ndarray) -> np.ndarray:
        overlap = x[:, features:] @ x[:, features:].T
        moved = replace(state, m=x[:, :features], r=(overlap + overlap.T) / 2)
        loss = evaluate(moved, task, attention, 11.0, 600_000)
        return np.concatenate([loss.m, 2 * loss.r @ x[:, features:]], axis=1)

    found = gradient(at, np.concatenate([state.m, rho], axis=1), 0.03)
    return found.reshape(-1, found.shape[0] * found.shape[1])


@pytest.mark.parametrize(
    ("name", "rank"),
    [(name, rank) for name in ("softmax", "softmax-1", "b-softmax", "erf") for rank in (0, 1)]
    + [("softmax", 2), pytest.param("b-softmax", 2, marks=pytest.mark.slow)],
)
def test_factors_of_the_overlap_against_differences(name: str, rank: int) -> None:
    """Smooth coordinates at every rank, the origin's included; the others see 2 dE/dr."""
    state, attention = some_state(name, 2, 1), Attention(name, 2)
    rho = 0.4 * np.random.default_rng(rank).normal(size=(2, rank))
    state, task = replace(state, r=rho @ rho.T), Task(4, some_prior("discrete", 1))
    rho = factor(state.r)
    assert rho.shape == (2, rank)
    found = factor_hessian(state, task, attention)
    expected = factored(state, rho, task, attention)
    size = max(1.0, np.abs(expected).max())
    deviation = np.linalg.norm(found.matrix - expected, 2)
    assert deviation < 1e-7 * size
    assert deviation <= found.error + 1e-9 * size
    assert np.abs(found.matrix - found.matrix.T).max() < 1e-12 * size
    loss = population_loss(state, task, attention, 1e-10)
    assert np.linalg.norm(found.bulk - 2 * loss.r, 2) <= found.bulk_error + 1e-9 * size


@pytest.mark.parametrize("r", [np.zeros((3, 3)), np.full((3, 3), 0.7), np.diag([1e-8, 0.0, 1e8])])
def test_factors(r: np.ndarray) -> None:
    rho = factor(r)
    assert rho @ rho.T == pytest.approx(r, rel=1e-12, abs=1e-15 * np.abs(r).max())
    assert rho.shape == (3, {0.0: 0, 0.7: 1}.get(r[0, 0], 2 if r[0, 0] > 1e-3 else 1))


@pytest.mark.parametrize("name", EXACT)
def test_heads_may_change_places(name: str) -> None:
    state, task, order = some_state(name, 3), Task(3, some_prior("gaussian")), np.array([2, 0, 1])
    trained = {key: getattr(state, key)[order] for key in LAYERS[name].trained}
    moved = State(state.m[order], state.r[np.ix_(order, order)], **trained)
    one, two = (loss_hessian(x, task, Attention(name, 3), 1e-9).matrix for x in (state, moved))
    pairs = 6 + np.arange(9).reshape(3, 3)[np.ix_(order, order)].ravel()
    places = np.concatenate([np.arange(6).reshape(3, 2)[order].ravel(), pairs])
    assert np.abs(two - one[np.ix_(places, places)]).max() < 1e-8 * max(1, np.abs(one).max())


@pytest.mark.parametrize("name", EXACT)
def test_theta_and_m_may_change_sign(name: str) -> None:
    state, prior = some_state(name), DiscretePrior([[1.5, 0.0], [-0.5, 1.0]], [0.4, 0.6])
    flipped = DiscretePrior(-prior.support, prior.probabilities)
    attention = Attention(name, 2)
    one = loss_hessian(state, Task(3, prior), attention).matrix
    two = loss_hessian(replace(state, m=-state.m), Task(3, flipped), attention).matrix
    sign = np.concatenate([-np.ones(4), np.ones(4)])
    assert two == pytest.approx(sign[:, None] * one * sign, abs=1e-10 * max(1, np.abs(one).max()))


@pytest.mark.parametrize("name", ["softmax", "softmax-v", "softplus"])
def test_one_certain_token_is_flat(name: str) -> None:
    found = loss_hessian(some_state(name), Task(1, some_prior("gaussian")), Attention(name, 2))
    assert not found.matrix.any()
    assert found.error < 1e-8


@pytest.mark.parametrize("name", EXACT)
def test_reported_error_covers_the_true_one(name: str) -> None:
    rng = np.random.default_rng(9)
    for case in range(4):
        state = random_state(rng, LAYERS[name], 2, 1, 10 ** rng.uniform(-2, 0.3))
        task = Task(int(rng.choice([2, 10, 10**6])), random_prior(rng, 1, "discrete"))
        loose, tight = (loss_hessian(state, task, Attention(name, 2), tol) for tol in (1e-3, 1e-8))
        apart = float(np.linalg.norm(loose.matrix - tight.matrix, 2))
        assert apart <= loose.error + 4 * tight.error, case


def test_what_is_refused() -> None:
    state, task = State(np.zeros((2, 1)), np.eye(2)), Task(3, isotropic(1, 1.0))
    with pytest.raises(InputError, match=r"^attention: found .b-softmax., expected weights"):
        loss_hessian(state, task, Attention("b-softmax", 2))
    batch = State(np.zeros((3, 2, 1)), np.zeros((3, 2, 2)))
    for function in (loss_hessian, factor_hessian):
        with pytest.raises(InputError, match=r"^state: found a batch of shape \(3,\)"):
            function(batch, task, Attention("softmax", 2))
        with pytest.raises(InputError, match=r"^m: "):
            function(state, task, Attention("softmax", 3))
    for tol in (0.0, -1.0, np.nan, "fine"):
        with pytest.raises(InputError, match=r"^tol: "):
            loss_hessian(state, task, Attention("softmax", 2), tol)  # type: ignore[arg-type]
    far = State(np.zeros((2, 1)), 1e10 * np.array([[1.0, 0.9], [0.9, 1.0]]))
    with pytest.raises(QuadratureError, match="scores"):
        loss_hessian(far, task, Attention("softmax", 2))
