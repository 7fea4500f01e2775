"""What single samples allow: moments of the gradient, constant steps, early growth in runs.

Monte-Carlo comparisons: 8 with |z| < 5.5 (seeds are fixed): a false alarm with probability below 4e-7.
"""

import numpy as np
import pytest

from numeric.errors import InputError, SimulationError
from numeric.query import QueryTask, query_objective
from numeric.query_noise import EarlyGrowth, early_growth, gradient_moments, step_budget
from numeric.query_sgd import Steps, run_query

TASK = QueryTask(10, 90, 100, 1.0, 1.0)
SMALL = QueryTask(4, 12, 12, 1.2, 2.0, 12**-0.5)


@pytest.mark.parametrize("alpha", [0.3, -0.8])
def test_moments(alpha: float) -> None:
    """The mean is the field; the second moment is that of one small step."""
    found = gradient_moments(TASK, alpha, samples=40_000)
    field = (1 - alpha**2) * float(query_objective(TASK, alpha).slope)
    assert abs(found.mean - field) < 5.5 * found.mean_error
    gamma = 1e-5
    runs = run_query(TASK, Steps(gamma), steps=[1], runs=10_000, alpha=alpha, seed=4)
    squares = ((runs.alpha[:, 0] - alpha) / gamma) ** 2
    error = np.hypot(squares.std() / 100, found.second_error)
    assert abs(squares.mean() - found.second) < 5.5 * error + 0.01 * found.second
    assert found.fourth >= found.second**2 and found.fourth_error > 0


def test_the_squared_length_is_that_of_the_direct_gradient() -> None:
    """``|q + gamma g|^2 = 1 + gamma^2 |g|^2`` in d dimensions, from the law of one normalized step."""
    found = gradient_moments(SMALL, 0.0, samples=100_000)
    # alpha = 0, tokens drawn plainly: the gradient's length along the sphere.
    rng = np.random.default_rng(5)
    x = SMALL.sigma * rng.standard_normal((20_000, SMALL.tokens, SMALL.dimension))
    signs = rng.choice([-1, 1], (20_000, SMALL.informative))
    x[:, : SMALL.informative, 0] += SMALL.theta * signs
    a = np.exp(SMALL.beta * x[:, :, 1])
    a /= a.sum(axis=1, keepdims=True)
    o = np.einsum("rn,rnd->rd", a, x)
    c = a * (np.einsum("rnd,rd->rn", x, o) - (o**2).sum(axis=1, keepdims=True))
    gradient = SMALL.beta * np.einsum("rn,rnd->rd", c, x)
    gradient[:, 1] = 0  # along q
    squares = (gradient**2).sum(axis=1)
    error = np.hypot(squares.std() / np.sqrt(len(squares)), found.square_error)
    assert abs(squares.mean() - found.square) < 5.5 * error


def test_constant_steps_end_at_the_predicted_deficit() -> None:
    """The deficit over gamma at two small steps, extrapolated to none."""
    budget = step_budget(SMALL, samples=200_000)
    ratios, errors = [], []
    for deficit in (0.005, 0.0025):
        gamma = deficit / budget.deficit
        steps = np.arange(int(60 / gamma), int(120 / gamma), int(2 / gamma))
        runs = run_query(SMALL, Steps(gamma, p=0, any_p=True), steps=steps, runs=200, alpha=0.98)
        found = (1 - np.abs(runs.alpha).mean(axis=1)) / deficit
        ratios.append(found.mean())
        errors.append(found.std(ddof=1) / np.sqrt(len(found)))
    error = np.hypot(2 * errors[1], errors[0])
    assert abs(2 * ratios[1] - ratios[0] - 1) < 5.5 * error and error < 0.02
    assert abs(ratios[1] - 1) < abs(ratios[0] - 1)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_steps_beyond_twice_the_fastest_do_not_grow(factor: float) -> None:
    """alpha^2 near zero follows ``gamma J'' - gamma^2 E|g|^2 / 2`` a step, up to higher orders."""
    task = QueryTask(2, 4, 100, 1.0, 1.0)
    budget = step_budget(task, samples=20_000)
    assert budget.step < 0.1 / budget.growth
    gamma = factor * budget.step
    expected = gamma * budget.growth - gamma**2 * budget.square / 2
    count = max(1, round(0.3 / abs(expected)))
    ends = [
        run_query(
            task, Steps(gamma, p=0, any_p=True), steps=[count], runs=4000, alpha=a, seed=2
        ).alpha[:, 0]
        for a in (0.01, -0.01)
    ]
    grown = (ends[0] - ends[1]) / 0.02
    rate, error = np.log(grown.mean()) / count, grown.std() / np.sqrt(4000) / grown.mean() / count
    assert abs(rate - expected) < 5.5 * error + 0.2 * abs(expected)
    assert (rate > 0) == (factor < 2)


