"""Race integrals of Gaussian laws: values against products of Gauss-Hermite rules, derivatives against
finite differences of the value in each law's mean, covariance and biases.

The laws here are general: they need not come from order parameters.
"""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss

from numeric.errors import QuadratureError
from numeric.pairs import pair_races
from numeric.race import (
    Law,
    Points,
    marginal_points,
    pooled_points,
    race_grid,
    race_of_points,
    single_races,
)

DIGITS = 12.0
NULL = ([0.1, -0.2], [[0.5, 0.15], [0.15, 0.3]])
RELEVANT = (
    (0.3, [0.8, -0.4], [[0.9, -0.2], [-0.2, 0.4]]),
    (0.7, [-0.5, 0.6], [[0.3, 0.2], [0.2, 0.6]]),
)
BIAS = np.array([0.4, -0.3])
A_WEIGHT, B_WEIGHT = np.array([0.5, 0.2]), np.array([0.25, 0.7])


def make_laws() -> list[Law]:
    laws = [Law(1.0, *map(np.array, NULL))]
    return laws + [Law(p, np.array(mean), np.array(cov)) for p, mean, cov in RELEVANT]


def located(laws: list[Law], points: list[Points], tokens: float) -> tuple[np.ndarray, np.ndarray]:
    mix = [law.weight for law in laws[1:]]
    return race_grid(points[0], list(zip(mix, points[1:], strict=True)), tokens, DIGITS)


def head_points(laws: list[Law], tokens: float) -> list[Points]:
    return [marginal_points(law, DIGITS, tokens) for law in laws]


def pooled(laws: list[Law], bias: np.ndarray, nodes: int = 64) -> list[Points]:
    """Both scores on a product of Gauss-Hermite rules, through a Cholesky root."""
    x, w = hermegauss(nodes)
    z = np.stack([g.ravel() for g in np.meshgrid(x, x, indexing="ij")], axis=1)
    weights = np.multiply.outer(w, w).ravel() / w.sum() ** 2
    return [pooled_points(law, bias, z @ np.linalg.cholesky(law.cov).T, weights) for law in laws]


