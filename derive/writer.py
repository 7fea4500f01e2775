"""A document in one of three forms: Markdown with LaTeX, plain text, or HTML with MathML."""

from collections.abc import Callable, Mapping
from html import escape
from string import Template

from latex2mathml.converter import convert
from sympy import Expr, Symbol, latex, sstr

from derive.expansion import INVARIANTS
from derive.inline import inline_latex, typeset
from derive.stable import written_out
from derive.symbols import chi

_LATEX_NAMES = {
    "p_hl": "p_{h\\ell}",
    "g_l": "\\gamma_\\ell",
    "gbar_h": "\\bar\\gamma",
    "v_h": "v_h",
    "nu_f": "\\nu_f",
    "mu_f": "\\mu_f",
    "mean": "c",
} | {str(symbol): text for symbol, text in INVARIANTS.items()}

_TEXT_NAMES = {"g_l": "gamma_l", "gbar_h": "gbar", "mean": "c"}


PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 56rem; margin: 2rem auto;
       padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-top: 1px solid #ccc; padding-top: 1rem; }
math { font-size: 1.1em; }
.formula { overflow-x: auto; overflow-y: hidden; padding: 0.4rem 0; }
.check { color: #00614a; font-size: 0.92rem; margin: 0 0 1rem 2rem; }
</style>
</head>
<body>
$body
</body>
</html>
""")


class Writer:
    """Collects a document in one of three forms.

    Parameters
    ----------
    form : {"latex", "text", "html"}
        Markdown with LaTeX, plain text, or HTML with MathML.
    checks : dict of str, optional
        What is said of the check of a formula, by its left side in plain text; it is written below the
        first formula of this name. What is said of all of them is under the empty name.
    """

    def __init__(self, form: str, checks: Mapping[str, str] | None = None) -> None:
        self.form = form
        self.lines: list[str] = []
        self._name = ""
        self._checks = dict(checks or {})
        self._print: Callable[[Expr], str] = self._plain if form == "text" else self._latex

    @staticmethod
    def _plain(expression: Expr) -> str:
        names = {
            x: Symbol(_TEXT_NAMES[str(x)]) for x in expression.free_symbols if str(x) in _TEXT_NAMES
        }
        return sstr(expression.xreplace(names))

    @staticmethod
    def _latex(expression: Expr) -> str:
        return formula_text(expression)

    def title(self, text: str) -> None:
        self._name = text
        self._write(f"# {text}", f"<h1>{escape(text)}</h1>")
        if "" in self._checks:
            self.line(self._checks.pop(""))

    def section(self, text: str) -> None:
        self._write(f"## {text}", f"<h2>{escape(text)}</h2>")

    def line(self, text: str) -> None:
        """Write prose, in which formulas are marked by backticks; see `derive.inline`."""
        self._paragraph(text, "<p>")

    def _paragraph(self, text: str, tag: str) -> None:
        if self.form == "html":
            body = typeset(text, lambda x: convert(inline_latex(x)), escape)
            self.lines.append(f"{tag}{body}</p>")
        elif self.form == "latex":
            self.lines += [typeset(text, lambda x: f"${inline_latex(x)}$"), ""]
        else:
            self.lines += [typeset(text, str), ""]

    def raw(self, plain: str, formula: str) -> None:
        if self.form == "html":
            self.lines.append(f'<div class="formula">{convert(formula, display="block")}</div>')
        else:
            self.lines += [f"    {plain}" if self.form == "text" else f"$${formula}$$", ""]
        self.check(plain.partition(" = ")[0])

    def check(self, name: str) -> None:
        """Write what is said of the check of this name, once."""
        words = self._checks.pop(name, None)
        if words is not None:
            self._paragraph(f"Check: {words}", '<p class="check">')

    def formula(self, plain: str, left: str, right: Expr) -> None:
        text = self._print(written_out(right))
        self.raw(f"{plain} = {text}", f"{left} = {text}")

    def growth_rate(self, sector: str, eigenvalue: Expr) -> None:
        self.formula(
            f"growth rate, {sector}",
            rf"\text{{growth rate}}\left[\text{{{sector}}}\right]",
            -eigenvalue,
        )

    def text(self) -> str:
        body = "\n".join(self.lines)
        return PAGE.substitute(title=escape(self._name), body=body) if self.form == "html" else body

    def _write(self, plain: str, page: str) -> None:
        self.lines += [page] if self.form == "html" else [plain, ""]


def formula_text(expression: Expr) -> str:
    """Return an expression as LaTeX, with the field's names."""
    names = {
        x: _LATEX_NAMES[str(x)]
        for x in expression.free_symbols
        if isinstance(x, Symbol) and str(x) in _LATEX_NAMES
    }
    return latex(expression, symbol_names=names | {chi: r"\chi"})
