"""The ``headflow`` command.

Results go to standard output, progress and errors to standard error. Everything heavy is imported
by the command that needs it, so that help is instant.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from numeric.experiment import Experiment
    from numeric.task import State

    Result = tuple[dict[str, Any], list[str], Callable[[Any], Any]]
    """Entries of the JSON, lines of the text, and what draws the figure with `numeric.plots`."""
    Compute = Callable[[Experiment, argparse.Namespace, "_Progress"], Result]

EXAMPLES = ("two-features", "two-features-bayes")
DISAGREE, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
_ROWS, _COLUMNS = 11, 6  # of a printed time course: times, features
_EVERY = 0.1  # seconds between two reports of progress


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    It is 1 if theory and simulation disagree or generated kernels are out of date, 2 for bad input,
    after one line on standard error, and 130 if interrupted.
    """
    try:
        try:
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except SystemExit as stop:  # help, or arguments that argparse refuses
        return stop.code if isinstance(stop.code, int) else 0
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        _drop_output()
        words = (error.strerror or "").lower() or str(error) or type(error).__name__
        return _fail(f"error: {words if error.filename is None else f'{error.filename}: {words}'}")
    except MemoryError as error:
        return _fail(f"error: not enough memory: {error or 'the problem is too large'}")
    except UnicodeEncodeError as error:
        return _fail(
            f"error: the output cannot show {error.object[error.start]!a} in {error.encoding}"
        )
    except ValueError as error:
        from numeric.errors import HeadflowError

        derive = sys.modules.get("derive.errors")
        if isinstance(error, HeadflowError) or (derive and isinstance(error, derive.DeriveError)):
            return _fail(f"error: {error}")
        raise


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["derive"]:
        from derive.__main__ import main as derive

        return derive(argv[1:])
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.version:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print("headflow", version("headflow"))
        except PackageNotFoundError:
            print("headflow (not installed)")
        return 0
    if arguments.command is None:
        parser.error("a command is required")
    return int(arguments.command(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headflow",
        description="Training dynamics of attention heads: derived, computed exactly, simulated.",
        epilog="example: headflow run   (both shipped examples, into headflow-results)",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")

    def add(name: str, summary: str, more: str, example: str) -> argparse.ArgumentParser:
        description = f"{summary[:1].upper()}{summary[1:]}. {more}"
        return commands.add_parser(
            name, help=summary, description=description, epilog=f"example: headflow {example}"
        )

    run = add(
        "run",
        "verify experiments: derivation, loss, spectrum, flow and SGD, with a verdict",
        "Writes figures, summary.json and report.md into a folder for each. The exit code is 1 if "
        "theory and simulation disagree beyond the stated budget.",
        "run two-features --out DIR",
    )
    run.add_argument(
        "file",
        nargs="*",
        metavar="FILE|NAME",
        help=f"experiment files or names of examples (default: {' '.join(EXAMPLES)})",
    )
    run.add_argument(
        "--out",
        type=Path,
        default="headflow-results",
        metavar="DIR",
        help="folder for all results, made if missing (default: %(default)s)",
    )
    run.set_defaults(command=_run)

    start = (
        "It starts from the file's [state], else from random keys of norm flow.eta at token "
        "dimension D = flow.dimension."
    )
    tolerance = "absolute error aimed at, > 0 (default: %(default)s)"
    loss = add(
        "loss",
        "exact population loss and its gradient",
        f"{start} The gradient is dE/dm (heads x features), dE/dr (heads x heads; dE = tr(G dr)) "
        "and, where biases are trained, dE/db (heads).",
        "loss two-features --json",
    )
    loss.add_argument("--tol", type=float, default=1e-8, help=tolerance)
    spectrum = add(
        "spectrum",
        "Hessian eigenvalues and growth rates by sector",
        "Coordinates are (m, rho) with r = rho rho^T. A growth rate is minus an eigenvalue, per "
        "unit of tau = step size x steps. Residual sectors count once per residual dimension.",
        "spectrum two-features --plot spectrum.svg",
    )
    spectrum.add_argument(
        "--at",
        choices=("origin", "state"),
        default="origin",
        help="origin: in closed form (default); state: at the file's [state], else a random "
        "initial one, by differences of the exact gradient",
    )
    flow = add(
        "flow",
        "order-parameter flow, the limit of training as D -> infinity",
        f"{start} Times are tau = step size x steps, up to flow.tau_max; with flow.kappa > 0, "
        "samples = D tau / kappa. In JSON, m is (times, heads, features), r is (times, heads, "
        "heads), and an excursion's feature counts from 0.",
        "flow two-features --plot flow.svg",
    )
    risk = add(
        "risk",
        "Bayes risk, the least loss of any estimator",
        "The figure shows it against the number of tokens L.",
        "risk two-features --json",
    )
    risk.add_argument("--tol", type=float, default=1e-8, help=tolerance)
    sgd = add(
        "sgd",
        "stochastic gradient descent at finite token dimension D",
        f"{start} It runs up to tau = step size x steps = flow.tau_max with step size sgd.step; "
        "without one, kappa = step x D / batch is flow.kappa, or 1 if that is 0. JSON has means "
        "over runs and their standard errors (m_error, ...).",
        "sgd two-features --json",
    )
    for compute, parts in zip(
        (_loss, _spectrum, _flow, _risk, _sgd), (loss, spectrum, flow, risk, sgd), strict=True
    ):
        parts.add_argument("file", metavar="FILE", help="experiment file, or name of an example")
        parts.add_argument("--json", action="store_true", help="print JSON; undefined is null")
        parts.add_argument(
            "--plot", metavar="FILE", help="write a figure too: .svg, .png or .pdf by its suffix"
        )
        parts.set_defaults(command=partial(_show, compute))
    commands.add_parser(
        "derive", add_help=False, help="print, check or write the symbolic derivations"
    )
    return parser


def _run(arguments: argparse.Namespace) -> int:
    from numeric.errors import InputError
    from numeric.experiment import load_experiment
    from numeric.run import run_experiment

    experiments = [load_experiment(name) for name in arguments.file or EXAMPLES]
    names = [experiment.name for experiment in experiments]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError("FILE", twice[0], "names that differ: each has a folder of results")
    arguments.out.mkdir(parents=True, exist_ok=True)
    code = 0
    for experiment in experiments:
        out = arguments.out / experiment.name
        with _Progress(f"{experiment.name}: ") as progress:
            report = run_experiment(experiment, out, progress)
        failed = [check for check in report.checks if not check.passed]
        verdict = "agree" if report.passed else "DISAGREE"
        print(
            f"{experiment.name}: theory and simulation {verdict}; {len(failed)} of "
            f"{len(report.checks)} checks failed; see {out / 'report.md'}"
        )
        for x in failed:
            print(f"  {x.name}: {x.value:.8g}, expected {x.expected:.8g} (error {x.error:.2g})")
        sys.stdout.flush()
        code = code if report.passed else DISAGREE
    return code


def _show(compute: "Compute", arguments: argparse.Namespace) -> int:
    """Load, compute, draw and print one of the commands that take one experiment."""
    from numeric.experiment import load_experiment

    experiment = load_experiment(arguments.file)
    attention = experiment.attention
    title = (
        f"{experiment.name}: {attention.activation}, H = {attention.heads}, "
        f"F = {experiment.task.prior.features}, L = {experiment.task.tokens}"
    )
    if arguments.plot is not None:
        from numeric import plots

        plots.check_path(arguments.plot)  # before the work is done
    with _Progress() as progress:
        entries, lines, draw = compute(experiment, arguments, progress)
        if arguments.plot is not None:
            figure = draw(plots)
            plots.label(figure, experiment)
            plots.save(figure, arguments.plot)
            lines = [*lines, "", f"figure: {arguments.plot}"]
    text = "\n".join([title, *lines])
    print(json.dumps(_plain(entries), allow_nan=False) if arguments.json else text)
    return 0


def _loss(experiment: "Experiment", given: argparse.Namespace, _: "_Progress") -> "Result":
    from numpy import array2string

    from numeric.loss import population_loss

    state, words = _start(experiment)
    loss = population_loss(state, experiment.task, experiment.attention, given.tol)
    gradient = {"m": loss.m, "r": loss.r} | ({} if loss.b is None else {"b": loss.b})
    lines = [
        words,
        "",
        f"loss E = {loss.value:.12g}   (error {loss.error:.1e}, {loss.method})",
        "",
        f"gradient   (error {loss.gradient_error:.1e})",
    ]
    for name, values in gradient.items():
        lines += [f"dE/d{name}", array2string(values, max_line_width=100, threshold=200)]
    entries = {"loss": loss.value, "error": loss.error, "gradient": gradient}
    return entries, lines, lambda plots: plots.loss_figure(loss)


def _spectrum(experiment: "Experiment", given: argparse.Namespace, _: "_Progress") -> "Result":
    from numeric.spectrum import hessian_spectrum

    state, words = (None, "at the origin") if given.at == "origin" else _start(experiment)
    found = hessian_spectrum(experiment.task, experiment.attention, state)
    lines = [words]
    if state is None and experiment.task.prior.mean.any():
        lines.append("note: the mean signal is not zero, so neither is the gradient at the origin")
    names = ("sectors", "multiplicities", "eigenvalues", "errors", "growth_rates")
    entries = {name: getattr(found, name) for name in ("point", *names)}
    rows = [["sector", "multiplicity", "eigenvalue", "error", "growth rate"]]
    for sector, count, value, error, rate in zip(*(entries[name] for name in names), strict=True):
        rows.append([sector, str(count), f"{value:.8g}", f"{error:.1e}", f"{rate:+.8g}"])
    return entries, [*lines, "", *_table(rows)], lambda plots: plots.spectrum_figure(found)


def _flow(experiment: "Experiment", _: argparse.Namespace, progress: "_Progress") -> "Result":
    import numpy as np

    from numeric.bayes import bayes_risk
    from numeric.flow import integrate_flow

    state, words = _start(experiment)
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
    course = _course({"tau": path.tau, "loss": path.loss}, norms, None)
    lines = [words, f"kappa = {path.kappa:g}: {path.status}", "", *course, ""]
    for f, passage in enumerate(path.first_passage[:_COLUMNS], start=1):
        when = f"at tau = {passage:.6g}" if math.isfinite(passage) else "not reached"
        lines.append(f"feature {f}: norm {path.threshold:g} {when}")
    lines += [
        f"feature {x.feature + 1}: falls by {x.drop:.0%} after its peak at tau = {x.tau:.6g}"
        for x in path.excursions
    ]
    noise = f", of kappa V {path.noise_error:.1e}" if path.kappa else ""
    lines.append(f"error of the loss {path.loss_error:.1e}{noise}")
    names = ("tau", "loss", "m", "r", "first_passage", "status", *(["b"] * (path.b is not None)))
    entries = {name: getattr(path, name) for name in names}
    entries["excursions"] = [vars(excursion) for excursion in path.excursions]
    return (
        entries,
        lines,
        lambda plots: plots.flow_figure(path, bayes=bayes_risk(experiment.task, 1e-4).value),
    )


def _risk(experiment: "Experiment", given: argparse.Namespace, _: "_Progress") -> "Result":
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
    return {"bayes_risk": risk.value, "error": risk.error}, lines, draw


def _sgd(experiment: "Experiment", _: argparse.Namespace, progress: "_Progress") -> "Result":
    import numpy as np

    from numeric.run import kappa_of
    from numeric.sgd import run_sgd

    state, words = _start(experiment)
    settings = experiment.sgd
    kappa = None if settings.step is not None else kappa_of(experiment)
    runs = run_sgd(
        state,
        experiment.task,
        experiment.attention,
        dimension=settings.dimension,
        tau=experiment.flow.tau_max,
        step=settings.step,
        kappa=kappa,
        batch=settings.batch,
        runs=settings.runs,
        seed=settings.seed,
        progress=partial(progress, "SGD"),
    )
    entries: dict[str, object] = {"tau": runs.tau, "samples": runs.samples}
    for name in ("m", "r", "b"):
        values = getattr(runs, name)
        if values is not None:
            entries[name], entries[f"{name}_error"] = _mean_and_error(values)
    entries |= {name: getattr(runs, name) for name in ("dimension", "batch", "step", "kappa")}
    entries["runs"] = len(runs.m)
    norms, errors = _mean_and_error(np.linalg.norm(runs.m, axis=2))
    course = _course({"tau": runs.tau, "samples": runs.samples}, norms, errors)
    how = (
        f"D = {runs.dimension}, step = {runs.step:.6g}, batch = {runs.batch}, "
        f"kappa = {runs.kappa:.6g}; means over {len(runs.m)} runs, with standard errors"
    )
    return entries, [words, how, "", *course], lambda plots: plots.sgd_figure(runs)


def _start(experiment: "Experiment") -> "tuple[State, str]":
    """Return the state to start from, and words for it."""
    from numeric.run import start_of

    s = experiment.flow
    random = f"state: random keys, eta = {s.eta:g}, D = {s.dimension}, seed = {s.seed}"
    return start_of(experiment), random if experiment.state is None else "state: the file's"


def _mean_and_error(values: "NDArray[Any]") -> "tuple[NDArray[Any], NDArray[Any]]":
    """Mean over the first axis and its standard error, NaN where there is one run only."""
    count, mean = len(values), values.mean(axis=0)
    return mean, values.std(axis=0, ddof=1) / math.sqrt(count) if count > 1 else mean * math.nan


def _course(
    columns: "dict[str, NDArray[Any]]", norms: "NDArray[Any]", errors: "NDArray[Any] | None"
) -> list[str]:
    """Table of a time course: at most `_ROWS` evenly spread times, with both ends."""
    count, shown = len(norms), range(min(norms.shape[1], _COLUMNS))
    rows = [[*columns, *(f"norm, feature {f + 1}" for f in shown)]]
    for i in sorted({round(k * (count - 1) / (_ROWS - 1)) for k in range(_ROWS)}):
        margins = ["" if errors is None else f" +- {errors[i, f]:.1e}" for f in shown]
        rows.append(
            [
                *(f"{column[i]:.9g}" for column in columns.values()),
                *(f"{norms[i, f]:.6f}{margins[f]}" for f in shown),
            ]
        )
    return _table(rows)


def _table(rows: list[list[str]]) -> list[str]:
    """Align cells: the first column to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _plain(value: Any) -> Any:
    """Make JSON of arrays, and null of what is not finite."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fail(words: str, code: int = BAD_INPUT) -> int:
    print("headflow: " + " ".join(words.split()), file=sys.stderr)
    return code


def _drop_output() -> None:
    """Send what is still unwritten nowhere: else the interpreter fails on it when it exits."""
    with suppress(OSError, ValueError):  # standard output may be no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Progress:
    """Percentage, stage and its time left on one line, if standard error is a terminal."""

    def __init__(self, title: str = "") -> None:
        self._title, self._shown = title, sys.stderr.isatty()
        self._stage, self._done, self._since, self._last = "", 0.0, 0.0, -math.inf

    def __call__(self, stage: str, fraction: float) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self._stage, self._done, self._since, self._last = stage, 0.0, now, -math.inf
        self._done = max(self._done, min(fraction, 1.0))  # a solver may retry a step
        if not self._shown or now - self._last < _EVERY:
            return
        self._last = now
        line = f"{self._done:4.0%}   {self._title}{stage}"
        if self._done > 0.01:
            seconds = int((now - self._since) * (1 - self._done) / self._done)
            line += f"   {seconds // 60}:{seconds % 60:02} left"
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
