"""The ledger as one HTML page: formulas as MathML, figures inside, nothing is loaded from elsewhere."""

import base64
import io
import re
from collections.abc import Sequence
from html import escape
from string import Template

from latex2mathml.converter import convert
from matplotlib import style

from numeric.claims.claim import CONFIDENCE, REFUTED, SUPPORTED, Finding
from numeric.claims.ledger import Entry
from numeric.claims.table import fails_beyond
from numeric.style import METADATA, STYLE, number

MARKS = {SUPPORTED: "✓", REFUTED: "✗"}
PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Claims ledger</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 56rem; margin: 2rem auto;
       padding: 0 1rem; }
h2 { margin-top: 3rem; border-top: 1px solid #ccc; padding-top: 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-size: 0.92rem; }
th, td { text-align: left; padding: 0.25rem 0.6rem; border-bottom: 1px solid #e3e3e3;
         vertical-align: top; }
.regime { table-layout: fixed; }
.regime th:nth-child(2) { width: 11rem; }
.regime th:nth-child(3) { width: 9rem; }
.regime th:nth-child(4) { width: 8rem; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
img { max-width: 100%; height: auto; }
.supported, .refuted, .inconclusive { white-space: nowrap; }
.supported { color: #00614a; font-weight: 600; }
.refuted { color: #a33c00; font-weight: 600; }
.inconclusive { color: #555; font-weight: 600; }
.note { color: #555; font-size: 0.9rem; }
code { background: #f3f3f3; padding: 0.1rem 0.3rem; }
</style>
</head>
<body>
<h1>Claims ledger</h1>
<p>Each claim is a set of conditions, fixed in code before anything is measured. A number is measured with
an error, the half-width of an interval of confidence $confidence or a bound; a condition holds where the
whole interval is allowed, fails where none of it is, and is open otherwise. A regime is supported if all
conditions hold, refuted if one fails. The verdict of a claim is that of its own regime, the first table;
those marked "beyond" are outside of what the paper says, or controls, and tell where it stops holding.
Numbers without an error are test statistics, or deterministic to more digits than are shown. D is the
token dimension, L the number of tokens, H that of heads with keys k_h, F that of features k*_f with
variances ν_f; m and r are the order parameters k_h · k*_f and the overlaps of what is left of the keys,
b and v biases and values of heads, τ = learning rate × steps; d, α = q · u and θ belong to the query
model. This is the $mode check, with seed $seed.</p>
<p class="note">$versions</p>
<table>
<thead><tr><th>claim</th><th></th><th>status in the paper</th><th>verdict</th>
<th>where it stops holding</th></tr></thead>
<tbody>
$summary
</tbody>
</table>
$claims
</body>
</html>
""")


def page(entries: Sequence[Entry], versions: dict[str, str], seed: int) -> str:
    """Return the report as HTML.

    Parameters
    ----------
    entries : sequence of Entry
        All of one mode, at least one.
    versions : dict
        Of the packages, by name.
    seed : int
    """
    summary = "\n".join(
        f'<tr><td><a href="#{x.claim.id}">{x.claim.id}</a></td><td>{escape(x.claim.title)}</td>'
        f"<td>{x.claim.status}</td>{_verdict(x.verdict, 'td')}"
        f"<td>{escape('; '.join(fails_beyond(x.record())))}</td></tr>"
        for x in entries
    )
    return PAGE.substitute(
        confidence=f"{CONFIDENCE:.4f}",
        mode=entries[0].mode,
        seed=seed,
        versions=escape(", ".join(f"{name} {x}" for name, x in versions.items())),
        summary=summary,
        claims="\n".join(_section(x, seed) for x in entries),
    )


def with_formulas(text: str) -> str:
    """Return text as HTML, with what is between dollar signs as MathML."""
    pieces = re.split(r"\$(.+?)\$", text)
    return "".join(convert(x) if i % 2 else escape(x) for i, x in enumerate(pieces))


def _verdict(verdict: str, tag: str = "span") -> str:
    return f'<{tag} class="{verdict}">{MARKS.get(verdict, "–")} {verdict}</{tag}>'


def _section(entry: Entry, seed: int) -> str:
    claim = entry.claim
    flag = (" --full" if entry.mode == "full" else "") + (f" --seed {seed}" if seed else "")
    work = "\n".join(
        f'<tr><td>{escape(name)}</td><td class="number">{x["seed"]}</td>'
        f'<td class="number">{x["seconds"]:.1f} s</td></tr>'
        for name, x in entry.work.items()
    )
    parts = [
        f'<h2 id="{claim.id}">{claim.id}. {escape(claim.title)}</h2>',
        f"<p>{with_formulas(claim.statement)}</p>",
        f'<p class="note">{escape(claim.source)}; {claim.status} there.</p>',
        f"<p><strong>Verdict:</strong> {_verdict(entry.verdict)}</p>",
        f"<p><strong>What was checked.</strong> {with_formulas(claim.method)}</p>",
        *([f"<p>Not computed: {escape(entry.error)}</p>"] if entry.error else []),
        *(_regime(x, "beyond: " if i else "") for i, x in enumerate(entry.findings)),
        "" if entry.error else _figure(entry),
        f"<p>Rerun: <code>headflow claims {claim.id}{flag}</code> "
        f"({entry.seconds:.0f} s on one core)</p>",
        f"<details><summary>Parts, seeds and times</summary><table><tbody>{work}</tbody></table>"
        "</details>",
    ]
    return "\n".join(parts)


def _regime(finding: Finding, place: str) -> str:
    rows = []
    for x in finding.outcomes:
        measured = x.measured
        error = f" ± {measured.error:.2g}" if measured.error else ""
        rows.append(
            f"<tr><td>{escape(x.condition.name)}</td>"
            f'<td class="number">{number(measured.value, ".5g")}{error}</td>'
            f"<td>{escape(x.condition.allowed)}</td>{_verdict(x.verdict, 'td')}</tr>"
        )
    return (
        f'<table class="regime"><thead><tr><th>{place}{escape(finding.regime.name)}</th>'
        '<th class="number">measured</th><th>allowed</th>'
        f"<th>{_verdict(finding.verdict)}</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _figure(entry: Entry) -> str:
    """An image of its own, so that the names in one drawing do not meet those in another."""
    content = io.BytesIO()
    with style.context(["default", STYLE]):
        figure = entry.claim.draw(entry.results)
        figure.savefig(content, format="svg", metadata=METADATA[".svg"])
    data = base64.b64encode(content.getvalue()).decode()
    words = escape(f"Figure of claim {entry.claim.id}: {entry.claim.title}", quote=True)
    return f'<p><img alt="{words}" src="data:image/svg+xml;base64,{data}"></p>'
