"""Expansion of the population loss at the origin to any order: the Landau free energy of specialization.

At vanishing scores all tokens weigh the same. With ``w = w0 (1 + delta)``, ``delta = sum_k w_k chi^k /
k!``, a token's share ``a`` of its denominator, and the race time in units of that denominator,

    A = a   int ds e^-s          E_1[(1 + delta) S] E_0[S]^(L - 1),                   S = e^(-s a delta)
    B = a^2 int int ds dt e^-(s+t) { E_1[(1 + delta) (1 + delta') S] E_0[S]^(L - 1)
          + (L - 1) E_0[(1 + delta) (1 + delta') S] E_1[S] E_0[S]^(L - 2) },
                                                                    S = e^(-s a delta - t a delta')

are power series in the scores: tokens are independent, so that sums over them are powers of ``E_0 S``
with exponents L - 1 and L - 2, and ``int s^k e^-s ds = k!``. Without normalization there is no race, A
and B are averages of ``w`` and ``w w'``. Pooled weights run one race, in the heads' average of delta, a
series in the averages ``sigma_k`` of ``chi_h^k``.

Scores are Gaussian given the signal: their moments are polynomials in ``q_hh' = m_h.m_h' + r_hh'`` and in
the signal's ``T_ij = E (m_h.theta)^i (m_h'.theta)^j``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import comb, factorial
from operator import add
from typing import Any

from sympy import QQ, Expr, Integer, Mul, Symbol, factor, ring, sstr

from derive.attention import Attention
from derive.errors import DeriveError
from derive.expansion import share, taylor
from derive.symbols import H, L, b, v

Terms = dict[Expr, Expr]
"""``{product of moments: coefficient}``."""
Series = dict[tuple[int, ...], Any]
Graded = list[Any]
ORDERS = (2, 4, 6)

# Overlaps q_hh, q_h'h' and q_hh' of a pair of heads.
q, q_prime, q_pair = Symbol("q", real=True), Symbol("q'", real=True), Symbol("c", real=True)


def derivative(k: int) -> Symbol:
    """Return the weight's k-th derivative at the origin, relative to the weight if it is normalized."""
    return Symbol(f"w{k}", real=True)


def signal_moment(i: int, j: int) -> Symbol:
    """Return ``T_ij = E (m_h.theta)^i (m_h'.theta)^j``."""
    return Symbol(f"T_{i}_{j}", real=True)


def score_moment(kind: int, powers: Sequence[int]) -> Symbol:
    """Return the average of ``prod_k sigma_k^(powers_k)`` of the relevant token (1) or of others (0)."""
    return Symbol(f"E{kind}_" + "_".join(map(str, powers)), real=True)


def indices(moment: Symbol) -> tuple[int, ...]:
    """Return the indices of a moment, from its name."""
    return tuple(int(x) for x in moment.name.split("_")[1:])


@dataclass(frozen=True)
class LossExpansion:
    """The loss by order in the scores at ``m = 0, r = 0``, for heads of equal bias and value.

    The loss is ``sum_n of c[n] (1 if n = 0) - 2 V <head[n]> + V^2 <pair[n]>`` with V the sum of the
    head values and averages over heads and over all pairs of heads, those of a head with itself
    included. The averages over heads of pooled weights are inside their moments, and V = 1.

    Attributes
    ----------
    order : int
    head, pair : tuple of dict
        ``A_h`` and ``B_hh'`` by order: ``{product of moments: coefficient}``. Coefficients are in L and,
        as far as these depend on the bias, in `share` and `derivative`.
    total : sympy.Expr
        V.
    functions : dict
        What those symbols stand for.
    pooled : bool
        Whether moments are those of `score_moment`; else of `q`, `q_prime`, `q_pair`, `signal_moment`.
    """

    order: int
    head: tuple[Terms, ...]
    pair: tuple[Terms, ...]
    total: Expr
    functions: dict[Symbol, Expr]
    pooled: bool

    def terms(self, order: int) -> Terms:
        """Return the loss of one order: moments that are averaged over pairs, with coefficients.

        Raises
        ------
        DeriveError
            For an order beyond the expansion's.
        """
        if not 0 <= order <= self.order:
            raise DeriveError(f"order: found {order}, expected from 0 to {self.order}")
        found: Terms = {Integer(1): Integer(1)} if order == 0 else {}
        for scale, part in ((-2 * self.total, self.head), (self.total**2, self.pair)):
            for monomial, coefficient in part[order].items():
                name = _of_pairs(monomial)
                found[name] = found.get(name, Integer(0)) + scale * coefficient
        simple = {name: factor(x) for name, x in found.items()}
        return {name: x for name, x in simple.items() if x != 0}


def require_order(order: int) -> None:
    """Refuse an order that is none of `ORDERS`."""
    if isinstance(order, float) or order not in ORDERS:
        raise DeriveError(f"order: found {order!r:.40}, expected one of 2, 4, 6")


