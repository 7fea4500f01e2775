"""Running claims: parts side by side, kept as they finish, and the ledger of what came out.

A part that is done is a file, named after it and written whole; a ledger that was interrupted goes on
from there. A file counts only for the same call of the same code.
"""

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from numeric.claims.claim import CONFIDENCE, Claim, Finding, Part
from numeric.errors import HeadflowError, InputError, Verbatim
from numeric.files import code_digest, strict_json, write_text
from numeric.validate import whole_number
from numeric.workers import unordered

MODES = ("quick", "full")
COMMITTED = "ledger.json"
FAILED = "failed"


@dataclass(frozen=True)
class Entry:
    """What came out of one claim.

    Attributes
    ----------
    claim : Claim
    findings : tuple of Finding
        One for each regime that was looked at, the claim's own first.
    results : dict
        What its parts returned.
    work : dict
        For each part its arguments, the seed among them, and `seconds`.
    mode : str
        "quick" or "full".
    error : str
        Why a part could not be computed; the verdict is then inconclusive.
    """

    claim: Claim
    findings: tuple[Finding, ...]
    results: dict[str, dict[str, Any]]
    work: dict[str, dict[str, Any]]
    mode: str
    error: str = ""

    @property
    def verdict(self) -> str:
        """That of the claim's own regime."""
        return self.findings[0].verdict

    @property
    def seconds(self) -> float:
        """Of computation, on one core."""
        return float(sum(x["seconds"] for x in self.work.values()))

    def record(self) -> dict[str, Any]:
        """Return what the ledger keeps."""
        return {
            "title": self.claim.title,
            "verdict": self.verdict,
            "regimes": {
                x.regime.name: {
                    "verdict": x.verdict,
                    "conditions": {
                        y.condition.name: {
                            "value": y.measured.value,
                            "error": y.measured.error,
                            "low": y.condition.low,
                            "high": y.condition.high,
                            "verdict": y.verdict,
                        }
                        for y in x.outcomes
                    },
                }
                for x in self.findings
            },
            "seconds": round(self.seconds, 1),
            **({"error": self.error} if self.error else {}),
            "parts": self.work,
        }


def settle(
    claims: Sequence[Claim],
    *,
    full: bool = False,
    seed: int = 0,
    folder: Path | None = None,
    workers: int = 1,
    progress: Callable[[float], object] | None = None,
) -> Iterator[Entry]:
    """Check claims, and yield each as soon as its last part is done.

    Parameters
    ----------
    claims : sequence of Claim
    full : bool
        Whether to take the large budget.
    seed : int
        Of all parts.
    folder : Path, optional
        Where finished parts are kept, and taken from.
    workers : int
        Processes; with one, everything runs in this process. Results do not depend on it.
    progress : callable, optional
        Called with the fraction of the parts that is done, weighted by the time that they took when the
        committed ledger was made.

    Yields
    ------
    Entry

    Raises
    ------
    InputError
        If an argument is out of range.
    OSError
        If the folder cannot be written.
    """
    seed, workers = whole_number("seed", seed, 0), whole_number("workers", workers, 1)
    mode = MODES[full]
    wanted = {claim.id: claim.parts(full, seed) for claim in claims}
    calls = {name: part for parts in wanted.values() for name, part in parts.items()}
    if folder is not None:
        folder = folder / mode
        folder.mkdir(parents=True, exist_ok=True)
    expected = _durations(mode)
    weights = {name: expected.get(name, 1.0) for name in calls}
    # The longest first, so that no worker ends up with it alone.
    ordered = {name: calls[name] for name in sorted(calls, key=lambda name: -weights[name])}
    done: dict[str, tuple[dict[str, Any], float]] = {}
    left = list(claims)
    for name, result, seconds in _computed(ordered, folder, workers):
        done[name] = result, seconds
        if progress is not None:
            progress(sum(weights[x] for x in done) / sum(weights.values()))
        for claim in [x for x in left if wanted[x.id].keys() <= done.keys()]:
            left.remove(claim)
            results = {x: done[x][0] for x in wanted[claim.id]}
            work = {
                x: {**part.keywords, "seconds": round(done[x][1], 1)}
                for x, part in wanted[claim.id].items()
            }
            errors = [f"{x}: {y[FAILED]}" for x, y in results.items() if FAILED in y]
            if errors:
                yield Entry(claim, claim.unmeasured, results, work, mode, "; ".join(errors))
            else:
                yield Entry(claim, claim.findings(results), results, work, mode)


