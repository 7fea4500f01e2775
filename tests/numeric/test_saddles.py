"""Stationary states against the exact gradient, closed forms, other root finders and other H."""

from functools import cache

import numpy as np
import pytest
from scipy.optimize import root

from numeric.errors import InputError
from numeric.loss import Loss, population_loss
from numeric.prior import DiscretePrior, GaussianPrior, MixturePrior, Prior, flipped_spike, marginal
from numeric.saddles import (
    Saddle,
    nearby_saddle,
    origin_saddle,
    stationary_state,
    unspecialized_saddle,
)
from numeric.spectrum import Spectrum, hessian_spectrum
from numeric.task import Attention, State, Task
from tests.numeric.oracle import NAMES

MEAN = Task(5, GaussianPrior([1.0], [[1.0]]))
CENTRED = Task(5, GaussianPrior([0.0, 0.0], [[4.0, 0.0], [0.0, 2.0]]))
AVERAGED = ("softmax", "b-softmax", pytest.param("softplus", marks=pytest.mark.slow))
RESTING = [name for name in NAMES if name != "softmax-1"]  # softmax-1 never rests with a mean


def largest(loss: Loss) -> float:
    return max(float(np.abs(x).max()) for x in (loss.m, loss.b, loss.v) if x is not None)


def expanded(spectrum: Spectrum) -> np.ndarray:
    return np.sort(np.repeat(spectrum.eigenvalues, spectrum.multiplicities))


def heads_of(name: str) -> int:
    return 1 if name in ("linear", "erf", "softplus") else 4


@cache
def unspecialized(name: str, heads: int) -> Saddle:
    return unspecialized_saddle(MEAN, Attention(name, heads))


@cache
def learned_first(name: str, heads: int = 2) -> Saddle:
    """Two or three heads that know the first of two features."""
    m = np.array([[0.5, 0.1], [-0.6, 0.2], [0.4, 0.3]])[:heads]
    start = State(m, 0.1 * np.eye(heads))
    return stationary_state(CENTRED, Attention(name, heads), start, learned=[0])


def check(saddle: Saddle, task: Task, attention: Attention) -> None:
    """What every stationary state promises, evaluated independently."""
    loss = population_loss(saddle.state, task, attention, 1e-12)
    assert largest(loss) < 1e-9
    assert abs(saddle.loss - float(loss.value)) <= saddle.loss_error + float(loss.error)
    assert not saddle.state.r.any()
    assert not np.delete(saddle.state.m, saddle.learned, axis=1).any()
    features, size = task.prior.features, len(attention.parameters)
    spectrum = saddle.spectrum
    assert spectrum.multiplicities.sum() == attention.heads * (features + size + 1)
    bulk = np.linalg.eigvalsh(2 * loss.r)
    found = np.repeat(
        spectrum.eigenvalues[spectrum.residual], spectrum.multiplicities[spectrum.residual]
    )
    bound = spectrum.errors.max() + 2 * attention.heads * float(loss.gradient_error)
    assert np.abs(np.sort(found) - bulk).max() <= bound
    assert (
        saddle.index
        == spectrum.multiplicities[spectrum.eigenvalues < -spectrum.errors - 1e-12].sum()
    )


@pytest.mark.parametrize("name", NAMES)
def test_origin_without_mean(name: str) -> None:
    attention = Attention(name, heads_of(name))
    saddle = origin_saddle(CENTRED, attention)
    check(saddle, CENTRED, attention)
    assert not saddle.state.m.any()
    assert saddle.learned == ()
    assert saddle.loss == pytest.approx(1 - 1 / 5, abs=1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_origin_is_that_of_the_closed_form(name: str) -> None:
    attention = Attention(name, heads_of(name))
    found, closed = (
        origin_saddle(CENTRED, attention).spectrum,
        hessian_spectrum(CENTRED, attention),
    )
    numbers = dict(zip(found.sectors, found.eigenvalues, strict=True))
    for sector, value in zip(closed.sectors, closed.eigenvalues, strict=True):
        assert abs(numbers[sector] - value) <= found.errors.max() + 1e-12, sector


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow if x in ("softmax-v", "erf") else ()) for x in RESTING],
)
def test_unspecialized(name: str) -> None:
    heads = heads_of(name)
    saddle = unspecialized(name, heads)
    check(saddle, MEAN, Attention(name, heads))
    assert saddle.learned == (0,)
    assert (saddle.state.m == saddle.state.m[:1]).all()
    assert saddle.state.m[0, 0] > 0.1
    assert saddle.position_error < 1e-7


