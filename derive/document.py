"""A readable derivation: Markdown with LaTeX for people, plain text for terminals."""

from collections.abc import Callable

from sympy import Expr, Symbol, latex, sstr

from derive.attention import Attention
from derive.bayes import gaussian_log_weight
from derive.errors import DeriveError
from derive.expansion import INVARIANTS, expand_at_origin
from derive.hessian import sector_eigenvalues
from derive.loss import ANY_WINS, RELEVANT_WINS, score_gradient
from derive.symbols import chi

FORMATS = ("latex", "text", "python")

_LATEX_NAMES = {
    "p_hl": "p_{h\\ell}",
    "g_l": "\\gamma_\\ell",
    "gbar_h": "\\bar\\gamma",
    "v_h": "v_h",
    "nu_f": "\\nu_f",
    "mu_f": "\\mu_f",
} | {str(symbol): text for symbol, text in INVARIANTS.items()}

_TEXT_NAMES = {"g_l": "gamma_l", "gbar_h": "gbar"}

_SECTORS = {
    "mean": "all heads alike, along feature f",
    "difference": "heads apart, along feature f",
    "residual_mean": "all heads alike, a residual direction",
    "residual_difference": "heads apart, a residual direction",
}


def document(attention: Attention, form: str = "latex") -> str:
    """Return the derivation of one activation.

    Parameters
    ----------
    attention : Attention
    form : {"latex", "text"}

    Returns
    -------
    str
    """
    if form not in FORMATS[:2]:
        raise DeriveError(f"format: found {form!r}, expected one of {', '.join(FORMATS[:2])}")
    write = _Writer(form)
    pooled = attention.normalization == "pooled"
    expansion = expand_at_origin(attention)
    write.title(f"{attention.name} attention")
    write.line(
        f"Reference: {attention.reference}. Weights are normalized "
        + ("over tokens and heads together." if pooled else "head by head, then averaged.")
    )

    write.section("Attention weights")
    write.formula("log w(chi, b)", r"\log w(\chi, b)", attention.log_weight)
    if pooled:
        write.raw(
            "a_l = sum_h w_hl / sum_h'l' w_h'l'",
            r"a_\ell = \frac{\sum_h w_{h\ell}}{\sum_{h'\ell'} w_{h'\ell'}}",
        )
    else:
        write.raw(
            "a_l = (1/H) sum_h w_hl / sum_l' w_hl'",
            r"a_\ell = \frac1H\sum_h \frac{w_{h\ell}}{\sum_{\ell'} w_{h\ell'}}",
        )

    write.section("Population loss")
    write.line("As D grows the tokens become orthonormal, and the loss is")
    write.raw(
        "E = 1 - 2 A + B,  A = E a_eps,  B = E sum_l a_l^2",
        r"E = 1 - 2A + B,\qquad A = \mathbb E\,a_\varepsilon,\qquad "
        r"B = \mathbb E\sum_\ell a_\ell^2",
    )
    write.line(
        "Denominators become integrals over a race time t = exp(-u), under which tokens are "
        "independent. With g the probability that a token has won by u, and f its win "
        "density (index 0: any other token, 1: the relevant one), the integrands of A and B are"
    )
    write.formula("dA/du", r"\frac{dA}{du}", RELEVANT_WINS)
    write.formula(
        "dB/du" if pooled else "d^2B/du dv",
        r"\frac{dB}{du}" if pooled else r"\frac{d^2B}{du\,dv}",
        ANY_WINS,
    )
    if pooled:
        write.raw(
            "1 - g = E exp(-s), f = E s exp(-s) in A and f = E s^2 exp(-s) in B, "
            "s = sum_h w_h exp(-u)",
            r"1-g = \mathbb E\,e^{-s},\quad f = \mathbb E\,s e^{-s}\ \text{in}\ A,\quad "
            r"f = \mathbb E\,s^2 e^{-s}\ \text{in}\ B,\quad s = e^{-u}\sum_h w_h",
        )
    else:
        write.raw(
            "in A: 1 - g = E exp(-s), f = E s exp(-s), s = w_h exp(-u); in B, for a pair of heads: "
            "1 - g = E exp(-s - s'), f = E s s' exp(-s - s'), s' = w_h' exp(-v)",
            r"A:\ 1-g = \mathbb E\,e^{-s},\ f = \mathbb E\,s e^{-s};\qquad "
            r"B:\ 1-g = \mathbb E\,e^{-s-s'},\ f = \mathbb E\,s s' e^{-s-s'};\qquad "
            r"s = e^{-u} w_h,\ s' = e^{-v} w_{h'}",
        )
        write.line("A is the average of these integrals over heads, B over all pairs of heads.")
        write.raw(
            "A = (1/H) sum_h A_h,  B = (1/H^2) sum_hh' B_hh'",
            r"A = \frac1H\sum_h A_h,\qquad B = \frac1{H^2}\sum_{hh'} B_{hh'}",
        )

    write.section("Gradient and flow")
    write.line(
        "For any function of a token's scores with law N(m mu, m S m^T + r), S = 1 + Sigma "
        "for a component (mu, Sigma) of the prior and mu = 0, S = 1 for other tokens:"
    )
    write.raw(
        "dE/dm = sum over laws of 2 Gamma m S + g mu^T,  dE/dr = sum of Gamma,  "
        "g = E grad, Gamma = E hess / 2",
        r"\frac{\partial E}{\partial m} = \sum_{\text{laws}} 2\Gamma m S + g\mu^{\mathsf T},"
        r"\qquad \frac{\partial E}{\partial r} = \sum_{\text{laws}}\Gamma,\qquad "
        r"g = \mathbb E\nabla,\quad \Gamma = \tfrac12\mathbb E\nabla\nabla",
    )
    write.raw(
        "dm/dtau = -dE/dm,  dr/dtau = -2 (G r + r G) + kappa V,  drho/dtau = -2 G rho, "
        "G = dE/dr" + (",  db/dtau = -dE/db" if attention.trained else ""),
        r"\dot m = -\partial_m E,\qquad \dot r = -2(Gr + rG) + \kappa V,\qquad "
        r"\dot\rho = -2G\rho" + (r",\qquad \dot b = -\partial_b E" if attention.trained else ""),
    )
    write.line(
        "The noise matrix is V_hh' = E sum_l c_hl c_h'l with c = d(loss of one sample)/d chi. In "
        "the share p_hl = w_hl / Z, the slope gamma_l = d(loss)/da_l and its mean gbar = sum of "
        + (
            "p gamma over all heads and tokens (v = 1):"
            if pooled
            else "p_hl gamma_l over the tokens of head h (v = 1/H):"
        )
    )
    write.formula(
        "d(loss)/d chi_hl",
        r"\frac{\partial\,\mathrm{loss}}{\partial\chi_{h\ell}}",
        score_gradient(attention)[0],
    )

    write.section("Expansion at the origin")
    write.line(
        "To second order in (m, sqrt r); averages over heads"
        + (" carry the weights softmax(b)." if pooled else ".")
    )
    write.formula("E at 0", "E(0)", expansion.in_invariants.subs(dict.fromkeys(INVARIANTS, 0)))
    for invariant in INVARIANTS:
        coefficient = expansion.coefficient(invariant)
        if coefficient != 0:
            write.formula(
                f"coefficient of {invariant}",
                rf"\left[E\right]_{{{INVARIANTS[invariant]}}}",
                coefficient,
            )

    write.section("Hessian at the origin")
    write.line(
        "Eigenvalues in (m, rho) for equal head weights; nu_f is an eigenvalue of the "
        "prior's second moment; heads apart has multiplicity H - 1. A displacement grows as "
        "exp(-eigenvalue tau)."
    )
    for name, eigenvalue in sector_eigenvalues(expansion).items():
        sector = _SECTORS[name]
        write.formula(
            f"eigenvalue, {sector}", rf"\lambda\left[\text{{{sector}}}\right]", eigenvalue
        )
        if name in ("mean", "difference"):
            write.formula(
                f"growth rate, {sector}",
                rf"\text{{growth rate}}\left[\text{{{sector}}}\right]",
                -eigenvalue,
            )

    write.section("Bayes weight")
    write.line(
        "Of a position with feature coordinates xi, per principal axis of a Gaussian "
        "component with mean mu_f and variance nu_f:"
    )
    write.formula("log w(xi)", r"\log w(\xi)", gaussian_log_weight())
    return write.text()


class _Writer:
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
        self.raw(f"{plain} = {self._print(right)}", f"{left} = {self._print(right)}")

    def text(self) -> str:
        return "\n".join(self.lines)
