"""What ``headflow plant`` computes, prints and draws: real samples beside what their features predict."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numeric.commands import Progress, Result, figures, table
from numeric.errors import InputError, Verbatim

if TYPE_CHECKING:
    from numeric.experiment import Experiment


def plant(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    """Compare SGD on whole samples with what their features predict."""
    from numeric.bayes import bayes_risk
    from numeric.head_counts import head_count
    from numeric.planting import plant_signals, predictable
    from numeric.run import kappa_of
    from numeric.spectrum import hessian_spectrum

    signals, task, attention = experiment.signals, experiment.task, experiment.attention
    if signals is None:
        found = Verbatim(type(task.prior).__name__)
        raise InputError("task.prior", found, 'kind = "empirical" with a number of features')
    flow, settings = experiment.flow, experiment.sgd
    task = task.with_prior(predictable(task.prior))
    planted = plant_signals(
        signals,
        attention,
        tokens=task.tokens,
        dimension=settings.dimension,
        tau_max=flow.tau_max,
        prior=task.prior,
        eta=flow.eta,
        kappa=kappa_of(experiment),
        runs=settings.runs,
        seed=settings.seed,
        workers=given.workers,
        progress=progress,
    )
    risk = bayes_risk(task.with_prior(signals.prior), 1e-4)
    rate = None
    if not task.prior.mean.any():
        rate = max(hessian_spectrum(task, attention).growth_rates)
    count = head_count(
        task,
        max_gap=given.max_gap,
        most=given.most,
        starts=2,
        progress=partial(progress, "heads"),
    )
    shown = range(signals.features)
    nu = ", ".join(f"{signals.variances[f]:.4g}" for f in shown)
    rows = [
        ["run", *(f"feature {f + 1}: {x}" for f in shown for x in ("predicted", "SGD")), "order"]
    ]
    for i, right in enumerate(planted.order_right):
        times = (x for f in shown for x in (planted.predicted[i, f], planted.observed[i, f]))
        cells = (f"{x:.4g}" if np.isfinite(x) else "" for x in times)
        rows.append([str(i + 1), *cells, "as predicted" if right else "other"])
    means = []
    for f in shown:
        ratio = planted.ratios[:, f]
        ratio = ratio[np.isfinite(ratio)]
        words = (
            "no run passed in both"
            if not len(ratio)
            else (
                f"SGD / prediction {ratio.mean():.3f} on average, {ratio.min():.3f} to {ratio.max():.3f} "
                f"({len(ratio)} runs)"
            )
        )
        means.append(f"feature {f + 1}: {words}")
    needed = count.needed
    size = signals.amplitudes.shape
    lines = [
        f"{size[0]} samples of {size[1]} numbers; features: nu = {nu}, {signals.explained:.1%} of all",
        *([] if rate is None else [f"growth rates at the origin: up to {rate:.4g}"]),
        f"Bayes risk = {risk.value:.6f}   (error {risk.error:.1e})",
        f"Bayes-softmax within {given.max_gap:g} of it: "
        + (f"{needed} heads" if needed is not None else f"more than {given.most} heads"),
        "",
        f"first passages tau, SGD on whole samples at D = {planted.dimension}, kappa = {planted.kappa:g}",
        *table(rows),
        "",
        *means,
        f"order as predicted in {int(planted.order_right.sum())} of {len(rows) - 1} runs",
    ]
    entries: dict[str, Any] = {
        "samples": size[0],
        "numbers": size[1],
        "variances": signals.variances,
        "explained": signals.explained,
        "bayes_risk": risk.value,
        "bayes_error": risk.error,
        "heads": {"needed": needed, "gaps": count.gaps, "errors": count.errors},
        "predicted": planted.predicted,
        "observed": planted.observed,
        "order_right": planted.order_right,
        "dimension": planted.dimension,
        "kappa": planted.kappa,
    }
    return entries, lines, lambda _: figures("bayes_plots").planting_figure(planted)
