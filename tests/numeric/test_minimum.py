"""Minima of the loss beside the Bayes risk: closed forms, strict gaps, another optimizer."""

import numpy as np
import pytest
from scipy.optimize import minimize

from numeric.bayes import bayes_risk
from numeric.errors import InputError
from numeric.loss import population_loss
from numeric.minimum import bayes_softmax_optimum, minimize_loss
from numeric.prior import DiscretePrior, flipped_spike, isotropic
from numeric.scores import attention_weights
from numeric.task import Attention, State, Task


def drawn(seed: int) -> DiscretePrior:
    """Support of one to three points in one or two dimensions."""
    rng = np.random.default_rng(seed)
    points, features = 1 + seed % 3, 1 + seed % 2
    return DiscretePrior(1.2 * rng.normal(size=(points, features)), rng.dirichlet(np.ones(points)))


@pytest.mark.parametrize("seed", range(10))
def test_bayes_softmax_reaches_the_bayes_risk(seed: int) -> None:
    task = Task(2 + seed, drawn(seed))
    state = bayes_softmax_optimum(task)
    loss = population_loss(state, task, Attention("b-softmax", len(state.m)), 1e-11)
    risk = bayes_risk(task, 1e-11)
    assert float(loss.value) == pytest.approx(risk.value, abs=1e-9)
    assert abs(float(loss.value) - risk.value) <= float(loss.error) + risk.error + 1e-13
    assert max(np.abs(x).max() for x in (loss.m, loss.b)) < 1e-9  # type: ignore[arg-type]


def test_its_weights_are_the_posterior() -> None:
    """Sample by sample, against Bayes' theorem written out."""
    prior, rng = drawn(5), np.random.default_rng(1)
    state = bayes_softmax_optimum(Task(4, prior))
    xi = rng.normal(size=(100, 4, 2))
    kernel = Attention("b-softmax", 3).kernel
    _, a = attention_weights(state.m @ xi.swapaxes(1, 2), state.b, 1.0, kernel)
    likelihood = np.zeros((100, 4))
    for theta, p in zip(prior.support, prior.probabilities, strict=True):
        # Token l is N(theta, 1), all others are N(0, 1).
        likelihood += p * np.exp(-((xi - theta) ** 2).sum(-1) / 2 + (xi**2).sum(-1) / 2)
    np.testing.assert_allclose(a, likelihood / likelihood.sum(1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("theta", [0.7, 2.0])
def test_one_spike_needs_one_softmax_head(theta: float) -> None:
    task = Task(6, DiscretePrior([[theta]], [1.0]))
    found = minimize_loss(task, Attention("softmax", 1), starts=3)
    assert found.gap == pytest.approx(0.0, abs=1e-10)
    assert found.state.m[0, 0] == pytest.approx(theta, abs=1e-6)
    assert found.index == 0 and not found.state.r.any()


@pytest.mark.parametrize("theta", [1.0, 2.0])
def test_gaps_of_two_spikes(theta: float) -> None:
    """Softmax stays above Bayes, free values or not; Bayes-softmax does not."""
    task = Task(5, flipped_spike([[theta]]))
    gaps = {}
    for name in ("softmax", "softmax-v", "softmax-1", "b-softmax"):
        found = minimize_loss(task, Attention(name, 2), starts=4)
        assert found.residual < 1e-6 and found.index == 0
        assert np.abs(found.found - found.loss).min() < 1e-6
        gaps[name] = found.gap
        assert found.gap_error < 1e-8
        if name != "b-softmax":
            assert found.gap > 1e-3
    assert gaps["b-softmax"] == pytest.approx(0.0, abs=1e-9)
    # Each activation contains the one before it.
    assert gaps["softmax"] >= gaps["softmax-v"] >= 0
    assert gaps["softmax-1"] < gaps["softmax-v"]


def test_more_heads_than_support_points_do_not_help() -> None:
    task = Task(4, flipped_spike([[1.5]]))
    found = minimize_loss(task, Attention("b-softmax", 3), starts=3)
    assert found.gap >= -found.gap_error - 1e-9


def test_another_optimizer_finds_nothing_lower() -> None:
    """Nelder and Mead's simplex from random states, r = 0."""
    task, layer = Task(5, flipped_spike([[1.5]])), Attention("softmax-v", 2)
    found = minimize_loss(task, layer, starts=4)
    rng = np.random.default_rng(3)

    def loss(x: np.ndarray) -> float:
        state = State(x[:2, None], np.zeros((2, 2)), v=x[2:])
        return float(population_loss(state, task, layer, 1e-6).value)

    best = min(
        minimize(loss, rng.normal(size=4), method="Nelder-Mead", options={"maxfev": 120}).fun
        for _ in range(4)
    )
    assert found.loss <= best + 1e-8
    assert found.loss == pytest.approx(best, abs=1e-3)


def test_results_are_reproducible_and_input_checked() -> None:
    task, layer = Task(3, isotropic(1, 2.0)), Attention("softmax", 2)
    heard: list[float] = []
    one = minimize_loss(task, layer, starts=3, seed=5, progress=heard.append)
    two = minimize_loss(task, layer, starts=2, seed=5)
    np.testing.assert_array_equal(one.found[:2], two.found)
    assert heard == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert "gap to Bayes" in repr(one)
    with pytest.raises(InputError, match=r"^starts: "):
        minimize_loss(task, layer, starts=0)
    with pytest.raises(InputError, match=r"^prior: .* expected a discrete prior"):
        bayes_softmax_optimum(task)