@pytest.mark.parametrize("task", [SMALL, QueryTask(5, 15, 30, 1.5, 1.0, 30**-0.5, shared=True)])
def test_early_growth_is_the_curvature(task: QueryTask) -> None:
    """Within 2 %, four standard errors."""
    heard: list[float] = []
    found = early_growth(task, progress=heard.append)
    assert found.agrees(0.02) and found.error < 0.005 * found.expected
    assert found.expected == float(query_objective(task, 0.0).curvature)
    assert not heard or heard[-1] == pytest.approx(1.0)


def test_disagreement_is_seen() -> None:
    assert EarlyGrowth(1.03, 0.004, 1.0, 0.1).agrees() is False
    assert EarlyGrowth(1.03, 0.02, 1.0, 0.1).agrees() is None  # an error too large to tell
    assert EarlyGrowth(1.13, 0.02, 1.0, 0.1).agrees() is False
    assert EarlyGrowth(1.01, 0.004, 1.0, 0.1).agrees() is True


def test_costs_are_bounded() -> None:
    with pytest.raises(InputError, match=r"^task: .* at most 100,000,000"):
        step_budget(QueryTask(1, 10**8, 1000, 1.0, 1.0))
    assert step_budget(QueryTask(10, 10**6, 1000, 1.0, 1.0)).square > 0
    with pytest.raises(SimulationError, match="too many to simulate"):
        early_growth(QueryTask(20, 40, 30, 1e-6, 10.0, 30**-0.5))
    # In four dimensions the noise needs more pairs than are affordable.
    found = early_growth(QueryTask(20, 40, 4, 0.25, 10.0, 0.5), most_runs=64)
    assert found.agrees() is None


def test_where_nothing_grows() -> None:
    task = QueryTask(100, 10, 1000, 1.0, 2.0, 1000**-0.5, shared=True)
    budget = step_budget(task)
    assert budget.step == 0 and budget.steps == np.inf and budget.deficit == np.inf
    with pytest.raises(InputError, match=r"^task: .*repels"):
        early_growth(task)


def test_bad_arguments_are_refused() -> None:
    for call, name in (
        (lambda: gradient_moments(TASK, 1.1), "alpha"),
        (lambda: gradient_moments(TASK, 0.1, samples=1), "samples"),
        (lambda: gradient_moments(QueryTask(1, 1, 3, 1.0, 1.0), 0.1), "dimension"),
        (lambda: gradient_moments(QueryTask(1, 1, 5, 1.0, 1.0, spread=1.0), 0.1), "spread"),
        (lambda: early_growth(TASK, gamma=0.0), "gamma"),
        (lambda: early_growth(TASK, tol=0.0), "tol"),
        (lambda: early_growth(TASK, most_runs=1), "most_runs"),
        (lambda: step_budget(TASK, samples=0), "samples"),
    ):
        with pytest.raises(InputError, match=f"^{name}: "):
            call()
