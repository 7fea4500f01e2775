"""The expansion at the origin against the published formula and against brute force.

Brute force writes one sample's loss out in all H x L scores, from the definition of each attention,
Taylor-expands it to second order and takes the Gaussian moments by hand.
"""

from functools import cache
from itertools import combinations_with_replacement

import pytest
import sympy as sp
from sympy import Expr, Matrix, Rational, Symbol, cosh, exp, log

from derive.attention import ACTIVATIONS, Attention
from derive.errors import DeriveError
from derive.expansion import (
    INVARIANTS,
    OriginExpansion,
    alignment,
    expand_at_origin,
    first,
    head_norm,
    head_residual,
    head_signal,
    pair_norm,
    pair_residual,
    pair_signal,
    second,
    share,
)
from derive.stable import expit
from derive.symbols import H, L, b, chi, v

PUBLISHED = (1 - 1 / L) + (1 / L) * (1 - 1 / L) * (
    -2 * alignment - (1 - 2 / L) * head_signal + pair_norm + pair_residual + pair_signal / L
)
# b-softmax is softmax with one head of score log sum_h p_h exp(chi_h) = c + (<chi^2> - c^2)/2,
# c = <chi>: put its moments into the published formula with H = 1.
ONE_SCORE_MEANS = 2 * alignment + (head_signal - pair_signal)
POOLED = (1 - 1 / L) + (1 / L) * (1 - 1 / L) * (
    -ONE_SCORE_MEANS - (1 - 2 / L) * pair_signal + pair_norm + pair_residual + pair_signal / L
)

CUSTOM = {
    "bent": Attention("bent", exp(chi + chi**2 / 3), "pooled", 1),
    "even": Attention("even", cosh(chi), "per-head", Rational(1, 2)),
    "saturating": Attention("saturating", 2 + sp.tanh(b + chi), "per-head", 0, ("b", "v")),
    "two rates": Attention("two rates", exp(2 * chi) + exp(b - chi), "pooled", 2, ("b",)),
    "cubic": Attention("cubic", chi + b * chi**2 + chi**3, "none", 0, ("b",)),
}
EVERY = {**ACTIVATIONS, **CUSTOM}

# One head's weight and what the weights of one head, or of all, are divided by: written down anew.
WEIGHTS = {
    "softmax": lambda x, b: exp(x),
    "softmax-v": lambda x, b: exp(x),
    "softmax-1": lambda x, b: exp(x + b),
    "b-softmax": lambda x, b: exp(x + b),
    "linear": lambda x, b: 1 + x,
    "erf": lambda x, b: 1 + sp.erf(x + b),
    "softplus": lambda x, b: log(1 + exp(x)),
    "bent": lambda x, b: exp(x + x**2 / 3),
    "even": lambda x, b: cosh(x),
    "saturating": lambda x, b: 2 + sp.tanh(x + b),
    "two rates": lambda x, b: exp(2 * x) + exp(b - x),
    "cubic": lambda x, b: x + b * x**2 + x**3,
}
BACKGROUND = {"softmax-1": 1, "bent": 1, "even": Rational(1, 2), "two rates": 2}
UNNORMALIZED = {"linear", "erf", "cubic"}
POOLS = {"b-softmax", "bent", "two rates"}
TRAINED_VALUES = {"softmax-v", "softmax-1", "linear", "erf", "saturating"}
AVERAGES = {"softmax", "softmax-v", "softplus", "saturating"}


@cache
def _expansion(name: str) -> OriginExpansion:
    return expand_at_origin(EVERY[name])


def test_softmax_is_the_published_formula() -> None:
    assert sp.simplify(_expansion("softmax").in_invariants - PUBLISHED) == 0


def test_b_softmax_is_one_head_with_the_pooled_score() -> None:
    assert sp.simplify(_expansion("b-softmax").in_invariants - POOLED) == 0


def test_softmax_is_a_special_case_of_its_relatives() -> None:
    # Equal values 1/H; and a bias so large that the background does not count.
    values = {v: 1 / H}
    assert sp.simplify(_expansion("softmax-v").in_invariants.subs(values) - PUBLISHED) == 0
    values |= {share: 1 / L}
    assert sp.simplify(_expansion("softmax-1").in_invariants.subs(values) - PUBLISHED) == 0


