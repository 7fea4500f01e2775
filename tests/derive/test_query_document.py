"""The printed derivation of the query model: complete, in each format, and its stability is derived."""

from pathlib import Path

import pytest
from sympy import Function, symbols

from derive.__main__ import main
from derive.query import alpha
from derive.query_document import field_slope, query_document


@pytest.mark.parametrize("form", ["latex", "text"])
def test_the_document_has_every_section(form: str) -> None:
    found = query_document(form)
    for words in (
        "Objective by symmetry",
        "race time",
        "Flow on the sphere",
        "Growth at the equator",
    ):
        assert words in found
    assert ("$$" in found) == (form == "latex")


def test_stability_of_an_example() -> None:
    """J = a alpha^2 + b alpha^4: the field's slope by hand."""
    a, b = symbols("a b")
    slope = field_slope().subs(Function("J")(alpha), a * alpha**2 + b * alpha**4).doit()
    assert slope.subs(alpha, 0) == 2 * a
    assert (slope.subs(alpha, 1) + 2 * (2 * a + 4 * b)).expand() == 0
    assert "rate at 1 = -2*J'(1)" in query_document("text")


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[query]\ninformative = 1\n")
    for name in ("query", str(path)):
        assert main([name, "--format", "text"]) == 0
        assert capsys.readouterr().out.strip() == query_document("text").strip()
    assert main(["query", "--format", "python"]) == 0
    assert "def growth_second_order" in capsys.readouterr().out
