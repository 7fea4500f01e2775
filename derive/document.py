"""A readable derivation: Markdown with LaTeX or HTML for people, plain text for terminals."""

from collections.abc import Mapping

from sympy import Expr, Symbol, collect, exp, expand, factor, latex, solve, sstr, together

from derive.attention import Attention
from derive.bayes import gaussian_log_weight
from derive.errors import DeriveError
from derive.expansion import (
    INVARIANTS,
    OriginExpansion,
    expand_at_origin,
    factored,
    first,
    share,
    taylor,
)
from derive.hessian import sector_eigenvalues
from derive.landau_document import write_landau
from derive.loss import ANY_WINS, RELEVANT_WINS, mean_slope, score_gradient, slope
from derive.loss import share as token_share
from derive.loss import value as head_value
from derive.single_head import owens_t, spike_loss, spike_minimum
from derive.stable import written_out
from derive.symbols import H, L, chi, nu_f, v
from derive.writer import Writer

FORMATS = ("latex", "text", "html")

_SECTORS = {
    "mean": "all heads alike, along feature f",
    "difference": "heads apart, along feature f",
    "residual_mean": "all heads alike, a residual direction",
    "residual_difference": "heads apart, a residual direction",
}

_NORMALIZED = {
    "none": "not normalized",
    "per-head": "normalized head by head",
    "pooled": "normalized over tokens and heads together",
}

u, u_prime = Symbol("u", real=True), Symbol("u'", real=True)


def document(
    attention: Attention,
    form: str = "latex",
    order: int = 4,
    checks: Mapping[str, str] | None = None,
) -> str:
    """Return the derivation of one activation.

    Parameters
    ----------
    attention : Attention
    form : {"latex", "text", "html"}
    order : {2, 4, 6}
        Of the loss's expansion at the origin.
    checks : dict of str, optional
        What is said of the numerical check of a formula, by its left side; see `derive.writer.Writer`.

    Returns
    -------
    str

    Raises
    ------
    DeriveError
        For another form or order, or if the weight's first two derivatives at the origin do not exist.
    """
    if form not in FORMATS:
        raise DeriveError(f"format: found {form!r}, expected one of {', '.join(FORMATS)}")
    write = Writer(form, checks)
    expansion = expand_at_origin(attention)
    _weights(write, attention)
    _loss(write, attention)
    _flow(write, attention)
    _expansion(write, attention, expansion)
    _noise_at_origin(write, attention, expansion)
    write_landau(write, attention, order)
    _hessian(write, expansion)
    _spike(write, attention)
    write.section("Bayes weight")
    write.line(
        "Of a position with feature coordinates `xi`, per principal axis of a Gaussian "
        "component with mean `mu_f` and variance `nu_f`:"
    )
    write.formula("log w(xi)", r"\log w(\xi)", gaussian_log_weight())
    return write.text()


def _weights(write: "Writer", attention: Attention) -> None:
    write.title(f"{attention.name} attention")
    reference = attention.reference.replace("`", "'")  # which would mark a formula
    source = f"Reference: {reference}. " if reference else ""
    write.line(f"{source}Weights are {_NORMALIZED[attention.normalization]}.")
    write.section("Task")
    write.line(
        "One of `L` tokens, the relevant one at a uniform position `eps`, carries a signal `theta` drawn "
        "from a prior along `F` orthonormal hidden directions `k*_f`; `z_l` is standard normal in `D` "
        "dimensions. A head `h` of `H` has a key `k_h` and scores the tokens; attention `a_l` predicts "
        "the relevant token."
    )
    write.raw(
        "x_l = z_l + 1{l = eps} sum_f theta_f k*_f,  chi_hl = k_h.x_l,  m_hf = k_h.k*_f,  "
        "r_hh' = (rho rho^T)_hh' = overlap of the keys' parts orthogonal to all k*_f",
        r"x_\ell = z_\ell + 1_{\ell = \varepsilon}\sum_f\theta_f k^*_f,\qquad \chi_{h\ell} = k_h\cdot "
        r"x_\ell,\qquad m_{hf} = k_h\cdot k^*_f,\qquad r = \rho\rho^{\mathsf T} = \left(k_h^\perp\cdot "
        r"k_{h'}^\perp\right)_{hh'}",
    )
    write.section("Attention weights")
    write.formula("w(chi, b)", r"w(\chi, b)", attention.weight)
    write.raw(*attention_formula(attention))
    if attention.normalization == "pooled":
        return
    write.formula("v_h", "v_h", attention.value)
    if "v" in attention.trained:
        write.line(
            "These are the values of a state that gives none; they are trained. Random initial keys come "
            "with values at rest, see the end of the section on the Hessian."
        )


