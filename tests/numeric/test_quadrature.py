"""Quadrature rules against mpmath: accuracy as asked, at all scales."""

from functools import cache

import mpmath as mp
import numpy as np
import pytest
import scipy.special

from numeric.errors import QuadratureError
from numeric.quadrature import (
    equispaced_rule,
    extrapolated_error,
    gaussian_rule,
    hermite_basis,
    hermite_count,
    principal_axes,
    product_rule,
    product_size,
    race_rule,
    standard_normal_nets,
    symmetric_root,
)


@cache
def reference(sigma: float, u: float, power: int) -> float:
    """E tau^k exp(-tau), tau = exp(sigma z - u), at 25 digits."""
    with mp.workdps(25):

        def integrand(z: mp.mpf) -> mp.mpf:
            tau = mp.e ** (sigma * z - u)
            return tau**power * mp.exp(-tau - z * z / 2) / mp.sqrt(2 * mp.pi)

        knots = sorted(
            {
                -12,
                -6,
                -3,
                -1,
                0,
                1,
                3,
                6,
                12,
                *([min(max(u / sigma + d / sigma, -12), 12) for d in (-2, 0, 2)] if sigma else []),
            }
        )
        return float(mp.quad(integrand, knots))


@pytest.mark.parametrize("digits", [4.0, 7.0, 10.0])
@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.3, 1.0, 3.0, 10.0])
def test_gaussian_rule_reaches_its_digits(sigma: float, digits: float) -> None:
    z, weights = gaussian_rule(sigma, digits)
    assert weights.sum() == pytest.approx(1.0, abs=2 * 10**-digits)
    for u in (-2.0, 0.0, 1.5):
        tau = np.exp(np.minimum(sigma * z - u, 7.0))
        for power in (0, 1, 2):
            value = float((tau**power * np.exp(-tau)) @ weights)
            assert abs(value - reference(sigma, u, power)) < 10 ** (1 - digits)


def test_no_spread_needs_one_node() -> None:
    z, weights = gaussian_rule(0.0, 12.0)
    assert z.tolist() == [0.0]
    assert weights.tolist() == [1.0]


def test_more_tokens_reach_further_to_the_right_only() -> None:
    one, _ = gaussian_rule(2.0, 8.0)
    many, _ = gaussian_rule(2.0, 8.0, 1e6)
    assert many[-1] > one[-1] + 1.9
    assert many[0] == one[0]


@pytest.mark.parametrize("shift", [0.0, np.log(1e6), -30.0])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_race_rule_integrates_a_winner_density(shift: float, scale: float) -> None:
    """Density and mean of a Gumbel variable of any place and width."""
    time = np.linspace(shift - 15 * scale, shift + 45 * scale, 600)
    log_lost = np.maximum(-np.exp(-(time - shift) / scale), -700.0)[None]
    width = np.array([1.28 * scale])
    u, weights = race_rule(time, log_lost, width, 9.0)
    s = (u - shift) / scale
    density = np.exp(-s - np.exp(-s)) / scale
    assert float((density * weights).sum()) == pytest.approx(1.0, abs=1e-8)
    assert float((u * density * weights).sum()) == pytest.approx(
        shift + scale * np.euler_gamma, abs=1e-6 * (1 + abs(shift))
    )


def test_nets_are_reproducible_independent_and_normal() -> None:
    first, again = (standard_normal_nets.__wrapped__(3, 4, 256) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first[0], first[1])
    assert np.abs(first.mean(axis=(0, 1))).max() < 0.02
    assert np.abs(first.var(axis=(0, 1)) - 1).max() < 0.05


def test_symmetric_root_of_a_singular_matrix() -> None:
    matrix = 0.7 * np.ones((3, 3))
    root = symmetric_root(matrix)
    assert np.abs(root @ root - matrix).max() < 1e-14
    assert np.array_equal(root, root.T) or np.abs(root - root.T).max() < 1e-15


@pytest.mark.parametrize("n", [1, 2, 7, 40, 96])
def test_hermite_coefficients(n: int) -> None:
    """Of He_k itself one; of ``exp(a z)`` they are ``e^(a^2/2) a^k / sqrt(k!)``."""
    z, basis = hermite_basis(n)
    weights = basis[:, 0]
    assert weights.sum() == pytest.approx(1.0, abs=1e-13)
    # Orthonormal: the basis over the square root of the weights is an orthogonal matrix.
    kept = weights > 1e-250
    square = (basis[kept].T / weights[kept]) @ basis[kept]
    assert np.abs(square[: n // 2, : n // 2] - np.eye(n // 2)).max(initial=0) < 1e-10
    if n >= 40:
        a = 0.8
        k = np.arange(20)
        expected = np.exp(a * a / 2 + k * np.log(a) - scipy.special.gammaln(k + 1) / 2)
        assert np.exp(a * z) @ basis[:, :20] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("rho", [0.0, 0.5, -0.9, 1.0])
def test_coefficients_give_correlated_expectations(rho: float) -> None:
    """``E f(x) g(y) = sum_k f_k g_k rho^k``, here of exponentials of correlated variables."""
    z, basis = hermite_basis(60)
    f, g = (np.exp(a * z) @ basis for a in (0.7, -0.4))
    found = float((f * g) @ rho ** np.arange(60))
    expected = np.exp((0.49 + 0.16) / 2 + rho * 0.7 * -0.4)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("rest", [1.0, 0.5, 0.0625])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 5.0])
