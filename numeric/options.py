"""Options of the ``headflow`` command."""

import argparse
from collections.abc import Callable
from pathlib import Path

from numeric.lab_options import claims_options, sweep_options

EXAMPLES = ("two-features", "two-features-bayes", "query-recovery")


def parser() -> argparse.ArgumentParser:
    """Return the parser; ``command`` of what it parses names what computes it, "room.function"."""
    found = argparse.ArgumentParser(
        prog="headflow",
        description="Training dynamics of attention heads: derived, computed exactly, simulated.",
        epilog="example: headflow flow two-features --plot flow.svg",
    )
    found.add_argument("--version", action="store_true", help="show the version and exit")
    found.set_defaults(command=None)
    subcommands = found.add_subparsers(metavar="COMMAND", title="subcommands")

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
    run.set_defaults(command="run")

    start = (
        "The state is the file's [state], else random keys of norm flow.eta at token dimension "
        "D = flow.dimension, with seed flow.seed."
    )
    loss = add(
        "loss",
        "exact population loss and its gradient",
        f"{start} The gradient is dE/dm (heads x features), dE/dr (heads x heads; dE = tr(G dr)) "
        "and, where they are trained, dE/db and dE/dv (heads). Of a file with [query]: J, J' and "
        "J'' at a few alignments.",
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
        "unit of tau = step size x steps. Residual sectors count once per residual dimension, "
        "unless --dimension is given. Of a file with [query]: fixed points, their stability, and "
        "step sizes; the figure is a phase diagram.",
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
        "heads), and an excursion's feature is an index of the last axis, from 0. Of a file with "
        "[query]: alpha against t = sum of steps, from flow.alpha.",
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
        "over runs and their standard errors (m_error, ...). Of a file with [query]: the ascent "
        "of [ascent]; --compare flow measures its early growth against J''(0).",
        "sgd two-features --compare flow --plot agreement.svg",
    )
    sgd.add_argument(
        "--method",
        choices=("direct", "reduced"),
        help="direct: D-dimensional keys; reduced: the same law by the order parameters alone, at a cost "
        "per step that does not depend on D: 2 microseconds with the extra 'fast', else 5 in "
        "hundreds of runs; a run takes D tau_max / kappa samples (default: sgd.method, or direct; "
        "reduced beside --compare and --scaling)",
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
        "first passage; exit code 1 if they disagree; takes a minute or two for the shipped examples",
    )
    sgd.add_argument(
        "--scaling",
        type=int,
        nargs="+",
        metavar="D",
        help="durations tau of the phases from random keys, at these dimensions, fitted against log D; "
        "runs end when all phases have passed, or at flow.tau_max",
    )
    taking_one = {
        "commands.loss": loss,
        "spectrum_command.spectrum": spectrum,
        "commands.flow": flow,
        "commands.risk": risk,
        "sgd_command.sgd": sgd,
        **bayes_options(add),
    }
    for compute, parts in taking_one.items():
        parts.add_argument("file", metavar="FILE", help="experiment file, or name of an example")
        parts.add_argument("--json", action="store_true", help="print JSON; undefined is null")
        parts.add_argument(
            "--plot", metavar="FILE", help="write a figure too: .svg, .png or .pdf by its suffix"
        )
        parts.set_defaults(command=compute)
    claims_options(add)
    sweep_options(add)
    example = add(
        "example",
        "print a shipped experiment file, to start your own from",
        f"There are {', '.join(EXAMPLES)}.",
        "example two-features > mine.toml",
    )
    example.add_argument("name", choices=EXAMPLES, metavar="NAME", help=" or ".join(EXAMPLES))
    example.set_defaults(command="example")
    subcommands.add_parser(
        "derive", add_help=False, help="print, check or write the symbolic derivations"
    )
    return found