@pytest.mark.parametrize("name", AVERAGED)
def test_many_heads_rest_where_few_do(name: str) -> None:
    """Averaged heads: the same state and loss, and eigenvalues that scale as 1/H."""
    few, many = unspecialized(name, 4), unspecialized(name, 64)
    assert np.abs(many.state.m[0] - few.state.m[0]).max() < 1e-7
    assert many.loss == pytest.approx(few.loss, abs=1e-9)
    assert many.spectrum.sectors == few.spectrum.sectors
    bound = 64 * many.spectrum.errors + 4 * few.spectrum.errors + 1e-10
    apart = np.abs(64 * many.spectrum.eigenvalues - 4 * few.spectrum.eigenvalues)
    assert (apart <= bound).all()
    assert bound.max() < 1e-5
    counts = np.where(few.spectrum.multiplicities == 3, 63, 1)
    assert (many.spectrum.multiplicities == counts).all()


def test_linear_attention_in_closed_form() -> None:
    """``E = 1 - 2 v (1 + m) + v^2 (5 + 2 m + 7 m^2)``: m = 2/3, v = 3/17, E = 12/17."""
    saddle = unspecialized("linear", 1)
    m, v = 2 / 3, 3 / 17
    assert saddle.state.v is not None
    apart = np.hypot(saddle.state.m[0, 0] - m, saddle.state.v[0] - v)
    assert apart <= saddle.position_error + 1e-14
    assert abs(saddle.loss - 12 / 17) <= saddle.loss_error
    mixed = -2 + 2 * v * (2 + 14 * m)
    hessian = [[14 * v**2, mixed], [mixed, 2 * (5 + 2 * m + 7 * m**2)]]
    expected = np.sort([*np.linalg.eigvalsh(hessian), 10 * v**2])
    assert np.abs(expanded(saddle.spectrum) - expected).max() <= saddle.spectrum.errors.max()
    assert saddle.spectrum.errors.max() < 1e-6


def test_a_start_nearby_leads_to_the_same_state() -> None:
    there = unspecialized("softmax", 4)
    start = State(there.state.m + 0.05, np.zeros((4, 4)))
    again = unspecialized_saddle(MEAN, Attention("softmax", 4), start)
    apart = np.linalg.norm(again.state.m - there.state.m)
    assert apart <= again.position_error + there.position_error


@pytest.mark.parametrize("name", AVERAGED)
def test_one_feature_learned(name: str) -> None:
    saddle = learned_first(name)
    check(saddle, CENTRED, Attention(name, 2))
    assert saddle.learned == (0,)
    assert np.linalg.norm(saddle.state.m[:, 0]) > 0.5
    moved = saddle.state.m + np.array([[1e-3, 0.4], [-2e-3, 0.1]])
    start = State(moved, np.eye(2), b=saddle.state.b)
    near = nearby_saddle(CENTRED, Attention(name, 2), start, [0])
    assert near is not None
    check(near, CENTRED, Attention(name, 2))
    apart = np.abs(near.state.m - saddle.state.m).max()
    # Biases may rest together on a line; then alignments have one place all the same.
    assert apart <= near.position_error + saddle.position_error + 1e-9


def test_three_heads_have_one_unstable_direction() -> None:
    saddle = learned_first("softmax", 3)
    assert saddle.index == 1
    sector = saddle.spectrum.sectors[int(np.argmax(saddle.spectrum.unstable))]
    assert sector == "difference, feature 2"


