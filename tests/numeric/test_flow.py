"""The order-parameter flow against the loss it descends, rates written by hand, and other solvers."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

from numeric import Attention, DiscretePrior, GaussianPrior, State, Task, flipped_spike, isotropic
from numeric.errors import FlowError, InputError
from numeric.flow import COMPLETED, METHODS, ON_SADDLE, Flow, excursions, integrate_flow
from numeric.loss import evaluate, population_loss
from numeric.noise import noise_matrix
from numeric.prior import Prior
from tests.numeric.oracle import LAYERS, NAMES, gradient, symmetric_gradient

ACTIVATIONS = ("softmax", "b-softmax")
START = {"b": np.array([0.3, -0.5]), "v": np.array([0.5, 0.2])}
TASK = Task(5, GaussianPrior([0.0, 0.0], [[4.0, 0.0], [0.0, 2.0]]))


def start(activation: str, r: np.ndarray | None = None) -> State:
    trained = {name: START[name] for name in Attention(activation, 2).parameters}
    r = np.array([[0.4, 0.1], [0.1, 0.2]]) if r is None else r
    return State([[0.5, -0.3], [-0.2, 0.6]], r, **trained)


def solve(activation: str, tau: ArrayLike, kappa: float = 0.0, **settings: Any) -> Flow:
    return integrate_flow(start(activation), TASK, Attention(activation, 2), tau, kappa, **settings)


def patience(most: int) -> Callable[[float], None]:
    calls = count()

    def progress(_: float) -> None:
        assert next(calls) < most, "far more derivatives than a flow needs, about 100 to 500"

    return progress


@pytest.mark.parametrize(
    ("activation", "kappa"),
    [("softmax", 0.8), ("softmax-1", 0.0), ("b-softmax", 0.0), ("linear", 0.0), ("erf", 0.1),
     *(pytest.param(*case, marks=pytest.mark.slow)
       for case in (("softmax-v", 0.0), ("softplus", 0.0), ("b-softmax", 0.8), ("softmax-1", 0.8)))],
)  # fmt: skip
def test_solution_obeys_the_equations(activation: str, kappa: float) -> None:
    """Its time derivative against the slopes of the loss's values (derive.task section 3)."""
    prior = DiscretePrior([[1.5, 0.0], [-0.5, 1.0]], [0.4, 0.6])
    # Without a denominator all is faster.
    scale = 0.05 if LAYERS[activation].normalization == "none" else 1.0
    task, attention, h = Task(4, prior), Attention(activation, 2), 0.05 * scale
    times = np.concatenate([[0.0], 0.5 * scale + h * np.arange(-2, 3)])
    path = integrate_flow(
        start(activation), task, attention, times, kappa, digits=9.0, rtol=1e-9, method="DOP853"
    )
    now = path.states.at(3)

    def value(**moved: np.ndarray) -> float:
        return float(evaluate(replace(now, **moved), task, attention, 10.0).value)

    for name in ("m", *attention.parameters):
        rate = np.tensordot([0, 1, -8, 0, 8, -1], getattr(path, name), 1) / (12 * h)
        slope = gradient(lambda x, name=name: value(**{name: x}), getattr(now, name), 0.02)
        assert rate == pytest.approx(-slope, abs=1e-6 / scale**2)
    rate = np.tensordot([0, 1, -8, 0, 8, -1], path.r, 1) / (12 * h)
    slope = symmetric_gradient(lambda r: value(r=r), now.r, 0.02)
    noise = noise_matrix(now, task, attention)[0]
    expected = -2 * (slope @ now.r + now.r @ slope) + kappa * noise
    assert rate == pytest.approx(expected, abs=1e-6 / scale**2)
    assert (path.b is None, path.v is None) == (now.b is None, now.v is None)
    if activation == "b-softmax":
        # A common shift of the biases changes nothing.
        assert path.b.sum(axis=1) == pytest.approx(START["b"].sum(), abs=1e-8)


