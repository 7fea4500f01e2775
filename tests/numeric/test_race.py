"""Race integrals of Gaussian laws: values against products of Gauss-Hermite rules, derivatives against
finite differences of the value in each law's mean, covariance and biases.

The laws here are general: they need not come from order parameters.
"""

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss

from numeric._generated import ACTIVATIONS
from numeric.errors import QuadratureError
from numeric.quadrature import Rule
from numeric.race import (
    Law,
    Points,
    locate,
    marginal_points,
    pooled_points,
    race_of_points,
    race_variable,
    single_races,
    weight_of,
    with_background,
)
from tests.numeric.oracle import LAYERS, slope

DIGITS = 12.0
NULL = ([0.1, -0.2], [[0.5, 0.15], [0.15, 0.3]])
RELEVANT = (
    (0.3, [0.8, -0.4], [[0.9, -0.2], [-0.2, 0.4]]),
    (0.7, [-0.5, 0.6], [[0.3, 0.2], [0.2, 0.6]]),
)
BIAS = np.array([0.4, -0.3])
A_WEIGHT, B_WEIGHT = np.array([0.5, 0.2]), np.array([0.25, 0.7])
PER_HEAD = [name for name in LAYERS if LAYERS[name].normalization == "per-head"]


def make_laws() -> list[Law]:
    laws = [Law(1.0, *map(np.array, NULL))]
    return laws + [Law(p, np.array(mean), np.array(cov)) for p, mean, cov in RELEVANT]


def located(name: str, laws: list[Law], points: list[Points], tokens: float) -> Rule:
    mix = list(zip([law.weight for law in laws[1:]], points[1:], strict=True))
    background = ACTIVATIONS[name].BACKGROUND
    return with_background(
        locate(points[0], mix, tokens, DIGITS, background).rule(DIGITS), background
    )


def head_points(name: str, laws: list[Law], tokens: float, bias: np.ndarray = BIAS) -> list[Points]:
    return [marginal_points(law, bias, ACTIVATIONS[name], DIGITS, tokens) for law in laws]


def pooled(name: str, laws: list[Law], bias: np.ndarray, nodes: int = 64) -> list[Points]:
    """Both scores on a product of Gauss-Hermite rules, through a Cholesky root."""
    x, w = hermegauss(nodes)
    z = np.stack([g.ravel() for g in np.meshgrid(x, x, indexing="ij")], axis=1)
    weights = np.multiply.outer(w, w).ravel() / w.sum() ** 2
    return [
        pooled_points(law, bias, ACTIVATIONS[name], z @ np.linalg.cholesky(law.cov).T, weights)
        for law in laws
    ]


def hermite_averages(name: str, nodes: int = 28) -> Any:
    """Two tokens, two heads, from the definition of the weights, over all four scores at once."""
    layer = LAYERS[name]
    x, w = hermegauss(nodes)
    w = w / w.sum()
    z = np.stack([g.ravel() for g in np.meshgrid(x, x, indexing="ij")], axis=1)
    weights = np.multiply.outer(w, w).ravel()
    null = np.array(NULL[0]) + z @ np.linalg.cholesky(np.array(NULL[1])).T
    other = layer.weight(null, BIAS)
    found = SimpleNamespace(a=np.zeros(2), b=np.zeros((2, 2)), pooled_a=0.0, pooled_b=0.0)
    for share, mean, cov in RELEVANT:
        scores = np.array(mean) + z @ np.linalg.cholesky(np.array(cov)).T
        mine = layer.weight(scores, BIAS)
        weight = share * np.multiply.outer(weights, weights)
        total = layer.background + mine[:, None] + other
        p, q = mine[:, None] / total, other / total
        found.a += np.einsum("ij,ijh->h", weight, p)
        found.b += np.einsum("ij,ijh,ijg->hg", weight, p, p)
        found.b += np.einsum("ij,ijh,ijg->hg", weight, q, q)
        total = layer.background + mine.sum(axis=1)[:, None] + other.sum(axis=1)
        p, q = mine.sum(axis=1)[:, None] / total, other.sum(axis=1) / total
        found.pooled_a += float((weight * p).sum())
        found.pooled_b += float((weight * (p**2 + q**2)).sum())
    return found


