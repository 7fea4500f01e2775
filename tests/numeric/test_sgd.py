"""Stochastic gradient descent in D dimensions, against samples differentiated one by one.

Seeds are fixed. About 200 statistics are bounded by |z| < 5.5: false-alarm budget 1e-5 a set of seeds.
"""

import tracemalloc
import warnings
from typing import Any

import numpy as np
import pytest

from numeric import direct as module
from numeric import recording
from numeric._generated import ACTIVATIONS
from numeric.direct import gradient_sum
from numeric.errors import InputError, SimulationError
from numeric.loss import population_loss
from numeric.prior import DiscretePrior, GaussianPrior, isotropic
from numeric.sgd import SGDRuns, run_sgd
from numeric.task import Attention, State, Task
from tests.numeric.oracle import LAYERS, NAMES, attention, sample_loss

PRIOR = GaussianPrior(np.array([0.4, -0.2]), np.array([[1.5, 0.3], [0.3, 0.6]]))
M = np.array([[0.5, -0.2], [0.1, 0.6], [-0.4, 0.3]])
R = np.array([[0.5, 0.1, 0.0], [0.1, 0.4, -0.2], [0.0, -0.2, 0.3]])
TRAINED = {"b": np.array([0.3, -0.5, 0.1]), "v": np.array([0.2, 0.5, -0.1])}
TASK = Task(4, PRIOR)
TARGETS = ("token", "location")


def trained(name: str) -> dict[str, np.ndarray]:
    return {key: TRAINED[key] for key in LAYERS[name].trained}


def start(name: str) -> tuple[State, Task, Attention]:
    return State(M, R, **trained(name)), TASK, Attention(name, 3)


def short(**changes: Any) -> SGDRuns:
    """A small run; one step unless told otherwise."""
    arguments: dict[str, Any] = {"dimension": 9, "tau": [0.1], "step": 0.1, "runs": 2} | changes
    state, task, layer = start(arguments.pop("activation", "softmax"))
    state, task = arguments.pop("state", state), arguments.pop("task", task)
    return run_sgd(state, task, arguments.pop("attention", layer), **arguments)


def recorded(x: SGDRuns) -> dict[str, np.ndarray]:
    parts = {key: getattr(x, key) for key in ("m", "r", "b", "v")}
    return {key: values for key, values in parts.items() if values is not None}


def same(x: SGDRuns, y: SGDRuns, runs: int) -> bool:
    found, other = recorded(x), recorded(y)
    return all(np.array_equal(found[key][:runs], other[key][:runs]) for key in found)


# The oracle: one sample at a time, differentiated by imaginary steps.


def one_loss(name: str, k: Any, others: dict[str, Any], x: Any, target: str) -> Any:
    a = attention(LAYERS[name], k @ x.T, others.get("b"), others.get("v"))
    if target == "token":
        return ((x[0] - a @ x) ** 2).sum() / x.shape[1]
    return sample_loss(a)


def derivatives(name: str, k: Any, others: dict[str, Any], x: Any, target: str) -> dict[str, Any]:
    parts, found = {"k": k, **others}, {}
    for key, values in parts.items():
        found[key] = np.empty(values.shape)
        for index in np.ndindex(*values.shape):
            moved = {name: part.astype(complex) for name, part in parts.items()}
            moved[key][index] += 1e-30j
            loss = one_loss(name, moved.pop("k"), moved, x, target)
            found[key][index] = loss.imag / 1e-30
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_gradient_sums(name: str, target: str) -> None:
    """Sums over samples, for two runs of different keys, biases and values."""
    rng = np.random.default_rng(2)
    x, k = rng.normal(size=(2, 5, 4, 7)), rng.normal(size=(2, 3, 7)) / 2
    others = {key: rng.normal(size=(2, 3)) for key in LAYERS[name].trained}
    v = others.get("v", LAYERS[name].value(3))
    found = gradient_sum(x, k, others.get("b"), v, ACTIVATIONS[name], target)
    for run in range(2):
        mine = {key: values[run] for key, values in others.items()}
        each = [derivatives(name, k[run], mine, sample, target) for sample in x[run]]
        for key, values in zip(("k", "b", "v"), found, strict=True):
            if key in each[0]:
                expected = sum(sample[key] for sample in each)
                np.testing.assert_allclose(values[run], expected, rtol=1e-11, atol=1e-12)


