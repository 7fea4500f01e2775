"""A document in one of two forms: Markdown with LaTeX, or plain text."""

from collections.abc import Callable

from sympy import Expr, Symbol, latex, sstr

from derive.expansion import INVARIANTS
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


class Writer:
    """Collects a document in one of two forms."""

    def __init__(self, form: str) -> None:
        self.latex = form == "latex"
        self.lines: list[str] = []
        self._print: Callable[[Expr], str] = self._latex if self.latex else self._plain

    @staticmethod
    def _plain(expression: Expr) -> str:
        names = {
            x: Symbol(_TEXT_NAMES[str(x)]) for x in expression.free_symbols if str(x) in _TEXT_NAMES
        }
        return sstr(expression.xreplace(names))

    @staticmethod
    def _latex(expression: Expr) -> str:
        names = {
            x: _LATEX_NAMES[str(x)]
            for x in expression.free_symbols
            if isinstance(x, Symbol) and str(x) in _LATEX_NAMES
        }
        return latex(expression, symbol_names=names | {chi: r"\chi"})

    def title(self, text: str) -> None:
        self.lines += [f"# {text}", ""]

    def section(self, text: str) -> None:
        self.lines += [f"## {text}", ""]

    def line(self, text: str) -> None:
        self.lines += [text, ""]

    def raw(self, plain: str, formula: str) -> None:
        self.lines += ["$$" + formula + "$$" if self.latex else f"    {plain}", ""]

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
        return "\n".join(self.lines)
