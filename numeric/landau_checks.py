"""Checks of the loss beyond second order, and of what follows from it; see `formula_checks`."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from numeric.alike import alike_hessian
from numeric.loss import evaluate
from numeric.prior import DiscretePrior
from numeric.quadrature import Array
from numeric.task import State, Task
from numeric.verified import (
    HEADS,
    TOKENS,
    Verified,
    coefficient_check,
    layer_of,
    numbers_of,
    scales_of,
    trained,
)

if TYPE_CHECKING:
    from derive.attention import Attention as Definition
    from derive.landau import LossExpansion, Terms

# Steps, and probability of either sign, of a feature that is zero else.
PEAKED = (1.3, 0.15)
# A prior of two features without symmetry.
POINTS, CHANCES = [[0.9, -0.4], [-0.6, 0.8], [0.2, 0.3]], [0.3, 0.3, 0.4]
NODES = 8  # of Gauss and Hermite along each head: exact for all moments of scores here


def landau_checks(definition: "Definition") -> Iterator[Verified]:
    """Check orders 3 and 4 at one state, differences of energies, and what alignment adds to a rate.

    Parameters
    ----------
    definition : derive.Attention
    """
    from derive.landau import expand_loss

    expansion = expand_loss(definition, 4)
    if expansion.terms(3) or expansion.terms(4):
        yield from _of_orders(definition, expansion)
        yield from _of_differences(definition, expansion)


def _of_orders(definition: "Definition", expansion: "LossExpansion") -> Iterator[Verified]:
    """All terms of an order together, against the loss's even and odd parts in the scale of a state."""
    layer = layer_of(definition)
    task = Task(TOKENS, DiscretePrior(POINTS, CHANCES))
    m, r = np.array([[0.6, 0.2], [-0.3, 0.5]]), np.array([[0.3, 0.1], [0.1, 0.2]])
    orders = [_order(expansion, k, m, r) for k in range(5)]

    def loss(scale: float) -> float:
        state = State(scale * m, scale**2 * r, **trained(layer))
        return float(evaluate(state, task, layer, 15.0, 10**6).value)

    scales = scales_of(definition)
    both = np.array([[loss(x), loss(-x)] for x in scales])
    rests = {
        3: (both[:, 0] - both[:, 1]) / 2 - orders[1] * scales,
        4: (both[:, 0] + both[:, 1]) / 2 - orders[0] - orders[2] * scales**2,
    }
    for order, rest in rests.items():
        check = coefficient_check(orders[order], scales, list(rest), order, 1e-15)
        oracle = "the exact loss at five small scales, as all terms of this order of one state"
        yield Verified(f"order {order}", check, oracle)


def _order(expansion: "LossExpansion", order: int, m: Array, r: Array) -> float:
    """All terms of one order of the loss, with moments by their definitions."""
    terms: Terms = expansion.terms(order)
    average = _pooled_average if expansion.pooled else _pair_average
    return sum(
        average(moments.as_powers_dict(), m, r) * numbers_of(x.subs(expansion.functions))
        for moments, x in terms.items()
    )


def _pair_average(powers: Any, m: Array, r: Array) -> float:
    """Average a product of overlaps and signal moments over all pairs of heads."""
    from derive.landau import indices, q, q_pair, q_prime

    overlaps = m @ m.T + r
    along = np.array(POINTS) @ m.T  # m_h . theta, point by point

    def moment(name: Any, h: int, other: int) -> float:
        known = {q: (h, h), q_prime: (other, other), q_pair: (h, other)}
        if name in known:
            return float(overlaps[known[name]])
        i, j = indices(name)
        return float(np.array(CHANCES) @ (along[:, h] ** i * along[:, other] ** j))

    pairs = list(product(range(HEADS), repeat=2))
    return sum(
        prod(moment(x, *pair) ** int(n) for x, n in powers.items() if x != 1) for pair in pairs
    ) / len(pairs)


def _pooled_average(powers: Any, m: Array, r: Array) -> float:
    """Average a product of moments of the heads' mean powers of scores over the signal."""
    from derive.landau import indices

    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, HEADS)
    weight = np.outer(weights, weights).ravel() / (2 * np.pi)
    noise = grid @ np.linalg.cholesky(m @ m.T + r).T

    def moment(name: Any, point: Array) -> float:
        scores = noise + (m @ point if name.name[1] == "1" else 0.0)
        means = [(scores**k).mean(axis=1) ** n for k, n in enumerate(indices(name), 1)]
        return float(weight @ np.prod(means, axis=0))

    return sum(
        chance * prod(moment(x, np.array(point)) ** int(n) for x, n in powers.items() if x != 1)
        for point, chance in zip(POINTS, CHANCES, strict=True)
    )


def _of_differences(definition: "Definition", expansion: "LossExpansion") -> Iterator[Verified]:
    """Differences of quartic energies, and what alignment adds to an eigenvalue."""
    from derive.pattern import difference_eigenvalue, m_f, preference
    from derive.symbols import H

    step, p = PEAKED
    moments = {"nu": 2 * p * step**2, "kappa_4": 2 * p * step**4}
    points = list(product(((-step, p), (0.0, 1 - 2 * p), (step, p)), repeat=2))
    prior = DiscretePrior(
        [[x for x, _ in point] for point in points],
        [float(np.prod([y for _, y in point])) for point in points],
    )
    task, layer = Task(TOKENS, prior), layer_of(definition)
    names = {"nu_g": moments["nu"], "kappa_g": moments["kappa_4"]}

    def lowest(scale: float) -> tuple[float, float]:
        m = np.zeros((HEADS, 2))
        m[:, 0] = scale
        state = State(m, np.zeros((HEADS, HEADS)), **trained(layer))
        found = alike_hessian(state, task, layer, 1e-11)
        return float(found.difference[0, 0]), found.error

    start, error = lowest(0.0)
    scales = scales_of(definition)
    pairs = [lowest(x) for x in scales]
    rises = [value - start for value, _ in pairs]
    second = difference_eigenvalue(expansion).coeff(m_f, 2).subs(expansion.functions)
    value = numbers_of(second, nu_f=moments["nu"], **moments, **names)
    rounding = max(error, *(x for _, x in pairs))
    check = coefficient_check(value, scales, rises, 2, rounding)
    yield Verified("lambda_f", check, "the Hessian of the exact loss at five small alignments")
    if layer.kernel.NORMALIZATION == "pooled":
        return  # four pooled heads: an integral over four dimensions, for each energy
    root = 2**-0.5
    single = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])
    others = {
        "mixed": np.array([[x * root, y * root] for x in (1, -1) for y in (1, -1)]),
        "one_feature": np.array([[1, 0], [1, 0], [-1, 0], [-1, 0]]),
    }
    four = layer_of(definition, 4)

    def energy(m: Array) -> float:
        state = State(m, np.zeros((4, 4)), **trained(four))
        return float(evaluate(state, task, four, 15.0, 10**6, 0).value)

    energies = preference(expansion)
    for name, pattern in others.items():
        found = [energy(x * pattern) - energy(x * single) for x in scales]
        difference = (getattr(energies, name) - energies.single).subs(H, 4)
        value = numbers_of(difference.subs(expansion.functions), **moments)
        check = coefficient_check(value, scales, found, 4, 1e-15)
        yield Verified(
            f"{name} - single", check, "the exact loss of four heads at five small sizes"
        )
