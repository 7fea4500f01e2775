"""The Bayes risk against mpmath, Monte Carlo, attention layers that attain it, and known limits.

Monte-Carlo comparisons: 24 with |z| < 5.5, a false alarm with probability below 1e-6 (seeds are fixed).
"""

from collections.abc import Callable, Sequence

import mpmath as mp
import numpy as np
import pytest

from numeric._generated import race
from numeric.bayes import bayes_posterior, bayes_risk, log_bayes_weight
from numeric.errors import InputError, QuadratureError
from numeric.loss import population_loss
from numeric.prior import (
    DiscretePrior,
    GaussianPrior,
    MixturePrior,
    Prior,
    empirical,
    flipped_spike,
    isotropic,
)
from numeric.task import Attention, State, Task

DISCRETE = {
    "one spike": DiscretePrior([[1.3, -0.4]], [1.0]),
    "flipped": flipped_spike([[1.5]]),
    "two flipped": flipped_spike([[1.5, 0.0], [0.3, 1.0]]),
    "unequal": DiscretePrior([[1.5], [-0.5], [0.2]], [0.2, 0.5, 0.3]),
    "with zero signal": DiscretePrior([[0.0, 0.0], [2.0, 1.0]], [0.7, 0.3]),
    "empirical": empirical([[0.5, 1.0], [1.0, -1.0], [-2.0, 0.3], [0.1, 0.2]]),
}


def integral(function: Callable[[mp.mpf], mp.mpf], edges: Sequence[float]) -> mp.mpf:
    """Gauss-Legendre rules of 24 nodes on each interval: 1e-10 for what is integrated here."""
    return mp.quad(function, edges, method="gauss-legendre", maxdegree=4)


def two_token_risk(w: Callable[[mp.mpf], mp.mpf], density: Callable[[mp.mpf], mp.mpf]) -> float:
    """``1 - E w(x) / (w(x) + w(y))``, x the relevant token's coordinate, y standard normal."""

    def given(x: mp.mpf) -> mp.mpf:
        inner = integral(lambda y: mp.npdf(y) / (1 + w(y) / w(x)), (-10, -5, 0, 5, 10))
        return density(x) * inner

    return float(1 - integral(given, (-12, -6, 0, 6, 12)))


def test_two_signs_against_mpmath() -> None:
    """Theta = +-1.2: w(x) = exp(-theta^2/2) cosh(theta x); by symmetry the sign may be fixed."""
    theta = mp.mpf("1.2")
    expected = two_token_risk(lambda x: mp.cosh(theta * x), lambda x: mp.npdf(x, theta))
    risk = bayes_risk(Task(2, flipped_spike([[1.2]])), 1e-10)
    assert abs(risk.value - expected) < 1e-9
    assert risk.error < 1e-9


def test_gaussian_against_mpmath() -> None:
    """Theta ~ N(0, nu): w(x) is proportional to exp(nu x^2 / (2 (1 + nu))), and x ~ N(0, 1 + nu)."""
    nu = mp.mpf("1.5")
    expected = two_token_risk(
        lambda x: mp.exp(nu * x**2 / (2 * (1 + nu))), lambda x: mp.npdf(x, 0, mp.sqrt(1 + nu))
    )
    risk = bayes_risk(Task(2, isotropic(1, 1.5)), 1e-10)
    assert abs(risk.value - expected) < 1e-8


def test_spike_against_mpmath() -> None:
    """One signal: the gap of the two log weights is N(theta^2, 2 theta^2), one integral."""
    theta = mp.mpf("1.25")
    with mp.workdps(20):
        expected = mp.quad(
            lambda z: mp.npdf(z) / (1 + mp.exp(theta**2 + mp.sqrt(2) * theta * z)),
            mp.linspace(-12, 12, 9),
        )
    risk = bayes_risk(Task(2, DiscretePrior([[0.75, -1.0]], [1.0])), 1e-10)
    assert abs(risk.value - float(expected)) < 1e-10


def make_prior(kind: str, features: int) -> Prior:
    if kind == "gaussian":
        covariance = [[2.0, 0.6], [0.6, 1.0]]
        return GaussianPrior([0.4, -0.8][:features], np.array(covariance)[:features, :features])
    if kind == "discrete":
        support = np.array([[1.5, 0.0], [-0.5, 1.0], [0.7, -2.0]])
        return DiscretePrior(support[:, :features], [0.2, 0.5, 0.3])
    return MixturePrior(
        [0.4, 0.6],
        np.array([[1.0, 0.5], [-0.5, 0.5]])[:, :features],
        np.array([[[1.0, 0.3], [0.3, 2.0]], [[0.5, 0.0], [0.0, 0.0]]])[:, :features, :features],
    )


