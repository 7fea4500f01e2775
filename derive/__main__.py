"""``python -m derive``, also reached as ``headflow derive``: print, check or write derivations."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from derive.attention import ACTIVATIONS, Attention, activation
from derive.document import FORMATS, document
from derive.emit import activation_module, drift, module_source, write
from derive.errors import DeriveError
from derive.landau import ORDERS
from derive.query_document import query_document
from derive.query_expansion import query_module
from derive.user import is_query, read_attention

QUERY = "query"


Checks = Callable[[Attention | None], tuple[dict[str, str], bool]]
"""What is said of an activation's formulas (of the query model's: None), and whether all checks agree."""


def main(argv: list[str] | None = None, checks: Checks | None = None) -> int:
    """Run the command and return its exit code: 1 if there is drift or a check fails, 2 on bad input.

    Parameters
    ----------
    argv : list of str, optional
    checks : callable, optional
        Numerical checks of formulas for --document; without them formulas stand alone.
    """
    parser = argparse.ArgumentParser(
        prog="headflow derive",
        description="Derive loss, gradient, Hessian and flow of attention activations.",
        epilog="example: headflow derive softmax --format text",
    )
    parser.add_argument(
        "name",
        nargs="*",
        metavar="NAME|FILE",
        help="what to print (default: all built-in activations): "
        f"{', '.join(ACTIVATIONS)}; {QUERY}, the model of one query; or what an experiment file "
        "(.toml) or example has of these",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--check",
        action="store_true",
        help="derive all kernels afresh and compare with the committed ones",
    )
    action.add_argument("--write", action="store_true", help="write all kernels anew")
    action.add_argument(
        "--document",
        type=Path,
        metavar="DIR",
        help="write each derivation into a folder, as Markdown with LaTeX and as HTML with MathML, with "
        "a numerical check beside each formula that has one (about 10 s each); the exit code is 1 if a "
        "check fails",
    )
    parser.add_argument(
        "--format",
        choices=(*FORMATS, "python"),
        default="latex",
        help="LaTeX inside Markdown, plain text, HTML with MathML, or the kernels' source",
    )
    parser.add_argument(
        "--order",
        default="4",
        metavar="{2,4,6}",
        help="of the loss's expansion at the origin, in what is printed as LaTeX or text (default: 4)",
    )
    arguments = parser.parse_args(argv)
    if arguments.name and (arguments.check or arguments.write):
        parser.error("argument NAME: --check and --write concern all kernels, expected no name")
    try:
        if arguments.check:
            difference = drift()
            print(difference or "generated kernels are up to date")
            return 1 if difference else 0
        if arguments.write:
            for path in write():
                print(path)
            return 0
        orders = {str(order): order for order in ORDERS}
        if arguments.order not in orders:
            found = f"found {arguments.order!r:.40}, expected one of {', '.join(orders)}"
            raise DeriveError(f"--order: {found}")
        if arguments.document is not None:
            names = arguments.name or [*ACTIVATIONS, QUERY]
            order = orders[arguments.order]
            return 0 if _documents(names, arguments.document, order, checks) else 1
        for attention in [_chosen(name) for name in arguments.name or ACTIVATIONS]:
            if attention is None:
                python = arguments.format == "python"
                print(module_source(query_module()) if python else query_document(arguments.format))
            elif arguments.format == "python":
                print(module_source(activation_module(attention)))
            else:
                print(document(attention, arguments.format, orders[arguments.order]))
    except BrokenPipeError:
        raise
    except (DeriveError, OSError) as error:
        words = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            words = f"{error.filename}: {(error.strerror or words).lower()}"
        print(f"headflow: error: {words}", file=sys.stderr)
        return 2
    return 0


def _documents(names: list[str], folder: Path, order: int, checks: Checks | None) -> bool:
    """Write documents into a folder; return whether all checks agree."""
    chosen = {Path(name).name.removesuffix(".toml"): _chosen(name) for name in names}
    if len(chosen) < len(names):
        raise DeriveError(f"NAME: found {', '.join(names)}, expected names that differ")
    folder.mkdir(parents=True, exist_ok=True)
    passed = True
    for name, attention in chosen.items():
        words, agreed = ({}, True) if checks is None else checks(attention)
        passed = passed and agreed
        for form, suffix in (("latex", "md"), ("html", "html")):
            text = (
                query_document(form, words)
                if attention is None
                else document(attention, form, order, words)
            )
            path = folder / f"{name}.{suffix}"
            temporary = folder / f".{path.name}.tmp"
            temporary.write_text(text.rstrip() + "\n", encoding="utf-8")
            temporary.replace(path)
        said = f"; {len(words) - 1} formulas checked" if words else ""
        verdict = "" if agreed else ", of which some DISAGREE"
        print(f"{folder / name}.md, {folder / name}.html{said}{verdict}", flush=True)
    return passed


def _chosen(name: str) -> Attention | None:
    """The activation of this name or file; None stands for the query model."""
    if name == QUERY or (name.endswith(".toml") and is_query(name)):
        return None
    return read_attention(name) if name.endswith(".toml") else activation(name)


if __name__ == "__main__":
    sys.exit(main())
