"""Second-order expansion of the population loss at the origin, with symbolic L and H.

At ``m = 0, r = 0`` all scores vanish, and a head gives every token the same share ``a = w / Z`` of its
attention (``a = w`` where nothing is normalized). Tokens are independent, and only the relevant one has
a mean score, so to second order in (m, sqrt r) the loss is a sum over tokens that fluctuate one at a
time. If a token's weight moves by delta in units of Z, shares become (n = 1 if weights are normalized,
else 0)

    its own      (a + delta) / (1 + n delta)
    any other    a / (1 + n delta)

so that the loss is linear in the moments ``E delta_h`` and ``E delta_h delta_h'`` of the relevant token
(1) and of the others (0):

    E = E0 + sum_h v_h (linear E delta_h + own E delta_h^2) + sum_hh' v_h v_h' pair E delta_h delta_h'

Pooled weights are the same for one head whose weight is the sum over heads. In the scores, ``delta = a
(w1 chi + w2 chi^2 / 2)`` with the weight's derivatives relative to itself (absolute ones without the
factor a where nothing is normalized), and ``E chi_h = m_h.mu``, ``E chi_h chi_h' = m_h^T (1 + M) m_h' +
r_hh'`` for the relevant token, the same without mu and M for the others.
"""

from dataclasses import dataclass

from sympy import (
    Dummy,
    Expr,
    Function,
    Integer,
    Rational,
    Symbol,
    diff,
    expand,
    factor,
    log,
    sqrt,
    together,
)

from derive.attention import Attention
from derive.errors import DeriveError
from derive.spec import Argument, Kernel, Output
from derive.stable import expit, written_out
from derive.symbols import H, L, b, chi, v

REFERENCE = "`derive.task` section 5 (for softmax arXiv 2603.03993, Lemma III.1)"
# A score next to zero, where a function with a Taylor expansion has the same value.
PROBE = Rational(1, 10**20)

share, share_prime = Symbol("a", real=True), Symbol("a'", real=True)
attended = Symbol("S", real=True)
normalized = Symbol("n", real=True)
delta, delta_prime = Symbol("delta", real=True), Symbol("delta'", real=True)
first, second = Symbol("w1", real=True), Symbol("w2", real=True)

# Averages of the order parameters over heads and pairs of heads.
alignment = Symbol("mbar_mu", real=True)
head_signal, head_norm, head_residual = (
    Symbol(name, real=True) for name in ("avg_mMm", "avg_mm", "avg_r")
)
pair_signal, pair_norm, pair_residual = (
    Symbol(name, real=True) for name in ("mbar_M_mbar", "mbar_mbar", "rbar")
)
INVARIANTS = {
    alignment: r"\bar m\cdot\mu",
    head_signal: r"\langle m_h^{\mathsf T} M m_h\rangle",
    head_norm: r"\langle |m_h|^2\rangle",
    head_residual: r"\langle r_{hh}\rangle",
    pair_signal: r"\bar m^{\mathsf T} M\bar m",
    pair_norm: r"|\bar m|^2",
    pair_residual: r"\bar r",
}


@dataclass(frozen=True)
class OriginExpansion:
    """The expansion of ``E`` at the origin to second order, for heads of equal b and v.

    Attributes
    ----------
    in_invariants : sympy.Expr
        In `INVARIANTS` of the order parameters, symbolic L and H, and in `share`, `first` and
        `second` as far as these depend on the bias.
    attention : sympy.Expr
        Every token's attention at the origin. Trained biases and values rest there if it is 1/L, for
        which `loss_at_origin` is least.
    bias_functions : dict
        What `share`, `first` and `second` stand for.
    """

    in_invariants: Expr
    attention: Expr
    bias_functions: dict[Symbol, Expr]

    def coefficient(self, invariant: Symbol) -> Expr:
        """Return the factored coefficient of one invariant."""
        return factored(self.in_invariants.coeff(invariant))

    def _repr_latex_(self) -> str:
        from derive.writer import formula_text  # the writer needs the invariants

        start = factor(self.in_invariants.subs(dict.fromkeys(INVARIANTS, 0)))
        terms = {name: self.coefficient(x) for x, name in INVARIANTS.items()}
        parts = [formula_text(start)] + [
            rf"\left({formula_text(x)}\right){name}" for name, x in terms.items() if x != 0
        ]
        return rf"$\displaystyle E = {' + '.join(parts)}$"


@dataclass(frozen=True)
class TokenCoefficients:
    """What the loss gains from the fluctuations of one kind of token."""

    linear: Expr
    own: Expr
    pair: Expr


def factored(expression: Expr) -> Expr:
    """Factor an expression; numbers such as exp(-9800) are left as they are, whatever they equal."""
    numbers = sorted(
        (x for x in expression.atoms(Function) if x.is_number and not x.is_Rational), key=str
    )
    names = {x: Dummy() for x in numbers}
    return factor(expression.xreplace(names)).xreplace({y: x for x, y in names.items()})


def token_coefficients(relevant: bool) -> TokenCoefficients:
    """Derive the loss's coefficients in the moments of one kind of token.

    They are functions of `share`, `share_prime` (of a second head), `attended` (every token's attention
    at the origin), `normalized` and L.
    """

    def change(a: Symbol, x: Symbol, moves: bool) -> Expr:
        return (a + (x if moves else 0)) / (1 + normalized * x) - a

    moved, still = (
        attended + change(share, delta, moves) + change(share_prime, delta_prime, moves)
        for moves in (True, False)
    )
    if relevant:
        loss = (1 - moved) ** 2 + (L - 1) * still**2
    else:
        loss = (L - 1) * ((1 - still) ** 2 + moved**2 + (L - 2) * still**2)

    def at_origin(*variables: Symbol) -> Expr:
        return diff(loss, *variables).subs({delta: 0, delta_prime: 0})

    pair = factor(at_origin(delta, delta_prime) / 2)
    own = factor(at_origin(delta, delta) / 2 - pair.subs(share_prime, share))
    return TokenCoefficients(factor(at_origin(delta)), own, pair)


