"""The loss's expansion at the origin, order by order, against brute force and against the exact loss.

Brute force writes one sample's loss out as a power series in all H x L scores, by the definition of each
attention and with no race, and takes Gaussian moments by Stein's identity, all in rational numbers: exact
ones, or 60 digits of the others.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import sympy as sp
from sympy import QQ, Expr, Rational, Symbol, exp, factorial, log, ring

from derive import expansion as origin
from derive.attention import ACTIVATIONS, Attention
from derive.errors import DeriveError
from derive.landau import LossExpansion, expand_loss
from derive.stable import expit
from derive.symbols import H, L, b, chi, v
from numeric import loss as exact
from numeric import task as layer
from numeric.prior import MixturePrior

# A weight, normalization and background: the definitions of the model written down anew.
WEIGHTS: dict[str, tuple[Callable[[Expr, Expr], Expr], str, Expr]] = {
    "softmax": (lambda x, b: exp(x), "per-head", 0),
    "softmax-v": (lambda x, b: exp(x), "per-head", 0),
    "softmax-1": (lambda x, b: exp(b + x), "per-head", 1),
    "b-softmax": (lambda x, b: exp(b + x), "pooled", 0),
    "linear": (lambda x, b: 1 + x, "none", 0),
    "erf": (lambda x, b: 1 + sp.erf(b + x), "none", 0),
    "softplus": (lambda x, b: log(1 + exp(x)), "per-head", 0),
    "race": (lambda x, b: 1 + exp(b + 2 * x) + x**2 / 3, "pooled", Rational(5, 4)),
    "bowl": (lambda x, b: 1 + x / 2 + x**2 / 2, "per-head", Rational(2, 3)),
    "cubic": (lambda x, b: x / 3 + b * x**2 - 2 * x**3, "none", 0),
}
OWN = {
    name: Attention(name, WEIGHTS[name][0](chi, b), *WEIGHTS[name][1:], trained)
    for name, trained in (("race", ("b",)), ("bowl", ()), ("cubic", ("b", "v")))
}
EVERY = {**ACTIVATIONS, **OWN}
VALUED = {"softmax-v", "softmax-1", "linear", "erf", "cubic"}
# exp(b) is a rational number where the weight contains it; erf takes any b.
BIAS = {"softmax-1": log(Rational(4, 3)), "b-softmax": log(Rational(4, 3)), "race": log(2)}
BIAS |= {"erf": Rational(3, 10), "cubic": Rational(3, 10)}
IRRATIONAL = {"erf", "softplus"}
# Order in the default run: the sixth takes seconds for the others.
MOST = dict.fromkeys(EVERY, 4) | dict.fromkeys(
    ["softmax", "b-softmax", "linear", "erf", "cubic"], 6
)

# Probabilities, means and covariances of a mixture of Gaussians.
Law = list[tuple[Any, Any, Any]]


def _fractions(values: Any, scale: int = 1) -> Any:
    return np.vectorize(lambda x: Fraction(int(x), scale), otypes=[object])(values)


def _prior(*components: Any) -> Law:
    """From probabilities, means and covariances in sixths."""
    return [tuple(_fractions(x, 6) for x in component) for component in components]


_layer = cache(layer.Attention)
POINT, WIDE = [[0, 0], [0, 0]], [[5, 2], [2, 4]]
PRIORS = {
    "gaussian": _prior((6, (3, -2), WIDE)),
    "discrete": _prior((3, (6, -3), POINT), (2, (-2, 9), POINT), (1, (0, 1), POINT)),
    "centred": _prior((6, (0, 0), WIDE)),
    "flipped": _prior((3, (6, -3), POINT), (3, (-6, 3), POINT)),
    "mixture": _prior((3, (4, 2), WIDE), (3, (-4, -2), WIDE)),
}
M = _fractions([[2, -1], [1, 3], [-4, 2]], 5)
R = _fractions([[4, 1, -1], [1, 3, 0], [-1, 0, 2]], 7)


@cache
def _expansion(name: str, order: int) -> LossExpansion:
    return expand_loss(EVERY[name], order)


def _numbers(name: str, tokens: int, heads: int) -> dict[Symbol, Expr]:
    value = Rational(2, 7) if name in VALUED else Rational(1, heads if name != "bowl" else 1)
    return {L: tokens, H: heads, b: BIAS.get(name, 0), v: value}


def _number(expression: Any) -> Fraction:
    number = sp.sympify(expression).replace(expit, lambda x: 1 / (1 + exp(-x)))
    number = number if number.is_Rational else Rational(sp.N(number, 60))
    return Fraction(int(number.p), int(number.q))


@cache
def _sample_loss(name: str, tokens: int, heads: int, order: int) -> list[dict[Any, Fraction]]:
    """One sample's loss by order in the scores ``x_hl``, at place h L + l; token 0 is relevant."""
    weight, normalization, background = WEIGHTS[name]
    numbers, x = _numbers(name, tokens, heads), Symbol("x")
    algebra, *scores = ring(f"x:{heads * tokens}", QQ)

    def constant(expression: Any) -> Any:
        number = _number(expression)
        return algebra(QQ(number.numerator, number.denominator))

    def cut(series: Any) -> Any:
        return algebra.from_dict({key: c for key, c in series.items() if sum(key) <= order})

    def inverse(z: Any) -> Any:
        scale, found = 1 / z.coeff(1), algebra.one
        for _ in range(order):
            found = 1 + cut((1 - scale * z) * found)
        return scale * found

    derivatives = [sp.diff(weight(x, numbers[b]), x, k).subs(x, 0) for k in range(order + 1)]
    taylor = [constant(y / factorial(k)) for k, y in enumerate(derivatives)]
    weights = [sum(y * score**k for k, y in enumerate(taylor)) for score in scores]
    w = [weights[h * tokens : (h + 1) * tokens] for h in range(heads)]
    if normalization == "pooled":
        z = inverse(constant(background) + sum(weights))
        a = [cut(z * sum(row[k] for row in w)) for k in range(tokens)]
    else:
        if normalization == "per-head":
            races = [inverse(constant(background) + sum(row)) for row in w]
            w = [[cut(z * x) for x in row] for row, z in zip(w, races, strict=True)]
        a = [constant(numbers[v]) * sum(row[k] for row in w) for k in range(tokens)]
    found: list[dict[Any, Fraction]] = [{} for _ in range(order + 1)]
    for key, c in cut((1 - a[0]) ** 2 + sum(x**2 for x in a[1:])).items():
        found[sum(key)][key] = Fraction(int(c.numerator), int(c.denominator))
    return found


