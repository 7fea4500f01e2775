"""Random initial states against their law.

9 moments and 4 Kolmogorov-Smirnov tests, each at 1e-6 (below 2e-5 together). Seeds are fixed.
"""

import numpy as np
import pytest
from scipy import stats

from numeric.errors import InputError
from numeric.noise import initial_state
from numeric.prior import flipped_spike, isotropic
from numeric.task import Attention, Task


def test_initial_state_has_the_law_of_random_keys() -> None:
    """Keys N(0, eta^2 I / D): m normal, r Wishart with D - F degrees of freedom."""
    eta, dimension, heads, features, draws = 0.7, 30, 2, 2, 1500
    task, attention = Task(4, flipped_spike(np.eye(features))), Attention("b-softmax", heads)
    states = [initial_state(task, attention, eta, dimension, seed) for seed in range(draws)]
    m = np.array([state.m for state in states]) * np.sqrt(dimension) / eta
    r = np.array([state.r for state in states]) * dimension / eta**2
    freedom = dimension - features
    samples = {
        "m": (m[:, 0, 0], 0.0, 1.0),
        "m of heads": (m[:, 0, 0] * m[:, 1, 0], 0.0, 1.0),
        "m of features": (m[:, 0, 0] * m[:, 0, 1], 0.0, 1.0),
        "m^2": (m[:, 1, 1] ** 2, 1.0, 2.0),
        "r_11": (r[:, 0, 0], freedom, 2.0 * freedom),
        "r_22": (r[:, 1, 1], freedom, 2.0 * freedom),
        "r_12": (r[:, 0, 1], 0.0, freedom),
        "r_12^2": (r[:, 0, 1] ** 2, freedom, 2.0 * freedom**2 + 6 * freedom),
        "m and r": (m[:, 0, 0] * (r[:, 0, 0] - freedom), 0.0, 2.0 * freedom),
    }
    for name, (values, mean, variance) in samples.items():
        z = (values.mean() - mean) / np.sqrt(variance / draws)
        assert abs(z) < 4.9, name
    for h in range(2):
        assert stats.kstest(m[:, h, h], "norm").pvalue > 1e-6
        assert stats.kstest(r[:, h, h], stats.chi2(freedom).cdf).pvalue > 1e-6
    assert states[0].b is not None
    assert not states[0].b.any()


def test_initial_state_is_reproducible() -> None:
    task, attention = Task(4, isotropic(2, 1.0)), Attention("softmax", 3)
    one, same = (initial_state(task, attention, 0.1, 100, 5) for _ in range(2))
    assert one == same
    assert one != initial_state(task, attention, 0.1, 100, 6)


def test_smallest_dimension_of_an_initial_state() -> None:
    task, attention = Task(4, isotropic(2, 1.0)), Attention("softmax", 3)
    state = initial_state(task, attention, 1.0, 5, 0)
    assert np.linalg.eigvalsh(state.r).min() > 0
    with pytest.raises(InputError, match=r"^dimension: "):
        initial_state(task, attention, 1.0, 4, 0)
    one = initial_state(Task(4, isotropic(0, 1.0)), Attention("softmax", 1), 1.0, 1, 0)
    assert one.m.shape == (1, 0)
    assert one.r[0, 0] > 0


@pytest.mark.parametrize("eta", [0.0, -1.0, np.nan, "small"])
def test_bad_eta_is_refused(eta: object) -> None:
    with pytest.raises(InputError, match=r"^eta: "):
        initial_state(Task(4, isotropic(1, 1.0)), Attention("softmax", 1), eta, 10, 0)


@pytest.mark.parametrize("seed", [-1, 0.5, "one"])
def test_bad_seed_is_refused(seed: object) -> None:
    with pytest.raises(InputError, match=r"^seed: "):
        initial_state(Task(4, isotropic(1, 1.0)), Attention("softmax", 1), 1.0, 10, seed)
