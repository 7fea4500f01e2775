"""Files of a run: summary.json, report.md, derivation.md and the figures. Each is written whole."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from numeric import plots
from numeric.activation import UserActivation
from numeric.checks import FALSE_ALARM, Check, threshold
from numeric.experiment import Experiment
from numeric.files import strict_json, write_text
from numeric.query_experiment import QueryExperiment

if TYPE_CHECKING:
    from numeric.run import Report

FIGURES = ("flow", "sgd", "alignment", "spectrum")


def write_report(report: "Report", out: Path) -> None:
    """Write all files of a run into a folder that exists."""
    from derive.attention import activation
    from derive.document import document

    given = report.experiment.attention.activation
    if isinstance(given, UserActivation) and given.definition is None:
        # Of one that came from another process only the kernels are known.
        derivation = (
            f"# {report.experiment.attention.name} attention\n\n```python\n{given.source}```\n"
        )
    else:
        known = given.definition if isinstance(given, UserActivation) else activation(str(given))
        derivation = document(known)
    write_text(out / "derivation.md", derivation)
    risk = report.bayes.value
    figures = (
        plots.flow_figure(report.flow, bayes=risk),
        plots.flow_figure(report.matched, sgd=report.sgd, bayes=risk),
        plots.alignment_figure(report.flow),
        plots.spectrum_figure(report.spectrum),
    )
    save_figures(report.experiment, dict(zip(FIGURES, figures, strict=True)), out)
    write_text(out / "report.md", _markdown(report))
    # Last: its presence says that the run is complete.
    write_text(out / "summary.json", strict_json(summary(report), indent=2) + "\n")


def save_figures(
    experiment: Experiment | QueryExperiment, figures: Mapping[str, Figure], out: Path
) -> None:
    """Write figures by name, as SVG and PNG, labelled with the experiment."""
    for name, figure in figures.items():
        plots.label(figure, experiment)
        for suffix in ("svg", "png"):
            plots.save(figure, out / f"{name}.{suffix}")


def summary(report: "Report") -> dict[str, Any]:
    """Return what ``summary.json`` holds."""
    flow, settings = report.flow, report.experiment
    return {
        "experiment": settings.name,
        "verdict": "agree" if report.passed else "disagree",
        "false_alarm_rate": FALSE_ALARM,
        "checks": [asdict(check) for check in report.checks],
        "bayes_risk": {"value": report.bayes.value, "error": report.bayes.error},
        "flow": {
            "kappa": flow.kappa,
            "final_loss": flow.loss[-1],
            "loss_error": flow.loss_error,
            "gradient_error": flow.gradient_error,
            "noise_error": flow.noise_error,
            "first_passage": flow.first_passage,
            "excursions": [asdict(x) for x in flow.excursions],
            "status": flow.status,
        },
        "sgd": {
            "dimension": report.sgd.dimension,
            "step": report.sgd.step,
            "batch": report.sgd.batch,
            "kappa": report.sgd.kappa,
            "runs_shown": len(report.sgd.m),
            "runs_compared": settings.sgd.runs,
            "dimensions_compared": [settings.sgd.dimension, settings.sgd.dimension // 2],
            "compared_until": report.compared_until,
            "samples": int(report.sgd.samples[-1]),
        },
        "seeds": {"flow": settings.flow.seed, "sgd": settings.sgd.seed},
        "versions": versions(),
        "seconds": round(report.seconds, 1),
    }


def versions() -> dict[str, str]:
    """Return the versions of what a result was computed with."""
    packages = {name: _version(name) for name in ("headflow", "numpy", "scipy", "sympy")}
    return {"python": platform.python_version(), **packages}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _markdown(report: "Report") -> str:
    experiment, flow, sgd = report.experiment, report.flow, report.sgd
    task, attention = experiment.task, experiment.attention
    lines = [
        *heading(experiment.name, report.checks),
        "",
        f"{attention.name}, H = {attention.heads} heads, L = {task.tokens} tokens, "
        f"F = {task.prior.features} features; prior mean {_row(task.prior.mean)}, second moment "
        + "; ".join(_row(row) for row in task.prior.second_moment)
        + ".",
        "",
        "## Spectrum at the origin",
        "",
        "| sector | eigenvalue | multiplicity | growth rate |",
        "|---|---:|---:|---:|",
    ]
    spectrum = report.spectrum
    for sector, value, count, rate in zip(
        spectrum.sectors,
        spectrum.eigenvalues,
        spectrum.multiplicities,
        spectrum.growth_rates,
        strict=True,
    ):
        lines.append(f"| {sector} | {value:.6g} | {count} | {rate:.6g} |")
    lines += [
        "",
        "![spectrum](spectrum.svg)",
        "",
        "## Flow",
        "",
        f"kappa = {flow.kappa:g}. Loss {flow.loss[0]:.6f} at the start, {flow.loss[-1]:.6f} at "
        f"tau = {flow.tau[-1]:g} (error {flow.loss_error:.1e}); Bayes risk {report.bayes.value:.6f} "
        f"(error {report.bayes.error:.1e}). Status: {flow.status}.",
        "",
        "| feature | first passage of norm 1 (tau) |",
        "|---|---:|",
    ]
    for f, passage in enumerate(flow.first_passage, start=1):
        lines.append(f"| {f} | {'not reached' if np.isnan(passage) else f'{passage:.3f}'} |")
    if flow.excursions:
        lines += [
            "",
            "Excursions: "
            + "; ".join(
                f"feature {x.feature + 1} fell {100 * x.drop:.0f} % below its peak at tau = {x.tau:.3f}"
                for x in flow.excursions
            )
            + ".",
        ]
    lines += [
        "",
        "![flow](flow.svg)",
        "",
        "![alignment](alignment.svg)",
        "",
        "## SGD on top of the flow",
        "",
        f"{len(sgd.m)} runs at D = {sgd.dimension}, batch {sgd.batch}, step {sgd.step:.4g} "
        f"(kappa = {sgd.kappa:.4g}), {int(sgd.samples[-1])} samples each, and the flow at that "
        f"kappa. Norms of a noisy m lie above the norm of its mean, so thin lines may lie above the "
        f"flow. The checks below are of means of entries: of {experiment.sgd.runs} other runs, "
        "extrapolated to D -> infinity with as many at half of D, at five times up to tau = "
        f"{report.compared_until:.4g} (later times are shown, not tested). Entries of different "
        "heads share the noise of the samples, so neighbouring rows move together.",
        "",
        "![SGD](sgd.svg)",
        "",
        *check_table(report.checks),
    ]
    if report.no_growth:
        lines += ["", f"No growth rate was compared with the early flow: {report.no_growth}."]
    return "\n".join(lines) + "\n"


def heading(name: str, checks: Sequence[Check]) -> list[str]:
    """Title and verdict of a report."""
    passed = sum(c.passed for c in checks)
    verdict = "agree" if passed == len(checks) else "DISAGREE"
    scores = [abs(c.z) for c in checks if c.z is not None]
    statistical, largest = len(scores), max(scores, default=0.0)
    return [
        f"# {name}",
        "",
        f"**Theory and simulation {verdict}** in {passed} of {len(checks)} checks. {statistical} of them "
        f"are statistical, with largest |z| = {largest:.2f} and the limit |z| = "
        f"{threshold(statistical):.2f}: together they raise a false alarm with probability "
        f"{FALSE_ALARM:g} at most. The formulas are in [derivation.md](derivation.md), the numbers in "
        "[summary.json](summary.json).",
    ]


def check_table(checks: Sequence[Check]) -> list[str]:
    """The section on checks of a report."""
    lines = [
        "## Checks",
        "",
        "| check | value | reference | standard error or tolerance | z | passed |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for c in checks:
        z = "" if c.z is None else f"{c.z:+.2f}"
        lines.append(
            f"| {c.name} | {c.value:.6g} | {c.expected:.6g} | {c.error:.2g} | {z} | "
            f"{'yes' if c.passed else '**no**'} |"
        )
    return lines


def _row(values: np.ndarray) -> str:
    return "(" + ", ".join(f"{x:.4g}" for x in values) + ")"
