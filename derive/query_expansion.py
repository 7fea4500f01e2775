"""How fast a query leaves the equator: J''(0) of `derive.query` in powers of beta, all else symbolic.

With ``Z = sum_i exp(beta Y_i)`` and ``R = sum_I s_i exp(beta Y_i)``, the objective's three terms are
``(Z'/Z)^2``, ``(R/Z)^2`` and ``Z(2 beta)/Z(beta)^2``. Their expansions are polynomials in power sums
``sum_i s_i^e Y_i^k``; the mean of a product of those is a sum over which of them fall on the same token,
with as many ways as there are tokens to choose from.
"""

from collections.abc import Iterator
from functools import cache
from itertools import product

from sympy import (
    Add,
    Expr,
    Integer,
    Mul,
    Poly,
    Rational,
    Symbol,
    diff,
    expand,
    factor,
    factorial,
    ff,
)

from derive.query import (
    REFERENCE,
    alpha,
    beta,
    d,
    n_0,
    n_I,
    objective_kernel,
    sigma,
    theta,
    token_kernel,
)
from derive.spec import Argument, Kernel, Module, Output

Power = tuple[int, int]
"""Exponents (e, k) of a power sum ``sum_i s_i^e Y_i^k``; e = 1 runs over informative tokens only."""


def partitions(items: list[Power]) -> Iterator[list[list[Power]]]:
    """All ways to group items."""
    if not items:
        yield []
        return
    first, *others = items
    for rest in partitions(others):
        yield [[first], *rest]
        for i, block in enumerate(rest):
            yield [*rest[:i], [first, *block], *rest[i + 1 :]]


