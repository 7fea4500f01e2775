"""One head on a fixed spike: closed forms against quadrature, the minimum against any other state."""

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from scipy.optimize import minimize
from sympy import Expr, Rational, erf, exp, sqrt

from derive.attention import ACTIVATIONS, Attention
from derive.errors import DeriveError
from derive.single_head import (
    A,
    B,
    gaussian_mean,
    m,
    mean,
    owens_t,
    q,
    r,
    spike_loss,
    spike_minimum,
)
from derive.symbols import L, b, chi, nu_f, v

LINEAR, ERF = ACTIVATIONS["linear"], ACTIVATIONS["erf"]
FUNCTIONS = {
    "constant": sp.Integer(3),
    "polynomial": 2 - chi + 3 * chi**2 - chi**5 + chi**6 / 4,
    "erf": erf(b + chi),
    "square of erf": erf(b + chi) ** 2,
    "steeper": 2 * erf(b / 2 - 3 * chi) ** 2 - 5 * erf(1 + 2 * chi) + chi,
}


def with_owens_integral(expression: Expr, digits: int = 20) -> mp.mpf:
    """A number, Owen's function by its integral."""
    for t in expression.atoms(owens_t):
        h, a = (mp.mpf(sp.N(x, digits + 5)) for x in t.args)
        value = mp.quad(lambda x, h=h: mp.exp(-(h**2) * (1 + x**2) / 2) / (1 + x**2), [0, a])
        expression = expression.subs(t, sp.Float(value / 2 / mp.pi, digits))
    return mp.mpf(sp.N(expression, digits))