def sampled_risk(task: Task, samples: int, seed: int) -> tuple[float, float]:
    """Posterior weights from densities: w(x) is that of x under the signal over that under noise."""
    rng = np.random.default_rng(seed)
    weights, means, covariances = task.prior.components()
    features = means.shape[1]
    x = rng.normal(size=(samples, task.tokens, features))
    choice = rng.choice(len(weights), size=samples, p=weights)
    for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        mine = np.flatnonzero(choice == k)
        x[mine, 0] += rng.multivariate_normal(mean, covariance, len(mine), method="eigh")
    logs = []
    for weight, mean, covariance in zip(weights, means, covariances, strict=True):
        total = np.eye(features) + covariance
        centred = x - mean
        exponent = np.einsum("slf,fg,slg->sl", centred, np.linalg.inv(total), centred)
        log_size = np.log(weight) - np.log(np.linalg.det(total)) / 2
        logs.append(log_size + ((x**2).sum(axis=2) - exponent) / 2)
    w = np.logaddexp.reduce(logs, axis=0)
    p = np.exp(w[:, 0] - np.logaddexp.reduce(w, axis=1))
    return float(1 - p.mean()), float(p.std(ddof=1) / np.sqrt(samples))


@pytest.mark.parametrize("tokens", [2, 5, 200])
@pytest.mark.parametrize("features", [1, 2])
@pytest.mark.parametrize("kind", ["gaussian", "discrete", "mixture"])
def test_against_monte_carlo(kind: str, features: int, tokens: int) -> None:
    task = Task(tokens, make_prior(kind, features))
    risk = bayes_risk(task, 1e-6)
    value, error = sampled_risk(task, 100_000 // max(2, tokens // 10), 100 * features + tokens)
    assert risk.error < 1e-6
    assert abs(risk.value - value) < 5.5 * np.hypot(error, risk.error)


@pytest.mark.parametrize("tokens", [2, 6])
@pytest.mark.parametrize("name", DISCRETE)
def test_pooled_attention_attains_it(name: str, tokens: int) -> None:
    """Prop. IV.2 of the paper: k_h = theta_h, b_h = log P(theta_h) - |theta_h|^2 / 2, r = 0."""
    prior = DISCRETE[name]
    heads = len(prior.support)
    b = prior.log_probabilities - (prior.support**2).sum(axis=1) / 2
    task = Task(tokens, prior)
    state = State(prior.support, np.zeros((heads, heads)), b)
    loss = population_loss(state, task, Attention("b-softmax", heads), 1e-10)
    risk = bayes_risk(task, 1e-10)
    assert abs(loss.value - risk.value) < 1e-8
    # A minimum: nothing changes to first order.
    assert np.abs(loss.m).max() < 1e-8
    assert np.abs(loss.b).max() < 1e-8


@pytest.mark.parametrize("tokens", [2, 6, 1000])
def test_softmax_attains_it_for_one_spike(tokens: int) -> None:
    task = Task(tokens, DiscretePrior([[1.2, 0.9]], [1.0]))
    loss = population_loss(State([[1.2, 0.9]], [[0.0]]), task, Attention("softmax", 1), 1e-10)
    assert abs(loss.value - bayes_risk(task, 1e-10).value) < 1e-8


def test_no_layer_does_better() -> None:
    rng = np.random.default_rng(7)
    for case in range(12):
        prior = make_prior(("gaussian", "discrete", "mixture")[case % 3], 2)
        task, heads = Task(int(rng.integers(2, 9)), prior), int(rng.integers(1, 4))
        root = 0.3 * rng.normal(size=(heads, heads))
        state = State(rng.normal(size=(heads, 2)), root @ root.T)
        loss = population_loss(state, task, Attention("softmax", heads), 1e-6)
        assert loss.value > bayes_risk(task, 1e-6).value - 2e-6


def test_probability_zero() -> None:
    """A log probability of -inf does not count, and warns of nothing."""
    prior = DiscretePrior([[5.0], [1.0], [-0.5]], [0.0, 0.5, 0.5])
    with np.errstate(all="raise", under="ignore"):
        risk = bayes_risk(Task(4, prior))
        weight = log_bayes_weight(np.array([[0.0], [30.0]]), prior)
    same = bayes_risk(Task(4, DiscretePrior([[1.0], [-0.5]], [0.5, 0.5])))
    assert risk.value == pytest.approx(same.value, abs=1e-12)
    assert np.isfinite(weight).all()


@pytest.mark.parametrize("tokens", [1, 2, 5, 10**6, 10**15])
@pytest.mark.parametrize(
    "prior",
    [isotropic(1, 0.0), isotropic(2, 0.0), isotropic(0, 1.0), DiscretePrior([[0.0]], [1.0])],
)
def test_no_signal_is_a_guess(prior: Prior, tokens: int) -> None:
    with np.errstate(all="raise", under="ignore"):
        risk = bayes_risk(Task(tokens, prior))
    assert risk.value == pytest.approx(1 - 1 / tokens, abs=1e-10)
    assert abs(risk.value - (1 - 1 / tokens)) <= risk.error + 1e-15


@pytest.mark.parametrize("prior", [isotropic(2, 3.0), flipped_spike([[800.0]])])
def test_one_token_is_certain(prior: Prior) -> None:
    assert bayes_risk(Task(1, prior)).value == 0


@pytest.mark.parametrize("prior", [isotropic(1, 2.0), flipped_spike([[3.0]])])
def test_many_tokens(prior: Prior) -> None:
    risk = bayes_risk(Task(10**6, prior))
    assert 0.5 < risk.value < 1 - 1e-6
    assert risk.error < 1e-7


@pytest.mark.parametrize("theta", [10.0, 40.0, pytest.param(200.0, marks=pytest.mark.slow)])
def test_strong_signal_is_found(theta: float) -> None:
    """The posterior misses with probability below exp(-theta^2 / 4)."""
    for tol in (1e-4, 1e-6, 1e-8):
        risk = bayes_risk(Task(3, flipped_spike([[theta]])), tol)
        assert abs(risk.value) <= risk.error + np.exp(-(theta**2) / 4)


def test_singular_covariance_is_fewer_features() -> None:
    """Signals along (1, 1) only: one feature of variance 1 + 1."""
    flat = bayes_risk(Task(5, GaussianPrior([0.0, 0.0], [[1.0, 1.0], [1.0, 1.0]])))
    line = bayes_risk(Task(5, isotropic(1, 2.0)))
    assert flat.value == pytest.approx(line.value, abs=1e-8)


def test_more_tokens_are_harder_and_more_signal_is_easier() -> None:
    risks = [bayes_risk(Task(n, isotropic(1, 2.0))).value for n in (1, 2, 3, 5, 10, 100, 10**4)]
    assert (np.diff(risks) > 1e-6).all()
    risks = [bayes_risk(Task(5, isotropic(1, nu))).value for nu in (0.0, 0.1, 1.0, 4.0, 16.0)]
    assert (np.diff(risks) < -1e-6).all()


@pytest.mark.parametrize("name", ["flipped", "two flipped", "unequal"])
def test_error_is_honest(name: str) -> None:
    task = Task(7, DISCRETE[name])
    best = bayes_risk(task, 1e-12)
    for tol in (1e-3, 1e-5, 1e-7):
        risk = bayes_risk(task, tol)
        assert risk.error <= tol
        assert abs(risk.value - best.value) <= risk.error + best.error


def test_error_is_honest_where_it_is_sampled() -> None:
    """Four equal features: too many points for a product rule; the truth is one-dimensional.

    |xi|^2 / (1 + nu) and |xi|^2 of the two tokens are chi-square, and the log weight is linear in it.
    """
    nu = 1.0
    risk = bayes_risk(Task(2, isotropic(4, nu)))
    assert risk.method == "quasi-Monte Carlo"
    knots = (0, 2, 5, 10, 20, 40, 80)

    def density(s: mp.mpf) -> mp.mpf:
        return s * mp.exp(-s / 2) / 4

    def given(s: mp.mpf) -> mp.mpf:
        rate = nu / (2 * (1 + nu))
        return density(s) * integral(
            lambda t: density(t) / (1 + mp.exp(rate * (t - (1 + nu) * s))), knots
        )

    expected = float(1 - integral(given, knots))
    assert risk.error < 2e-4
    assert abs(risk.value - expected) < 6 * risk.error


@pytest.mark.parametrize(
    "prior",
    [isotropic(1, 2500.0), pytest.param(flipped_spike([[800.0]]), marks=pytest.mark.slow)],
)
def test_out_of_reach_is_said_soon(prior: Prior, monkeypatch: pytest.MonkeyPatch) -> None:
    """An honest error or a refusal, after evaluating the race functions at most 2e8 times."""
    evaluated = 0
    original = race.score_functions

    def counted(tau: np.ndarray) -> tuple[np.ndarray, ...]:
        nonlocal evaluated
        evaluated += tau.size
        assert evaluated < 4e8
        return original(tau)

    monkeypatch.setattr(race, "score_functions", counted)
    try:
        risk = bayes_risk(Task(3, prior), 1e-6)
    except QuadratureError as error:
        assert "\n" not in str(error)
    else:
        value, spread = sampled_risk(Task(3, prior), 100_000, 3)
        assert abs(risk.value - value) < risk.error + 5.5 * spread


@pytest.mark.parametrize("variance", [2500.0, 1e300])
def test_a_signal_out_of_reach_is_refused(variance: float) -> None:
    with pytest.raises(QuadratureError) as caught:
        bayes_risk(Task(5, isotropic(1, variance)), 1e-6)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tol", [0.0, -1.0, np.nan, "fine"])
def test_bad_tolerance_is_refused(tol: object) -> None:
    with pytest.raises(InputError, match=r"^tol: "):
        bayes_risk(Task(2, isotropic(1, 1.0)), tol)


@pytest.mark.parametrize(
    "prior",
    [
        GaussianPrior([0.5, -1.0], [[2.0, 0.3], [0.3, 0.5]]),
        DiscretePrior([[1.5, 0.0], [0.0, -2.0]], [0.3, 0.7]),
        MixturePrior([0.4, 0.6], [[1.0, 0.0], [-1.0, 1.0]], [np.eye(2), np.diag([0.2, 3.0])]),
    ],
)
def test_the_estimator_on_data_has_the_bayes_risk(prior: Prior) -> None:
    """Sampled: its loss is the risk, and A = B (Nishimori); weights are exchangeable and sum to one."""
    task, rng, size = Task(4, prior), np.random.default_rng(1), 100_000
    xi = rng.normal(size=(size, 4, 2))
    xi[:, 0] += prior.sample(rng, size)
    p = bayes_posterior(xi, prior)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-14)
    np.testing.assert_allclose(bayes_posterior(xi[:9, ::-1], prior), p[:9, ::-1], rtol=1e-13)
    loss = 1 - 2 * p[:, 0] + (p**2).sum(axis=1)
    both = (p[:, 0] - (p**2).sum(axis=1), loss - bayes_risk(task).value)
    for values in both:
        assert abs(values.mean()) < 5.5 * values.std() / np.sqrt(size)
    assert loss.std() > 0.1


