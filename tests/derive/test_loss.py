"""Race integrands against mpmath, and one sample's score gradient against brute force."""

from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest
import sympy as sp
from sympy import Expr, Rational, cosh, exp, tanh

from derive.attention import ACTIVATIONS, Attention
from derive.loss import (
    ANY_WINS,
    RELEVANT_WINS,
    SURVIVES,
    WINS,
    WINS_SQUARED,
    f0,
    f1,
    g0,
    g1,
    mean_slope,
    score_gradient,
    share,
    slope,
    stable_powers,
    value,
)
from derive.stable import written_out
from derive.symbols import L, b, chi, tau
from numeric._generated import race

EPS = float(np.finfo(float).eps)
# Around the roots of the derivatives (1; 0.38, 2.6; ...), and towards both ends of the domain.
TAUS = [
    1e-30,
    1e-12,
    1e-8,
    1e-4,
    0.03,
    0.3,
    0.382,
    0.9,
    1.0,
    1.1,
    2.618,
    3.7,
    8.0,
    40.0,
    200.0,
    700.0,
]


def _exact_score_functions(t: float) -> list[mp.mpf]:
    """``1 - exp(-e^s)`` and ``e^(2 s - e^s)``, with derivatives in s at e^s = t, by differences."""
    with mp.workdps(80):
        s = mp.log(mp.mpf(t))
        won = list(mp.diffs(lambda s: -mp.exp(-mp.exp(s)), s, 3))
        square = list(mp.diffs(lambda s: mp.exp(2 * s - mp.exp(s)), s, 2))
        return [-mp.expm1(-mp.mpf(t)), *won[1:], *square]


@pytest.mark.parametrize("t", TAUS)
def test_score_functions_at_all_magnitudes(t: float) -> None:
    exact = _exact_score_functions(t)
    with np.errstate(all="raise"):
        found = race.score_functions(np.array(t))
    assert len(found) == len(exact) == 7
    assert abs(found[0] - exact[0]) <= 2 * EPS * exact[0]
    # A derivative is tau exp(-tau), or tau^2 exp(-tau), times a polynomial of some degree.
    for k, power, degree in ((1, 1, 0), (2, 1, 1), (3, 1, 2), (4, 2, 0), (5, 2, 1), (6, 2, 2)):
        scale = t**power * mp.exp(-t) * (1 + mp.mpf(t)) ** degree
        assert abs(found[k] - exact[k]) <= 8 * EPS * scale


def test_score_functions_at_time_zero_and_beyond_underflow() -> None:
    with np.errstate(all="raise"):
        assert [float(x) for x in race.score_functions(0.0)] == [0.0] * 7
    with np.errstate(all="raise", under="ignore"):
        g, *derivatives = race.score_functions(np.array(1000.0))
    assert g == 1.0
    assert not np.any(derivatives)


def test_win_densities_are_derivatives_of_the_survival() -> None:
    def in_log(e: Expr) -> Expr:
        return sp.expand(tau * sp.diff(e, tau))

    first = -in_log(SURVIVES)
    assert sp.simplify(first - WINS) == 0
    assert sp.simplify(first - in_log(first) - WINS_SQUARED) == 0


def _weight(x: mp.mpf, b: mp.mpf) -> mp.mpf:
    """A token's weight times race time, with derivatives of all orders in score and bias."""
    return mp.mpf("0.8") + x / 3 - x**2 / 5 + x**3 / 7 - x**4 / 11 + b * (x - 1) ** 2 / 4


