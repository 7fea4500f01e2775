"""Stochastic gradient ascent of the query: reduced against direct in law, drift against the flow.

Kolmogorov-Smirnov tests: 20 of which none may fall below p = 1e-7, and 6 |z| < 5.5: false alarms below
3e-6 (seeds are fixed).
"""

import numpy as np
import pytest
from scipy.stats import ks_2samp

from numeric.errors import InputError
from numeric.query import QueryTask, query_objective
from numeric.query_sgd import Steps, run_query

TASKS = [
    QueryTask(3, 5, 6, 1.5, 1.0),
    QueryTask(3, 5, 6, 1.5, 1.0, shared=True),
    QueryTask(2, 3, 4, 1.0, 2.0, 0.5),
    QueryTask(1, 20, 30, 2.0, 3.0, 30**-0.5),
]


@pytest.mark.parametrize("task", TASKS, ids=range(4))
def test_reduced_is_direct_in_law(task: QueryTask) -> None:
    schedule, steps = Steps(0.3, 1.0, 0.7), [1, 6, 30]
    one = run_query(task, schedule, steps=steps, runs=2000, alpha=0.4, seed=1)
    two = run_query(task, schedule, steps=steps, runs=2000, alpha=0.4, seed=2, method="direct")
    for k in range(3):
        assert ks_2samp(one.alpha[:, k], two.alpha[:, k]).pvalue > 1e-7


@pytest.mark.parametrize("rule", ["oja", "power"])
def test_tracking_is_direct_in_law(rule: str) -> None:
    for task in (TASKS[1], TASKS[3]):
        how = {"steps": [1, 8], "runs": 1000, "alpha": 0.3, "rule": rule}
        one = run_query(task, Steps(0.5), seed=1, **how)  # type: ignore[arg-type]
        two = run_query(task, Steps(0.5), seed=2, method="direct", **how)  # type: ignore[arg-type]
        for k in range(2):
            assert ks_2samp(one.alpha[:, k], two.alpha[:, k]).pvalue > 1e-7


def test_oja_finds_the_direction_of_largest_variance() -> None:
    task = QueryTask(50, 50, 20, 2.0, 1.0)
    found = run_query(task, Steps(2.0, 10.0, 1.0), steps=400, runs=5, rule="oja")
    assert (np.abs(found.alpha[:, -1]) > 0.97).all()


def test_a_wrong_law_is_seen() -> None:
    task, schedule = TASKS[0], Steps(0.3, 1.0, 0.7)
    one = run_query(task, schedule, steps=[6], runs=2000, alpha=0.4, seed=1)
    other = QueryTask(3, 5, 6, 1.2, 1.0)
    two = run_query(other, schedule, steps=[6], runs=2000, alpha=0.4, seed=2, method="direct")
    assert ks_2samp(one.alpha[:, 0], two.alpha[:, 0]).pvalue < 1e-7


@pytest.mark.parametrize("task", TASKS[:3], ids=range(3))
@pytest.mark.parametrize("alpha", [0.2, 0.7])
def test_small_steps_drift_as_the_flow_does(task: QueryTask, alpha: float) -> None:
    """One step of size gamma: a mean change of ``gamma (1 - alpha^2) J'``, up to gamma^2."""
    gamma = 1e-4
    runs = run_query(task, Steps(gamma), steps=[1], runs=20_000, alpha=alpha, seed=3)
    change = (runs.alpha[:, 0] - alpha) / gamma
    slope = float(query_objective(task, alpha).slope)
    error = change.std(ddof=1) / np.sqrt(len(change))
    assert abs(change.mean() - (1 - alpha**2) * slope) < 5.5 * error + 0.02 * abs(slope)


def test_runs_recover_the_signal() -> None:
    task = QueryTask(5, 20, 50, 2.0, 1.0)
    found = run_query(task, Steps(1.0, 10.0, 0.8), steps=3000, runs=10)
    assert found.alpha.shape == (10, len(found.steps)) and found.steps[-1] == 3000
    assert (np.abs(found.alpha[:, -1]) > 0.85).all()
    assert np.abs(found.alpha[:, -1]).mean() > np.abs(found.alpha[:, 30]).mean()
    # Both signs attract.
    assert {-1.0, 1.0} == set(np.sign(found.alpha[:, -1]))
    assert "10 runs" in repr(found)


def test_runs_are_reproducible() -> None:
    task, schedule, heard = TASKS[0], Steps(0.1), []
    one = run_query(task, schedule, steps=[0, 5, 50], runs=4, seed=5, progress=heard.append)
    two = run_query(task, schedule, steps=[5, 20], runs=2, seed=5)
    np.testing.assert_array_equal(one.alpha[:2, 1], two.alpha[:, 0])
    assert heard[-1] == 1.0
    # A random query has alpha of variance 1/d.
    many = run_query(task, schedule, steps=[0], runs=20_000)
    assert many.alpha.var() == pytest.approx(1 / 6, rel=0.05)


def test_step_sizes() -> None:
    assert Steps(2.0, 3.0, 1.0)(1) == pytest.approx(0.5)
    assert Steps(2.0, 3.0, 0.0, any_p=True)(99) == 2.0
    for p in (0.5, 1.01):
        with pytest.raises(InputError, match=r"^p: .*Robbins and Monro"):
            Steps(1.0, 1.0, p)
    with pytest.raises(InputError, match=r"^gamma_0: "):
        Steps(0.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("runs", 0),
        ("steps", 0),
        ("steps", [3, 2]),
        ("alpha", 1.5),
        ("method", "magic"),
        ("rule", "magic"),
        ("schedule", 0.1),
    ],
)
def test_bad_arguments_are_refused(name: str, value: object) -> None:
    given: dict[str, object] = {"schedule": Steps(0.1), "steps": 3}
    with pytest.raises(InputError, match=f"^{name}: "):
        run_query(TASKS[0], **(given | {name: value}))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^dimension: "):
        run_query(QueryTask(1, 1, 3, 1.0, 1.0), Steps(0.1), steps=3)
