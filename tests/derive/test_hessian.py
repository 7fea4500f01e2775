"""Sector eigenvalues against the dense Hessian in (m, rho), and the published growth rates."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import sympy as sp
from sympy import Expr, Matrix, Rational, Symbol, exp, log

from derive.attention import ACTIVATIONS, Attention
from derive.emit import module_source
from derive.expansion import (
    alignment,
    expand_at_origin,
    head_norm,
    head_residual,
    head_signal,
    pair_norm,
    pair_residual,
    pair_signal,
)
from derive.hessian import origin_kernels, sector_eigenvalues
from derive.spec import Module
from derive.stable import expit
from derive.symbols import H, L, b, chi, nu_f, v
from numeric._generated import ACTIVATIONS as MODULES

HEADS, FEATURES = 3, 2
NAMES = ["mean", "difference", "residual_mean", "residual_difference"]
BIAS, VALUE = Rational(-1, 4), Rational(2, 5)


@cache
def _eigenvalues(name: str) -> dict[str, Expr]:
    """By sector, in L, H, nu, b and v."""
    expansion = expand_at_origin(ACTIVATIONS[name])
    found = sector_eigenvalues(expansion)
    return {sector: x.subs(expansion.bias_functions) for sector, x in found.items()}


def _written(expression: Expr) -> Expr:
    return expression.replace(expit, lambda x: 1 / (1 + exp(-x)))


def _number(expression: Expr) -> Expr:
    return sp.N(_written(expression), 40)


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


def _expanded_loss(name: str) -> Callable:
    """The derived expansion, its averages over heads and pairs of heads written out."""
    expansion = expand_at_origin(ACTIVATIONS[name])
    derived = _written(expansion.in_invariants.subs(expansion.bias_functions))

    def loss(m: Matrix, r: Matrix, second: Matrix, tokens: int) -> Expr:
        heads = m.rows
        ones = sp.ones(1, heads) / heads
        averages = {
            alignment: 0,
            head_signal: (m * second * m.T).trace() / heads,
            head_norm: (m * m.T).trace() / heads,
            head_residual: r.trace() / heads,
            pair_signal: (ones * m * second * m.T * ones.T)[0],
            pair_norm: (ones * m * m.T * ones.T)[0],
            pair_residual: (ones * r * ones.T)[0],
        }
        return _number(derived.subs({L: tokens, H: heads, b: BIAS, v: VALUE})).subs(averages)

    return loss


PUBLISHED = {"softmax": _softmax_loss, "b-softmax": _b_softmax_loss}
LOSSES = {name: PUBLISHED.get(name) or _expanded_loss(name) for name in ACTIVATIONS}


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
    numbers = {L: tokens, H: HEADS, b: BIAS, v: VALUE}
    sectors = {k: _written(x.subs(numbers)) for k, x in _eigenvalues(name).items()}
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
    numbers = {L: tokens, H: HEADS, b: BIAS, v: VALUE}
    nus = (sp.Integer(3), Rational(1, 2))
    dense = _dense_hessian(LOSSES[name], tokens, sp.diag(*nus))
    alike, apart = np.ones(HEADS) / np.sqrt(HEADS), np.array([1.0, -2.0, 1.0]) / np.sqrt(6)
    for vector, sector in ((alike, "mean"), (apart, "difference")):
        for f, nu in enumerate(nus):
            direction = np.zeros(len(dense))
            direction[f : HEADS * FEATURES : FEATURES] = vector
            rate = _number(_eigenvalues(name)[sector].subs(numbers | {nu_f: nu}))
            np.testing.assert_allclose(dense @ direction, float(rate) * direction, atol=1e-14)
    for vector, sector in ((alike, "residual_mean"), (apart, "residual_difference")):
        direction = np.zeros(len(dense))
        direction[HEADS * FEATURES + 1 :: HEADS] = vector
        rate = _number(_eigenvalues(name)[sector].subs(numbers))
        np.testing.assert_allclose(dense @ direction, float(rate) * direction, atol=1e-14)


def test_growth_rate_of_head_differences_is_the_published_one() -> None:
    published = 2 / (H * L) * (1 - 1 / L) * (1 - 2 / L) * nu_f
    assert sp.simplify(-_eigenvalues("softmax")["difference"] - published) == 0


def test_other_published_rates() -> None:
    factor = 2 / (H * L) * (1 - 1 / L)
    for name in PUBLISHED:
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
    for name in ("softmax", "softmax-v", "b-softmax", "softplus"):
        assert all(e.subs(L, 1) == 0 for e in _eigenvalues(name).values())


def test_rates_where_values_rest() -> None:
    """With all tokens' attention 1 in sum, only a token's share and the weight's curvature count."""
    factor = 2 / (H * L) * (1 - 1 / L)
    a = 1 / (L + exp(-b))
    at_rest = _eigenvalues("softmax-1")["difference"].subs(v, 1 / (H * L * a))
    assert sp.simplify(_written(at_rest) + factor * (1 - 2 * a) * nu_f) == 0
    at_rest = _eigenvalues("softmax-v")["difference"].subs(v, 1 / H)
    assert sp.simplify(at_rest + factor * (1 - 2 / L) * nu_f) == 0
    erf_share = 1 + sp.erf(b)
    at_rest = _eigenvalues("erf")["difference"].subs(v, 1 / (H * L * erf_share))
    curvature = -4 * b * exp(-(b**2)) / sp.sqrt(sp.pi)
    assert sp.simplify(at_rest + factor * curvature / erf_share * nu_f) == 0
    # softplus: w'' / w - 2 (w'/w)^2 / L at zero score, w = log 2, w' = 1/2, w'' = 1/4.
    rate = 1 / (4 * log(2)) - 2 / (4 * log(2) ** 2) / L
    assert sp.simplify(_eigenvalues("softplus")["difference"] + factor * rate * nu_f) == 0
    assert _eigenvalues("linear")["difference"] == 0


