"""Predicted waiting times against the flow itself, laws in log D, and growth rates at saddles."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from numeric import initial_state
from numeric.errors import InputError
from numeric.flow import integrate_flow
from numeric.hessian import factor_hessian
from numeric.ladder import Rung, saddle_ladder
from numeric.prior import GaussianPrior
from numeric.saddles import stationary_state
from numeric.task import Attention, State, Task

PRIOR = GaussianPrior([0.0, 0.0], [[4.0, 0.0], [0.0, 2.0]])
ETA = 0.01


def drawn(heads: int, tokens: int, dimension: int, seed: int) -> tuple[State, Task, Attention]:
    task, attention = Task(tokens, PRIOR), Attention("softmax", heads)
    return initial_state(task, attention, ETA, dimension, seed), task, attention


@cache
def climbed(heads: int, tokens: int, dimension: int, seed: int) -> tuple[Rung, ...]:
    return saddle_ladder(*drawn(heads, tokens, dimension, seed))


def check(rungs: tuple[Rung, ...], state: State, task: Task, attention: Attention) -> None:
    """What every ladder promises, and its passages against the flow's."""
    finite = [x for x in rungs if np.isfinite(x.passage)]
    path = integrate_flow(state, task, attention, [0.0, 1.2 * finite[-1].passage + 20])
    before, learned = 0.0, ()
    for rung in rungs:
        assert rung.learned == tuple(sorted(learned))
        assert not rung.state.r.any()
        assert not np.delete(rung.state.m, rung.learned, axis=1).any()
        if rung.feature is None:
            break
        assert rung.waiting == pytest.approx(rung.passage - before, rel=1e-12)
        flown = path.first_passage[rung.feature]
        assert rung.passage == pytest.approx(flown, rel=5e-3)
        assert rung.rate > 0
        assert np.isfinite(rung.leading)
        before, learned = rung.passage, (*learned, rung.feature)
    missing = set(range(task.prior.features)) - set(learned)
    assert all(np.isnan(path.first_passage[f]) for f in missing)
    assert rungs[-1].feature is None
    assert rungs[-1].passage == np.inf


@pytest.mark.parametrize(
    ("heads", "tokens", "dimension", "seed"),
    [
        (2, 10, 10**4, 0),
        pytest.param(2, 10, 10**4, 4, marks=pytest.mark.slow),
        (2, 10, 10**8, 3),
        (4, 5, 10**4, 1),
        pytest.param(4, 5, 10**4, 0, marks=pytest.mark.slow),
        pytest.param(4, 5, 10**8, 0, marks=pytest.mark.slow),
    ],
)
def test_passages_are_those_of_the_flow(heads: int, tokens: int, dimension: int, seed: int) -> None:
    rungs = climbed(heads, tokens, dimension, seed)
    check(rungs, *drawn(heads, tokens, dimension, seed))
    # The stronger feature first; two heads cannot hold both.
    assert [x.feature for x in rungs] == ([0, None] if heads == 2 else [0, 1, None])


@pytest.mark.parametrize(
    ("heads", "tokens", "dimension", "seed"),
    [
        (2, 10, 10**4, 2),
        (2, 10, 10**4, 1),
        pytest.param(4, 5, 10**4, 2, marks=pytest.mark.slow),
    ],
)
def test_draws_that_a_ladder_must_not_fail_at(
    heads: int, tokens: int, dimension: int, seed: int
) -> None:
    state, task, attention = drawn(heads, tokens, dimension, seed)
    check(saddle_ladder(state, task, attention), state, task, attention)


@pytest.mark.parametrize(("heads", "tokens"), [(2, 10), (4, 5)])
def test_the_first_wait_is_that_of_the_origin(heads: int, tokens: int) -> None:
    """Head differences grow at ``(2 / (H L)) (1 - 1/L) (1 - 2/L) nu``."""
    seed, dimension = (0, 10**4) if heads == 2 else (1, 10**4)
    state, *_ = drawn(heads, tokens, dimension, seed)
    first = climbed(heads, tokens, dimension, seed)[0]
    rate = 2 / (heads * tokens) * (1 - 1 / tokens) * (1 - 2 / tokens) * 4.0
    assert first.rate == pytest.approx(rate, abs=1e-9)
    leading = -np.log(np.linalg.norm(state.m[:, 0])) / rate
    assert first.leading == pytest.approx(leading, rel=1e-8)
    assert first.passage == pytest.approx(leading, rel=0.5)
    assert first.saddle is not None
    assert not first.saddle.state.m.any()


def test_passages_grow_with_half_the_logarithm_of_the_dimension() -> None:
    """The same draw, scaled as ``1 / sqrt D``: both passages, by 1 / (2 rate) each unit of log D."""
    state, task, attention = drawn(2, 10, 10**8, 3)
    passages = [climbed(2, 10, 10**8, 3)[0].passage]
    ratio = 1e4
    for _ in range(2):
        state = replace(state, m=state.m / np.sqrt(ratio))
        passages.append(saddle_ladder(state, task, attention)[0].passage)
    slopes = np.diff(passages) / np.log(ratio)
    expected = 1 / (2 * climbed(2, 10, 10**8, 3)[0].rate)
    assert slopes == pytest.approx([expected] * 2, rel=2e-3)


