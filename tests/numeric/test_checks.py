"""Comparisons of theory and simulation: what passes, what fails, and that broken physics is seen."""

import numpy as np
import pytest
from scipy import stats
from sympy import Expr, exp

import numeric.checks as checks
from derive.attention import Attention as Definition
from derive.symbols import b, chi
from numeric import Attention, DiscretePrior, GaussianPrior, State, Task, isotropic
from numeric._generated import ACTIVATIONS as KERNELS
from numeric._generated import order_parameters
from numeric.bayes import Risk
from numeric.checks import Check
from numeric.flow import Flow, integrate_flow
from numeric.loss import evaluate, population_loss
from numeric.sgd import SGDRuns
from tests.numeric.oracle import LAYERS, attention, sample_loss

ACTIVATIONS = ("softmax", "b-softmax")
TASK = Task(5, GaussianPrior([0.0, 0.0], [[4.0, 0.0], [0.0, 2.0]]))
STATE = State([[0.3, -0.2], [-0.1, 0.4]], [[0.2, 0.05], [0.05, 0.1]])


def test_threshold_shares_the_budget() -> None:
    """P(|z| > threshold) times the number of comparisons is one in a million."""
    assert checks.threshold(1) == pytest.approx(4.891638, abs=1e-6)
    assert checks.threshold(1000) == pytest.approx(6.109410, abs=1e-6)
    for comparisons in (1, 7, 100, 10**6):
        limit = checks.threshold(comparisons)
        assert comparisons * 2 * stats.norm.sf(limit) == pytest.approx(1e-6, rel=1e-9)


def test_statistical_against_normal_errors() -> None:
    exact = checks.statistical("x", 2.0, 2.0, 0.1, 10)
    assert exact.passed
    assert exact.z == 0
    assert exact == checks.Check("x", 2.0, 2.0, 0.1, 0.0, True)
    limit = checks.threshold(10)
    for sign in (1, -1):
        inside = checks.statistical("x", 2 + sign * 0.1 * (limit - 1e-6), 2.0, 0.1, 10)
        outside = checks.statistical("x", 2 + sign * 0.1 * (limit + 1e-6), 2.0, 0.1, 10)
        assert inside.passed
        assert not outside.passed
        assert outside.z == pytest.approx(sign * limit, abs=2e-6)


@pytest.mark.parametrize("freedom", [3, 15, 1000])
@pytest.mark.parametrize("t", [-8.0, 0.5, 3.0])
def test_students_t_becomes_the_normal_deviate_of_its_p_value(t: float, freedom: int) -> None:
    check = checks.statistical("x", t, 0.0, 1.0, 1, freedom)
    assert stats.norm.sf(abs(check.z)) == pytest.approx(stats.t.sf(abs(t), freedom), rel=1e-9)
    assert np.sign(check.z) == np.sign(t)


def test_students_t_far_out_stays_finite() -> None:
    check = checks.statistical("x", 1e6, 0.0, 1.0, 1, 1000)
    assert 30 < check.z < np.inf
    assert not check.passed


@pytest.mark.parametrize("freedom", [np.inf, 15])
def test_no_error_means_equal_or_not(freedom: float) -> None:
    assert checks.statistical("x", 0.25, 0.25, 0.0, 5, freedom).passed
    assert checks.statistical("x", 0.25 + 1e-14, 0.25, 0.0, 5, freedom).z == 0
    wrong = checks.statistical("x", 0.25 + 1e-9, 0.25, 0.0, 5, freedom)
    assert not wrong.passed
    assert wrong.z == np.inf


@pytest.mark.parametrize(
    ("value", "expected", "error"),
    [(np.nan, 0, 1), (0, np.nan, 1), (0, 0, np.nan)],
)
def test_nan_never_passes(value: float, expected: float, error: float) -> None:
    assert not checks.statistical("x", value, expected, error, 5, 10).passed
    assert not checks.statistical("x", value, expected, error, 5).passed
    assert not checks.within("x", value, expected, error).passed


def test_within_a_tolerance() -> None:
    assert checks.within("x", 1.25, 1.0, 0.25).passed
    assert not checks.within("x", 1.26, 1.0, 0.25).passed
    assert checks.within("x", 1.0, 1.0, 0.0).z is None


