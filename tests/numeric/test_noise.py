"""The noise matrix against plain Monte Carlo and closed forms; random initial states against their law.

Monte-Carlo comparisons: 72 entries of V with |z| < 5.5 (below 3e-6 together), 9 moments and 4
Kolmogorov-Smirnov tests of the initial state, each at 1e-6 (below 2e-5 together). Seeds are fixed.
"""

import time

import numpy as np
import pytest
from scipy import stats

from numeric.errors import InputError
from numeric.noise import initial_state, noise_matrix
from numeric.quadrature import standard_normal_nets
from numeric.task import (
    Attention,
    DiscretePrior,
    GaussianPrior,
    MixturePrior,
    Prior,
    State,
    Task,
    flipped_spike,
    isotropic,
)

ACTIVATIONS = ("softmax", "b-softmax")
KINDS = ("gaussian", "discrete", "mixture")


def make_prior(kind: str) -> Prior:
    if kind == "gaussian":
        return GaussianPrior([0.4, -0.2], [[2.0, 0.6], [0.6, 1.0]])
    if kind == "discrete":
        return DiscretePrior([[1.5, 0.0], [-0.5, 1.0], [0.0, -2.0]], [0.2, 0.5, 0.3])
    return MixturePrior(
        [0.4, 0.6], [[1.0, 0.0], [-0.5, 0.5]], [[[1.0, 0.0], [0.0, 0.0]], [[0.5, 0.2], [0.2, 0.3]]]
    )


def make_state(heads: int, activation: str, seed: int = 4) -> State:
    rng = np.random.default_rng(seed)
    root = 0.5 * rng.normal(size=(heads, heads))
    b = 0.7 * rng.normal(size=heads) if activation == "b-softmax" else None
    return State(0.6 * rng.normal(size=(heads, 2)), root @ root.T, b)