@pytest.mark.parametrize("which", ["alike", "learned"])
def test_errors_cover_another_root_finder(which: str) -> None:
    saddle, heads, task = unspecialized("softmax", 4), 4, MEAN
    if which == "learned":
        saddle, heads, task = learned_first("softmax", 2), 2, CENTRED
    attention, shape = Attention("softmax", heads), saddle.state.m.shape

    def at(x: np.ndarray) -> State:
        m = np.zeros(shape)
        m[:, 0] = x
        return State(m, np.zeros((heads, heads)))

    def slope(x: np.ndarray) -> np.ndarray:
        return population_loss(at(x), task, attention, 1e-13).m[:, 0]

    found = root(slope, saddle.state.m[:, 0] + 1e-4, method="hybr", options={"xtol": 1e-13}).x
    assert np.abs(slope(found)).max() < 1e-12
    assert np.linalg.norm(found - saddle.state.m[:, 0]) <= saddle.position_error + 1e-11
    better = hessian_spectrum(task, attention, at(found))
    apart = np.abs(expanded(better) - expanded(saddle.spectrum)).max()
    assert apart <= better.errors.max() + saddle.spectrum.errors.max()
    assert saddle.spectrum.errors.max() < 1e-6


def test_nothing_learned_is_the_origin() -> None:
    state = State(np.full((2, 2), 0.3), np.eye(2))
    saddle = nearby_saddle(CENTRED, Attention("softmax", 2), state, [])
    assert saddle is not None
    assert not saddle.state.m.any()
    assert saddle.index == 3


def test_what_is_refused() -> None:
    attention, state = Attention("softmax", 1), State([[0.5, 0.1]], [[0.0]])
    with pytest.raises(InputError, match=r"^prior: .* expected no mean signal"):
        origin_saddle(MEAN, attention)
    for function in (stationary_state, nearby_saddle):
        with pytest.raises(InputError, match=r"^learned: found \[0, 0\], expected different"):
            function(CENTRED, attention, state, [0, 0])
        for bad in (2, -1, 0.5):
            with pytest.raises(InputError, match=r"^learned: .* whole number >= 0 and <= 1"):
                function(CENTRED, attention, state, [bad])  # type: ignore[list-item]
        with pytest.raises(InputError, match=r"^m: "):
            function(MEAN, attention, state, [0])
        with pytest.raises(InputError, match=r"^learned: .* in which the prior is not symmetric"):
            function(Task(3, GaussianPrior([0.0, 0.5], np.eye(2))), attention, state, [0])


LAWS: list[Prior] = [
    GaussianPrior([0.1, 0.2, 0.3], np.diag([1.0, 2.0, 3.0])),
    DiscretePrior([[1.5, 0.0, 1.0], [-0.5, 1.0, 2.0]], [0.4, 0.6]),
    flipped_spike(np.eye(3)),
    MixturePrior([0.3, 0.7], np.arange(6.0).reshape(2, 3), [np.eye(3), np.full((3, 3), 0.5)]),
]


@pytest.mark.parametrize("prior", LAWS)
def test_marginals(prior: Prior) -> None:
    chosen = [2, 0]
    part = marginal(prior, chosen)
    assert part.features == 2
    assert part.mean == pytest.approx(prior.mean[chosen], abs=1e-15)
    assert part.covariance == pytest.approx(prior.covariance[np.ix_(chosen, chosen)], abs=1e-14)
    assert marginal(prior, []).features == 0
    m, attention = np.array([[0.4, 0.0, -0.7]]), Attention("softmax", 1)
    whole = population_loss(State(m, [[0.2]]), Task(3, prior), attention)
    less = population_loss(State(m[:, chosen], [[0.2]]), Task(3, part), attention)
    assert float(less.value) == pytest.approx(float(whole.value), abs=1e-9)
    assert less.m == pytest.approx(whole.m[:, chosen], abs=1e-8)