def attention_formula(attention: Attention) -> tuple[str, str]:
    """Return the attention of a token in terms of the weights, as plain text and as LaTeX."""
    if not attention.normalized:
        return "a_l = sum_h v_h w_hl", r"a_\ell = \sum_h v_h w_{h\ell}"
    pooled = attention.normalization == "pooled"
    over, over_latex = "sum_l' w_hl'", r"\sum_{\ell'} w_{h\ell'}"
    if pooled:
        over, over_latex = "sum_h'l' w_h'l'", r"\sum_{h'\ell'} w_{h'\ell'}"
    if attention.background:
        over = f"({sstr(attention.background)} + {over})"
        over_latex = f"{latex(attention.background)} + {over_latex}"
    if pooled:
        plain, formula = "sum_h w_hl", rf"\frac{{\sum_h w_{{h\ell}}}}{{{over_latex}}}"
    else:
        plain, formula = "sum_h v_h w_hl", rf"\sum_h v_h\frac{{w_{{h\ell}}}}{{{over_latex}}}"
    return f"a_l = {plain} / {over}", rf"a_\ell = {formula}"


def _loss(write: "Writer", attention: Attention) -> None:
    write.section("Population loss")
    write.line(
        "As `D` grows the tokens become orthonormal, and the loss `E` is (`<.>` is an average)"
    )
    write.raw(
        "E = 1 - 2 A + B,  A = <a_eps>,  B = <sum_l a_l^2>",
        r"E = 1 - 2A + B,\qquad A = \langle a_\varepsilon\rangle,\qquad "
        r"B = \left\langle\sum_\ell a_\ell^2\right\rangle",
    )
    pooled = attention.normalization == "pooled"
    if not pooled:
        write.raw(
            "A = sum_h v_h A_h,  B = sum_hh' v_h v_h' B_hh'",
            r"A = \sum_h v_h A_h,\qquad B = \sum_{hh'} v_h v_{h'} B_{hh'}",
        )
    if not attention.normalized:
        write.line(
            "These are Gaussian moments of one token's weights, averages over any other token (0) and "
            "over the relevant one (1):"
        )
        write.raw(
            "A_h = E_1 w_h,  B_hh' = E_1 w_h w_h' + (L - 1) E_0 w_h w_h'",
            r"A_h = \mathbb E_1 w_h,\qquad B_{hh'} = \mathbb E_1 w_h w_{h'} + (L - 1)\,"
            r"\mathbb E_0 w_h w_{h'}",
        )
        return
    write.line(
        "Denominators become integrals over a race time `t = exp(-u)`, under which tokens are "
        "independent. With `g_i` the probability that a token has won by `u`, and `f_i` its win "
        "density (`i = 0`: any other token, `i = 1`: the relevant one), the integrands are"
    )
    one = exp(-attention.background * exp(-u))
    name = "" if pooled else "_h"
    write.formula(f"dA{name}/du", rf"\frac{{dA{name}}}{{du}}", one * RELEVANT_WINS)
    if pooled:
        write.formula("dB/du", r"\frac{dB}{du}", one * ANY_WINS)
        write.raw(
            "1 - g = E exp(-s), f = E s exp(-s) in A and f = E s^2 exp(-s) in B, "
            "s = sum_h w_h exp(-u)",
            r"1-g = \mathbb E\,e^{-s},\quad f = \mathbb E\,s e^{-s}\ \text{in}\ A,\quad "
            r"f = \mathbb E\,s^2 e^{-s}\ \text{in}\ B,\quad s = e^{-u}\sum_h w_h",
        )
        return
    both = exp(-attention.background * (exp(-u) + exp(-u_prime)))
    write.formula("d^2B_hh'/du du'", r"\frac{d^2B_{hh'}}{du\,du'}", both * ANY_WINS)
    write.raw(
        "in A: 1 - g = E exp(-s), f = E s exp(-s), s = w_h exp(-u); in B, for a pair of heads: "
        "1 - g = E exp(-s - s'), f = E s s' exp(-s - s'), s' = w_h' exp(-u')",
        r"A:\ 1-g = \mathbb E\,e^{-s},\ f = \mathbb E\,s e^{-s};\qquad "
        r"B:\ 1-g = \mathbb E\,e^{-s-s'},\ f = \mathbb E\,s s' e^{-s-s'};\qquad "
        r"s = e^{-u} w_h,\ s' = e^{-u'} w_{h'}",
    )