@pytest.mark.parametrize("activation", KERNELS)
def test_monte_carlo_loss_knows_its_error(activation: str) -> None:
    """Two tokens, one signal: the loss is an integral over both scores of one head, or of two alike."""
    layer, task = LAYERS[activation], Task(2, DiscretePrior([[1.5]], [1.0]))
    trained = {key: [0.3, 0.3] if key == "b" else [0.5, 0.2] for key in layer.trained}
    state = State([[0.8], [0.8]], np.full((2, 2), 0.3), **trained)
    z, w = np.polynomial.hermite_e.hermegauss(60)
    relevant, other = np.meshgrid(0.8 * 1.5 + np.sqrt(0.94) * z, np.sqrt(0.94) * z, indexing="ij")
    chi = np.stack([relevant, other], axis=-1)[..., None, :] * np.ones((2, 1))
    losses = sample_loss(attention(layer, chi, state.b, state.v))
    expected = (w @ losses @ w) / w.sum() ** 2
    scores = []
    for seed in range(30):
        value, error = checks.monte_carlo_loss(state, task, Attention(activation, 2), 4000, seed)
        scores.append((value - expected) / error)
    # Mean and mean square of 30 normal deviates, each at one in a million.
    assert abs(np.mean(scores)) < 4.9 / np.sqrt(30)
    assert stats.chi2(30).cdf(np.sum(np.square(scores))) == pytest.approx(0.5, abs=0.4999995)


def state_of(attention: Attention) -> State:
    """STATE with biases and values that differ between the heads, where there are any."""
    b = [0.3, -0.2] if "b" in attention.parameters else None
    v = [0.2, 0.7] if "v" in attention.parameters else None
    return State(STATE.m, STATE.r, b, v)


