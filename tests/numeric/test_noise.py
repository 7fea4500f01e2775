"""The noise matrix against Monte Carlo, plain quadrature and closed forms.

Monte-Carlo comparisons: 276 different entries of V with |z| < 6 (below 1e-6 together). Seeds are fixed.
"""

import time
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
from scipy.special import erf, expit
from sympy import Rational

from derive.attention import Attention as Definition
from derive.symbols import chi
from numeric.errors import InputError
from numeric.noise import noise_matrix
from numeric.prior import DiscretePrior, GaussianPrior, MixturePrior, Prior, isotropic
from numeric.quadrature import standard_normal_nets
from numeric.task import Attention, State, Task

KINDS = ("gaussian", "discrete", "mixture")
# Weight and its slope at a score to which the bias has been added, what normalizes, background.
BY_HAND: dict[str, tuple[Callable, Callable, str, float]] = {
    "softmax": (np.exp, np.exp, "per-head", 0.0),
    "softmax-v": (np.exp, np.exp, "per-head", 0.0),
    "softmax-1": (np.exp, np.exp, "per-head", 1.0),
    "b-softmax": (np.exp, np.exp, "pooled", 0.0),
    "softplus": (lambda x: np.logaddexp(0, x), expit, "per-head", 0.0),
    "linear": (lambda x: 1 + x, np.ones_like, "none", 0.0),
    "erf": (lambda x: 1 + erf(x), lambda x: 2 / np.sqrt(np.pi) * np.exp(-(x**2)), "none", 0.0),
    "quadratic": (lambda x: 1 + x**2, lambda x: 2 * x, "pooled", 0.5),
}
CASES = [
    *(("softmax", heads) for heads in (1, 2, 3)),
    *(("b-softmax", heads) for heads in (1, 2, 3, 4)),
    ("softmax-v", 2),
    ("softmax-1", 1),
    ("softmax-1", 2),
    ("softplus", 1),
    ("linear", 1),
    ("linear", 2),
    ("erf", 1),
    ("quadratic", 2),
]
ONE_RACE = [("softmax", 1), ("softmax-1", 1), ("softplus", 1), ("b-softmax", 1), ("b-softmax", 3)]


def make_prior(kind: str) -> Prior:
    if kind == "gaussian":
        return GaussianPrior([0.4, -0.2], [[2.0, 0.6], [0.6, 1.0]])
    if kind == "discrete":
        return DiscretePrior([[1.5, 0.0], [-0.5, 1.0], [0.0, -2.0]], [0.2, 0.5, 0.3])
    return MixturePrior(
        [0.4, 0.6], [[1.0, 0.0], [-0.5, 0.5]], [[[1.0, 0.0], [0.0, 0.0]], [[0.5, 0.2], [0.2, 0.3]]]
    )


def make_layer(activation: str, heads: int) -> Attention:
    if activation == "quadratic":
        return Attention(Definition(activation, 1 + chi**2, "pooled", Rational(1, 2)), heads)
    return Attention(activation, heads)


def make_state(heads: int, activation: str, seed: int = 4, scale: float = 1.0) -> State:
    rng = np.random.default_rng(seed)
    root = 0.5 * scale * rng.normal(size=(heads, heads))
    m = 0.6 * scale * rng.normal(size=(heads, 2))
    parameters = make_layer(activation, heads).parameters
    b = 0.7 * rng.normal(size=heads) if "b" in parameters else None
    v = rng.uniform(0.3, 0.9, heads) / heads if "v" in parameters else None
    return State(m, root @ root.T, b, v)