def hermite_averages(
    bias: np.ndarray, nodes: int = 28
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Two tokens, two heads: A_h, B_hh', and the pooled A and B, over all four scores at once."""
    x, w = hermegauss(nodes)
    w = w / w.sum()
    z = np.stack([g.ravel() for g in np.meshgrid(x, x, indexing="ij")], axis=1)
    weights = np.multiply.outer(w, w).ravel()
    root = np.linalg.cholesky(np.array(NULL[1])).T
    null = np.array(NULL[0]) + z @ root
    won, shared, pooled_won, pooled_squared = np.zeros(2), np.zeros((2, 2)), 0.0, 0.0
    for share, mean, cov in RELEVANT:
        relevant = np.array(mean) + z @ np.linalg.cholesky(np.array(cov)).T
        weight = share * np.multiply.outer(weights, weights)
        p = 1 / (1 + np.exp(null[None] - relevant[:, None]))
        won += np.einsum("ij,ijh->h", weight, p)
        shared += np.einsum("ij,ijh,ijg->hg", weight, p, p)
        shared += np.einsum("ij,ijh,ijg->hg", weight, 1 - p, 1 - p)
        total_null, total = np.exp(null + bias).sum(axis=1), np.exp(relevant + bias).sum(axis=1)
        q = total[:, None] / (total[:, None] + total_null[None])
        pooled_won += float((weight * q).sum())
        pooled_squared += float((weight * (q**2 + (1 - q) ** 2)).sum())
    return won, shared, pooled_won, pooled_squared


def single_value(laws: list[Law], time: tuple[np.ndarray, np.ndarray], tokens: float) -> float:
    points = head_points(laws, tokens)
    return single_races(laws[0], laws[1:], points[0], points[1:], time, tokens, A_WEIGHT, B_WEIGHT)


def pair_value(laws: list[Law], time: tuple[np.ndarray, np.ndarray], tokens: float) -> float:
    return pair_races(laws[0], laws[1:], time, tokens, 0.6, DIGITS)


def pooled_value(
    laws: list[Law], time: tuple[np.ndarray, np.ndarray], tokens: float, bias: np.ndarray = BIAS
) -> float:
    points = pooled(laws, bias)
    one = np.ones(1)
    return single_races(laws[0], laws[1:], points[0], points[1:], time, tokens, one, one)


def test_values_against_gauss_hermite() -> None:
    won, shared, pooled_won, pooled_squared = hermite_averages(BIAS)
    laws = make_laws()
    time = located(laws, head_points(laws, 2.0), 2.0)
    expected = -2 * A_WEIGHT @ won + B_WEIGHT @ np.diag(shared)
    assert single_value(make_laws(), time, 2.0) == pytest.approx(expected, abs=1e-9)
    assert pair_value(make_laws(), time, 2.0) == pytest.approx(2 * 0.6 * shared[0, 1], abs=1e-9)
    time = located(laws, pooled(laws, BIAS), 2.0)
    value = pooled_value(make_laws(), time, 2.0)
    assert value == pytest.approx(-2 * pooled_won + pooled_squared, abs=1e-9)
    points = pooled(laws, BIAS)
    mixed = list(zip([law.weight for law in laws[1:]], points[1:], strict=True))
    assert race_of_points(points[0], mixed, time, 2.0) == pytest.approx(
        (pooled_won, pooled_squared), abs=1e-9
    )


def slope(function: Callable[[float], float], h: float = 0.01) -> float:
    """Richardson-extrapolated central difference: truncation far below 1e-9."""
    coarse, fine = ((function(x) - function(-x)) / (2 * x) for x in (h, h / 2))
    return (4 * fine - coarse) / 3


def moved(which: int, mean: np.ndarray, cov: np.ndarray) -> list[Law]:
    laws = make_laws()
    law = laws[which]
    laws[which] = Law(law.weight, law.mean + mean, law.cov + cov)
    return laws


@pytest.mark.parametrize("tokens", [2.0, 50.0])
@pytest.mark.parametrize("kind", ["single", "pair", "pooled"])
def test_derivatives_against_finite_differences(kind: str, tokens: float) -> None:
    """In the mean and covariance of the null law and of both components of the relevant one."""
    value = {"single": single_value, "pair": pair_value, "pooled": pooled_value}[kind]
    laws = make_laws()
    points = pooled(laws, BIAS) if kind == "pooled" else head_points(laws, tokens)
    time = located(laws, points, tokens)
    value(laws, time, tokens)
    zero = np.zeros((2, 2))
    for which, law in enumerate(laws):
        assert np.abs(law.Gamma - law.Gamma.T).max() < 1e-15
        for h in range(2):
            unit = np.eye(2)[h]
            in_mean = slope(lambda x, k=which, u=unit: value(moved(k, x * u, zero), time, tokens))
            assert law.g[h] == pytest.approx(in_mean, abs=1e-9), (which, h)
            for k in range(h, 2):
                # dE = tr(Gamma dcov) along a symmetric direction of unit weight.
                change = np.zeros((2, 2))
                change[h, k] += 0.5
                change[k, h] += 0.5
                in_cov = slope(
                    lambda x, k=which, c=change: value(moved(k, np.zeros(2), x * c), time, tokens)
                )
                assert law.Gamma[h, k] == pytest.approx(in_cov, abs=1e-9), (which, h, k)


@pytest.mark.parametrize("tokens", [2.0, 50.0])
def test_bias_derivatives_against_finite_differences(tokens: float) -> None:
    laws = make_laws()
    time = located(laws, pooled(laws, BIAS), tokens)
    pooled_value(laws, time, tokens)
    in_bias = sum(law.b for law in laws)
    for h in range(2):
        unit = np.eye(2)[h]
        expected = slope(lambda x, u=unit: pooled_value(make_laws(), time, tokens, BIAS + x * u))
        assert in_bias[h] == pytest.approx(expected, abs=1e-9)
    # A common shift of all log weights changes nothing.
    assert abs(in_bias.sum()) < 1e-10


def test_derivatives_add_up() -> None:
    """A law gathers what several calls find, and keeps what it had."""
    laws = make_laws()
    time = located(laws, head_points(laws, 3.0), 3.0)
    once, twice = make_laws(), make_laws()
    single_value(once, time, 3.0)
    for _ in range(2):
        single_value(twice, time, 3.0)
    for one, two in zip(once, twice, strict=True):
        assert two.g == pytest.approx(2 * one.g, rel=1e-13)
        assert two.Gamma == pytest.approx(2 * one.Gamma, rel=1e-13)


def test_identical_heads_are_one_variable() -> None:
    """Singular covariances: the pair of equal scores is a race against itself."""
    null = Law(1.0, np.zeros(2), np.full((2, 2), 0.5))
    relevant = [Law(1.0, np.full(2, 0.7), np.full((2, 2), 0.8))]
    laws = [null, *relevant]
    time = located(laws, head_points(laws, 4.0), 4.0)
    points = head_points(laws, 4.0)
    square = single_races(
        null, relevant, points[0], points[1:], time, 4.0, np.zeros(2), np.array([1.0, 0.0])
    )
    pair = pair_races(null, relevant, time, 4.0, 0.5, DIGITS)
    assert pair == pytest.approx(square, abs=1e-11)


def test_points_without_spread_are_one_point() -> None:
    """Scores that are all zero: each token wins with probability 1/L."""
    laws = [Law(1.0, np.zeros(2), np.zeros((2, 2))) for _ in range(2)]
    for tokens in (1.0, 2.0, 7.0, 1e6, 1e15):
        points = head_points(laws, tokens)
        time = located(laws, points, tokens)
        won, squared = race_of_points(points[0], [(1.0, points[1])], time, tokens)
        # Two races, one for each head.
        assert won == pytest.approx(2 / tokens, rel=1e-9)
        assert squared == pytest.approx(2 / tokens, rel=1e-9)


def test_pairs_out_of_reach_are_refused() -> None:
    cov = 1e5 * np.array([[1.0, 0.95], [0.95, 1.0]])
    laws = [Law(1.0, np.zeros(2), cov) for _ in range(2)]
    time = np.zeros((2, 20)), np.zeros((2, 20))
    with pytest.raises(QuadratureError, match="scores") as caught:
        pair_races(laws[0], laws[1:], time, 5.0, 1.0, DIGITS)
    assert "\n" not in str(caught.value)
