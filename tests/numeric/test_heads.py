"""Heads with denominators of their own, or with none: A and B with derivatives, by sums over all
scores, by moments in closed form, and by differences.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.special
from numpy.polynomial.hermite_e import hermegauss

from numeric._generated import ACTIVATIONS
from numeric.heads import head_races, race_times
from numeric.race import Law
from tests.numeric.oracle import EXACT, LAYERS, slope

NULL = ([0.0, 0.2], [[0.5, 0.15], [0.15, 0.3]])
RELEVANT = (
    (0.3, [0.8, -0.4], [[0.9, -0.2], [-0.2, 0.4]]),
    (0.7, [-0.5, 0.6], [[0.3, 0.2], [0.2, 0.6]]),
)
BIAS, VALUES = np.array([0.4, -0.3]), np.array([0.6, -1.4])


def make_laws(null: Any = NULL, relevant: Any = RELEVANT) -> list[Law]:
    laws = [Law(1.0, *map(np.array, null))]
    return laws + [Law(p, np.array(mean), np.array(cov)) for p, mean, cov in relevant]


def found(
    name: str, laws: list[Law], tokens: float, digits: float = 12.0, bias: np.ndarray = BIAS
) -> tuple[np.ndarray, np.ndarray]:
    values = VALUES[: len(bias)]
    return head_races(laws[0], laws[1:], bias, ACTIVATIONS[name], tokens, values, digits)


def loss(a: np.ndarray, b: np.ndarray) -> float:
    values = VALUES[: len(a)]
    return float(values @ b @ values - 2 * values @ a)


@pytest.mark.parametrize("name", EXACT)
def test_two_tokens_against_gauss_hermite(name: str) -> None:
    layer = LAYERS[name]
    x, w = hermegauss(44 if name == "erf" else 28)
    z = np.stack([g.ravel() for g in np.meshgrid(x, x, indexing="ij")], axis=1)
    weights = np.multiply.outer(w, w).ravel() / w.sum() ** 2
    other = layer.weight(np.array(NULL[0]) + z @ np.linalg.cholesky(np.array(NULL[1])).T, BIAS)
    a, b = np.zeros(2), np.zeros((2, 2))
    for share, mean, cov in RELEVANT:
        mine = layer.weight(np.array(mean) + z @ np.linalg.cholesky(np.array(cov)).T, BIAS)
        weight = share * np.multiply.outer(weights, weights)
        total = layer.background + mine[:, None] + other
        if layer.normalization == "none":
            total = np.ones_like(total)
        p, q = mine[:, None] / total, other / total
        a += np.einsum("ij,ijh->h", weight, p)
        b += np.einsum("ij,ijh,ijk->hk", weight, p, p) + np.einsum("ij,ijh,ijk->hk", weight, q, q)
    in_a, in_b = found(name, make_laws(), 2.0)
    assert in_a == pytest.approx(a, abs=1e-9)
    assert in_b == pytest.approx(b, abs=1e-9)
    assert np.array_equal(in_b, in_b.T)


@pytest.mark.parametrize("tokens", [1.0, 3.0, 1e6])
def test_linear_moments(tokens: float) -> None:
    """``E (1 + x)(1 + y) = (1 + E x)(1 + E y) + Cov(x, y)`` for every law."""
    a, b = np.zeros(2), np.zeros((2, 2))
    for share, mean, cov in RELEVANT:
        gain = 1 + np.array(mean)
        a += share * gain
        b += share * (np.outer(gain, gain) + np.array(cov))
    gain = 1 + np.array(NULL[0])
    b += (tokens - 1) * (np.outer(gain, gain) + np.array(NULL[1]))
    laws = make_laws()
    in_a, in_b = found("linear", laws, tokens)
    assert in_a == pytest.approx(a, rel=1e-11)
    assert in_b == pytest.approx(b, rel=1e-11)
    # dE/dcov = v v^T times the number of such tokens.
    for law, count in zip(laws, (tokens - 1, 0.3, 0.7), strict=True):
        assert law.Gamma == pytest.approx(count * np.outer(VALUES, VALUES), rel=1e-9, abs=1e-12)
    slope_in_mean = 2 * (tokens - 1) * VALUES * (VALUES @ gain)
    assert laws[0].g == pytest.approx(slope_in_mean, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("sigma", [0.0, 1e-3, 0.5, 2.0, 7.0])
def test_erf_moments_of_one_head(sigma: float) -> None:
    """``E erf(x) = erf(m / sqrt(1 + 2 s^2))``; the square by Owen's T function."""
    mean, bias, tokens = 0.4, -0.7, 5.0
    laws = [Law(1.0, np.array([x]), np.full((1, 1), sigma**2)) for x in (0.0, mean)]

    def moments(x: float) -> tuple[float, float]:
        gain = x / np.sqrt(1 + 2 * sigma**2)
        first = scipy.special.erf(gain)
        # erf(x) = 2 Phi(sqrt 2 x) - 1, and E Phi^2 = Phi(h) - 2 T(h, 1 / sqrt(1 + 2 s^2)).
        h = np.sqrt(2) * gain
        square = scipy.special.ndtr(h) - 2 * scipy.special.owens_t(h, 1 / np.sqrt(1 + 4 * sigma**2))
        return 1 + first, 4 * square

    first, square = moments(mean + bias)
    a, b = found("erf", laws, tokens, bias=np.array([bias]))
    assert a == pytest.approx([first], abs=1e-11)
    assert b[0, 0] == pytest.approx(square + 4 * moments(bias)[1], abs=1e-10)