def sample_noise(chi: np.ndarray, state: State, activation: str) -> np.ndarray:
    """``sum_l c_hl c_h'l`` of samples with scores (S, H, L), by explicit Jacobians of the weights."""
    weight, slope, normalization, background = BY_HAND[activation]
    _, heads, tokens = chi.shape
    x = chi if state.b is None else chi + state.b[:, None]
    default = 1 / heads if activation in ("softmax", "softplus") else 1.0
    v = np.full(heads, default) if state.v is None else state.v
    w, dw, same = weight(x), slope(x), np.eye(tokens)
    axes = {"per-head": (2,), "pooled": (1, 2), "none": ()}[normalization]
    z = background + w.sum(axis=axes, keepdims=True) if axes else np.ones_like(w)
    a = (v[:, None] * w / z).sum(axis=1)
    total = w.sum(axis=1, keepdims=True) if normalization == "pooled" else w
    # d a_l / d chi_hk, axes (sample, head, l, k)
    jacobian = (v[:, None] * dw / z)[:, :, None, :] * same
    if axes:
        jacobian = jacobian - (total / z)[..., None] * (v[:, None] * dw / z)[:, :, None, :]
    c = np.einsum("sl,shlk->shk", 2 * (a - same[0]), jacobian)
    return np.einsum("shk,sgk->shg", c, c)