def bayes_options(
    add: Callable[[str, str, str, str], argparse.ArgumentParser],
) -> dict[str, argparse.ArgumentParser]:
    """Add the commands about least losses and heads."""
    minima = add(
        "minima",
        "least loss of each activation, beside the Bayes risk",
        "Descents from many random starts over m, r, b and v; upper bounds of the least loss. A "
        "sweep shows losses against signal strength, tokens or heads. Columns: error of the gap; "
        "largest entry of r; unstable directions of the Hessian; descents that end within 1e-6 of "
        "the least loss. The minimizer itself is in the JSON.",
        "minima two-features --activations softmax b-softmax --starts 2 --signal 0.5 1 2",
    )
    minima.add_argument(
        "--activations",
        nargs="+",
        metavar="NAME",
        help="built-in activations, or all (default: the file's)",
    )
    minima.add_argument("--starts", type=int, default=6, metavar="N", help="descents (default: 6)")
    minima.add_argument("--seed", type=int, default=0, help="of the starts (default: 0)")
    sweep = minima.add_mutually_exclusive_group()
    for name, kind, words in (
        ("signal", float, "factors of all amplitudes theta"),
        ("tokens", int, "numbers of tokens"),
        ("heads", int, "numbers of heads"),
    ):
        sweep.add_argument(f"--{name}", type=kind, nargs="+", metavar="X", help=words)
    heads = add(
        "heads",
        "how many heads bring the least loss close to the Bayes risk",
        "Losses of 1, 2, ... heads of the file's activation, whatever its number of heads, by "
        "descents; the answer is an upper bound. For Bayes-softmax, heads at the nodes of Gauss "
        "quadrature are shown beside it.",
        "heads two-features-bayes --max-gap 0.05",
    )
    heads.add_argument(
        "--max-gap",
        type=float,
        default=0.01,
        metavar="GAP",
        help="loss above Bayes (default: 0.01)",
    )
    heads.add_argument("--most", type=int, default=8, metavar="H", help="heads (default: 8)")
    heads.add_argument("--starts", type=int, default=4, metavar="N", help="descents (default: 4)")
    heads.add_argument("--seed", type=int, default=0, help="of the starts (default: 0)")
    prune = add(
        "prune",
        "which heads can be removed, and at what loss",
        "Heads are removed one by one, always the one whose loss costs least, with b and v as they are "
        "and trained again, where there are any: greedy, so a better choice may exist. In JSON heads "
        "count from 0.",
        "prune two-features --cost 0.05",
    )
    prune.add_argument(
        "--at",
        choices=("flow", "state"),
        default="flow",
        help="the end of the flow at flow.tau_max (default), or the file's [state]",
    )
    prune.add_argument(
        "--cost", type=float, default=0.05, help="relative rise of the loss (default: 0.05)"
    )
    outcomes = add(
        "outcomes",
        "what training from random keys finds: losses, and patterns of heads",
        "Random keys as in [flow], up to flow.tau_max. A head is unused if it is shorter than a "
        "fifth of the longest one (or than 0.1), a single direction if one feature takes part, "
        "else a mixture; features take part from three tenths of the head's largest alignment on.",
        "outcomes two-features --runs 8 --plot outcomes.svg",
    )
    outcomes.add_argument(
        "--runs", type=int, default=16, metavar="N", help="random keys (default: 16)"
    )
    outcomes.add_argument(
        "--method",
        choices=("flow", "sgd"),
        help="the flow, or SGD at D = flow.dimension, exact in law, with kappa 0.2 if flow.kappa is 0 "
        "(default: flow, but sgd for pooled weights of four heads or more)",
    )
    outcomes.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="threads of SGD; results do not depend on it",
    )
    plant = add(
        "plant",
        "real samples planted in noise, beside the prediction of their leading features",
        "The file's prior is empirical, with a number of features. Prints their variances and growth "
        "rates, the Bayes risk, how many heads of Bayes-softmax come close to it, and first passages: "
        "predicted by the flow of the features, and of SGD on the whole samples at D = sgd.dimension, "
        "from the same keys.",
        "plant digits.toml --workers 2 --plot passages.svg",
    )
    plant.add_argument(
        "--max-gap",
        type=float,
        default=0.01,
        metavar="GAP",
        help="loss above Bayes (default: 0.01)",
    )
    plant.add_argument("--most", type=int, default=6, metavar="H", help="heads (default: 6)")
    plant.add_argument(
        "--workers", type=int, default=1, metavar="N", help="threads; results do not depend on it"
    )
    return {
        "plant_command.plant": plant,
        "bayes_command.minima": minima,
        "bayes_command.heads": heads,
        "bayes_command.prune": prune,
        "bayes_command.outcomes": outcomes,
    }