def by_hand(
    name: str, rng: np.random.Generator, batch: int, steps: int, step: float, target: str
) -> dict[str, Any]:
    values, vectors = np.linalg.eigh(R)
    parts = {"k": np.zeros((3, 9)), **trained(name)}
    parts["k"][:, :2], parts["k"][:, 2:5] = M, vectors @ np.diag(np.sqrt(values)) @ vectors.T
    together = max(1, module.SIGNALS // batch)
    for n in range(steps):
        if n % together == 0:
            signals = PRIOR.sample(rng, together * batch).reshape(together, batch, 2)
        found = []
        others = {key: parts[key] for key in parts if key != "k"}
        for signal in signals[n % together]:
            x = rng.standard_normal((TASK.tokens, 9))
            x[0, :2] += signal
            found.append(derivatives(name, parts["k"], others, x, target))
        parts = {key: parts[key] - step * np.mean([g[key] for g in found], axis=0) for key in parts}
    return parts


CASES = [(name, target, 5, 4) for name in NAMES for target in TARGETS]
CASES += [("softmax-1", "token", 1, 66), ("erf", "location", 70, 2)]


@pytest.mark.parametrize(("name", "target", "batch", "steps"), CASES)
def test_steps_match_samples_differentiated_one_by_one(
    name: str, target: str, batch: int, steps: int
) -> None:
    step = 0.02 if "v" in LAYERS[name].trained else 0.7
    tau = step * np.array([0, steps])
    found = short(activation=name, target=target, batch=batch, tau=tau, step=step, runs=2, seed=3)
    for run, seed in enumerate(np.random.SeedSequence(3).spawn(2)):
        expected = by_hand(name, np.random.default_rng(seed), batch, steps, step, target)
        k = expected.pop("k")
        expected |= {"m": k[:, :2], "r": k[:, 2:] @ k[:, 2:].T}
        assert set(expected) == set(recorded(found))
        for key, values in expected.items():
            np.testing.assert_allclose(getattr(found, key)[run, 1], values, rtol=0, atol=1e-11)
    np.testing.assert_array_equal(found.m[:, 0], [M, M])
    np.testing.assert_allclose(found.r[:, 0], [R, R], rtol=0, atol=1e-15)
    for key, values in trained(name).items():
        np.testing.assert_array_equal(getattr(found, key)[:, 0], [values, values])


# Mean drift and noise. With the location target both are known at every D.


def residual_noise(name: str, dimension: int, seed: int) -> tuple[Any, Any]:
    """Mean and its error of (gradient)(gradient)^T outside the feature space, one sample a step."""
    rng, size = np.random.default_rng(seed), 25_000
    values, vectors = np.linalg.eigh(R)
    xi = rng.standard_normal((size, TASK.tokens, 2))
    xi[:, 0] += rng.multivariate_normal(PRIOR.mean, PRIOR.covariance, size)
    u = rng.standard_normal((size, TASK.tokens, 3))
    chi = (xi @ M.T + u @ (vectors * np.sqrt(values)).T).transpose(0, 2, 1)
    others = {key: np.tile(x, (size, 1)) for key, x in trained(name).items()}
    c = np.empty(chi.shape)
    for index in np.ndindex(*chi.shape[1:]):
        moved = chi.astype(complex)
        moved[:, *index] += 1e-30j
        a = attention(LAYERS[name], moved, others.get("b"), others.get("v"))
        c[:, *index] = sample_loss(a).imag / 1e-30
    along = np.einsum("shl,sli->shi", c, u)
    products = np.einsum("shi,sgi->shg", along, along)
    products += (dimension - 2 - 3) * np.einsum("shl,sgl->shg", c, c)
    return products.mean(axis=0), products.std(axis=0) / np.sqrt(size)


def z_scores(samples: Any, expected: Any, error: Any = 0.0) -> Any:
    own = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    return (samples.mean(axis=0) - expected) / np.hypot(own, error)


@pytest.mark.parametrize("name", NAMES)
def test_mean_step_is_the_population_drift_plus_noise(name: str) -> None:
    state, task, layer = start(name)
    loss = population_loss(state, task, layer)
    dimension, small = 30, 1e-5

    def moved(step: float) -> SGDRuns:
        return run_sgd(state, task, layer, dimension=dimension, tau=[step], step=step,
                       runs=2500, seed=5, target="location")  # fmt: skip

    first, far = moved(small), moved(1.0)
    assert np.abs(z_scores((first.m[:, 0] - M) / small, -loss.m)).max() < 5.5
    assert np.abs(z_scores(far.m[:, 0] - M, -loss.m)).max() < 5.5
    drift = (first.r[:, 0] - R) / small
    upper = np.triu_indices(3)
    expected = -2 * (loss.r @ R + R @ loss.r)
    assert np.abs(z_scores(drift, expected)[upper]).max() < 5.5
    # The same samples at another step: what is not proportional to it is the noise.
    noise = (far.r[:, 0] - R - drift) / (1 - small)
    mean, error = residual_noise(name, dimension, 6)
    assert np.abs(z_scores(noise, mean, error)[upper]).max() < 5.5
    assert np.abs(mean / error)[np.diag_indices(3)].min() > 6  # seen at all
    for key, values in trained(name).items():
        found = (getattr(first, key)[:, 0] - values) / small
        assert np.abs(z_scores(found, -getattr(loss, key))).max() < 5.5


def test_token_target_has_the_population_drift_at_large_dimension() -> None:
    state, task, layer = start("softmax")
    expected = -population_loss(state, task, layer).m
    dimension, step = 4000, 1e-3
    result = run_sgd(state, task, layer, dimension=dimension, tau=[step], step=step,
                     runs=1000, seed=8)  # fmt: skip
    drift = (result.m[:, 0] - M) / step
    bias = 10 / dimension  # correlations of Gram and gradient, O(1/D)
    error = drift.std(axis=0) / np.sqrt(len(drift))
    assert (np.abs(drift.mean(axis=0) - expected) < 5 * error + bias).all()
    assert np.abs(expected / error).max() > 8


# Streams, groups and recordings.


@pytest.mark.parametrize("activation", ["softmax", "softmax-1", "b-softmax"])
@pytest.mark.parametrize("batch", [1, 7])
def test_a_run_does_not_depend_on_the_others(
    activation: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"activation": activation, "batch": batch, "tau": [0, 0.5, 8]}
    eight = short(runs=8, **how)
    assert same(short(runs=2, **how), eight, 2)
    assert same(short(runs=1, **how), eight, 1)
    assert not np.array_equal(eight.m[0, 1], eight.m[1, 1])
    assert not same(short(runs=8, seed=1, **how), eight, 8)
    for runs in (1, 3):
        monkeypatch.setattr(module, "NORMALS", runs * batch * TASK.tokens * 9)
        monkeypatch.setattr(module, "SIGNALS", 1)
        mine = short(runs=8, **how)
        monkeypatch.setattr(module, "NORMALS", 10**6)
        assert same(short(runs=8, **how), mine, 8)


def test_samples_of_a_step_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"activation": "softmax-1", "batch": 7, "tau": [0, 2, 3]}
    whole = short(**how)
    for pieces in (1, 3, 5):
        monkeypatch.setattr(module, "NORMALS", pieces * TASK.tokens * 9)
        parts = short(**how)
        for name in ("m", "r", "b", "v"):
            np.testing.assert_allclose(getattr(parts, name), getattr(whole, name), atol=1e-13)


