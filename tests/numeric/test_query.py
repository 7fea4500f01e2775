"""The objective of one query against mpmath, Monte Carlo and its own expansion; the flow on the sphere.

Monte-Carlo comparisons: 30 with |z| < 5.5, a false alarm with probability below 1e-6 (seeds are fixed).
"""

import mpmath as mp
import numpy as np
import pytest

from derive.query import beta, d, n_0, n_I, sigma, theta
from derive.query_expansion import growth_expansion
from numeric.errors import InputError
from numeric.query import QueryTask, query_flow, query_objective


def sampled(task: QueryTask, alpha: float, size: int, seed: int) -> tuple[float, float]:
    """J by drawing whole tokens, or, of many, with the others' coordinates summed out."""
    rng, values = np.random.default_rng(seed), []
    block = max(1, 2_000_000 // (task.tokens * 3))
    for first in range(0, size, block):
        count = min(block, size - first)
        x, w = task.sigma * rng.standard_normal((2, count, task.tokens))
        signs = rng.choice((-1, 1), (count, 1 if task.shared else task.informative))
        x[:, : task.informative] += task.theta * signs
        scale = 1 + task.spread / np.sqrt(task.dimension) * rng.standard_normal(x.shape)
        score = task.beta * scale * (alpha * x + np.sqrt(1 - alpha**2) * w)
        a = np.exp(score - score.max(axis=1, keepdims=True))
        a /= a.sum(axis=1, keepdims=True)
        a *= scale
        plane = (a * x).sum(axis=1) ** 2 + (a * w).sum(axis=1) ** 2
        values.append((plane + (task.dimension - 2) * task.sigma**2 * (a**2).sum(axis=1)) / 2)
    all_values = np.concatenate(values)
    return float(all_values.mean()), float(all_values.std(ddof=1) / np.sqrt(size))


SETTINGS = [
    QueryTask(1, 1, 2, 1.0, 2.0),
    QueryTask(2, 0, 3, 1.0, 1.0),
    QueryTask(2, 5, 4, 1.5, 0.7),
    QueryTask(3, 10, 6, 2.0, 1.5),
    QueryTask(3, 10, 6, 2.0, 1.5, shared=True),
    QueryTask(5, 50, 100, 1.0, 3.0, 0.1),
    QueryTask(5, 50, 100, 1.0, 3.0, 0.1, shared=True),
    QueryTask(20, 100, 50, 0.25, 1.0),
    QueryTask(10, 1000, 1000, 0.5, 2.0),
    QueryTask(10, 1000, 1000, 0.5, 10.0, 1000**-0.5, shared=True),
    QueryTask(1, 10_000, 1000, 0.25, 1.0),
    QueryTask(100, 10_000, 1000, 1.0, 1.5),
]


UNEQUAL = [
    QueryTask(2, 5, 4, 1.5, 0.7, spread=0.5),
    QueryTask(3, 10, 9, 2.0, 1.5, shared=True, spread=1.0),
    QueryTask(5, 50, 100, 1.0, 3.0, 0.1, spread=3.0),
]


@pytest.mark.parametrize("task", UNEQUAL, ids=range(3))
def test_unequal_norms(task: QueryTask) -> None:
    for alpha in (0.0, 0.6):
        value, error = sampled(task, alpha, 100_000, 8)
        found = query_objective(task, alpha, 1e-8)
        assert float(found.value_error) < 1e-7
        assert abs(float(found.value) - value) < 5.5 * error
    h = 1e-3
    near = query_objective(task, 0.3 + h * np.array([-2, -1, 0, 1, 2]), 1e-11)
    for name, derivative in (("value", "slope"), ("slope", "curvature")):
        v = getattr(near, name)
        five = (v[0] - 8 * v[1] + 8 * v[3] - v[4]) / (12 * h)
        assert float(getattr(near, derivative)[2]) == pytest.approx(five, rel=1e-6, abs=1e-8)


def test_the_field_survives_unequal_norms() -> None:
    """Claim B3: factors of width c / sqrt d change the field by O(1/d), for their mean is one."""
    at, dimensions, largest = np.linspace(0.1, 0.9, 5), (100, 400, 1600), []
    for dim in dimensions:
        equal = QueryTask(10, 90, dim, 1.0, 3.0, dim**-0.5)
        unequal = QueryTask(10, 90, dim, 1.0, 3.0, dim**-0.5, spread=1.0)
        one, two = (query_objective(x, at, 1e-11).slope for x in (equal, unequal))
        largest.append(np.abs((1 - at**2) * (one - two)).max())
    exponent = np.polyfit(np.log(dimensions), np.log(largest), 1)[0]
    assert exponent == pytest.approx(-1.0, abs=0.1)


@pytest.mark.parametrize("alpha", [0.0, -0.6])
@pytest.mark.parametrize("task", SETTINGS, ids=range(len(SETTINGS)))
def test_against_monte_carlo(task: QueryTask, alpha: float) -> None:
    size = max(400, 400_000 // task.tokens)
    value, error = sampled(task, alpha, size, 7)
    found = query_objective(task, alpha)
    assert float(found.value_error) < 1e-8
    assert abs(float(found.value) - value) < 5.5 * error


@pytest.mark.parametrize("alpha", [0.0, 0.45])
def test_two_tokens_against_mpmath(alpha: float) -> None:
    """One informative token and one other: weights are functions of the difference of two Gaussians."""
    theta_, beta_, sigma_, dim = 1.3, 0.9, 0.8, 5

    def objective(a: mp.mpf) -> mp.mpf:
        # Y_1 - Y_0 = D, Y_1 + Y_0 = S: independent given the sign, each of variance 2 sigma^2.
        spread = mp.sqrt(2) * sigma_
        mean = theta_ * a

        def given(z: mp.mpf, s: int) -> mp.mpf:
            difference = s * mean + spread * z
            weight = 1 / (1 + mp.exp(-beta_ * difference))
            # a Y = S/2 + (w - 1/2) D: second moment with S ~ N(s mean, spread^2).
            half = (weight - mp.mpf(1) / 2) * difference
            along = (s * mean / 2 + half) ** 2 + spread**2 / 4
            squares = weight**2 + (1 - weight) ** 2
            signal = theta_**2 * (1 - a**2) * weight**2
            return mp.npdf(z) * (along + signal + (dim - 1) * sigma_**2 * squares) / 2

        nodes = (-12, -6, -3, 0, 3, 6, 12)
        return (mp.quad(lambda z: given(z, 1), nodes) + mp.quad(lambda z: given(z, -1), nodes)) / 2

    with mp.workdps(25):
        exact = [mp.diff(objective, mp.mpf(alpha), k) for k in range(3)]
    found = query_objective(QueryTask(1, 1, dim, theta_, beta_, sigma_), alpha, 1e-11)
    for name, value in zip(("value", "slope", "curvature"), exact, strict=True):
        error = float(getattr(found, f"{name}_error"))
        assert abs(float(getattr(found, name)) - float(value)) < 1e-10 + error
        assert error < 1e-9


@pytest.mark.parametrize("task", SETTINGS[::2], ids=range(6))
def test_derivatives_and_symmetry(task: QueryTask) -> None:
    at, h = np.array([-0.5, 0.0, 0.2, 0.5, 1.0]), 1e-3
    found = query_objective(task, at, 1e-12)
    assert found.slope[1] == 0
    np.testing.assert_allclose(found.value[0], found.value[3], rtol=1e-12)
    np.testing.assert_allclose(found.slope[0], -found.slope[3], atol=1e-11)
    near = query_objective(task, 0.2 + h * np.array([-2, -1, 1, 2]), 1e-12)
    for name, derivative in (("value", "slope"), ("slope", "curvature")):
        v = getattr(near, name)
        five = (v[0] - 8 * v[1] + 8 * v[2] - v[3]) / (12 * h)
        assert float(getattr(found, derivative)[2]) == pytest.approx(five, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("shared", [False, True])
def test_expansion_in_beta(shared: bool) -> None:
    """J''(0) to second order; the rest is of fourth order."""
    ratio = []
    for b in (0.1, 0.2):
        task = QueryTask(2, 5, 4, 1.5, b, 0.7, shared)
        numbers = {n_I: 2, n_0: 5, d: 4, theta: 1.5, beta: b, sigma: 0.7}
        series = float(growth_expansion(shared).subs(numbers))
        exact = float(query_objective(task, 0.0, 1e-12).curvature)
        ratio.append(abs(exact / series - 1))
    assert ratio[1] < 0.01
    assert ratio[1] / ratio[0] == pytest.approx(4.0, rel=0.05)


def test_very_many_tokens() -> None:
    """Beyond d tokens J''(0) falls as 1/n only: ``2 n_I (theta beta sigma)^2 / n``."""
    for n in (10**6, 10**8, 10**10):
        found = query_objective(QueryTask(1, n, 1000, 1.0, 0.1), 0.0, 1e-12)
        assert float(found.curvature) * n == pytest.approx(0.02, rel=0.02)
        assert float(found.curvature_error) < 0.01 * float(found.curvature)


def test_one_sign_for_all_tokens_and_no_others() -> None:
    """All tokens are then shifted alike, and weights do not feel it."""
    found = query_objective(QueryTask(3, 0, 4, 1.2, 1.0, shared=True), [0.0, 0.5, 1.0])
    np.testing.assert_allclose(found.slope, 0.0, atol=1e-9)


def test_flow_on_the_sphere() -> None:
    task = QueryTask(10, 90, 100, 1.0, 1.0)
    rate = float(query_objective(task, 0.0).curvature)
    assert rate > 0
    path = query_flow(task, 1e-6, [0.0, 1.0, 2.0, 60.0])
    assert np.log(path.alpha[2] / path.alpha[1]) == pytest.approx(rate, rel=1e-5)
    assert path.alpha[-1] == pytest.approx(1.0, abs=1e-6)
    for fixed in (0.0, 1.0, -1.0):
        np.testing.assert_array_equal(query_flow(task, fixed, 5.0).alpha, fixed)
    down = query_flow(task, -0.1, 60.0)
    assert down.time_to(0.99) == pytest.approx(query_flow(task, 0.1, 60.0).time_to(0.99))
    assert query_flow(task, 0.1, 1.0).time_to(0.99) == np.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("informative", 0),
        ("nuisance", -1),
        ("dimension", 1),
        ("theta", -1.0),
        ("beta", np.nan),
        ("sigma", 0.0),
        ("shared", 1),
        ("spread", -1.0),
    ],
)
def test_bad_tasks_are_refused(name: str, value: object) -> None:
    given: dict[str, object] = {
        "informative": 1,
        "nuisance": 3,
        "dimension": 5,
        "theta": 1.0,
        "beta": 1.0,
    }
    with pytest.raises(InputError, match=f"^{name}: "):
        QueryTask(**(given | {name: value}))  # type: ignore[arg-type]


def test_bad_arguments_are_refused() -> None:
    task = QueryTask(1, 3, 5, 1.0, 1.0)
    with pytest.raises(InputError, match=r"^alpha: "):
        query_objective(task, 1.5)
    with pytest.raises(InputError, match=r"^tol: "):
        query_objective(task, 0.5, 0.0)
    with pytest.raises(InputError, match=r"^alpha: "):
        query_flow(task, 2.0, 1.0)
    with pytest.raises(InputError, match=r"^t: "):
        query_flow(task, 0.1, [1.0, 0.5])
