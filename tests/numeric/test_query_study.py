"""Regularity of the query's field: slopes by differences, times against the flow, moments of the noise.

Monte-Carlo comparisons: 4 with |z| < 5.5 (seeds are fixed): a false alarm with probability below 2e-7.
"""

import numpy as np
import pytest

from numeric.errors import InputError
from numeric.query import QueryTask, query_flow, query_objective
from numeric.query_noise import gradient_moments
from numeric.query_sgd import Steps, run_query
from numeric.query_study import field_lipschitz, time_to_align

TASK = QueryTask(10, 90, 100, 1.0, 1.0)


def test_the_lipschitz_constant_bounds_differences() -> None:
    constant, steepest = field_lipschitz(TASK), []
    for at in (np.linspace(-1, 1, 101), np.linspace(0.999, 1, 5)):
        field = (1 - at**2) * query_objective(TASK, at, 1e-10).slope
        steepest.append(np.abs(np.diff(field) / np.diff(at)).max())
    assert max(steepest) <= constant * (1 + 1e-6)
    # It is steepest at the end, where differences are finer.
    assert steepest[1] == pytest.approx(constant, rel=2e-3)


def test_it_stays_bounded_as_the_dimension_grows() -> None:
    """Claim B4, tokens in proportion to d, noise of 1/sqrt d in a coordinate."""
    found = [
        field_lipschitz(QueryTask(n // 10, n, n, 1.0, 2.0, n**-0.5)) for n in (100, 1000, 10**4)
    ]
    assert found[2] < 1.2 * found[0]


def test_times_to_align() -> None:
    path = query_flow(TASK, 0.1, np.linspace(0, 20, 4001))
    assert time_to_align(TASK, 0.9) == pytest.approx(path.time_to(0.9), rel=1e-5)
    assert time_to_align(TASK, 0.5, 0.2) < time_to_align(TASK, 0.5, 0.1)
    # From far below the time is a logarithm over the growth rate.
    rate = float(query_objective(TASK, 0.0).curvature)
    longer = time_to_align(TASK, 0.5, 1e-7) - time_to_align(TASK, 0.5, 1e-5)
    assert longer == pytest.approx(np.log(100) / rate, rel=1e-5)
    assert time_to_align(QueryTask(3, 0, 9, 1.0, 1.0, shared=True)) > 1e6


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


def test_bad_arguments_are_refused() -> None:
    for call, name in (
        (lambda: field_lipschitz(TASK, 1), "points"),
        (lambda: time_to_align(TASK, 0.05), "alignment"),
        (lambda: time_to_align(TASK, 1.0), "alignment"),
        (lambda: time_to_align(TASK, 0.5, 0.0), "start"),
        (lambda: gradient_moments(TASK, 1.1), "alpha"),
        (lambda: gradient_moments(TASK, 0.1, samples=1), "samples"),
        (lambda: gradient_moments(QueryTask(1, 1, 3, 1.0, 1.0), 0.1), "dimension"),
        (lambda: gradient_moments(QueryTask(1, 1, 5, 1.0, 1.0, spread=1.0), 0.1), "spread"),
    ):
        with pytest.raises(InputError, match=f"^{name}: "):
            call()
