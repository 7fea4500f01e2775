"""Three forms of one document: LaTeX in Markdown, text, HTML with MathML; checks stand below formulas."""

import re
from html.parser import HTMLParser
from typing import ClassVar
from xml.etree import ElementTree

import pytest

from derive import ACTIVATIONS, expand_at_origin
from derive.document import document
from derive.inline import inline_latex
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
    alone = [x for x in formulas if 'display="block"' in x]
    latex = query_document() if name == "query" else document(ACTIVATIONS[name])
    assert len(alone) == latex.count("$$") // 2 > 10
    inline = re.sub(r"\$\$.*?\$\$", "", latex, flags=re.DOTALL)
    assert len(formulas) - len(alone) == inline.count("$") // 2 > 30
    prose = re.sub(r"\$.*?\$", "", inline) + re.sub(r"<math.*?</math>", "", text, flags=re.DOTALL)
    assert not re.search(r"`|\*|\^|[a-z]_|\b(theta|eps|nu|mu|chi|sigma|alpha|beta|sqrt)\b", prose)
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


def test_formulas_within_prose() -> None:
    for plain, latex in {
        "d -> inf": r"d \to  \infty",
        "k*_f": "k^*_{f}",
        "1{l = eps}": r"1_{\ell = \varepsilon}",
        "V_hh' = <sum_l c_hl c_h'l>": r"V_{hh'} = \langle \sum_{\ell} c_{h\ell} c_{h'\ell}\rangle",
        "m S m^T + r": r"m S m^{\mathsf T} + r",
        "sigma = d^(-1/2)": r"\sigma = d^{-1/2}",
        "sqrt(nu_f)": r"\sqrt{\nu_{f}}",
        "q.x_i": r"q\cdot x_{i}",
        "n_I = 3, theta = 1.2": r"n_{I} = 3, \theta = 1.2",
        "single": "single",
    }.items():
        assert inline_latex(plain) == latex
    texts = []
    for form in ("text", "latex", "html"):
        write = Writer(form)
        write.line("a < b where `nu_f < 1`")
        texts.append(write.text())
    assert texts[0] == "a < b where nu_f < 1\n"
    assert texts[1] == "a < b where $\\nu_{f} < 1$\n"
    assert "<p>a &lt; b where <math" in texts[2] and "<mo>&#x0003C;</mo>" in texts[2]
