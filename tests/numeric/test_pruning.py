"""Pruning: twins cost nothing, each step is the best of all, retraining helps."""

import numpy as np
import pytest

from numeric.errors import InputError
from numeric.loss import population_loss
from numeric.prior import GaussianPrior, flipped_spike
from numeric.pruning import prune_heads
from numeric.task import Attention, State, Task

TASK = Task(5, GaussianPrior([0.0, 0.0], [[4.0, 0.0], [0.0, 2.0]]))
M = np.array([[1.5, 0.1], [-1.4, 0.2], [0.3, 1.2], [0.1, 0.1]])


def loss(state: State, task: Task, layer: Attention) -> float:
    return float(population_loss(state, task, layer, 1e-9).value)


def without(state: State, h: int) -> State:
    b, v = (None if x is None else np.delete(x, h) for x in (state.b, state.v))
    r = np.delete(np.delete(state.r, h, 0), h, 1)
    return State(np.delete(state.m, h, 0), r, b, v)


@pytest.mark.parametrize("name", ["softmax", "softmax-1", "b-softmax"])
def test_each_removal_is_the_best(name: str) -> None:
    layer = Attention(name, 4)
    state = State(M, 0.05 * np.ones((4, 4))).check(layer, 2)
    found = prune_heads(state, TASK, layer)
    assert found.losses[0] == pytest.approx(loss(state, TASK, layer), abs=1e-7)
    left, kept = state, list(range(4))
    for step, head in enumerate(found.order):
        smaller = Attention(name, len(kept) - 1)
        each = [loss(without(left, i), TASK, smaller) for i in range(len(kept))]
        at = kept.index(int(head))
        assert found.losses[step + 1] == pytest.approx(each[at], abs=1e-7)
        assert each[at] <= min(each) + 1e-6
        left = without(left, at)
        kept.pop(at)
        np.testing.assert_array_equal(found.states[step + 1].m, M[kept])
    assert len(kept) == 1


def test_a_twin_costs_nothing_if_what_is_left_is_trained_again() -> None:
    """Two heads at each of +-theta share the weight of one; so do the values of softmax-v."""
    task, layer = Task(4, flipped_spike([[1.5]])), Attention("b-softmax", 4)
    state = State([[1.5], [-1.5], [1.5], [-1.5]], np.zeros((4, 4)), b=[0.3, 0.0, -0.7, 0.0])
    state = State(state.m, state.r, b=state.b - np.logaddexp(0.3, -0.7) + np.logaddexp(0, 0))
    again = prune_heads(state, task, layer, retrain=True)
    assert again.losses[2] == pytest.approx(again.losses[0], abs=1e-7)
    assert again.losses[3] > again.losses[0] + 0.01
    assert again.removable(1e-4) == 2
    layer = Attention("softmax-v", 3)
    state = State([[1.0], [1.0], [-1.0]], np.zeros((3, 3)), v=[0.1, 0.4, 0.5])
    left, again = (prune_heads(state, task, layer, retrain=x) for x in (False, True))
    assert again.losses[1] == pytest.approx(again.losses[0], abs=1e-7)
    assert left.losses[1] > left.losses[0] + 1e-3
    assert (again.losses <= left.losses + 1e-9).all()


def test_counts_of_what_can_go() -> None:
    layer = Attention("softmax", 4)
    found = prune_heads(State(M, np.zeros((4, 4))), TASK, layer)
    limit = found.losses.max() / found.losses[0] - 1
    assert found.removable(limit) == 3
    assert found.removable(0.0) >= 0
    with pytest.raises(InputError, match=r"^cost: "):
        found.removable(-0.1)
    assert "removed in turn" in repr(found)


def test_one_head_and_a_wrong_state() -> None:
    found = prune_heads(State([[1.0, 0.0]], [[0.1]]), TASK, Attention("softmax", 1))
    assert len(found.order) == 0 and len(found.losses) == 1 and found.removable(1.0) == 0
    with pytest.raises(InputError):
        prune_heads(State(M, np.zeros((4, 4))), TASK, Attention("softmax", 3))
