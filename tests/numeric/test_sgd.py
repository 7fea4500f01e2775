"""Stochastic gradient descent in D dimensions, against samples differentiated one by one.

Seeds are fixed. About 60 statistics are bounded by |z| < 5: false-alarm budget 4e-5 a set of seeds.
"""

import tracemalloc
import types
import warnings
from typing import Any

import numpy as np
import pytest

from numeric import sgd as module
from numeric._generated import ACTIVATIONS
from numeric.errors import InputError, SimulationError
from numeric.loss import population_loss
from numeric.prior import DiscretePrior, GaussianPrior, isotropic
from numeric.sgd import SGDRuns, run_sgd
from numeric.task import Attention, State, Task

PRIOR = GaussianPrior(np.array([0.4, -0.2]), np.array([[1.5, 0.3], [0.3, 0.6]]))
M = np.array([[0.5, -0.2], [0.1, 0.6], [-0.4, 0.3]])
R = np.array([[0.5, 0.1, 0.0], [0.1, 0.4, -0.2], [0.0, -0.2, 0.3]])
B = np.array([0.3, -0.5, 0.1])
TASK = Task(4, PRIOR)
ACTIVATION_NAMES = ("softmax", "b-softmax")
TARGETS = ("token", "location")


def start(activation: str) -> tuple[State, Task, Attention]:
    b = B if activation == "b-softmax" else None
    return State(M, R, b), TASK, Attention(activation, 3)


def short(**changes: Any) -> SGDRuns:
    """A small run; one step unless told otherwise."""
    arguments: dict[str, Any] = {"dimension": 9, "tau": [0.1], "step": 0.1, "runs": 2} | changes
    state, task, attention = start(arguments.pop("activation", "softmax"))
    state, task = arguments.pop("state", state), arguments.pop("task", task)
    return run_sgd(state, task, arguments.pop("attention", attention), **arguments)


def same(x: SGDRuns, y: SGDRuns, runs: int) -> bool:
    pairs = [(x.m, y.m), (x.r, y.r)] + ([] if x.b is None or y.b is None else [(x.b, y.b)])
    return all(np.array_equal(u[:runs], v[:runs]) for u, v in pairs)


# The oracle: one sample at a time, differentiated by imaginary steps.


def sample_loss(k: Any, b: Any, x: Any, pooled: bool, target: str) -> Any:
    weights = np.exp(k @ x.T + b[:, None])
    if pooled:
        a = weights.sum(axis=0) / weights.sum()
    else:
        a = (weights / weights.sum(axis=1, keepdims=True)).mean(axis=0)
    if target == "token":
        return ((x[0] - a @ x) ** 2).sum() / x.shape[1]
    return ((np.eye(len(x))[0] - a) ** 2).sum()


def derivative(k: Any, b: Any, x: Any, pooled: bool, target: str) -> tuple[Any, Any]:
    gradients = []
    for number, values in enumerate((k, b)):
        gradient = np.empty(values.shape)
        for index in np.ndindex(*values.shape):
            moved = [k.astype(complex), b.astype(complex)]
            moved[number][index] += 1e-30j
            gradient[index] = sample_loss(moved[0], moved[1], x, pooled, target).imag / 1e-30
        gradients.append(gradient)
    return gradients[0], gradients[1]