@cache
def token_moment(e: int, k: int, informative: bool, sign: int | None) -> Expr:
    """Mean of ``s^e Y^k`` of one token; `sign` is that of all informative ones, or None."""
    centre = theta * alpha if informative else Integer(0)
    signs = ((1, Rational(1, 2)), (-1, Rational(1, 2))) if sign is None else ((sign, Integer(1)),)
    total = Integer(0)
    for s, weight in signs:
        for j in range(0, k + 1, 2):
            # (j - 1)!! ways to pair j factors of noise.
            pairs = factorial(j) / (2 ** (j // 2) * factorial(j // 2))
            ways = factorial(k) / (factorial(j) * factorial(k - j))
            total += weight * s**e * ways * pairs * sigma**j * (s * centre) ** (k - j)
    return expand(total)


@cache
def mean_of_product(powers: tuple[Power, ...], sign: int | None) -> Expr:
    """Mean of a product of power sums."""
    total = Integer(0)
    for blocks in partitions(list(powers)):
        merged = [(sum(e for e, _ in x), sum(k for _, k in x)) for x in blocks]
        only = [any(e for e, _ in x) for x in blocks]
        for kinds in product((True, False), repeat=len(blocks)):
            if any(o and not kind for o, kind in zip(only, kinds, strict=True)):
                continue
            ways = ff(n_I, sum(kinds)) * ff(n_0, len(kinds) - sum(kinds))
            means = (
                token_moment(e, k, kind, sign) for (e, k), kind in zip(merged, kinds, strict=True)
            )
            total += ways * Mul(*means)
    return expand(total)


@cache
def growth_expansion(shared: bool, order: int = 2) -> Expr:
    """Derive J''(0) up to a power of beta.

    Parameters
    ----------
    shared : bool
        Whether informative tokens share one sign.
    order : int
        Largest power of beta.

    Returns
    -------
    sympy.Expr
        In n_0, n_I, d, theta, sigma and beta; with ``sigma`` of order one or of order ``d^(-1/2)``.
    """
    n = Symbol("n", positive=True)
    p = [Symbol(f"p_{k}") for k in range(order + 3)]
    r = [Symbol(f"r_{k}") for k in range(order + 1)]
    span = range(1, order + 1)
    # Z/n - 1, and 1/Z^2 by the binomial series.
    small = sum(beta**k * p[k] / (factorial(k) * n) for k in span)
    inverse = sum((-1) ** j * (j + 1) * small**j for j in range(order + 1)) / n**2
    z_1 = sum(beta**k * p[k + 1] / factorial(k) for k in range(order + 1))
    doubled = n + sum((2 * beta) ** k * p[k] / factorial(k) for k in span)
    informative = sum(beta**k * r[k] / factorial(k) for k in range(order + 1))
    terms = (
        (z_1**2, Integer(1)),
        (informative**2, theta**2 * (1 - alpha**2)),
        (doubled, (d - 1) * sigma**2),
    )
    symbols = (*p, *r)
    total = Integer(0)
    for numerator, factor_ in terms:
        series = Poly(expand(numerator * inverse), beta)
        for (power,), coefficient in series.terms():
            if power > order:
                continue
            for exponents, c in Poly(coefficient, *symbols).terms():
                powers = tuple(
                    x
                    for which, count in zip(symbols, exponents, strict=True)
                    for x in count * [(int(which in r), int(str(which)[2:]))]
                )
                mean = _over_signs(powers, shared)
                curvature = diff(expand(factor_ * mean), alpha, 2).subs(alpha, 0)
                total += beta**power * c * curvature / 2
    total = total.subs(n, n_0 + n_I)
    return Add(*(beta**k * factor(total.expand().coeff(beta, k)) for k in range(order + 1)))


def _over_signs(powers: tuple[Power, ...], shared: bool) -> Expr:
    if not shared:
        return mean_of_product(powers, None)
    return (mean_of_product(powers, 1) + mean_of_product(powers, -1)) / 2


@cache
def concentrated_growth(shared: bool) -> Expr:
    """Derive J''(0) as d -> infinity with noise ``sigma = d^(-1/2)``, exact in beta.

    Scores are then ``beta s_i theta alpha`` without noise, so beta enters by ``delta = beta theta alpha``
    alone: with ``S = sum s_i``, to second order in delta,

        Z = n + S delta + n_I delta^2 / 2,   R = S + n_I delta + S delta^2 / 2,
        2 J = E (theta^2 R^2 + Z(2 delta)) / Z^2 .

    Parameters
    ----------
    shared : bool
        Whether informative tokens share one sign.
    """
    n, s, delta = Symbol("n", positive=True), Symbol("S", real=True), Symbol("delta", real=True)

    def z(x: Expr) -> Expr:
        return n + s * x + n_I * x**2 / 2

    r = s + n_I * delta + s * delta**2 / 2
    curvature = expand(
        diff((theta**2 * r**2 + z(2 * delta)) / z(delta) ** 2, delta, 2).subs(delta, 0) / 2
    )
    moments = {0: 1, 2: n_I**2 if shared else n_I, 4: n_I**4 if shared else 3 * n_I**2 - 2 * n_I}
    mean = sum(curvature.coeff(s, k) * moment for k, moment in moments.items())
    return factor((beta * theta) ** 2 * mean.subs(n, n_0 + n_I))


@cache
def growth_kernel() -> Kernel:
    """Return J''(0) to second order in beta, for both kinds of signs."""
    symbols = {
        n_0: "number of uninformative tokens",
        n_I: "number of informative tokens",
        d: "dimension",
        sigma: "noise of a coordinate",
        theta: "signal",
        beta: "inverse temperature",
    }
    return Kernel(
        "growth_second_order",
        "Growth rate of alpha at 0 to second order in beta, exact if d is large and sigma = d^(-1/2).",
        tuple(Argument(str(x), x, meaning) for x, meaning in symbols.items()),
        tuple(
            Output(name, growth_expansion(shared), f"J''(0), {words}")
            for name, shared, words in (
                ("fair", False, "each informative token with its own sign"),
                ("shared", True, "one sign for all of them"),
            )
        ),
        REFERENCE,
        "beta sigma << 1",
    )


def query_module() -> Module:
    """Return the kernels of the query model."""
    kernels = (token_kernel(), objective_kernel(), growth_kernel())
    return Module("query", "Objective of one query.", kernels)