@pytest.mark.slow
def test_later_waits_grow_with_the_logarithm_too() -> None:
    """What the second feature gains while the first one grows shortens its own way."""
    state, task, attention = drawn(4, 5, 10**8, 0)
    one = climbed(4, 5, 10**8, 0)
    ratio = 1e4
    two = saddle_ladder(replace(state, m=state.m / np.sqrt(ratio)), task, attention)
    first = np.log(ratio) / (2 * one[0].rate)
    assert two[0].passage - one[0].passage == pytest.approx(first, rel=5e-3)
    # At the origin it grows half as fast as the first, so it loses half of the logarithm.
    second = np.log(ratio) / (4 * one[1].rate)
    assert two[1].waiting - one[1].waiting == pytest.approx(second, rel=0.02)


def test_growth_at_a_partially_specialized_saddle_is_the_flows() -> None:
    """A displacement of 1e-4 along the unstable eigenvector, until it has grown tenfold."""
    task, attention = Task(5, PRIOR), Attention("softmax", 3)
    start = State([[0.5, 0.0], [-0.6, 0.0], [0.4, 0.0]], np.zeros((3, 3)))
    saddle = stationary_state(task, attention, start, learned=[0])
    assert saddle.index == 1
    values, vectors = np.linalg.eigh(factor_hessian(saddle.state, task, attention).matrix)
    unstable = vectors[:, 0].reshape(3, 2)
    assert values[0] == pytest.approx(saddle.spectrum.eigenvalues[0], abs=1e-7)
    assert np.abs(unstable[:, 0]).max() < 1e-6
    tau = np.linspace(0.0, np.log(10) / -values[0], 6)
    away = replace(saddle.state, m=saddle.state.m + 1e-4 * unstable)
    path = integrate_flow(away, task, attention, tau, digits=10.0, rtol=1e-10)
    size = np.log(np.einsum("thf,hf->t", path.m - saddle.state.m, unstable))
    # Cubic terms: the square of the displacement, relative.
    assert np.diff(size) / np.diff(tau) == pytest.approx([-values[0]] * 5, rel=1e-3)


def test_what_is_refused() -> None:
    attention = Attention("softmax", 2)
    state = State([[1e-4, 2e-4], [-1e-4, 1e-4]], 1e-4 * np.eye(2))
    with pytest.raises(InputError, match=r"^prior: .* expected no mean signal"):
        saddle_ladder(state, Task(5, GaussianPrior([0.1, 0.0], np.eye(2))), attention)
    still = State([[1e-4, 0.0], [-1e-4, 0.0]], 1e-4 * np.eye(2))
    with pytest.raises(InputError, match=r"^m: .* expected an alignment with every feature"):
        saddle_ladder(still, Task(5, PRIOR), attention)
    with pytest.raises(InputError, match=r"^state: found a batch"):
        saddle_ladder(State(state.m[None], state.r[None]), Task(5, PRIOR), attention)
    with pytest.raises(InputError, match=r"^m: "):
        saddle_ladder(state, Task(5, PRIOR), Attention("softmax", 3))


def test_correlated_features_are_refused() -> None:
    state = State([[1e-4, 2e-4], [-1e-4, 1e-4]], np.zeros((2, 2)))
    task = Task(10, GaussianPrior([0.0, 0.0], [[3.0, 1.0], [1.0, 3.0]]))
    with pytest.raises(InputError, match=r"^prior: "):
        saddle_ladder(state, task, Attention("softmax", 2))


def test_two_tokens_never_leave_the_origin() -> None:
    """``1 - 2/L`` vanishes: nothing grows."""
    state = State([[1e-4, 2e-4], [-1e-4, 1e-4]], 1e-4 * np.eye(2))
    (rung,) = saddle_ladder(state, Task(2, PRIOR), Attention("softmax", 2))
    assert rung.feature is None
    assert rung.passage == rung.waiting == np.inf
    assert rung.learned == ()


@pytest.mark.slow
def test_a_drift_that_lets_a_feature_grow_is_followed() -> None:
    """Softmax-1: when the first feature is learned the second one shrinks, until biases have moved."""
    task = Task(5, GaussianPrior([0.0, 0.0], np.diag([4.0, 2.0])))
    attention = Attention("softmax-1", 3)
    state = initial_state(task, attention, 0.1, 10**6, 7)
    rungs = saddle_ladder(state, task, attention)
    assert [x.feature for x in rungs] == [0, 1, None]
    path = integrate_flow(
        replace(state, r=np.zeros((3, 3))), task, attention, [0.0, 2700.0], digits=8.0, rtol=1e-10
    )
    assert rungs[1].passage == pytest.approx(path.first_passage[1], rel=5e-3)
