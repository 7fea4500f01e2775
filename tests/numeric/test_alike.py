"""Heads that are all alike: two sectors against the dense Hessian, the loss, and laws in H."""

from dataclasses import replace

import numpy as np
import pytest

from numeric.alike import AlikeHessian, alike_gradient, alike_hessian, alike_loss, is_alike
from numeric.errors import InputError
from numeric.hessian import FactorHessian, factor_hessian, loss_hessian
from numeric.loss import Loss, population_loss
from numeric.prior import DiscretePrior, GaussianPrior, Prior
from numeric.task import Attention, State, Task
from tests.numeric.oracle import EXACT, LAYERS, NAMES

PRIORS: dict[str, Prior] = {
    "gaussian": GaussianPrior([0.6, -0.3], [[1.0, 0.3], [0.3, 0.5]]),
    "discrete": DiscretePrior([[1.5, 0.0], [-0.5, 1.0], [0.2, -0.8]], [0.4, 0.4, 0.2]),
}
FEATURES = 2


def alike(name: str, heads: int, own: float = 0.0, other: float = 0.0) -> State:
    """Equal heads, ``r = own I + other 11^T``; values are shared out among the heads."""
    layer = LAYERS[name]
    total = 1.0 if layer.normalization == "per-head" else 0.3
    trained = {"b": np.full(heads, 0.3), "v": np.full(heads, 0.7 * total / heads)}
    r = own * np.eye(heads) + other * np.ones((heads, heads))
    given = {key: trained[key] for key in layer.trained}
    return State(np.tile([0.4, -0.2], (heads, 1)), r, **given)


def first_row(loss: Loss, attention: Attention) -> np.ndarray:
    """Gradient in the coordinates of the first head."""
    return np.concatenate([loss.m[0], *(getattr(loss, p)[:1] for p in attention.parameters)])


def both(
    name: str, heads: int, kind: str
) -> tuple[State, Task, Attention, AlikeHessian, FactorHessian]:
    state, task, attention = alike(name, heads), Task(4, PRIORS[kind]), Attention(name, heads)
    dense = factor_hessian(state, task, attention, 1e-10, trained=True)
    return state, task, attention, alike_hessian(state, task, attention), dense


@pytest.mark.parametrize("kind", PRIORS)
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_sectors_make_up_the_dense_hessian(name: str, heads: int, kind: str) -> None:
    _, _, _, found, dense = both(name, heads, kind)
    size = len(found.own)
    assert size == FEATURES + len(LAYERS[name].trained)
    blocks = dense.matrix.reshape(heads, size, heads, size)
    # A head and the average of the others, so that one wrong pair of heads would show.
    own = blocks[0, :, 0]
    others = blocks[0, :, 1:].mean(axis=1) if heads > 1 else np.zeros_like(own)
    mean, difference = own + (heads - 1) * others, own - others
    bound = found.error + dense.error
    assert np.linalg.norm(found.mean - mean, 2) <= bound
    if heads > 1:
        assert np.linalg.norm(found.difference - difference, 2) <= bound
    signal = np.s_[:FEATURES, :FEATURES]
    if name != "b-softmax":
        assert np.abs((found.mean - mean)[signal]).max() < 1e-9
        assert heads == 1 or np.abs((found.difference - difference)[signal]).max() < 1e-9
    expected = [np.linalg.eigvalsh(found.mean)]
    expected += [np.linalg.eigvalsh(found.difference)] * (heads - 1)
    values = np.linalg.eigvalsh(dense.matrix)
    assert np.abs(np.sort(np.concatenate(expected)) - values).max() <= bound
    assert bound < 1e-5


@pytest.mark.parametrize("kind", PRIORS)
@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("name", NAMES)
def test_loss_gradient_and_bulk(name: str, heads: int, kind: str) -> None:
    state, task, attention, found, dense = both(name, heads, kind)
    loss = population_loss(state, task, attention, 1e-12)
    value, error = alike_loss(state, task, attention)
    assert abs(value - float(loss.value)) <= error + float(loss.error)
    assert error < 1e-9
    expected = first_row(loss, attention)
    apart = np.abs(found.gradient - expected).max()
    assert apart <= found.gradient_error + float(loss.gradient_error)
    assert found.gradient_error < 1e-8
    assert np.abs(alike_gradient(state, task, attention) - expected).max() < 1e-7
    bulk = 2 * loss.r
    sectors = [(found.own_bulk + (heads - 1) * found.other_bulk, bulk.sum() / heads)]
    if heads > 1:
        sectors.append((found.own_bulk - found.other_bulk, bulk[0, 0] - bulk[0, 1]))
    for one, other in sectors:
        assert abs(one - other) <= found.bulk_error + 2 * heads * float(loss.gradient_error)
    values = np.sort([sectors[0][0]] + [x[0] for x in sectors[1:]] * (heads - 1))
    spread = np.abs(values - np.linalg.eigvalsh(dense.bulk)).max()
    assert spread <= found.bulk_error + dense.bulk_error


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("name", EXACT)
def test_keys_may_overlap(name: str, heads: int) -> None:
    """``r = r1 I + r0 11^T``: the block in m, gradient and loss."""
    state, task = alike(name, heads, 0.2, 0.3), Task(4, PRIORS["gaussian"])
    attention = Attention(name, heads)
    found = alike_hessian(state, task, attention)
    size = heads * FEATURES
    dense = loss_hessian(state, task, attention, 1e-10).matrix[:size, :size]
    blocks = dense.reshape(heads, FEATURES, heads, FEATURES)
    signal = np.s_[:FEATURES, :FEATURES]
    assert np.abs(found.own[signal] - blocks[0, :, 0]).max() < 1e-9
    if heads > 1:
        assert np.abs(found.other[signal] - blocks[0, :, heads - 1]).max() < 1e-9
    loss = population_loss(state, task, attention, 1e-12)
    assert np.abs(found.gradient - first_row(loss, attention)).max() < 1e-9
    value, error = alike_loss(state, task, attention)
    assert abs(value - float(loss.value)) <= error + float(loss.error)