@pytest.mark.parametrize("name", LOSSES)
def test_kernels_return_the_sectors_in_numbers(name: str) -> None:
    tokens, heads, nu = np.array([2, 5, 10**6]), np.array([[1], [4]]), np.array([0.5, 3.0, 0.7])
    values = {"b": np.array([-0.5, 0.0, 2.0]), "v": np.array([0.25, -1.0, 0.125])}
    trained = {x: values[x] for x in ACTIVATIONS[name].trained}
    found = MODULES[name].origin_eigenvalues(tokens, heads, nu, **trained)
    for sector, values in zip(NAMES, found, strict=True):
        assert values.shape == (2, 3)
        for (i, j), value in np.ndenumerate(values):
            numbers = {L: int(tokens[j]), H: int(heads[i, 0]), nu_f: Rational(float(nu[j]))}
            for x, given in trained.items():
                numbers[{"b": b, "v": v}[x]] = Rational(float(given[j]))
            exact = _number(_eigenvalues(name)[sector].subs(numbers))
            # Differences like L a - 1 lose digits where the background is small beside L tokens.
            assert value == pytest.approx(float(exact), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("bias", [-800.0, 800.0])
def test_extreme_biases_neither_overflow_nor_warn(bias: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        for name in ("softmax-1", "erf"):
            found = MODULES[name].origin_eigenvalues(5, 2, 4.0, bias, 0.5)
            assert np.isfinite(found).all()
            one = MODULES["softmax-v"].origin_eigenvalues(5, 2, 4.0, 0.5)
            # A large bias drowns the background; a small one leaves no attention at all.
            if name == "softmax-1":
                expected = one if bias > 0 else np.zeros(4)
                np.testing.assert_allclose(found, expected, atol=1e-15)


def test_kernel_specs_name_their_sectors_in_order() -> None:
    for attention in ACTIVATIONS.values():
        (eigenvalues,) = origin_kernels(attention)
        assert [o.name for o in eigenvalues.outputs] == NAMES
        assert [a.name for a in eigenvalues.inputs] == ["L", "H", "nu", *attention.trained]
        assert not eigenvalues.is_matrix


def test_a_user_defined_activation_has_the_kernel() -> None:
    attention = Attention("bent", 1 + chi**2 / 3 + chi, "per-head", 2, ("v",))
    (eigenvalues,) = origin_kernels(attention)
    scope: dict = {}
    exec(module_source(Module("bent", "A module.", (eigenvalues,))), scope)
    # One head, two tokens: the loss as one of them fluctuates.
    value, nu, step = 0.7, 3.0, 1e-3
    chi_values = step * np.array([-1.0, 0.0, 1.0])
    weight = 1 + chi_values**2 / 3 + chi_values
    moving, resting = value * weight / (3 + weight), value / (3 + weight)
    losses = [(1 - moving) ** 2 + resting**2, (1 - resting) ** 2 + moving**2]
    second = [(x[0] - 2 * x[1] + x[2]) / step**2 for x in losses]
    found = scope["origin_eigenvalues"](2, 1, nu, value)
    assert float(found[0]) == pytest.approx((1 + nu) * second[0] + second[1], rel=1e-5)
    assert float(found[2]) == pytest.approx(second[0] + second[1], rel=1e-5)
