"""Real signals: principal directions, what the theory sees of whole samples, condensed priors."""

import numpy as np
import pytest

from numeric.bayes import bayes_risk
from numeric.errors import InputError
from numeric.loss import population_loss
from numeric.prior import DiscretePrior, isotropic
from numeric.signals import Signals, condensed, real_signals
from numeric.task import Attention, State, Task

RNG = np.random.default_rng(2)
DATA = RNG.normal(size=(300, 6)) * [3.0, 0.1, 1.0, 2.0, 0.5, 0.2] + [1.0, 0, 0, 5.0, 0, 0]


@pytest.fixture(scope="module")
def found() -> Signals:
    return real_signals(DATA, 2, variance=4.0)


def test_directions_are_principal(found: Signals) -> None:
    np.testing.assert_allclose(found.directions.T @ found.directions, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(found.mean, DATA.mean(axis=0))
    moment = found.amplitudes.T @ found.amplitudes / len(DATA)
    np.testing.assert_allclose(moment, np.diag(found.variances), atol=1e-12)
    assert found.variances[0] == pytest.approx(4.0)
    assert (np.diff(found.variances) <= 0).all()
    # Against the singular values of the centred data.
    singular = np.linalg.svd(DATA - DATA.mean(0), compute_uv=False) ** 2
    np.testing.assert_allclose(found.variances, 4.0 * singular / singular[0])
    assert found.explained == pytest.approx(singular[:2].sum() / singular.sum())
    np.testing.assert_allclose(found.prior.covariance, np.diag(found.variances[:2]), atol=1e-12)


def test_samples_come_back(found: Signals) -> None:
    again = found.amplitudes @ found.directions.T / found.scale + found.mean
    np.testing.assert_allclose(again, DATA, atol=1e-12)


def test_uncentred_samples_keep_their_mean() -> None:
    found = real_signals(DATA, 1, centred=False)
    assert not found.mean.any() and found.scale == 1.0
    aligned = found.directions[:, 0] @ DATA.mean(0) / np.linalg.norm(DATA.mean(0))
    assert abs(aligned) > 0.95
    np.testing.assert_allclose(found.whole.mean @ found.directions.T, DATA.mean(0), atol=1e-12)


def test_scores_of_whole_samples_are_those_that_the_theory_sees(found: Signals) -> None:
    """Keys of norm^2 ``q = m m^T + r`` stay what they are when weak directions move into r."""
    m, root = RNG.normal(size=(3, 6)), RNG.normal(size=(3, 3))
    state = State(m, root @ root.T)
    seen = found.seen(state)
    np.testing.assert_allclose(seen.m @ seen.m.T + seen.r, m @ m.T + state.r, atol=1e-12)
    with pytest.raises(InputError, match=r"^state: .* expected all 6"):
        found.seen(State(m[:, :2], state.r))


def test_a_condensed_prior_has_the_same_moments(found: Signals) -> None:
    for components in (1, 5, 1000):
        few = condensed(found.prior, components)
        np.testing.assert_allclose(few.mean, found.prior.mean, atol=1e-12)
        np.testing.assert_allclose(few.covariance, found.prior.covariance, atol=1e-12)
    uneven = DiscretePrior([[0.0], [1.0], [5.0]], [0.7, 0.3, 0.0])
    few = condensed(uneven, 2)
    np.testing.assert_allclose(few.mean, uneven.mean, atol=1e-12)
    np.testing.assert_allclose(few.covariance, uneven.covariance, atol=1e-12)


def test_more_components_are_closer() -> None:
    """Two clusters: one Gaussian has another loss and another Bayes risk, two have nearly the same."""
    clusters = np.concatenate([RNG.normal(2.0, 0.3, (40, 1)), RNG.normal(-2.0, 0.3, (40, 1))])
    prior = real_signals(clusters, 1).prior
    state, layer = State([[1.0], [-0.8]], 0.1 * np.eye(2)), Attention("softmax", 2)

    def values(which: object) -> tuple[float, float]:
        task = Task(4, which)  # type: ignore[arg-type]
        return float(population_loss(state, task, layer).value), bayes_risk(task).value

    exact, one, two = values(prior), values(condensed(prior, 1)), values(condensed(prior, 2))
    for i in range(2):
        assert abs(two[i] - exact[i]) < 2e-3
        assert abs(one[i] - exact[i]) > 5 * abs(two[i] - exact[i])


def test_bad_input_is_refused(found: Signals) -> None:
    with pytest.raises(InputError, match=r"^features: .* at most 1, the rank"):
        real_signals([[1.0, 2.0], [2.0, 4.0]], 2)
    with pytest.raises(InputError, match=r"^features: .* at most 0, the rank"):
        real_signals([[1.0, 2.0], [1.0, 2.0]], 1)
    with pytest.raises(InputError, match=r"^features: "):
        real_signals(DATA, 7)
    with pytest.raises(InputError, match=r"^samples: "):
        real_signals([[np.nan, 1.0]], 1)
    with pytest.raises(InputError, match=r"^variance: "):
        real_signals(DATA, 1, variance=-1.0)
    with pytest.raises(InputError, match=r"^centred: "):
        real_signals(DATA, 1, centred=0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^prior: .* a discrete prior"):
        condensed(isotropic(1, 1.0), 2)
    with pytest.raises(InputError, match=r"^components: "):
        condensed(found.prior, 0)
    assert "2 features" in repr(found)
