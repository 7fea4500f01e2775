"""The expansion at the origin against the published formula and against brute force.

Brute force writes one sample's loss out in all H x L scores, Taylor-expands it to second order and
takes the Gaussian moments by hand, with symbolic order parameters.
"""

from functools import cache
from itertools import combinations_with_replacement

import pytest
import sympy as sp
from sympy import Expr, Matrix, Rational, Symbol, exp, log

from derive.attention import ACTIVATIONS, Attention
from derive.errors import DeriveError
from derive.expansion import (
    INVARIANTS,
    OriginExpansion,
    alignment,
    expand_at_origin,
    head_0,
    head_1,
    head_norm,
    head_residual,
    head_signal,
    mean_1,
    pair_0,
    pair_1,
    pair_norm,
    pair_residual,
    pair_signal,
)
from derive.symbols import L, b, chi

PUBLISHED = (1 - 1 / L) + (1 / L) * (1 - 1 / L) * (
    -2 * alignment - (1 - 2 / L) * head_signal + pair_norm + pair_residual + pair_signal / L
)
# b-softmax is softmax with one head of score log sum_h p_h exp(chi_h) = c + (<chi^2> - c^2)/2,
# c = <chi>: put its moments into the published formula with H = 1.
ONE_SCORE_MEANS = 2 * alignment + (head_signal - pair_signal)
POOLED = (1 - 1 / L) + (1 / L) * (1 - 1 / L) * (
    -ONE_SCORE_MEANS - (1 - 2 / L) * pair_signal + pair_norm + pair_residual + pair_signal / L
)
CUSTOM = [
    Attention("softplus", log(log(1 + exp(chi))), "per-head"),
    Attention("bent", chi + chi**2 / 3, "pooled"),
    Attention("shifted", b + 2 * chi - chi**2, "pooled", trained=("b",)),
    Attention("gaussian", chi**2, "per-head"),
]


@cache
def _expansion(attention: Attention) -> OriginExpansion:
    return expand_at_origin(attention)


def test_softmax_is_the_published_formula() -> None:
    found = _expansion(ACTIVATIONS["softmax"]).in_invariants
    assert sp.simplify(found - PUBLISHED) == 0


def test_b_softmax_is_one_head_with_the_pooled_score() -> None:
    found = _expansion(ACTIVATIONS["b-softmax"]).in_invariants
    assert sp.simplify(found - POOLED) == 0


@pytest.mark.parametrize("attention", ACTIVATIONS.values(), ids=lambda a: a.name)
def test_coefficients_rebuild_the_expansion(attention: Attention) -> None:
    expansion = _expansion(attention)
    constant = expansion.in_invariants.subs(dict.fromkeys(INVARIANTS, 0))
    rebuilt = constant + sum(expansion.coefficient(x) * x for x in INVARIANTS)
    assert sp.simplify(constant - (1 - 1 / L)) == 0
    assert sp.simplify(rebuilt - expansion.in_invariants) == 0
    assert expansion.in_invariants.free_symbols <= {L, *INVARIANTS}


@pytest.mark.parametrize("attention", ACTIVATIONS.values(), ids=lambda a: a.name)
def test_moments_without_signal_leave_only_the_cost_of_fluctuations(attention: Attention) -> None:
    moments = _expansion(attention).in_moments
    null = {mean_1: 0, head_1: head_0, pair_1: pair_0}
    # Attention that cannot know the position: a score variance q costs q (L - 1) / L^2.
    assert sp.simplify(moments.subs(null) - (1 - 1 / L) - pair_0 * (L - 1) / L**2) == 0


def _symmetric(name: str, n: int) -> Matrix:
    return Matrix(n, n, lambda i, j: Symbol(f"{name}{min(i, j)}{max(i, j)}", real=True))


def _full(name: str, rows: int, columns: int) -> Matrix:
    return Matrix(rows, columns, lambda i, j: Symbol(f"{name}{i}{j}", real=True))


def _head_factors(attention: Attention, heads: int) -> list[Rational]:
    """``exp(b_h)`` when the bias is trained: unequal weights 2, 3 for two heads."""
    return [sp.Integer(2 + h) if attention.trained else sp.Integer(1) for h in range(heads)]


def _taylor(attention: Attention, factor: Expr) -> list[Expr]:
    weight = exp(attention.log_weight).subs(b, log(factor))
    return [weight.diff(chi, k).subs(chi, 0) / sp.factorial(k) for k in range(3)]


