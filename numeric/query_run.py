"""The main job for the query model: from the derivation to verified figures.

Objective, growth at the equator and stochastic gradient ascent are computed, compared, drawn and written.
"""

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import SeedSequence, default_rng
from scipy.special import ndtri, softmax
from scipy.stats import ks_2samp

from numeric import query_plots
from numeric._generated import query as kernels
from numeric.checks import FALSE_ALARM, Check, statistical, threshold, within
from numeric.errors import InputError, SimulationError
from numeric.files import result_folder, strict_json, write_text
from numeric.query import Objective, QueryFlow, QueryTask, query_objective
from numeric.query_command import budget_words, flow_of, runs_of, surroundings
from numeric.query_experiment import QueryExperiment
from numeric.query_noise import EarlyGrowth, StepBudget, early_growth, step_budget
from numeric.query_sgd import QueryRuns, run_query
from numeric.query_steps import draw_signs
from numeric.query_study import FixedPoint, GrowthMap, fixed_points
from numeric.report import check_table, heading, save_figures, versions
from numeric.run import Progress

ALIGNMENTS = (0.0, 0.3, 0.7, 1.0)
# Normals drawn by the Monte Carlo of the objective, and at most by the comparison in d dimensions.
NORMALS, MOST_DIRECT = 40_000_000, 40_000_000
LAW_RUNS, LAW_STEPS = 400, (1, 5)


@dataclass(frozen=True)
class QueryReport:
    """Everything that a run found.

    Attributes
    ----------
    experiment : QueryExperiment
    objective : Objective
        At `ALIGNMENTS`.
    points : tuple of FixedPoint
    budget : StepBudget
    growth : EarlyGrowth, optional
        None where the equator does not repel.
    map : GrowthMap
    runs : QueryRuns
    flow : QueryFlow
        Up to the time of the runs.
    exponent : float
        ``log(|alpha| / |alpha_0|)`` that the runs' steps should bring near the equator, noise included.
    checks : tuple of Check
    notes : tuple of str
        What was not compared, and why.
    seconds : float
    """

    experiment: QueryExperiment
    objective: Objective
    points: tuple[FixedPoint, ...]
    budget: StepBudget
    growth: EarlyGrowth | None
    map: GrowthMap
    runs: QueryRuns
    flow: QueryFlow
    exponent: float
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def run_query_experiment(
    experiment: QueryExperiment, out: Path, progress: Progress = lambda *_: None
) -> QueryReport:
    """Run one experiment of the query model and write its results into a folder.

    Parameters
    ----------
    experiment : QueryExperiment
        Of equal norms, d >= 4.
    out : Path
        Created if need be; receives ``summary.json``, ``report.md``, ``derivation.md``, figures.
    progress : callable
        Called with the stage and the fraction of it that is done.

    Raises
    ------
    HeadflowError
        If a computation cannot be carried out.
    OSError
        If the folder cannot be written.
    """
    if experiment.task.spread:
        raise InputError("query.spread", experiment.task.spread, "0, to compare with simulations")
    if experiment.task.dimension < 4:
        raise InputError("query.dimension", experiment.task.dimension, "a whole number >= 4")
    with result_folder(out):
        report = _computed(experiment, progress)
        progress("report", 0.0)
        _write(report, out)
        progress("report", 1.0)
        return report


def _computed(experiment: QueryExperiment, progress: Progress) -> QueryReport:
    started = time.perf_counter()
    task, settings = experiment.task, experiment.ascent
    notes = []
    progress("objective", 0.0)
    objective, points = query_objective(task, ALIGNMENTS), fixed_points(task)
    budget, growth = step_budget(task, seed=settings.seed), None
    if budget.step:
        try:
            told = partial(progress, "early growth")
            growth = early_growth(task, seed=settings.seed, progress=told)
        except SimulationError as error:
            notes.append(f"No growth was compared; {error}.")
    else:
        notes.append("The equator does not repel: there is no early growth to compare.")
    diagram = surroundings(experiment, partial(progress, "phase diagram"))
    runs = runs_of(experiment, None, partial(progress, "ascent"))
    sizes = np.array([settings.schedule(k) for k in range(settings.steps)])
    flow = flow_of(experiment, float(sizes.sum()))
    exponent = float(np.sum(sizes * budget.growth - sizes**2 * budget.square / 2))

    progress("checks", 0.0)
    law = _law(experiment, notes)
    total = len(ALIGNMENTS) + len(law)
    found = [*_objective_checks(task, objective, settings.seed, total), _expansion_check(task)]
    for k, p in zip(LAW_STEPS, law, strict=False):
        z = float(-ndtri(max(p, 1e-300) / 2))
        name = f"alpha after {k} steps, all coordinates against reduced (p-value)"
        found.append(Check(name, p, 1.0, 1.0, z, z <= threshold(total)))
    if growth is not None:
        tolerance = 0.02 * growth.expected
        name = "growth rate of alpha near 0 in runs, against J''(0)"
        agrees = growth.agrees(0.02)
        if agrees is None:
            part = growth.error / growth.expected
            notes.append(f"The early growth is known to {part:.1%} only, and was not compared.")
        else:
            found.append(Check(name, growth.rate, growth.expected, tolerance, None, agrees))
    if settings.rule == "softmax":
        found += _recovery_checks(task, runs, budget, exponent, notes)
    seconds = time.perf_counter() - started
    return QueryReport(
        experiment,
        objective,
        points,
        budget,
        growth,
        diagram,
        runs,
        flow,
        exponent,
        tuple(found),
        tuple(notes),
        seconds,
    )