@pytest.mark.parametrize("name", [name for name in EXACT if name != "softmax-v"])
def test_derivatives_against_finite_differences(name: str) -> None:
    """In means, covariances and biases; the race times move along, which changes nothing."""
    laws = make_laws()
    size = 1 + abs(loss(*found(name, laws, 3.0, 11.0)))
    for which, law in enumerate(laws):

        def at(mean: np.ndarray, cov: np.ndarray, which: int = which) -> float:
            laws = make_laws()
            laws[which] = replace(laws[which], mean=laws[which].mean + mean)
            laws[which] = replace(laws[which], cov=laws[which].cov + cov)
            return loss(*found(name, laws, 3.0, 11.0))

        for h in range(2):
            unit = np.eye(2)[h]
            in_mean = slope(lambda x, u=unit, at=at: at(x * u, np.zeros((2, 2))))
            assert law.g[h] == pytest.approx(in_mean, abs=1e-8 * size)
        for direction in ([[1, 0], [0, 0]], [[0, 0.5], [0.5, 0]]):
            change = np.array(direction, dtype=float)
            in_cov = slope(lambda x, c=change, at=at: at(np.zeros(2), x * c))
            assert np.sum(law.Gamma * change) == pytest.approx(in_cov, abs=1e-8 * size)
    in_bias = sum(law.b for law in laws)
    for h in range(2):
        unit = np.eye(2)[h]
        expected = slope(lambda x, u=unit: loss(*found(name, make_laws(), 3.0, 11.0, BIAS + x * u)))
        assert in_bias[h] == pytest.approx(expected, abs=1e-8 * size)


@pytest.mark.parametrize("shift", [-800.0, -3.0, 800.0])
@pytest.mark.parametrize("name", ["softmax", "softmax-1", "linear"])
def test_a_shift_of_all_scores(name: str, shift: float) -> None:
    """Nothing changes without background; with one, or no denominator, all that depends on it does."""
    laws = make_laws()
    others = [replace(law, mean=law.mean + shift) for law in laws]
    a, b = found(name, laws, 4.0)
    with np.errstate(all="raise", under="ignore"):
        in_a, in_b = found(name, others, 4.0)
    if name == "softmax":
        assert in_a == pytest.approx(a, abs=1e-11)
        assert in_b == pytest.approx(b, abs=1e-11)
    elif name == "linear":
        assert in_a == pytest.approx(a + shift, rel=1e-11)
    elif shift > 100:
        expected = found("softmax", make_laws(), 4.0)
        assert in_a == pytest.approx(expected[0], abs=1e-10)
        assert in_b == pytest.approx(expected[1], abs=1e-10)
    elif shift < -100:
        assert np.abs(in_a).max() < 1e-30 and np.abs(in_b).max() < 1e-30
    else:
        assert (in_a < a).all() and (in_b < b).all()


@pytest.mark.parametrize("name", [n for n in EXACT if LAYERS[n].normalization != "none"])
def test_one_head_twice_is_a_pair_of_its_own(name: str) -> None:
    """Singular covariances: the pair of equal scores is a race against itself."""
    null = (np.full(2, 0.1), np.full((2, 2), 0.5))
    relevant = [(1.0, np.full(2, 0.7), np.full((2, 2), 0.8))]
    a, b = found(name, make_laws(null, relevant), 4.0, bias=np.full(2, 0.3))
    assert a[0] == pytest.approx(a[1], abs=1e-13)
    assert b == pytest.approx(np.full((2, 2), b[0, 0]), abs=1e-11)
    one = make_laws((np.full(1, 0.1), [[0.5]]), [(1.0, np.full(1, 0.7), [[0.8]])])
    alone = found(name, one, 4.0, bias=np.full(1, 0.3))
    assert b[0, 0] == pytest.approx(alone[1][0, 0], abs=1e-12)


def test_race_times() -> None:
    """One time without a race; finer ones for pairs that nearly agree."""
    laws = make_laws()
    for name in ("linear", "erf"):
        for u, du in race_times(laws[0], laws[1:], BIAS, ACTIVATIONS[name], 5.0, 9.0):
            assert u.tolist() == [[0.0], [0.0]]
            assert du.tolist() == [[1.0], [1.0]]
    alike = np.array([[9.0, 8.999], [8.999, 9.0]])
    wide = [Law(1.0, np.zeros(2), alike) for _ in range(2)]
    single, double = race_times(wide[0], wide[1:], BIAS, ACTIVATIONS["softmax"], 5.0, 9.0)
    assert double[0].shape[1] > single[0].shape[1]
    one = [Law(1.0, np.zeros(1), np.eye(1)) for _ in range(2)]
    single, double = race_times(one[0], one[1:], BIAS[:1], ACTIVATIONS["softmax"], 5.0, 9.0)
    assert single is double or np.array_equal(single[0], double[0])
