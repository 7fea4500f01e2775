"""What ``headflow sgd`` computes, prints and draws: runs, their agreement with the flow, their phases."""

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from numeric.commands import Progress, Result, course, figures, mean_and_error, ranges, start, table
from numeric.errors import InputError

if TYPE_CHECKING:
    from numeric.experiment import Experiment
    from numeric.phases import Scaling

FACTORS = (1, 2, 4, 8)
"""Dimensions that are compared with the flow, in units of the experiment's."""


def sgd(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    """Dispatch by ``--compare`` and ``--scaling``."""
    if given.compare is not None and given.scaling is not None:
        raise InputError("--scaling", given.scaling, "none beside --compare")
    if given.compare is not None:
        return _compare(experiment, given, progress)
    if given.scaling is not None:
        return _scaling(experiment, given, progress)
    return _runs(experiment, given, progress)


def _runs(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    from numeric.run import kappa_of
    from numeric.sgd import run_sgd

    state, words = start(experiment)
    settings = experiment.sgd
    runs = run_sgd(
        state,
        experiment.task,
        experiment.attention,
        dimension=settings.dimension,
        tau=experiment.flow.tau_max,
        step=settings.step,
        kappa=None if settings.step is not None else kappa_of(experiment),
        batch=settings.batch,
        runs=settings.runs,
        seed=settings.seed,
        method=given.method or settings.method,
        workers=given.workers,
        checkpoint=given.checkpoint,
        progress=partial(progress, "SGD"),
    )
    entries: dict[str, object] = {"tau": runs.tau, "samples": runs.samples}
    for name in ("m", "r", "b", "v"):
        values = getattr(runs, name)
        if values is not None:
            entries[name], entries[f"{name}_error"] = mean_and_error(values)
    entries |= {name: getattr(runs, name) for name in ("dimension", "batch", "step", "kappa")}
    entries["runs"] = len(runs.m)
    norms, errors = mean_and_error(np.linalg.norm(runs.m, axis=2))
    means = (None if x is None else x.mean(axis=0) for x in (runs.b, runs.v))
    columns = {"tau": runs.tau, "samples": runs.samples} | ranges(*means)
    how = (
        f"D = {runs.dimension}, step = {runs.step:.6g}, batch = {runs.batch}, "
        f"kappa = {runs.kappa:.6g}, sgd.seed = {runs.seed}; means over {len(runs.m)} runs, with "
        "standard errors"
    )
    lines = [words, how, "", *course(columns, norms, errors)]
    return entries, lines, lambda plots: plots.sgd_figure(runs)


def _compare(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    from numeric.agreement import band, compare_with_flow
    from numeric.checks import FALSE_ALARM, threshold
    from numeric.run import kappa_of

    state, words = start(experiment)
    settings, kappa = experiment.sgd, kappa_of(experiment)
    sizes = [settings.dimension * x for x in FACTORS]
    found = compare_with_flow(
        state,
        experiment.task,
        experiment.attention,
        dimensions=sizes,
        kappa=kappa,
        tau_max=experiment.flow.tau_max,
        batch=settings.batch,
        runs=max(settings.runs, 8),
        seed=settings.seed,
        method=given.method or "reduced",
        workers=given.workers,
        checkpoint=given.checkpoint,
        progress=progress,
    )
    worst, limit = found.worst, threshold(len(found.checks))
    rows = [["D", "deviation of a run", "of the mean"]]
    for size, value, error, bias in zip(
        sizes, found.deviation, band(found.deviation_error), found.bias, strict=True
    ):
        rows.append([str(size), f"{value:.5f} +- {error:.5f}", f"{bias:.5f}"])
    exponent, width = found.exponent, float(band(np.array(found.exponent_error)))
    verdict = "agree" if found.passed else "DISAGREE"
    lines = [
        words,
        f"SGD against the flow at kappa = {kappa:g}, up to tau = {found.flow.tau[-1]:.5g}: root mean "
        "square deviations",
        f"of {len(found.runs[0].m)} runs at each D, over m, r and what is trained (+-: 99 %)",
        "",
        *table(rows),
        "",
        f"deviation ~ D^({exponent:.3f} +- {width:.3f}); -1/2 expected, steeper with a bias of 1/D",
        f"means extrapolated to D -> infinity: largest |z| = {abs(worst.z or 0.0):.2f} of "
        f"{len(found.checks)} comparisons, limit {limit:.2f}",
        f"  ({worst.name}: {worst.value:.6g}, expected {worst.expected:.6g}, error {worst.error:.1e})",
        f"SGD and flow {verdict} (false alarms: {FALSE_ALARM:.0e} in all)",
    ]
    entries: dict[str, Any] = {
        "dimensions": sizes,
        "kappa": kappa,
        "tau": found.flow.tau,
        **{name: getattr(found, name) for name in ("deviation", "deviation_error", "bias")},
        **{name: getattr(found, name) for name in ("exponent", "exponent_error")},
        "checks": [vars(x) for x in found.checks],
        "false_alarm": FALSE_ALARM,
        "passed": found.passed,
    }
    return entries, lines, lambda _: figures("sgd_plots").agreement_figure(found)


def _scaling(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    from numeric.phases import first_passages, fit_scaling, phase_watches
    from numeric.run import kappa_of

    task, attention, flow = experiment.task, experiment.attention, experiment.flow
    settings, kappa, sizes = experiment.sgd, kappa_of(experiment), given.scaling
    if len(sizes) < 2 or (np.diff(sizes) <= 0).any():
        raise InputError("--scaling", sizes, "at least two increasing dimensions")
    if settings.runs < 2:
        raise InputError("sgd.runs", settings.runs, "at least 2, to know the spread of runs")
    watches = phase_watches(task, attention)
    passages = []
    for i, size in enumerate(sizes):
        found = first_passages(
            task,
            attention,
            watches,
            dimension=size,
            eta=flow.eta,
            kappa=kappa,
            tau_max=flow.tau_max,
            runs=settings.runs,
            seed=(settings.seed + i) % 2**63,
            batch=settings.batch,
            method=given.method or "reduced",
            workers=given.workers,
            checkpoint=given.checkpoint and Path(given.checkpoint) / f"D-{size}",
            progress=partial(progress, f"D = {size}"),
        )
        passages.append(found.passages)
    names = [x.name for x in watches]
    rows, fits, notes = [["phase", "D", "duration tau", "spread", "passed"]], [], []
    for n, watch in enumerate(watches):
        mine = [x[:, n] for x in passages]
        for size, values in zip(sizes, mine, strict=True):
            passed = values[np.isfinite(values)]
            mean, error = mean_and_error(passed) if len(passed) else (np.nan, np.nan)
            spread = passed.std(ddof=1) if len(passed) > 1 else np.nan
            shown = [f"{mean:.5g} +- {error:.2g}", f"{spread:.4g}"] if len(passed) else ["", ""]
            rows.append([watch.name, str(size), *shown, f"{len(passed)} of {len(values)}"])
        fit: Scaling | None = None
        passed_all = all(np.isfinite(x).all() for x in mine)
        if passed_all and all(len(set(x)) > 1 for x in mine):
            fit = fit_scaling(sizes, mine)
            low, high = fit.interval()
            notes.append(
                f"{watch.name}: against log D a slope of {fit.slope:.4g} (99 %: {low:.4g} to "
                f"{high:.4g}), p = {fit.line_p:.2g}; a constant {fit.constant:.5g} +- "
                f"{fit.constant_error:.2g}, p = {fit.constant_p:.2g}"
            )
        elif passed_all:
            notes.append(f"{watch.name}: not fitted, for all runs took the same time")
        else:
            notes.append(
                f"{watch.name}: not fitted, for not all runs passed by tau = {flow.tau_max:g}; growth "
                "rates (headflow spectrum) tell whether a larger flow.tau_max helps"
            )
        fits.append(fit)
    lines = [
        f"random keys, eta = {flow.eta:g}; samples = D tau / {kappa:g}. From the start until the mean",
        "head has half of its alignment at the unspecialized saddle, heads differ by 1, a feature has "
        "norm 1",
        "",
        *table(rows),
        "",
        *notes,
    ]
    entries: dict[str, Any] = {
        "dimensions": sizes,
        "kappa": kappa,
        "phases": names,
        "thresholds": [x.threshold for x in watches],
        "passages": passages,
        "fits": [None if x is None else vars(x) for x in fits],
    }
    return (
        entries,
        lines,
        lambda _: figures("sgd_plots").scaling_figure(sizes, passages, names, fits),
    )