@pytest.mark.parametrize("r", [np.full((2, 2), 0.7), np.zeros((2, 2)), np.diag([0.3, 0.0])])
@pytest.mark.parametrize("kappa", [0.0, 1.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_overlap_stays_positive_semidefinite(activation: str, kappa: float, r: np.ndarray) -> None:
    times = np.linspace(0, 2, 5)
    path = integrate_flow(start(activation, r), TASK, Attention(activation, 2), times, kappa)
    lowest = np.linalg.eigvalsh(path.r)[:, 0]
    assert lowest.min() > -1e-14
    assert np.abs(path.r - path.r.transpose(0, 2, 1)).max() == 0
    assert path.states.batch_shape == (5,)
    if kappa:  # Noise acts in all directions of the heads.
        assert lowest[-1] > 1e-3
    else:  # A factor flows: the rank stays.
        ranks = np.linalg.matrix_rank(path.r, tol=1e-9, hermitian=True)
        assert (ranks == np.linalg.matrix_rank(r)).all()
        assert path.noise_error == 0


@pytest.mark.parametrize(("activation", "kappa"), [("softmax", 0.0), ("b-softmax", 0.5)])
def test_solvers_agree(activation: str, kappa: float) -> None:
    times = np.linspace(0, 1.5, 4)
    paths = [
        solve(activation, times, kappa, digits=7.0, rtol=1e-7, method=method)
        for method in (("LSODA", "Radau", "DOP853") if kappa == 0 else ("LSODA", "DOP853"))
    ]
    for path in paths[1:]:
        assert np.abs(path.m - paths[0].m).max() < 1e-5
        assert np.abs(path.r - paths[0].r).max() < 1e-5
    assert (paths[0].tau == times).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_early_exponents(activation: str) -> None:
    """Both sectors and both features; rates from the expansion at the origin (derive.task section 5)."""
    tokens, heads = 5, 2
    for f, nu in enumerate((4.0, 2.0)):
        scale = 2 / (heads * tokens) * (1 - 1 / tokens)
        spread = scale * nu * ((1 - 2 / tokens) if activation == "softmax" else 1.0)
        mean = scale * (nu * (1 - 3 / tokens) - 1)
        for rate, heads_along in ((spread, [1.0, -1.0]), (mean, [1.0, 1.0])):
            m = np.zeros((2, 2))
            m[:, f] = 1e-4 * np.array(heads_along)
            times = np.linspace(0, 2 / abs(rate), 21)
            path = integrate_flow(State(m, np.zeros((2, 2))), TASK, Attention(activation, 2), times)
            size = path.m[:, :, f] @ np.array(heads_along)
            measured = np.polyfit(times, np.log(size), 1)[0]
            assert measured == pytest.approx(rate, rel=0.01), (f, heads_along)


def test_first_passage_is_where_a_dense_solution_crosses() -> None:
    """Two heads hold one of the two features: the other is passed, then forgotten."""
    times = np.linspace(0, 16, 161)
    state, attention = State([[0.4, -0.4], [-0.4, 0.4]], 0.01 * np.eye(2)), Attention("softmax", 2)
    path = integrate_flow(state, TASK, attention, times, threshold=0.6, digits=7.0, rtol=1e-7)
    norms = np.linalg.norm(path.m, axis=1)
    for f, passed in enumerate(path.first_passage):
        after = int(np.argmax(norms[:, f] > 0.6))
        crossing = brentq(CubicSpline(times, norms[:, f] - 0.6), times[after - 1], times[after])
        assert passed == pytest.approx(crossing, abs=1e-5)
    assert path.first_passage[0] < path.first_passage[1]
    assert path.status == COMPLETED
    (lost,) = path.excursions
    assert (lost.feature, lost.tau) == (1, times[norms[:, 1].argmax()])
    assert lost.drop == pytest.approx(1 - norms[-1, 1] / norms[:, 1].max(), abs=1e-12)


def test_first_passage_at_the_edges() -> None:
    """Beyond the threshold at the start; never within the horizon."""
    state, attention = State([[1.2, 0.1], [0.0, 0.1]], np.zeros((2, 2))), Attention("softmax", 2)
    for threshold, passages in ((1.0, [3.0, np.nan]), (0.05, [3.0, 3.0])):
        path = integrate_flow(state, TASK, attention, [3.0, 4.0], threshold=threshold)
        np.testing.assert_array_equal(path.first_passage, passages)


def test_excursions_of_given_norms() -> None:
    norms = [
        [0.5, 1.0, 2.0, 1.5, 3.0, 2.9],  # falls by a quarter, then recovers
        [1.0, 2.0, 4.0, 3.6, 3.6, 4.0],  # by exactly a tenth
        [0.9, 0.1, 0.2, 0.9, 0.1, 0.1],  # never learned
        [4.0, 0.1, 1.0, 1.1, 1.1, 1.0],  # loses a tenth after its late passage, not more
        [1.0, 1.0, 0.8, 1.0, 1.0, 0.4],  # twice: the larger drop counts
    ]
    m = np.einsum("h,ft->thf", [0.6, -0.8], norms)
    found = excursions(np.arange(6.0), m, np.array([1.0, 0.0, np.nan, 2.0, 0.0]))
    assert [(x.feature, x.tau) for x in found] == [(0, 2.0), (4, 0.0)]
    assert [x.drop for x in found] == pytest.approx([0.25, 0.6], abs=1e-12)


TWO_SPIKES = flipped_spike([[1.5, 0.0], [0.3, 1.0]])


@pytest.mark.parametrize("prior", [flipped_spike([[1.5]]), isotropic(2, 4.0), TWO_SPIKES])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_exactly_on_a_saddle(activation: str, prior: Prior) -> None:
    """Theta and -theta, m = 0: no direction is preferred, and none is invented."""
    state = State(np.zeros((2, prior.features)), [[0.5, 0.1], [0.1, 0.3]])
    attention, limit = Attention(activation, 2), patience(300)
    path = integrate_flow(state, Task(5, prior), attention, [0.0, 10.0], progress=limit)
    assert path.status == ON_SADDLE
    assert np.abs(path.m).max() < 1e-10
    assert np.isnan(path.first_passage).all()
    assert path.r[-1].trace() < path.r[0].trace()


def test_no_direction_is_invented_on_a_saddle() -> None:
    state = State(np.zeros((2, 2)), [[0.5, 0.1], [0.1, 0.3]])
    path = integrate_flow(state, Task(5, TWO_SPIKES), Attention("b-softmax", 2), [0.0, 400.0])
    assert path.status == ON_SADDLE
    assert np.abs(path.m).max() < 1e-6


def test_next_to_a_saddle() -> None:
    """It comes to an end, unless rounding would choose the direction."""
    attention, limit, r = Attention("softmax", 2), patience(2000), [[0.5, 0.1], [0.1, 0.3]]
    state = State([[1e-12, 0.0], [-1e-12, 0.0]], r)
    integrate_flow(state, Task(5, TWO_SPIKES), attention, [0.0, 30.0], progress=limit)
    with pytest.raises(FlowError, match="rounding"):
        integrate_flow(replace(state, m=state.m / 100), Task(5, TWO_SPIKES), attention, 30.0)


def escape_error(activation: str, digits: float, rtol: float) -> float:
    """A distance of 1e-12 instead of 1e-6 delays the escape by log(10^6) / rate: relative error."""
    rate = 2 / 10 * (1 - 1 / 5) * 4 * (0.6 if activation == "softmax" else 1.0)
    passages = []
    for distance in (1e-6, 1e-12):
        state, task = State([[distance], [-distance]], np.zeros((2, 2))), Task(5, isotropic(1, 4.0))
        attention, times = Attention(activation, 2), [0.0, 30 / rate]
        path = integrate_flow(
            state, task, attention, times, digits=digits, rtol=rtol, progress=patience(1500)
        )
        passages.append(float(path.first_passage[0]))
    return abs(passages[1] - passages[0] - np.log(1e6) / rate) / passages[1]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_escape_from_very_close_to_a_saddle(activation: str) -> None:
    """Biases at zero do not make the solver follow rounding either."""
    assert escape_error(activation, 6.0, 1e-6) < 4e-6


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_escape_time_to_a_millionth(activation: str) -> None:
    assert escape_error(activation, 9.0, 1e-9) < 1e-6


def test_escape_from_as_close_as_symmetry_allows() -> None:
    """Of a Gaussian prior the gradient's rounding is relative; a discrete one's hides the start."""
    layer, rate = Attention("softmax", 2), 0.384
    passages = [
        integrate_flow(
            State([[x], [-x]], np.zeros((2, 2))), Task(5, isotropic(1, 4.0)), layer, [0.0, 500.0]
        ).first_passage[0]
        for x in (1e-10, 1e-70)
    ]
    assert passages[1] - passages[0] == pytest.approx(60 * np.log(10) / rate, rel=1e-4)
    start = State([[1e-30], [-2e-30]], np.zeros((2, 2)))
    for prior in (flipped_spike([[2.0]]), DiscretePrior([[2.0], [-1.0]], [1 / 3, 2 / 3])):
        with pytest.raises(FlowError, match=r"^flow: alignments of 2e-30 are lost .* rounding"):
            integrate_flow(start, Task(5, prior), layer, [0.0, 50.0])


@pytest.mark.parametrize(
    ("state", "task", "layer"),
    [
        (
            State([[1e-13], [2e-13]], np.diag([400.0, 900.0])),
            Task(5, isotropic(1, 4.0)),
            Attention("softmax", 2),
        ),
        (State([[0.5]], [[0.1]], [-13.0]), Task(5, isotropic(1, 4.0)), Attention("erf", 1)),
        (
            State([[1e-15]], [[0.0]]),
            Task(5, GaussianPrior([1e-16], [[4.0]])),
            Attention("softmax", 1),
        ),
    ],
)
def test_small_gradients_that_are_not_lost(state: State, task: Task, layer: Attention) -> None:
    """Coarse quadrature, heads that barely feel the loss, or a small mean are no rounding."""
    path = integrate_flow(state, task, layer, [0.0, 1e-3], method="RK45")
    assert path.status == COMPLETED


@pytest.mark.parametrize("activation", NAMES)
def test_loss_decreases_without_noise(activation: str) -> None:
    horizon = 0.5 if LAYERS[activation].normalization == "none" else 10.0
    path = solve(activation, np.linspace(0, horizon, 21))
    assert (np.diff(path.loss) < 0).all()
    # The reported error of the loss is honest.
    for i in (0, 10, 20):
        exact = population_loss(path.states.at(i), TASK, Attention(activation, 2), 1e-9)
        assert abs(path.loss[i] - exact.value) <= 2 * path.loss_error + exact.error


def test_small_kappa_approaches_none() -> None:
    still, smaller, small = (
        solve("softmax", [0.0, 1.0], kappa, digits=7.0, rtol=1e-7).r[-1]
        for kappa in (0, 1e-3, 1e-2)
    )
    assert (small - still) / (smaller - still) == pytest.approx(np.full((2, 2), 10.0), rel=0.02)
    assert np.linalg.eigvalsh(small - still).min() > 1e-6


@pytest.mark.parametrize("method", METHODS)
def test_derivative_that_turns_nan(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for where in ("m", "r", "b", "v"):
        calls = count(1)

        def broken(*arguments: Any, calls: Any = calls, where: str = where) -> Any:
            loss = evaluate(*arguments)
            return replace(loss, **{where: np.full(2, np.nan)}) if next(calls) > 12 else loss

        monkeypatch.setattr("numeric.flow.evaluate", broken)
        with pytest.raises(FlowError, match=r"^flow: derivative at tau = .* not finite$"):
            solve("softmax-1", [0.0, 50.0], method=method)
        assert next(calls) == 14


BAD_TIMES = [0.0, np.nan, [0.0, 1.0, 1.0], [1.0, 0.0], [0.0], [0.0, np.nan], [[0.0, 1.0]]]
BAD = [("kappa", -0.1), ("kappa", np.nan), ("method", "Euler"), ("threshold", 0.0)]
BAD += [("digits", np.nan), ("rtol", -1.0), ("tau", "soon"), *(("tau", x) for x in BAD_TIMES)]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"^{name}: .*$"):
        solve("softmax", **{"tau": 1.0, name: value})


BATCH = State(np.zeros((3, 2, 2)), np.zeros((3, 2, 2)))
LARGER = State(np.zeros((3, 2)), np.zeros((3, 3)))


@pytest.mark.parametrize(
    ("name", "state"),
    [("state", BATCH), ("m", LARGER), ("b", start("b-softmax")), ("v", start("softmax-v"))],
)
def test_bad_states_are_refused(name: str, state: State) -> None:
    with pytest.raises(InputError, match=rf"^{name}: .*$"):
        integrate_flow(state, TASK, Attention("softmax", 2), 1.0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_token_and_no_features(activation: str) -> None:
    """L = 1: nothing moves. F = 0: the residual overlap's mean over heads shrinks, the loss too."""
    state, task = State([[0.4]], [[0.3]]), Task(1, isotropic(1, 2.0))
    for kappa in (0.0, 1.0):
        path = integrate_flow(state, task, Attention(activation, 1), [0.0, 3.0], kappa)
        assert path.m[-1] == pytest.approx(state.m, abs=1e-12)
        assert path.r[-1] == pytest.approx(state.r, abs=1e-12)
        assert np.abs(path.loss).max() < 1e-12
    state, task = State(np.zeros((2, 0)), 0.3 * np.eye(2)), Task(3, isotropic(0, 1.0))
    path = integrate_flow(state, task, Attention(activation, 2), [0.0, 1.0, 3.0])
    assert (path.m.shape, path.first_passage.shape) == ((3, 2, 0), (0,))
    assert (np.diff(path.r.sum(axis=(1, 2))) < -0.01).all()
    assert (np.diff(path.loss) < 0).all()
    assert path.status == COMPLETED
