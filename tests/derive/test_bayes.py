"""The Bayes weight of a position against mpmath quadrature, down to a prior without width."""

import math

import mpmath as mp
import numpy as np
import pytest
import sympy as sp

from derive.bayes import bayes_module, gaussian_log_weight, strong_spike_risk
from derive.symbols import L, mu_f, nu_f, theta, xi
from numeric._generated import bayes

FORMULA = gaussian_log_weight()
XI = [-30.0, -2.5, 0.0, 0.3, 7.0]
MU = [-3.0, 0.0, 0.5]
NU = [1e-8, 0.04, 1.0, 25.0]


def _integral(x: float, mean: float, variance: float) -> mp.mpf:
    """``log E exp(theta x - theta^2/2)``, by quadrature over the standardized amplitude."""
    with mp.workdps(25):
        x, mean, deviation = mp.mpf(x), mp.mpf(mean), mp.sqrt(mp.mpf(variance))

        def exponent(z: mp.mpf) -> mp.mpf:
            amplitude = mean + deviation * z
            return amplitude * x - amplitude**2 / 2 - z**2 / 2

        # The integrand is a bell around its maximum, narrower than a standard normal.
        centre = deviation * (x - mean) / (1 + deviation**2)
        points = [centre + k for k in (-11, -3, 0, 3, 11)]
        top = exponent(centre)
        total = mp.quad(lambda z: mp.exp(exponent(z) - top), points)
        return top + mp.log(total / mp.sqrt(2 * mp.pi))


@pytest.mark.parametrize("variance", NU)
@pytest.mark.parametrize("mean", MU)
def test_formula_and_kernel_against_quadrature(mean: float, variance: float) -> None:
    formula = sp.lambdify((xi, mu_f, nu_f), FORMULA, "mpmath")
    with np.errstate(all="raise"):
        kernel = bayes.log_weight(np.array(XI), mean, variance)
    for x, found in zip(XI, kernel, strict=True):
        exact = _integral(x, mean, variance)
        with mp.workdps(25):
            from_formula = formula(mp.mpf(x), mp.mpf(mean), mp.mpf(variance))
            assert abs(from_formula - exact) < mp.mpf("1e-20") * (1 + abs(exact))
        scale = (mean**2 + 2 * abs(mean * x) + variance * x**2) / (1 + variance) + variance
        assert abs(found - exact) <= 1e-15 * (1 + scale)


def test_without_width_the_weight_is_that_of_a_support_point() -> None:
    x = np.array(XI)[:, None]
    mean = np.array([-3.0, -1e-9, 0.0, 0.5, 40.0])
    with np.errstate(all="raise"):
        found = bayes.log_weight(x, mean, 0.0)
    np.testing.assert_allclose(found, mean * x - mean**2 / 2, rtol=1e-15)


def test_the_limit_of_a_narrow_prior_is_reached_linearly() -> None:
    x, mean = sp.Rational(3, 2), sp.Rational(1, 5)
    value = FORMULA.subs({xi: x, mu_f: mean})
    assert sp.limit(value, nu_f, 0) == mean * x - mean**2 / 2
    # d/dnu E exp(theta xi - theta^2/2) = (1/2) E (d/dtheta)^2: ((xi - mu)^2 - 1)/2 at nu = 0.
    assert sp.limit(sp.diff(value, nu_f), nu_f, 0) == ((x - mean) ** 2 - 1) / 2


def test_zero_mean_unit_variance_by_hand() -> None:
    # E exp(theta xi - theta^2/2) with theta ~ N(0, 1) is exp(xi^2/4)/sqrt 2.
    value = FORMULA.subs({mu_f: 0, nu_f: 1})
    assert sp.simplify(value - (xi**2 / 4 - sp.log(2) / 2)) == 0
    assert theta not in value.free_symbols


def test_the_weight_is_normalized_over_tokens_without_signal() -> None:
    # E_z w(z) = 1 for z ~ N(0, 1): w is the likelihood ratio of the relevant position.
    with mp.workdps(20):
        total = mp.quad(
            lambda z: mp.npdf(z) * mp.exp(float(bayes.log_weight(float(z), 0.7, 0.5))),
            [-12, -4, 0, 2, 5, 12],
        )
    assert total == pytest.approx(1, abs=1e-12)


def test_kernel_broadcasts_and_states_its_domain() -> None:
    found = bayes.log_weight(np.zeros((4, 1, 3)), np.zeros((2, 1)), np.float64(0.0))
    assert found.shape == (4, 2, 3)
    kernel, *_ = bayes_module().kernels
    assert [a.name for a in kernel.inputs] == ["xi", "mu", "nu"]
    assert kernel.domain == "nu >= 0"


def test_strong_spikes_against_mpmath() -> None:
    """Two tokens: ``E 1/(1 + exp(g))``, g ~ N(nu, 2 nu); each term improves as a power of 1/nu."""
    for nu in (100, 400, 1600):
        with mp.workdps(30):

            def integrand(g: mp.mpf, nu: int = nu) -> mp.mpf:
                return mp.sech(g / 2) * mp.exp(-(g**2) / (4 * nu))

            total = 2 * mp.quad(integrand, [0, 5, 20, 60, 150])
            exact = mp.exp(-mp.mpf(nu) / 4) * total / (4 * mp.sqrt(nu * mp.pi))
        formula = strong_spike_risk().subs({L: 2, nu_f: nu}).evalf(30)
        # The first term that is left out: E_8 (pi^2/(4 nu))^4 / 4!, E_8 = 1385.
        left_out = 1385 * (math.pi**2 / (4 * nu)) ** 4 / 24
        assert abs(formula / exact - 1) < 1.5 * left_out
        assert abs(formula / exact - 1) > 0.1 * left_out


def test_linear_head_on_a_spike() -> None:
    """Least over (m, v) of ``1 - 2 v (1 + m t) + v^2 ((1 + m t)^2 + L m^2 + L - 1)``."""
    m, v, t = sp.symbols("m v t", positive=True)
    loss = 1 - 2 * v * (1 + m * t) + v**2 * ((1 + m * t) ** 2 + L * m**2 + L - 1)
    best = loss.subs(v, (1 + m * t) / ((1 + m * t) ** 2 + L * m**2 + L - 1))
    at = best.subs(m, t * (L - 1) / L)
    risk = bayes_module().kernels[2].outputs[0].expression
    assert sp.simplify(at - risk.subs(nu_f, t**2)) == 0
    assert sp.simplify(sp.diff(best, m).subs(m, t * (L - 1) / L)) == 0
    assert sp.limit(risk * nu_f / L, nu_f, sp.oo).subs(L, 5) == 1
