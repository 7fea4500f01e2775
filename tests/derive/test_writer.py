"""Three forms of one document: LaTeX in Markdown, text, HTML with MathML; checks stand below formulas."""

import re
from html.parser import HTMLParser
from typing import ClassVar
from xml.etree import ElementTree

import pytest

from derive import ACTIVATIONS, expand_at_origin
from derive.document import document
from derive.query_document import query_document
from derive.symbols import chi
from derive.writer import Writer


class Balanced(HTMLParser):
    open: ClassVar[list[str]] = []

    def handle_starttag(self, tag: str, _: object) -> None:
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page(name: str) -> str:
    return query_document("html") if name == "query" else document(ACTIVATIONS[name], "html")


@pytest.mark.parametrize("name", [*ACTIVATIONS, "query"])
def test_pages_are_whole_and_every_formula_is_mathml(name: str) -> None:
    text = page(name)
    parser = Balanced()
    parser.feed(text)
    assert not parser.open and "<script" not in text
    assert "http" not in re.sub(r'xmlns="http[^"]*"', "", text)
    formulas = re.findall(r"<math.*?</math>", text, re.DOTALL)
    latex = query_document() if name == "query" else document(ACTIVATIONS[name])
    assert len(formulas) == latex.count("$$") // 2 > 10
    for formula in formulas:
        words = "".join(ElementTree.fromstring(formula).itertext())
        assert words and "\\" not in words  # no command is left as it was


def test_checks_stand_below_the_first_formula_of_their_name() -> None:
    for form, below in (("text", "\n\nCheck: it agrees"), ("latex", "\n\nCheck: it agrees")):
        write = Writer(form, {"x": "it agrees", "": "at L = 4", "y": "never"})
        write.title("Title")
        write.formula("x", "x", chi)
        write.formula("x", "x", 2 * chi)
        text = write.text()
        assert text.count("Check:") == 1 and f"{below}" in text
        assert text.startswith("# Title\n\nat L = 4\n")
        assert text.index("Check") < text.index("2")
    write = Writer("html", {"x": "a < b"})
    write.title("x < y")
    write.raw("x = 1, y = 2", "x = 1")
    assert '<p class="check">Check: a &lt; b</p>' in write.text()
    assert "<title>x &lt; y</title>" in write.text()


def test_definitions_and_expansions_show_as_formulas() -> None:
    assert ACTIVATIONS["softmax"]._repr_latex_() == (
        r"$\displaystyle w(\chi, b) = e^{\chi},\qquad "
        r"a_\ell = \sum_h v_h\frac{w_{h\ell}}{\sum_{\ell'} w_{h\ell'}}$"
    )
    formula = expand_at_origin(ACTIVATIONS["b-softmax"])._repr_latex_()
    assert formula.startswith(r"$\displaystyle E = \frac{L - 1}{L} + ")
    assert formula.count(r"\left(") == formula.count(r"\right)")