@pytest.mark.parametrize("activation", KERNELS)
def test_expansion_check(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attention = Attention(activation, 2)
    state = state_of(attention)
    check = checks.expansion_check(state, TASK, attention)
    assert check.passed
    assert abs(check.value) < 1e-6
    skew = Task(5, DiscretePrior([[1.5, 0.0], [-0.5, 1.0]], [0.4, 0.6]))
    check = checks.expansion_check(state, skew, attention)
    assert check.passed
    # The loss of one token more.
    monkeypatch.setattr(
        checks,
        "evaluate",
        lambda state, task, *others: evaluate(state, Task(task.tokens + 1, task.prior), *others),
    )
    assert not checks.expansion_check(state, TASK, attention).passed


@pytest.mark.parametrize("activation", KERNELS)
def test_wrong_second_order_fails_the_expansion_check(
    activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = order_parameters.origin_pair

    def wrong(*arguments):
        relevant, other = original(*arguments)
        return 1.001 * relevant, other

    monkeypatch.setattr(order_parameters, "origin_pair", wrong)
    attention = Attention(activation, 2)
    assert not checks.expansion_check(state_of(attention), TASK, attention).passed


@pytest.mark.parametrize("r", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("mean", [0.0, 0.3])
def test_expansion_check_raises_no_false_alarm(mean: float, r: float) -> None:
    state, task = State([[0.6], [0.2]], np.diag([r, r])), Task(2, GaussianPrior([mean], [[2.0]]))
    assert checks.expansion_check(state, task, Attention("softmax", 2)).passed


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_expansion_check_raises_no_false_alarm_for_skewed_priors(activation: str) -> None:
    """Random experiments, all of them correct."""
    rng, attention, failed = np.random.default_rng(6), Attention(activation, 2), 0
    for _ in range(100):
        prior = GaussianPrior(rng.normal(size=1), rng.uniform(0, 4, (1, 1)))
        root = rng.normal(size=(2, 2))
        state = State(rng.normal(size=(2, 1)), root @ root.T).check(attention, 1)
        failed += not checks.expansion_check(state, Task(5, prior), attention).passed
    assert failed == 0


def test_expansion_check_of_nothing() -> None:
    """At the origin itself there is no remainder, with any prior; without features only r is left."""
    zero = State(np.zeros((2, 2)), np.zeros((2, 2)))
    assert checks.expansion_check(zero, TASK, Attention("softmax", 2)).passed
    state = State(np.zeros((2, 0)), STATE.r)
    assert checks.expansion_check(state, Task(5, isotropic(0, 1.0)), Attention("softmax", 2)).passed


@pytest.mark.parametrize(
    "activation", ["softmax", "softmax-v", "softmax-1", "b-softmax", "softplus"]
)
def test_perturbed_eigenvalues_are_seen(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spectrum and growth checks pass, and fail when the derived eigenvalues are 3 % off."""
    attention = Attention(activation, 2)
    growth = checks.growth_check(TASK, attention)
    assert isinstance(growth, Check)
    assert growth.passed
    assert checks.spectrum_check(TASK, attention).passed
    kernel = KERNELS[activation]
    original = kernel.origin_eigenvalues

    def perturbed(*arguments):
        return tuple(1.03 * x for x in original(*arguments))

    monkeypatch.setattr(kernel, "origin_eigenvalues", perturbed)
    assert not checks.spectrum_check(TASK, attention).passed
    growth = checks.growth_check(TASK, attention)
    assert isinstance(growth, Check)
    assert not growth.passed


def test_growth_check_where_nothing_grows() -> None:
    mean_signal = Task(5, GaussianPrior([1.0], [[1.0]]))
    assert "mean" in str(checks.growth_check(mean_signal, Attention("softmax", 2)))
    assert isinstance(checks.growth_check(Task(5, isotropic(0, 1.0)), Attention("softmax", 2)), str)
    # One head: only the mean, which needs nu (1 - 3/L) > 1. Two tokens: softmax differences rest.
    assert isinstance(checks.growth_check(Task(5, isotropic(1, 1.0)), Attention("softmax", 1)), str)
    assert isinstance(checks.growth_check(Task(2, isotropic(1, 4.0)), Attention("softmax", 2)), str)
    one_head = checks.growth_check(Task(5, isotropic(1, 4.0)), Attention("softmax", 1))
    assert isinstance(one_head, Check)
    assert one_head.expected == pytest.approx(2 / 5 * 4 / 5 * (4 * 2 / 5 - 1))
    assert one_head.passed


@pytest.mark.parametrize(
    ("weight", "normalization"),
    [(1 / (1 + exp(-6 * chi)), "per-head"), (exp(4 * chi), "per-head"), (0.01 + chi**2, "none")],
)
def test_expansion_of_a_steep_weight(weight: Expr, normalization: str) -> None:
    attention = Attention(Definition("steep", weight, normalization), 2)
    assert checks.expansion_check(STATE, TASK, attention).passed


@pytest.mark.parametrize("activation", ["linear", "erf"])
def test_growth_check_of_a_weight_without_curvature(activation: str) -> None:
    """Without a mean signal only a curved weight tells the relevant token from the others."""
    attention = Attention(activation, 2)
    assert isinstance(checks.growth_check(TASK, attention), str)
    assert checks.spectrum_check(TASK, attention).passed


def test_growth_check_of_biases_that_drift() -> None:
    """Without trained values nothing makes the attention of all tokens sum to one."""
    curved = Definition("curved", exp(b + chi), "none", trained=("b",))
    assert isinstance(checks.growth_check(TASK, Attention(curved, 2)), str)
    resting = Definition("curved", exp(b + chi), "none", trained=("b", "v"))
    growth = checks.growth_check(TASK, Attention(resting, 2))
    assert isinstance(growth, Check)
    assert growth.passed
    # dE/dw'' with w'' = w, all tokens' attention being 1/L: (2 / H L) (1 - 1/L) nu.
    assert growth.expected == pytest.approx(2 / 10 * (1 - 1 / 5) * 4)


def short_flow(activation: str = "softmax") -> Flow:
    layer = Attention(activation, 2)
    return integrate_flow(state_of(layer), TASK, layer, [0.0, 0.5, 1.0])


@pytest.mark.parametrize("activation", ["softmax", "softmax-1", "erf"])
def test_loss_checks(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path, layer = short_flow(activation), Attention(activation, 2)
    good = checks.loss_checks(path, TASK, layer, 20_000, 5, 10)
    assert [check.passed for check in good] == [True] * 3
    assert len({check.expected for check in good}) == 3
    monkeypatch.setattr(
        checks,
        "population_loss",
        lambda state, task, *others: population_loss(state, Task(7, task.prior), *others),
    )
    bad = checks.loss_checks(path, TASK, layer, 20_000, 5, 10)
    assert [check.passed for check in bad] == [False] * 3


def test_bayes_check() -> None:
    path = short_flow()
    least = path.loss.min()
    assert checks.bayes_check(path, Risk(least - 0.1, 1e-9, "")).passed
    assert checks.bayes_check(path, Risk(float(least), 1e-9, "")).passed
    assert not checks.bayes_check(path, Risk(least + 0.01, 1e-9, "")).passed
    assert not checks.bayes_check(path, Risk(np.nan, 1e-9, "")).passed


def made_up_runs(
    path: Flow, bias: float, shift: float, runs: int, seed: int, dimension: int = 10**6
) -> SGDRuns:
    """Runs that scatter by 0.1 around the flow, with exactly that mean plus a bias.

    `shift` moves all means by so many standard errors of the extrapolated mean.
    """
    rng = np.random.default_rng(seed)

    def around(x: np.ndarray) -> np.ndarray:
        noise = rng.normal(size=(runs, *x.shape))
        noise = (noise - noise.mean(axis=0)) / noise.std(axis=0, ddof=1)
        return x + 0.1 * noise + bias + shift * 0.1 * np.sqrt(5 / runs)

    samples = np.arange(len(path.tau))
    m, r = around(path.m), around(path.r)
    b, v = (None if x is None else around(x) for x in (path.b, path.v))
    return SGDRuns(path.tau, samples, m, r, b, v, 1.0, dimension, 1, 1 / dimension, 0)


@pytest.mark.parametrize(
    ("shift", "passed"), [(0.0, True), (2.0, True), (6.0, False), (-6.0, False)]
)
def test_agreement_checks(shift: float, passed: bool) -> None:
    """A bias of order 1/D is twice as large at D/2 and cancels; 6 standard errors are too many.

    If only the larger runs are shifted by s, the extrapolated mean is shifted by 2 s.
    """
    path = short_flow()
    large = made_up_runs(path, 0.05, shift / 2, 3000, 1)
    small = made_up_runs(path, 0.10, 0.0, 3000, 2)
    found = checks.agreement_checks(large, small, path, 14)
    # Four entries of m and three of r, at two times.
    assert len(found) == len({check.name for check in found}) == 14
    assert {check.passed for check in found} == {passed}
    for check in found:
        assert check.z == pytest.approx(shift, abs=0.05)
        assert check.error == pytest.approx(0.1 * np.sqrt(5 / 3000), rel=1e-3)


def test_agreement_checks_allow_for_the_next_order() -> None:
    """At D = 100 a bias of 5 % leaves a remainder of about its square that does not cancel."""
    path = short_flow()
    large = made_up_runs(path, 0.05, 0.0, 30_000, 1, 100)
    small = made_up_runs(path, 0.10 + 0.05**2, 0.0, 30_000, 2, 50)
    found = checks.agreement_checks(large, small, path, 14)
    assert all(check.passed for check in found)
    assert all(0.1 * np.sqrt(5 / 30_000) < check.error < 0.02 for check in found)


@pytest.mark.parametrize(("activation", "entries"), [("softmax", 7), ("b-softmax", 9), ("erf", 11)])
def test_agreement_checks_compare_each_entry_with_its_own(activation: str, entries: int) -> None:
    """Two heads, two features: m and r, and what is trained beside them."""
    path = short_flow(activation)
    exact = {
        name: made_up_runs(path, 0.0, 0.0, 50, seed) for seed, name in enumerate(("large", "small"))
    }
    found = checks.agreement_checks(exact["large"], exact["small"], path, 2 * entries)
    assert len({check.name for check in found}) == len(found) == 2 * entries
    for check in found:
        assert check.value == pytest.approx(check.expected, abs=1e-12)
        name, tau = check.name.split(" at tau = ")
        place = tuple(int(x) - 1 for x in name[2:-1].split(","))
        i = int(np.argmin(np.abs(path.tau - float(tau.split(":")[0]))))
        assert check.expected == getattr(path, name[0])[(i, *place)]