def test_the_estimator_refuses_other_features() -> None:
    prior = DiscretePrior([[1.5, 0.0]], [1.0])
    for xi in (np.zeros((3, 1)), np.full((3, 2), np.nan), np.zeros(2)):
        with pytest.raises(InputError, match=r"^xi: "):
            bayes_posterior(xi, prior)


CLOUD = empirical(np.random.default_rng(4).normal(size=(40, 2)) @ [[1.5, 0.0], [0.8, 0.5]])


@pytest.mark.parametrize(
    "prior", [*DISCRETE.values(), isotropic(1, 2.0), make_prior("mixture", 1), CLOUD]
)
def test_nishimori(prior: Prior) -> None:
    """A = B at the Bayes estimator, and not because both are the same sum."""
    risk = bayes_risk(Task(5, prior), 1e-11)
    assert 0 < abs(risk.nishimori) < 1e-10


@pytest.mark.parametrize("tokens", [2, 30])
@pytest.mark.parametrize("prior", [CLOUD, make_prior("mixture", 2), make_prior("discrete", 2)])
def test_a_shared_grid_is_the_same(
    prior: Prior, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("numeric.bayes.MANY", 0)
    monkeypatch.setattr("numeric.bayes.COMPARED", 0)
    shared = bayes_risk(Task(tokens, prior))
    monkeypatch.setattr("numeric.bayes.MANY", 1000)
    each = bayes_risk(Task(tokens, prior))
    assert shared.value != each.value
    assert abs(shared.value - each.value) <= shared.error + each.error


@pytest.mark.parametrize("features", [3, 4])
def test_many_samples_of_many_features(features: int) -> None:
    signals = np.random.default_rng(features).normal(size=(300, features))
    task = Task(4, empirical(signals))
    risk = bayes_risk(task)
    assert risk.error < (1e-4 if features == 3 else 1e-3)
    rng = np.random.default_rng(1)
    xi = rng.normal(size=(40_000, 4, features))
    xi[:, 0] += signals[rng.integers(300, size=len(xi))]
    p = bayes_posterior(xi, task.prior)
    # Both forms of the loss, A = B, halve the variance.
    loss = 1 - (p[:, 0] + (p**2).sum(axis=1)) / 2
    assert abs(risk.value - loss.mean()) < 5.5 * loss.std() / np.sqrt(len(xi)) + 3 * risk.error
