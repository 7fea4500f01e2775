"""Phases of training and their durations against D: fits, and Theta(D) and Theta(D log D) measured."""

from functools import cache

import numpy as np
import pytest
from scipy.stats import kstest, norm

from numeric.errors import InputError
from numeric.escape import EscapeLaw, escape_law
from numeric.flow import integrate_flow
from numeric.phases import first_passages, fit_scaling, phase_watches, random_starts
from numeric.prior import GaussianPrior, isotropic
from numeric.saddles import unspecialized_saddle
from numeric.task import Attention, State, Task

SHIFTED = Task(5, GaussianPrior([1.0], [[1.0]]))
CENTRED = Task(5, isotropic(1, 4.0))  # the mean head grows slowly: nu (1 - 3/L) is near 1
PAIR, ETA, KAPPA, FALSE_ALARM = Attention("softmax", 2), 0.1, 1.0, 1e-6


def test_random_starts_are_initial_states() -> None:
    states = random_starts(SHIFTED, Attention("softmax-1", 3), 0.5, 50, seed=1, runs=400)
    assert states.m.shape == (400, 3, 1)
    scaled = states.m.ravel() * np.sqrt(50) / 0.5
    assert kstest(scaled, "norm").pvalue > FALSE_ALARM
    assert states.r[:, 0, 0].mean() == pytest.approx(0.25 * 49 / 50, rel=0.05)
    assert len(np.unique(states.m)) == 1200
    again = random_starts(SHIFTED, Attention("softmax-1", 3), 0.5, 50, seed=1, runs=3)
    np.testing.assert_array_equal(again.m, states.m[:3])
    assert again.b is not None and again.b.shape == (3, 3)


def test_phases_are_watched() -> None:
    watches = phase_watches(SHIFTED, PAIR)
    assert [x.name for x in watches] == ["mean", "specialization", "feature 1"]
    saddle = unspecialized_saddle(SHIFTED, PAIR).state
    assert watches[0].norm(saddle.m) == pytest.approx(2 * watches[0].threshold)
    assert watches[1].norm(saddle.m) == pytest.approx(0.0, abs=1e-12)
    assert [x.name for x in phase_watches(CENTRED, Attention("softmax", 1))] == ["feature 1"]


def test_lines_and_constants_are_fitted() -> None:
    rng, sizes = np.random.default_rng(1), np.array([1e2, 1e3, 1e4, 1e5, 1e6])
    slopes, inside, ps = [], 0, []
    for _ in range(400):
        found = fit_scaling(sizes, [2 + 0.5 * np.log(d) + rng.normal(size=100) for d in sizes])
        slopes.append(found.slope)
        low, high = found.interval(0.9)
        inside += low < 0.5 < high
        ps.append(found.line_p)
    assert np.mean(slopes) == pytest.approx(0.5, abs=5 * np.std(slopes) / 20)
    assert np.std(slopes) == pytest.approx(found.slope_error, rel=0.2)
    assert abs(inside - 360) < 5 * np.sqrt(36)
    assert kstest(ps, "uniform").pvalue > FALSE_ALARM
    assert found.constant_p < 1e-9 < found.line_p
    flat = fit_scaling(sizes, [3 + rng.normal(size=100) for _ in sizes])
    assert flat.constant == pytest.approx(3, abs=5 * flat.constant_error)
    assert flat.constant_p > FALSE_ALARM


def test_what_cannot_be_fitted() -> None:
    good = [np.array([1.0, 2.0]), np.array([2.0, 3.5])]
    for name, sizes, values in (
        ("dimensions", [100.0], good[:1]),
        ("dimensions", [200.0, 100.0], good),
        ("durations", [100.0, 200.0, 300.0], good),
        ("durations", [100.0, 200.0], [good[0], np.array([1.0, np.inf])]),
        ("durations", [100.0, 200.0], [good[0], np.array([1.0])]),
        ("durations", [100.0, 200.0], [good[0], np.array([1.0, 1.0])]),
    ):
        with pytest.raises(InputError) as caught:
            fit_scaling(sizes, values)
        assert caught.value.name == name
    with pytest.raises(InputError, match=r"^confidence: "):
        fit_scaling([1.0, 2.0], good).interval(1.0)


def aligned(dimension: int, runs: int) -> np.ndarray:
    found = first_passages(
        SHIFTED, PAIR, phase_watches(SHIFTED, PAIR)[:1], dimension=dimension, eta=ETA, kappa=1.0,
        tau_max=50.0, runs=runs, seed=dimension,
    )  # fmt: skip
    return found.passages[:, 0]


@cache
def alignment_time() -> float:
    """The flow's, from keys without alignment; a biased start costs O(1 / sqrt D) and averages out."""
    watch = phase_watches(SHIFTED, PAIR)[0]
    times = np.linspace(0.0, 10.0, 2001)
    start = State(np.zeros((2, 1)), ETA**2 * np.eye(2))
    path = integrate_flow(start, SHIFTED, PAIR, times, kappa=1.0)
    return float(np.interp(watch.threshold, watch.norm(path.m), times))


@pytest.mark.parametrize(
    "dimensions",
    [(1_000, 4_000), pytest.param((1_000, 10**4, 10**5, 10**6), marks=pytest.mark.slow)],
)
def test_alignment_with_the_mean_takes_samples_proportional_to_d(dimensions: tuple[int]) -> None:
    durations = [aligned(d, 48 if d < 10**5 else 24) for d in dimensions]
    found = fit_scaling(dimensions, durations)
    # Means are biased by O(1/D): from 1,000 on by less than their errors, but for a few per mille.
    assert abs(found.slope) < norm.isf(FALSE_ALARM / 2) * found.slope_error
    assert found.constant == pytest.approx(
        alignment_time(), abs=5 * found.constant_error + 0.01 * alignment_time()
    )


@cache
def law() -> EscapeLaw:
    return escape_law(CENTRED, PAIR, ETA, KAPPA)


def law_mean(dimension: float) -> float:
    levels = (np.arange(400) + 0.5) / 400
    return float(np.mean([law().quantile(p, dimension) for p in levels]))


@pytest.mark.slow
def test_specialization_takes_samples_proportional_to_d_log_d() -> None:
    """Over four decades: linear in log D, with the slope that the Hessian's growth rates give."""
    sizes, durations = (10**2, 10**3, 10**4, 10**5, 10**6), []
    for size, runs in zip(sizes, (2000, 2000, 400, 100, 16), strict=True):
        found = first_passages(
            CENTRED, PAIR, phase_watches(CENTRED, PAIR)[1:], dimension=size, eta=ETA, kappa=KAPPA,
            tau_max=200.0, runs=runs, seed=size, workers=2,
        )  # fmt: skip
        durations.append(found.passages[:, 0])
    fit = fit_scaling(sizes, durations)
    predicted = np.polyfit(np.log(sizes), [law_mean(d) for d in sizes], 1, w=1 / fit.error)[0]
    low, high = fit.interval()
    assert low - 0.05 * predicted < predicted < high + 0.05 * predicted
    assert fit.slope == pytest.approx(predicted, rel=0.05)
    relative = fit.spread / np.log(sizes)
    assert (np.diff(relative) < 0).all()
