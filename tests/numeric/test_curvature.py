"""Second derivatives of the loss: one head against mpmath, and how heads and pairs are put together."""

from typing import Any

import mpmath as mp
import numpy as np
import pytest

from numeric._generated import ACTIVATIONS
from numeric.curvature import Curvature, Moments, curvature
from numeric.race import Law
from tests.numeric.oracle import EXACT, LAYERS


def pieces(m: np.ndarray, r: np.ndarray, prior: list[tuple[float, Any, Any]]) -> tuple[Any, ...]:
    """Laws of a token's scores and the moments they stand for."""
    features = m.shape[1]
    moments = [Moments(np.zeros(features), np.eye(features))]
    laws = [Law(1.0, np.zeros(len(m)), m @ m.T + r)]
    for weight, mean, covariance in prior:
        moments.append(Moments(np.array(mean, float), np.eye(features) + covariance))
        laws.append(Law(weight, m @ mean, m @ moments[-1].second @ m.T + r))
    return laws[0], laws[1:], moments


PRIOR = [
    (0.3, [0.8, -0.4], np.array([[0.5, 0.2], [0.2, 0.4]])),
    (0.7, [-0.3, 0.6], np.zeros((2, 2))),
]
BIAS, VALUES = np.array([0.3, -0.2, 0.1]), np.array([0.5, -0.7, 0.4])
M = np.array([[0.5, -0.2], [0.1, 0.6], [-0.4, 0.3]])
R = np.array([[0.5, 0.1, 0.0], [0.1, 0.4, -0.2], [0.0, -0.2, 0.3]])


def found(
    name: str, heads: list[int], values: np.ndarray = VALUES, tokens: float = 3.0
) -> np.ndarray:
    m, r = M[heads], R[np.ix_(heads, heads)]
    null, relevant, moments = pieces(m, r, PRIOR)
    return curvature(
        m, null, relevant, moments, BIAS[heads], ACTIVATIONS[name], tokens, values[heads], 9.0
    )


def places(heads: list[int], features: int = 2, total: int = 3) -> np.ndarray:
    """Where the coordinates (m, r) of some heads are among those of all."""
    m = np.arange(total * features).reshape(total, features)[heads]
    r = total * features + np.arange(total**2).reshape(total, total)[np.ix_(heads, heads)]
    return np.concatenate([m.ravel(), r.ravel()])


@pytest.mark.parametrize("name", EXACT)
def test_heads_and_pairs_add_up(name: str) -> None:
    """Three heads at once are three pairs, less each single head once."""
    whole, total = found(name, [0, 1, 2]), np.zeros((15, 15))
    for pair in ([0, 1], [0, 2], [1, 2]):
        total[np.ix_(places(pair), places(pair))] += found(name, pair)
    for head in range(3):
        total[np.ix_(places([head]), places([head]))] -= found(name, [head])
    size = max(1.0, float(np.abs(whole).max()))
    assert np.abs(whole - total).max() < 2e-8 * size
    assert np.abs(whole - whole.T).max() < 1e-12 * size


@pytest.mark.parametrize("name", ["softmax-v", "erf"])
def test_it_is_quadratic_in_the_values(name: str) -> None:
    zero, one, two, minus = (found(name, [0, 1], x * VALUES) for x in (0, 1, 2, -1))
    assert not zero.any()
    assert np.abs(two - 3 * one - minus).max() < 1e-10 * np.abs(two).max()


@pytest.mark.parametrize("name", ["softmax", "softmax-1", "linear"])
def test_r_enters_only_by_its_symmetric_part(name: str) -> None:
    whole = found(name, [0, 1])
    upper, lower = 4 + 1, 4 + 2  # r_12 and r_21
    assert whole[upper] == pytest.approx(whole[lower], abs=1e-12)
    assert whole[:, upper] == pytest.approx(whole[:, lower], abs=1e-12)


def exact_loss(name: str) -> Any:
    """Loss of one head and two tokens, or of no denominator, of a fixed signal theta = 1.2."""
    v, bias, theta = mp.mpf("0.8"), mp.mpf("0.3"), mp.mpf("1.2")
    nodes = [mp.mpf(k) / 8 for k in range(-72, 73)]
    weights = [mp.npdf(z) / 8 for z in nodes]

    def loss(m: mp.mpf, r: mp.mpf) -> mp.mpf:
        sigma = mp.sqrt(m * m + r)
        total = mp.mpf(0)
        for z, p in zip(nodes, weights, strict=True):
            if name == "softmax-v":
                share = 1 / (1 + mp.exp(-m * theta - mp.sqrt(2) * sigma * z))
                total += p * ((1 - v * share) ** 2 + (v * (1 - share)) ** 2)
            else:
                mine, other = (1 + mp.erf(x + bias + sigma * z) for x in (m * theta, 0))
                total += p * ((1 - v * mine) ** 2 + (v * other) ** 2)
        return total

    return loss


@pytest.mark.parametrize("name", ["softmax-v", "erf"])
def test_one_head_against_mpmath(name: str) -> None:
    m, r = np.array([[0.7]]), np.array([[0.4]])
    null, relevant, moments = pieces(m, r, [(1.0, [1.2], np.zeros((1, 1)))])
    kernel = ACTIVATIONS[name]
    matrix = curvature(
        m, null, relevant, moments, np.full(1, 0.3), kernel, 2.0, np.full(1, 0.8), 11.0
    )
    with mp.workdps(30):
        expected = [
            [float(mp.diff(exact_loss(name), (0.7, 0.4), order)) for order in row]
            for row in (((2, 0), (1, 1)), ((1, 1), (0, 2)))
        ]
    assert matrix == pytest.approx(np.array(expected), abs=1e-8)
    assert LAYERS[name].value(1) == 1.0


def test_coordinates() -> None:
    """Three heads, two features: m by rows, then r by rows."""
    result = Curvature(np.zeros((3, 2)))
    assert result.matrix.shape == (15, 15)
    assert result.coordinates(1).tolist() == [2, 3, 6 + 4]
    assert result.coordinates(0, 2).tolist() == [0, 1, 4, 5, 6, 6 + 2, 6 + 8]
    assert Curvature(np.zeros((2, 0))).coordinates(0, 1).tolist() == [0, 1, 3]


def test_sharing_keeps_the_quadratic_form() -> None:
    """Of changes whose dr is symmetric; the matrix becomes symmetric in all ways."""
    rng = np.random.default_rng(1)
    result = Curvature(np.zeros((3, 2)))
    for heads in ((0,), (2,), (0, 2), (1, 2)):
        block = rng.normal(size=(len(result.coordinates(*heads)),) * 2)
        result.add(result.coordinates(*heads), block)
    shared = result.symmetric()
    assert np.array_equal(shared, shared.T)
    for _ in range(5):
        dr = rng.normal(size=(3, 3))
        change = np.concatenate([rng.normal(size=6), (dr + dr.T).ravel()])
        assert change @ shared @ change == pytest.approx(change @ result.matrix @ change)
    swap = np.concatenate([np.arange(6), 6 + np.arange(9).reshape(3, 3).T.ravel()])
    assert np.array_equal(shared, shared[swap])
    assert np.array_equal(shared, shared[:, swap])
