"""The HTML report in a browser: formulas and figures are seen, and nothing is loaded or complained of."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest

from numeric.claims.ledger import Entry, settle
from numeric.claims.page import page, with_formulas
from numeric.claims.registry import claims
from numeric.style import number

CHROMIUM = next(
    (x for x in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if x), None
)
MEASURE = """<script>
const sizes = tag => Array.from(document.querySelectorAll(tag), x => {
  const box = x.getBoundingClientRect();
  return [box.width, box.height, tag == "img" ? x.naturalWidth : 1];
});
document.documentElement.setAttribute("data-found",
  JSON.stringify({math: sizes("math"), img: sizes("img"),
                  loaded: performance.getEntriesByType("resource").map(x => x.name.slice(0, 20)),
                  wide: document.body.scrollWidth
                  - document.documentElement.clientWidth}));
</script>"""


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    return sorted(settle(claims(["A5", "A11", "B1", "B3"])), key=lambda x: x.claim.id)


@pytest.fixture(scope="module")
def text(entries: list[Entry]) -> str:
    return page(entries, {"numpy": "2 <script>"}, 3)


def test_the_page_is_whole(text: str, entries: list[Entry]) -> None:
    class Balanced(HTMLParser):
        open: ClassVar[list[str]] = []

        def handle_starttag(self, tag: str, _: object) -> None:
            if tag not in ("meta", "img"):
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    assert "<script" not in text and "http" not in re.sub(r'xmlns="http[^"]*"', "", text)
    assert text.count("<img ") == len(entries)
    for entry in entries:
        assert f"headflow claims {entry.claim.id} --seed 3" in text
        for finding in entry.findings:
            for outcome in finding.outcomes:
                assert number(outcome.measured.value, ".5g") in text


def test_formulas_become_mathml() -> None:
    found = with_formulas(r"a < b, $\tau < 1$ & $\mathrm{Cov}\,\theta$")
    assert found.startswith("a &lt; b, <math") and found.count("</math>") == 2
    assert "&amp; <math" in found and "τ" in found.replace("&#x003C4;", "τ")


def test_every_formula_is_understood() -> None:
    for claim in claims():
        for text in (claim.statement, claim.method):
            found = with_formulas(text)
            assert "\\" not in re.sub(r"<annotation.*?</annotation>", "", found), claim.id


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_browser_shows_it(text: str, tmp_path: Path) -> None:
    shown = tmp_path / "report.html"
    shown.write_text(text.replace("</body>", MEASURE + "</body>"), encoding="utf-8")
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--host-resolver-rules=MAP * ~NOTFOUND",  # a request would fail, and be complained of
            "--virtual-time-budget=5000",
            "--dump-dom",
            shown.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = json.loads(
        re.search(r'data-found="(.*?)"', done.stdout).group(1).replace("&quot;", '"')  # type: ignore[union-attr]
    )
    assert len(found["math"]) == text.count("<math ") > 10
    assert len(found["img"]) == 4
    for width, height, drawn in found["math"] + found["img"]:
        assert width > 4 and height > 4 and drawn > 0
    assert all(width > 200 and height > 150 for width, height, _ in found["img"])
    assert found["wide"] <= 0  # nothing needs scrolling sideways
    assert "CONSOLE" not in done.stderr
    assert all(x.startswith("data:image/svg+xml") for x in found["loaded"])
