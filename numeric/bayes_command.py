"""What ``headflow minima``, ``heads``, ``prune`` and ``outcomes`` compute, print and draw."""

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numeric._generated import ACTIVATIONS
from numeric.commands import Progress, Result, figures, present, start, table
from numeric.errors import InputError
from numeric.task import Attention

if TYPE_CHECKING:
    from numeric.curves import RiskCurves
    from numeric.experiment import Experiment

MOVING = 1e-3
"""Gradient above which training has not come to rest."""
SWEEPS = {"signal": "signals times", "tokens": "tokens L", "heads": "heads H"}


def minima(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    """Least losses of one or more activations, at one point or along a sweep."""
    from numeric.bayes import bayes_risk
    from numeric.curves import risk_curves
    from numeric.minimum import minimize_loss

    task, layers = experiment.task, _layers(experiment, given.activations)
    sweeps = [(name, x) for name in SWEEPS if (x := getattr(given, name)) is not None]
    if sweeps:
        name, values = sweeps[0]
        try:
            curves = risk_curves(
                task,
                layers,
                name,
                values,
                starts=given.starts,
                seed=given.seed,
                progress=partial(progress, "minima"),
            )
        except InputError as error:
            named = f"--{name}" if error.name == "values" else error.name
            raise InputError(named, error.found, error.expected) from None
        return _sweep(curves)
    risk, found = bayes_risk(task), {}
    for layer in layers:
        found[layer.name] = minimize_loss(
            task,
            layer,
            starts=given.starts,
            seed=given.seed,
            bayes=risk,
            progress=partial(progress, layer.name),
        )
    rows = [
        ["activation", "least loss", "gap to Bayes", "error", "r", "unstable", "same of descents"]
    ]
    for name, x in found.items():
        index = "unknown" if x.index is None else str(x.index)
        same = int((x.found < x.loss + 1e-6).sum())
        rows.append(
            [
                *(name, f"{x.loss:.8f}", f"{x.gap:.3g}", f"{x.gap_error:.1e}"),
                *("0" if not x.state.r.any() else f"{np.abs(x.state.r).max():.3g}", index),
                f"{same} of {len(x.found)}",
            ]
        )
    lines = [
        f"Bayes risk = {risk.value:.10g}   (error {risk.error:.1e})",
        "",
        *table(rows),
    ]
    entries: dict[str, Any] = {"bayes_risk": risk.value, "bayes_error": risk.error}
    entries["minima"] = {
        name: {
            "loss": x.loss,
            "error": x.loss_error,
            "gap": x.gap,
            "gap_error": x.gap_error,
            "index": x.index,
            "stiffness": x.stiffness,
            "state": present(x.state, "m", "r", "b", "v"),
            "eigenvalues": None if x.spectrum is None else x.spectrum.eigenvalues,
            "found": x.found,
        }
        for name, x in found.items()
    }
    return entries, lines, lambda _: figures("bayes_plots").minima_figure(found)


def heads(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    """Gaps to the Bayes risk against the number of heads."""
    from numeric.head_counts import head_count

    name = experiment.attention.name
    count = head_count(
        experiment.task,
        experiment.attention.activation,
        max_gap=given.max_gap,
        most=given.most,
        starts=given.starts,
        seed=given.seed,
        progress=partial(progress, "heads"),
    )
    rows = [["heads", "gap to Bayes", "error", "Gauss nodes"]]
    for h, gap, error, nodes in zip(
        count.heads, count.gaps, count.errors, count.nodes, strict=True
    ):
        gauss = "" if np.isnan(nodes) else f"{nodes:.4g}"
        rows.append([f"{h:.0f}", f"{gap:.4g}", f"{error:.1e}", gauss])
    needed = count.needed
    answer = (
        f"{needed} head{'s' * (needed != 1)} of {name}: the gap is at most {given.max_gap:g}"
        if needed is not None
        else f"no {name} of up to {len(count.heads)} heads was found within {given.max_gap:g} of Bayes"
        + ("; more heads had stopped helping" if len(count.heads) < given.most else "")
    )
    lines = [
        f"Bayes risk = {count.bayes.value:.10g}   (error {count.bayes.error:.1e})",
        "",
        *table(rows),
        "",
        *([] if count.decay is None else [f"gap ~ {count.decay}, x = heads"]),
        answer,
    ]
    entries: dict[str, Any] = {
        "needed": needed,
        "max_gap": given.max_gap,
        "bayes_risk": count.bayes.value,
        **{k: getattr(count, k) for k in ("heads", "gaps", "errors", "nodes")},
        "decay": None if count.decay is None else vars(count.decay),
        "states": [present(x.state, "m", "b", "v") for x in count.minima],
    }
    return entries, lines, lambda _: figures("bayes_plots").head_figure(count)


def prune(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    """Losses after removing heads."""
    from numeric.flow import integrate_flow
    from numeric.pruning import prune_heads

    task, attention, flow = experiment.task, experiment.attention, experiment.flow
    state, words = start(experiment)
    if given.at == "state" and experiment.state is None:
        raise InputError("--at", given.at, "flow, for the file has no [state]")
    if given.at == "flow":
        times = [0.0, flow.tau_max]
        path = integrate_flow(
            state, task, attention, times, flow.kappa, progress=partial(progress, "flow")
        )
        state, words = path.states.at(-1), f"end of the flow at tau = {flow.tau_max:g}; {words}"
    found = {
        "as they are": prune_heads(state, task, attention, progress=partial(progress, "pruning"))
    }
    if attention.parameters:
        found["trained again"] = prune_heads(
            state, task, attention, retrain=True, progress=partial(progress, "retraining")
        )
    lines = [words]
    for name, x in found.items():
        rows = [["removed", "heads left", "loss", "relative rise"]]
        for i, value in enumerate(x.losses):
            which = "" if i == 0 else f"head {x.order[i - 1] + 1}"
            rise = (value - x.losses[0]) / x.losses[0] if x.losses[0] > 0 else 0.0
            rows.append([which, str(len(x.losses) - i), f"{value:.8f}", f"{rise:+.2%}"])
        title = f"{' and '.join(attention.parameters)} {name}" if attention.parameters else "heads"
        removable = x.removable(given.cost)
        lines += [
            "",
            title,
            *table(rows),
            f"removable at a rise of {given.cost:.3g}: the first {removable}",
        ]
    entries: dict[str, Any] = {"cost": given.cost}
    for name, x in found.items():
        entries[name.replace(" ", "_")] = {
            "order": x.order,
            "losses": x.losses,
            "errors": x.errors,
            "removable": x.removable(given.cost),
        }
    return entries, lines, lambda _: figures("bayes_plots").pruning_figure(found, given.cost)


def outcomes(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    """Ends of trainings from random keys."""
    from numeric.outcomes import training_outcomes

    flow = experiment.flow
    found = training_outcomes(
        experiment.task,
        experiment.attention,
        runs=given.runs,
        eta=flow.eta,
        dimension=flow.dimension,
        tau_max=flow.tau_max,
        kappa=flow.kappa,
        seed=flow.seed,
        method=given.method,
        workers=given.workers,
        progress=partial(progress, "training"),
    )
    rows = [["runs", "least loss", "mean", "largest", "pattern"]]
    for name, losses in found.groups.items():
        values = (f"{x:.6f}" for x in (losses.min(), losses.mean(), losses.max()))
        rows.append([str(len(losses)), *values, name])
    best = int(np.argmin(found.losses))
    what = "flow" if found.method == "flow" else "SGD"
    lines = [
        f"random keys, eta = {flow.eta:g}, D = {flow.dimension}; {what} up to tau = {flow.tau_max:g}",
        f"Bayes risk = {found.bayes.value:.6f}; largest |dE/dm| that is left: {found.moving.max():.1e}",
        "",
        *table(rows),
        "",
        f"lowest: {found.patterns[best]}",
    ]
    if found.moving.max() > MOVING:
        lines.append("training has not come to rest: a larger flow.tau_max goes on")
    entries: dict[str, Any] = {
        "method": found.method,
        "bayes_risk": found.bayes.value,
        **{k: getattr(found, k) for k in ("losses", "errors", "moving")},
        "patterns": [x.heads for x in found.patterns],
        "m": found.states.m,
    }
    return entries, lines, lambda _: figures("bayes_plots").outcomes_figure(found)


def _layers(experiment: "Experiment", names: list[str] | None) -> list[Attention]:
    attention = experiment.attention
    if names is None:
        return [attention]
    chosen = list(ACTIVATIONS) if names == ["all"] else names
    if len(set(chosen)) < len(chosen):
        raise InputError("--activations", names, "different names")
    return [Attention(name, attention.heads) for name in chosen]


def _sweep(curves: "RiskCurves") -> Result:
    title = SWEEPS[curves.quantity]
    rows = [[title, "Bayes risk", *curves.minima]]
    for i, value in enumerate(curves.values):
        losses = (f"{x[i].loss:.6f}" for x in curves.minima.values())
        rows.append([f"{value:g}", f"{curves.bayes[i]:.6f}", *losses])
    notes, decays = [], {}
    for name in curves.minima:
        both = curves.decay(name), curves.decay(name, gap=True)
        decays[name] = [None if x is None else vars(x) for x in both]
        words = [f"{what} ~ {x}" for what, x in zip(("loss", "gap"), both, strict=True) if x]
        notes += [f"{name}: {', '.join(words)}"] if words else []
    lines = ["least losses found", "", *table(rows), *(["", *notes] if notes else [])]
    entries: dict[str, Any] = {
        "quantity": curves.quantity,
        "values": curves.values,
        "bayes_risk": curves.bayes,
        "losses": {name: curves.losses(name) for name in curves.minima},
        "gaps": {name: curves.gaps(name)[0] for name in curves.minima},
        "gap_errors": {name: curves.gaps(name)[1] for name in curves.minima},
        "decays": decays,
    }
    return entries, lines, lambda _: figures("bayes_plots").curves_figure(curves)
