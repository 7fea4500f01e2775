"""The exact loss against mpmath, Monte Carlo, finite differences and symmetries.

Monte-Carlo comparisons: 24 with |z| < 5, a false alarm with probability below 2e-5 (seeds are fixed).
"""

from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest

from numeric.checks import monte_carlo_loss, origin_loss
from numeric.errors import InputError, QuadratureError
from numeric.loss import evaluate, population_loss
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


def random_state(
    rng: np.random.Generator, heads: int, features: int, activation: str, scale: float = 0.7
) -> State:
    root = scale * rng.normal(size=(heads, heads)) / np.sqrt(heads)
    b = rng.normal(size=heads) if activation == "b-softmax" else None
    return State(scale * rng.normal(size=(heads, features)), root @ root.T, b)


def random_prior(rng: np.random.Generator, features: int, kind: str) -> Prior:
    if kind == "gaussian":
        root = rng.normal(size=(features, features))
        return GaussianPrior(rng.normal(size=features), root @ root.T)
    if kind == "discrete":
        return DiscretePrior(1.5 * rng.normal(size=(3, features)), [0.2, 0.5, 0.3])
    return MixturePrior(
        [0.4, 0.6],
        rng.normal(size=(2, features)),
        np.array([np.eye(features), np.diag(rng.uniform(0, 3, features))]),
    )


def gap_loss(q: float, laws: list[tuple[float, float, float]]) -> float:
    """``2 E (1 - p)^2`` for H = 1, L = 2, p = 1 / (1 + exp(-gap)), at 25 digits.

    The gap between the two tokens' scores is Gaussian: its variance is the sum of theirs.
    """
    with mp.workdps(25):
        total = mp.mpf(0)
        for weight, mean, variance in laws:
            width = mp.sqrt(variance + q)

            def integrand(z: mp.mpf, mean: float = mean, width: mp.mpf = width) -> mp.mpf:
                return 2 / (1 + mp.exp(mean + width * z)) ** 2 * mp.npdf(z)

            total += weight * mp.quad(integrand, mp.linspace(-12, 12, 13))
        return float(total)


def nested_loss(q: float, mean: float, variance: float) -> float:
    """The same by nested integrals over both scores, without the gap's law."""
    with mp.workdps(25):
        outer, inner = mp.sqrt(variance), mp.sqrt(q)

        def given(y: mp.mpf) -> mp.mpf:
            def integrand(z: mp.mpf) -> mp.mpf:
                p = 1 / (1 + mp.exp(inner * z - mean - outer * y))
                return ((1 - p) ** 2 + (1 - p) ** 2) * mp.npdf(z)

            return mp.quad(integrand, mp.linspace(-12, 12, 9)) * mp.npdf(y)

        return float(mp.quad(given, mp.linspace(-12, 12, 9)))


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_head_two_tokens_against_nested_integrals(activation: str) -> None:
    state, task = State([[0.8]], [[0.3]]), Task(2, GaussianPrior([0.5], [[1.5]]))
    loss = population_loss(state, task, Attention(activation, 1), 1e-13)
    assert abs(loss.value - nested_loss(0.94, 0.4, 0.94 + 0.64 * 1.5)) < 1e-12


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("m", "r", "prior", "laws"),
    [
        (0.8, 0.3, GaussianPrior([0.5], [[1.5]]), [(1.0, 0.4, 0.94 + 0.64 * 1.5)]),
        (1.2, 0.1, flipped_spike([[1.5]]), [(0.5, 1.8, 1.54), (0.5, -1.8, 1.54)]),
        (
            -0.5,
            0.0,
            DiscretePrior([[2.0], [0.0]], [0.3, 0.7]),
            [(0.3, -1.0, 0.25), (0.7, 0.0, 0.25)],
        ),
    ],
)
def test_one_head_two_tokens_against_mpmath(
    activation: str, m: float, r: float, prior: Prior, laws: list[tuple[float, float, float]]
) -> None:
    loss = population_loss(State([[m]], [[r]]), Task(2, prior), Attention(activation, 1), 1e-13)
    assert abs(loss.value - gap_loss(m * m + r, laws)) < 1e-12
    assert loss.error < 1e-11


