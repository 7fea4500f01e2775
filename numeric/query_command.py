"""What the commands compute, print and draw for an experiment of the query model."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numeric.commands import Progress, Result, figures, mean_and_error, table
from numeric.errors import InputError, Verbatim

if TYPE_CHECKING:
    from numeric.query import QueryFlow
    from numeric.query_experiment import QueryExperiment
    from numeric.query_noise import StepBudget
    from numeric.query_sgd import QueryRuns
    from numeric.query_study import GrowthMap

ALIGNMENTS = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
TARGETS = (0.5, 0.9, 0.99)
CELLS = 25  # of a phase diagram, in each direction


def loss(experiment: "QueryExperiment", given: argparse.Namespace, _: Progress) -> Result:
    """Objective and derivatives at a few alignments."""
    from numeric.query import query_objective

    alpha = np.array(sorted({*ALIGNMENTS, experiment.flow.alpha or 0.0}))
    found = query_objective(experiment.task, alpha, 1e-10 if given.tol is None else given.tol)
    rows = [["alpha", "J", "J'", "J''", "(1 - alpha^2) J'", "error"]]
    errors = np.max([found.value_error, found.slope_error, found.curvature_error], axis=0)
    columns = (found.value, found.slope, found.curvature, (1 - alpha**2) * found.slope)
    for i, a in enumerate(alpha):
        rows.append([f"{a:g}", *(f"{x[i]:.10g}" for x in columns), f"{errors[i]:.1e}"])
    lines = [
        "objective J = E|o|^2 / 2 of the output o, and its derivatives in alpha",
        "",
        *table(rows),
    ]
    entries = {"alpha": alpha, **vars(found)}
    return entries, lines, lambda _: figures("query_plots").objective_figure(experiment.task)


def spectrum(
    experiment: "QueryExperiment", given: argparse.Namespace, progress: Progress
) -> Result:
    """Fixed points of the flow, and what single samples allow; the figure is a phase diagram."""
    from numeric.query_noise import step_budget
    from numeric.query_sgd import MOST_NUMBERS, NORMALS
    from numeric.query_study import field_lipschitz, fixed_points, time_to_align

    _refuse(given, "at", "along", "dimension")
    task, equal = experiment.task, not experiment.task.spread
    points = fixed_points(task)
    rows = [["|alpha|", "rate", "error", ""]]
    rows += [[f"{x.alpha:.8g}", f"{x.rate:.8g}", f"{x.error:.1e}", x.kind] for x in points]
    time, constant = time_to_align(task), field_lipschitz(task)
    lines = [
        "fixed points of d alpha/dt = (1 - alpha^2) J'",
        "",
        *table(rows),
        "",
        "time of the flow from |alpha| = d^(-1/2) to 0.9: "
        + (f"{time:.6g}" if np.isfinite(time) else "it does not get there"),
        f"Lipschitz constant of the field: {constant:.6g}",
    ]
    entries: dict[str, Any] = {
        "fixed_points": [vars(x) | {"stable": x.stable} for x in points],
        "time_to_align": time,
        "lipschitz": constant,
    }
    if equal and task.dimension >= 4 and NORMALS * task.tokens <= MOST_NUMBERS:
        budget = step_budget(task)
        lines += budget_words(budget)
        entries["step_budget"] = vars(budget)
    else:
        lines.append(
            "no step sizes: they take samples, of equal norms, d >= 4 and at most 3e7 tokens"
        )
    return (
        entries,
        lines,
        lambda _: figures("query_plots").growth_figure(
            surroundings(experiment, partial(progress, "phase diagram"))
        ),
    )


def budget_words(budget: "StepBudget") -> list[str]:
    words = ["no step makes |alpha| grow at 0", "no small constant step keeps |alpha| near 1"]
    if budget.step:
        words[0] = (
            f"step size of fastest growth at 0: {budget.step:.4g} +- {budget.step_error:.1g}; about "
            f"{budget.steps:.3g} such steps to 0.9"
        )
        if budget.limited:
            words[0] = (
                f"noise allows steps up to 1/J''(0) = {budget.step:.4g} at 0 and more, beyond which this "
                "estimate does not reach"
            )
    if np.isfinite(budget.deficit):
        words[1] = (
            f"constant steps gamma end at 1 - |alpha| = {budget.deficit:.4g} gamma "
            f"(+- {budget.deficit_error:.1g})"
        )
    return words


def surroundings(
    experiment: "QueryExperiment", progress: Any = None, cells: int = CELLS
) -> "GrowthMap":
    """Growth rates at 1/10 to 10 times the experiment's beta, and 1/4 to 4 times its theta."""
    from numeric.query_study import growth_map

    task = experiment.task
    beta, theta = (x or 1.0 for x in (task.beta, task.theta))
    return growth_map(
        task,
        ("beta", beta * np.geomspace(0.1, 10, cells)),
        ("theta", theta * np.geomspace(0.25, 4, cells)),
        progress=progress,
    )


