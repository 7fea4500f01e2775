"""One head without normalization on a fixed spike: loss, and where it is affine, its minimum.

The signal is the number ``theta = sqrt(nu)``, so a token's score is N(mean, q) with ``q = m^2 + r``, mean
``m sqrt(nu)`` for the relevant token and 0 for the others. With A the mean weight of the relevant token
and B the summed mean squares of all tokens' weights

    E = 1 - 2 v A + v^2 B = 1 - A^2/B + B (v - A/B)^2.

As a function of (mean, q), a Gaussian mean ``E f(mean + sqrt(q) z)`` is the one solution of the heat
equation ``dG/dq = (1/2) d^2G/dmean^2`` that is f at q = 0.
"""

from dataclasses import dataclass

from sympy import (
    Add,
    Expr,
    Function,
    Integer,
    Poly,
    Symbol,
    diff,
    erf,
    exp,
    expand,
    factor,
    factorial,
    pi,
    solve,
    sqrt,
)
from sympy.core.function import ArgumentIndexError

from derive.attention import Attention
from derive.errors import DeriveError
from derive.symbols import L, chi, nu_f, v

m, r = Symbol("m", real=True), Symbol("r", nonnegative=True)
mean, q = Symbol("mean", real=True), Symbol("q", nonnegative=True)
A, B = Symbol("A", real=True), Symbol("B", positive=True)


class owens_t(Function):
    """Owen's ``T(h, a) = (1/2 pi) int_0^a exp(-h^2 (1 + x^2)/2) / (1 + x^2) dx``."""

    nargs = 2

    def fdiff(self, argindex: int = 1) -> Expr:
        h, a = self.args
        if argindex == 1:
            return -exp(-(h**2) / 2) * erf(a * h / sqrt(2)) / (2 * sqrt(2 * pi))
        if argindex == 2:
            return exp(-(h**2) * (1 + a**2) / 2) / (2 * pi * (1 + a**2))
        raise ArgumentIndexError(self, argindex)

    def _latex(self, printer: object, **_: object) -> str:
        h, a = (printer._print(x) for x in self.args)  # type: ignore[attr-defined]
        return rf"T\left({h}, {a}\right)"


@dataclass(frozen=True)
class SpikeLoss:
    """The loss on a fixed spike, by the first two moments of a weight as functions of (mean, q)."""

    first: Expr
    second: Expr

    @property
    def a(self) -> Expr:
        """A in (m, r)."""
        return _of_score(self.first, m * sqrt(nu_f))

    @property
    def b(self) -> Expr:
        """B in (m, r)."""
        relevant, other = (_of_score(self.second, x) for x in (m * sqrt(nu_f), Integer(0)))
        return relevant + (L - 1) * other

    @property
    def value(self) -> Expr:
        """The loss E."""
        return 1 - 2 * v * self.a + v**2 * self.b


@dataclass(frozen=True)
class SpikeMinimum:
    """The least loss on a fixed spike, at r = 0.

    Attributes
    ----------
    m, v, risk : sympy.Expr
    excess : sympy.Expr
        ``E - risk`` for every (m, r, v), as a sum of terms none of which is negative; `A` and `B` stand
        for the functions of m at r = 0.
    """

    m: Expr
    v: Expr
    risk: Expr
    excess: Expr


def _of_score(moment: Expr, centre: Expr) -> Expr:
    return moment.subs({mean: centre, q: m**2 + r}, simultaneous=True)


def gaussian_mean(function: Expr) -> Expr:
    """Return the mean of a function of chi ~ N(mean, q) in closed form.

    Known are powers of chi, and erf and its square of what is affine in chi.

    Raises
    ------
    DeriveError
        If there is another term.
    """
    return Add(*(_term_mean(term) for term in Add.make_args(expand(function))))


def _term_mean(term: Expr) -> Expr:
    factor_, special = term.as_independent(erf)
    if special == 1 and term.is_polynomial(chi):
        degree = Poly(term, chi).degree()
        return Add(
            *(
                (q / 2) ** k / factorial(k) * diff(term, chi, 2 * k).subs(chi, mean)
                for k in range(degree // 2 + 1)
            )
        )
    base, power = special.as_base_exp()
    if isinstance(base, erf) and power in (1, 2) and not factor_.has(chi):
        argument = base.args[0]
        slope = diff(argument, chi)
        if not slope.has(chi):
            spread = slope**2 * q
            centre = argument.subs(chi, mean) / sqrt(1 + 2 * spread)
            square = 1 - 8 * owens_t(sqrt(2) * centre, 1 / sqrt(1 + 4 * spread))
            return factor_ * (erf(centre) if power == 1 else square)
    raise DeriveError(f"no closed form of the Gaussian mean of {term}")


def spike_loss(attention: Attention) -> SpikeLoss:
    """Return the loss of one head on a fixed spike.

    Raises
    ------
    DeriveError
        If weights are normalized, or the weight or its square has no mean in closed form.
    """
    if attention.normalized:
        raise DeriveError(f"{attention.name}: no closed form of a normalized weight's loss")

    return SpikeLoss(*(gaussian_mean(attention.weight**k) for k in (1, 2)))


def spike_minimum(attention: Attention) -> SpikeMinimum:
    """Return the global minimum of the loss of a weight that is affine in the score.

    Raises
    ------
    DeriveError
        If it is not, or vanishes at the score 0.
    """
    weight = attention.weight
    affine = weight.is_polynomial(chi) and Poly(weight, chi).degree() == 1
    if attention.normalized or not affine or weight.subs(chi, 0) == 0:
        raise DeriveError(f"{attention.name}: a closed minimum needs a weight affine in the score")
    amplitude = Symbol("theta", positive=True)
    loss = spike_loss(attention)
    value, a, b = (x.subs(nu_f, amplitude**2) for x in (loss.value, loss.a, loss.b))
    b = b.subs(r, 0)
    # Beside its minimum, the loss of the best v is only stationary where A vanishes.
    (at,) = (x for x in solve(2 * diff(a, m) * b - a * diff(b, m), m) if a.subs(m, x) != 0)
    best = (a / b).subs(m, at)
    risk = factor(1 - a.subs(m, at) * best)
    excess = (
        factor(diff(value, r)) * r
        + B * (v - A / B) ** 2
        + factor((b * (1 - risk) - a**2) / (m - at) ** 2) * (m - at) ** 2 / B
    )
    if factor(value - risk - excess.subs({A: a, B: b})) != 0:
        raise ArithmeticError("the excess of the loss over its minimum is no sum of squares")
    found = (x.subs(amplitude, sqrt(nu_f)) for x in (factor(at), factor(best), risk, excess))
    return SpikeMinimum(*found)
