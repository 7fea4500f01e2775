"""``headflow claims``: the papers' claims checked, a table as results come in, a ledger and a report."""

import argparse
from collections.abc import Callable

from numeric.claims.ledger import changed, committed, read_ledger, settle, write_ledger
from numeric.claims.page import page
from numeric.claims.registry import IDS, claims
from numeric.claims.table import lines_of
from numeric.files import write_text
from numeric.report import versions
from numeric.validate import whole_number


def check(arguments: argparse.Namespace, progress: Callable[[str, float], object]) -> bool:
    """Check claims, print them, and write ``ledger.json`` and ``report.html`` into a folder.

    Parameters
    ----------
    arguments : argparse.Namespace
        `ids`, `full`, `out`, `seed` and `workers`.
    progress : callable
        Called with the stage and the fraction of it that is done.

    Returns
    -------
    bool
        Whether the verdicts are those of the committed ledger, as far as it has them.

    Raises
    ------
    InputError
        If there is no such claim, or an argument is out of range.
    OSError
        If the folder cannot be written.
    """
    chosen, out = claims(arguments.ids), arguments.out
    seed = whole_number("--seed", arguments.seed, 0, 2**32 - 1)
    workers = whole_number("--workers", arguments.workers, 1, 256)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "ledger.json"
    read_ledger(path)  # what cannot be kept is refused before the work is done
    entries = []
    stage = f"{len(chosen)} claims"
    progress(stage, 0.0)
    for entry in settle(
        chosen,
        full=arguments.full,
        seed=seed,
        folder=out / "parts",
        workers=workers,
        progress=lambda fraction: progress(stage, fraction),
    ):
        entries.append(entry)
        print("\n".join(lines_of(entry)), flush=True)
    entries.sort(key=lambda x: IDS.index(x.claim.id))
    write_ledger(entries, path, versions(), seed)
    write_text(out / "report.html", page(entries, versions(), seed))
    print(f"report: {out / 'report.html'}")
    lines = changed(entries, committed())
    for line in lines:
        print(f"changed: {line}")
    if not lines:
        print("verdicts are those of the committed ledger")
    return not lines
