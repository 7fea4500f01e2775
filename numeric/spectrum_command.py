"""What ``headflow spectrum`` computes, prints and draws: a spectrum, the ladder, or a flow's spectra."""

import argparse
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numeric.commands import Progress, Result, figures, start, table
from numeric.errors import InputError

if TYPE_CHECKING:
    from numeric.experiment import Experiment
    from numeric.spectrum import Spectrum

ALONG = 25
"""Times of a flow at which spectra are computed."""
SMALL = 0.02
"""Initial alignments and overlaps up to which waiting times are accurate."""


def spectrum(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    """Dispatch by ``--at`` and ``--along``."""
    if given.along == "flow":
        if given.at is not None:
            raise InputError("--at", given.at, "none beside --along")
        return _along(experiment, given, progress)
    if given.at == "ladder":
        if given.dimension is not None:
            raise InputError("--dimension", given.dimension, "none beside --at ladder")
        return _ladder(experiment, progress)
    from numeric.spectrum import hessian_spectrum

    task, attention = experiment.task, experiment.attention
    extra: dict[str, Any] = {}
    if given.at == "unspecialized":
        from numeric.saddles import unspecialized_saddle

        saddle = unspecialized_saddle(task, attention)
        found = replace(saddle.spectrum, point="unspecialized")
        place = {"m": saddle.state.m[0], **_trained(experiment, saddle.state)}
        extra = {"head": place, "loss": saddle.loss, "position_error": saddle.position_error}
        shown = ", ".join(f"{name} = {_short(x)}" for name, x in place.items())
        lines = [
            "at the unspecialized saddle, all heads alike, r = 0",
            f"{shown} (error {saddle.position_error:.1e}); loss {saddle.loss:.10g}",
        ]
        if not task.prior.mean.any():
            lines.append("note: without mean signal this is the origin, biases and values trained")
    elif given.at == "state":
        state, words = start(experiment)
        found, lines = hessian_spectrum(task, attention, state), [words]
    else:
        found, lines = hessian_spectrum(task, attention), [_origin(experiment)]
        if task.prior.mean.any():
            lines.append("note: the mean signal is not zero, so neither is the gradient here")
    if given.dimension is not None:
        found = found.lifted(given.dimension)
        lines.append(f"keys in D = {given.dimension} dimensions")
    entries = _entries(found) | extra
    lines += [f"unstable directions: {found.index}" + _per_residual(found), ""]
    return entries, [*lines, *table(found.rows())], lambda plots: plots.spectrum_figure(found)


def _entries(found: "Spectrum") -> dict[str, Any]:
    names = ("point", "sectors", "multiplicities", "eigenvalues", "errors", "growth_rates", "index")
    return {name: getattr(found, name) for name in names}


def _per_residual(found: "Spectrum") -> str:
    grows = (found.unstable & found.residual).any()
    return " (residual ones counted once per residual dimension)" if grows else ""


def _origin(experiment: "Experiment") -> str:
    """Words for the origin."""
    from numeric.origin import origin_state

    rest = _trained(experiment, origin_state(experiment.task, experiment.attention))
    words = ", ".join(f"{name} = {_short(x)}" for name, x in rest.items())
    return f"at the origin, at rest: {words}" if rest else "at the origin"


def _trained(experiment: "Experiment", state: Any) -> dict[str, float]:
    """Bias and value of the first head, as far as they are trained."""
    return {name: float(getattr(state, name)[0]) for name in experiment.attention.parameters}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "(" + ", ".join(f"{x:.6g}" for x in value) + ")"


def _ladder(experiment: "Experiment", progress: Progress) -> Result:
    from numeric.flow import integrate_flow
    from numeric.ladder import saddle_ladder

    state, words = start(experiment)
    task, attention = experiment.task, experiment.attention
    progress("ladder", 0.0)
    rungs = saddle_ladder(state, task, attention)
    last = max((x.passage for x in rungs if np.isfinite(x.passage)), default=0.0)
    path = integrate_flow(
        state, task, attention, 2 * last + 1.0, progress=partial(progress, "flow")
    )
    rows = [["learned", "unstable", "next", "rate", "waits (leading)", "passage", "flow"]]
    steps = []
    for rung in rungs:
        names = " ".join(str(f + 1) for f in rung.learned) or "none"
        index = "drifts" if rung.saddle is None else str(rung.saddle.index)
        flows = None if rung.feature is None else float(path.first_passage[rung.feature])
        steps.append(
            {
                "learned": list(rung.learned),
                "index": None if rung.saddle is None else rung.saddle.index,
                "m": rung.state.m,
                "loss": None if rung.saddle is None else rung.saddle.loss,
                "next": rung.feature,
                "rate": rung.rate,
                "waiting": rung.waiting,
                "passage": rung.passage,
                "flow": flows,
            }
        )
        if rung.feature is None:
            rows.append([names, "", "none", "", "", "", ""])
            continue
        rows.append(
            [
                names,
                index,
                str(rung.feature + 1),
                f"{rung.rate:.6g}",
                f"{rung.waiting:.5g} ({rung.leading:.5g})",
                f"{rung.passage:.6g}",
                f"{flows:.6g}",
            ]
        )
    lines = [
        words,
        "saddles that the flow at kappa = 0 visits: features learned, unstable directions, the next",
        "feature, its growth rate, waiting time (in brackets to leading order, log(1/amplitude) / rate),",
        "predicted first passage of norm 1, and the flow's",
        "",
        *table(rows),
    ]
    if max(np.abs(state.m).max(initial=0.0), np.abs(state.r).max()) > SMALL:
        words = f"note: the prediction is for alignments and overlaps below {SMALL:g}, and these are not"
        lines.insert(1, words if experiment.state is not None else f"{words}; lower flow.eta")
    return {"rungs": steps}, lines, lambda _: figures("saddle_plots").ladder_figure(rungs, path)


def _along(experiment: "Experiment", given: argparse.Namespace, progress: Progress) -> Result:
    from numeric.flow import integrate_flow
    from numeric.spectrum import hessian_spectrum

    state, words = start(experiment)
    task, attention, settings = experiment.task, experiment.attention, experiment.flow
    tau = np.linspace(0.0, settings.tau_max, ALONG)
    path = integrate_flow(
        state, task, attention, tau, settings.kappa, progress=partial(progress, "flow")
    )
    found = []
    for i in range(len(tau)):
        progress("spectra", i / len(tau))
        found.append(hessian_spectrum(task, attention, path.states.at(i)))
    if given.dimension is not None:
        found = [x.lifted(given.dimension) for x in found]
        words += f"; spectra in D = {given.dimension} dimensions"
    rows = [["tau", "loss", "unstable", "lowest eigenvalue", "sector"]]
    for time, loss, x in zip(tau, path.loss, found, strict=True):
        low = int(np.argmin(x.eigenvalues))
        value = f"{x.eigenvalues[low]:.6g}"
        rows.append([f"{time:.5g}", f"{loss:.6f}", str(x.index), value, x.sectors[low]])
    entries = {"tau": tau, "loss": path.loss, "spectra": [_entries(x) for x in found]}
    lines = [
        words,
        "Hessian spectra along the flow, not only where it is at rest",
        "",
        *table(rows),
    ]
    return entries, lines, lambda _: figures("saddle_plots").along_figure(path, found)
