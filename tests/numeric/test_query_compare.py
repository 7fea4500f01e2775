"""Other rules and other tokens beside the ascent of one query; the slow studies of recovery."""

from dataclasses import replace

import numpy as np
import pytest

from numeric.errors import InputError
from numeric.query import QueryTask
from numeric.query_compare import compare_departures, compare_rules
from numeric.query_noise import early_growth, step_budget
from numeric.query_sgd import QueryRuns, Steps, run_query
from numeric.query_steps import Departure

TASK = QueryTask(20, 40, 30, 1.0, 2.0, 30**-0.5)
SCHEDULE = Steps(5.0, 10.0, 0.7)


def test_rules_are_counted_on_the_same_tokens() -> None:
    heard: list[float] = []
    found = compare_rules(
        TASK,
        SCHEDULE,
        ("theta", [0.2, 1.0]),
        steps=300,
        alignment=0.9,
        runs=5,
        progress=heard.append,
    )
    assert set(found.steps) == {"softmax", "oja", "power"} and heard[-1] == 1.0
    assert found.steps["oja"].shape == (2, 5)
    one = run_query(replace(TASK, theta=1.0), SCHEDULE, steps=np.arange(301), runs=5, rule="oja")
    np.testing.assert_array_equal(found.steps["oja"][1], np.ceil(one.times_to(0.9)))
    # A stronger signal is found sooner; what is not found counts as infinite.
    assert found.medians("softmax")[1] < found.medians("softmax")[0]
    never = compare_rules(TASK, Steps(1e-6), ("theta", [1.0]), steps=3, rules=("softmax",))
    assert np.isinf(never.medians("softmax")).all()


def test_departures_from_the_model() -> None:
    """Correlated noise and unequal signs do not hinder recovery, Student's noise with 3 degrees does."""
    given = {
        "model": Departure(),
        "correlated": Departure(correlation=0.5),
        "signs": Departure(plus=0.9),
        "tails": Departure(freedom=3.0),
    }
    found = compare_departures(TASK, SCHEDULE, given, steps=600, runs=10, seed=1)
    for name in ("model", "correlated", "signs"):
        assert found[name].stuck == 0 and found[name].final()[0] > 0.995
    assert found["tails"].final()[0] < 0.9
    spread = run_query(replace(TASK, spread=1.0), SCHEDULE, steps=600, runs=10, method="direct")
    assert spread.stuck == 0


def test_departing_noise_has_the_same_covariance() -> None:
    """One step of the power method from a fixed query: E Y^2 and the sign of its third moment."""
    rng = np.random.default_rng(0)
    for departure in (Departure(correlation=0.7), Departure(freedom=5.0), Departure()):
        from numeric.query_steps import Direct

        noise, factors, signs = Direct(TASK, "softmax", np.zeros(1), departure).draw(
            4000, [rng] * 3
        )
        assert (noise**2).mean() == pytest.approx(1.0, abs=0.03)
        assert (factors == 1).all() and abs(signs.mean()) < 0.03
        common = (noise[:, 0] * noise[:, 1]).mean()
        assert common == pytest.approx(departure.correlation, abs=0.02)


def test_runs_can_stop_when_they_rest() -> None:
    whole = run_query(TASK, SCHEDULE, steps=2000, runs=6)
    short = run_query(TASK, SCHEDULE, steps=2000, runs=6, settled=1e-3)
    assert short.settled and not whole.settled
    n = len(short.steps)
    assert n < len(whole.steps)
    np.testing.assert_array_equal(short.alpha, whole.alpha[:, :n])
    mean, width = short.final()
    assert width > short.final(0.5)[1] > 0 and abs(mean - whole.final()[0]) < 0.01
    assert run_query(TASK, SCHEDULE, steps=2, runs=1).final()[1] == np.inf


def test_an_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        runs = QueryRuns(np.array([1.0]), 0.8 + 0.05 * rng.standard_normal((10, 1)))
        mean, width = runs.final(0.9)
        hits += abs(mean - 0.8) <= width
    assert 850 <= hits <= 945  # 900 +- 47 at five standard deviations