@pytest.mark.parametrize("kind", ["race", "moment"])
@pytest.mark.parametrize("order", [2, 4])
def test_head_functions_are_derivatives_of_e_f_and_s(kind: str, order: int) -> None:
    raced = kind == "race"
    with mp.workdps(40):

        def survival(x: mp.mpf, b: mp.mpf) -> mp.mpf:
            return mp.exp(-_weight(x, b)) if raced else mp.mpf(1)

        # Pairs, which have second derivatives, never need a squared denominator in a race.
        powers = range(2 if raced and order == 2 else 3)
        functions = [lambda x, b, k=k: _weight(x, b) ** k * survival(x, b) for k in powers]
        orders = [(k, 0) for k in range(order + 1)] + ([(0, 1)] if order == 2 else [])
        for at in ((mp.mpf("0.3"), mp.mpf("0.4")), (mp.mpf("-1.1"), mp.mpf("0.7"))):
            exact = [1 - survival(*at)] + [mp.diff(f, at, n) for f in functions for n in orders]
            inputs = [np.float64(mp.diff(_weight, at, n)) for n in orders]
            found = getattr(race, f"{kind}_functions_{order}")(*inputs)
            assert len(found) == 1 + len(powers) * len(orders)
            assert [float(x) for x in found] == pytest.approx(
                [float(x) for x in exact], rel=1e-13, abs=1e-15
            )


@pytest.mark.parametrize("order", [2, 4])
def test_head_functions_at_time_zero_and_beyond_underflow(order: int) -> None:
    slopes = [0.0] * (order + (order == 2))
    with np.errstate(all="raise", under="ignore"):
        g, e, *others = getattr(race, f"race_functions_{order}")(0.0, *slopes)
        assert (g, e) == (0.0, 1.0) and not np.any(others)
        g, *others = getattr(race, f"race_functions_{order}")(
            1000.0, *(1000.0 + np.zeros(order + (order == 2)))
        )
        assert g == 1.0 and not np.any(others)


POINTS = [
    # f0, f1, g0, g1
    (0.3, 0.2, 0.0, 0.0),
    (1e-7, 3e-6, 1e-300, 1e-12),
    (1e-7, 3e-6, 1e-12, 1 - 1e-12),
    (2e-6, 0.7, 1e-6, 0.4),
    (0.05, 0.07, 3e-4, 1.0),
    (0.11, 0.13, 0.5, 0.25),
    (0.1, 0.2, 1 - 1e-9, 0.8),
    (1e-15, 2e-15, 1 - 2**-53, 1 - 2**-53),
]


def _relevant(x1: mp.mpf, y0: mp.mpf, size: int) -> mp.mpf:
    return x1 * (1 - y0) ** (size - 1)


def _any(x0: mp.mpf, x1: mp.mpf, y0: mp.mpf, y1: mp.mpf, size: int) -> mp.mpf:
    others = (size - 1) * x0 * (1 - y1) * (1 - y0) ** (size - 2)
    return _relevant(x1, y0, size) + others


def _check_kernel(kernel: Callable, formula: Callable, point: tuple[float, ...], size: int) -> None:
    with mp.workdps(60):
        exact = [formula(*map(mp.mpf, point), size)]
        for k in range(len(point)):
            order = tuple(int(i == k) for i in range(len(point)))
            exact.append(mp.diff(lambda *x: formula(*x, size), tuple(map(mp.mpf, point)), order))
        exponent = size * abs(mp.log1p(-mp.mpf(point[-2 if len(point) == 4 else -1])))
        underflow = exponent > 600
        with np.errstate(all="raise", under="ignore" if underflow else "raise"):
            found = kernel(*point, size)
        for one, true in zip(found, exact, strict=True):
            # An exponent of size n is rounded by n eps, whatever the algorithm.
            error = abs(mp.mpf(float(one)) - true)
            assert error <= EPS * (16 + 2 * exponent) * abs(true) + mp.mpf(10) ** -40 * underflow


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_second_derivatives_of_race_kernels(size: int) -> None:
    for name, formula, point in (
        ("relevant_wins_2", _relevant, (0.3, 0.2)),
        ("any_wins_2", _any, (0.3, 0.2, 0.4, 0.1)),
    ):
        count = len(point)
        upper = [(i, j) for i in range(count) for j in range(i, count)]
        with mp.workdps(40):
            orders = [tuple(int(k == i) for k in range(count)) for i in range(count)]
            orders += [tuple(int(k == i) + int(k == j) for k in range(count)) for i, j in upper]
            at = tuple(map(mp.mpf, point))
            exact = [formula(*at, size)]
            exact += [mp.diff(lambda *x, f=formula: f(*x, size), at, n) for n in orders]
        found = getattr(race, name)(*point, size)
        assert [float(x) for x in found] == pytest.approx(
            [float(x) for x in exact], rel=1e-13, abs=1e-14
        )