@cache
def _gaussian(powers: tuple[int, ...], mean: tuple[Any, ...], covariance: Any) -> Any:
    """``E prod x_i^powers_i``, by ``E x f = mean E f + sum_j cov_j E d_j f``."""
    if not any(powers):
        return 1
    i = next(k for k, power in enumerate(powers) if power)
    rest = [power - (k == i) for k, power in enumerate(powers)]
    total = mean[i] * _gaussian(tuple(rest), mean, covariance)
    for j, power in enumerate(rest):
        if power:
            fewer = tuple(x - (k == j) for k, x in enumerate(rest))
            total += power * covariance[i][j] * _gaussian(fewer, mean, covariance)
    return total


def _mean(powers: Sequence[int], law: Law) -> Any:
    return sum(p * _gaussian(tuple(powers), mean, cov) for p, mean, cov in law)


def _laws(prior: str, heads: int) -> dict[str, Law]:
    """Scores of another and of the relevant token, and their means given the signal."""
    m, r, unit = M[:heads], R[:heads, :heads], _fractions(np.eye(2))

    def law(inner: Any, noise: Any) -> Any:
        return tuple(map(tuple, m @ inner @ m.T + noise))

    parts = [(p, tuple(m @ mean), cov) for p, mean, cov in PRIORS[prior]]
    return {
        "0": [(1, (0,) * heads, law(unit, r))],
        "1": [(p, mean, law(unit + cov, r)) for p, mean, cov in parts],
        "T": [(p, mean, law(cov, 0 * r)) for p, mean, cov in parts],
    }