def gaussian_integral(function: object, centre: mp.mpf, variance: mp.mpf) -> mp.mpf:
    deviation = mp.sqrt(variance)
    return mp.quad(
        lambda z: function(centre + deviation * z) * mp.npdf(z), [-12, -6, -3, 0, 3, 6, 12]
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gaussian_means_against_quadrature(name: str) -> None:
    for values in ({mean: -0.7, q: 0.4, b: 0.3}, {mean: 1.2, q: 2.5, b: -0.8}):
        exact = {x: Rational(str(value)) for x, value in values.items()}
        with mp.workdps(25):
            function = sp.lambdify(chi, FUNCTIONS[name].subs(exact), "mpmath")
            centre, variance = (mp.mpf(str(values[x])) for x in (mean, q))
            expected = gaussian_integral(function, centre, variance)
            found = with_owens_integral(gaussian_mean(FUNCTIONS[name]).subs(exact))
        assert abs(found - expected) < 1e-15


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gaussian_means_solve_the_heat_equation(name: str) -> None:
    found = gaussian_mean(FUNCTIONS[name])
    change = sp.powsimp(sp.expand(sp.diff(found, q) - sp.diff(found, mean, 2) / 2))
    change = change.replace(exp, lambda x: exp(sp.factor(x)))
    names = {x: sp.Dummy() for x in change.atoms(exp, erf)}
    assert sp.simplify(change.xreplace(names)) == 0


def test_owens_derivatives() -> None:
    h, a = sp.symbols("h a", positive=True)
    x = sp.Symbol("x", positive=True)
    integrand = exp(-(h**2) * (1 + x**2) / 2) / (1 + x**2) / (2 * sp.pi)
    assert sp.simplify(owens_t(h, a).diff(a) - integrand.subs(x, a)) == 0
    by_h = sp.integrate(sp.simplify(sp.diff(integrand, h)), (x, 0, a))
    assert sp.simplify(owens_t(h, a).diff(h) - by_h) == 0


@pytest.mark.parametrize(
    "function", [sp.cosh(chi), erf(chi) ** 3, chi * erf(chi), erf(chi**2), erf(chi) * erf(b + chi)]
)
def test_other_functions_are_refused(function: Expr) -> None:
    with pytest.raises(DeriveError, match=r"^no closed form of the Gaussian mean of "):
        gaussian_mean(function)


WEIGHTS = {"linear": lambda x: 1 + x, "erf": lambda x: 1 + mp.erf(x + mp.mpf("0.3"))}


@pytest.mark.parametrize("name", WEIGHTS)
def test_loss_against_quadrature(name: str) -> None:
    """From the definition: (1 - a_eps)^2 for the relevant token and a_l^2 for the others."""
    tokens, signal, value = 4, mp.mpf("1.7"), mp.mpf("0.45")
    for alignment, residual in ((0.6, 0.0), (-0.8, 0.7)):
        numbers = {L: tokens, nu_f: Rational("2.89"), v: Rational("0.45"), b: Rational("0.3")}
        numbers |= {m: Rational(str(alignment)), r: Rational(str(residual))}
        with mp.workdps(25):
            centre, variance = mp.mpf(str(alignment)) * signal, mp.mpf(str(alignment)) ** 2
            variance += mp.mpf(str(residual))
            weight = WEIGHTS[name]
            expected = gaussian_integral(
                lambda x, w=weight: (1 - value * w(x)) ** 2, centre, variance
            )
            square = gaussian_integral(lambda x, w=weight: (value * w(x)) ** 2, 0, variance)
            expected += (tokens - 1) * square
            found = with_owens_integral(spike_loss(ACTIVATIONS[name]).value.subs(numbers))
        assert abs(found - expected) < 1e-15


def test_minimum_of_linear_attention() -> None:
    found = spike_minimum(LINEAR)
    assert sp.simplify(found.risk - L * (L - 1) / (L**2 + nu_f * (L - 1))) == 0
    assert sp.simplify(found.m - sqrt(nu_f) * (1 - 1 / L)) == 0
    assert sp.simplify(found.v - found.risk / (L - 1)) == 0
    loss = spike_loss(LINEAR).value
    at = {m: found.m, v: found.v, r: 0}
    assert sp.simplify(loss.subs(at) - found.risk) == 0
    assert sp.simplify(loss.diff(r).subs(at)) == L * found.v**2
    # Without a signal every token gets the same; one token alone gets everything.
    assert sp.simplify(found.risk.subs(nu_f, 0) - (1 - 1 / L)) == 0
    assert found.risk.subs(L, 1) == 0


@pytest.mark.parametrize("weight", [1 + chi, 2 - 3 * chi, -1 - chi / 4], ids=str)
def test_excess_is_the_loss_above_the_minimum(weight: Expr) -> None:
    attention = Attention("affine", weight, "none", trained=("v",))
    loss, found = spike_loss(attention), spike_minimum(attention)
    functions = {A: loss.a.subs(r, 0), B: loss.b.subs(r, 0)}
    difference = loss.value - found.risk - found.excess.subs(functions)
    assert sp.simplify(difference) == 0
    rng = np.random.default_rng(4)
    for tokens, nu in ((1, 0.5), (2, 3.0), (50, 0.01)):
        for _ in range(5):
            state = dict(zip((m, v, r), (*rng.normal(size=2), rng.exponential()), strict=True))
            numbers = {x: Rational(float(value)) for x, value in state.items()}
            numbers |= {L: tokens, nu_f: Rational(nu)}
            terms = [x.subs(functions).subs(numbers).evalf() for x in found.excess.args]
            assert len(terms) == 3
            assert all(x >= 0 for x in terms)


def test_no_descent_finds_less_than_the_minimum() -> None:
    tokens, nu = 3, 2.0
    loss = sp.lambdify((m, v, r), spike_loss(LINEAR).value.subs({L: tokens, nu_f: nu}))
    expected = float(spike_minimum(LINEAR).risk.subs({L: tokens, nu_f: nu}))
    rng = np.random.default_rng(7)
    found = [
        minimize(lambda x: loss(x[0], x[1], x[2] ** 2), rng.normal(size=3), tol=1e-12).fun
        for _ in range(20)
    ]
    assert min(found) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    "attention",
    [
        ERF,
        ACTIVATIONS["softmax"],
        Attention("square", 1 + chi**2, "none"),
        Attention("odd", chi, "none"),
        Attention("pole", 1 + 1 / (2 + chi), "none"),
    ],
    ids=lambda a: a.name,
)
def test_other_weights_have_no_closed_minimum(attention: Attention) -> None:
    with pytest.raises(DeriveError, match=rf"^{attention.name}: "):
        spike_minimum(attention)


def test_normalized_weights_have_no_closed_loss() -> None:
    with pytest.raises(DeriveError, match=r"^softplus: "):
        spike_loss(ACTIVATIONS["softplus"])
