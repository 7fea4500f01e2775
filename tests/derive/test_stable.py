"""Stable functions: what they stand for in 40 digits, at all magnitudes, and as printed kernels."""

import warnings

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from sympy import Expr, Integer, Rational, Symbol, exp, log, sqrt
from sympy.core.function import ArgumentIndexError

from derive.emit import module_source
from derive.spec import Argument, Kernel, Module, Output
from derive.stable import (
    expit,
    log_of,
    log_softplus,
    softplus,
    softplus_slope,
    stable,
    written_out,
)
from derive.symbols import b, chi

x = Symbol("x", real=True)
FUNCTIONS = {
    softplus: lambda t: mp.log1p(mp.exp(t)),
    expit: lambda t: 1 / (1 + mp.exp(-t)),
    log_softplus: lambda t: mp.log(mp.log1p(mp.exp(t))),
    softplus_slope: lambda t: 1 / (1 + mp.exp(-t)) / mp.log1p(mp.exp(t)),
}
# Near zero, around -40 where a kernel changes its formula, and beyond over- and underflow.
POINTS = [0.0, 1e-9, -0.3, 0.541, 2.0, 17.0, -17.0, 36.0, -36.7, 50.0, 700.0, 745.2, 800.0, 1e6]
POINTS += [-39.999999, -40.0, -40.000001, -50.0, -300.0, -700.0, -744.0, -746.0, -800.0, -1e6]


def exact(function: sp.FunctionClass, point: float) -> mp.mpf:
    with mp.workdps(40 + min(int(abs(point)), 1000)):
        return FUNCTIONS[function](mp.mpf(point))


def compiled(expression: Expr) -> np.ufunc:
    kernel = Kernel("k", "s", (Argument("x", x, "x"),), (Output("y", expression, "y"),), "ref")
    scope: dict = {}
    exec(module_source(Module("module", "A module.", (kernel,))), scope)
    return scope["k"]


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_kernels_at_all_magnitudes(function: sp.FunctionClass) -> None:
    kernel = compiled(function(x))
    with warnings.catch_warnings(), np.errstate(all="raise", under="ignore"):
        warnings.simplefilter("error")
        found = kernel(np.array(POINTS))
    for value, point in zip(found, POINTS, strict=True):
        expected = float(exact(function, point))
        # What underflows is subnormal at best; a logarithm has a zero.
        least = 1e-16 if function is log_softplus else 1e-307
        assert value == pytest.approx(expected, rel=4e-15 * max(1, abs(point) / 30), abs=least)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_derivatives_are_those_of_what_they_stand_for(
    function: sp.FunctionClass, order: int
) -> None:
    derivative = sp.diff(function(x), x, order)
    assert not derivative.has(sp.Derivative, sp.Subs)
    for point in (-2.5, -0.7, 0.3, 1.9):
        with mp.workdps(60):
            expected = mp.diff(FUNCTIONS[function], mp.mpf(point), order)
        found = written_out(derivative).subs(x, Rational(point)).evalf(30)
        assert float(found) == pytest.approx(float(expected), rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("point", [-800.0, -60.0, -3.0, 0.0, 5.0, 300.0, 800.0])
def test_relative_derivatives_of_softplus_as_kernels(point: float, order: int) -> None:
    """w^(k)/w tends to one on the left, where w itself underflows, and to zero on the right."""
    slope, found = log_softplus(x).diff(x), log_softplus(x).diff(x)
    for _ in range(order - 1):
        found = sp.expand(found.diff(x) + found * slope)
    with mp.workdps(2000):
        t = mp.mpf(point)
        s = 1 / (1 + mp.exp(-t))
        c = 1 - s
        derivative = [s, s * c, s * c * (c - s), s * c * (1 - 6 * s * c)][order - 1]
        expected = float(derivative / mp.log1p(mp.exp(t)))
    with np.errstate(all="raise", under="ignore"):
        assert float(compiled(found)(point)) == pytest.approx(expected, rel=1e-11, abs=1e-15)


def test_values_at_zero_are_exact() -> None:
    zero = Integer(0)
    assert softplus(zero) == log(2)
    assert expit(zero) == Rational(1, 2)
    assert log_softplus(zero) == log(log(2))
    assert sp.simplify(softplus_slope(zero) - 1 / (2 * log(2))) == 0
    for function in FUNCTIONS:
        assert function(x).is_real
        with pytest.raises(ArgumentIndexError):
            function(x).fdiff(2)
    assert softplus(x).is_positive and expit(x).is_positive and softplus_slope(x).is_positive


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (log(1 + exp(chi)), softplus(chi)),
        (log(1 + exp(2 * chi - b)), softplus(2 * chi - b)),
        (log(log(1 + exp(chi))), log_softplus(chi)),
        (3 + log(1 + exp(-chi)) ** 2, 3 + softplus(-chi) ** 2),
        (log(1 + chi**2), log(1 + chi**2)),
        (log(2 + exp(chi)), log(2 + exp(chi))),
        (log(1 + exp(chi) + chi**2), log(1 + exp(chi) + chi**2)),
    ],
    ids=str,
)
def test_expressions_are_rewritten(expression: Expr, expected: Expr) -> None:
    assert stable(expression) == expected
    difference = written_out(stable(expression)) - expression
    for point in ({chi: 1.3, b: 0.4}, {chi: -0.2, b: 2.0}):
        assert abs(difference.subs(point).evalf()) < 1e-14


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (exp(b + chi), b + chi),
        (log(1 + exp(chi)), log_softplus(chi)),
        (exp(chi) * log(1 + exp(b)) ** 2, chi + 2 * log_softplus(b)),
        (sqrt(1 + chi**2), log(1 + chi**2) / 2),
        (5 * exp(-(chi**2)), log(5) - chi**2),
        (expit(chi) ** 3, 3 * log(expit(chi))),
        (1 + exp(chi), softplus(chi)),
    ],
    ids=str,
)
def test_logarithms_of_weights(weight: Expr, expected: Expr) -> None:
    assert sp.expand(log_of(weight) - expected) == 0


def test_written_out_is_elementary_and_prints() -> None:
    everything = softplus_slope(x) + log_softplus(x) + softplus(x) + expit(x)
    plain = written_out(everything)
    assert plain.atoms(sp.Function) <= {exp(x), exp(-x), log(1 + exp(x)), log(log(1 + exp(x)))}
    found = plain.subs(x, Rational(7, 5)).evalf(25)
    assert abs(found - sum(exact(f, 1.4) for f in FUNCTIONS)) < 1e-14
    for function in FUNCTIONS:
        text = sp.latex(written_out(function(chi - 1)))
        assert r"\chi" in text and str(function) not in text
