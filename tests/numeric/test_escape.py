"""The law of the escape against simulations, the flow and closed forms; noise of the alignments."""

from functools import cache

import numpy as np
import pytest
from scipy.stats import binom, chi2, norm

from numeric.errors import InputError
from numeric.escape import EscapeLaw, escape_law, magnetization_diffusion
from numeric.flow import integrate_flow
from numeric.noise import noise_matrix, noise_parts
from numeric.phases import first_passages
from numeric.prior import DiscretePrior, GaussianPrior, MixturePrior, Prior, isotropic, rotated
from numeric.task import Attention, State, Task
from numeric.watch import feature_norms
from tests.numeric.oracle import LAYERS, attention, sample_loss

ETA, FALSE_ALARM = 0.1, 1e-6
TASK = Task(5, isotropic(1, 4.0))
CORRELATED = GaussianPrior([0.0, 0.0], [[2.0, 0.8], [0.8, 1.0]])
LEVELS = (0.1, 0.5, 0.9)


@cache
def law_of(heads: int = 2, kappa: float = 0.0) -> EscapeLaw:
    return escape_law(TASK, Attention("softmax", heads), ETA, kappa)


def flown(p: float, dimension: float, eta: float = ETA, threshold: float = 1.0) -> float:
    """When the flow passes from the amplitude of two heads that a probability p exceeds."""
    amplitude = eta * np.sqrt(chi2.isf(p, 1) / dimension)
    start = State(amplitude * np.array([[1.0], [-1.0]]) / np.sqrt(2), eta**2 * np.eye(2))
    layer = Attention("softmax", 2)
    path = integrate_flow(start, TASK, layer, [0.0, 50.0], threshold=threshold)
    return float(path.first_passage[0])


@cache
def one_head() -> tuple[EscapeLaw, Task]:
    task = Task(8, isotropic(1, 16.0))  # the alignment saturates below 1
    return escape_law(task, Attention("softmax", 1), ETA, threshold=0.4), task


@pytest.mark.parametrize(
    ("dimension", "runs"),
    [
        (300, 80),
        pytest.param(1000, 300, marks=pytest.mark.slow),
        pytest.param(10_000, 200, marks=pytest.mark.slow),
        pytest.param(100_000, 100, marks=pytest.mark.slow),
    ],
)
def test_quantiles_are_those_of_simulations(dimension: int, runs: int) -> None:
    """Counts of passages before each quantile are binomial, up to corrections in D."""
    law = law_of(kappa=2.0)
    softmax = Attention("softmax", 2)
    quantiles = [law.quantile(p, dimension) for p in LEVELS]
    found = first_passages(
        TASK, softmax, feature_norms(TASK, softmax), dimension=dimension, eta=ETA, kappa=2.0,
        tau_max=1.02 * quantiles[-1], runs=runs, seed=1,
    )  # fmt: skip
    passages = found.passages[:, 0]
    # At finite D overlaps, noise and the amplitude at which noise ends fluctuate by O(1/sqrt D)
    # relative to the law's. Times then change by some 1/(rate sqrt D), probabilities by that times
    # the density of times, which is below the rate: 1/sqrt D in all.
    allowance, budget = 1 / np.sqrt(dimension), FALSE_ALARM / (2 * len(LEVELS))
    for p, quantile in zip(LEVELS, quantiles, strict=True):
        count = int((passages < quantile).sum())
        low, high = max(p - allowance, 0.0), min(p + allowance, 1.0)
        assert binom.cdf(count, runs, low) > budget, (p, count)
        assert binom.sf(count - 1, runs, high) > budget, (p, count)


@pytest.mark.parametrize(("p", "dimension"), [(0.1, 1e3), (0.5, 1e8), (0.9, 1e3)])
def test_two_heads_follow_the_flow_from_a_gaussian_amplitude(p: float, dimension: float) -> None:
    """Without noise, m = a (1, -1) / sqrt 2 with ``a^2 = eta^2 chi^2 / D``, r = eta^2 I."""
    assert law_of().quantile(p, dimension) == pytest.approx(flown(p, dimension), rel=2e-3)


def test_one_head_follows_the_flow() -> None:
    law, task = one_head()
    for p in (0.1, 0.9):
        start = State([[ETA * np.sqrt(chi2.isf(p, 1) / 1e4)]], [[ETA**2]])
        flow = integrate_flow(start, task, Attention("softmax", 1), [0.0, 15.0], threshold=0.4)
        assert law.quantile(p, 1e4) == pytest.approx(flow.first_passage[0], rel=2e-3)


