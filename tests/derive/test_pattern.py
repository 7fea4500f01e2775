"""Quartic energies of patterns and the eigenvalue of differences, against the exact loss at small m."""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import sympy as sp
from sympy import Expr, Integer, Rational, exp, sqrt

from derive.attention import ACTIVATIONS
from derive.landau import LossExpansion, expand_loss
from derive.pattern import (
    Preference,
    difference_eigenvalue,
    kappa,
    kappa_other,
    m_f,
    m_g,
    nu,
    nu_other,
    pattern_energy,
    preference,
)
from derive.stable import expit
from derive.symbols import H, L, b, v
from numeric.hessian import factor_hessian
from numeric.loss import evaluate
from numeric.prior import DiscretePrior, Prior, isotropic
from numeric.task import Attention, State, Task

BIAS, VALUE = 0.2, 0.3
ROOT = 2**-0.5
SLOW = pytest.mark.slow
# Four heads; m of each.
PATTERNS = {
    "one_feature": [[1, 0], [1, 0], [-1, 0], [-1, 0]],
    "single": [[1, 0], [-1, 0], [0, 1], [0, -1]],
    "mixed": [[x * ROOT, y * ROOT] for x in (1, -1) for y in (1, -1)],
}
# (step, probability of either sign): features are 0 else, of kurtosis 10/3 and 5/4.
PEAKED, FLAT = (1.3, 0.15), (1.1, 0.4)


@cache
def _expansion(name: str) -> LossExpansion:
    return expand_loss(ACTIVATIONS[name], 4)


@cache
def _preference(name: str) -> Preference:
    return preference(_expansion(name))


def _moments(feature: tuple[float, float]) -> tuple[float, float]:
    step, p = feature
    return 2 * p * step**2, 2 * p * step**4


# Moments of two features.
BOTH = dict(
    zip(("nu", "kappa_4", "nu_g", "kappa_g"), _moments(PEAKED) + _moments(FLAT), strict=True)
)


def _independent(*features: tuple[float, float]) -> DiscretePrior:
    values = [((-x, p), (0.0, 1 - 2 * p), (x, p)) for x, p in features]
    points = list(product(*values))
    return DiscretePrior(
        [[x for x, _ in point] for point in points],
        [np.prod([p for _, p in point]) for point in points],
    )


def _exact(name: str, tokens: int, prior: Prior, m: Any) -> float:
    m = np.array(m, float)
    attention = Attention(name, len(m))
    known = {"b": BIAS, "v": VALUE}
    given = {x: np.full(len(m), known[x]) for x in attention.parameters}
    state = State(m, np.zeros((len(m), len(m))), **given)
    return float(evaluate(state, Task(tokens, prior), attention, 15, 10**6, 0).value)


def _float(name: str, expression: Expr, tokens: int, heads: int, **moments: float) -> float:
    """At the numbers of `_exact`; moments by the names of their symbols."""
    values = {L: tokens, H: heads, b: BIAS, v: VALUE}
    values |= {x: moments[x.name] for x in expression.free_symbols if x.name in moments}
    found = expression.subs(_expansion(name).functions).replace(expit, lambda x: 1 / (1 + exp(-x)))
    return float(found.subs(values))


def _limit(function: Any, scales: np.ndarray) -> float:
    """Of an even function at zero: extrapolated."""
    return float(np.linalg.solve(np.vander(scales**2), [function(x) for x in scales])[-1])


SCALES = 0.3 / 2 ** (np.arange(5) / 2)


@pytest.mark.parametrize(
    ("tokens", "feature"),
    [(5, PEAKED), (2, FLAT), *(pytest.param(*x, marks=SLOW) for x in ((2, PEAKED), (9, FLAT)))],
)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_preference_is_that_of_the_exact_loss(
    name: str, tokens: int, feature: tuple[float, float]
) -> None:
    """Second orders are equal, so that the energies' differences are of fourth order in m."""
    prior, (variance, fourth) = _independent(feature, feature), _moments(feature)
    moments = {"nu": variance, "kappa_4": fourth}
    energy = {
        pattern: _float(name, getattr(_preference(name), pattern), tokens, 4, **moments)
        for pattern in PATTERNS
    }

    def difference(scale: float, pattern: str) -> float:
        one, single = (
            _exact(name, tokens, prior, scale * np.array(PATTERNS[x])) for x in (pattern, "single")
        )
        return (one - single) / scale**4

    for pattern in ("mixed", "one_feature"):
        found = _limit(lambda x, pattern=pattern: difference(x, pattern), SCALES)
        assert found == pytest.approx(energy[pattern] - energy["single"], rel=2e-3, abs=1e-9)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_isotropic_gaussian_signals_prefer_neither(name: str) -> None:
    """A rotation turns one pattern into the other."""
    energy = _preference(name)
    difference = energy.mixed - energy.single
    assert sp.simplify(difference.subs(kappa, 3 * nu**2)) == 0
    one, other = (
        _exact(name, 4, isotropic(2, 0.7), 0.5 * np.array(PATTERNS[x])) for x in ("mixed", "single")
    )
    assert one == pytest.approx(other, abs=1e-11)
    assert (difference == 0) == (name == "linear")


def test_preference_in_closed_form() -> None:
    excess = kappa - 3 * nu**2
    closed = {
        "softmax": (L - 2) * (L - 1) * (L**2 - 12 * L + 12) * excess / (24 * L**5),
        "b-softmax": (L - 1) * excess / (24 * L**2),
    }
    for name, expected in closed.items():
        energy = _preference(name)
        assert sp.simplify(energy.mixed - energy.single - expected) == 0


