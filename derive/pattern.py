"""Which patterns of heads the quartic energy prefers, and how heads part at small finite alignment.

A pattern is a list of (share of the heads, their m), with r = 0. Signals are independent and symmetric:
each feature has a variance nu and a fourth moment kappa_4 = E theta_f^4, 3 nu^2 if it is Gaussian.
At the origin all patterns of one norm whose m sum to zero have the same second-order energy, if the
variances are equal; the fourth order decides between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from sympy import Expr, Integer, Mul, Poly, Rational, Symbol, expand, factor, sqrt

from derive.errors import DeriveError
from derive.landau import LossExpansion, indices, q, q_pair, q_prime
from derive.symbols import H

Vector = tuple[Expr, ...]
Pattern = Sequence[tuple[Expr, Vector]]
Moments = Mapping[int, Expr]

nu, kappa = Symbol("nu", positive=True), Symbol("kappa_4", positive=True)
nu_other, kappa_other = Symbol("nu_g", positive=True), Symbol("kappa_g", positive=True)
# Alignments of all heads with a feature f, along which they part, and with another one.
m_f, m_g = Symbol("m_f", real=True), Symbol("m_g", real=True)

HIGHEST = 4
_HALF, _QUARTER = Rational(1, 2), Rational(1, 4)
_STEP = Symbol("x", real=True)
_TOKEN = (Symbol("xi_1", real=True), Symbol("xi_2", real=True))


@dataclass(frozen=True)
class Preference:
    """Quartic energies, in units of ``|m_h|^4``, of heads that sum to zero over two equal features.

    Attributes
    ----------
    one_feature : sympy.Expr
        Half of the heads at e_1, half at -e_1.
    single : sympy.Expr
        A quarter each at e_1, -e_1, e_2, -e_2.
    mixed : sympy.Expr
        A quarter each at (+-e_1 +-e_2) / sqrt(2).
    """

    one_feature: Expr
    single: Expr
    mixed: Expr


def preference(expansion: LossExpansion) -> Preference:
    """Return the quartic energies of three patterns.

    Parameters
    ----------
    expansion : LossExpansion
        To fourth order at least.
    """
    one, zero, root = Integer(1), Integer(0), 1 / sqrt(2)
    signs = (one, -one)
    patterns = (
        [(_HALF, (x, zero)) for x in signs],
        [(_QUARTER, m) for x in signs for m in ((x, zero), (zero, x))],
        [(_QUARTER, (x * root, y * root)) for x in signs for y in signs],
    )
    features = [(nu, kappa)] * 2
    return Preference(*(factor(pattern_energy(expansion, 4, p, features)) for p in patterns))


def difference_eigenvalue(expansion: LossExpansion) -> Expr:
    """Return the Hessian's eigenvalue for heads that part along feature f, all of them at one small m.

    All heads have m = (m_f, m_g) and r = 0; displacements along f sum to zero. The terms in m_g^2 are
    those of every other feature. arXiv 2603.03993, Lemma A.11 (there for softmax).

    Returns
    -------
    sympy.Expr
        To second order in m, in `m_f`, `m_g`, `nu`, `kappa`, `nu_other`, L and H.
    """
    step = _STEP / sqrt(2)
    pattern = [(1 / H, (m_f + step, m_g)), (1 / H, (m_f - step, m_g)), (1 - 2 / H, (m_f, m_g))]
    features = [(nu, kappa), (nu_other, kappa_other)]
    energy = sum(pattern_energy(expansion, k, pattern, features) for k in (2, 4))
    return 2 * expand(energy).coeff(_STEP, 2)


def pattern_energy(
    expansion: LossExpansion, order: int, pattern: Pattern, features: Sequence[tuple[Expr, Expr]]
) -> Expr:
    """Return the loss of one order, up to 4, where heads form a pattern.

    Parameters
    ----------
    expansion : LossExpansion
    order : int
    pattern : sequence of (share, m)
        m has a component for each of two features.
    features : sequence of (variance, fourth moment)
    """
    if order > HIGHEST:
        raise DeriveError(f"order: found {order}, expected at most {HIGHEST}, as fourth moments go")
    terms = expansion.terms(order)
    moments = sorted(set().union(*(x.free_symbols for x in terms)), key=str)
    signal = [{0: Integer(1), 2: x, 4: y} for x, y in features]
    noise = [{0: Integer(1), 2: Integer(1), 4: Integer(3)} for _ in features]
    token = [{0: Integer(1), 2: 1 + x, 4: 3 + 6 * x + y} for x, y in features]
    if expansion.pooled:
        values = {
            x: _average(_head_averages(indices(x), pattern), token if x.name[1] == "1" else noise)
            for x in moments
        }
        return expand(sum(y * x.xreplace(values) for x, y in terms.items()))
    total = Integer(0)
    for (share, m), (other_share, other) in product(pattern, pattern):
        values = {q: _dot(m, m), q_prime: _dot(other, other), q_pair: _dot(m, other)}
        for x in moments:
            if x not in values:
                i, j = indices(x)
                values[x] = _average(_dot(m, _TOKEN) ** i * _dot(other, _TOKEN) ** j, signal)
        total += share * other_share * sum(y * x.xreplace(values) for x, y in terms.items())
    return expand(total)


def _head_averages(powers: Sequence[int], pattern: Pattern) -> Expr:
    """``prod_k sigma_k^(powers_k)`` as a polynomial in a token's coordinates along the features."""
    averages = (
        sum(share * _dot(m, _TOKEN) ** k for share, m in pattern) for k in range(1, len(powers) + 1)
    )
    return Mul(*(x**power for x, power in zip(averages, powers, strict=True)))


def _average(polynomial: Expr, moments: Sequence[Moments]) -> Expr:
    """Expectation over independent coordinates with these moments; odd ones vanish."""
    return sum(
        coefficient * Mul(*(x.get(k, Integer(0)) for k, x in zip(powers, moments, strict=True)))
        for powers, coefficient in Poly(expand(polynomial), *_TOKEN).terms()
    )


def _dot(x: Vector, y: Vector) -> Expr:
    return sum(a * b for a, b in zip(x, y, strict=True))