@pytest.mark.slow
def test_four_heads_follow_the_flow_from_random_amplitudes() -> None:
    """Random directions of the differences: their passages' ranks are those of the law."""
    law, attention, size = law_of(4), Attention("softmax", 4), 1e6
    assert law.dimensions == 3
    rng = np.random.default_rng(2)
    ranks = []
    for _ in range(15):
        m = ETA * rng.standard_normal((4, 1)) / np.sqrt(size)
        start = State(m - m.mean(), ETA**2 * np.eye(4))
        flow = integrate_flow(start, TASK, attention, [0.0, 120.0])
        ranks.append(law.probability(float(flow.first_passage[0]), size))
    z = (np.mean(ranks) - 0.5) * np.sqrt(12 * len(ranks))
    assert abs(z) < norm.isf(FALSE_ALARM / 2)


def test_quantiles_invert_probabilities_and_grow() -> None:
    for law in (law_of(), one_head()[0]):
        for dimension in (200, 1e5, 1e9):
            times = [law.quantile(p, dimension) for p in (0.01, *LEVELS, 0.99)]
            assert (np.diff(times) > 0).all()
            back = [law.probability(t, dimension) for t in times]
            assert back == pytest.approx([0.01, *LEVELS, 0.99], abs=1e-7)
        assert law.probability(0.0, 1e6) == 0.0
        assert law.probability(1e4, 1e6) == pytest.approx(1.0)


def test_medians_grow_with_the_logarithm_of_the_dimension() -> None:
    """Without noise, by ``log(10) / (2 rate)`` a decade; the rate starts as the origin's."""
    law = law_of()
    steps = np.diff([law.quantile(0.5, d) for d in (1e8, 1e9, 1e10, 1e12)])
    assert steps == pytest.approx(np.array([1, 1, 2]) * np.log(10) / (2 * law.rate), rel=2e-3)
    # r(0) = eta^2 I slows the origin's (2 / (H L)) (1 - 1/L) (1 - 2/L) nu by O(eta^2).
    assert law.rates[0] == pytest.approx(0.384, rel=2e-2)
    assert not law.noise.any()
    # The mean head's rate, (2 / (H L)) (1 - 1/L) ((1 - 3/L) nu - 1), with the same correction.
    assert law.mean_rate == pytest.approx(0.096, rel=5e-2)


def test_what_is_refused() -> None:
    softmax = Attention("softmax", 2)
    with pytest.raises(InputError, match="no mean signal"):
        escape_law(Task(5, GaussianPrior([0.5], [[4.0]])), softmax, ETA)
    for task, layer in (
        (TASK, Attention("linear", 1)),
        (Task(5, isotropic(1, 0.0)), softmax),
    ):
        with pytest.raises(InputError, match="one that grows"):
            escape_law(task, layer, ETA)
    # r lends two tokens a first growth.
    with pytest.raises(InputError, match="keeps growing"):
        escape_law(Task(2, isotropic(1, 4.0)), softmax, ETA)
    with pytest.raises(InputError, match="features"):
        escape_law(Task(5, isotropic(0, 4.0)), softmax, ETA)
    for eta in (0.0, np.nan):
        with pytest.raises(InputError, match="eta"):
            escape_law(TASK, softmax, eta)
    for kappa in (-1.0, 1e7, np.inf):
        with pytest.raises(InputError, match="kappa"):
            escape_law(TASK, softmax, ETA, kappa)
    assert law_of().quantile(1 - 1e-9, 1.7e308) > law_of().quantile(1 - 1e-9, 1e300)
    for feature in (1, -1):
        with pytest.raises(InputError, match="feature"):
            escape_law(TASK, softmax, ETA, feature=feature)
    for p, dimension, word in ((0.0, 1e3, "probability"), (1.0, 1e3, "prob"), (0.5, 0.5, "dim")):
        with pytest.raises(InputError, match=word):
            law_of().quantile(p, dimension)


@pytest.mark.slow
@pytest.mark.parametrize(("eta", "dimension", "threshold"), [(1.0, 1e4, 1.0), (ETA, 1e6, 0.1)])
def test_large_amplitudes_and_low_thresholds(
    eta: float, dimension: float, threshold: float
) -> None:
    softmax, p = Attention("softmax", 2), 0.1
    law = escape_law(TASK, softmax, eta, threshold=threshold)
    expected = flown(p, dimension, eta, threshold)
    assert law.quantile(p, dimension) == pytest.approx(expected, rel=1e-2)
    with pytest.raises(InputError, match="threshold"):
        escape_law(TASK, softmax, eta, threshold=0.01)


@pytest.mark.slow
def test_the_slope_of_medians_with_noise_lies_between_those_of_the_rates() -> None:
    """Noise lets r grow, and the rate fall."""
    law = law_of(kappa=2.0)
    slope = (law.quantile(0.5, 1e6) - law.quantile(0.5, 1e3)) / np.log(1e3)
    assert 1 / (2 * law.rates[0]) < slope < 1 / (2 * law.rates[-1])
    assert law.rate == law.rates[0]