@pytest.mark.parametrize("size", [1, 2, 3, 10**6])
@pytest.mark.parametrize("point", POINTS)
def test_race_kernels_and_their_partial_derivatives(point: tuple[float, ...], size: int) -> None:
    _check_kernel(race.relevant_wins, _relevant, (point[1], point[2]), size)
    _check_kernel(race.any_wins, _any, point, size)


def test_complex_steps_agree_with_the_derivatives_of_any_wins() -> None:
    point = np.array([0.2, 0.3, 0.4, 0.1])
    _, *derivatives = race.any_wins(*point, 7)
    for k in range(4):
        step = point.astype(complex)
        step[k] += 1e-30j
        x0, x1, y0, y1 = step
        numeric = (x1 * (1 - y0) ** 6 + 6 * x0 * (1 - y1) * (1 - y0) ** 5).imag / 1e-30
        assert derivatives[k] == pytest.approx(numeric, rel=1e-14)


def test_stable_powers_keep_the_value_and_remove_the_powers() -> None:
    stable = stable_powers(ANY_WINS)
    assert not any(p.base == 1 - g0 for p in stable.atoms(sp.Pow))
    numbers = {f0: 2, f1: 3, g0: sp.Rational(1, 3), g1: sp.Rational(1, 5), L: 4}
    exact = 3 * sp.Rational(2, 3) ** 3 + 3 * 2 * sp.Rational(4, 5) * sp.Rational(2, 3) ** 2
    assert abs((stable.subs(numbers) - exact).evalf(30)) < sp.Float("1e-28")


# Race integrals with scores that do not fluctuate: a token's race functions at time exp(-u).
SCORES = [(0.0, 0.0, 2), (0.7, -0.4, 2), (-1.5, 1.0, 2), (0.3, 0.9, 5)]


def _integrand(expression: Expr, x: float, y: float, size: int, density: Expr) -> Callable:
    """As a function of the products of survival and density over the races."""
    function = sp.lambdify((f0, f1, g0, g1), expression.subs(L, size), "mpmath")
    win = sp.lambdify(tau, density, "mpmath")

    def at(*times: mp.mpf) -> mp.mpf:
        irrelevant = [mp.exp(y - u) for u in times]
        relevant = [mp.exp(x - u) for u in times]
        return function(
            mp.fprod(map(win, irrelevant)),
            mp.fprod(map(win, relevant)),
            -mp.expm1(-mp.fsum(irrelevant)),
            -mp.expm1(-mp.fsum(relevant)),
        )

    return at


@pytest.mark.parametrize(("x", "y", "size"), SCORES)
def test_one_race_gives_softmax_and_its_squares(x: float, y: float, size: int) -> None:
    total = mp.exp(x) + (size - 1) * mp.exp(y)
    relevant, other = mp.exp(x) / total, mp.exp(y) / total
    interval = [-8, -4, -1, 2, 6, 14, 30, 60]
    a = mp.quad(_integrand(RELEVANT_WINS, x, y, size, WINS), interval)
    square = mp.quad(_integrand(ANY_WINS, x, y, size, WINS_SQUARED), interval)
    assert a == pytest.approx(relevant, rel=1e-13)
    assert square == pytest.approx(relevant**2 + (size - 1) * other**2, rel=1e-13)


def test_two_races_give_the_product_of_two_heads() -> None:
    (x, y), size = (0.7, -0.4), 2
    u = np.linspace(-5, 33, 153)
    time, other_time = u[:, None], u
    irrelevant, relevant = ((np.exp(score - time), np.exp(score - other_time)) for score in (y, x))
    integrand = sp.lambdify((f0, f1, g0, g1), ANY_WINS.subs(L, size))(
        *(
            np.prod(np.broadcast_arrays(*pair), 0) * np.exp(-sum(pair))
            for pair in (irrelevant, relevant)
        ),
        *(-np.expm1(-sum(pair)) for pair in (irrelevant, relevant)),
    )
    # Equispaced sums converge exponentially: the error is of order exp(-pi^2 / step).
    integral = np.sum(integrand) * (u[1] - u[0]) ** 2
    total = np.exp(x) + np.exp(y)
    assert integral == pytest.approx((np.exp(2 * x) + np.exp(2 * y)) / total**2, rel=1e-12)


