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
from importlib import import_module, resources
from typing import TYPE_CHECKING

from numeric import options
from numeric.files import strict_json
from numeric.options import EXAMPLES

if TYPE_CHECKING:
    from derive.attention import Attention as Definition

DISAGREE, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141
KEEPING = (["claims"], ["sweep"])
_EVERY = 0.1  # seconds between two reports of progress


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    It is 1 if theory and simulation disagree, verdicts on claims changed or generated kernels are out of
    date, 2 for bad input, after one line on standard error, and 130 if interrupted.
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
        # The commands that keep what is finished.
        keeps = (argv if argv is not None else sys.argv[1:])[:1]
        more = "; the same command goes on from what is finished" if keeps in KEEPING else ""
        return _fail(f"interrupted{more}", INTERRUPTED)
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
        named = [str(folder / f"{x}.toml") if x in EXAMPLES else x for x in argv[1:]]
        return derive(named, _formula_checks)
    parser = options.parser()
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
    own = {"run": _run, "example": _example, "claims": _claims}
    own |= dict.fromkeys(("sweep", "show", "plot"), _lab)
    return own.get(arguments.command, _show)(arguments)


def _formula_checks(attention: "Definition | None") -> tuple[dict[str, str], bool]:
    from numeric.formula_checks import formula_checks
    from numeric.query_formula_checks import PROBLEM, query_formula_checks
    from numeric.verified import problem_of, words_of

    if attention is None:
        found, problem = query_formula_checks(), PROBLEM
    else:
        found, problem = formula_checks(attention), problem_of(attention)
    return words_of(found, problem), all(x.check.passed for x in found)


def _run(arguments: argparse.Namespace) -> int:
    from numeric.errors import InputError
    from numeric.experiment import load_experiment
    from numeric.query_experiment import QueryExperiment
    from numeric.query_run import QueryReport, run_query_experiment
    from numeric.run import Report, run_experiment

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
            report: Report | QueryReport
            if isinstance(experiment, QueryExperiment):
                report = run_query_experiment(experiment, out, progress)
            else:
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


def _claims(arguments: argparse.Namespace) -> int:
    from numeric.claims_command import check

    with _Progress() as progress:
        same = check(arguments, progress)
    return 0 if same else DISAGREE


def _lab(arguments: argparse.Namespace) -> int:
    from numeric import sweep_command

    with _Progress() as progress:
        lines = getattr(sweep_command, arguments.command)(arguments, progress)
    print("\n".join(lines))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    """Load, compute, draw and print one of the commands that take one experiment."""
    from numeric.errors import InputError
    from numeric.experiment import load_experiment
    from numeric.query_experiment import QueryExperiment

    room, function = arguments.command.split(".")
    experiment = load_experiment(arguments.file)
    if isinstance(experiment, QueryExperiment):
        room = "query_command"
    compute = getattr(import_module(f"numeric.{room}"), function, None)
    if compute is None:
        raise InputError("FILE", arguments.file, "a file with [task] and [attention], no [query]")
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
    text = "\n".join([experiment.title, *lines])
    print(strict_json(entries) if arguments.json else text)
    return 0 if entries.get("passed", True) else DISAGREE


def _example(arguments: argparse.Namespace) -> int:
    folder = resources.files("numeric") / "examples"
    print((folder / f"{arguments.name}.toml").read_text(encoding="utf-8"), end="")
    return 0


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