def single_value(
    name: str, laws: list[Law], time: Rule, tokens: float, bias: np.ndarray = BIAS
) -> float:
    points = head_points(name, laws, tokens, bias)
    a, b = single_races(laws[0], laws[1:], points[0], points[1:], time, tokens, A_WEIGHT, B_WEIGHT)
    return float(B_WEIGHT @ b - 2 * A_WEIGHT @ a)


def pooled_value(
    name: str, laws: list[Law], time: Rule, tokens: float, bias: np.ndarray = BIAS
) -> float:
    points = pooled(name, laws, bias)
    one = np.ones(1)
    a, b = single_races(laws[0], laws[1:], points[0], points[1:], time, tokens, one, one)
    return float(b[0] - 2 * a[0])


@pytest.mark.parametrize("name", PER_HEAD)
def test_values_against_gauss_hermite(name: str) -> None:
    expected = hermite_averages(name)
    laws = make_laws()
    points = head_points(name, laws, 2.0)
    time = located(name, laws, points, 2.0)
    a, b = single_races(laws[0], laws[1:], points[0], points[1:], time, 2.0, A_WEIGHT, B_WEIGHT)
    assert a == pytest.approx(expected.a, abs=1e-9)
    assert b == pytest.approx(np.diag(expected.b), abs=1e-9)


def test_pooled_values_against_gauss_hermite() -> None:
    expected = hermite_averages("b-softmax")
    laws = make_laws()
    points = pooled("b-softmax", laws, BIAS)
    time = located("b-softmax", laws, points, 2.0)
    value = pooled_value("b-softmax", make_laws(), time, 2.0)
    assert value == pytest.approx(expected.pooled_b - 2 * expected.pooled_a, abs=1e-9)
    mixed = list(zip([law.weight for law in laws[1:]], points[1:], strict=True))
    assert race_of_points(points[0], mixed, time, 2.0) == pytest.approx(
        (expected.pooled_a, expected.pooled_b), abs=1e-9
    )


def moved(which: int, mean: np.ndarray, cov: np.ndarray) -> list[Law]:
    laws = make_laws()
    law = laws[which]
    laws[which] = Law(law.weight, law.mean + mean, law.cov + cov)
    return laws


def check_derivatives(value: Callable[[list[Law]], float], laws: list[Law]) -> None:
    """In the mean and covariance of the null law and of both components of the relevant one."""
    value(laws)
    zero = np.zeros((2, 2))
    for which, law in enumerate(laws):
        assert np.abs(law.Gamma - law.Gamma.T).max() < 1e-15
        for h in range(2):
            unit = np.eye(2)[h]
            in_mean = slope(lambda x, k=which, u=unit: value(moved(k, x * u, zero)), 0.02)
            assert law.g[h] == pytest.approx(in_mean, abs=1e-9), (which, h)
            for k in range(h, 2):
                # dE = tr(Gamma dcov) along a symmetric direction of unit weight.
                change = np.zeros((2, 2))
                change[h, k] += 0.5
                change[k, h] += 0.5
                in_cov = slope(
                    lambda x, k=which, c=change: value(moved(k, np.zeros(2), x * c)), 0.02
                )
                assert law.Gamma[h, k] == pytest.approx(in_cov, abs=1e-9), (which, h, k)


@pytest.mark.parametrize("tokens", [2.0, 50.0])
@pytest.mark.parametrize("name", ["softmax", "softmax-1", "softplus"])
def test_derivatives_against_finite_differences(name: str, tokens: float) -> None:
    laws = make_laws()
    time = located(name, laws, head_points(name, laws, tokens), tokens)
    check_derivatives(lambda laws: single_value(name, laws, time, tokens), laws)