def _computed(
    calls: dict[str, Part], folder: Path | None, workers: int
) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Results of parts, and the seconds that they took, as they finish."""
    code = code_digest()
    jobs = ((name, part, folder, code) for name, part in calls.items())
    with closing(unordered(kept, jobs, workers)) as results:
        yield from results


def kept(
    name: str, part: Part, folder: Path | None, code: str
) -> tuple[str, dict[str, Any], float]:
    """Return a part's result, from its file if there is one; else compute it and write the file."""
    path = None if folder is None else folder / file_name(name)
    call = json.loads(strict_json([part.func.__module__, part.func.__name__, part.keywords, code]))
    if path is not None and path.exists():
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if stored["call"] == call:
                return name, stored["result"], float(stored["seconds"])
        except (ValueError, KeyError, TypeError):
            pass  # a damaged file is computed again
    began = time.perf_counter()
    try:
        result = json.loads(strict_json(part()))
    except HeadflowError as error:
        result = {FAILED: str(error)}
    seconds = time.perf_counter() - began
    if path is not None and FAILED not in result:
        write_text(path, strict_json({"call": call, "seconds": seconds, "result": result}) + "\n")
    return name, result, seconds


def file_name(part: str) -> str:
    """Return a name that every file system takes."""
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-")
    return f"{plain}-{hashlib.sha256(part.encode()).hexdigest()[:6]}.json"


def committed() -> dict[str, Any]:
    """Return the ledger that comes with the package: by mode, what `Entry.record` keeps of each claim."""
    text = resources.files("numeric.claims").joinpath(COMMITTED).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _durations(mode: str) -> dict[str, float]:
    """Seconds that parts took when the committed ledger was made."""
    found = committed().get(mode, {}).get("claims", {})
    return {
        name: float(work["seconds"])
        for record in found.values()
        for name, work in record["parts"].items()
    }


def changed(entries: Iterable[Entry], ledger: dict[str, Any]) -> list[str]:
    """Return how verdicts differ from those of a ledger, a line for each regime.

    Parameters
    ----------
    entries : iterable of Entry
    ledger : dict
        Such as `committed`; claims that it lacks are new, and do not count.
    """
    lines = []
    for entry in entries:
        before = ledger.get(entry.mode, {}).get("claims", {}).get(entry.claim.id, {})
        for finding in entry.findings:
            old = before.get("regimes", {}).get(finding.regime.name, {}).get("verdict")
            if old is not None and old != finding.verdict:
                where = f"{entry.claim.id}, {finding.regime.name}"
                lines.append(f"{where}: {old} before, now {finding.verdict}")
    return lines


def read_ledger(path: Path) -> dict[str, Any]:
    """Return a ledger that was written, or an empty one if there is none.

    Raises
    ------
    InputError
        If there is something else.
    OSError
        If it cannot be read.
    """
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if set(found) <= set(MODES) and all(isinstance(x["claims"], dict) for x in found.values()):
            return found
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    raise InputError("--out", Verbatim(f"{path}, which is no ledger"), "a ledger, or none")


def write_ledger(entries: Sequence[Entry], path: Path, versions: dict[str, str], seed: int) -> None:
    """Write a ledger, keeping what an earlier one at the same place says of other claims.

    Raises
    ------
    InputError
        If there is a file that is no ledger.
    OSError
        If it cannot be written.
    """
    found = read_ledger(path)
    for entry in entries:
        mode = found.setdefault(entry.mode, {"claims": {}})
        mode.update({"versions": versions, "seed": seed, "confidence": CONFIDENCE})
        mode["claims"][entry.claim.id] = entry.record()
    write_text(path, strict_json(found, indent=1) + "\n")