def monte_carlo_objective(
    task: QueryTask, alpha: float, samples: int, seed: int
) -> tuple[float, float]:
    """Return a Monte-Carlo objective and its standard error.

    The oracle of `query_objective`: tokens' coordinates along u and along the rest of q are drawn, the
    d - 2 others enter by ``(d - 2) sigma^2 sum a_i^2``.

    Parameters
    ----------
    task : QueryTask
        Of equal norms.
    alpha : float
    samples, seed : int
    """
    rng, values = default_rng(SeedSequence([seed, 7])), []
    block = max(1, 1_000_000 // task.tokens)
    for first in range(0, samples, block):
        count = min(block, samples - first)
        x, w = task.sigma * rng.standard_normal((2, count, task.tokens))
        x[:, : task.informative] += task.theta * draw_signs(task, count, rng)
        a = softmax(task.beta * (alpha * x + np.sqrt(1 - alpha**2) * w), axis=1)
        plane = (a * x).sum(axis=1) ** 2 + (a * w).sum(axis=1) ** 2
        values.append((plane + (task.dimension - 2) * task.sigma**2 * (a**2).sum(axis=1)) / 2)
    every = np.concatenate(values)
    return float(every.mean()), float(every.std(ddof=1) / np.sqrt(len(every)))


def _objective_checks(task: QueryTask, objective: Objective, seed: int, total: int) -> list[Check]:
    samples = int(np.clip(NORMALS // (2 * len(ALIGNMENTS) * task.tokens), 100, 100_000))
    found = []
    for alpha, value in zip(ALIGNMENTS, objective.value, strict=True):
        mean, error = monte_carlo_objective(task, alpha, samples, seed)
        name = f"J at alpha = {alpha:g} against Monte Carlo"
        found.append(statistical(name, float(value), mean, error, total, samples - 1))
    slope, error = float(objective.slope[0]), float(objective.slope_error[0])
    return [*found, within("J'(0), zero by symmetry", slope, 0.0, max(error, 1e-12))]


def _expansion_check(task: QueryTask) -> Check:
    """J''(0) over beta^2 at small beta, extrapolated to zero, against the derived coefficient."""
    # Scores of deviation 0.02 leave corrections of order 1e-4, most of which cancel.
    beta = 0.02 / max(task.sigma, task.theta, 1e-12)
    values = []
    for b in (beta, beta / 2):
        at = query_objective(replace(task, beta=b), 0.0, 1e-13)
        values.append(float(at.curvature) / b**2)
    sizes = float(task.nuisance), float(task.informative), float(task.dimension)
    derived = kernels.growth_second_order(*sizes, task.sigma, task.theta, 1.0)[int(task.shared)]
    found = (4 * values[1] - values[0]) / 3
    tolerance = 0.1 * abs(values[1] - values[0]) + 1e-7 * abs(values[1]) + 1e-300
    return within(
        "J''(0) / beta^2 at beta = 0 against its expansion", found, float(derived), tolerance
    )


def _law(experiment: QueryExperiment, notes: list[str]) -> list[float]:
    """p-values of alpha after a few steps, in d dimensions against the reduced chain."""
    task, settings = experiment.task, experiment.ascent
    normals = task.tokens * task.dimension * LAW_RUNS * LAW_STEPS[-1]
    if normals > MOST_DIRECT:
        notes.append(
            f"Runs in d dimensions were not compared with reduced ones ({normals:.2g} random numbers)."
        )
        return []
    how: dict[str, Any] = {"steps": LAW_STEPS, "runs": LAW_RUNS, "alpha": 0.4}
    one, two = (
        run_query(task, settings.schedule, seed=settings.seed + k, method=method, **how).alpha
        for k, method in enumerate(("reduced", "direct"))
    )
    return [float(ks_2samp(a, b).pvalue) for a, b in zip(one.T, two.T, strict=True)]


def _recovery_checks(
    task: QueryTask, runs: QueryRuns, budget: StepBudget, exponent: float, notes: list[str]
) -> list[Check]:
    """Whether as many runs are stuck as the growth rate says."""
    if not budget.step:
        notes.append(
            f"The equator does not repel; noise carried {len(runs.alpha) - runs.stuck} of "
            f"{len(runs.alpha)} runs beyond alignment 1/2, which no formula here predicts."
        )
        return []
    needed = np.log(task.dimension)
    if exponent < needed or not np.isfinite(budget.deficit):
        notes.append(
            f"These steps make alpha grow by exp({exponent:.3g}) near the equator, less than d: whether "
            "runs should recover the signal is not decided, and was not checked."
        )
        return []
    return [within("runs that stay below alignment 1/2", runs.stuck, 0, 0.5)]


def _write(report: QueryReport, out: Path) -> None:
    from derive.query_document import query_document

    experiment = report.experiment
    write_text(out / "derivation.md", query_document())
    figures = {
        "objective": query_plots.objective_figure(experiment.task),
        "ascent": query_plots.alignment_figure(
            report.flow, report.runs, experiment.ascent.schedule
        ),
        "growth": query_plots.growth_figure(report.map),
    }
    save_figures(experiment, figures, out)
    write_text(out / "report.md", _markdown(report))
    write_text(out / "summary.json", strict_json(summary(report), indent=2) + "\n")


def summary(report: QueryReport) -> dict[str, Any]:
    """Return what ``summary.json`` holds."""
    experiment, runs = report.experiment, report.runs
    mean, width = runs.final()
    return {
        "experiment": experiment.name,
        "verdict": "agree" if report.passed else "disagree",
        "false_alarm_rate": FALSE_ALARM,
        "checks": [asdict(check) for check in report.checks],
        "notes": report.notes,
        "task": asdict(experiment.task),
        "objective": {"alpha": ALIGNMENTS, **asdict(report.objective)},
        "fixed_points": [asdict(x) | {"stable": x.stable} for x in report.points],
        "step_budget": asdict(report.budget),
        "early_growth": None if report.growth is None else asdict(report.growth),
        "ascent": {
            **asdict(experiment.ascent),
            "final": mean,
            "half_width_95": width,
            "stuck": runs.stuck,
            "growth_exponent": report.exponent,
        },
        "versions": versions(),
        "seconds": round(report.seconds, 1),
    }


def _markdown(report: QueryReport) -> str:
    experiment, runs, budget = report.experiment, report.runs, report.budget
    settings, schedule = experiment.ascent, experiment.ascent.schedule
    mean, width = runs.final()
    last = schedule(settings.steps)
    rest = [f"Flow, growth and step sizes are those of softmax, not of rule {settings.rule}."]
    if settings.rule == "softmax":
        rest = [f"To leading order in the step: {'; '.join(budget_words(budget))}."]
        if np.isfinite(budget.deficit):
            rest += [f"At the last step, gamma = {last:.4g}, that is {budget.deficit * last:.2g}."]
    lines = [
        *heading(experiment.name, report.checks),
        "",
        experiment.title + ".",
        "",
        "## Objective and fixed points",
        "",
        "| alpha | rate | |",
        "|---:|---:|---|",
        *(f"| {x.alpha:.6g} | {x.rate:.6g} | {x.kind} |" for x in report.points),
        "",
        "![objective](objective.svg)",
        "",
        "![growth rate](growth.svg)",
        "",
        "## Ascent",
        "",
        f"{settings.runs} runs of {settings.steps} steps, rule {settings.rule}, gamma_t = "
        f"{schedule.gamma_0:g} / ({schedule.t_0:g} + t)^{schedule.p:g}: mean |alpha| = {mean:.6f} +- "
        f"{width:.1e} (95 %) at the end, {runs.stuck} stuck below 1/2.",
        "",
        *rest,
        "",
        "![ascent](ascent.svg)",
        "",
        *check_table(report.checks),
    ]
    for note in report.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"