def test_memory_is_bounded() -> None:
    tracemalloc.start()
    short(dimension=100, batch=2000, runs=10, state=State(M, R))  # 64 MB of normals
    short(dimension=3000, runs=600)  # 58 MB of them
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6


def test_a_run_does_not_depend_on_what_is_recorded() -> None:
    fine = short(tau=0.1 * np.arange(71))
    coarse = short(tau=[0.3, 7])
    np.testing.assert_array_equal(fine.m[:, [3, 70]], coarse.m)
    np.testing.assert_array_equal(fine.r[:, [3, 70]], coarse.r)


def test_recorded_times_are_whole_steps() -> None:
    result = short(tau=[0.0, 0.26, 0.31, 0.32], step=None, kappa=1.8, batch=2)
    assert result.step == 1.8 * 2 / 9 == 0.4
    np.testing.assert_array_equal(result.samples, [0, 2, 2, 2])
    np.testing.assert_array_equal(result.tau, 0.4 * np.array([0, 1, 1, 1]))
    assert (result.kappa, result.dimension, result.batch, result.seed) == (1.8, 9, 2, 0)
    result = short(tau=[1.0, 2.04], step=0.05, batch=3)
    assert result.kappa == 0.05 * 9 / 3
    np.testing.assert_array_equal(result.samples, [60, 123])
    np.testing.assert_allclose(9 * result.tau / result.kappa, result.samples, rtol=1e-14)
    assert result.m.shape == (2, 2, 3, 2)
    assert result.r.shape == (2, 2, 3, 3)
    np.testing.assert_array_equal(result.r, result.r.mT)


