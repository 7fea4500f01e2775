"""Quadrature rules against mpmath: accuracy as asked, at all scales."""

import mpmath as mp
import numpy as np
import pytest

from numeric.quadrature import gaussian_rule, race_rule, standard_normal_nets, symmetric_root


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