def test_equispaced_rule_resolves_a_narrower_density(sigma: float, rest: float) -> None:
    """A normal density of deviation `rest` anywhere in the bulk, times a race function."""
    z, weights = equispaced_rule(sigma, 8.0, 5.0, rest)
    assert np.ptp(np.diff(z)) < 1e-12
    step = z[1] - z[0]
    assert weights == pytest.approx(np.exp(-z * z / 2) * step / np.sqrt(2 * np.pi))
    y = np.linspace(-9, 9, 20_001)
    # Given another score the mean moves, and the deviation is less.
    for centre in (0.0, 0.37, -2.1) if rest < 1 else (0.0,):

        def integrand(x: np.ndarray, centre: float = centre) -> np.ndarray:
            density = np.exp(-((x - centre) ** 2) / (2 * rest**2)) / (rest * np.sqrt(2 * np.pi))
            return density * np.exp(-np.exp(np.minimum(sigma * x - 0.5, 7.0)))

        expected = integrand(y + centre).sum() * (y[1] - y[0])
        assert step * integrand(z).sum() == pytest.approx(expected, abs=2e-8)


@pytest.mark.parametrize("digits", [4.0, 7.0, 10.0])
@pytest.mark.parametrize("sigma", [0.01, 0.1, 0.3, 1.0])
def test_hermite_count_is_enough(sigma: float, digits: float) -> None:
    z, basis = hermite_basis(hermite_count(sigma, digits))
    for u in (-2.0, 0.0, 1.5):
        found = float(np.exp(-np.exp(np.minimum(sigma * z - u, 7.0))) @ basis[:, 0])
        assert abs(found - reference(sigma, u, 0)) < 10 ** (1 - digits)
    assert hermite_count(0.0, digits) == 1
    assert hermite_count(sigma, digits + 2) >= hermite_count(sigma, digits)


@pytest.mark.parametrize("matrix", [np.diag([4.0, 0.0, 1.0]), np.full((3, 3), 2.0)])
def test_principal_axes_rebuild_a_covariance(matrix: np.ndarray) -> None:
    sigma, axes = principal_axes(matrix - 1e-18 * np.eye(3))
    assert (sigma >= 0).all()
    assert (axes * sigma**2) @ axes.T == pytest.approx(matrix, abs=1e-14)


def test_product_rules() -> None:
    rules = [gaussian_rule(x, 8.0) for x in (0.0, 0.2, 0.5)]
    points, weights = product_rule(rules)
    assert points.shape == (product_size(rules), 3)
    assert weights.sum() == pytest.approx(1.0, abs=1e-9)
    assert (weights * points[:, 1] ** 2 * points[:, 2] ** 2).sum() == pytest.approx(1.0, abs=1e-7)
    assert not points[:, 0].any()
    points, weights = product_rule([])
    assert points.shape == (1, 0) and weights.tolist() == [1.0]


@pytest.mark.parametrize("first", [0.0, 1e-12, 1e-3, 1.0])
@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.3, 0.8, 1.0, 5.0])
def test_extrapolated_errors_cover_geometric_series(first: float, ratio: float) -> None:
    """The rest of a series of changes that shrink by that ratio, and never less than the last."""
    second = ratio * first
    error = extrapolated_error(first, second)
    assert error >= second
    assert error > 0
    if ratio < 0.9:
        assert error >= second * ratio / (1 - ratio)
    if first:
        assert error < 200 * max(first, second)


def test_scores_out_of_reach_are_refused() -> None:
    for rule in (
        lambda: gaussian_rule(1e6, 8.0),
        lambda: equispaced_rule(1e6, 8.0, 5.0),
        lambda: gaussian_rule(np.nan, 8.0),
    ):
        with pytest.raises((QuadratureError, ValueError)) as caught:
            rule()
        assert "\n" not in str(caught.value)
    time = np.linspace(-1e7, 1e7, 1000)
    log_lost = np.maximum(-np.exp(np.minimum(-time / 1e6, 600)), -700.0)[None]
    with pytest.raises(QuadratureError, match="too far apart"):
        race_rule(time, log_lost, np.array([1.0]), 9.0)