def _energy(name: str, tokens: int, order: int, laws: dict[str, Law], most: int) -> Fraction:
    """The module's loss of one order: its moments averaged over all pairs of heads."""
    expansion, heads = _expansion(name, most), len(laws["0"][0][1])
    numbers = _numbers(name, tokens, heads)
    unit, overlap = np.eye(heads, dtype=int), laws["0"][0][2]

    def moment(symbol: Symbol, h: int, other: int) -> Any:
        known = {"q": overlap[h][h], "q'": overlap[other][other], "c": overlap[h][other]}
        if symbol.name in known:
            return known[symbol.name]
        kind, *powers = symbol.name.split("_")
        if kind == "T":
            return _mean(int(powers[0]) * unit[h] + int(powers[1]) * unit[other], laws["T"])
        degrees = [k for k, power in enumerate(map(int, powers), 1) for _ in range(power)]
        chosen = list(product(range(heads), repeat=len(degrees)))
        found = (sum(k * unit[i] for k, i in zip(degrees, x, strict=True)) for x in chosen)
        return sum(_mean(powers, laws[kind[1]]) for powers in found) * Fraction(1, len(chosen))

    total = Fraction(0)
    pairs = [(0, 0)] if expansion.pooled else list(product(range(heads), repeat=2))
    for monomial, coefficient in expansion.terms(order).items():
        scale = _number(coefficient.subs(expansion.functions).subs(numbers)) / len(pairs)
        for h, other in pairs:
            value = scale
            for symbol, power in monomial.as_powers_dict().items():
                value *= 1 if symbol == 1 else moment(symbol, h, other) ** int(power)
            total += value
    return total