def _flow(write: "Writer", attention: Attention) -> None:
    write.section("Gradient and flow")
    write.line(
        "A token's scores have the law `N(m mu, m S m^T + r)`, `S = 1 + Sigma` for a component "
        "`(mu, Sigma)` of the prior, and `mu = 0`, `S = 1` for other tokens. The loss depends on "
        "averages over these laws; with `phi` and `Gamma` its derivatives in a law's mean and "
        "covariance, which are averages of first and half of second derivatives in the scores of what "
        "is averaged,"
    )
    write.raw(
        "dE/dm = sum over laws of 2 Gamma m S + phi mu^T,  dE/dr = sum of Gamma",
        r"\frac{\partial E}{\partial m} = \sum_{\text{laws}} 2\Gamma m S + \varphi\mu^{\mathsf T},"
        r"\qquad \frac{\partial E}{\partial r} = \sum_{\text{laws}}\Gamma",
    )
    if "b" in attention.trained:
        write.line("`dE/db` is the same sum with derivatives in the bias, under the averages.")
    if "v" in attention.trained:
        write.raw(
            "dE/dv_h = -2 A_h + 2 sum_h' v_h' B_hh'",
            r"\frac{\partial E}{\partial v_h} = -2A_h + 2\sum_{h'} v_{h'}B_{hh'}",
        )
    write.raw(
        "dm/dtau = -dE/dm,  dr/dtau = -2 (G r + r G) + kappa V,  drho/dtau = -2 G rho, "
        "G = dE/dr" + "".join(f",  d{x}/dtau = -dE/d{x}" for x in attention.trained),
        r"\dot m = -\partial_m E,\qquad \dot r = -2(Gr + rG) + \kappa V,\qquad "
        r"\dot\rho = -2G\rho,\qquad G = \frac{\partial E}{\partial r}"
        + "".join(rf",\qquad \dot {x} = -\partial_{x} E" for x in attention.trained),
    )
    noise = (
        "The noise matrix is `V_hh' = <sum_l c_hl c_h'l>` with `c_hl` the derivative of one sample's "
        "loss in `chi_hl`. "
    )
    if attention.normalized:
        over = "over all heads and tokens (`v = 1`)"
        if attention.normalization == "per-head":
            over = "over the tokens of head `h`"
        noise += (
            "In the share `p_hl = w_hl / Z` of the denominator `Z`, the slope `gamma_l` of the loss in "
            f"`a_l`, and its mean `gbar`, the sum of `p_hl gamma_l` {over}:"
        )
    else:
        noise += "In the slope `gamma_l` of the loss in `a_l`:"
    write.line(noise)
    write.formula(
        "d(loss)/d chi_hl",
        r"\frac{\partial\,\mathrm{loss}}{\partial\chi_{h\ell}}",
        score_gradient(attention)[0].subs(head_value, 1)
        if attention.normalization == "pooled"
        else score_gradient(attention)[0],
    )


def _expansion(write: "Writer", attention: Attention, expansion: OriginExpansion) -> None:
    write.section("Expansion at the origin")
    write.line(
        "To second order in `m` and `sqrt(r)`, for heads of equal bias and value: `E` is its value at "
        "the origin and the sum of coefficients times what they belong to, `[E]_x` times `x`. "
        "Averages are over heads and over pairs of heads."
    )
    write.raw(
        "mu = <theta>,  M = <theta theta^T>,  mbar = sum_h m_h / H,  mbar_mu = mbar.mu,  "
        "avg_mMm = sum_h m_h.M m_h / H,  avg_mm = sum_h |m_h|^2 / H,  avg_r = sum_h r_hh / H,  "
        "mbar_M_mbar = mbar.M mbar,  mbar_mbar = |mbar|^2,  rbar = sum_hh' r_hh' / H^2",
        r"\mu = \langle\theta\rangle,\quad M = \langle\theta\theta^{\mathsf T}\rangle,\quad "
        r"\bar m = \tfrac1H\sum_h m_h,\quad \langle x_h\rangle = \tfrac1H\sum_h x_h,\quad "
        r"\bar r = \tfrac1{H^2}\sum_{hh'} r_{hh'}",
    )
    if expansion.bias_functions:
        also = ""
        if first in expansion.bias_functions:
            also = ", and `w1`, `w2` the weight's derivatives in `chi`"
            also += ", relative to the weight," if attention.normalized else ""
        write.line(f"Here `a` is a token's share of a head{also} where the score is 0.")
    else:
        weights = "`w(0, b_h)`" if attention.normalization == "pooled" else "`v_h`"
        write.line(
            f"Heads that are not equal enter averages with weights proportional to {weights}."
        )
    for symbol, value in expansion.bias_functions.items():
        write.formula(str(symbol), latex(symbol), together(written_out(value)))
    write.formula(
        "E at 0", "E(0)", factor(expansion.in_invariants.subs(dict.fromkeys(INVARIANTS, 0)))
    )
    for invariant, name in INVARIANTS.items():
        coefficient = expansion.coefficient(invariant)
        if coefficient != 0:
            write.formula(f"coefficient of {invariant}", rf"\left[E\right]_{{{name}}}", coefficient)