def flow(experiment: "QueryExperiment", _: argparse.Namespace, __: Progress) -> Result:
    """The flow from the file's alignment, or from that of a random query."""
    path = flow_of(experiment)
    rows = [["t", "alpha"]]
    rows += [
        [f"{path.t[i]:.9g}", f"{path.alpha[i]:.9f}"]
        for i in np.unique(np.linspace(0, len(path.t) - 1, 11).astype(int))
    ]
    times = {str(x): path.time_to(x) for x in TARGETS}
    reached = [
        f"|alpha| = {x} at t = {t:.6g}" if np.isfinite(t) else f"|alpha| = {x} not reached"
        for x, t in times.items()
    ]
    entries = {"t": path.t, "alpha": path.alpha, "times_to": times}
    return (
        entries,
        [*table(rows), "", *reached],
        lambda _: figures("query_plots").alignment_figure(path),
    )


def flow_of(experiment: "QueryExperiment", t_max: float | None = None) -> "QueryFlow":
    """Return the flow of an experiment, up to a time, or that of the file, or until it is aligned."""
    from numeric.query import query_flow
    from numeric.query_study import fixed_points, time_to_align

    task, settings = experiment.task, experiment.flow
    start = task.dimension**-0.5 if settings.alpha is None else settings.alpha
    horizon = t_max or settings.t_max
    if horizon is None:
        first = abs(start)
        horizon = time_to_align(task, 0.99, first) if 0 < first < 0.99 else np.inf
        if not np.isfinite(horizon):
            rates = [abs(x.rate) for x in fixed_points(task) if x.stable is not None]
            horizon = 10 / max(rates, default=10.0)
        horizon *= 1.25
    if t_max is None:
        return query_flow(task, start, horizon)
    # Beside runs time is shown on a logarithmic axis.
    times = np.union1d(np.linspace(0, horizon, 201), horizon * np.geomspace(1e-4, 1, 201))
    return query_flow(task, start, times)


def runs_of(
    experiment: "QueryExperiment", method: str | None = None, progress: Any = None
) -> "QueryRuns":
    """Run the ascent of an experiment."""
    from numeric.query_sgd import run_query

    settings = experiment.ascent
    return run_query(
        experiment.task,
        settings.schedule,
        steps=settings.steps,
        runs=settings.runs,
        alpha=settings.alpha,
        seed=settings.seed,
        method=method or settings.method,
        rule=settings.rule,
        progress=progress,
    )


def sgd(experiment: "QueryExperiment", given: argparse.Namespace, progress: Progress) -> Result:
    """Runs of the ascent, or with ``--compare flow`` their early growth against J''(0)."""
    _refuse(given, "scaling", "checkpoint")
    if given.compare is not None:
        return _compare(experiment, progress)
    settings = experiment.ascent
    runs = runs_of(experiment, given.method, partial(progress, "ascent"))
    mean, errors = mean_and_error(np.abs(runs.alpha))
    rows = [["steps", "mean |alpha|", "least"]]
    for i in np.unique(np.linspace(0, len(runs.steps) - 1, 11).astype(int)):
        least = np.abs(runs.alpha[:, i]).min()
        margin = "" if np.isnan(errors[i]) else f" +- {errors[i]:.1e}"
        rows.append([f"{runs.steps[i]:.0f}", f"{mean[i]:.6f}{margin}", f"{least:.6f}"])
    final, width = runs.final()
    schedule = settings.schedule
    lines = [
        f"rule {settings.rule}, gamma_t = {schedule.gamma_0:g} / ({schedule.t_0:g} + t)^{schedule.p:g}, "
        f"{settings.runs} runs, ascent.seed = {settings.seed}",
        "",
        *table(rows),
        "",
        f"at the end mean |alpha| = {final:.6f} +- {width:.1e} (95 %); {runs.stuck} stuck below 0.5",
    ]
    entries = {"steps": runs.steps, "alpha": runs.alpha, "final": final, "half_width": width}
    entries["stuck"] = runs.stuck
    return entries, lines, lambda _: figures("query_plots").alignment_figure(None, runs)


def _compare(experiment: "QueryExperiment", progress: Progress) -> Result:
    from numeric.query_noise import early_growth

    if experiment.ascent.rule != "softmax":
        raise InputError("ascent.rule", experiment.ascent.rule, "softmax, to compare with its flow")

    found = early_growth(
        experiment.task, seed=experiment.ascent.seed, progress=partial(progress, "early growth")
    )
    ratio, error = found.rate / found.expected, found.error / found.expected
    passed = found.agrees()
    verdict = {True: "agree", False: "DISAGREE", None: "cannot be told apart at this cost"}[passed]
    lines = [
        "growth rate of alpha near 0, runs with steps of "
        f"{found.step:.4g} and half of it, extrapolated to none",
        f"runs {found.rate:.6g} +- {found.error:.1e}, J''(0) = {found.expected:.6g}, ratio {ratio:.4f} "
        f"+- {error:.4f}",
        f"runs and flow {verdict} (allowed: 2 %, with a standard error below 0.5 %)",
    ]
    runs = runs_of(experiment, None, partial(progress, "ascent"))
    schedule = experiment.ascent.schedule
    total = float(sum(schedule(k) for k in range(int(runs.steps[-1]))))
    entries = vars(found) | ({} if passed is None else {"passed": passed})
    return (
        entries,
        lines,
        lambda _: figures("query_plots").alignment_figure(
            flow_of(experiment, total), runs, schedule
        ),
    )


def _refuse(given: argparse.Namespace, *names: str) -> None:
    for name in names:
        value = getattr(given, name)
        if value is not None:
            raise InputError(
                f"--{name}", Verbatim(repr(value)), "none, for a file with a table [query]"
            )
