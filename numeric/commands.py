"""What the commands that take one experiment compute, print and draw.

Each returns the entries of its JSON, the lines of its text, and what draws its figure with
`numeric.plots`. Heavy rooms are imported by the command that needs them.
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from numeric.experiment import Experiment
    from numeric.task import State

Progress = Callable[[str, float], None]
Result = tuple[dict[str, Any], list[str], Callable[[Any], Any]]
Compute = Callable[["Experiment", argparse.Namespace, Progress], Result]

_ROWS, _COLUMNS = 11, 6  # of a printed time course: times, features


def loss(experiment: "Experiment", given: argparse.Namespace, _: Progress) -> Result:
    from numpy import array2string

    from numeric.loss import population_loss

    state, words = start(experiment)
    tol = given.tol if given.tol is not None else 1e-12 if experiment.attention.heads == 1 else 1e-8
    loss = population_loss(state, experiment.task, experiment.attention, tol)
    gradient = present(loss, "m", "r", "b", "v")
    lines = [
        words,
        "",
        f"loss E = {loss.value:.12g}   (error {loss.error:.1e}, {loss.method})",
        "",
        f"gradient   (error {loss.gradient_error:.1e})",
    ]
    for name, values in gradient.items():
        lines += [f"dE/d{name}", array2string(values, max_line_width=100, threshold=200)]
    state = state.check(experiment.attention, experiment.task.prior.features)
    entries = {
        "state": present(state, "m", "r", "b", "v"),
        **{"loss": loss.value, "error": loss.error, "method": loss.method},
        **{"gradient": gradient, "gradient_error": loss.gradient_error},
    }
    return entries, lines, lambda plots: plots.loss_figure(loss)


def flow(experiment: "Experiment", _: argparse.Namespace, progress: Progress) -> Result:
    import numpy as np

    from numeric.bayes import bayes_risk
    from numeric.flow import integrate_flow

    state, words = start(experiment)
    settings = experiment.flow
    path = integrate_flow(
        state,
        experiment.task,
        experiment.attention,
        settings.tau_max,
        settings.kappa,
        progress=partial(progress, "flow"),
    )
    norms = np.linalg.norm(path.m, axis=1)
    columns = {"tau": path.tau, "loss": path.loss} | ranges(path.b, path.v)
    rows = course(columns, norms, None)
    lines = [words, f"kappa = {path.kappa:g}: {path.status}", "", *rows, ""]
    for f, passage in enumerate(path.first_passage[:_COLUMNS], start=1):
        when = f"at tau = {passage:.6g}" if math.isfinite(passage) else "not reached"
        lines.append(f"feature {f}: norm {path.threshold:g} {when}")
    lines += [
        f"feature {x.feature + 1}: falls by {x.drop:.0%} after its peak at tau = {x.tau:.6g}"
        for x in path.excursions
    ]
    noise = f", of kappa V {path.noise_error:.1e}" if path.kappa else ""
    lines.append(
        f"error of the loss {path.loss_error:.1e}, of its gradient {path.gradient_error:.1e}{noise}"
    )
    names = (
        *("tau", "loss", "m", "r", "first_passage", "status"),
        *("loss_error", "gradient_error", "noise_error"),
        *experiment.attention.parameters,
    )
    entries = {name: getattr(path, name) for name in names}
    entries["excursions"] = [vars(excursion) for excursion in path.excursions]
    return (
        entries,
        lines,
        lambda plots: plots.flow_figure(path, bayes=bayes_risk(experiment.task, 1e-4).value),
    )


def risk(experiment: "Experiment", given: argparse.Namespace, _: Progress) -> Result:
    from dataclasses import replace

    from numeric.bayes import bayes_risk

    task = experiment.task
    risk = bayes_risk(task, given.tol)

    def draw(plots: Any) -> Any:
        from numpy import geomspace

        ends = max(task.tokens / 10, 2), max(task.tokens, 2) * 10
        tokens = sorted({round(count) for count in geomspace(*ends, 9)})
        risks = [bayes_risk(replace(task, tokens=count), 1e-4).value for count in tokens]
        return plots.risk_figure(tokens, risks, task, risk.value)

    lines = [
        "",
        f"Bayes risk = {risk.value:.12g}   (error {risk.error:.1e}, {risk.method})",
        f"risk of uniform weights = {1 - 1 / task.tokens:.12g}",
    ]
    return {"bayes_risk": risk.value, "error": risk.error, "method": risk.method}, lines, draw


def figures(room: str) -> Any:
    """Import the room of some figures when they are drawn."""
    return import_module(f"numeric.{room}")


def present(found: object, *names: str) -> dict[str, Any]:
    """Return the attributes of these names that are not None."""
    return {name: x for name in names if (x := getattr(found, name)) is not None}


def start(experiment: "Experiment") -> "tuple[State, str]":
    """Return the state to start from, and words for it."""
    from numeric.run import start_of

    s = experiment.flow
    random = (
        f"state: random keys, eta = {s.eta:g}, flow.dimension = {s.dimension}, flow.seed = {s.seed}"
    )
    return start_of(experiment), random if experiment.state is None else "state: the file's"


def mean_and_error(values: "NDArray[Any]") -> "tuple[NDArray[Any], NDArray[Any]]":
    """Mean over the first axis and its standard error, NaN where there is one run only."""
    count, mean = len(values), values.mean(axis=0)
    return mean, values.std(axis=0, ddof=1) / math.sqrt(count) if count > 1 else mean * math.nan


def ranges(b: "NDArray[Any] | None", v: "NDArray[Any] | None") -> dict[str, Any]:
    """Columns with the least and largest bias and value (n, H) at each time."""
    given = {"b": b, "v": v}
    return {
        f"{name}, least to largest": [f"{x.min():.4f} to {x.max():.4f}" for x in values]
        for name, values in given.items()
        if values is not None
    }


def course(
    columns: "dict[str, Any]", norms: "NDArray[Any]", errors: "NDArray[Any] | None"
) -> list[str]:
    """Table of a time course: at most `_ROWS` evenly spread times, with both ends."""
    count, shown = len(norms), range(min(norms.shape[1], _COLUMNS))
    rows = [[*columns, *(f"norm, feature {f + 1}" for f in shown)]]
    for i in sorted({round(k * (count - 1) / (_ROWS - 1)) for k in range(_ROWS)}):
        margins = ["" if errors is None else f" +- {errors[i, f]:.1e}" for f in shown]
        rows.append(
            [
                *(
                    x if isinstance(x := column[i], str) else f"{x:.9g}"
                    for column in columns.values()
                ),
                *(f"{norms[i, f]:.6f}{margins[f]}" for f in shown),
            ]
        )
    return table(rows)


def table(rows: list[list[str]]) -> list[str]:
    """Align cells: the first column to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
