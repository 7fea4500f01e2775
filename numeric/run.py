"""The main job: one experiment from derivation to verified figures.

Derivation, exact loss, spectrum, flow and finite-D SGD are computed, compared (`numeric.checks`), drawn
(`numeric.plots`) and written (`numeric.report`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from numeric import checks
from numeric.agreement import compared_times
from numeric.bayes import Risk, bayes_risk
from numeric.checks import Check
from numeric.errors import InputError
from numeric.experiment import Experiment
from numeric.files import result_folder
from numeric.flow import Flow, integrate_flow
from numeric.noise import initial_state
from numeric.sgd import SGDRuns, run_sgd
from numeric.spectrum import Spectrum, hessian_spectrum
from numeric.task import State

Progress = Callable[[str, float], None]

MONTE_CARLO_SAMPLES = 200_000
BAYES_TOLERANCE = 1e-6
# Runs that are drawn on top of the flow, and steps that each may take.
SHOWN_RUNS, SHOWN_STEPS, MOST_STEPS = 6, 60_000, 10_000_000


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
    flow, matched : Flow
        Over the whole horizon, at the experiment's kappa and at that of SGD.
    sgd : SGDRuns
        Runs over the horizon, to look at.
    compared_until : float
        Time up to which SGD is compared with the flow.
    bayes : Risk
    checks : tuple of Check
    no_growth : str
        Why no growth rate was compared with the early flow, or empty.
    seconds : float
    """

    experiment: Experiment
    state: State
    spectrum: Spectrum
    flow: Flow
    matched: Flow
    sgd: SGDRuns
    compared_until: float
    bayes: Risk
    checks: tuple[Check, ...]
    no_growth: str
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
    return initial_state(
        experiment.task, experiment.attention, settings.eta, settings.dimension, settings.seed
    )


def kappa_of(experiment: Experiment) -> float:
    """Return the kappa of the experiment's SGD: from its step, or the flow's, or 1."""
    settings = experiment.sgd
    if settings.step is not None:
        return settings.step * settings.dimension / settings.batch
    return experiment.flow.kappa or 1.0


def run_experiment(
    experiment: Experiment, out: Path, progress: Progress = lambda *_: None
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
    _check(experiment)
    with result_folder(out):
        return _run(experiment, out, progress)


def _run(experiment: Experiment, out: Path, progress: Progress) -> Report:
    from numeric.report import write_report

    started = time.perf_counter()
    task, attention = experiment.task, experiment.attention
    state = start_of(experiment)
    progress("spectrum", 0.0)
    at_origin = hessian_spectrum(task, attention)
    progress("Bayes risk", 0.0)
    risk = bayes_risk(task, BAYES_TOLERANCE)
    path, matched = _flows(experiment, state, progress)
    shown = _shown(experiment, state, progress)
    large, small, compared = _compared(experiment, state, matched, progress)

    progress("checks", 0.0)
    heads = attention.heads
    entries = heads * task.prior.features + heads * (heads + 1) // 2
    entries += heads * len(attention.parameters)
    total = 3 + entries * (len(compared.tau) - 1)
    found = [checks.expansion_check(state, task, attention), checks.spectrum_check(task, attention)]
    growth = checks.growth_check(task, attention)
    if isinstance(growth, Check):
        found.append(growth)
    progress("checks", 0.5)
    found += checks.loss_checks(
        path, task, attention, MONTE_CARLO_SAMPLES, experiment.sgd.seed, total
    )
    found.append(checks.bayes_check(path, risk))
    found += checks.agreement_checks(large, small, compared, total)
    report = Report(
        experiment,
        state,
        at_origin,
        path,
        matched,
        shown,
        float(compared.tau[-1]),
        risk,
        tuple(found),
        growth if isinstance(growth, str) else "",
        time.perf_counter() - started,
    )
    progress("report", 0.0)
    write_report(report, out)
    progress("report", 1.0)
    return report


def _check(experiment: Experiment) -> None:
    """Refuse what a comparison of SGD with the flow cannot do."""
    settings = experiment.sgd
    if settings.runs < 2:
        raise InputError("sgd.runs", settings.runs, "at least 2, to know the spread of runs")
    least = 2 * (experiment.attention.heads + experiment.task.prior.features)
    if settings.dimension < least or settings.dimension % 2:
        raise InputError(
            "sgd.dimension",
            settings.dimension,
            f"an even number >= {least}, so that runs at half of it can be compared",
        )
    kappa = kappa_of(experiment)
    steps = experiment.flow.tau_max * settings.dimension / (kappa * settings.batch)
    if not 1 <= steps <= MOST_STEPS:
        raise InputError(
            "sgd.step" if settings.step is not None else "flow.kappa",
            settings.step if settings.step is not None else kappa,
            f"from 1 to {MOST_STEPS:,} steps up to flow.tau_max (here {steps:.3g})",
        )


def _flows(experiment: Experiment, state: State, progress: Progress) -> tuple[Flow, Flow]:
    """Flow at the experiment's kappa, and at that of SGD."""
    settings, kappa = experiment.flow, kappa_of(experiment)
    paths: dict[float, Flow] = {}
    for value in (settings.kappa, kappa):
        if value not in paths:
            paths[value] = integrate_flow(
                state,
                experiment.task,
                experiment.attention,
                settings.tau_max,
                value,
                progress=partial(progress, f"flow at kappa = {value:g}"),
            )
    return paths[settings.kappa], paths[kappa]


def _shown(experiment: Experiment, state: State, progress: Progress) -> SGDRuns:
    """A few runs over the whole horizon, or as far as an affordable number of steps goes."""
    settings, dimension = experiment.sgd, experiment.sgd.dimension
    kappa = kappa_of(experiment)
    step = kappa * settings.batch / dimension
    horizon = min(experiment.flow.tau_max, max(SHOWN_STEPS, 1) * step)
    times = np.linspace(0.0, max(horizon, step), 101)
    return run_sgd(
        state,
        experiment.task,
        experiment.attention,
        dimension=dimension,
        tau=times,
        kappa=kappa,
        batch=settings.batch,
        method=settings.method,
        runs=min(settings.runs, SHOWN_RUNS),
        seed=(settings.seed + 2) % 2**63,
        progress=partial(progress, f"SGD at D = {dimension}, whole horizon"),
    )


def _compared(
    experiment: Experiment, state: State, path: Flow, progress: Progress
) -> tuple[SGDRuns, SGDRuns, Flow]:
    """SGD at D and D/2, and the flow at its kappa, at common times."""
    task, attention, settings = experiment.task, experiment.attention, experiment.sgd
    dimension, kappa = experiment.sgd.dimension, kappa_of(experiment)
    # Whole steps of the smaller simulation, whose step is the larger one.
    times = compared_times(path, 2 * kappa * settings.batch / dimension)
    runs = [
        run_sgd(
            state,
            task,
            attention,
            dimension=size,
            tau=times,
            kappa=kappa,
            batch=settings.batch,
            method=settings.method,
            runs=settings.runs,
            seed=(settings.seed + i) % 2**63,
            progress=partial(progress, f"SGD at D = {size}"),
        )
        for i, size in enumerate((dimension, dimension // 2))
    ]
    return runs[0], runs[1], integrate_flow(state, task, attention, times, kappa)