def test_bad_arguments_are_refused() -> None:
    for call, name in (
        (lambda: Departure(correlation=1.1), "correlation"),
        (lambda: Departure(plus=-0.1), "plus"),
        (lambda: Departure(freedom=2.0), "freedom"),
        (lambda: compare_rules(TASK, SCHEDULE, ("gamma", [1.0]), steps=3), "vary"),
        (lambda: compare_rules(TASK, SCHEDULE, ("theta", [-1.0]), steps=3), "theta"),
        (lambda: compare_rules(TASK, SCHEDULE, ("theta", [1.0]), steps=0), "steps"),
        (
            lambda: compare_rules(TASK, SCHEDULE, ("theta", [1.0]), steps=3, alignment=1.0),
            "alignment",
        ),
        (lambda: compare_rules(TASK, SCHEDULE, ("theta", [1.0]), steps=3, rules=("x",)), "rules"),
        (lambda: run_query(TASK, SCHEDULE, steps=3, departure=Departure()), "departure"),
        (lambda: run_query(TASK, SCHEDULE, steps=3, settled=0.0), "settled"),
        (lambda: run_query(replace(TASK, spread=1.0), SCHEDULE, steps=3), "spread"),
        (lambda: run_query(TASK, SCHEDULE, steps=3).final(1.0), "confidence"),
    ):
        with pytest.raises(InputError, match=f"^{name}: "):
            call()


SIGMA = 0.1
STUDIES = [
    # n_I, n_0, theta, beta, sigma, schedule, steps, least mean of |alpha|
    (1000, 10_000, 0.25, 10.0, SIGMA, Steps(300, 10, 0.7), 2000, 0.9965),
    (1000, 10_000, 0.5, 10.0, SIGMA, Steps(100, 10, 0.7), 1500, 0.995),
    (1000, 10_000, 1.0, 10.0, SIGMA, Steps(30, 10, 0.7), 1500, 0.993),
    (100, 1_000, 1.0, 10.0, SIGMA, Steps(3, 10, 0.7), 3000, 0.99),
    # Noise of 1 in a coordinate: thousands of small steps.
    (100, 1_000, 1.0, 1.0, 1.0, Steps(1, 10, 0.7), 8000, 0.99),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "n0", "theta", "beta", "sigma", "schedule", "steps", "least"), STUDIES
)
def test_thirty_runs_recover_the_signal(
    n: int,
    n0: int,
    theta: float,
    beta: float,
    sigma: float,
    schedule: Steps,
    steps: int,
    least: float,
) -> None:
    """Claim B2, d = 100: the lower end of the 95 % interval of mean |alpha|, and none stuck."""
    task = QueryTask(n, n0, 100, theta, beta, sigma)
    found = run_query(task, schedule, steps=steps, runs=30, seed=1)
    mean, width = found.final()
    print(f"{task}: |alpha| = {mean:.5f} +- {width:.5f} after {steps} steps")
    assert found.stuck == 0 and mean - width > least
    assert early_growth(task).agrees(0.02)


@pytest.mark.slow
def test_where_recovery_fails() -> None:
    """Noise of 1 in a coordinate at beta = 5: 10^7 steps are needed, a million times smaller."""
    task = QueryTask(1000, 10_000, 100, 0.25, 5.0, 1.0)
    budget = step_budget(task)
    print(budget)
    assert budget.growth > 0.1 and budget.steps > 1e6
    found = run_query(task, Steps(1.0, 10.0, 0.7), steps=1000, runs=30)
    assert found.stuck == 30 and found.final()[0] < 0.2


@pytest.mark.slow
def test_ascent_beside_classical_tracking() -> None:
    """Steps to 0.99 against theta and n_0, printed; Oja's rule is slower at many null tokens."""
    task = QueryTask(100, 100, 50, 1.0, 5.0, 50**-0.5)
    schedule = Steps(10.0, 10.0, 0.7)
    for vary in (("theta", [0.25, 0.5, 1.0, 2.0]), ("nuisance", [10, 100, 1000, 10_000])):
        found = compare_rules(task, schedule, vary, steps=3000, runs=30, alignment=0.99)
        print(vary, {rule: found.medians(rule) for rule in found.steps})
        assert found.steps["softmax"].shape == (4, 30)
    assert found.medians("softmax")[2] < found.medians("oja")[2]
