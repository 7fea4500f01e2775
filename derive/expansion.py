"""Second-order expansion of the population loss at the origin, with symbolic L and H.

Scores are scaled, ``chi -> eps chi``. To second order in eps a token enters through few moments of
its scores, averaged over heads with weights p_h (1/H, or softmax(b) when weights are pooled):

    relevant token   <E chi_h>, <E chi_h^2>, <<E chi_h chi_h'>>
    other tokens                <E chi_h^2>, <<E chi_h chi_h'>>

so head sums never have to be written out. The race integrals become ``int t^k e^{-L t} dt =
k! / L^(k+1)``, which keeps L symbolic. The moments are then written in (m, r) and the prior's mean and
second moment: ``E chi_h = m_h.mu``, ``E chi_h chi_h' = m_h^T (1 + M) m_h' + r_hh'`` for the relevant
token and the same without M for the others.
"""

from dataclasses import dataclass

from sympy import (
    DiracDelta,
    Expr,
    Integer,
    Poly,
    Symbol,
    diff,
    exp,
    expand,
    factor,
    factorial,
    simplify,
)

from derive.attention import Attention
from derive.errors import DeriveError
from derive.symbols import L, chi, t, t_prime

eps = Symbol("eps", positive=True)
w, w_prime = Symbol("w", positive=True), Symbol("w'", positive=True)

# Head averages of the relevant token's (1) and the other tokens' (0) score moments.
mean_1 = Symbol("a_1", real=True)
head_1, head_0 = Symbol("c_1", real=True), Symbol("c_0", real=True)
pair_1, pair_0 = Symbol("cc_1", real=True), Symbol("cc_0", real=True)

# Head averages of the order parameters: invariants of relabelling heads.
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
    """The expansion of ``E`` at the origin to second order.

    Attributes
    ----------
    in_moments : sympy.Expr
        In head averages of score moments.
    in_invariants : sympy.Expr
        In `INVARIANTS` of the order parameters, symbolic L.
    """

    in_moments: Expr
    in_invariants: Expr

    def coefficient(self, invariant: Symbol) -> Expr:
        """Return the factored coefficient of one invariant."""
        return factor(self.in_invariants.coeff(invariant))


def expand_at_origin(attention: Attention) -> OriginExpansion:
    """Derive the second-order expansion of the population loss at ``m = 0, r = 0``.

    Parameters
    ----------
    attention : Attention
        Its log weight's first two derivatives at ``chi = 0`` must not depend on the bias.

    Returns
    -------
    OriginExpansion
    """
    pooled = attention.normalization == "pooled"
    first, second = _weight_moments(attention)

    def token(f: Expr, mean: Expr, head: Expr, pair: Expr) -> Expr:
        """Mean of f(w) over a token whose weight fluctuates about 1, times e^t."""
        square = pair if pooled else head
        return (
            _at_one(f)
            + eps * first * mean * _at_one(f, w)
            + eps**2 * (second * head * _at_one(f, w) + first**2 * square * _at_one(f, w, w) / 2)
        )

    def token_pair(f: Expr, mean: Expr, head: Expr, pair: Expr) -> Expr:
        """The same for f(w, w') of one token's weights in two heads."""
        both = _at_one(f, w) + _at_one(f, w_prime)
        curvature = _at_one(f, w, w) + _at_one(f, w_prime, w_prime)
        return (
            _at_one(f)
            + eps * first * mean * both
            + eps**2
            * (
                second * head * both
                + first**2 * (head * curvature / 2 + pair * _at_one(f, w, w_prime))
            )
        )

    relevant, other = (mean_1, head_1, pair_1), (Integer(0), head_0, pair_0)
    survives, wins = exp(-t * w), w * exp(-t * w)
    a = token(wins, *relevant) * _power(token(survives, *other), L - 1)
    loss = 1 - 2 * _integrate(a, (t,))
    times: tuple[Symbol, ...] = (t,) if pooled else (t, t_prime)
    if pooled:
        average, measure = token, t
        lost, won = survives, w * wins
    else:
        average, measure = token_pair, Integer(1)
        lost = survives * exp(-t_prime * w_prime)
        won = wins * w_prime * exp(-t_prime * w_prime)
    null = average(lost, *other)
    loss += _integrate(measure * average(won, *relevant) * _power(null, L - 1), times)
    loss += (L - 1) * _integrate(
        measure * average(won, *other) * average(lost, *relevant) * _power(null, L - 2), times
    )
    in_moments = _truncate(loss)
    invariants = {
        mean_1: alignment,
        head_1: head_signal + head_norm + head_residual,
        head_0: head_norm + head_residual,
        pair_1: pair_signal + pair_norm + pair_residual,
        pair_0: pair_norm + pair_residual,
    }
    return OriginExpansion(in_moments, expand(in_moments.subs(invariants)))


def _weight_moments(attention: Attention) -> tuple[Expr, Expr]:
    """First and second Taylor coefficients of ``w(chi) / w(0)``."""
    ratio = exp(attention.log_weight - attention.log_weight.subs(chi, 0))
    first = simplify(diff(ratio, chi).subs(chi, 0))
    second = simplify(diff(ratio, chi, 2).subs(chi, 0)) / 2
    regular = simplify(ratio.subs(chi, 0)) == 1 and first.is_finite and second.is_finite
    if not regular or second.has(DiracDelta):
        raise DeriveError(f"{attention.name}: the weight has no Taylor expansion at chi = 0")
    if attention.trained and (first.free_symbols | second.free_symbols):
        raise DeriveError(
            f"{attention.name}: the log weight's slope at the origin depends on the bias"
        )
    return first, second


def _at_one(f: Expr, *variables: Symbol) -> Expr:
    """A derivative of f at unit weights, with its exponential factor divided out."""
    value = (diff(f, *variables) if variables else f).subs({w: 1, w_prime: 1})
    unit = exp(-t - t_prime) if f.has(t_prime) else exp(-t)
    return simplify(value / unit)


def _truncate(expression: Expr) -> Expr:
    """Drop powers of eps beyond the second, then set eps to one."""
    poly = Poly(expand(expression), eps)
    return sum((factor(c) for (k,), c in poly.terms() if k <= 2), start=Integer(0))


def _power(expression: Expr, exponent: Expr) -> Expr:
    """``(1 + x)^n`` for x of second order in eps."""
    return 1 + exponent * expand(expression - 1)


def _integrate(polynomial: Expr, times: tuple[Symbol, ...]) -> Expr:
    """Integrate ``polynomial exp(-L t)`` over each of the race times, term by term."""
    result = Integer(0)
    for powers, coefficient in Poly(expand(polynomial), *times).terms():
        term = coefficient
        for k in powers:
            term *= factorial(k) / L ** (k + 1)
        result += term
    return result
