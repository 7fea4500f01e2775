"""The integrand of the noise matrix against calculus on explicit tokens and against enumeration."""

from collections.abc import Callable
from functools import cache
from itertools import product
from math import factorial

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from sympy import Expr, Symbol

from derive.loss import g0
from derive.noise import moment, noise_integrand, noise_kernel
from derive.symbols import L, v
from numeric._generated import noise

EPS = float(np.finfo(float).eps)
POWERS = range(2, 7)


def moments_of_explicit_tokens(tokens: int) -> Expr:
    """``sum_l c_l^2`` of one head by calculus in the weights, each monomial replaced by its moments."""
    weights = sp.symbols(f"w_0:{tokens}", positive=True)
    shares = sp.symbols(f"p_0:{tokens}", positive=True)
    rest, total = sp.symbols("c Z", positive=True)
    outputs = [v * w / (rest + sum(weights)) for w in weights]
    loss = (1 - outputs[0]) ** 2 + sum(a**2 for a in outputs[1:])
    result = sp.Integer(0)
    for noisy, weight in enumerate(weights):
        c = (weight * sp.diff(loss, weight)).subs(rest, total - sum(weights))
        c = sp.expand(c.subs({w: total * p for w, p in zip(weights, shares, strict=True)}))
        for powers, coefficient in sp.Poly(c**2, *shares).terms():
            factors = [
                moment(("U" if k == noisy else "T") + ("0" if k else "1"), n)
                for k, n in enumerate(powers)
            ]
            result += coefficient * sp.prod(factors) / factorial(sum(powers) - 1)
    return sp.expand(result)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5])
def test_integrand_of_explicit_tokens(tokens: int) -> None:
    """Coefficients are cubic in L at most, so five sizes fix them."""
    assert sp.expand(noise_integrand().subs(L, tokens)) == moments_of_explicit_tokens(tokens)


def coefficients(t: np.ndarray, others: np.ndarray, relevant: np.ndarray, *rest: float) -> list:
    """Kernel at times t for two laws of the weight, rows (weight, probability)."""
    tau = [t[:, None] * law[:, 0] for law in (others, relevant)]
    chance = [law[:, 1] for law in (others, relevant)]
    t0, t1 = ([(x**k * np.exp(-x)) @ p for k in range(5)] for x, p in zip(tau, chance, strict=True))
    won = np.minimum(-np.expm1(-tau[0]) @ chance[0], 1 - 2**-53)
    return list(noise.noise_coefficients(won, t0[2], t0[4], *t1, *rest))


def raced(others: np.ndarray, relevant: np.ndarray, tokens: int, v: float, c: float) -> float:
    """V of one head, laws with rows (weight, probability, slope), by equispaced race times."""
    u = np.arange(-9.0, 45.0, 0.05)
    t = np.exp(-u)
    found = coefficients(t, others, relevant, tokens, v)
    total = np.zeros_like(u)
    for law, mine in ((others, found[:5]), (relevant, found[5:])):
        tau = t[:, None] * law[:, 0]
        for k, coefficient in zip(POWERS, mine, strict=True):
            total += coefficient * ((tau**k * np.exp(-tau)) @ (law[:, 1] * law[:, 2] ** 2))
    return float(0.05 * np.sum(np.exp(-c * t) * total))


def enumerated(others: np.ndarray, relevant: np.ndarray, tokens: int, v: float, c: float) -> float:
    total = 0.0
    for rows in product(relevant, *[others] * (tokens - 1)):
        w, chance, slope = np.array(rows).T
        a = v * w / (c + w.sum())
        jacobian = (np.diag(a) - np.outer(a, w) / (c + w.sum())) * slope
        total += chance.prod() * np.sum((2 * (a - np.eye(tokens)[0]) @ jacobian) ** 2)
    return total


@pytest.mark.parametrize("c", [0.0, 1.0])
@pytest.mark.parametrize("v", [1.0, 0.3, -2.0])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7])
def test_race_of_random_weights(tokens: int, v: float, c: float) -> None:
    others = np.array([[0.3, 0.6, 0.7], [1.9, 0.4, -1.3]])
    relevant = np.array([[0.8, 0.5, 1.1], [4.0, 0.3, 0.4], [0.1, 0.2, 2.0]])
    expected = enumerated(others, relevant, tokens, v, c)
    assert abs(raced(others, relevant, tokens, v, c) - expected) < 1e-12 * max(1, v**4)


@pytest.mark.parametrize("tokens", [2, 1000, 10**6])
@pytest.mark.parametrize(("v", "c"), [(1.0, 0.0), (0.5, 0.0), (1.5, 3.0)])
def test_race_of_equal_weights(tokens: int, v: float, c: float) -> None:
    """Nothing is random: every share is 1/(L + c)."""
    law, p = np.array([[1 / tokens, 1.0, 1.0]]), 1 / (tokens + c)
    mean = 2 * v * p * (tokens * v * p - 1)
    slopes = np.append(2 * v * p - 2, np.full(tokens - 1, 2 * v * p))
    expected = np.sum((v * p * (slopes - mean / v)) ** 2)
    found = raced(law, law, tokens, v, c / tokens)
    assert found == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 10**6])
@pytest.mark.parametrize("won", [0.0, 1e-300, 1e-9, 3e-6, 0.4, 1 - 1e-9, 1 - 2**-53])
def test_kernel_in_floating_point(won: float, tokens: int) -> None:
    """Each coefficient to rounding, in units of the sum of its terms' sizes."""
    scale = 1 - won
    values = {
        moment("T0", 2): 0.7 * scale,
        moment("T0", 4): 1.3 * scale,
        **{moment("T1", k): x for k, x in enumerate((0.3, 0.2, 0.25, 0.31, 0.9))},
    }
    with np.errstate(all="raise", under="ignore"):
        found = noise.noise_coefficients(won, *values.values(), tokens, 1.7)
    exponent = tokens * abs(float(np.log1p(-won)))
    with mp.workdps(60):
        point = [1 - mp.mpf(won), *map(mp.mpf, values.values()), tokens, mp.mpf(1.7)]
        for (name, terms), value in zip(_terms().items(), found, strict=True):
            exact = [mp.mpf(term(*point)) for term in terms]
            error = abs(mp.mpf(float(value)) - sum(exact))
            size = sum(map(abs, exact))
            assert error <= EPS * (40 + 4 * exponent) * size + mp.mpf(10) ** -290 * (exponent > 600)
            if tokens == 1 and name.startswith("in_U0"):
                assert value == 0


@cache
def _terms() -> dict[str, list[Callable]]:
    """Terms of each coefficient, their factors ``L - 1``, ``L - 2``, ... kept, for mpmath."""
    kernel, integrand = noise_kernel(), noise_integrand()
    arguments = [moment("T0", 0), *(a.symbol for a in kernel.inputs[1:])]
    found = {}
    for output in kernel.outputs:
        linear = sp.diff(integrand, Symbol(output.name[3:], real=True))
        terms = sp.Add.make_args(sp.expand(linear, deep=False))
        found[output.name] = [sp.lambdify(arguments, term, "mpmath") for term in terms]
    return found


def test_kernel_takes_arrays_of_times() -> None:
    moments = np.linspace(0.1, 0.8, 8)[:, None] * np.linspace(0.5, 1.0, 6)
    found = noise.noise_coefficients(*moments, 9, -0.4)
    assert {x.shape for x in found} == {(6,)}
    alone = noise.noise_coefficients(*moments[:, 2], 9, -0.4)
    np.testing.assert_allclose([x[2] for x in found], alone, rtol=1e-15)
    assert g0 in noise_kernel().outputs[0].expression.free_symbols
