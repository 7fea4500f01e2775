"""Options of the commands that run many computations, claims and sweeps, or show their results."""

import argparse
from collections.abc import Callable
from pathlib import Path

LAB = "Needs the extra 'lab': python -m pip install \"headflow[lab]\"."


def claims_options(add: Callable[[str, str, str, str], argparse.ArgumentParser]) -> None:
    """Add the command that checks the papers' claims."""
    claims = add(
        "claims",
        "the papers' claims as checks: supported, refuted or inconclusive",
        "Conditions are fixed in code before anything is measured. Prints a claim as soon as it is "
        "decided, its own regime first and then those beyond; writes ledger.json, report.html and the "
        "finished parts, from which an interrupted call goes on. The exit code is 1 if a verdict "
        "differs from that of the ledger that comes with headflow.",
        "claims A6 B2 --out DIR",
    )
    claims.add_argument(
        "ids", nargs="*", metavar="ID", help="A1 ... A13, B1 ... B4 (default: all of them)"
    )
    claims.add_argument(
        "--full",
        action="store_true",
        help="large budgets and all regimes: hours for all claims, where the quick check takes minutes",
    )
    claims.add_argument(
        "--out",
        type=Path,
        default="headflow-claims",
        metavar="DIR",
        help="folder for all results, made if missing (default: %(default)s)",
    )
    claims.add_argument("--seed", type=int, default=0, help="of all parts (default: 0)")
    claims.add_argument(
        "--workers",
        type=int,
        default=2,
        metavar="N",
        help="processes (default: 2); results do not depend on it",
    )
    claims.set_defaults(command="claims")


def sweep_options(add: Callable[[str, str, str, str], argparse.ArgumentParser]) -> None:
    """Add the commands that sweep, summarize a result and draw it."""
    sweep = add(
        "sweep",
        "an experiment at all combinations of swept values, as one dataset",
        "The file's table [sweep] has lists or ranges of any of its keys, such as task.tokens = "
        "[3, 5, 9] or attention.heads = { first = 1, last = 8 }, and what to compute. Finished cells "
        "are kept: an interrupted sweep goes on. A cell that fails is recorded, and is NaN in the "
        f"result. {LAB}",
        "sweep two-features --over 'task.tokens=[3,5,9]' --compute risk flow",
    )
    sweep.add_argument("file", metavar="FILE", help="experiment file, or name of an example")
    sweep.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="KEY=VALUES",
        help="sweep this key too, or instead of what [sweep] says of it; values as in TOML, such as "
        "'flow.eta={first=0.01, last=1.0, count=5, spacing=\"log\"}'; may be repeated",
    )
    sweep.add_argument(
        "--compute",
        nargs="+",
        default=(),
        metavar="NAME",
        help="loss (at the start), spectrum (at the origin), flow, risk, minima, sgd; of a file with "
        "[query] loss, spectrum (fixed points), flow, sgd (default: sweep.compute, or flow)",
    )
    sweep.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="seeds, counted from flow.seed, of random keys and of SGD: an axis 'seed' "
        "(default: sweep.seeds, or the file's own seeds alone)",
    )
    sweep.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for finished cells and the result, made if missing (default: headflow-sweep/NAME)",
    )
    sweep.add_argument(
        "--format",
        choices=("netcdf", "zarr"),
        default="netcdf",
        help="result.nc or result.zarr (default: netcdf)",
    )
    sweep.add_argument(
        "--workers",
        type=int,
        default=2,
        metavar="N",
        help="processes (default: 2); results do not depend on it",
    )
    sweep.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of a Dask scheduler, host:port, whose workers then compute the cells; needs the "
        "extra 'cluster'",
    )
    sweep.set_defaults(command="sweep")

    result = "folder of headflow sweep, or a .nc or .zarr"
    show = add(
        "show",
        "what a result holds: axes, ranges, errors, cells that failed, versions",
        f"Errors are the largest absolute ones; missing counts numbers that are NaN. {LAB}",
        "show headflow-sweep/two-features",
    )
    show.add_argument("result", metavar="RESULT", help=result)
    show.add_argument(
        "--experiment", action="store_true", help="print the experiment file it came from, too"
    )
    show.set_defaults(command="show")
    plot = add(
        "plot",
        "the standard figures of a result",
        "Quantities against tau = step size x steps (of the query model t or steps) where they have "
        "it; else a map over two swept numbers, or curves against one. Of runs and seeds the median "
        f"and the band from 10 to 90 % are shown. {LAB}",
        "plot headflow-sweep/two-features --variable norm --select tokens=5",
    )
    plot.add_argument("result", metavar="RESULT", help=result)
    plot.add_argument(
        "--variable",
        nargs="+",
        default=(),
        metavar="NAME",
        help="quantities (default: all but details such as m and r; 'norm' is that of each feature)",
    )
    plot.add_argument(
        "--select",
        nargs="+",
        default=(),
        metavar="NAME=VALUE",
        help="draw only this label of an axis, such as tokens=5; among numbers the nearest one",
    )
    plot.add_argument(
        "--out", type=Path, metavar="DIR", help="folder for the figures (default: the result's)"
    )
    plot.add_argument(
        "--format",
        choices=("svg", "png", "pdf"),
        default="svg",
        help="of the figures (default: svg)",
    )
    plot.set_defaults(command="plot")