def expand_loss(attention: Attention, order: int = 4) -> LossExpansion:
    """Expand the population loss at the origin.

    Parameters
    ----------
    attention : Attention
    order : {2, 4, 6}
        In the scores, that is in (m, sqrt r).

    Raises
    ------
    DeriveError
        For another order, or if the weight's derivatives at ``chi = 0`` do not exist.
    """
    require_order(order)
    names = (share, *(derivative(k) for k in range(1, order + 1)))
    values = dict(zip(names, taylor(attention, order), strict=True))
    kept = {name: value for name, value in values.items() if value.has(b)}
    known = {name: value for name, value in values.items() if name not in kept}
    pooled = attention.normalization == "pooled"
    # The share of all heads together, where they have one denominator.
    scale = {share: H * known.get(share, share)} if pooled else {}
    algebra = _Algebra(order, pooled)
    head, pair = algebra.races() if attention.normalized else algebra.averages()

    def written(graded: Graded) -> tuple[Terms, ...]:
        return tuple(algebra.terms(x, known | scale) for x in graded)

    value = v if "v" in attention.trained else attention.value
    return LossExpansion(
        order, written(head), written(pair), Integer(1) if pooled else H * value, kept, pooled
    )


class _Algebra:
    """Power series in scores, with averages that are polynomials in their moments.

    A series is ``{powers of its variables: coefficient}``. Variables are the scores of a pair of heads,
    or for pooled weights the head averages ``sigma_1, sigma_2, ...``, of order 1, 2, ... An average is
    a list by order. Coefficients are in a polynomial ring, where all this is fast.
    """

    def __init__(self, order: int, pooled: bool) -> None:
        self.order, self.pooled = order, pooled
        self.grades = tuple(range(1, order + 1)) if pooled else (1, 1)
        ranges = [range(order // grade + 1) for grade in self.grades]
        keys = [key for key in product(*ranges) if 0 < self._grade(key) <= order]
        if pooled:
            moments = [score_moment(kind, key) for kind in (0, 1) for key in keys]
        else:
            moments = [q, q_prime, q_pair, *(signal_moment(*key) for key in keys)]
        self.scalars = (share, L, *(derivative(k) for k in range(1, order + 1)))
        symbols = [Symbol("s"), Symbol("t"), *self.scalars, *moments]
        self.ring, *generators = ring(symbols, QQ)
        self.s, self.t = generators[:2]
        self.of = dict(zip(symbols, generators, strict=True))

    def _grade(self, key: tuple[int, ...]) -> int:
        return sum(power * grade for power, grade in zip(key, self.grades, strict=True))

    def delta(self, head: int = 0) -> Series:
        """The weight's fluctuation in one head, or in all pooled heads."""
        found = {}
        for k in range(1, self.order + 1):
            key = tuple(int(i == k - 1) for i in range(self.order)) if self.pooled else (k, 0)
            coefficient = self.of[derivative(k)] * QQ(1, factorial(k))
            found[key[::-1] if head else key] = coefficient
        return found

    def races(self) -> tuple[Graded, Graded]:
        """A and B of normalized weights."""
        a, tokens = self.of[share], self.of[L]
        one, delta, other = self._one(), self.delta(), self.delta(1)
        win = self._sum(one, delta)
        survive = self._exponential(self._scaled(delta, -a * self.s))
        wins = self._product(self._average(1, self._times(win, survive)), self._lost(survive, 1))
        first = [a * self._laplace(x) for x in wins]
        if self.pooled:
            both = self._times(win, win)
        else:
            both = self._times(win, self._sum(one, other))
            survive = self._times(survive, self._exponential(self._scaled(other, -a * self.t)))
        won = self._times(both, survive)
        relevant = self._product(self._average(1, won), self._lost(survive, 1))
        others = self._product(self._average(1, survive), self._lost(survive, 2))
        others = self._product(self._average(0, won), others)
        extra = int(self.pooled)  # 1/Z^2 = int t exp(-t Z) dt
        second = [
            a**2 * self._laplace(x + (tokens - 1) * y, extra)
            for x, y in zip(relevant, others, strict=True)
        ]
        return first, second

    def averages(self) -> tuple[Graded, Graded]:
        """A and B of weights that are not normalized; `share` is the weight at the origin."""
        start: Series = {(0, 0): self.of[share]}
        first, other = self._sum(start, self.delta()), self._sum(start, self.delta(1))
        both = self._times(first, other)
        pairs = zip(self._average(1, both), self._average(0, both), strict=True)
        return self._average(1, first), [x + (self.of[L] - 1) * y for x, y in pairs]

    def terms(self, polynomial: Any, known: dict[Symbol, Expr]) -> Terms:
        """Collect a polynomial in the moments; scalars that are known are put in."""
        count = 2 + len(self.scalars)
        found: dict[tuple[int, ...], Any] = {}
        for powers, coefficient in polynomial.terms():
            part = self.ring({powers[:count] + (0,) * (len(powers) - count): coefficient})
            found[powers[count:]] = found.get(powers[count:], self.ring.zero) + part
        moments = list(self.of)[count:]
        return {
            Mul(*(x**power for x, power in zip(moments, powers, strict=True))): part.as_expr().subs(
                known
            )
            for powers, part in found.items()
        }

    def _one(self) -> Series:
        return {(0,) * len(self.grades): self.ring.one}

    def _sum(self, x: Series, y: Series) -> Series:
        return {key: x.get(key, 0) + y.get(key, 0) for key in {**x, **y}}

    def _scaled(self, x: Series, scale: Any) -> Series:
        return {key: scale * value for key, value in x.items()}

    def _times(self, x: Series, y: Series) -> Series:
        found: Series = {}
        for (key, value), (other, factor_) in product(x.items(), y.items()):
            powers = tuple(map(add, key, other))
            if self._grade(powers) <= self.order:
                found[powers] = found.get(powers, 0) + value * factor_
        return found

    def _exponential(self, x: Series) -> Series:
        total = term = self._one()
        for k in range(1, self.order + 1):
            term = self._scaled(self._times(term, x), QQ(1, k))
            total = self._sum(total, term)
        return total

    def _average(self, kind: int, x: Series) -> Graded:
        """Expectation over the relevant token (kind 1), or another one (0)."""
        found = [self.ring.zero] * (self.order + 1)
        for key, value in x.items():
            grade = self._grade(key)
            found[grade] += value * (self._moment(kind, key) if grade else 1)
        return found

    def _moment(self, kind: int, key: tuple[int, ...]) -> Any:
        if self.pooled:
            odd = kind == 0 and self._grade(key) % 2
            return self.ring.zero if odd else self.of[score_moment(kind, key)]
        i, j = key
        if kind == 0:
            return self._gaussian(i, j)
        total = self._gaussian(i, j)
        for k, n in product(range(i + 1), range(j + 1)):
            if k + n:
                signal = self.of[signal_moment(k, n)] * comb(i, k) * comb(j, n)
                total += signal * self._gaussian(i - k, j - n)
        return total

    def _gaussian(self, i: int, j: int) -> Any:
        """``E x^i y^j`` of centred Gaussians: pairings by the number k of mixed ones."""
        total = self.ring.zero
        for k in range(i % 2, min(i, j) + 1, 2):
            if (j - k) % 2:
                continue
            x, y = (i - k) // 2, (j - k) // 2
            count = comb(i, k) * comb(j, k) * factorial(k) * _pairings(x) * _pairings(y)
            total += count * self.of[q] ** x * self.of[q_prime] ** y * self.of[q_pair] ** k
        return total

    def _product(self, x: Graded, y: Graded) -> Graded:
        return [
            sum((x[i] * y[k - i] for i in range(k + 1)), start=self.ring.zero)
            for k in range(self.order + 1)
        ]

    def _lost(self, survive: Series, besides: int) -> Graded:
        """``(E_0 S)^(L - besides)``, by the binomial series in the part of ``E_0 S`` beyond 1."""
        exponent = self.of[L] - besides
        rest = [self.ring.zero, *self._average(0, survive)[1:]]
        total = term = [self.ring.one] + [self.ring.zero] * self.order
        coefficient = self.ring.one
        for k in range(1, self.order // 2 + 1):
            term = self._product(term, rest)
            coefficient = coefficient * (exponent - k + 1) * QQ(1, k)
            total = [x + coefficient * y for x, y in zip(total, term, strict=True)]
        return total

    def _laplace(self, polynomial: Any, extra: int = 0) -> Any:
        """``int int e^-(s + t) s^extra p(s, t) ds dt``."""
        found = self.ring.zero
        for (i, j, *others), coefficient in polynomial.terms():
            weight = factorial(i + extra) * factorial(j)
            found += self.ring({(0, 0, *others): coefficient * weight})
        return found


def _pairings(n: int) -> int:
    """Ways to pair up 2 n things."""
    return factorial(2 * n) // (2**n * factorial(n))


def swapped(monomial: Expr) -> Expr:
    """Return a product of moments with the two heads of a pair swapped."""
    swap = {q: q_prime, q_prime: q}
    for x in monomial.free_symbols:
        if x.name.startswith("T_"):
            swap[x] = signal_moment(*reversed(indices(x)))
    return monomial.xreplace(swap)


def _of_pairs(monomial: Expr) -> Expr:
    """One name for what is equal when the two heads of an averaged pair are swapped."""
    return min(monomial, swapped(monomial), key=lambda x: sstr(x))