@pytest.mark.parametrize("case", range(24))
def test_against_monte_carlo(case: int) -> None:
    rng = np.random.default_rng(1000 + case)
    activation = ACTIVATIONS[case % 2]
    heads, features = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    tokens = (2, 5, 50, 1000)[case % 4 if case < 20 else 0]
    prior = random_prior(rng, features, ("gaussian", "discrete", "mixture")[case % 3])
    state, task = random_state(rng, heads, features, activation), Task(tokens, prior)
    attention = Attention(activation, heads)
    loss = population_loss(state, task, attention, 1e-6)
    samples = 1_000_000 if tokens <= 50 else 100_000
    value, error = monte_carlo_loss(state, task, attention, samples // max(1, tokens // 5), case)
    assert abs(loss.value - value) / np.hypot(error, loss.error) < 5


@pytest.mark.slow
@pytest.mark.parametrize("case", range(24))
def test_against_a_million_monte_carlo_samples(case: int) -> None:
    rng = np.random.default_rng(2000 + case)
    activation = ACTIVATIONS[case % 2]
    heads, features = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    tokens = (2, 5, 50, 1000)[(case // 2) % 4]
    prior = random_prior(rng, features, ("gaussian", "discrete", "mixture")[case % 3])
    state, task = random_state(rng, heads, features, activation), Task(tokens, prior)
    attention = Attention(activation, heads)
    loss = population_loss(state, task, attention, 1e-7)
    value, error = monte_carlo_loss(state, task, attention, 1_000_000, case)
    assert abs(loss.value - value) / np.hypot(error, loss.error) < 5


def differentiate(function, x: np.ndarray) -> np.ndarray:
    """Richardson-extrapolated central differences: truncation far below 1e-9."""
    result = np.empty(x.size)
    for i in range(x.size):

        def at(h: float, i: int = i) -> float:
            step = np.zeros(x.size)
            step[i] = h
            return function(x + step.reshape(x.shape))

        h = 0.04
        slopes = [(at(h / 2**k) - at(-h / 2**k)) / (2 * h / 2**k) for k in range(4)]
        for order in range(1, 4):
            slopes = [(4**order * b - a) / (4**order - 1) for a, b in pairwise(slopes)]
        result[i] = slopes[0]
    return result.reshape(x.shape)


@pytest.mark.parametrize("kind", ["gaussian", "discrete", "mixture"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradient_against_finite_differences(activation: str, kind: str) -> None:
    rng = np.random.default_rng(5)
    heads, features = 2, 2
    task, attention = Task(4, random_prior(rng, features, kind)), Attention(activation, heads)
    state = random_state(rng, heads, features, activation, 0.5)
    state = State(state.m, state.r + 0.2 * np.eye(heads), state.b).check(attention, features)
    digits = 13.0
    loss = evaluate(state, task, attention, digits, 1_500_000)

    def value(m: np.ndarray, r: np.ndarray, b: np.ndarray | None) -> float:
        return float(evaluate(State(m, r, b), task, attention, digits, 1_500_000).value)

    scale = max(np.abs(loss.m).max(), np.abs(loss.r).max())
    in_m = differentiate(lambda m: value(m, state.r, state.b), state.m)
    assert np.abs(in_m - loss.m).max() < 1e-8 * scale
    # Move r along symmetric directions r + x (e_i e_j^T + e_j e_i^T) / 2: dE/dx = G_ij.
    i, j = np.triu_indices(heads)

    def along(x: np.ndarray) -> float:
        change = np.zeros((heads, heads))
        change[i, j] += x / 2
        change[j, i] += x / 2
        return value(state.m, state.r + change, state.b)

    in_r = differentiate(along, np.zeros(len(i)))
    assert np.abs(in_r - loss.r[i, j]).max() < 1e-8 * scale
    assert np.abs(loss.r - loss.r.T).max() < 1e-14
    if state.b is not None:
        in_b = differentiate(lambda b: value(state.m, state.r, b), state.b)
        assert loss.b is not None
        assert np.abs(in_b - loss.b).max() < 1e-8 * scale


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_symmetries(activation: str) -> None:
    rng = np.random.default_rng(11)
    attention, features = Attention(activation, 3), 2
    prior = DiscretePrior(rng.normal(size=(3, features)), [0.2, 0.5, 0.3])
    state = random_state(rng, 3, features, activation, 0.4).check(attention, features)
    digits = 11.0

    def loss(state: State, prior: Prior) -> float:
        return float(evaluate(state, Task(5, prior), attention, digits, 1_500_000).value)

    value = loss(state, prior)
    order = [2, 0, 1]
    b = None if state.b is None else state.b[order]
    permuted = State(state.m[order], state.r[np.ix_(order, order)], b)
    assert abs(loss(permuted, prior) - value) < 1e-12
    flipped = DiscretePrior(-prior.support, prior.probabilities)
    assert abs(loss(State(-state.m, state.r, state.b), flipped) - value) < 1e-12
    if state.b is not None:
        # A common shift of all log weights cancels in the normalization.
        assert abs(loss(State(state.m, state.r, state.b + 800.0), prior) - value) < 1e-12
        assert abs(loss(State(state.m, state.r, state.b - 800.0), prior) - value) < 1e-12


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_identical_heads_are_one_head(activation: str) -> None:
    prior = isotropic(1, 2.0)
    one = population_loss(State([[0.9]], [[0.2]]), Task(7, prior), Attention(activation, 1), 1e-11)
    three = population_loss(
        State(np.full((3, 1), 0.9), np.full((3, 3), 0.2)),
        Task(7, prior),
        Attention(activation, 3),
        1e-11,
    )
    assert abs(one.value - three.value) < 1e-11


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    "prior",
    [
        isotropic(2, 3.0),
        flipped_spike([[1.5, 0.0], [0.0, 1.0]]),
        GaussianPrior([0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]]),
    ],
)
def test_origin_expansion_remainder_is_of_fourth_order(activation: str, prior: Prior) -> None:
    rng = np.random.default_rng(3)
    attention, task = Attention(activation, 2), Task(5, prior)
    state = random_state(rng, 2, 2, activation).check(attention, 2)
    scales = np.array([0.1, 0.05, 0.025])
    remainders = []
    for scale in scales:
        small = State(scale * state.m, scale**2 * state.r, state.b)
        exact = evaluate(small, task, attention, 13.0, 1_500_000)
        remainders.append(abs(float(exact.value) - origin_loss(small, task, attention)))
    slope = np.polyfit(np.log(scales), np.log(remainders), 1)[0]
    assert 3.9 < slope < 4.1


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_token_is_certain(activation: str) -> None:
    rng = np.random.default_rng(2)
    state = random_state(rng, 2, 2, activation)
    loss = population_loss(state, Task(1, isotropic(2, 1.0)), Attention(activation, 2), 1e-9)
    assert abs(loss.value) <= max(10 * loss.error, 1e-8)
    assert np.abs(loss.m).max() < 1e-7
    assert np.abs(loss.r).max() < 1e-7


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_batches_keep_their_shape(activation: str) -> None:
    """L = 1, H = 1, F = 0 on a batch of four states."""
    attention = Attention(activation, 1)
    loss = population_loss(
        State(np.zeros((4, 1, 0)), np.ones((4, 1, 1))), Task(1, isotropic(0, 1.0)), attention
    )
    assert np.shape(loss.value) == np.shape(loss.error) == np.shape(loss.gradient_error) == (4,)
    assert loss.m.shape == (4, 1, 0)
    assert loss.r.shape == (4, 1, 1)
    assert (loss.b is None) if activation == "softmax" else (loss.b.shape == (4, 1))


@pytest.mark.parametrize("tokens", [10**6, 10**9])
def test_many_tokens(tokens: int) -> None:
    """No integer wraps around, and the origin's loss is 1 - 1/L."""
    loss = population_loss(
        State([[0.0]], [[0.0]]), Task(tokens, isotropic(1, 1.0)), Attention("softmax", 1), 1e-10
    )
    assert loss.value == pytest.approx(1 - 1 / tokens, abs=1e-13)
    assert np.isfinite(loss.m).all()


def test_huge_score_gap() -> None:
    """A relevant token 800 above the others: loss 0; below them: loss 1 + E sum a^2."""
    prior = DiscretePrior([[800.0]], [1.0])
    task, attention = Task(3, prior), Attention("softmax", 1)
    for m, expected in ((1.0, 0.0), (-1.0, None)):
        with np.errstate(all="raise", under="ignore"):
            loss = population_loss(State([[m]], [[0.0]]), task, attention, 1e-8)
        assert np.isfinite(loss.value)
        if expected is not None:
            assert loss.value == pytest.approx(expected, abs=1e-7)


def test_reported_error_covers_the_true_one() -> None:
    rng = np.random.default_rng(21)
    worse = 0
    for case in range(40):
        activation = ACTIVATIONS[case % 2]
        heads, features = int(rng.integers(1, 4)), int(rng.integers(0, 3))
        task = Task(
            int(rng.choice([1, 2, 3, 10, 1000, 10**6])),
            random_prior(rng, features, ("gaussian", "discrete")[case % 3 > 0]),
        )
        state = random_state(rng, heads, features, activation, 10 ** rng.uniform(-2, 0.2))
        attention = Attention(activation, heads)
        loss = population_loss(state, task, attention, 1e-5)
        better = population_loss(state, task, attention, 1e-9)
        slack = 4 if "Monte" in loss.method else 1
        worse += abs(loss.value - better.value) > slack * loss.error + 4 * better.error
    assert worse == 0


def test_out_of_reach_is_said() -> None:
    """Score deviation 20 in many correlated heads: an honest error, or a typed refusal."""
    rng = np.random.default_rng(0)
    root = 20 * rng.normal(size=(3, 3))
    state = State(np.zeros((3, 1)), root @ root.T)
    task = Task(5, isotropic(1, 1.0))
    for activation in ACTIVATIONS:
        try:
            loss = population_loss(state, task, Attention(activation, 3), 1e-8)
        except QuadratureError as error:
            assert "\n" not in str(error)
        else:
            value, spread = monte_carlo_loss(state, task, Attention(activation, 3), 100_000, 1)
            assert abs(loss.value - value) < 5 * np.hypot(spread, loss.error)


@pytest.mark.parametrize("tol", [0.0, -1.0, np.nan, "fine"])
def test_bad_tolerance_is_refused(tol: object) -> None:
    with pytest.raises(InputError, match="tol"):
        population_loss(
            State([[0.0]], [[0.0]]), Task(2, isotropic(1, 1.0)), Attention("softmax", 1), tol
        )
