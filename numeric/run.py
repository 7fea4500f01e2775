"""The main job: one experiment from derivation to verified figures.

Derivation, exact loss, spectrum, flow and finite-D SGD are computed, compared (`numeric.checks`), drawn
(`numeric.plots`) and written (`numeric.report`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from numeric import checks
from numeric.bayes import Risk, bayes_risk
from numeric.checks import Check
from numeric.experiment import Experiment
from numeric.flow import Flow, flow
from numeric.noise import initial_state
from numeric.sgd import SGDRuns, sgd
from numeric.spectrum import Spectrum, spectrum
from numeric.task import State

Progress = Callable[[str, float], None]

MONTE_CARLO_SAMPLES = 200_000
# The comparison of SGD with the flow ends where the first feature is half learned: beyond, the
# initial noise has been amplified so much that many runs would be needed to see a bias.
COMPARED_TIMES = 5
COMPARED_NORM = 0.5
BAYES_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Report:
    """Everything that a run found.

    Attributes
    ----------
    experiment : Experiment
    state : State
        Initial state of flow and SGD.
    spectrum : Spectrum
        At the origin.
    flow : Flow
        Over the whole horizon, at the experiment's kappa.
    compared : Flow
        The flow at the kappa of SGD, at the times that are compared.
    sgd : SGDRuns
    bayes : Risk
    checks : tuple of Check
    seconds : float
    """

    experiment: Experiment
    state: State
    spectrum: Spectrum
    flow: Flow
    compared: Flow
    sgd: SGDRuns
    bayes: Risk
    checks: tuple[Check, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def start_of(experiment: Experiment) -> State:
    """Return the experiment's state, or one drawn from its [flow] table."""
    if experiment.state is not None:
        return experiment.state
    settings = experiment.flow
    return initial_state(experiment.task, experiment.attention, settings.eta, settings.dimension,
                         settings.seed)


def kappa_of(experiment: Experiment) -> float:
    """Return the kappa of the experiment's SGD: from its step, or the flow's, or 1."""
    settings = experiment.sgd
    if settings.step is not None:
        return settings.step * settings.dimension / settings.batch
    return experiment.flow.kappa or 1.0


def run_experiment(experiment: Experiment, out: Path, progress: Progress = lambda *_: None
                   ) -> Report:
    """Run one experiment and write its results into a folder.

    Parameters
    ----------
    experiment : Experiment
    out : Path
        Created if need be; receives ``summary.json``, ``report.md``, ``derivation.md``, figures.
    progress : callable
        Called with the stage and the fraction of it that is done.

    Returns
    -------
    Report

    Raises
    ------
    HeadflowError
        If a computation cannot be carried out.
    OSError
        If the folder cannot be written.
    """
    from numeric.report import write_report

    out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    task, attention = experiment.task, experiment.attention
    state = start_of(experiment)
    progress("spectrum", 0.0)
    at_origin = spectrum(task, attention)
    progress("Bayes risk", 0.0)
    risk = bayes_risk(task, BAYES_TOLERANCE)
    path = flow(state, task, attention, experiment.flow.tau_max, experiment.flow.kappa,
                progress=lambda x: progress("flow", x))
    large, small, compared = _simulate(experiment, state, path, progress)

    progress("checks", 0.0)
    entries = attention.heads * task.prior.features + attention.heads * (attention.heads + 1) // 2
    total = 3 + entries * (len(compared.tau) - 1)
    found = [checks.expansion_check(state, task, attention), checks.spectrum_check(task, attention)]
    progress("checks", 0.3)
    growth = checks.growth_check(task, attention)
    if growth is not None:
        found.append(growth)
    progress("checks", 0.6)
    found += checks.loss_checks(path, task, attention, MONTE_CARLO_SAMPLES, experiment.sgd.seed,
                                total)
    found.append(checks.bayes_check(path, risk))
    found += checks.agreement_checks(large, small, compared, total)
    report = Report(experiment, state, at_origin, path, compared, large, risk, tuple(found),
                    time.perf_counter() - started)
    progress("report", 0.0)
    write_report(report, out)
    progress("report", 1.0)
    return report


def _simulate(experiment: Experiment, state: State, path: Flow, progress: Progress
              ) -> tuple[SGDRuns, SGDRuns, Flow]:
    """SGD at D and D/2 and the flow at its kappa, at common times."""
    task, attention, settings = experiment.task, experiment.attention, experiment.sgd
    smallest = attention.heads + task.prior.features
    dimension = max(settings.dimension - settings.dimension % 2, 2 * smallest)
    kappa = kappa_of(experiment)
    norms = np.linalg.norm(path.m, axis=1).max(axis=1, initial=0.0)
    beyond = np.flatnonzero(norms > max(COMPARED_NORM, 2 * norms[0]))
    horizon = float(path.tau[beyond[0]] if len(beyond) else path.tau[-1])
    times = np.linspace(0.0, horizon, COMPARED_TIMES)
    # Whole steps of the smaller simulation, whose step is the larger one.
    step = 2 * kappa * settings.batch / dimension
    times = np.unique(np.maximum(1, np.round(times / step)) * step * (times > 0))
    runs = [
        sgd(state, task, attention, dimension=size, tau=times, kappa=kappa, batch=settings.batch,
            runs=settings.runs, seed=settings.seed + i,
            progress=lambda x, size=size: progress(f"SGD at D = {size}", x))
        for i, size in enumerate((dimension, dimension // 2))
    ]
    compared = flow(state, task, attention, times, kappa,
                    progress=lambda x: progress("flow at the kappa of SGD", x))
    return runs[0], runs[1], compared
