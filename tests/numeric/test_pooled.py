"""Pooled races: one token's whole score vector by product rules and by nets, and where each serves."""

import numpy as np
import pytest

from numeric._generated import ACTIVATIONS
from numeric.pooled import (
    NETS,
    net_points,
    pooled_races,
    pooled_time,
    product_points,
    product_rules,
)
from numeric.quadrature import product_size
from numeric.race import Law
from tests.numeric.oracle import LAYERS, attention, sample_loss, slope

KERNEL, LAYER = ACTIVATIONS["b-softmax"], LAYERS["b-softmax"]
BIAS = np.array([0.4, -0.3])
NULL = np.array([[0.5, 0.15], [0.15, 0.3]])
RELEVANT = (
    (0.3, [0.8, -0.4], [[0.9, -0.2], [-0.2, 0.4]]),
    (0.7, [-0.5, 0.6], [[0.3, 0.2], [0.2, 0.6]]),
)


def make_laws(scale: float = 1.0) -> list[Law]:
    laws = [Law(1.0, np.zeros(2), scale**2 * NULL)]
    return laws + [
        Law(p, scale * np.array(mean), scale**2 * np.array(cov)) for p, mean, cov in RELEVANT
    ]


def by_product(laws: list[Law], tokens: float, digits: float, bias: np.ndarray = BIAS) -> float:
    null, *relevant = laws
    rules = product_rules(null, relevant, tokens, digits, 100_000)
    assert rules is not None
    time = pooled_time(null, relevant, bias, KERNEL, tokens, digits)
    points = [
        product_points(law, bias, KERNEL, rule) for law, rule in zip(laws, rules, strict=True)
    ]
    return pooled_races(null, relevant, points, time, tokens)


def by_nets(laws: list[Law], tokens: float, size: int, bias: np.ndarray) -> tuple[float, float]:
    null, *relevant = laws
    time = pooled_time(null, relevant, bias, KERNEL, tokens, 6.0)
    found = [
        pooled_races(null, relevant, points, time, tokens)
        for points in net_points(null, relevant, bias, KERNEL, tokens, size)
    ]
    assert len(found) == NETS
    return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(NETS))


def sampled(laws: list[Law], tokens: int, bias: np.ndarray, seed: int) -> tuple[float, float]:
    """``E (B - 2 A)`` from the definition of the weights."""
    rng, size = np.random.default_rng(seed), 100_000
    chi = rng.multivariate_normal(laws[0].mean, laws[0].cov, (size, tokens), method="eigh")
    component = rng.choice(len(laws) - 1, size, p=[law.weight for law in laws[1:]])
    for k, law in enumerate(laws[1:]):
        mine = np.flatnonzero(component == k)
        chi[mine, 0] = rng.multivariate_normal(law.mean, law.cov, len(mine), method="eigh")
    values = sample_loss(attention(LAYER, chi.transpose(0, 2, 1), bias)) - 1
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(size))


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("tokens", [1, 2, 7, 30])
def test_product_rules_against_monte_carlo(tokens: int, scale: float) -> None:
    """Twelve comparisons with |z| < 5: a false alarm with probability below 1e-5."""
    laws = make_laws(scale)
    value = by_product(laws, float(tokens), 8.0)
    expected, error = sampled(laws, tokens, BIAS, tokens)
    assert abs(value - expected) < 5 * error + 1e-8
    finer = by_product(make_laws(scale), float(tokens), 11.0)
    assert value == pytest.approx(finer, abs=2e-7)


@pytest.mark.parametrize("tokens", [2.0, 40.0])
def test_nets_against_product_rules(tokens: float) -> None:
    """Within 6 of Student's standard errors, seven degrees of freedom: five in ten thousand."""
    value, error = by_nets(make_laws(), tokens, 1024, BIAS)
    exact = by_product(make_laws(), tokens, 10.0)
    assert error < 1e-3
    assert abs(value - exact) < 6 * error + 1e-6