@pytest.mark.parametrize("tokens", [2.0, pytest.param(50.0, marks=pytest.mark.slow)])
def test_pooled_derivatives_against_finite_differences(tokens: float) -> None:
    name, laws = "b-softmax", make_laws()
    time = located(name, laws, pooled(name, laws, BIAS), tokens)
    check_derivatives(lambda laws: pooled_value(name, laws, time, tokens), laws)


@pytest.mark.parametrize("tokens", [2.0, 50.0])
@pytest.mark.parametrize("name", ["softmax-1", "b-softmax"])
def test_bias_derivatives_against_finite_differences(name: str, tokens: float) -> None:
    value, laws = pooled_value if name == "b-softmax" else single_value, make_laws()
    points = pooled(name, laws, BIAS) if name == "b-softmax" else head_points(name, laws, tokens)
    time = located(name, laws, points, tokens)
    value(name, laws, time, tokens)
    in_bias = sum(law.b for law in laws)
    for h in range(2):
        unit = np.eye(2)[h]
        expected = slope(
            lambda x, u=unit: value(name, make_laws(), time, tokens, BIAS + x * u), 0.02
        )
        assert in_bias[h] == pytest.approx(expected, abs=1e-9)
    if name == "b-softmax":
        # A common shift of all log weights changes nothing.
        assert abs(in_bias.sum()) < 1e-10


def test_derivatives_add_up() -> None:
    """A law gathers what several calls find, keeps what it had, and forgets when told to."""
    laws = make_laws()
    time = located("softmax", laws, head_points("softmax", laws, 3.0), 3.0)
    once, twice = make_laws(), make_laws()
    single_value("softmax", once, time, 3.0)
    for _ in range(2):
        single_value("softmax", twice, time, 3.0)
    for one, two in zip(once, twice, strict=True):
        assert two.g == pytest.approx(2 * one.g, rel=1e-13)
        assert two.Gamma == pytest.approx(2 * one.Gamma, rel=1e-13)
        two.clear()
        assert not (two.g.any() or two.Gamma.any() or two.b.any())


@pytest.mark.parametrize("shift", [-800.0, 3.0, 800.0])
def test_a_shift_of_all_scores_changes_nothing(shift: float) -> None:
    """Without a background, whatever the size of the scores."""
    laws = make_laws()
    others = [Law(law.weight, law.mean + shift, law.cov) for law in laws]
    values = []
    for each in (laws, others):
        points = head_points("softmax", each, 5.0)
        time = located("softmax", each, points, 5.0)
        values.append(single_value("softmax", each, time, 5.0))
    assert values[0] == pytest.approx(values[1], abs=1e-12)
    for one, two in zip(laws, others, strict=True):
        assert one.g == pytest.approx(two.g, abs=1e-11)
        assert one.Gamma == pytest.approx(two.Gamma, abs=1e-11)


def test_points_without_spread_are_one_point() -> None:
    """Scores that are all zero: each token wins with probability 1/L."""
    laws = [Law(1.0, np.zeros(2), np.zeros((2, 2))) for _ in range(2)]
    for tokens in (1.0, 2.0, 7.0, 1e6, 1e15):
        points = head_points("softmax", laws, tokens)
        time = located("softmax", laws, points, tokens)
        won, squared = race_of_points(points[0], [(1.0, points[1])], time, tokens)
        # Two races, one for each head.
        assert won == pytest.approx(2 / tokens, rel=1e-9)
        assert squared == pytest.approx(2 / tokens, rel=1e-9)


@pytest.mark.parametrize("background", [1e-9, 0.3, 1.0, 40.0, 1e6])
@pytest.mark.parametrize("tokens", [1.0, 3.0, 1e6])
def test_a_background_wins_its_share(tokens: float, background: float) -> None:
    """Equal scores s: each token has the weight e^s / (L e^s + background)."""
    score = 0.7
    laws = [Law(1.0, np.full(1, score), np.zeros((1, 1))) for _ in range(2)]
    points = head_points("softmax", laws, tokens, np.zeros(1))
    where = locate(points[0], [(1.0, points[1])], tokens, DIGITS, background)
    time = with_background(where.rule(DIGITS), background)
    share = np.exp(score) / (tokens * np.exp(score) + background)
    won, squared = race_of_points(points[0], [(1.0, points[1])], time, tokens)
    assert won == pytest.approx(share, rel=1e-9)
    assert squared == pytest.approx(tokens * share**2, rel=1e-9)


