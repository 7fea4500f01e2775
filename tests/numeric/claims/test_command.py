"""``headflow claims``: what it prints and writes, its exit codes, and what it refuses."""

import json
from pathlib import Path

import pytest

from numeric import claims_command
from numeric.claims.ledger import committed
from numeric.cli import main


def test_claims_are_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "claims"
    assert main(["claims", "b3", "A5", "--out", str(out), "--workers", "1"]) == 0
    text, err = capsys.readouterr()
    assert err == "" and "A5  supported" in text and "B3  supported" in text
    found = json.loads((out / "ledger.json").read_text())
    assert set(found["quick"]["claims"]) == {"A5", "B3"}
    assert found["quick"]["claims"]["A5"]["verdict"] == "supported"
    assert '<h2 id="A5">' in (out / "report.html").read_text(encoding="utf-8")
    # The second time everything is there.
    before = {x: x.stat().st_mtime_ns for x in (out / "parts").rglob("*.json")}
    assert before
    assert main(["claims", "A5", "--out", str(out), "--workers", "1"]) == 0
    assert {x: x.stat().st_mtime_ns for x in (out / "parts").rglob("*.json")} == before
    assert set(json.loads((out / "ledger.json").read_text())["quick"]["claims"]) == {"A5", "B3"}


def test_a_changed_verdict_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = committed()
    for record in other["quick"]["claims"]["B3"]["regimes"].values():
        record["verdict"] = "refuted"
    monkeypatch.setattr(claims_command, "committed", lambda: other)
    assert main(["claims", "B3", "--out", str(tmp_path), "--workers", "1"]) == 1
    assert "refuted before, now supported" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["A14"], "ID: found 'A14', expected one of A1"),
        (["A5", "--seed", "-1"], "--seed: found -1, expected a whole number >= 0"),
        (["A5", "--workers", "0"], "--workers: found 0, expected a whole number >= 1"),
    ],
)
def test_bad_input(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["claims", *arguments, "--out", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"headflow: error: {words}") and err.count("\n") == 1


@pytest.mark.parametrize("content", ["", "{", '{"quick": []}', "[]", '{"other": {"claims": {}}}'])
def test_no_other_file_is_overwritten(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(content)
    assert main(["claims", "B3", "--out", str(tmp_path)]) == 2
    assert "which is no ledger" in capsys.readouterr().err
    assert path.read_text() == content and not (tmp_path / "parts").exists()


def test_a_folder_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    assert main(["claims", "B3", "--out", str(path)]) == 2
    assert main(["claims", "B3", "--out", str(path / "below")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