def a_state(name: str, heads: int) -> State:
    given = {"b": np.linspace(-0.3, 0.5, heads), "v": np.linspace(0.6, 1.2, heads)}
    trained = {x: given[x] for x in LAYERS[name].trained}
    return State(np.zeros((heads, 2)), 0.2 * np.eye(heads) + 0.1, **trained)


def sampled(name: str, state: State, task: Task, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Second moment of ``sum_l c_hl xi_lf`` and its standard error; slopes by imaginary steps."""
    rng, heads, layer = np.random.default_rng(7), len(state.m), LAYERS[name]
    xi = rng.standard_normal((samples, task.tokens, 2))
    xi[:, 0] += task.prior.sample(rng, samples)
    root = np.linalg.cholesky(state.r)
    chi = root @ rng.standard_normal((samples, heads, task.tokens)) + 0j
    c = np.zeros(chi.shape)
    for h, token in np.ndindex(heads, task.tokens):
        chi[:, h, token] += 1e-30j
        c[:, h, token] = sample_loss(attention(layer, chi, state.b, state.v)).imag / 1e-30
        chi[:, h, token] = chi[:, h, token].real
    gradient = c @ xi
    products = np.einsum("nhf,nkg->nhfkg", gradient, gradient)
    return products.mean(axis=0), products.std(axis=0) / np.sqrt(samples)


@pytest.mark.parametrize(
    ("name", "heads", "prior"),
    [
        ("softmax", 2, CORRELATED),
        ("softmax-1", 2, CORRELATED),
        ("b-softmax", 2, DiscretePrior([[1.0, 2.0], [1.0, -1.0], [-2.0, -1.0]], [1 / 3] * 3)),
        ("erf", 1, MixturePrior([0.5, 0.5], [[1, 1], [-1, -1]], [np.eye(2), np.diag([1, 3])])),
    ],
)
def test_diffusion_is_the_covariance_of_gradients(name: str, heads: int, prior: Prior) -> None:
    task, state = Task(4, prior), a_state(name, heads)
    found, error = magnetization_diffusion(state, task, Attention(name, heads))
    expected, spread = sampled(name, state, task, 100_000)
    assert np.allclose(found, found.transpose(2, 3, 0, 1), atol=1e-14)
    z = (found - expected) / np.hypot(spread, error)
    assert np.abs(z).max() < norm.isf(FALSE_ALARM / (2 * z.size))
    parts, _ = noise_parts(state, task, Attention(name, heads))
    whole, _ = noise_matrix(state, task, Attention(name, heads))
    assert parts.sum(axis=0) == pytest.approx(whole, rel=1e-12, abs=1e-15)
    assert (np.linalg.eigvalsh(parts) > -1e-14).all()


@pytest.mark.parametrize("name", ["softmax", "b-softmax", "softmax-1"])
def test_differences_feel_no_noise_where_keys_vanish(name: str) -> None:
    heads, layer = 3, Attention(name, 3)
    state, task = State(np.zeros((heads, 2)), np.zeros((heads, heads))), Task(5, CORRELATED)
    found, _ = magnetization_diffusion(state, task, layer)
    assert found[0, 0, 0, 0] > 1e-4
    assert np.abs(found - found[:1]).max() <= 1e-14 * found.max()


def test_diffusion_needs_no_mean_and_no_alignment() -> None:
    layer, good = Attention("softmax", 2), State(np.zeros((2, 2)), np.eye(2))
    with pytest.raises(InputError, match="m: found"):
        magnetization_diffusion(State(0.1 * np.eye(2), np.eye(2)), Task(5, CORRELATED), layer)
    with pytest.raises(InputError, match="no mean signal"):
        magnetization_diffusion(good, Task(5, GaussianPrior([0.0, 0.1], np.eye(2))), layer)


def test_a_rotated_prior_is_the_law_along_other_axes() -> None:
    prior = MixturePrior([0.3, 0.7], [[1, 2], [-1, 0]], [np.eye(2), np.diag([1, 3])])
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    found = rotated(prior, turn)
    assert found.mean == pytest.approx(prior.mean @ turn)
    assert found.second_moment == pytest.approx(turn.T @ prior.second_moment @ turn)
    back = rotated(found, turn.T).components()
    for one, other in zip(back, prior.components(), strict=True):
        assert one == pytest.approx(other, abs=1e-14)
    for axes in (np.eye(3), turn[0], [[np.nan, 0], [0, 1]]):
        with pytest.raises(InputError, match="axes"):
            rotated(prior, axes)


def test_axes_that_are_not_orthonormal_are_refused() -> None:
    with pytest.raises(InputError, match="axes"):
        rotated(CORRELATED, [[1.0, 1.0], [0.0, 1.0]])
