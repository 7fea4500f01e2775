"""The ``headflow`` command.

Results go to standard output, progress and errors to standard error. Everything heavy is imported
by the command that needs it, so that help is instant.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from numeric import commands
from numeric.files import strict_json

if TYPE_CHECKING:
    from numeric.experiment import Experiment

EXAMPLES = ("two-features", "two-features-bayes")
DISAGREE, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
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

        # The examples' names stand for their files here, too.
        folder = resources.files("numeric") / "examples"
        return derive([str(folder / f"{x}.toml") if x in EXAMPLES else x for x in argv[1:]])
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
    subcommands = parser.add_subparsers(metavar="COMMAND", title="subcommands")

    def add(name: str, summary: str, more: str, example: str) -> argparse.ArgumentParser:
        description = f"{summary[:1].upper()}{summary[1:]}. {more}"
        return subcommands.add_parser(
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
        "The state is the file's [state], else random keys of norm flow.eta at token dimension "
        "D = flow.dimension, with seed flow.seed."
    )
    loss = add(
        "loss",
        "exact population loss and its gradient",
        f"{start} The gradient is dE/dm (heads x features), dE/dr (heads x heads; dE = tr(G dr)) "
        "and, where they are trained, dE/db and dE/dv (heads).",
        "loss two-features --json",
    )
    loss.add_argument(
        "--tol",
        type=float,
        help="absolute error aimed at (default: 1e-12 for one head, else 1e-8); the error reported "
        "is the one reached",
    )
    spectrum = add(
        "spectrum",
        "Hessian eigenvalues and growth rates by sector",
        "Coordinates are (m, rho) with r = rho rho^T. A growth rate is minus an eigenvalue, per "
        "unit of tau = step size x steps. Residual sectors count once per residual dimension, unless "
        "--dimension is given.",
        "spectrum two-features --plot spectrum.svg",
    )
    spectrum.add_argument(
        "--at",
        choices=("origin", "unspecialized", "state", "ladder"),
        help="origin: in closed form (default); unspecialized: the saddle of heads that are all alike; "
        "state: the file's [state], else a random initial one; both hold biases and values fixed, "
        "saddles do not. ladder: the saddles that the flow visits, with waiting times",
    )
    spectrum.add_argument(
        "--along", choices=("flow",), help="spectra at times along the flow instead, kappa included"
    )
    spectrum.add_argument(
        "--dimension",
        type=int,
        metavar="D",
        help="token dimension: residual sectors are counted D - F - rank(r) times",
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
    risk.add_argument(
        "--tol",
        type=float,
        default=1e-8,
        help="absolute error aimed at (default: 1e-8); the error reported is the one reached",
    )
    sgd = add(
        "sgd",
        "stochastic gradient descent at finite token dimension D",
        f"{start} It runs up to tau = step size x steps = flow.tau_max with step size sgd.step; "
        "without one, kappa = step x D / batch is flow.kappa, or 1 if that is 0. JSON has means "
        "over runs and their standard errors (m_error, ...).",
        "sgd two-features --compare flow --plot agreement.svg",
    )
    sgd.add_argument(
        "--method",
        choices=("direct", "reduced"),
        help="direct: D-dimensional keys; reduced: the same law by the order parameters alone, at a cost "
        "per step that does not depend on D: 2 microseconds with the extra 'fast', else 5 in hundreds of "
        "runs; a run takes D tau_max / kappa samples (default: sgd.method, or direct; reduced beside "
        "--compare and --scaling)",
    )
    sgd.add_argument(
        "--workers", type=int, default=1, metavar="N", help="threads; results do not depend on it"
    )
    sgd.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="keep what is done in a folder, written every second, and go on from there",
    )
    sgd.add_argument(
        "--compare",
        choices=("flow",),
        help="runs at 1, 2, 4 and 8 times sgd.dimension against the flow at the same kappa, up to its "
        "first passage; exit code 1 if they disagree",
    )
    sgd.add_argument(
        "--scaling",
        type=int,
        nargs="+",
        metavar="D",
        help="durations tau of the phases from random keys, at these dimensions, fitted against log D; "
        "runs end when all phases have passed, or at flow.tau_max",
    )
    for compute, parts in zip(
        (commands.loss, _spectrum, commands.flow, commands.risk, _sgd),
        (loss, spectrum, flow, risk, sgd),
        strict=True,
    ):
        parts.add_argument("file", metavar="FILE", help="experiment file, or name of an example")
        parts.add_argument("--json", action="store_true", help="print JSON; undefined is null")
        parts.add_argument(
            "--plot", metavar="FILE", help="write a figure too: .svg, .png or .pdf by its suffix"
        )
        parts.set_defaults(command=partial(_show, compute))
    example = add(
        "example",
        "print a shipped experiment file, to start your own from",
        f"There are {' and '.join(EXAMPLES)}.",
        "example two-features > mine.toml",
    )
    example.add_argument("name", choices=EXAMPLES, metavar="NAME", help=" or ".join(EXAMPLES))
    example.set_defaults(command=_example)
    subcommands.add_parser(
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


def _show(compute: commands.Compute, arguments: argparse.Namespace) -> int:
    """Load, compute, draw and print one of the commands that take one experiment."""
    from numeric.experiment import load_experiment

    experiment = load_experiment(arguments.file)
    attention = experiment.attention
    title = (
        f"{experiment.name}: {attention.name}, H = {attention.heads}, "
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
    print(strict_json(entries) if arguments.json else text)
    return 0 if entries.get("passed", True) else DISAGREE


def _example(arguments: argparse.Namespace) -> int:
    folder = resources.files("numeric") / "examples"
    print((folder / f"{arguments.name}.toml").read_text(encoding="utf-8"), end="")
    return 0


def _spectrum(
    experiment: "Experiment", given: argparse.Namespace, progress: commands.Progress
) -> commands.Result:
    from numeric.spectrum_command import spectrum

    return spectrum(experiment, given, progress)


def _sgd(
    experiment: "Experiment", given: argparse.Namespace, progress: commands.Progress
) -> commands.Result:
    from numeric.sgd_command import sgd

    return sgd(experiment, given, progress)


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
        if self._done > 0.001:
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
