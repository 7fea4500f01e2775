"""The query model: token functions by differentiation, moments of power sums by enumeration."""

import mpmath as mp
import numpy as np
import pytest
import sympy as sp

from derive.query import (
    NAMES,
    alpha,
    beta,
    d,
    n_0,
    n_I,
    objective_kernel,
    sigma,
    theta,
    token_functions,
    token_kernel,
    y,
)
from derive.query_expansion import (
    concentrated_growth,
    growth_expansion,
    mean_of_product,
    query_module,
)
from numeric._generated import query


def test_token_functions_are_derivatives() -> None:
    """Mpmath's numerical derivatives in Y of the plain definitions."""
    u, b, at = 0.3, 1.4, 0.7
    found = query.token_functions(np.exp(b * at - u), at, b)
    plain = [sp.lambdify(y, f, "mpmath") for f in token_functions(sp.exp(b * y - u))]
    for i, function in enumerate(plain):
        for k in range(3):
            with mp.workdps(30):
                exact = mp.diff(function, mp.mpf(at), k)
            assert float(found[3 * i + k]) == pytest.approx(float(exact), rel=1e-10)
    assert len(found) == 3 * len(NAMES)


def test_kernels_name_their_inputs() -> None:
    assert [a.name for a in token_kernel().inputs] == ["tau", "y", "beta"]
    names = [a.name for a in objective_kernel().inputs]
    assert names[:6] == ["n_0", "n_I", "d", "sigma", "theta", "alpha"]
    assert query_module().name == "query"


def test_means_of_power_sums_by_enumeration() -> None:
    """Three tokens, two informative; noise of +-1 has the moments of a normal up to order 3."""
    t, a = sp.Rational(3, 2), sp.Rational(1, 3)
    numbers = {n_I: 2, n_0: 1, theta: t, alpha: a, sigma: 1}
    for powers in (((0, 1), (0, 2)), ((1, 0), (1, 1)), ((0, 1), (0, 1)), ((1, 1), (1, 1), (0, 1))):
        total, count = sp.Integer(0), 0
        for signs in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            for noise in np.ndindex(2, 2, 2):
                z = [2 * i - 1 for i in noise]
                values = [s * t * a + g for s, g in zip((*signs, 0), z, strict=True)]
                product = sp.Integer(1)
                for e, k in powers:
                    tokens = range(2 if e else 3)
                    product *= sum((signs[i] if e else 1) * values[i] ** k for i in tokens)
                total += product
                count += 1
        found = mean_of_product(powers, None).subs(numbers)
        assert sp.simplify(found - total / count) == 0


@pytest.mark.parametrize("shared", [False, True])
def test_growth_is_of_second_order(shared: bool) -> None:
    found = growth_expansion(shared)
    assert found.coeff(beta, 0) == 0 and found.coeff(beta, 1) == 0
    second = sp.Poly(found, beta).coeff_monomial(beta**2)
    # Without signal there is no growth; one token is all attention whatever the query.
    assert second.subs(theta, 0) == 0
    assert sp.simplify(second.subs({n_0: 0, n_I: 1})) == 0
    # Far from all: d large, every informative token alone among many.
    leading = sp.limit(second.subs(n_I, 1) * n_0**2 / d, d, sp.oo)
    assert sp.limit(leading, n_0, sp.oo) == theta**2 * sigma**2


@pytest.mark.parametrize("shared", [False, True])
def test_the_limit_of_vanishing_noise_is_of_second_order(shared: bool) -> None:
    """Two derivations: power sums with noise, and scores without any."""
    second = growth_expansion(shared).subs(sigma, d ** sp.Rational(-1, 2))
    assert sp.simplify(sp.limit(second, d, sp.oo) - concentrated_growth(shared)) == 0


def test_a_majority_of_one_sign_attracts_the_equator() -> None:
    """The growth rate is negative where ``theta^2 n_I (n_I - 2 n_0) > n``."""
    found = concentrated_growth(True).subs({beta: 1, theta: 1})
    assert found.subs({n_I: 100, n_0: 10}) < 0 < found.subs({n_I: 100, n_0: 60})
