"""Matrix calculus against differentiation of explicit matrices, element by element."""

import numpy as np
import pytest
import sympy as sp
from sympy import Expr, ImmutableMatrix, MatrixSymbol, Symbol, Trace

from derive.gradient import flow_field, law_gradient, matrix_gradient
from derive.symbols import F, G, Gamma, H, M, S, V, gain, kappa, m, mu, r, rho
from numeric._generated import order_parameters

HEADS = FEATURES = 2
SIZES = {H: HEADS, F: FEATURES}


def _full(name: str, rows: int, columns: int) -> ImmutableMatrix:
    return ImmutableMatrix(rows, columns, lambda i, j: Symbol(f"{name}{i}{j}", real=True))


def _symmetric(name: str, n: int) -> ImmutableMatrix:
    return ImmutableMatrix(n, n, lambda i, j: Symbol(f"{name}{min(i, j)}{max(i, j)}", real=True))


EXPLICIT = {
    m: _full("m", HEADS, FEATURES),
    # Not symmetric, to tell r from its transpose and one element from the other.
    r: _full("r", HEADS, HEADS),
    mu: _full("mu", FEATURES, 1),
    M: _symmetric("M", FEATURES),
    S: _symmetric("S", FEATURES),
    gain: _full("g", HEADS, 1),
    Gamma: _symmetric("Gamma", HEADS),
    G: _symmetric("G", HEADS),
    V: _symmetric("V", HEADS),
    rho: _full("rho", HEADS, HEADS),
}


def explicit(expression: Expr) -> Expr:
    """Return an expression of matrix symbols with explicit matrices in their place."""
    expression = expression.subs(SIZES)
    return expression.subs({x.subs(SIZES): value for x, value in EXPLICIT.items()}).doit()


def elementwise(scalar: Expr, x: MatrixSymbol) -> ImmutableMatrix:
    """Return the derivatives of a scalar in the elements of an explicit matrix."""
    return EXPLICIT[x].applyfunc(lambda element: sp.diff(scalar, element))


def same(one: Expr, other: Expr) -> bool:
    """Whether two matrices or scalars are equal."""
    difference = sp.Matrix([one - other]) if not getattr(one, "is_Matrix", False) else one - other
    return all(sp.expand(sp.together(x)) == 0 for x in difference)


def test_law_gradient_of_a_gaussian_expectation_known_in_closed_form() -> None:
    # E exp(a.chi) = exp(a.c + a C a / 2), so E grad = a E and (1/2) E hess = a a^T E / 2.
    a = _full("a", HEADS, 1)
    mean = EXPLICIT[m] * EXPLICIT[mu]
    covariance = EXPLICIT[m] * EXPLICIT[S] * EXPLICIT[m].T + EXPLICIT[r]
    logarithm = (a.T * mean + a.T * covariance * a / 2)[0]
    # Divide E out of everything: d(log E) instead of dE.
    gamma = a * a.T / 2
    moments = dict(zip(EXPLICIT[gain], a, strict=True)) | dict(
        zip(EXPLICIT[Gamma], gamma, strict=True)
    )
    in_m, in_r = (explicit(x).subs(moments) for x in law_gradient())
    assert same(in_m, elementwise(logarithm, m))
    assert same(in_r, elementwise(logarithm, r))


def test_law_gradient_is_the_chain_rule_for_any_moments() -> None:
    mean = EXPLICIT[m] * EXPLICIT[mu]
    covariance = EXPLICIT[m] * EXPLICIT[S] * EXPLICIT[m].T + EXPLICIT[r]
    change = (EXPLICIT[gain].T * mean)[0] + (EXPLICIT[Gamma] * covariance).trace()
    in_m, in_r = map(explicit, law_gradient())
    assert same(in_m, elementwise(change, m))
    # tr(Gamma dr) for a symmetric Gamma: the (i, j) element belongs to dr_ji.
    assert same(in_r, elementwise(change, r).T)


@pytest.mark.parametrize(
    "scalar",
    [
        Trace(Gamma * m * M * m.T),
        Trace(gain.T * m * mu) * 3 - Trace(m * S * m.T * Gamma),
        Trace(m.T * G * m) / 7 + Trace(r),
    ],
    ids=["quadratic", "sum", "constant beside"],
)
def test_matrix_gradient(scalar: Expr) -> None:
    assert same(explicit(matrix_gradient(scalar, m)), elementwise(explicit(scalar), m))


def test_flow_of_a_factor_is_the_flow_of_the_overlap_without_noise() -> None:
    in_overlap, in_factor = flow_field()
    factor, change = EXPLICIT[rho], explicit(in_factor)
    overlap = factor * factor.T
    values = dict(zip(EXPLICIT[r], overlap, strict=True))
    from_factor = change * factor.T + factor * change.T
    assert same(explicit(in_overlap).subs(values).subs(kappa, 0), from_factor)
    assert same(explicit(in_overlap).diff(kappa), EXPLICIT[V])
    assert same(change, -2 * EXPLICIT[G] * factor)


def test_kernels_compute_the_same_in_numbers() -> None:
    rng = np.random.default_rng(5)
    heads, features = 3, 2
    m_, mu_, g_ = (rng.normal(size=s) for s in ((heads, features), (features, 1), (heads, 1)))
    gamma, overlap, noise = ((x + x.T) / 2 for x in rng.normal(size=(3, heads, heads)))
    second = np.array([[2.0, 0.3], [0.3, 1.0]])
    in_m, in_r = order_parameters.law_gradient(m_, mu_, second, g_, gamma)
    by_loop = np.einsum("hk,kf,fe->he", 2 * gamma, m_, second) + np.outer(g_, mu_)
    np.testing.assert_allclose(in_m, by_loop, rtol=1e-14)
    np.testing.assert_array_equal(in_r, gamma)
    flow = order_parameters.overlap_flow(overlap, gamma, noise, 0.25)
    by_loop = -2 * (np.einsum("ij,jk->ik", gamma, overlap) + np.einsum("ij,jk->ik", overlap, gamma))
    np.testing.assert_allclose(flow, by_loop + noise / 4, rtol=1e-13, atol=1e-14)
    flow = order_parameters.factor_flow(m_, gamma)
    np.testing.assert_allclose(flow, -2 * np.einsum("ij,jf->if", gamma, m_), rtol=1e-14)