def loss_at_origin() -> Expr:
    """Return the loss of the same attention for every token."""
    return (1 - attended) ** 2 + (L - 1) * attended**2


def expansion_kernels() -> tuple[Kernel, ...]:
    """Return the loss at the origin and what fluctuations add to it as kernels."""
    relevant, other = token_coefficients(True), token_coefficients(False)
    shares = (
        Argument("share", share, "a token's share of a head at the origin"),
        Argument("share_prime", share_prime, "the same of another head"),
    )
    known = (
        Argument("normalized", normalized, "1 if weights are normalized, else 0"),
        Argument("L", L, "number of tokens"),
    )
    total = Argument("attention", attended, "every token's attention at the origin, sum of v share")
    return (
        Kernel(
            "origin_share",
            "Loss at the origin, and what one head's fluctuations add to it, per unit of its value.",
            (shares[0], total, *known),
            (
                Output("value", loss_at_origin(), "loss at the origin"),
                Output("linear_1", relevant.linear, "coefficient of E delta of the relevant token"),
                Output("own_1", relevant.own, "coefficient of E delta^2 of the relevant token"),
                Output("linear_0", other.linear, "coefficient of E delta of the others"),
                Output("own_0", other.own, "coefficient of E delta^2 of the others"),
            ),
            REFERENCE,
        ),
        Kernel(
            "origin_pair",
            "What fluctuations in a pair of heads add to the loss, per unit of both values.",
            (*shares, *known),
            (
                Output(
                    "pair_1", relevant.pair, "coefficient of E delta delta' of the relevant token"
                ),
                Output("pair_0", other.pair, "coefficient of E delta delta' of the others"),
            ),
            REFERENCE,
        ),
    )


def expand_at_origin(attention: Attention) -> OriginExpansion:
    """Derive the second-order expansion of the population loss at ``m = 0, r = 0``.

    Parameters
    ----------
    attention : Attention

    Returns
    -------
    OriginExpansion

    Raises
    ------
    DeriveError
        If the weight's first two derivatives at ``chi = 0`` do not exist.
    """
    values = dict(zip((share, first, second), taylor(attention, 2), strict=True))
    symbols = {x: x if value.has(b) else value for x, value in values.items()}
    a, w1, w2 = symbols.values()
    pooled = attention.normalization == "pooled"
    value = v if "v" in attention.trained else attention.value
    race = a * H if pooled else a
    at = {
        share: race,
        share_prime: race,
        attended: H * value * a,
        normalized: Integer(attention.normalized),
    }
    scale = a if attention.normalized else Integer(1)
    relevant = (
        alignment,
        head_signal + head_norm + head_residual,
        pair_signal + pair_norm + pair_residual,
    )
    other = (Integer(0), head_norm + head_residual, pair_norm + pair_residual)
    loss = loss_at_origin().xreplace(at)
    for kind, (mean, heads, pairs) in ((True, relevant), (False, other)):
        token = token_coefficients(kind)
        fluctuation = H * scale * (w1 * mean + w2 * heads / 2)
        squares = H**2 * pairs if pooled else H * heads
        loss += value * token.linear.xreplace(at) * fluctuation
        loss += (scale * w1) ** 2 * (
            value * token.own.xreplace(at) * squares
            + (value * H) ** 2 * token.pair.xreplace(at) * pairs
        )
    kept = {x: y for x, y in values.items() if symbols[x] == x}
    return OriginExpansion(expand(loss), at[attended], kept)


def taylor(attention: Attention, order: int) -> tuple[Expr, ...]:
    """Return a token's share at the origin, and the weight's derivatives in chi up to an order.

    Without normalization the share is the weight itself; else derivatives are relative to the weight.

    Raises
    ------
    DeriveError
        If they do not exist.
    """
    weight = attention.log_weight if attention.normalized else attention.weight
    functions = (weight, *attention.derivatives(order)[:order])
    if not all(map(_is_continuous, functions)):
        known = f"{attention.name}: the weight has no Taylor expansion at chi = 0"
        vanishes = attention.normalized and attention.weight.subs(chi, 0) == 0
        raise DeriveError(
            known + (": it is 0 there, and so is what it is divided by" if vanishes else "")
        )
    value, *derivatives = (f.subs(chi, 0) for f in functions)
    if attention.normalized:
        rivals = L * H if attention.normalization == "pooled" else L
        background = attention.background
        # The logistic function does not overflow, whatever the bias is.
        value = (expit(value + log(rivals / background)) if background else Integer(1)) / rivals
        value = value if value.has(b) else together(written_out(value))
    return value, *derivatives


def _is_continuous(function: Expr) -> bool:
    """Whether a function of chi has a value at 0, the same from both sides."""
    function = written_out(function).subs(b, Rational(1, 3))
    at, *beside = (function.subs(chi, x).n(30, chop=True) for x in (0, PROBE, -PROBE))
    return at.is_comparable and all(abs(x - at) <= sqrt(PROBE) * (1 + abs(at)) for x in beside)
