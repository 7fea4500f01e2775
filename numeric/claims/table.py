"""The ledger in lines: on the terminal as results come in, and as a Markdown table."""

from typing import Any

from numeric.claims.claim import REFUTED, SUPPORTED
from numeric.claims.ledger import Entry
from numeric.claims.registry import IDS


def lines_of(entry: Entry) -> list[str]:
    """Return what the terminal shows of a claim: its verdict, and one line for each regime."""
    claim = entry.claim
    head = (
        f"{claim.id:4}{entry.verdict:14}{entry.seconds:6.0f} s  {claim.title} "
        f"[in the paper: {claim.status}]"
    )
    lines = []
    for i, x in enumerate(entry.findings):
        others = len(x.outcomes) - 1
        more = f", and {others} more" if others and x.verdict == SUPPORTED else ""
        place = "beyond: " if i else ""
        lines.append(f"      {x.verdict:14}{place}{x.regime.name}: {x.decisive}{more}")
    return [head, *lines, *([f"      not computed: {entry.error}"] if entry.error else [])]


def fails_beyond(record: dict[str, Any]) -> list[str]:
    """Return the regimes, beside its own, in which a claim is refuted."""
    others = list(record["regimes"].items())[1:]
    return [regime for regime, x in others if x["verdict"] == REFUTED]


def markdown(ledger: dict[str, Any]) -> str:
    """Return a ledger's verdicts as a table: of the full check where there is one, else the quick one."""
    rows = ["| claim | | verdict | where it stops holding |", "|---|---|---|---|"]
    for name in IDS:
        found = [ledger.get(mode, {}).get("claims", {}).get(name) for mode in ("full", "quick")]
        record = next((x for x in found if x), None)
        if record is None:
            continue
        fails = [regime.replace("|", "\\|") for regime in fails_beyond(record)]
        mark = "" if found[0] else " (quick)"
        rows.append(
            f"| {name} | {record['title']} | {record['verdict']}{mark} | {'; '.join(fails)} |"
        )
    return "\n".join(rows)