def sampled_noise(
    state: State, task: Task, activation: str, samples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Plain Monte Carlo: tokens in the feature space, explicit Jacobians of the weights."""
    rng = np.random.default_rng(seed)
    heads, features = state.m.shape
    tokens = task.tokens
    xi = rng.normal(size=(samples, tokens, features))
    weights, means, covariances = task.prior.components()
    choice = rng.choice(len(weights), size=samples, p=weights)
    for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        mine = np.flatnonzero(choice == k)
        xi[mine, 0] += rng.multivariate_normal(mean, covariance, len(mine), method="eigh")
    zeta = rng.multivariate_normal(np.zeros(heads), state.r, (samples, tokens), method="eigh")
    chi = np.einsum("hf,slf->shl", state.m, xi) + zeta.transpose(0, 2, 1)
    if activation == "softmax":
        w = np.exp(chi)
        p = w / w.sum(axis=2, keepdims=True)
        a = p.mean(axis=1)
        # d a_l / d chi_hk = p_hl (1{k=l} - p_hk) / H
        jacobian = (p[..., None] * np.eye(tokens) - p[:, :, :, None] * p[:, :, None, :]) / heads
    else:
        w = np.exp(chi + state.b[:, None])
        p = w / w.sum(axis=(1, 2), keepdims=True)
        a = p.sum(axis=1)
        # d a_l / d chi_hk = p_hk (1{k=l} - a_l)
        jacobian = p[..., None] * np.eye(tokens) - a[:, None, :, None] * p[:, :, None, :]
    residual = 2 * (a - np.eye(tokens)[0])
    c = np.einsum("sl,shlk->shk", residual, jacobian)
    products = np.einsum("shk,sgk->shg", c, c)
    return products.mean(axis=0), products.std(axis=0) / np.sqrt(samples)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_against_monte_carlo(activation: str, heads: int, kind: str) -> None:
    state = make_state(heads, activation)
    for tokens, samples in ((2, 60_000), (7, 20_000)):
        task = Task(tokens, make_prior(kind))
        value, error = noise_matrix(state, task, Attention(activation, heads), 4096)
        expected, spread = sampled_noise(state, task, activation, samples, 17 * heads + tokens)
        # Eight nets give a t-distributed error, so it must be the smaller part for z to be normal.
        assert (error < spread).all()
        assert (np.abs(value - expected) < 5.5 * np.hypot(error, spread)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_symmetric_and_positive_semidefinite(activation: str, kind: str) -> None:
    for tokens in (2, 30):
        attention = Attention(activation, 4)
        value, error = noise_matrix(
            make_state(4, activation), Task(tokens, make_prior(kind)), attention
        )
        assert np.abs(value - value.T).max() < 1e-15
        assert np.linalg.eigvalsh(value).min() > -1e-15
        assert value.shape == error.shape == (4, 4)
        assert (error >= 0).all()
        assert error.max() < 0.05 * value.max()


@pytest.mark.parametrize(("heads", "tokens"), [(1, 2), (3, 5), (4, 1000)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_closed_form_at_the_origin(activation: str, heads: int, tokens: int) -> None:
    """Nothing is random there: c_hl = 2 (1/L - 1{l=eps}) / (H L)."""
    state = State(np.zeros((heads, 1)), np.zeros((heads, heads)))
    value, error = noise_matrix(
        state, Task(tokens, isotropic(1, 2.0)), Attention(activation, heads)
    )
    expected = 4 / (heads * tokens) ** 2 * (1 - 1 / tokens)
    assert np.abs(value / expected - 1).max() < 1e-10
    assert error.max() < 1e-10 * expected


def test_closed_form_at_the_origin_with_biases() -> None:
    b = np.array([0.3, -1.0, 2.0])
    state = State(np.zeros((3, 1)), np.zeros((3, 3)), b)
    value, _ = noise_matrix(state, Task(4, isotropic(1, 2.0)), Attention("b-softmax", 3))
    share = np.exp(b) / np.exp(b).sum()
    assert np.abs(value - 4 / 16 * (1 - 1 / 4) * np.outer(share, share)).max() < 1e-12


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_error_is_honest_over_scrambles(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deviations over errors are Student t with 7 degrees of freedom: root mean square 1.18."""
    state, task = make_state(2, activation), Task(4, make_prior("gaussian"))
    attention = Attention(activation, 2)
    truth, remaining = noise_matrix(state, task, attention, 16_384)
    deviations = []
    for seed in range(1, 41):
        monkeypatch.setattr(
            "numeric.noise.standard_normal_nets",
            lambda dimension, nets, size, seed=seed: standard_normal_nets(
                dimension, nets, size, seed
            ),
        )
        value, error = noise_matrix(state, task, attention, 128)
        assert (remaining < 0.5 * error).all()
        deviations.append((value - truth) / error)
    spread = np.sqrt(np.mean(np.square(deviations), axis=0))
    assert (spread > 0.7).all()
    assert (spread < 1.9).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_permuted_heads(activation: str) -> None:
    state, task = make_state(3, activation), Task(5, make_prior("mixture"))
    order = [2, 0, 1]
    b = None if state.b is None else state.b[order]
    permuted = State(state.m[order], state.r[np.ix_(order, order)], b)
    attention = Attention(activation, 3)
    value, error = noise_matrix(state, task, attention, 2048)
    other, other_error = noise_matrix(permuted, task, attention, 2048)
    # Both use the same points, but for other heads: the results differ by their errors only.
    assert np.abs(other - value[np.ix_(order, order)]).max() < 0.03 * value.max()
    assert max(error.max(), other_error.max()) < 0.01 * value.max()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_token_has_no_noise(activation: str) -> None:
    state = make_state(3, activation)
    value, error = noise_matrix(state, Task(1, make_prior("gaussian")), Attention(activation, 3))
    assert np.abs(value).max() < 1e-30
    assert np.abs(error).max() < 1e-30


def test_no_features() -> None:
    state = State(np.zeros((2, 0)), [[0.4, 0.1], [0.1, 0.3]])
    value, _ = noise_matrix(state, Task(3, isotropic(0, 1.0)), Attention("softmax", 2))
    assert value.shape == (2, 2)
    assert np.linalg.eigvalsh(value).min() > 0


@pytest.mark.parametrize(("heads", "tokens"), [(2, 10_601), (1, 10**6), (100, 10**12)])
def test_too_many_scores_are_refused(heads: int, tokens: int) -> None:
    state = State(np.zeros((heads, 1)), np.zeros((heads, heads)))
    start = time.perf_counter()
    with pytest.raises(InputError, match=r"^tokens: ") as caught:
        noise_matrix(state, Task(tokens, isotropic(1, 1.0)), Attention("softmax", heads))
    assert time.perf_counter() - start < 2
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_largest_number_of_scores() -> None:
    state = State(np.zeros((1, 1)), np.zeros((1, 1)))
    value, _ = noise_matrix(state, Task(21_200, isotropic(1, 1.0)), Attention("softmax", 1))
    assert value[0, 0] == pytest.approx(4 / 21_200**2 * (1 - 1 / 21_200), rel=1e-9)


def test_batch_of_states_is_refused() -> None:
    batch = State(np.zeros((4, 2, 1)), np.zeros((4, 2, 2)))
    with pytest.raises(InputError, match=r"^state: "):
        noise_matrix(batch, Task(3, isotropic(1, 1.0)), Attention("softmax", 2))


def test_wrong_state_is_refused() -> None:
    state = State(np.zeros((2, 3)), np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"^m: "):
        noise_matrix(state, Task(3, isotropic(1, 1.0)), Attention("softmax", 2))


def test_initial_state_has_the_law_of_random_keys() -> None:
    """Keys N(0, eta^2 I / D): m normal, r Wishart with D - F degrees of freedom."""
    eta, dimension, heads, features, draws = 0.7, 30, 2, 2, 1500
    task, attention = Task(4, flipped_spike(np.eye(features))), Attention("b-softmax", heads)
    states = [initial_state(task, attention, eta, dimension, seed) for seed in range(draws)]
    m = np.array([state.m for state in states]) * np.sqrt(dimension) / eta
    r = np.array([state.r for state in states]) * dimension / eta**2
    freedom = dimension - features
    samples = {
        "m": (m[:, 0, 0], 0.0, 1.0),
        "m of heads": (m[:, 0, 0] * m[:, 1, 0], 0.0, 1.0),
        "m of features": (m[:, 0, 0] * m[:, 0, 1], 0.0, 1.0),
        "m^2": (m[:, 1, 1] ** 2, 1.0, 2.0),
        "r_11": (r[:, 0, 0], freedom, 2.0 * freedom),
        "r_22": (r[:, 1, 1], freedom, 2.0 * freedom),
        "r_12": (r[:, 0, 1], 0.0, freedom),
        "r_12^2": (r[:, 0, 1] ** 2, freedom, 2.0 * freedom**2 + 6 * freedom),
        "m and r": (m[:, 0, 0] * (r[:, 0, 0] - freedom), 0.0, 2.0 * freedom),
    }
    for name, (values, mean, variance) in samples.items():
        z = (values.mean() - mean) / np.sqrt(variance / draws)
        assert abs(z) < 4.9, name
    for h in range(2):
        assert stats.kstest(m[:, h, h], "norm").pvalue > 1e-6
        assert stats.kstest(r[:, h, h], stats.chi2(freedom).cdf).pvalue > 1e-6
    assert states[0].b is not None
    assert not states[0].b.any()


def test_initial_state_is_reproducible() -> None:
    task, attention = Task(4, isotropic(2, 1.0)), Attention("softmax", 3)
    one, same = (initial_state(task, attention, 0.1, 100, 5) for _ in range(2))
    assert one == same
    assert one != initial_state(task, attention, 0.1, 100, 6)


def test_smallest_dimension_of_an_initial_state() -> None:
    task, attention = Task(4, isotropic(2, 1.0)), Attention("softmax", 3)
    state = initial_state(task, attention, 1.0, 5, 0)
    assert np.linalg.eigvalsh(state.r).min() > 0
    with pytest.raises(InputError, match=r"^dimension: "):
        initial_state(task, attention, 1.0, 4, 0)
    one = initial_state(Task(4, isotropic(0, 1.0)), Attention("softmax", 1), 1.0, 1, 0)
    assert one.m.shape == (1, 0)
    assert one.r[0, 0] > 0


@pytest.mark.parametrize("eta", [0.0, -1.0, np.nan, "small"])
def test_bad_eta_is_refused(eta: object) -> None:
    with pytest.raises(InputError, match=r"^eta: "):
        initial_state(Task(4, isotropic(1, 1.0)), Attention("softmax", 1), eta, 10, 0)


@pytest.mark.parametrize("seed", [-1, 0.5, "one"])
def test_bad_seed_is_refused(seed: object) -> None:
    with pytest.raises(InputError, match=r"^seed: "):
        initial_state(Task(4, isotropic(1, 1.0)), Attention("softmax", 1), 1.0, 10, seed)