# Shares in sixths and alignments: these sum to no zero, and features differ.
UNEVEN = [(3, (1, Rational(1, 2))), (1, (-2, 1)), (2, (0, Rational(-3, 2)))]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_energy_of_any_pattern(name: str) -> None:
    pattern = [(Rational(k, 6), m) for k, m in UNEVEN]
    features = [tuple(map(sp.Float, _moments(x))) for x in (PEAKED, FLAT)]
    energy = [
        _float(name, pattern_energy(_expansion(name), k, pattern, features), 4, 6) for k in range(5)
    ]
    assert energy[1] == energy[3] == 0
    heads = np.array([m for k, m in UNEVEN for _ in range(k)], float)
    prior = _independent(PEAKED, FLAT)

    def rest(scale: float) -> float:
        return _exact(name, 4, prior, scale * heads) - energy[0] - energy[2] * scale**2

    assert abs(rest(0.0)) < 1e-12
    assert _limit(lambda x: rest(x) / x**4, SCALES / 4) == pytest.approx(
        energy[4], rel=2e-3, abs=1e-7
    )


@pytest.mark.parametrize(
    "name", ["softmax", "b-softmax", "erf", pytest.param("softmax-1", marks=SLOW)]
)
def test_equal_features_do_not_depend_on_their_order(name: str) -> None:
    """Nor a Gaussian's energy on the direction."""
    x, y = sp.symbols("x y", real=True)
    equal, gaussian = [(nu, kappa)] * 2, [(nu, 3 * nu**2)] * 2
    expansion = _expansion(name)
    one, other = (pattern_energy(expansion, 4, [(Integer(1), m)], equal) for m in ((x, y), (-y, x)))
    assert sp.simplify(one - other) == 0
    along, across = (
        pattern_energy(expansion, 4, [(Integer(1), m)], gaussian)
        for m in ((x, y), ((x + y) / sqrt(2), (x - y) / sqrt(2)))
    )
    assert sp.simplify(along - across) == 0


PARTED = [
    *("softmax", "b-softmax", "erf"),
    *(pytest.param(x, marks=SLOW) for x in ("softmax-v", "softmax-1", "softplus")),
]


@cache
def _eigenvalue(name: str) -> Expr:
    return difference_eigenvalue(_expansion(name))


def _curvature(name: str, tokens: int, prior: Prior, m: np.ndarray) -> float:
    """Second derivative of the exact loss of three equal heads, two of which part along feature 0."""
    part = np.array([[ROOT, 0], [-ROOT, 0], [0, 0]])
    start = _exact(name, tokens, prior, np.tile(m, (3, 1)))

    def slope(step: float) -> float:
        return 2 * (_exact(name, tokens, prior, m + step * part) - start) / step**2

    return _limit(slope, 0.4 / 2 ** (np.arange(5) / 2))


@pytest.mark.parametrize(
    "direction",
    [(0.6, -0.8), *(pytest.param(x, marks=SLOW) for x in ((1.0, 0.0), (0.0, 1.0)))],
    ids=str,
)
@pytest.mark.parametrize("name", PARTED)
def test_eigenvalue_of_differences(name: str, direction: tuple[float, float]) -> None:
    """Against second differences: what is left is of fourth order in the common m."""
    prior = _independent(PEAKED, FLAT)
    scales = 0.25 / 2 ** (np.arange(4) / 2)
    rest = []
    for scale in scales:
        m = scale * np.array(direction)
        expected = _float(name, _eigenvalue(name), 5, 3, m_f=m[0], m_g=m[1], **BOTH)
        rest.append((_curvature(name, 5, prior, m) - expected) / scale**4)
    limit = np.linalg.solve(np.vander(scales**2), rest)[-1]
    assert abs(rest - limit).max() < abs(limit)
    assert np.diff(np.abs(rest - limit)).max() < 0


@pytest.mark.parametrize("name", PARTED)
def test_eigenvalue_against_the_exact_hessian(name: str) -> None:
    """At m = 0, and where heads are at one m, along any displacement that sums to zero."""
    prior, heads, tokens = _independent(PEAKED, FLAT), 3, 5
    attention = Attention(name, heads)
    known = {"b": BIAS, "v": VALUE}
    given = {x: np.full(heads, known[x]) for x in attention.parameters}
    for m in ((0.0, 0.0), (0.02, -0.01)):
        state = State(np.tile(m, (heads, 1)), np.zeros((heads, heads)), **given)
        matrix = factor_hessian(state, Task(tokens, prior), attention).matrix
        part = np.zeros((heads, len(matrix) // heads))
        part[:, 0] = np.array([1, 1, -2]) / np.sqrt(6)
        found = part.ravel() @ matrix @ part.ravel()
        expected = _float(name, _eigenvalue(name), tokens, heads, m_f=m[0], m_g=m[1], **BOTH)
        assert found == pytest.approx(expected, rel=3e-5, abs=1e-9)


def test_eigenvalue_at_the_origin_is_the_published_one() -> None:
    found = _eigenvalue("softmax").subs({m_f: 0, m_g: 0})
    assert sp.simplify(found + 2 / (H * L) * (1 - 1 / L) * (1 - 2 / L) * nu) == 0
    assert not _eigenvalue("softmax").has(kappa_other)
    assert _eigenvalue("softmax").has(nu_other)