BRUTE = [
    *((name, *size, most, "discrete")
      for name, most in MOST.items() for size in ((1, 1), (2, 1), (2, 2))),
    *((name, *size, 4, "gaussian") for name in EVERY for size in ((3, 1), (3, 2))),
    *((name, 2, 3, 4, "discrete") for name in ("softmax-1", "b-softmax", "cubic")),
    *(pytest.param(name, *size, 6, "gaussian", marks=pytest.mark.slow)
      for name in EVERY for size in ((2, 2), (3, 2))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tokens", "heads", "order", "prior"), BRUTE)
def test_against_brute_force(name: str, tokens: int, heads: int, order: int, prior: str) -> None:
    laws = _laws(prior, heads)
    for k, part in enumerate(_sample_loss(name, tokens, heads, order)):
        expected = Fraction(0)
        for key, value in part.items():
            for token in range(tokens):
                value *= _mean(key[token::tokens], laws["0" if token else "1"])
            expected += value
        difference = abs(_energy(name, tokens, k, laws, order) - expected)
        assert difference <= (Fraction(1, 10**40) if name in IRRATIONAL else 0)


def _exact(name: str, tokens: int, heads: int, prior: str, scale: float) -> float:
    attention, numbers = _layer(OWN.get(name, name), heads), _numbers(name, tokens, heads)
    mixture = MixturePrior(*(np.array(x, float) for x in zip(*PRIORS[prior], strict=True)))
    known = {"b": float(numbers[b]), "v": float(numbers[v])}
    given = {x: np.full(heads, known[x]) for x in attention.parameters}
    m, r = scale * M[:heads].astype(float), scale**2 * R[:heads, :heads].astype(float)
    state, task = layer.State(m, r, **given), layer.Task(tokens, mixture)
    return exact.evaluate(state, task, attention, 15, 10**6, 0).value


SLOW = [pytest.param(name, 6, marks=pytest.mark.slow) for name in EVERY if MOST[name] < 6]


@pytest.mark.parametrize(("name", "most"), [*MOST.items(), *SLOW])
@pytest.mark.parametrize(
    ("tokens", "heads", "prior"),
    [(2, 1, "flipped"), (5, 2, "centred"), (4, 3, "mixture"), (3, 2, "gaussian")],
)
def test_remainder_is_the_next(name: str, tokens: int, heads: int, prior: str, most: int) -> None:
    """In units of the next order's power of the scale it tends to a constant: that order."""
    step = 2 - (prior == "gaussian")  # odd orders vanish for symmetric signals
    laws = _laws(prior, heads)
    orders = [float(_energy(name, tokens, k, laws, most)) for k in range(most + 1)]
    assert step == 1 or not any(orders[1::2])
    scales = (0.2 if name == "race" else 0.3) / 2 ** (np.arange(5) / 2)  # its scores count twice
    found = np.array([_exact(name, tokens, heads, prior, x) for x in scales])
    for n in range(step, most + 1, step):
        rest = (found - np.polyval(orders[n::-1], scales)) / scales ** (n + step)
        size, noise = abs(rest).max(), 2e-14 / scales[-1] ** (n + step)
        assert size > 5 * noise or not any(orders[n + 1 :])
        limit, fewer = (_limit(scales[:k] ** step, rest[:k]) for k in (5, 4))
        assert abs(limit - fewer) <= 0.1 * size + noise
        if n < most:
            assert abs(limit - orders[n + step]) <= 0.02 * size + noise


def _limit(x: np.ndarray, y: np.ndarray) -> float:
    """The value at zero of the polynomial through all points."""
    return float(np.linalg.solve(np.vander(x), y)[-1])


# Moments to second order in the averages of `derive.expansion`.
OTHER, NORMS = origin.pair_norm + origin.pair_residual, origin.head_norm + origin.head_residual
AVERAGES = {
    "1": 1, "q": NORMS, "q'": NORMS, "c": OTHER,
    "T_0_1": origin.alignment, "T_0_2": origin.head_signal, "T_1_1": origin.pair_signal,
    "E0_2_0": OTHER, "E0_0_1": NORMS, "E1_1_0": origin.alignment,
    "E1_2_0": OTHER + origin.pair_signal, "E1_0_1": NORMS + origin.head_signal,
}  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
def test_second_order_is_that_of_the_origin(name: str) -> None:
    expansion, expected = _expansion(name, 2), origin.expand_at_origin(EVERY[name])
    found = [AVERAGES[str(x)] * y for k in range(3) for x, y in expansion.terms(k).items()]
    assert sp.simplify(sum(found) - expected.in_invariants) == 0
    assert expansion.functions == expected.bias_functions
    assert expansion.pooled == (WEIGHTS[name][1] == "pooled")


@pytest.mark.parametrize("order", [0, 1, 3, 5, 8, -2, "4", None, 2.5, [4], True])
def test_another_order_is_refused(order: Any) -> None:
    with pytest.raises(DeriveError, match=r"^order: found .*, expected one of 2, 4, 6$"):
        expand_loss(ACTIVATIONS["softmax"], order)


@pytest.mark.parametrize("normalization", ["per-head", "pooled", "none"])
@pytest.mark.parametrize(("power", "order"), [(1, 2), (3, 4), (Rational(7, 2), 4), (5, 6)])
def test_a_weight_without_taylor_expansion_is_refused(
    power: Expr, order: int, normalization: str
) -> None:
    rough = Attention("rough", 1 + abs(chi) ** power, normalization)
    with pytest.raises(DeriveError, match=r"^rough: the weight has no Taylor expansion [^\n]*$"):
        expand_loss(rough, order)
    if order > 2:
        assert expand_loss(rough, order - 2).order == order - 2
