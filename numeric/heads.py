"""Heads that are normalized on their own, or not at all: ``A_h`` and ``B_hh'`` with derivatives.

Each head runs a race (`race`), each pair of heads two (`pairs`). Without normalization there is none: A
and B are moments of the scores.
"""

import numpy as np

from numeric._generated import race
from numeric.activation import Kernels
from numeric.errors import QuadratureError
from numeric.law import Law, weight_of
from numeric.pairs import pair_races, pair_width
from numeric.quadrature import Array, Rule, gaussian_rule
from numeric.race import locate, marginal_points, single_races, with_background

# Digits of the points that locate a race.
COARSE = 3.0
# Deviations within which the squared weight's expectation must be decided, and what may be left there.
REACH, LEFT = 8.0, 1e-3
# Moments, times squared values, below this do not count.
LEAST = 1e-4


def head_races(
    null: Law,
    relevant: list[Law],
    bias: Array,
    kernel: Kernels,
    tokens: float,
    values: Array,
    digits: float,
) -> tuple[Array, Array]:
    """Return A (H,) and B (H, H); derivatives of ``-2 v.A + v.B v`` are added to the laws.

    Raises
    ------
    QuadratureError
        If the scores are so spread that no affordable rule resolves them.
    """
    single, double = race_times(null, relevant, bias, kernel, tokens, digits)
    if kernel.NORMALIZATION == "none":
        a, b = _moments(null, relevant, bias, kernel, tokens, values, digits)
    else:
        null_points, *points = (
            marginal_points(law, bias, kernel, digits, tokens) for law in (null, *relevant)
        )
        a, b = single_races(null, relevant, null_points, points, single, tokens, values, values**2)
    pairs = np.diag(b)
    if len(bias) > 1:
        pairs = pairs + pair_races(null, relevant, bias, kernel, double, tokens, values, digits)
    return a, pairs


def race_times(
    null: Law, relevant: list[Law], bias: Array, kernel: Kernels, tokens: float, digits: float
) -> tuple[Rule, Rule]:
    """Race-time rules of heads on their own, and of heads in pairs; one time where there is no race."""
    if kernel.NORMALIZATION == "none":
        none = np.zeros((len(bias), 1)), np.ones((len(bias), 1))
        return none, none
    located, *coarse = (
        marginal_points(law, bias, kernel, COARSE, tokens, digits) for law in (null, *relevant)
    )
    mix = [(law.weight, points) for law, points in zip(relevant, coarse, strict=True)]
    background = kernel.BACKGROUND
    where = locate(located, mix, tokens, digits, background)
    single = double = where.rule(digits)
    if len(bias) > 1:
        double = where.rule(digits, pair_width(null, relevant))
    return with_background(single, background), with_background(double, background)


def _moments(
    null: Law,
    relevant: list[Law],
    bias: Array,
    kernel: Kernels,
    tokens: float,
    values: Array,
    digits: float,
) -> tuple[Array, Array]:
    """``A_h = E_1 w`` and ``B_hh = E_1 w^2 + (L - 1) E_0 w^2`` of weights that are not normalized."""
    a, b = np.zeros((2, len(bias)))
    counts = [(null, 0.0, tokens - 1), *((law, law.weight, law.weight) for law in relevant)]
    for law, in_a, in_b in counts:
        _require_moment(law, bias, kernel, values)
        sigma = np.sqrt(np.diag(law.cov))
        z, weights = gaussian_rule(law.width, digits, tokens)
        found = weight_of(kernel, law.mean[:, None] + sigma[:, None] * z, bias[:, None])
        f, f1, f2, f_b, s, s1, s2, s_b = race.moment_functions_2(*found)[5:]
        a += in_a * (f @ weights)
        b += in_b * (s @ weights)
        w_a, w_b = -2 * in_a * values[:, None], in_b * values[:, None] ** 2
        law.g += (w_a * f1 + w_b * s1) @ weights
        law.b += (w_a * f_b + w_b * s_b) @ weights
        law.Gamma[np.diag_indices(len(bias))] += (w_a * f2 + w_b * s2) @ weights / 2
    return a, b


def _require_moment(law: Law, bias: Array, kernel: Kernels, values: Array) -> None:
    """Refuse a squared weight whose expectation does not exist, or lies beyond every rule."""
    z = np.linspace(-REACH, REACH, 33)
    scores = law.mean[:, None] + np.sqrt(np.diag(law.cov))[:, None] * z
    share = (values[:, None] * weight_of(kernel, scores, bias[:, None])[0]) ** 2 * np.exp(
        -z * z / 2
    )
    if not (share[:, [0, -1]].max(axis=1) <= LEFT * np.maximum(share.max(axis=1), LEAST)).all():
        raise QuadratureError(
            "activation: the expectation of the squared weight does not exist, or the weight grows so "
            "fast that it is out of reach"
        )
