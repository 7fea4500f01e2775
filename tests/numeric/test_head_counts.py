"""Head counts: quadrature nodes, optimal quantizations against a one-dimensional search, known limits."""

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.optimize import minimize_scalar

from numeric.bayes import bayes_risk
from numeric.errors import InputError
from numeric.head_counts import gauss_nodes, head_count
from numeric.loss import population_loss
from numeric.minimum import bayes_softmax_optimum
from numeric.prior import (
    DiscretePrior,
    GaussianPrior,
    MixturePrior,
    Prior,
    flipped_spike,
    isotropic,
)
from numeric.task import Attention, State, Task

MIXTURE = MixturePrior([0.3, 0.7], [[-1.0], [2.0]], [[[0.5]], [[0.0]]])


def test_gauss_nodes_of_a_normal_are_hermite_nodes() -> None:
    found = gauss_nodes(GaussianPrior([0.5], [[4.0]]), 5)
    z, w = hermegauss(5)
    np.testing.assert_allclose(found.support[:, 0], 0.5 + 2 * z, atol=1e-10)
    np.testing.assert_allclose(found.probabilities, w / w.sum(), atol=1e-12)


@pytest.mark.parametrize("prior", [MIXTURE, DiscretePrior([[0.1], [1.0], [-2.0]], [0.2, 0.5, 0.3])])
def test_gauss_nodes_match_moments(prior: Prior) -> None:
    found = gauss_nodes(prior, 2)
    weights, means, covariances = prior.components()
    z, w = hermegauss(20)
    x = means + np.sqrt(covariances[:, 0]) * z
    for k in range(4):
        exact = float(weights @ (x**k @ (w / w.sum())))
        assert found.probabilities @ found.support[:, 0] ** k == pytest.approx(exact, rel=1e-10)


def test_gauss_nodes_of_a_discrete_prior_end_with_itself() -> None:
    prior = DiscretePrior([[0.1], [1.0], [-2.0]], [0.2, 0.5, 0.3])
    found = gauss_nodes(prior, 3)
    order = np.argsort(prior.support[:, 0])
    np.testing.assert_allclose(found.support, prior.support[order], atol=1e-12)
    np.testing.assert_allclose(found.probabilities, prior.probabilities[order], atol=1e-12)
    with pytest.raises(InputError, match=r"^count: "):
        gauss_nodes(prior, 4)
    with pytest.raises(InputError, match=r"^prior: "):
        gauss_nodes(isotropic(2, 1.0), 2)


def test_a_discrete_prior_needs_a_head_for_each_point() -> None:
    task = Task(5, flipped_spike([[1.5]]))
    found = head_count(task, most=3, starts=2)
    # One head of a prior without mean learns nothing.
    assert found.gaps[0] == pytest.approx(0.8 - bayes_risk(task).value, abs=1e-6)
    assert abs(found.gaps[1]) < 1e-9 and abs(found.gaps[2]) < 1e-9
    assert head_count(task, max_gap=0.01, most=8, starts=1).needed == 2


def test_a_normal_prior_against_a_search_over_one_number() -> None:
    """Two heads: by symmetry +-k of equal weight. Three heads beat Gauss nodes; gaps fall fast."""
    task = Task(5, isotropic(1, 4.0))
    found = head_count(task, most=4, starts=2)

    def loss(k: float) -> float:
        state = State([[k], [-k]], np.zeros((2, 2)), b=[0.0, 0.0])
        return float(population_loss(state, task, Attention("b-softmax", 2), 1e-9).value)

    best = minimize_scalar(loss, bounds=(0.5, 4.0), method="bounded", options={"xatol": 1e-6})
    assert found.gaps[1] == pytest.approx(best.fun - found.bayes.value, abs=1e-8)
    assert (found.gaps <= found.nodes + 1e-9).all()
    assert (np.diff(np.log(found.gaps)) < -2).all()
    assert (np.array([x.stiffness for x in found.minima]) > 0).all()
    assert found.decay is not None and found.decay.kind == "exponential"
    # Gauss nodes are what they say.
    state = bayes_softmax_optimum(Task(5, gauss_nodes(task.prior, 3)))
    at_nodes = float(population_loss(state, task, Attention("b-softmax", 3)).value)
    assert found.nodes[2] == pytest.approx(at_nodes - found.bayes.value, abs=1e-7)


def test_softmax_never_gets_there() -> None:
    heard: list[float] = []
    task = Task(5, flipped_spike([[1.5]]))
    found = head_count(task, "softmax", max_gap=0.01, most=3, starts=2, progress=heard.append)
    assert found.needed is None and (found.gaps > 0.05).all()
    assert np.isnan(found.nodes).all()
    assert heard == sorted(heard) and heard[-1] == 1.0
    assert "gaps 1: " in repr(found)


def test_products_of_nodes_in_two_dimensions() -> None:
    """Four heads of a normal prior of unequal variances: 2 x 2 or 4 x 1 nodes, whichever is better."""
    task = Task(4, GaussianPrior([0.0, 0.0], [[3.0, 0.0], [0.0, 0.3]]))
    found = head_count(task, most=4, starts=0)
    assert found.gaps[3] < found.nodes[3] < found.nodes[0]


@pytest.mark.parametrize(
    ("name", "value"), [("most", 0), ("max_gap", 0.0), ("starts", -1), ("seed", 0.5)]
)
def test_bad_input_is_refused(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"^{name}: "):
        head_count(Task(3, isotropic(1, 1.0)), **{name: value})  # type: ignore[arg-type]