@pytest.mark.parametrize("name", EVERY)
def test_coefficients_rebuild_the_expansion(name: str) -> None:
    expansion = _expansion(name)
    constant = expansion.in_invariants.subs(dict.fromkeys(INVARIANTS, 0))
    rebuilt = constant + sum(expansion.coefficient(x) * x for x in INVARIANTS)
    assert sp.simplify(rebuilt - expansion.in_invariants) == 0
    attention = expansion.attention
    assert sp.simplify(constant - (1 - 2 * attention + L * attention**2)) == 0
    known = {L, H, v, share, first, second, *INVARIANTS}
    assert expansion.in_invariants.free_symbols <= known
    assert set(expansion.bias_functions) <= {share, first, second}
    for value in expansion.bias_functions.values():
        assert b in value.free_symbols <= {b, L, H}


def _symmetric(name: str, n: int) -> Matrix:
    return Matrix(n, n, lambda i, j: Symbol(f"{name}{min(i, j)}{max(i, j)}", real=True))


def _full(name: str, rows: int, columns: int) -> Matrix:
    return Matrix(rows, columns, lambda i, j: Symbol(f"{name}{i}{j}", real=True))


def _brute_force(
    name: str,
    tokens: int,
    bias: Expr,
    value: Expr,
    m: Matrix,
    r: Matrix,
    mu: Matrix,
    moment: Matrix,
) -> Expr:
    """E to second order in (m, sqrt r), from explicit scores; token 0 is the relevant one."""
    heads = m.rows
    scores = [[Symbol(f"x{h}_{k}", real=True) for k in range(tokens)] for h in range(heads)]
    weight = [[WEIGHTS[name](x, bias) for x in row] for row in scores]
    background = BACKGROUND.get(name, 0)
    if name in POOLS:
        total = background + sum(sum(row) for row in weight)
        a = [sum(row[k] for row in weight) / total for k in range(tokens)]
    else:
        totals = [1 if name in UNNORMALIZED else background + sum(row) for row in weight]
        a = [
            value * sum(row[k] / total for row, total in zip(weight, totals, strict=True))
            for k in range(tokens)
        ]
    loss = (1 - a[0]) ** 2 + sum(x**2 for x in a[1:])

    mean = m * mu
    relevant = m * (sp.eye(m.cols) + moment) * m.T + r
    other = m * m.T + r
    origin = {x: 0 for row in scores for x in row}
    result = _number(loss.subs(origin))
    for h in range(heads):
        result += _number(loss.diff(scores[h][0]).subs(origin)) * mean[h]
    for k in range(tokens):
        covariance = other if k else relevant
        for i, j in combinations_with_replacement(range(heads), 2):
            curvature = _number(loss.diff(scores[i][k], scores[j][k]).subs(origin))
            result += curvature * covariance[i, j] / (2 if i == j else 1)
    return result


def _invariants(m: Matrix, r: Matrix, mu: Matrix, moment: Matrix) -> dict[Symbol, Expr]:
    heads = m.rows
    mbar = m.T * sp.ones(heads, 1) / heads
    return {
        alignment: (mbar.T * mu)[0],
        head_signal: (m * moment * m.T).trace() / heads,
        head_norm: (m * m.T).trace() / heads,
        head_residual: r.trace() / heads,
        pair_signal: (mbar.T * moment * mbar)[0],
        pair_norm: (mbar.T * mbar)[0],
        pair_residual: sum(r) / sp.Integer(heads) ** 2,
    }


SIZES = [(1, 2, 1), (2, 1, 1), (3, 1, 2), (2, 2, 1), (3, 2, 2)]