def by_hand(
    rng: np.random.Generator, dimension: int, batch: int, steps: int, step: float, *how: Any
) -> tuple[Any, Any]:
    values, vectors = np.linalg.eigh(R)
    k = np.zeros((3, dimension))
    k[:, :2], k[:, 2:5] = M, vectors @ np.diag(np.sqrt(values)) @ vectors.T
    b = B if how[0] else np.zeros(3)
    together = max(1, module.SIGNALS // batch)
    for n in range(steps):
        if n % together == 0:
            signals = PRIOR.sample(rng, together * batch).reshape(together, batch, 2)
        gradients = []
        for signal in signals[n % together]:
            x = rng.standard_normal((TASK.tokens, dimension))
            x[0, :2] += signal
            gradients.append(derivative(k, b, x, *how))
        k = k - step * np.mean([g for g, _ in gradients], axis=0)
        b = b - step * np.mean([g for _, g in gradients], axis=0)
    return k, b


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
@pytest.mark.parametrize(("batch", "steps"), [(1, 1), (5, 14), (70, 2)])
def test_steps_match_samples_differentiated_one_by_one(
    activation: str, target: str, batch: int, steps: int
) -> None:
    pooled, step = activation == "b-softmax", 0.7
    tau = step * np.array([0, steps])
    found = short(
        activation=activation, target=target, batch=batch, tau=tau, step=step, runs=2, seed=3
    )
    for run, seed in enumerate(np.random.SeedSequence(3).spawn(2)):
        k, b = by_hand(np.random.default_rng(seed), 9, batch, steps, step, pooled, target)
        np.testing.assert_allclose(found.m[run, 1], k[:, :2], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.r[run, 1], k[:, 2:] @ k[:, 2:].T, rtol=0, atol=1e-12)
        if pooled:
            assert found.b is not None
            np.testing.assert_allclose(found.b[run, 1], b, rtol=0, atol=1e-12)
        else:
            assert found.b is None
    np.testing.assert_array_equal(found.m[:, 0], [M, M])
    np.testing.assert_allclose(found.r[:, 0], [R, R], rtol=0, atol=1e-15)


# Mean drift and noise. With the location target both are known at every D.


def residual_noise(state: State, pooled: bool, dimension: int, seed: int) -> tuple[Any, Any]:
    """Mean and its error of (gradient)(gradient)^T outside the feature space, one sample a step."""
    rng, size = np.random.default_rng(seed), 200_000
    values, vectors = np.linalg.eigh(R)
    xi = rng.standard_normal((size, TASK.tokens, 2))
    xi[:, 0] += rng.multivariate_normal(PRIOR.mean, PRIOR.covariance, size)
    u = rng.standard_normal((size, TASK.tokens, 3))
    chi = xi @ M.T + u @ (vectors * np.sqrt(values)).T
    weights = np.exp(chi + (B if pooled else 0))
    p = weights / weights.sum(axis=(1, 2) if pooled else 1, keepdims=True)
    p = p if pooled else p / 3
    g = 2 * (p.sum(axis=2) - np.eye(TASK.tokens)[0])[:, :, None]
    c = p * (g - (p * g).sum(axis=(1, 2) if pooled else 1, keepdims=True) * (1 if pooled else 3))
    along = np.einsum("slh,sli->shi", c, u)
    products = np.einsum("shi,sgi->shg", along, along)
    products += (dimension - 2 - 3) * np.einsum("slh,slg->shg", c, c)
    return products.mean(axis=0), products.std(axis=0) / np.sqrt(size)


def z_scores(samples: Any, expected: Any, error: Any = 0.0) -> Any:
    own = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    return (samples.mean(axis=0) - expected) / np.hypot(own, error)


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
def test_mean_step_is_the_population_drift_plus_noise(activation: str) -> None:
    state, task, attention = start(activation)
    loss = population_loss(state, task, attention)
    dimension, small = 60, 1e-5

    def moved(step: float) -> SGDRuns:
        return run_sgd(state, task, attention, dimension=dimension, tau=[step], step=step,
                   runs=20_000, seed=5, target="location")  # fmt: skip

    first, far = moved(small), moved(1.0)
    assert np.abs(z_scores((first.m[:, 0] - M) / small, -loss.m)).max() < 5
    assert np.abs(z_scores(far.m[:, 0] - M, -loss.m)).max() < 5
    drift = (first.r[:, 0] - R) / small
    upper = np.triu_indices(3)
    expected = -2 * (loss.r @ R + R @ loss.r)
    assert np.abs(z_scores(drift, expected)[upper]).max() < 5
    # The same samples at another step: what is not proportional to it is the noise.
    noise = (far.r[:, 0] - R - drift) / (1 - small)
    mean, error = residual_noise(state, activation == "b-softmax", dimension, 6)
    assert np.abs(z_scores(noise, mean, error)[upper]).max() < 5
    assert np.abs(mean / error).min() > 5  # seen at all
    if loss.b is not None:
        assert first.b is not None
        assert np.abs(z_scores((first.b[:, 0] - B) / small, -loss.b)).max() < 5


def test_token_target_has_the_population_drift_at_large_dimension() -> None:
    state, task, attention = start("softmax")
    expected = -population_loss(state, task, attention).m
    dimension, step = 4000, 1e-3
    result = run_sgd(state, task, attention, dimension=dimension, tau=[step], step=step,
                 runs=1500, seed=8)  # fmt: skip
    drift = (result.m[:, 0] - M) / step
    bias = 10 / dimension  # correlations of Gram and gradient, O(1/D)
    error = drift.std(axis=0) / np.sqrt(len(drift))
    assert (np.abs(drift.mean(axis=0) - expected) < 5 * error + bias).all()
    assert np.abs(expected / error).max() > 10


# Streams, groups and recordings.


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
@pytest.mark.parametrize("batch", [1, 7])
def test_a_run_does_not_depend_on_the_others(
    activation: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    how: dict[str, Any] = {"activation": activation, "batch": batch, "tau": [0, 0.5, 20]}
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
    how: dict[str, Any] = {"activation": "b-softmax", "batch": 7, "tau": [0, 2, 3]}
    whole = short(**how)
    for pieces in (1, 3, 5):
        monkeypatch.setattr(module, "NORMALS", pieces * TASK.tokens * 9)
        parts = short(**how)
        for name in ("m", "r", "b"):
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


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
@pytest.mark.parametrize("target", TARGETS)
def test_smallest_problems(activation: str, target: str) -> None:
    state, task = State(np.empty((1, 0)), np.array([[0.5]])), Task(3, isotropic(0, 1.0))
    attention = Attention(activation, 1)
    how: dict[str, Any] = {"tau": 1.0, "step": 0.1, "runs": 3, "target": target}
    result = run_sgd(state, task, attention, dimension=1, **how)
    assert result.m.shape == (3, 11, 1, 0)
    assert (result.r[:, 1:] != result.r[:, :1]).all()
    state, task = State(np.array([[0.3]]), np.zeros((1, 1))), Task(1, isotropic(1, 1.0))
    one = run_sgd(state, task, attention, dimension=2, **how)
    np.testing.assert_array_equal(one.m, np.full((3, 11, 1, 1), 0.3))  # one token: nothing to learn
    np.testing.assert_array_equal(one.r, np.zeros((3, 11, 1, 1)))


def test_signals_of_any_prior() -> None:
    far = DiscretePrior(np.array([[50.0, 0.0]]), np.ones(1))
    solved = State(np.array([[1.0, 0.0]] * 3), 0.01 * np.eye(3))
    result = short(task=Task(4, far), state=solved, tau=[1.0])
    np.testing.assert_allclose(result.m, np.broadcast_to(solved.m, (2, 1, 3, 2)), atol=1e-12)


# Progress and errors.


def test_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NORMALS", 1)
    monkeypatch.setattr(module, "PROGRESS_EVERY", 0.0)
    heard: list[float] = []
    short(tau=1.0, runs=3, progress=heard.append)
    np.testing.assert_allclose(heard, [*(np.arange(30) + 1) / 30, 1.0])
    heard.clear()
    monkeypatch.setattr(module, "PROGRESS_EVERY", 0.1)
    short(tau=20.0, runs=1, step=0.001, dimension=5, progress=heard.append)
    assert 2 <= len(heard) < 200
    assert heard == sorted(heard)
    assert heard[-1] == 1
    short(tau=0.0, progress=heard.append)


def test_interrupts_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(fraction: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "PROGRESS_EVERY", 0.0)
    with pytest.raises(KeyboardInterrupt):
        short(progress=interrupt)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("state", {"state": State(M[None], R[None])}),
        ("m", {"state": State(M[:2], R[:2, :2])}),
        ("b", {"state": State(M, R, B)}),
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


def test_trained_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    valued = types.SimpleNamespace(**vars(ACTIVATIONS["softmax"]) | {"PARAMETERS": ("v",)})
    monkeypatch.setitem(ACTIVATIONS, "softmax", valued)
    with pytest.raises(InputError, match="attention"):
        short()


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
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