def sampled_noise(
    state: State, task: Task, activation: str, samples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Plain Monte Carlo, tokens drawn in the feature space."""
    rng = np.random.default_rng(seed)
    heads, features = state.m.shape
    xi = rng.normal(size=(samples, task.tokens, features))
    weights, means, covariances = task.prior.components()
    choice = rng.choice(len(weights), size=samples, p=weights)
    for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        mine = np.flatnonzero(choice == k)
        xi[mine, 0] += rng.multivariate_normal(mean, covariance, len(mine), method="eigh")
    size = (samples, task.tokens)
    zeta = rng.multivariate_normal(np.zeros(heads), state.r, size, method="eigh")
    chi = np.einsum("hf,slf->shl", state.m, xi) + zeta.transpose(0, 2, 1)
    products = sample_noise(chi, state, activation)
    return products.mean(axis=0), products.std(axis=0) / np.sqrt(samples)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("activation", "heads"), CASES)
def test_against_monte_carlo(activation: str, heads: int, kind: str) -> None:
    state = make_state(heads, activation, scale=0.8)
    for tokens, samples in ((2, 60_000), (7, 20_000)):
        task = Task(tokens, make_prior(kind))
        value, error = noise_matrix(state, task, make_layer(activation, heads), 4096)
        expected, spread = sampled_noise(state, task, activation, samples, 17 * heads + tokens)
        # Eight nets give a t-distributed error, so it must be the smaller part for z to be normal.
        assert error.max() < spread.max()
        assert (np.abs(value - expected) < 6 * np.hypot(error, spread)).all()


@pytest.mark.parametrize(("activation", "v"), [("softmax", 1.0), ("softmax-1", 0.7)])
def test_two_tokens_to_many_digits(activation: str, v: float) -> None:
    """One head, no features: two scores N(0, r), integrated in 15 digits."""
    b, background = (0.4, 1) if activation == "softmax-1" else (0.0, 0)
    r = 0.8

    def integrand(x: mp.mpf, y: mp.mpf) -> mp.mpf:
        w, u = mp.exp(b + x), mp.exp(b + y)
        z = background + w + u
        p, q = w / z, u / z
        # The loss (1 - v p)^2 + (v q)^2 in log w and in log u.
        in_w = -2 * (1 - v * p) * v * p * (1 - p) - 2 * v**2 * q**2 * p
        in_u = 2 * (1 - v * p) * v * p * q + 2 * v**2 * q**2 * (1 - q)
        return (in_w**2 + in_u**2) * mp.exp(-(x * x + y * y) / (2 * r)) / (2 * mp.pi * r)

    with mp.workdps(15):
        exact = float(mp.quad(integrand, [-8, 8], [-8, 8]))
    parameters = {"b": [b], "v": [v]} if activation == "softmax-1" else {}
    state = State(np.zeros((1, 0)), [[r]], **parameters)
    value, error = noise_matrix(state, Task(2, isotropic(0, 1.0)), Attention(activation, 1))
    assert abs(value[0, 0] - exact) < error[0, 0]
    assert error[0, 0] < 1e-8 * exact


@pytest.mark.parametrize("activation", ["softmax", "softmax-1", "softplus", "erf"])
@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_few_tokens_by_equispaced_sums(tokens: int, activation: str) -> None:
    """One head: a product of trapezoidal rules over all scores, exponentially accurate."""
    state, prior = make_state(1, activation), make_prior("mixture")
    z = np.arange(-9, 9.1, 0.2)
    grid = np.stack(np.meshgrid(*[z] * tokens, indexing="ij")).reshape(tokens, -1)
    density = np.exp(-(grid**2).sum(axis=0) / 2) * (0.2 / np.sqrt(2 * np.pi)) ** tokens
    null = state.m @ state.m.T + state.r
    exact = 0.0
    for weight, mean, covariance in zip(*prior.components(), strict=True):
        scores = np.sqrt(null[0, 0]) * grid
        deviation = np.sqrt(null + state.m @ covariance @ state.m.T)[0, 0]
        scores[0] = (state.m @ mean)[0] + deviation * grid[0]
        values = sample_noise(scores.T[:, None], state, activation)
        exact += weight * float(density @ values[:, 0, 0])
    value, error = noise_matrix(state, Task(tokens, prior), Attention(activation, 1))
    assert abs(value[0, 0] - exact) <= error[0, 0]
    assert error[0, 0] <= 5e-7 * exact


def test_linear_attention_in_closed_form() -> None:
    """``c_l = 2 v (v (1 + chi_l) - 1{l=eps})``: second moments of a Gaussian."""
    state, prior, v = State([[0.5, -1.0]], [[0.3]], v=[0.7]), make_prior("mixture"), 0.7
    null = 1.25 + 0.3
    expected = 9 * v**2 * (1 + null)
    for weight, mean, covariance in zip(*prior.components(), strict=True):
        centre, variance = state.m @ mean, null + state.m @ covariance @ state.m.T
        expected += weight * ((v * (1 + centre[0]) - 1) ** 2 + v**2 * variance[0, 0])
    value, error = noise_matrix(state, Task(10, prior), Attention("linear", 1))
    assert value[0, 0] == pytest.approx(4 * v**2 * expected, rel=1e-9)
    assert abs(value[0, 0] - 4 * v**2 * expected) <= error[0, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("activation", "heads"), [("softmax", 4), ("b-softmax", 4), ("erf", 3)])
def test_symmetric_and_positive_semidefinite(activation: str, heads: int, kind: str) -> None:
    for tokens in (2, 30):
        attention = Attention(activation, heads)
        state = make_state(heads, activation, scale=0.7)
        value, error = noise_matrix(state, Task(tokens, make_prior(kind)), attention)
        assert np.abs(value - value.T).max() < 1e-15 * value.max()
        assert np.linalg.eigvalsh(value).min() > -1e-15
        assert value.shape == error.shape == (heads, heads)
        assert (error >= 0).all()
        assert error.max() < 0.03 * value.max()


@pytest.mark.parametrize(("heads", "tokens"), [(1, 2), (3, 5), (4, 1000), (1, 10**6)])
@pytest.mark.parametrize("activation", ["softmax", "b-softmax", "softplus"])
def test_closed_form_at_the_origin(activation: str, heads: int, tokens: int) -> None:
    """Nothing is random there: c_hl = 2 (1/L - 1{l=eps}) w'/w / (H L)."""
    state = State(np.zeros((heads, 1)), np.zeros((heads, heads)))
    task = Task(tokens, isotropic(1, 2.0))
    value, error = noise_matrix(state, task, Attention(activation, heads))
    slope = 0.5 / np.log(2) if activation == "softplus" else 1.0
    expected = 4 * (slope / (heads * tokens)) ** 2 * (1 - 1 / tokens)
    assert np.abs(value / expected - 1).max() < 1e-9
    assert error.max() < 1e-9 * expected


@pytest.mark.parametrize("tokens", [1, 2, 10**6])
def test_closed_form_at_the_origin_with_parameters(tokens: int) -> None:
    b, task = np.array([0.3, -1.0, 2.0]), Task(tokens, isotropic(1, 2.0))
    origin = np.zeros((3, 1)), np.zeros((3, 3))
    value, _ = noise_matrix(State(*origin, b), task, Attention("b-softmax", 3))
    share = np.exp(b) / np.exp(b).sum()
    expected = 4 / tokens**2 * (1 - 1 / tokens) * np.outer(share, share)
    np.testing.assert_allclose(value, expected, rtol=1e-9, atol=0)
    state = State([[0.0]], [[0.0]], [0.3], [0.8])
    if tokens < 100:
        exact = sample_noise(np.zeros((1, 1, tokens)), state, "softmax-1")[0]
        value, _ = noise_matrix(state, task, Attention("softmax-1", 1))
        np.testing.assert_allclose(value, exact, rtol=1e-9)


@pytest.mark.parametrize(("activation", "heads"), ONE_RACE)
def test_many_tokens_cost_no_more(activation: str, heads: int) -> None:
    """``L^2 V`` converges, at a cost that does not grow."""
    state, attention = make_state(heads, activation, scale=0.3), Attention(activation, heads)
    seconds, values = [], []
    for tokens in (10, 10**5, 10**6):
        task = Task(tokens, make_prior("gaussian"))
        noise_matrix(state, task, attention)
        start = time.perf_counter()
        value, error = noise_matrix(state, task, attention)
        seconds.append(time.perf_counter() - start)
        values.append(value * tokens**2)
        assert error.max() < 1e-3 * value.max()
    np.testing.assert_allclose(values[2], values[1], rtol=2e-3)
    assert seconds[2] < 20 * seconds[0] + 0.1


@pytest.mark.parametrize("tokens", [2, 6, 10**6])
def test_identical_heads_share_the_noise_of_one(tokens: int) -> None:
    """Pooled copies of one head, at different biases; r is singular."""
    one, b, task = (
        make_state(1, "b-softmax"),
        np.array([0.5, -0.3, 1.0]),
        Task(tokens, make_prior("mixture")),
    )
    copies = State(np.repeat(one.m, 3, axis=0), np.full((3, 3), one.r[0, 0]), b)
    single, _ = noise_matrix(State(one.m, one.r, [0.0]), task, Attention("b-softmax", 1))
    value, _ = noise_matrix(copies, task, Attention("b-softmax", 3))
    share = np.exp(b) / np.exp(b).sum()
    np.testing.assert_allclose(value, single[0, 0] * np.outer(share, share), rtol=1e-7)


def test_one_head_alone_is_softmax() -> None:
    task = Task(5, make_prior("gaussian"))
    m, r = make_state(1, "softmax").m, [[0.2]]
    softmax, _ = noise_matrix(State(m, r), task, Attention("softmax", 1))
    for name, parameters in (
        ("b-softmax", {"b": [0.9]}),
        ("softmax-v", {"v": [1.0]}),
    ):
        other, _ = noise_matrix(State(m, r, **parameters), task, Attention(name, 1))
        np.testing.assert_allclose(other, softmax, rtol=1e-8)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("activation", "heads"), [*ONE_RACE, ("b-softmax", 2), ("erf", 1)])