HEADS, TOKENS = 2, 3
OWN = [
    Attention("tilted", exp(b * chi + chi**3 / 7 + b), "pooled", trained=("b",)),
    Attention("pooled with background", 1 + chi**2, "pooled", Rational(3, 2)),
    Attention("saturating", 2 + tanh(chi - b), "per-head", Rational(1, 2), ("b", "v")),
    Attention("even", cosh(chi), "per-head", trained=("v",)),
    Attention("cubic", chi + b * chi**3, "none", trained=("b", "v")),
]


def _numbers(count: int) -> list[mp.mpf]:
    return [mp.mpf((37 * k + 11) % 29 - 14) / 13 for k in range(count)]


@pytest.mark.parametrize("relevant", [0, 2])
@pytest.mark.parametrize("attention", [*ACTIVATIONS.values(), *OWN], ids=lambda a: a.name)
def test_score_gradient_against_the_differentiated_loss(
    attention: Attention, relevant: int
) -> None:
    """The loss written out in all scores, biases and values, and differentiated by differences."""
    heads, tokens = range(HEADS), range(TOKENS)
    weight = sp.lambdify((chi, b), written_out(attention.weight), "mpmath")
    background, per_head = mp.mpf(attention.background), attention.normalization == "per-head"
    pooled = attention.normalization == "pooled"

    def shares(x: tuple[mp.mpf, ...]) -> list[list[mp.mpf]]:
        scores, biases = x[: HEADS * TOKENS], x[HEADS * TOKENS :]
        w = [[weight(scores[h * TOKENS + k], biases[h]) for k in tokens] for h in heads]
        totals = [background + mp.fsum(row) for row in w]
        if pooled:
            totals = [background + mp.fsum(map(mp.fsum, w))] * HEADS
        if not (per_head or pooled):
            totals = [mp.mpf(1)] * HEADS
        return [[y / total for y in row] for row, total in zip(w, totals, strict=True)]

    def loss(*x: mp.mpf) -> mp.mpf:
        p = shares(x)
        a = [mp.fsum(values[h] * p[h][k] for h in heads) for k in tokens]
        return mp.fsum((a[k] - (k == relevant)) ** 2 for k in tokens)

    with mp.workdps(50):
        x = tuple(_numbers(HEADS * TOKENS + HEADS))
        values = [mp.mpf(1)] * HEADS if pooled else [mp.mpf(3) / 7, mp.mpf(-2) / 5]
        units = [tuple(int(i == j) for j in range(len(x))) for i in range(len(x))]
        expected = [mp.diff(loss, x, unit) for unit in units]
        p = shares(x)
        a = [mp.fsum(values[h] * p[h][k] for h in heads) for k in tokens]
        slopes = [2 * (a[k] - (k == relevant)) for k in tokens]
        means = [mp.fsum(p[h][k] * slopes[k] for k in tokens) for h in heads]
        if pooled:
            means = [mp.fsum(means)] * HEADS
        symbols = (chi, b, share, slope, mean_slope, value)
        in_score, in_bias = (
            sp.lambdify(symbols, written_out(e), "mpmath") for e in score_gradient(attention)
        )
        samples = [
            (x[h * TOKENS + k], x[HEADS * TOKENS + h], p[h][k], slopes[k], means[h], values[h])
            for h in heads
            for k in tokens
        ]
        found = [in_score(*sample) for sample in samples]
        in_biases = [in_bias(*sample) for sample in samples]
        found += [mp.fsum(in_biases[h * TOKENS : (h + 1) * TOKENS]) for h in heads]
        assert max(abs(u - w) for u, w in zip(found, expected, strict=True)) < 1e-20
        assert max(map(abs, expected[: HEADS * TOKENS])) > 1e-3
