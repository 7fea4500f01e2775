"""Experiment files of the query model: the tables [query], [flow] and [ascent]."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numeric.errors import InputError
from numeric.query import QueryTask, alignments
from numeric.query_sgd import Steps
from numeric.query_steps import RULES
from numeric.validate import one_of, real_number, store, whole_number

PER_DIMENSION = "1/sqrt(d)"


@dataclass(frozen=True)
class QueryFlowSettings:
    """How to run the flow of the alignment.

    Parameters
    ----------
    alpha : float, optional
        Alignment at the start; by default ``d^(-1/2)``.
    t_max : float, optional
        Time at which to stop; by default what alignment takes.

    Raises
    ------
    InputError
        If a setting is outside its range.
    """

    alpha: float | None = None
    t_max: float | None = None

    def __post_init__(self) -> None:
        if self.alpha is not None:
            store(self, alpha=float(alignments(real_number("alpha", self.alpha))))
        if self.t_max is not None:
            store(self, t_max=real_number("t_max", self.t_max, positive=True))


@dataclass(frozen=True)
class AscentSettings:
    """How to run stochastic gradient ascent; see `run_query`.

    Parameters
    ----------
    schedule : Steps
    steps, runs, seed : int
    alpha : float, optional
        Alignment at the start; by default that of a random query.
    method : {"reduced", "direct"}
    rule : {"softmax", "oja", "power"}

    Raises
    ------
    InputError
        If a setting is outside its range.
    """

    schedule: Steps
    steps: int = 1000
    runs: int = 30
    seed: int = 1
    alpha: float | None = None
    method: str = "reduced"
    rule: str = "softmax"

    def __post_init__(self) -> None:
        store(
            self,
            steps=whole_number("steps", self.steps, 1),
            runs=whole_number("runs", self.runs, 1),
            seed=whole_number("seed", self.seed, 0),
            method=one_of("method", self.method, ("reduced", "direct")),
            rule=one_of("rule", self.rule, RULES),
        )
        if self.alpha is not None:
            store(self, alpha=float(alignments(real_number("alpha", self.alpha))))


@dataclass(frozen=True)
class QueryExperiment:
    """One experiment of the query model.

    Parameters
    ----------
    name : str
        Name of the example, or the file's name without its suffix.
    path : Path, optional
        Where the file is; ``None`` for examples and texts.
    task : QueryTask
    flow : QueryFlowSettings
    ascent : AscentSettings
    """

    name: str
    path: Path | None
    task: QueryTask
    flow: QueryFlowSettings
    ascent: AscentSettings

    @property
    def title(self) -> str:
        """The experiment in one line."""
        task = self.task
        signs = "one sign" if task.shared else "own signs"
        return (
            f"{self.name}: n_I = {task.informative}, {signs}, n_0 = {task.nuisance}, "
            f"d = {task.dimension}, θ = {task.theta:g}, β = {task.beta:g}, σ = {task.sigma:.4g}"
        )


def query_experiment(
    name: str,
    path: Path | None,
    query: QueryTask,
    ascent: AscentSettings,
    flow: QueryFlowSettings = QueryFlowSettings(),
) -> QueryExperiment:
    """Make an experiment of the tables that a file may have."""
    return QueryExperiment(name, path, query, flow, ascent)


def query_task(
    informative: object,
    nuisance: object,
    dimension: object,
    theta: object,
    beta: object,
    sigma: object = 1.0,
    shared: object = False,
    spread: object = 0.0,
) -> QueryTask:
    """Make a task of the table [query], whose sigma may be the text ``1/sqrt(d)``."""
    if isinstance(sigma, str):
        if sigma.replace(" ", "") != PER_DIMENSION:
            raise InputError("sigma", sigma, f"a number > 0, or {PER_DIMENSION!r}")
        sigma = float(1 / np.sqrt(whole_number("dimension", dimension, 2)))
    return QueryTask(
        informative,  # type: ignore[arg-type]
        nuisance,  # type: ignore[arg-type]
        dimension,  # type: ignore[arg-type]
        theta,  # type: ignore[arg-type]
        beta,  # type: ignore[arg-type]
        sigma,  # type: ignore[arg-type]
        shared,  # type: ignore[arg-type]
        spread,  # type: ignore[arg-type]
    )


def query_ascent(
    gamma_0: object,
    t_0: object = 1.0,
    p: object = 1.0,
    any_p: object = False,
    steps: object = 1000,
    runs: object = 30,
    seed: object = 1,
    alpha: object = None,
    method: object = "reduced",
    rule: object = "softmax",
) -> AscentSettings:
    """Make the settings of the table [ascent]."""
    schedule = Steps(gamma_0, t_0, p, any_p)  # type: ignore[arg-type]
    return AscentSettings(schedule, steps, runs, seed, alpha, method, rule)  # type: ignore[arg-type]