def test_a_horizon_is_divided_evenly() -> None:
    result = short(tau=10, step=0.01)
    np.testing.assert_allclose(result.tau, np.linspace(0, 10, 51), rtol=1e-14)
    np.testing.assert_array_equal(short(tau=0.3).samples, [0, 1, 2, 3])
    np.testing.assert_array_equal(short(tau=0).samples, [0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", TARGETS)
def test_smallest_problems(name: str, target: str) -> None:
    state, task = State(np.empty((1, 0)), np.array([[0.5]])), Task(3, isotropic(0, 1.0))
    layer = Attention(name, 1)
    how: dict[str, Any] = {"tau": 0.1, "step": 0.01, "runs": 3, "target": target}
    result = run_sgd(state, task, layer, dimension=1, **how)
    assert result.m.shape == (3, 11, 1, 0)
    assert (result.r[:, 1:] != result.r[:, :1]).all()
    state, task = State(np.array([[0.3]]), np.zeros((1, 1))), Task(1, isotropic(1, 1.0))
    one = run_sgd(state, task, layer, dimension=2, **how)
    # One token has all the weight, unless there is none to share, or a background to share it with.
    moves = LAYERS[name].normalization == "none" or LAYERS[name].background
    assert (one.m[:, 1:] != 0.3).any() == bool(moves)
    for key in LAYERS[name].trained:
        initial = {"b": 0.0, "v": 1.0}[key]
        assert (getattr(one, key)[:, 0] == initial).all()
        assert (getattr(one, key)[:, -1] != initial).any() == bool(moves)


def test_signals_of_any_prior() -> None:
    far = DiscretePrior(np.array([[50.0, 0.0]]), np.ones(1))
    solved = State(np.array([[1.0, 0.0]] * 3), 0.01 * np.eye(3))
    result = short(task=Task(4, far), state=solved, tau=[1.0])
    np.testing.assert_allclose(result.m, np.broadcast_to(solved.m, (2, 1, 3, 2)), atol=1e-12)


# Progress and errors.


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NORMALS", 1)
    monkeypatch.setattr(recording, "PROGRESS_EVERY", 0.0)
    heard: list[float] = []
    short(tau=1.0, runs=3, progress=heard.append)
    np.testing.assert_allclose(heard, [*(np.arange(30) + 1) / 30, 1.0])
    heard.clear()
    monkeypatch.setattr(recording, "PROGRESS_EVERY", 0.1)
    short(tau=20.0, runs=1, step=0.001, dimension=5, progress=heard.append)
    assert 2 <= len(heard) < 200
    assert heard == sorted(heard)
    assert heard[-1] == 1
    short(tau=0.0, progress=heard.append)


def test_interrupts_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(fraction: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recording, "PROGRESS_EVERY", 0.0)
    with pytest.raises(KeyboardInterrupt):
        short(progress=interrupt)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("state", {"state": State(M[None], R[None])}),
        ("m", {"state": State(M[:2], R[:2, :2])}),
        ("b", {"state": State(M, R, TRAINED["b"])}),
        ("v", {"state": State(M, R, v=TRAINED["v"])}),
        ("v", {"state": State(M, R, v=TRAINED["v"]), "activation": "b-softmax"}),
        ("step", {"step": None}),
        ("step", {"kappa": 1.0}),
        ("step", {"step": 0.0}),
        ("step", {"step": float("nan")}),
        ("kappa", {"step": None, "kappa": -1.0}),
        ("step", {"step": None, "kappa": 5e-324}),
        ("kappa", {"step": 1e308}),
        ("dimension", {"dimension": 4}),
        ("dimension", {"dimension": 9.5}),
        ("dimension", {"dimension": None}),
        ("tau", {"tau": -0.1}),
        ("tau", {"tau": [-0.1, 0.1]}),
        ("tau", {"tau": [0.1, 0.1]}),
        ("tau", {"tau": [0.0, 0.2, 0.1]}),
        ("tau", {"tau": []}),
        ("tau", {"tau": [[0.1]]}),
        ("tau", {"tau": [[0.1], [0.1, 0.2]]}),
        ("tau", {"tau": [0.1, float("inf")]}),
        ("tau", {"tau": None}),
        ("tau", {"tau": "late"}),
        ("tau", {"tau": 1e20}),
        ("tau", {"tau": 1e300, "step": 1e-300}),
        ("batch", {"batch": 0}),
        ("runs", {"runs": 0}),
        ("seed", {"seed": -1}),
        ("target", {"target": "tokens"}),
        ("progress", {"progress": 3}),
    ],
)
def test_inputs_refused(name: str, changes: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InputError) as caught:
            short(**changes)
    assert caught.value.name == name


def test_dimension_message_counts_features_and_heads() -> None:
    assert short(dimension=5).dimension == 5
    with pytest.raises(InputError, match="at least features \\+ heads = 5"):
        short(dimension=4)


@pytest.mark.parametrize("activation", NAMES)
@pytest.mark.parametrize("tau", [[1e200], [0.0, 1e202]])
def test_divergence_is_an_error(activation: str, tau: list[float]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SimulationError, match=r"diverged by tau = 1e\+20[02], .* 1e\+200"):
            short(activation=activation, tau=tau, step=1e200)


def test_divergence_is_noticed_between_recordings() -> None:
    huge = Task(4, DiscretePrior(np.array([[1e5, 0.0]]), np.ones(1)))  # scores overflow at once
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SimulationError, match="after 1000 steps"):
            short(tau=[1e308], step=1e304, task=huge, state=State(0 * M, 1e-6 * R))
