"""What training finds: the classifier by examples, ends of flows and of SGD."""

import numpy as np
import pytest

from numeric.errors import InputError
from numeric.minimum import minimize_loss
from numeric.outcomes import classify, training_outcomes
from numeric.prior import GaussianPrior, isotropic
from numeric.task import Attention, Task


def test_classes_by_example() -> None:
    found = classify([[2.0, 0.1, 0.0], [-1.0, 0.9, 0.5], [0.2, 0.0, 0.1], [0.0, -0.6, 0.1]])
    assert found.heads == ((1,), (-1, 2, 3), (), (-2,))
    assert found.counts == (1, 2, 1)
    assert found.features == (1, 2, 3)
    assert str(found) == "+e1, -e1+e2+e3, unused, -e2"
    assert found.summary == "1 mixture, 2 single directions, 1 unused head"


def test_thresholds() -> None:
    """A fifth of the longest head, a tenth of one, three tenths of the head's largest alignment."""
    assert classify([[1.0, 0.0], [0.0, 0.19]]).counts == (1, 1, 0)
    assert classify([[1.0, 0.0], [0.0, 0.21]]).counts == (0, 2, 0)
    assert classify([[0.09, 0.0], [0.0, 0.05]]).counts == (2, 0, 0)
    assert classify([[1.0, 0.29]]).counts == (0, 1, 0)
    assert classify([[1.0, 0.31]]).counts == (0, 0, 1)
    assert classify(np.zeros((2, 0))).counts == (2, 0, 0)


def test_a_permutation_or_a_flip_does_not_change_the_counts() -> None:
    m = np.random.default_rng(1).normal(size=(6, 3))
    one = classify(m)
    assert classify(m[::-1]).counts == one.counts
    assert classify(-m).counts == one.counts
    assert classify(m[:, ::-1]).counts == one.counts


def test_flows_and_sgd_end_at_the_minimum() -> None:
    """One feature, two heads: +e1 and -e1, with the least loss that descents find."""
    task, layer = Task(5, isotropic(1, 6.0)), Attention("softmax", 2)
    flows = training_outcomes(task, layer, runs=3, tau_max=150.0)
    assert flows.method == "flow" and flows.moving.max() < 1e-3
    assert {str(x) for x in flows.patterns} <= {"+e1, -e1", "-e1, +e1"}
    best = minimize_loss(task, layer, starts=4, spectrum=False).loss
    assert flows.losses == pytest.approx(best, abs=1e-4)
    assert flows.bayes.value < best
    assert list(flows.groups) == ["2 single directions"]
    heard: list[float] = []
    runs = training_outcomes(
        task, layer, runs=3, tau_max=150.0, method="sgd", dimension=500, progress=heard.append
    )
    assert runs.method == "sgd" and heard[-1] == 1.0
    # Noise of finite steps raises the loss a little.
    assert (runs.losses > best - 1e-5).all() and (runs.losses < best + 0.05).all()
    assert "2 single directions" in repr(runs)


def test_pooled_layers_of_many_heads_are_simulated() -> None:
    task = Task(4, GaussianPrior([0.0, 0.0], [[4.0, 0.0], [0.0, 3.0]]))
    found = training_outcomes(task, Attention("b-softmax", 4), runs=2, tau_max=20.0, dimension=200)
    assert found.method == "sgd" and found.states.b is not None
    assert found.states.m.shape == (2, 4, 2)


def test_bad_input_is_refused() -> None:
    task, layer = Task(3, isotropic(1, 1.0)), Attention("softmax", 2)
    for name, value in (("runs", 0), ("tau_max", 0.0), ("kappa", -1.0), ("method", "magic")):
        with pytest.raises(InputError, match=f"^{name}: "):
            training_outcomes(task, layer, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^m: "):
        classify([1.0, 2.0])
