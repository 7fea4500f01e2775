"""Parts are kept and taken up again; the committed ledger is complete, and the README shows it."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from numeric.claims import ledger
from numeric.claims.claim import Claim, Condition, Measured, Regime, Results
from numeric.claims.ledger import (
    Entry,
    changed,
    committed,
    file_name,
    kept,
    settle,
    write_ledger,
)
from numeric.claims.registry import IDS, claims
from numeric.claims.table import lines_of, markdown
from numeric.errors import InputError, SimulationError

README = Path(__file__).resolve().parents[3] / "README.md"
CALLS: list[int] = []


def compute(value: float, seed: int) -> dict[str, Any]:
    CALLS.append(seed)
    if value < -5:
        raise SimulationError("it diverges")
    return {"value": value, "none": float("nan")}


def claim(value: float, name: str = "T1") -> Claim:
    regime, beyond = (Regime(x, (Condition("value", high=0),)) for x in ("own", "beyond"))

    def measure(results: Results) -> dict[str, dict[str, Measured]]:
        assert results["one"]["none"] is None
        return {
            "own": {"value": Measured(results["one"]["value"])},
            "beyond": {"value": Measured(-results["one"]["value"])},
        }

    parts = {
        "one": partial(compute, value=value, seed=1),
        "two, α = 1/√d": partial(compute, value=1.0, seed=2),
    }
    return Claim(
        name, "title", "s", "arXiv", "proved", "m", (regime, beyond),
        lambda full, seed: parts, measure, lambda results: Figure(),
    )  # fmt: skip


def run(value: float, **how: Any) -> Entry:
    CALLS.clear()
    (entry,) = settle([claim(value)], **how)
    return entry


def test_a_claim_is_settled() -> None:
    heard: list[float] = []
    entry = run(1.0, progress=heard.append)
    assert entry.verdict == "refuted" and entry.findings[1].verdict == "supported"
    assert heard[-1] == pytest.approx(1.0)
    record = json.loads(json.dumps(entry.record()))
    assert record["regimes"]["own"]["conditions"]["value"]["verdict"] == "refuted"
    assert record["parts"]["one"]["seed"] == 1
    assert "refuted" in lines_of(entry)[0] and "beyond" in lines_of(entry)[2]


def test_finished_parts_are_kept(tmp_path: Path) -> None:
    first = run(-1.0, folder=tmp_path)
    assert CALLS == [1, 2]
    again = run(-1.0, folder=tmp_path)
    assert CALLS == [] and again.record() == first.record()
    # A damaged file, one of another call, and one of other code are computed anew.
    path = tmp_path / "quick" / file_name("one")
    path.write_text("{")
    run(-1.0, folder=tmp_path)
    assert CALLS == [1]
    run(-2.0, folder=tmp_path)
    assert CALLS == [1]
    content = json.loads(path.read_text())
    content["call"][-1] = "other code"
    path.write_text(json.dumps(content))
    run(-2.0, folder=tmp_path)
    assert CALLS == [1]


def test_an_interrupted_ledger_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str, *rest: Any) -> Any:
        if name.startswith("two"):
            raise KeyboardInterrupt
        return kept(name, *rest)

    monkeypatch.setattr(ledger, "kept", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(-1.0, folder=tmp_path)
    monkeypatch.undo()
    run(-1.0, folder=tmp_path)
    assert CALLS == [2]


def test_what_cannot_be_computed_is_said(tmp_path: Path) -> None:
    entry = run(-9.0, folder=tmp_path)
    assert entry.verdict == "inconclusive"
    assert entry.error == "one: it diverges" and entry.record()["error"]
    assert "it diverges" in lines_of(entry)[-1]
    run(-9.0, folder=tmp_path)
    assert CALLS == [1]  # tried again


def test_workers_do_not_matter(tmp_path: Path) -> None:
    chosen = claims(["A5", "B3"])
    one = {x.claim.id: x for x in settle(chosen)}
    two = {x.claim.id: x for x in settle(chosen, workers=2)}
    for name, entry in one.items():
        assert entry.results == two[name].results
    with pytest.raises(InputError, match=r"^workers: "):
        list(settle(chosen, workers=0))


def test_ledgers_are_written_whole_and_merged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    write_ledger([run(-1.0)], path, {"numpy": "2"}, 0)
    (other,) = settle([claim(1.0, "T2")])
    write_ledger([other], path, {"numpy": "2"}, 0)
    found = json.loads(path.read_text())
    assert {x: y["verdict"] for x, y in found["quick"]["claims"].items()} == {
        "T1": "supported",
        "T2": "refuted",
    }
    assert changed([run(-1.0)], found) == []
    assert changed([run(1.0)], found) == [
        "T1, own: supported before, now refuted",
        "T1, beyond: refuted before, now supported",
    ]
    for wrong in ("{", "[1]", '{"quick": 1}'):
        path.write_text(wrong)
        with pytest.raises(InputError, match=r"^--out: "):
            write_ledger([other], path, {}, 0)
        assert path.read_text() == wrong


def test_the_committed_ledger_has_every_claim() -> None:
    quick = committed()["quick"]
    assert set(quick["claims"]) == set(IDS)
    assert quick["versions"]["numpy"] and quick["seed"] == 0
    for claim in claims():
        record = quick["claims"][claim.id]
        assert next(iter(record["regimes"])) == claim.regimes[0].name
        assert record["parts"].keys() == claim.parts(False, 0).keys()
        for regime in claim.regimes:
            conditions = record["regimes"].get(regime.name, {}).get("conditions")
            assert conditions is None or set(conditions) == {c.name for c in regime.conditions}


def test_the_readme_shows_the_ledger() -> None:
    assert markdown(committed()) in README.read_text(encoding="utf-8")