@pytest.mark.parametrize(
    ("name", "tokens", "heads", "features"),
    [(name, *size) for name in ACTIVATIONS for size in SIZES]
    + [(name, *size) for name in CUSTOM for size in ((1, 2, 1), (3, 2, 1))],
)
def test_against_brute_force(name: str, tokens: int, heads: int, features: int) -> None:
    bias = Rational(1, 3) if "b" in EVERY[name].trained else 0
    value = Rational(1, heads) if name in AVERAGES else 1
    if name in TRAINED_VALUES:
        value = Rational(2, 7)
    m, mu = _full("m", heads, features), _full("mu", features, 1)
    r, moment = _symmetric("r", heads), _symmetric("M", features)
    exact = _brute_force(name, tokens, bias, value, m, r, mu, moment)
    expansion = _expansion(name)
    numbers = {L: tokens, H: heads, b: bias, v: value}
    found = sum(
        _number(expansion.coefficient(x).subs(expansion.bias_functions).subs(numbers)) * invariant
        for x, invariant in _invariants(m, r, mu, moment).items()
    )
    constant = expansion.in_invariants.subs(dict.fromkeys(INVARIANTS, 0))
    found += _number(constant.subs(expansion.bias_functions).subs(numbers))
    parameters = sorted(set().union(*(x.free_symbols for x in (m, mu, r, moment))), key=str)
    one, other = (sp.Poly(sp.expand(x), *parameters) for x in (exact, found))
    assert max(map(abs, (one - other).coeffs()), default=0) < 1e-25
    # One token of normalized weights without a background is certain whatever its score is.
    fluctuates = tokens > 1 or BACKGROUND.get(name, 0) or name in UNNORMALIZED
    moving = [abs(c) for powers, c in one.terms() if any(powers)]
    assert (max(moving, default=0) > 1e-3) == bool(fluctuates)


def _number(expression: Expr) -> Expr:
    """40 digits, of the logistic function by its definition."""
    return sp.N(expression.replace(expit, lambda x: 1 / (1 + exp(-x))), 40)


def test_three_heads_against_brute_force() -> None:
    m, mu = Matrix([1, 2, -3]) / 5, Matrix([2])
    r, moment = sp.diag(1, 2, 3) / 7, Matrix([[5]])
    for name in ("b-softmax", "softmax-1"):
        expansion = _expansion(name)
        value = Rational(3, 4) if name in TRAINED_VALUES else 1
        exact = _brute_force(name, 2, Rational(1, 2), value, m, r, mu, moment)
        found = expansion.in_invariants.subs(_invariants(m, r, mu, moment))
        found = found.subs(expansion.bias_functions)
        found = found.subs({L: 2, H: 3, b: Rational(1, 2), v: value})
        assert abs(_number(exact - found)) < 1e-25


def test_a_weight_flat_to_second_order_leaves_the_loss_of_uniform_attention() -> None:
    expansion = expand_at_origin(Attention("cubic", exp(chi**3), "per-head"))
    assert sp.simplify(expansion.in_invariants - (1 - 1 / L)) == 0


def test_an_even_weight_does_not_feel_the_mean_signal() -> None:
    expansion = expand_at_origin(Attention("even", cosh(chi), "per-head"))
    # w = 1 + chi^2/2: only E chi_h^2 of the relevant token against that of the others is left.
    assert sp.simplify(expansion.in_invariants - (1 - 1 / L) * (1 - head_signal / L)) == 0


@pytest.mark.parametrize("normalization", ["per-head", "none"])
@pytest.mark.parametrize(
    "weight",
    [
        exp(abs(chi)),
        1 + sp.Max(chi, 0),
        2 + sp.sign(chi),
        1 + sp.Heaviside(chi),
        1 + sp.Piecewise((chi, chi > 0), (0, True)),
        1 + abs(chi) ** Rational(3, 2),
        1 + sp.sqrt(chi),
        1 / chi**2,
    ],
    ids=str,
)
def test_a_weight_without_taylor_expansion_is_refused(weight: Expr, normalization: str) -> None:
    with pytest.raises(DeriveError, match=r"^rough: the weight has no Taylor expansion"):
        expand_at_origin(Attention("rough", weight, normalization))


def test_a_normalized_weight_that_vanishes_at_the_origin_is_refused() -> None:
    with pytest.raises(DeriveError, match=r"^zero: the weight has no Taylor expansion"):
        expand_at_origin(Attention("zero", chi**2, "per-head"))
    assert expand_at_origin(Attention("zero", chi**2, "none")).in_invariants.has(head_signal)


def test_a_large_weight_takes_no_time() -> None:
    """Nothing here searches for a simpler form."""
    weight = sum(exp(k * chi) / (1 + b**2 + k) for k in range(1, 25))
    expansion = expand_at_origin(Attention("large", weight, "none", 0, ("b",)))
    value = expansion.bias_functions[second].subs(b, 1).evalf()
    assert value == pytest.approx(sum(k**2 / (2 + k) for k in range(1, 25)))
