"""Sector eigenvalues against the dense Hessian in (m, rho), and the published growth rates."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import sympy as sp
from sympy import Expr, Matrix, Rational, Symbol

from derive.attention import ACTIVATIONS
from derive.expansion import expand_at_origin
from derive.hessian import origin_kernels, sector_eigenvalues
from derive.symbols import H, L, nu_f
from numeric._generated import b_softmax, softmax

HEADS, FEATURES = 3, 2
MODULES = {"softmax": softmax, "b-softmax": b_softmax}
NAMES = ["mean", "difference", "residual_mean", "residual_difference"]


@cache
def _eigenvalues(name: str) -> dict[str, Expr]:
    return sector_eigenvalues(expand_at_origin(ACTIVATIONS[name]))


def _softmax_loss(m: Matrix, r: Matrix, second: Matrix, tokens: int) -> Expr:
    """derive.task section 5, written out for equal heads and zero mean."""
    size, heads = sp.Integer(tokens), m.rows
    mbar = sum((m[h, :] for h in range(heads)), sp.zeros(1, m.cols)) / heads
    own = sum((m[h, :] * second * m[h, :].T)[0] for h in range(heads)) / heads
    rbar = sum(r) / sp.Integer(heads) ** 2
    bracket = -(1 - 2 / size) * own + (mbar * mbar.T)[0] + rbar + (mbar * second * mbar.T)[0] / size
    return 1 - 1 / size + (1 - 1 / size) / size * bracket


def _b_softmax_loss(m: Matrix, r: Matrix, second: Matrix, tokens: int) -> Expr:
    """One head of score c + (<chi^2> - c^2)/2 in the same formula, c the average over heads."""
    size, heads = sp.Integer(tokens), m.rows
    mbar = sum((m[h, :] for h in range(heads)), sp.zeros(1, m.cols)) / heads
    rbar = sum(r) / sp.Integer(heads) ** 2
    own = sum((m[h, :] * second * m[h, :].T)[0] for h in range(heads)) / heads
    pooled = (mbar * second * mbar.T)[0]
    # Twice the difference of the score's mean between the relevant token and the others.
    shift = own - pooled
    bracket = -shift - (1 - 2 / size) * pooled + (mbar * mbar.T)[0] + rbar + pooled / size
    return 1 - 1 / size + (1 - 1 / size) / size * bracket


LOSSES = {"softmax": _softmax_loss, "b-softmax": _b_softmax_loss}


def _dense_hessian(loss: Callable, tokens: int, second: Matrix) -> np.ndarray:
    m = Matrix(HEADS, FEATURES, lambda i, j: Symbol(f"m{i}{j}"))
    rho = Matrix(HEADS, HEADS, lambda i, j: Symbol(f"rho{i}{j}"))
    variables = [*m, *rho]
    value = sp.expand(loss(m, rho * rho.T, second, tokens))
    dense = sp.hessian(value, variables).subs(dict.fromkeys(variables, 0))
    return np.array(dense.tolist(), dtype=float)


@pytest.mark.parametrize("tokens", [2, 3, 7])
@pytest.mark.parametrize("name", LOSSES)
def test_sectors_are_the_spectrum_of_the_dense_hessian(name: str, tokens: int) -> None:
    # Second moment with eigenvalues 3 and 1/2 along rotated axes.
    rotation = Matrix([[3, 4], [-4, 3]]) / 5
    nus = [sp.Integer(3), Rational(1, 2)]
    second = rotation * sp.diag(*nus) * rotation.T
    dense = _dense_hessian(LOSSES[name], tokens, second)
    sectors = {k: v.subs({L: tokens, H: HEADS}) for k, v in _eigenvalues(name).items()}
    expected = []
    for nu in nus:
        expected += [sectors["mean"].subs(nu_f, nu)]
        expected += [sectors["difference"].subs(nu_f, nu)] * (HEADS - 1)
    expected += [sectors["residual_mean"]] * HEADS
    expected += [sectors["residual_difference"]] * (HEADS * (HEADS - 1))
    assert len(expected) == len(dense) == HEADS * FEATURES + HEADS**2
    np.testing.assert_allclose(
        np.linalg.eigvalsh(dense), np.sort(np.array(expected, dtype=float)), atol=1e-14
    )


@pytest.mark.parametrize("name", LOSSES)
def test_eigenvectors_of_the_sectors(name: str) -> None:
    tokens = 5
    nus = (sp.Integer(3), Rational(1, 2))
    dense = _dense_hessian(LOSSES[name], tokens, sp.diag(*nus))
    alike, apart = np.ones(HEADS) / np.sqrt(HEADS), np.array([1.0, -2.0, 1.0]) / np.sqrt(6)
    for vector, sector in ((alike, "mean"), (apart, "difference")):
        for f, nu in enumerate(nus):
            direction = np.zeros(len(dense))
            direction[f : HEADS * FEATURES : FEATURES] = vector
            rate = float(_eigenvalues(name)[sector].subs({L: tokens, H: HEADS, nu_f: nu}))
            np.testing.assert_allclose(dense @ direction, rate * direction, atol=1e-14)
    for vector, sector in ((alike, "residual_mean"), (apart, "residual_difference")):
        direction = np.zeros(len(dense))
        direction[HEADS * FEATURES + 1 :: HEADS] = vector
        rate = float(_eigenvalues(name)[sector].subs({L: tokens, H: HEADS}))
        np.testing.assert_allclose(dense @ direction, rate * direction, atol=1e-14)


def test_growth_rate_of_head_differences_is_the_published_one() -> None:
    published = 2 / (H * L) * (1 - 1 / L) * (1 - 2 / L) * nu_f
    assert sp.simplify(-_eigenvalues("softmax")["difference"] - published) == 0


def test_other_rates_of_the_built_in_activations() -> None:
    factor = 2 / (H * L) * (1 - 1 / L)
    for name in LOSSES:
        found = _eigenvalues(name)
        assert list(found) == NAMES
        assert sp.simplify(found["mean"] - factor * (1 - (1 - 3 / L) * nu_f)) == 0
        assert sp.simplify(found["residual_mean"] - factor) == 0
        assert found["residual_difference"] == 0
    assert sp.simplify(_eigenvalues("b-softmax")["difference"] + factor * nu_f) == 0


def test_with_two_tokens_only_pooled_heads_separate() -> None:
    at_two = {L: 2}
    assert _eigenvalues("softmax")["difference"].subs(at_two) == 0
    assert sp.simplify(_eigenvalues("b-softmax")["difference"].subs(at_two) + nu_f / (2 * H)) == 0


def test_one_token_leaves_nothing_to_learn() -> None:
    for name in LOSSES:
        assert all(e.subs(L, 1) == 0 for e in _eigenvalues(name).values())


@pytest.mark.parametrize("name", LOSSES)
def test_kernels_return_the_sectors_in_numbers(name: str) -> None:
    tokens, heads, nu = np.array([2, 5, 10**6]), np.array([[1], [4]]), np.array([0.5, 3.0, 0.7])
    found = MODULES[name].origin_eigenvalues(tokens, heads, nu)
    for sector, values in zip(NAMES, found, strict=True):
        assert values.shape == (2, 3)
        for (i, j), value in np.ndenumerate(values):
            exact = _eigenvalues(name)[sector].subs(
                {L: int(tokens[j]), H: int(heads[i, 0]), nu_f: Rational(float(nu[j]))}
            )
            assert value == pytest.approx(float(exact), rel=1e-13, abs=0)


@pytest.mark.parametrize("name", LOSSES)
def test_origin_kernel_against_the_hand_written_loss(name: str) -> None:
    tokens = 4
    rng = np.random.default_rng(11)
    m, rho = rng.normal(size=(HEADS, FEATURES)), rng.normal(size=(HEADS, HEADS))
    r, second = rho @ rho.T, np.array([[2.0, -0.25], [-0.25, 1.0]])
    p = np.full((HEADS, 1), 1 / HEADS)
    value, in_m, in_r = MODULES[name].origin_expansion(
        m, r, np.zeros((FEATURES, 1)), second, p, np.diag(p[:, 0]), tokens
    )

    def loss(x: np.ndarray, y: np.ndarray) -> float:
        return float(LOSSES[name](Matrix(x), Matrix(y), Matrix(second), tokens))

    assert value == pytest.approx(loss(m, r), rel=1e-14)
    # The loss is quadratic in m and linear in r: symmetric differences are exact.
    for index in np.ndindex(m.shape):
        step = np.zeros_like(m)
        step[index] = 0.5
        assert in_m[index] == pytest.approx(loss(m + step, r) - loss(m - step, r), abs=1e-13)
    for index in np.ndindex(r.shape):
        step = np.zeros_like(r)
        step[index] = 0.5
        assert in_r[index] == pytest.approx(loss(m, r + step) - loss(m, r - step), abs=1e-13)


def test_kernel_specs_name_their_sectors_in_order() -> None:
    expansion, eigenvalues = origin_kernels(ACTIVATIONS["softmax"])
    assert [o.name for o in eigenvalues.outputs] == NAMES
    assert [o.name for o in expansion.outputs] == ["value", "in_m", "in_r"]
    assert not eigenvalues.is_matrix
    assert expansion.is_matrix