def test_no_background_leaves_the_rule_alone() -> None:
    rule = np.linspace(-1, 1, 5)[None], np.ones((1, 5))
    assert with_background(rule, 0.0) is rule
    u, du = with_background(rule, 2.0)
    assert u is rule[0]
    assert du == pytest.approx(np.exp(-2 * np.exp(-u)))


def test_narrower_races_have_finer_rules() -> None:
    laws = make_laws()
    null, *points = head_points("softmax", laws, 5.0)
    where = locate(null, [(0.3, points[0]), (0.7, points[1])], 5.0, DIGITS)
    coarse, fine = where.rule(DIGITS), where.rule(DIGITS, np.array([0.5, 0.5]))
    assert fine[0].shape[1] > coarse[0].shape[1]
    assert where.rule(DIGITS, np.full(2, 99.0))[0].shape == coarse[0].shape
    # Scores with a deviation of a few tenths and Gumbel noise.
    assert (where.width > np.pi / np.sqrt(6)).all() and (where.width < 1.8).all()
    assert (np.diff(where.log_lost, axis=1) >= 0).all()


def kernel(value: Callable[[Any], Any], normalization: str = "per-head") -> SimpleNamespace:
    """Kernels of a weight, or log weight, whose derivatives are all its value."""

    def functions(count: int) -> Callable[[Any, Any], Any]:
        return lambda chi, b: (value(chi + 0 * b),) * count

    return SimpleNamespace(
        NORMALIZATION=normalization,
        weight_functions_2=functions(4),
        weight_functions_4=functions(5),
    )


@pytest.mark.parametrize(
    ("value", "normalization", "fits"),
    [
        (np.sqrt, "per-head", False),
        (np.log, "per-head", True),
        (np.log, "none", False),
        (lambda x: np.exp(1000 * x), "pooled", False),
        (lambda x: -np.exp(1000 * x), "pooled", True),
        (np.exp, "none", True),
    ],
)
def test_weights_that_are_not_finite_are_refused(
    value: Callable[[Any], Any], normalization: str, fits: bool
) -> None:
    """A normalized weight may be zero, its logarithm -inf: then no ratio is needed."""
    scores = np.maximum(np.linspace(-2.0, 2.0, 5), -1.0 if value is np.sqrt else 0.0)
    for order, count in ((2, 4), (4, 5)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if fits:
                found = weight_of(kernel(value, normalization), scores, np.zeros(1), order)
                assert len(found) == count
                assert all(np.isfinite(x).all() for x in found[1:])
            else:
                words = "finite" if normalization == "none" else "positive and finite"
                with pytest.raises(QuadratureError, match=f"^activation: .* not {words}, or not"):
                    weight_of(kernel(value, normalization), scores, np.zeros(1), order)


def test_races_out_of_reach_are_refused() -> None:
    laws = [Law(1.0, np.zeros(1), np.full((1, 1), 1e9)) for _ in range(2)]
    with pytest.raises(QuadratureError, match="scores") as caught:
        points = head_points("softmax", laws, 5.0, np.zeros(1))
        time = located("softmax", laws, points, 5.0)
        single_races(laws[0], laws[1:], points[0], points[1:], time, 5.0, np.ones(1), np.ones(1))
    assert "\n" not in str(caught.value)


def test_race_variables_do_not_overflow() -> None:
    with np.errstate(all="raise", under="ignore"):
        found = race_variable(np.array([-np.inf, -800.0, 0.0, 6.0, 800.0]))
    assert found[[0, 2]].tolist() == [0.0, 1.0]
    assert found[3] == pytest.approx(np.exp(6.0))
    assert 900 < found[4] < 1000
