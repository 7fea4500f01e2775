"""What a cell of a sweep computes of its experiment: the commands' results as labelled arrays."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from numeric.bayes import bayes_risk
from numeric.errors import InputError
from numeric.experiment import Experiment
from numeric.flow import integrate_flow
from numeric.labelled import Labelled, Variable, labelled, labelled_arrays, objective_arrays
from numeric.loss import population_loss
from numeric.minimum import minimize_loss
from numeric.query import query_objective
from numeric.query_command import flow_of, runs_of
from numeric.query_experiment import QueryExperiment
from numeric.query_study import fixed_points
from numeric.run import kappa_of, start_of
from numeric.sgd import run_sgd
from numeric.spectrum import hessian_spectrum
from numeric.validate import one_of
from numeric.watch import feature_norms

TIMES = 101  # of a flow or a simulation, equally spaced
ALIGNMENTS = np.linspace(-1, 1, 41)
STARTS = 4  # descents towards a least loss


def quantities(experiment: Experiment | QueryExperiment, names: Iterable[str]) -> Labelled:
    """Compute quantities of an experiment.

    Parameters
    ----------
    experiment : Experiment or QueryExperiment
    names : iterable of str
        Among those of `known`.

    Returns
    -------
    Labelled

    Raises
    ------
    HeadflowError
        If one cannot be computed.
    """
    variables: dict[str, Variable] = {}
    labels: dict[str, Any] = {}
    for name in names:
        found = known(experiment)[name](experiment)
        variables |= found.variables
        labels |= found.labels
    return Labelled(variables, labels)


def known(experiment: object) -> Mapping[str, Callable[[Any], Labelled]]:
    """Return what can be computed of an experiment, by the name of the command that prints it."""
    return _OF_QUERY if isinstance(experiment, QueryExperiment) else _OF_ATTENTION


def check_names(experiment: object, names: Iterable[str], label: str) -> tuple[str, ...]:
    """Return names of quantities, each once.

    Raises
    ------
    InputError
        If there is none, or one is not known.
    """
    found = tuple(dict.fromkeys(one_of(label, name, known(experiment)) for name in names))
    if not found:
        raise InputError(label, "nothing", f"names among {', '.join(known(experiment))}")
    return found


def _times(experiment: Experiment) -> Any:
    return np.linspace(0.0, experiment.flow.tau_max, TIMES)


def _initial_loss(experiment: Experiment) -> Labelled:
    found = population_loss(start_of(experiment), experiment.task, experiment.attention)
    return labelled(found).prefixed("initial")


def _spectrum(experiment: Experiment) -> Labelled:
    return labelled(hessian_spectrum(experiment.task, experiment.attention))


def _flow(experiment: Experiment) -> Labelled:
    found = integrate_flow(
        start_of(experiment),
        experiment.task,
        experiment.attention,
        _times(experiment),
        experiment.flow.kappa,
    )
    return labelled(found)


def _risk(experiment: Experiment) -> Labelled:
    return labelled(bayes_risk(experiment.task))


def _minima(experiment: Experiment) -> Labelled:
    found = minimize_loss(
        experiment.task,
        experiment.attention,
        starts=STARTS,
        seed=experiment.flow.seed,
        spectrum=False,
    )
    return labelled(found).prefixed("least")


def _sgd(experiment: Experiment) -> Labelled:
    settings, task, attention = experiment.sgd, experiment.task, experiment.attention
    found = run_sgd(
        start_of(experiment),
        task,
        attention,
        dimension=settings.dimension,
        tau=_times(experiment),
        kappa=kappa_of(experiment),
        batch=settings.batch,
        runs=settings.runs,
        seed=settings.seed,
        method=settings.method,
        watch=feature_norms(task, attention),
    )
    return labelled(found).prefixed("sgd")


def _objective(experiment: QueryExperiment) -> Labelled:
    return objective_arrays(ALIGNMENTS, query_objective(experiment.task, ALIGNMENTS))


def _fixed_points(experiment: QueryExperiment) -> Labelled:
    found = fixed_points(experiment.task)
    columns = {
        "alignment": ([x.alpha for x in found], "|alpha| of a fixed point"),
        "rate": ([x.rate for x in found], "a displacement grows as exp(rate t)"),
        "rate_error": ([x.error for x in found], "absolute error"),
    }
    return labelled_arrays({name: (("point",), *x) for name, x in columns.items()})


def _query_flow(experiment: QueryExperiment) -> Labelled:
    return labelled(flow_of(experiment)).prefixed("flow")


def _query_sgd(experiment: QueryExperiment) -> Labelled:
    return labelled(runs_of(experiment)).prefixed("sgd")


_OF_ATTENTION: dict[str, Callable[[Any], Labelled]] = {
    "loss": _initial_loss,
    "spectrum": _spectrum,
    "flow": _flow,
    "risk": _risk,
    "minima": _minima,
    "sgd": _sgd,
}
_OF_QUERY: dict[str, Callable[[Any], Labelled]] = {
    "loss": _objective,
    "spectrum": _fixed_points,
    "flow": _query_flow,
    "sgd": _query_sgd,
}