def origin_noise(attention: Attention, expansion: OriginExpansion) -> Expr:
    """Return any entry of V at the origin: score gradients of equal heads are all the same there."""
    a, w1 = taylor(attention, 1)
    names = {x: y for y, x in expansion.bias_functions.items() if y in (share, first)}
    pooled = attention.normalization == "pooled"
    value = v if "v" in attention.trained else attention.value
    slopes = {kind: 2 * (expansion.attention - kind) for kind in (1, 0)}
    summed = names.get(a, a) * (H if pooled else 1) * (slopes[1] + (L - 1) * slopes[0])
    gradient = score_gradient(attention)[0].subs(chi, 0)
    if w1 in names:
        gradient = gradient / w1 * names[w1]
    known = {token_share: names.get(a, a), mean_slope: summed, head_value: 1 if pooled else value}
    relevant, other = (gradient.subs(known | {slope: slopes[kind]}) for kind in (1, 0))
    return factored(relevant**2 + (L - 1) * other**2)


def _noise_at_origin(write: "Writer", attention: Attention, expansion: OriginExpansion) -> None:
    write.line(
        "At the origin `gamma_l = 2 (a_l - 1{l = eps})`, and the derivative in `chi_hl` is the same for "
        "all heads of equal bias and value. So is the noise matrix for all `h` and `h'`: differences of "
        "heads feel no noise there at leading order."
    )
    write.formula("V_hh' at 0", r"V_{hh'}(0)", origin_noise(attention, expansion))


def _hessian(write: "Writer", expansion: OriginExpansion) -> None:
    write.section("Hessian at the origin")
    write.line(
        "Eigenvalues in `(m, rho)` for equal heads; `nu_f` is an eigenvalue of the prior's second "
        "moment `M`; “heads apart” has multiplicity `H - 1`. A displacement grows as "
        "`exp(-lambda tau)`."
    )
    eigenvalues = sector_eigenvalues(expansion)
    for name, eigenvalue in eigenvalues.items():
        sector = _SECTORS[name]
        write.formula(
            f"eigenvalue, {sector}", rf"\lambda\left[\text{{{sector}}}\right]", eigenvalue
        )
        if name in ("mean", "difference"):
            write.growth_rate(sector, eigenvalue)
    resting = solve(L * expansion.attention - 1, v)
    if resting:
        write.line(
            "What is trained beside the keys rests at the origin only where all tokens together have "
            "attention 1, that is for"
        )
        write.formula("v", "v", resting[0])
        for name in ("mean", "difference"):
            eigenvalue = expand(eigenvalues[name].subs(v, resting[0]))
            write.growth_rate(f"{_SECTORS[name]}, at rest", collect(eigenvalue, nu_f, factor))


def _spike(write: "Writer", attention: Attention) -> None:
    """Closed forms of one head on a fixed spike, where there are any."""
    try:
        loss = spike_loss(attention)
    except DeriveError:
        return
    write.section("One head on a fixed spike")
    write.line(
        "The signal is the number `sqrt(nu_f)`, so a score has the law `N(c, q)`, `q = m^2 + r`, with "
        "`c = m sqrt(nu_f)` for the relevant token (1) and `c = 0` for the others (0):"
    )
    write.formula("E w", r"\mathbb E\,w", loss.first)
    write.formula("E w^2", r"\mathbb E\,w^2", loss.second)
    if loss.second.has(owens_t):
        write.raw(
            "owens_t(h, a) = (1/(2 pi)) int_0^a exp(-h^2 (1 + x^2)/2) / (1 + x^2) dx",
            r"T(h, a) = \frac1{2\pi}\int_0^a\frac{e^{-h^2(1 + x^2)/2}}{1 + x^2}\,dx",
        )
    write.raw(
        "E = 1 - 2 v A + v^2 B,  A = E_1 w,  B = E_1 w^2 + (L - 1) E_0 w^2",
        r"E = 1 - 2vA + v^2B,\qquad A = \mathbb E_1 w,\qquad B = \mathbb E_1 w^2 + (L - 1)\,"
        r"\mathbb E_0 w^2",
    )
    write.line("The best `v` is `A/B`; it leaves")
    write.raw("E = 1 - A^2/B", r"E = 1 - \frac{A^2}{B}")
    try:
        minimum = spike_minimum(attention)
    except DeriveError:
        return
    write.line("The global minimum is at `r = 0` and")
    write.formula("m_min", r"m_{\min}", minimum.m)
    write.formula("v_min", r"v_{\min}", minimum.v)
    write.formula("E_min", r"E_{\min}", minimum.risk)
    write.line("since the excess is a sum of squares (`A` and `B` at `r = 0`):")
    write.formula("E - E_min", r"E - E_{\min}", minimum.excess)
