"""Results as arrays with named axes: nothing is lost, axes fit, and anything else is refused."""

from typing import Any

import numpy as np
import pytest

from numeric import (
    Attention,
    GaussianPrior,
    QueryTask,
    State,
    Steps,
    Task,
    bayes_risk,
    feature_norms,
    flipped_spike,
    hessian_spectrum,
    integrate_flow,
    minimize_loss,
    population_loss,
    query_flow,
    run_query,
    run_sgd,
    unspecialized_saddle,
)
from numeric.errors import InputError
from numeric.labelled import Labelled, labelled, labelled_arrays

TASK = Task(4, GaussianPrior([0.0, 0.0], np.diag([4.0, 2.0])))
LAYER = Attention("softmax-1", 3)
STATE = State(0.3 * np.eye(3, 2), 0.01 * np.eye(3))


def test_a_flow() -> None:
    flow = integrate_flow(STATE, TASK, LAYER, [0.0, 1.0, 2.0])
    found = labelled(flow)
    assert found.variables["m"].dims == ("tau", "head", "feature")
    for name in ("loss", "m", "r", "b", "v"):
        np.testing.assert_array_equal(found.variables[name].values, getattr(flow, name))
    np.testing.assert_array_equal(found.labels["tau"], flow.tau)
    assert found.labels["head"].tolist() == [1, 2, 3]
    assert np.isnan(flow.first_passage).all()
    assert np.isinf(found.variables["first_passage"].values).all()
    assert all(x.meaning for x in found.variables.values())


def test_runs_of_sgd() -> None:
    how: dict[str, Any] = {"dimension": 20, "tau": [0.0, 1.0], "kappa": 2.0, "runs": 2}
    runs = run_sgd(STATE, TASK, LAYER, watch=feature_norms(TASK, LAYER), **how)
    found = labelled(runs).prefixed("sgd")
    assert found.variables["sgd_m"].dims == ("run", "sgd_tau", "head", "feature")
    np.testing.assert_array_equal(found.variables["sgd_m"].values, runs.m)
    assert found.labels["sgd_watch"].tolist() == ["feature 1", "feature 2"]
    assert "sgd_passage" in found.variables
    assert "passage" not in labelled(run_sgd(STATE, TASK, LAYER, **how)).variables


def test_spectra_and_saddles() -> None:
    spectrum = hessian_spectrum(TASK, Attention("softmax", 3))
    found = labelled(spectrum)
    assert found.labels["sector"].tolist() == list(spectrum.sectors)
    np.testing.assert_array_equal(found.variables["growth_rate"].values, -spectrum.eigenvalues)
    at_state = labelled(hessian_spectrum(TASK, LAYER, STATE))
    labels = at_state.labels["sector"].tolist()
    assert len(set(labels)) == len(labels)  # equal sectors are told apart
    saddle = unspecialized_saddle(TASK, Attention("softmax", 2))
    assert float(labelled(saddle).variables["index"].values) == saddle.index


def test_values_with_errors() -> None:
    loss = population_loss(STATE, TASK, LAYER)
    found = labelled(loss).variables
    assert float(found["loss"].values) == loss.value
    assert float(found["loss_error"].values) == loss.error
    risk = bayes_risk(TASK, 1e-4)
    assert float(labelled(risk).variables["bayes_risk_error"].values) == risk.error
    least = minimize_loss(Task(3, flipped_spike([[1.0]])), Attention("softmax", 1), starts=1)
    assert float(labelled(least).variables["gap"].values) == least.gap


def test_the_query_model() -> None:
    task = QueryTask(2, 5, 10, 1.0, 1.0)
    flow = query_flow(task, 0.3, 1.0)
    np.testing.assert_array_equal(labelled(flow).variables["alpha"].values, flow.alpha)
    runs = run_query(task, Steps(1.0), steps=5, runs=3)
    found = labelled(runs).variables
    np.testing.assert_array_equal(found["alpha"].values, runs.alpha)
    assert float(found["final_error"].values) == runs.final()[1]


def test_numbers_and_mappings() -> None:
    assert float(labelled(2).variables["value"].values) == 2.0
    found = labelled({"gap": 0.5, "curve": (("x",), [1.0, 2.0], "of x")})
    assert found.variables["curve"].dims == ("x",) and found.variables["curve"].meaning == "of x"
    assert labelled(found) is found


@pytest.mark.parametrize(
    "given",
    [
        "text", None, [1.0], {"x": "y"}, {"x": [1.0]}, {"x": (("a",), ["t"])}, {"x": (1, 2)},
        {"x": (("a", "b"), [1.0])}, {"x": (("a",), [1.0]), "y": (("a",), [1.0, 2.0])}, {"x": (("a",),)},
    ],
)  # fmt: skip
def test_anything_else_is_refused(given: object) -> None:
    with pytest.raises(InputError):
        labelled(given)


def test_axes_that_nothing_uses_are_left_out() -> None:
    found: Labelled = labelled_arrays(
        {"x": ((), 1.0, ""), "none": (("t",), None, "")}, {"t": [1, 2]}
    )
    assert not found.labels and list(found.variables) == ["x"]