def test_keys_of_pooled_heads_may_overlap() -> None:
    state, task = alike("b-softmax", 2, 0.2, 0.3), Task(4, PRIORS["discrete"])
    attention = Attention("b-softmax", 2)
    found = alike_hessian(state, task, attention)
    dense = factor_hessian(state, task, attention, trained=True)
    blocks = dense.matrix.reshape(2, 5, 2, 5)
    kept = [0, 1, 4]  # two features and the bias; the keys' span lies between
    own, other = (blocks[0][np.ix_(kept, [h], kept)][:, 0] for h in (0, 1))
    bound = found.error + dense.error
    assert np.linalg.norm(found.mean - own - other, 2) <= bound
    assert np.linalg.norm(found.difference - own + other, 2) <= bound
    assert bound < 1e-5


@pytest.mark.parametrize("name", NAMES)
def test_many_heads_scale_as_one_over_their_number(name: str) -> None:
    """Values shared out among H heads leave the loss alone; derivatives in one head fall as 1/H."""
    task, found = Task(4, PRIORS["gaussian"]), {}
    for heads in (4, 64):
        state, attention = alike(name, heads), Attention(name, heads)
        block = alike_hessian(state, task, attention)
        signal = np.s_[:FEATURES, :FEATURES]
        assert np.isfinite([block.error, block.bulk_error, block.gradient_error]).all()
        found[heads] = (
            (
                heads * block.mean[signal],
                heads * block.difference[signal],
                heads * block.gradient[:FEATURES],
                heads * (block.own_bulk + (heads - 1) * block.other_bulk),
                heads * (block.own_bulk - block.other_bulk),
            ),
            (alike_loss(state, task, attention)[0], heads * (block.error + block.bulk_error)),
        )
    (few, (loss, error)), (many, (same, larger)) = found[4], found[64]
    for x, y in zip(few, many, strict=True):
        size = np.abs(few[0]).max()
        assert np.abs(x - y).max() <= error + larger + 1e-7 * size
        assert np.abs(x - y).max() < (1e-4 if LAYERS[name].trained else 1e-6) * max(size, 1.0)
    assert same == pytest.approx(loss, abs=1e-9)


def test_averaged_heads_move_together_as_one() -> None:
    task = Task(4, PRIORS["gaussian"])
    one, many = (alike_hessian(alike("softmax", h), task, Attention("softmax", h)) for h in (1, 64))
    assert 64 * many.mean == pytest.approx(one.mean, abs=1e-8)
    assert 64 * many.gradient == pytest.approx(one.gradient, abs=1e-8)


def test_what_is_alike() -> None:
    state = alike("softmax-1", 3, 0.2, 0.3)
    assert state.b is not None and state.v is not None
    assert is_alike(state)
    assert is_alike(State([[0.3, 0.1]], [[2.0]]))
    assert is_alike(State(np.zeros((3, 0)), np.eye(3)))
    uneven = 0.5 * np.eye(3)
    uneven[0, 1] = uneven[1, 0] = 0.1
    unit = np.array([1e-9, 0.0, 0.0])
    for changed in (
        replace(state, m=state.m + unit[:, None]),
        replace(state, b=state.b + unit),
        replace(state, v=state.v + unit),
        replace(state, r=state.r + np.diag(unit)),
        replace(state, r=uneven),
    ):
        assert not is_alike(changed)
        with pytest.raises(InputError, match=r"^state: .* expected heads that are all alike"):
            alike_hessian(changed, Task(3, PRIORS["gaussian"]), Attention("softmax-1", 3))


def test_bad_states_are_refused() -> None:
    task, attention = Task(3, PRIORS["gaussian"]), Attention("softmax", 2)
    with pytest.raises(InputError, match=r"^state: found a batch"):
        alike_hessian(State(np.zeros((3, 2, 2)), np.zeros((3, 2, 2))), task, attention)
    with pytest.raises(InputError, match=r"^m: "):
        alike_hessian(alike("softmax", 3), task, attention)
    with pytest.raises(InputError, match=r"^b: "):
        alike_hessian(alike("b-softmax", 2), task, attention)