def _brute_force(
    attention: Attention, tokens: int, m: Matrix, r: Matrix, mu: Matrix, second: Matrix
) -> Expr:
    """E to second order in (m, sqrt r), from explicit scores; token 0 is the relevant one."""
    heads = m.rows
    scores = [[Symbol(f"x{h}_{k}", real=True) for k in range(tokens)] for h in range(heads)]
    factors = _head_factors(attention, heads)
    # Two Taylor coefficients of a weight are all that the second order can see.
    weight = [
        [sum(c * x**k for k, c in enumerate(_taylor(attention, factor))) for x in row]
        for row, factor in zip(scores, factors, strict=True)
    ]
    if attention.normalization == "pooled":
        total = sum(sum(row) for row in weight)
        a = [sum(row[k] for row in weight) / total for k in range(tokens)]
    else:
        a = [sum(row[k] / sum(row) for row in weight) / heads for k in range(tokens)]
    loss = (1 - a[0]) ** 2 + sum(x**2 for x in a[1:])

    mean = m * mu
    relevant = m * (sp.eye(m.cols) + second) * m.T + r
    other = m * m.T + r
    origin = {x: 0 for row in scores for x in row}
    result = loss.subs(origin)
    for h in range(heads):
        result += loss.diff(scores[h][0]).subs(origin) * mean[h]
    for k in range(tokens):
        moment = relevant if k == 0 else other
        for i, j in combinations_with_replacement(range(heads), 2):
            curvature = loss.diff(scores[i][k], scores[j][k]).subs(origin)
            result += curvature * moment[i, j] / (2 if i == j else 1)
    return result


def _invariants(
    factors: list[Rational], m: Matrix, r: Matrix, mu: Matrix, second: Matrix
) -> dict[Symbol, Expr]:
    p = Matrix(factors) / sum(factors)
    mbar = m.T * p
    heads = range(m.rows)
    return {
        alignment: (mbar.T * mu)[0],
        head_signal: sum(p[h] * (m[h, :] * second * m[h, :].T)[0] for h in heads),
        head_norm: sum(p[h] * (m[h, :] * m[h, :].T)[0] for h in heads),
        head_residual: sum(p[h] * r[h, h] for h in heads),
        pair_signal: (mbar.T * second * mbar)[0],
        pair_norm: (mbar.T * mbar)[0],
        pair_residual: (p.T * r * p)[0],
    }


SIZES = [(2, 1, 1), (3, 1, 2), (2, 2, 1), (3, 2, 1), (3, 2, 2)]


def _check(attention: Attention, tokens: int, heads: int, features: int) -> None:
    m, mu = _full("m", heads, features), _full("mu", features, 1)
    r, second = _symmetric("r", heads), _symmetric("M", features)
    exact = _brute_force(attention, tokens, m, r, mu, second)
    values = _invariants(_head_factors(attention, heads), m, r, mu, second)
    found = _expansion(attention).in_invariants.subs(L, tokens).subs(values)
    assert exact.has(m[0, 0])
    assert sp.simplify(sp.expand(exact - found)) == 0


@pytest.mark.parametrize(("tokens", "heads", "features"), SIZES)
@pytest.mark.parametrize("attention", ACTIVATIONS.values(), ids=lambda a: a.name)
def test_built_in_expansions_against_brute_force(
    attention: Attention, tokens: int, heads: int, features: int
) -> None:
    _check(attention, tokens, heads, features)


@pytest.mark.parametrize("attention", CUSTOM, ids=lambda a: a.name)
def test_user_defined_weights_against_brute_force(attention: Attention) -> None:
    _check(attention, 2 if attention.name == "shifted" else 3, 2, 1)


def test_three_heads_against_brute_force() -> None:
    _check(ACTIVATIONS["b-softmax"], 2, 3, 1)


@pytest.mark.parametrize("weight", [b * chi, log(1 + exp(b + chi)), log(exp(b) + exp(chi))])
def test_a_slope_that_depends_on_the_bias_is_refused(weight: Expr) -> None:
    with pytest.raises(DeriveError, match=r"^odd: .*slope at the origin depends on the bias"):
        expand_at_origin(Attention("odd", weight, "pooled", trained=("b",)))


def test_a_weight_flat_to_second_order_leaves_the_loss_of_uniform_attention() -> None:
    expansion = expand_at_origin(Attention("cubic", chi**3, "per-head"))
    assert sp.simplify(expansion.in_invariants - (1 - 1 / L)) == 0


@pytest.mark.parametrize("weight", [log(chi**2), abs(chi)], ids=["zero", "kink"])
def test_a_weight_without_taylor_expansion_is_refused(weight: Expr) -> None:
    with pytest.raises(DeriveError):
        expand_at_origin(Attention("rough", weight, "per-head"))