def test_nets_in_many_dimensions_against_monte_carlo() -> None:
    rng = np.random.default_rng(4)
    root = 0.4 * rng.normal(size=(6, 6))
    laws = [Law(1.0, np.zeros(6), root @ root.T), Law(1.0, root[0], 1.5 * root @ root.T)]
    bias = root[1]
    assert product_rules(laws[0], laws[1:], 5.0, 6.0, 40_000) is None
    value, error = by_nets(laws, 5.0, 1024, bias)
    expected, spread = sampled(laws, 5, bias, 1)
    assert abs(value - expected) < 6 * np.hypot(error, spread)


@pytest.mark.parametrize("tokens", [1e3, 1e6])
def test_nets_follow_the_best_of_many_tokens(tokens: float) -> None:
    """Where the law itself has no points, weighted ones are."""
    laws, reference = make_laws(1.5), make_laws(1.5)
    value, error = by_nets(laws, tokens, 2048, BIAS)
    exact = by_product(reference, tokens, 9.0)
    assert abs(value - exact) < 8 * error + 1e-6
    assert error < 0.02 * (1 + exact) + 1e-4


def test_derivatives_against_finite_differences() -> None:
    """Of points that move with their laws; in biases, one mean and one covariance of each law."""
    laws = make_laws()
    by_product(laws, 3.0, 11.0)
    change = np.array([[0.7, 0.2], [0.2, -0.3]])
    for which, law in enumerate(laws):

        def at(x: float, along: str, which: int = which) -> float:
            laws = make_laws()
            mean, cov = laws[which].mean, laws[which].cov
            mean = mean + x * np.array([1.0, -2.0]) if along == "mean" else mean
            cov = cov + x * change if along == "cov" else cov
            laws[which] = Law(laws[which].weight, mean, cov)
            return by_product(laws, 3.0, 11.0)

        in_mean = slope(lambda x, at=at: at(x, "mean"), 0.02)
        assert law.g @ [1.0, -2.0] == pytest.approx(in_mean, abs=1e-8)
        in_cov = slope(lambda x, at=at: at(x, "cov"), 0.02)
        assert np.sum(law.Gamma * change) == pytest.approx(in_cov, abs=1e-8)
    in_bias = sum(law.b for law in laws)
    assert abs(in_bias.sum()) < 1e-10
    expected = slope(lambda x: by_product(make_laws(), 3.0, 11.0, BIAS + x * np.eye(2)[0]), 0.02)
    assert in_bias[0] == pytest.approx(expected, abs=1e-8)


def test_a_product_rule_follows_the_principal_axes() -> None:
    """Perfectly correlated scores need one axis; the number of points is what is allowed."""
    flat = [Law(1.0, np.zeros(3), np.full((3, 3), 0.8)) for _ in range(2)]
    rules = product_rules(flat[0], flat[1:], 5.0, 8.0, 1000)
    assert rules is not None
    assert sorted(len(z) for z, _ in rules[0])[:2] == [1, 1]
    size = product_size(rules[0])
    assert product_rules(flat[0], flat[1:], 5.0, 8.0, size) is not None
    assert product_rules(flat[0], flat[1:], 5.0, 8.0, size - 1) is None
    full = [Law(1.0, np.zeros(3), 0.8 * np.eye(3)), flat[1]]
    assert product_rules(full[0], full[1:], 5.0, 8.0, 1000) is None
    points = product_points(flat[0], np.zeros(3), KERNEL, rules[0])
    assert points.log_weight.shape == points.weights.shape == (1, size)
    assert points.weights.sum() == pytest.approx(1.0, abs=1e-7)
    assert points.slope.shape == points.curvature.shape == points.bias.shape == (1, size, 3)
    # Shares add up to one.
    assert points.slope.sum(axis=2) == pytest.approx(np.ones((1, size)))
