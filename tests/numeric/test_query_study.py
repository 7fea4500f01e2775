"""The query's field: fixed points against the flow, phase diagram, perturbed norms."""

from dataclasses import replace

import numpy as np
import pytest

from derive.query import beta, n_0, n_I, theta
from derive.query_expansion import concentrated_growth
from numeric.errors import InputError
from numeric.query import QueryTask, query_flow, query_objective
from numeric.query_study import (
    field_change,
    field_lipschitz,
    fixed_points,
    growth_map,
    time_to_align,
)

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


def test_fixed_points_and_their_stability() -> None:
    """Rates by differences of the field, and those of the flow near them."""
    zero, one = fixed_points(TASK)
    assert (zero.alpha, zero.stable, one.alpha, one.stable) == (0.0, False, 1.0, True)
    h = 1e-4
    field = [(1 - a * a) * float(query_objective(TASK, a, 1e-12).slope) for a in (h, 1 - h)]
    assert zero.rate == pytest.approx(field[0] / h, rel=1e-6)
    assert one.rate == pytest.approx(-field[1] / h, rel=1e-3)
    path = query_flow(TASK, 0.999, [0.0, 1.0, 2.0])
    assert np.log((1 - path.alpha[2]) / (1 - path.alpha[1])) == pytest.approx(one.rate, rel=1e-2)


def test_a_majority_of_one_sign_is_never_recovered() -> None:
    """Claim B1 does not hold there: the equator attracts, and +-u repel."""
    task = QueryTask(100, 10, 1000, 1.0, 2.0, 1000**-0.5, shared=True)
    zero, one = fixed_points(task)
    assert zero.stable is True and one.stable is False
    assert time_to_align(task) == np.inf
    assert abs(query_flow(task, 0.5, 100.0).alpha[-1]) < 1e-6
    # At d -> infinity the rate is the closed form.
    far = QueryTask(100, 10, 10**12, 1.0, 2.0, 1e-6, shared=True)
    exact = concentrated_growth(True).subs({n_0: 10, n_I: 100, theta: 1, beta: 2})
    assert fixed_points(far)[0].rate == pytest.approx(float(exact), rel=1e-6)


def test_zeros_of_the_slope_between_are_found() -> None:
    """Near the border of that regime the flow may rest between; J' changes its sign there."""
    found = None
    for n in range(40, 80):
        task = QueryTask(100, n, 1000, 1.0, 2.0, 1000**-0.5, shared=True)
        if len(found := fixed_points(task)) > 2:
            break
    assert found is not None and len(found) == 3
    between = found[1]
    assert 0 < between.alpha < 1 and float(query_objective(task, between.alpha).slope) < 1e-9
    assert found[0].stable != between.stable != found[2].stable


def test_the_phase_diagram_is_cell_by_cell() -> None:
    heard: list[float] = []
    found = growth_map(
        TASK, ("beta", [0.5, 2.0]), ("nuisance", [0, 90, 10**8]), progress=heard.append
    )
    assert found.growth.shape == found.error.shape == (3, 2) and heard[-1] == 1.0
    for i, j in np.ndindex(3, 2):
        one = replace(TASK, beta=float(found.x[j]), nuisance=int(found.y[i]))
        assert found.growth[i, j] == float(query_objective(one, 0.0, 1e-10).curvature)
    assert found.growth[2, 0] < 1e-5 * found.growth[1, 0]
    # sigma sqrt(d) is kept along the dimension, unless asked otherwise.
    x, y = ("dimension", [100, 400]), ("theta", [1.0])
    kept = growth_map(TASK, x, y).growth[0, 1]
    assert kept == float(query_objective(QueryTask(10, 90, 400, 1.0, 1.0, 0.5), 0.0).curvature)
    fixed = growth_map(TASK, x, y, fixed_noise=True).growth[0, 1]
    assert fixed == float(query_objective(replace(TASK, dimension=400), 0.0).curvature)


def test_unequal_norms_change_the_field_by_one_over_d() -> None:
    """Claim B3, at noise of 1/sqrt d in a coordinate."""
    task = QueryTask(5, 20, 50, 1.0, 2.0, 50**-0.5)
    found = field_change(task, [50, 500, 5000], points=5)
    assert found.exponent == pytest.approx(-1.0, abs=0.05) and found.error < 0.05
    assert (found.change < found.size).all() and found.change.shape == (3,)


def test_bad_arguments_are_refused() -> None:
    for call, name in (
        (lambda: field_lipschitz(TASK, 1), "points"),
        (lambda: time_to_align(TASK, 0.05), "alignment"),
        (lambda: time_to_align(TASK, 1.0), "alignment"),
        (lambda: time_to_align(TASK, 0.5, 0.0), "start"),
        (lambda: fixed_points(TASK, 1), "points"),
        (lambda: growth_map(TASK, ("gamma", [1.0]), ("beta", [1.0])), "x"),
        (lambda: growth_map(TASK, ("beta", [1.0]), ("beta", [1.0])), "y"),
        (lambda: growth_map(TASK, ("beta", [1.0]), ("nuisance", [1.5])), "nuisance"),
        (lambda: growth_map(TASK, ("beta", [-1.0]), ("nuisance", [1])), "beta"),
        (lambda: field_change(TASK, [10, 20]), "dimensions"),
        (lambda: field_change(TASK, [10, 20, 30], spread=0.0), "spread"),
    ):
        with pytest.raises(InputError, match=f"^{name}: "):
            call()


def test_rounding_moves_nothing() -> None:
    """At beta = 10^-8 J' is rounding: no fixed point in between, none stable, and no time to align."""
    task = QueryTask(20, 40, 30, 0.25, 1e-8, 30**-0.5)
    found = fixed_points(task)
    assert [x.alpha for x in found] == [0.0, 1.0]
    assert [x.stable for x in found] == [None, None]
    assert time_to_align(task) == np.inf