def test_error_covers_that_of_a_coarse_rule(
    activation: str, heads: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(seed)
    scale, tokens = np.exp(rng.uniform(-3, 0.3)), int(np.exp(rng.uniform(0.7, 7)))
    state, attention = make_state(heads, activation, seed, scale), Attention(activation, heads)
    task = Task(tokens, make_prior(KINDS[seed % 3]))
    monkeypatch.setattr("numeric.noise.MOST_POINTS", 300_000)
    monkeypatch.setattr("numeric.noise.DIGITS", (11.0, 8.0))
    truth, remaining = noise_matrix(state, task, attention)
    for digits in (3.0, 4.0, 6.0):
        monkeypatch.setattr("numeric.noise.DIGITS", (digits,))
        value, error = noise_matrix(state, task, attention)
        assert (np.abs(value - truth) <= error + remaining).all()


@pytest.mark.parametrize("activation", ["softmax", "b-softmax"])
def test_error_is_honest_over_scrambles(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deviations over errors are Student t with 7 degrees of freedom: root mean square 1.18."""
    state, task = make_state(2, activation), Task(4, make_prior("gaussian"))
    attention = Attention(activation, 2)
    truth, remaining = noise_matrix(state, task, attention, 16_384)
    monkeypatch.setattr("numeric.noise.DIGITS", ())
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


@pytest.mark.parametrize("tokens", [5, 300])
def test_nets_agree_with_the_product_rule(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where both can be afforded; errors of nets of heavy-tailed values are rough."""
    state, task = make_state(3, "b-softmax", scale=0.7), Task(tokens, make_prior("mixture"))
    truth, _ = noise_matrix(state, task, Attention("b-softmax", 3))
    monkeypatch.setattr("numeric.noise.DIGITS", ())
    value, error = noise_matrix(state, task, Attention("b-softmax", 3), 4096)
    assert (np.abs(value - truth) < 6 * error).all()
    assert error.max() < 0.01 * truth.max()


@pytest.mark.parametrize("activation", ["softmax", "b-softmax"])
def test_permuted_heads(activation: str) -> None:
    state, task = make_state(3, activation), Task(5, make_prior("mixture"))
    order = [2, 0, 1]
    b = None if state.b is None else state.b[order]
    permuted = State(state.m[order], state.r[np.ix_(order, order)], b)
    attention = Attention(activation, 3)
    value, error = noise_matrix(state, task, attention, 2048)
    other, other_error = noise_matrix(permuted, task, attention, 2048)
    # Nets put the same points on other heads: the results differ by their errors only.
    assert np.abs(other - value[np.ix_(order, order)]).max() < 0.03 * value.max()
    assert max(error.max(), other_error.max()) < 0.01 * value.max()


@pytest.mark.parametrize(
    ("activation", "heads"), [("softmax", 3), ("b-softmax", 3), ("softmax-v", 1)]
)
def test_one_token_has_no_noise(activation: str, heads: int) -> None:
    state, task = make_state(heads, activation), Task(1, make_prior("gaussian"))
    value, error = noise_matrix(state, task, Attention(activation, heads))
    assert not value.any()
    assert not error.any()


def test_no_features() -> None:
    state = State(np.zeros((2, 0)), [[0.4, 0.1], [0.1, 0.3]])
    value, _ = noise_matrix(state, Task(3, isotropic(0, 1.0)), Attention("softmax", 2))
    assert value.shape == (2, 2)
    assert np.linalg.eigvalsh(value).min() > 0


@pytest.mark.parametrize(("heads", "tokens"), [(2, 10_601), (2, 10**6), (100, 10**12)])
def test_too_many_scores_are_refused(heads: int, tokens: int) -> None:
    state = State(np.zeros((heads, 1)), np.zeros((heads, heads)))
    start = time.perf_counter()
    with pytest.raises(InputError, match=r"^tokens: ") as caught:
        noise_matrix(state, Task(tokens, isotropic(1, 1.0)), Attention("softmax", heads))
    assert time.perf_counter() - start < 2
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_largest_number_of_scores() -> None:
    state = State(np.zeros((2, 1)), np.zeros((2, 2)))
    value, _ = noise_matrix(state, Task(10_600, isotropic(1, 1.0)), Attention("softmax", 2))
    np.testing.assert_allclose(value, (2 / 21_200) ** 2 * (1 - 1 / 10_600), rtol=1e-9)


def test_batch_of_states_is_refused() -> None:
    batch = State(np.zeros((4, 2, 1)), np.zeros((4, 2, 2)))
    with pytest.raises(InputError, match=r"^state: "):
        noise_matrix(batch, Task(3, isotropic(1, 1.0)), Attention("softmax", 2))


def test_wrong_state_is_refused() -> None:
    state = State(np.zeros((2, 3)), np.zeros((2, 2)))
    with pytest.raises(InputError, match=r"^m: "):
        noise_matrix(state, Task(3, isotropic(1, 1.0)), Attention("softmax", 2))
