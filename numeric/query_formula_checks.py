"""Numerical checks of the query model's formulas, for the page that prints them; see `formula_checks`."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from numeric.checks import statistical, within
from numeric.query import QueryTask, query_flow, query_objective
from numeric.query_study import fixed_points
from numeric.verified import SAMPLES, STATISTICAL, Verified

INFORMATIVE, NUISANCE, DIMENSION, THETA, BETA, SIGMA, ALPHA = 3, 5, 4, 1.2, 1.5, 0.6, 0.4
PROBLEM = (
    f"`n_I = {INFORMATIVE}`, `n_0 = {NUISANCE}`, `d = {DIMENSION}`, `theta = {THETA}`, `beta = {BETA}`, "
    f"`sigma = {SIGMA}` and `alpha = {ALPHA}`"
)
SIGNS = ((False, "each informative token with a sign of its own"), (True, "one sign for all"))
SMALL = (0.2, 0.1, 0.05)
LARGE = 10**8
"""A dimension that stands for infinity: what is left is of order 1/d."""


def query_formula_checks() -> list[Verified]:
    """Check the formulas of the query model's derivation."""
    task = QueryTask(INFORMATIVE, NUISANCE, DIMENSION, THETA, BETA, SIGMA)
    return [*_objective(task), *_rates(task), *_growth()]


def _objective(task: QueryTask) -> Iterator[Verified]:
    """J by one integral, against tokens in d dimensions and the definition."""
    found = query_objective(task, ALPHA)
    rng = np.random.default_rng(np.random.SeedSequence(1))
    query = np.zeros(DIMENSION)
    query[:2] = ALPHA, np.sqrt(1 - ALPHA**2)
    tokens = SIGMA * rng.standard_normal((SAMPLES, INFORMATIVE + NUISANCE, DIMENSION))
    tokens[:, :INFORMATIVE, 0] += THETA * rng.choice([-1.0, 1.0], (SAMPLES, INFORMATIVE))
    scores = BETA * tokens @ query
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    halves = (np.einsum("si,sid->sd", weights, tokens) ** 2).sum(axis=1) / 2
    error = float(halves.std(ddof=1) / np.sqrt(SAMPLES))
    check = statistical("J", float(found.value), float(halves.mean()), error, STATISTICAL)
    yield Verified("dJ/du", check, f"{SAMPLES:,} sets of tokens, as the value of `J`")


def _rates(task: QueryTask) -> Iterator[Verified]:
    """Derivatives of the field at the fixed points, against the flow near them."""
    points = {round(x.alpha, 9): x for x in fixed_points(task)}
    for alpha, name in ((0.0, "rate at 0"), (1.0, "rate at 1")):
        rate = points[alpha].rate
        near = 1e-4 if alpha == 0 else 1 - 1e-6
        times = np.linspace(0, 1 / abs(rate), 21)
        path = query_flow(task, near, times, rtol=1e-10)
        distance = np.abs(path.alpha - alpha)
        measured = float(np.polyfit(path.t, np.log(distance), 1)[0])
        check = within(name, rate, measured, 1e-3 * abs(rate))
        yield Verified(name, check, "the flow close to the fixed point")


def _growth() -> Iterator[Verified]:
    """J''(0) in beta, and at large d, against that of the exact objective."""
    from derive.query_expansion import concentrated_growth, growth_expansion

    for shared, words in SIGNS:
        # J''(0) / beta^2 is a series in beta^2.
        ratios = [_curvature(shared, beta) / beta**2 for beta in SMALL]
        coarse, fine = ((4 * y - x) / 3 for x, y in pairwise(ratios))
        best = fine + (fine - coarse) / 15
        value = _numbers(growth_expansion(shared), SMALL[0]) / SMALL[0] ** 2
        check = within("growth", value, best, abs(fine - coarse) / 2 + 1e-8)
        oracle = "the exact objective at three small `beta`, as the coefficient of `beta^2`"
        yield Verified(f"J''(0), {words}", check, oracle)
        value = _numbers(concentrated_growth(shared), BETA)
        limit = _curvature(shared, BETA, LARGE)
        check = within("growth", value, limit, 1e-6 * abs(value))
        name = f"J''(0) at large d, {words}"
        yield Verified(
            name, check, f"the exact objective at `d = {LARGE:,}` and `sigma = d^(-1/2)`"
        )


def _curvature(shared: bool, beta: float, dimension: int = DIMENSION) -> float:
    sigma = SIGMA if dimension == DIMENSION else dimension**-0.5
    task = QueryTask(INFORMATIVE, NUISANCE, dimension, THETA, beta, sigma, shared)
    return float(query_objective(task, 0.0, 1e-12).curvature)


def _numbers(expression: Any, beta: float) -> float:
    known = {
        "n_0": NUISANCE,
        "n_I": INFORMATIVE,
        "d": DIMENSION,
        "theta": THETA,
        "sigma": SIGMA,
        "beta": beta,
    }
    return float(expression.subs({x: known[str(x)] for x in expression.free_symbols}))
