"""Numerical checks of derived formulas, each against something independent, to be printed beside them.

The oracles are definitions (an average over samples, a quotient of differences, an integral over the
prior), and the exact loss where a formula is an expansion or a derivative of it. `numeric.verified` has
the problem, the words and what the oracles share.
"""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.integrate import quad

from numeric.bayes import log_bayes_weight
from numeric.checks import (
    Check,
    expansion_check,
    growth_check,
    monte_carlo_loss,
    statistical,
    within,
)
from numeric.errors import HeadflowError
from numeric.landau_checks import landau_checks
from numeric.loss import evaluate, population_loss
from numeric.noise import noise_matrix
from numeric.origin import origin_expansion
from numeric.prior import DiscretePrior, GaussianPrior
from numeric.scores import attention_weights, score_gradient
from numeric.spectrum import hessian_spectrum
from numeric.task import State, Task
from numeric.verified import (
    BIAS,
    HEADS,
    SAMPLES,
    STATISTICAL,
    TOKENS,
    VALUE,
    VARIANCES,
    Verified,
    derive_error,
    layer_of,
    numbers_of,
    slope_check,
    trained,
)

if TYPE_CHECKING:
    from derive.attention import Attention as Definition

# Steps, and probability of either sign, of a feature that is zero else.
PEAKED = (1.3, 0.15)
_SECTORS = {
    "all heads alike, along feature f": "mean, feature 1",
    "heads apart, along feature f": "difference, feature 1",
    "all heads alike, a residual direction": "mean, residual",
    "heads apart, a residual direction": "difference, residual",
}


def formula_checks(definition: "Definition") -> list[Verified]:
    """Check the formulas of an activation's derivation.

    Parameters
    ----------
    definition : derive.Attention

    Returns
    -------
    list of Verified
        What cannot be computed, such as an expansion of a weight with a kink, is left out.
    """
    found: list[Verified] = []
    for check in CHECKS:
        try:
            found += check(definition)
        except (HeadflowError, derive_error()):
            continue
    return found


def _of_weights(definition: "Definition") -> Iterator[Verified]:
    """Attention by its definition in high precision, and the score gradient by differences."""
    from sympy import lambdify

    from derive.stable import written_out
    from derive.symbols import b, chi

    layer = layer_of(definition)
    chi_hl = np.array([[0.3, -1.1, 2.0, 0.4], [-0.6, 0.2, 1.5, -0.1]])
    kernel, bias = layer.kernel, np.full(HEADS, BIAS) if "b" in layer.parameters else None
    value = VALUE if "v" in layer.parameters else layer.value
    weight = lambdify((chi, b), written_out(definition.weight), "mpmath")
    table = [[weight(float(x), BIAS) for x in row] for row in chi_hl]
    background = float(definition.background)
    if definition.normalization == "pooled":
        expected = sum(row[0] for row in table) / (background + sum(map(sum, table)))
    else:
        over = [background + sum(row) if definition.normalized else 1 for row in table]
        expected = value * sum(row[0] / z for row, z in zip(table, over, strict=True))
    p, a = attention_weights(chi_hl, bias, value, kernel)
    yield Verified(
        "a_l",
        within("attention", float(a[0]), float(expected), 1e-13 * max(1.0, abs(float(expected)))),
        "the weights in high precision, at scores from -1.1 to 2",
    )

    def sample_loss(shift: float) -> float:
        moved = chi_hl.copy()
        moved[1, 2] += shift
        _, weights = attention_weights(moved, bias, value, kernel)
        return float(1 - 2 * weights[0] + (weights**2).sum())

    slope = 2 * (a - np.eye(TOKENS)[0])
    gradient = score_gradient(chi_hl, bias, value, p, slope, kernel)[0]
    yield Verified(
        "d(loss)/d chi_hl",
        slope_check(gradient[1, 2], sample_loss, 1e-9),
        "differences of one sample's loss",
    )


def _of_loss(definition: "Definition") -> Iterator[Verified]:
    """The loss by sampling, its gradient by differences."""
    layer = layer_of(definition)
    task = Task(TOKENS, GaussianPrior([0.3, -0.2], np.diag(VARIANCES)))
    r = np.array([[0.3, 0.1], [0.1, 0.2]])
    state = State([[0.6, 0.2], [-0.3, 0.5]], r, **trained(layer))
    exact = population_loss(state, task, layer, 1e-10)
    sampled, error = monte_carlo_loss(
        state, task, layer, SAMPLES, zlib.crc32(definition.name.encode())
    )
    total = float(np.hypot(error, exact.error))
    yield Verified(
        "E",
        statistical("loss", float(exact.value), sampled, total, STATISTICAL),
        f"{SAMPLES:,} samples of its definition",
    )

    def moved(shift: float) -> float:
        m = state.m.copy()
        m[0, 1] += shift
        return float(evaluate(replace(state, m=m), task, layer, 13.0, 10**6).value)

    rounding = 1e-9 + 10 * float(exact.gradient_error)
    yield Verified(
        "dE/dm", slope_check(exact.m[0, 1], moved, rounding), "differences of `E` in `m_12`"
    )
    if exact.v is not None:

        def valued(shift: float) -> float:
            v = np.array(state.v)
            v[0] += shift
            return float(evaluate(replace(state, v=v), task, layer, 13.0, 10**6).value)

        yield Verified(
            "dE/dv_h", slope_check(exact.v[0], valued, rounding), "differences of `E` in `v_1`"
        )


def _of_expansion(definition: "Definition") -> Iterator[Verified]:
    """Second order: against the exact loss; the noise matrix against its exact value."""
    from derive.document import origin_noise
    from derive.expansion import INVARIANTS, expand_at_origin

    layer = layer_of(definition)
    task = Task(TOKENS, GaussianPrior([0.3, -0.2], np.diag(VARIANCES)))
    state = State([[0.6, 0.2], [-0.3, 0.5]], [[0.3, 0.1], [0.1, 0.2]], **trained(layer))
    zero = replace(state, m=0 * state.m, r=0 * state.r)
    start = float(evaluate(zero, task, layer, 12.0, 10**6).value)
    here = origin_expansion(zero, task, layer).value
    yield Verified(
        "E at 0", within("E at 0", here, start, 1e-10 * max(1, abs(start))), "the exact loss"
    )
    expansion = expand_at_origin(definition)
    last = [x for x in INVARIANTS if expansion.coefficient(x) != 0]
    if last:
        yield Verified(
            f"coefficient of {last[-1]}",
            expansion_check(state, task, layer),
            "the exact loss at four small scales, as the relative error that all coefficients together "
            "leave in the second order",
        )
    noise = numbers_of(origin_noise(definition, expansion).subs(expansion.bias_functions))
    found, error = noise_matrix(zero, task, layer)
    tolerance = 5 * float(error[0, 1]) + 1e-9 * max(1.0, noise)
    check = within("noise", noise, float(found[0, 1]), tolerance)
    yield Verified("V_hh' at 0", check, "the noise matrix of a state, integrated")


def _of_hessian(definition: "Definition") -> Iterator[Verified]:
    """Eigenvalues against the Hessian of the exact loss; the growth rate against an early flow."""
    from derive.expansion import expand_at_origin
    from derive.hessian import sector_eigenvalues

    layer = layer_of(definition)
    task = Task(TOKENS, GaussianPrior([0.0, 0.0], np.diag(VARIANCES)))
    state = State(np.zeros((HEADS, 2)), np.zeros((HEADS, HEADS)), **trained(layer))
    exact = hessian_spectrum(task, layer, state)
    expansion = expand_at_origin(definition)
    derived = list(sector_eigenvalues(expansion).values())
    for (words, sector), expression in zip(_SECTORS.items(), derived, strict=True):
        value = numbers_of(expression.subs(expansion.bias_functions), nu_f=VARIANCES[0])
        if sector not in exact.sectors:
            continue
        i = exact.sectors.index(sector)
        tolerance = float(exact.errors[i]) + 1e-9
        check = within(sector, value, float(exact.eigenvalues[i]), tolerance)
        yield Verified(f"eigenvalue, {words}", check, "the Hessian of the exact loss")
    found = growth_check(task, layer)
    if isinstance(found, Check):
        rest = ", at rest" if "v" in layer.parameters else ""
        swapped = replace(found, value=found.expected, expected=found.value)
        name = f"growth rate, heads apart, along feature f{rest}"
        yield Verified(name, swapped, "the early flow from small alignments")


def _of_spike(definition: "Definition") -> Iterator[Verified]:
    """Closed forms on a spike: the mean weight by an integral, the least loss by the exact loss there."""
    from sympy import lambdify

    from derive.single_head import spike_loss, spike_minimum
    from derive.stable import written_out
    from derive.symbols import b, chi

    loss = spike_loss(definition)
    centre, spread = 0.4, 0.7
    weight = lambdify((chi, b), written_out(definition.weight), "scipy")
    for power, name, expression in ((1, "E w", loss.first), (2, "E w^2", loss.second)):

        def density(x: float, power: int = power) -> float:
            gauss = np.exp(-((x - centre) ** 2) / (2 * spread)) / np.sqrt(2 * np.pi * spread)
            return float(weight(x, BIAS) ** power * gauss)

        expected, error = quad(density, centre - 9, centre + 9, epsabs=1e-12, epsrel=1e-12)
        value = _spike_number(expression, centre, spread)
        check = within(name, value, expected, max(error, 1e-12) + 1e-11 * abs(expected))
        yield Verified(name, check, "an integral over the score")
    try:
        least = spike_minimum(definition)
    except derive_error():
        return
    numbers = {
        name: numbers_of(getattr(least, name), nu_f=VARIANCES[0]) for name in ("m", "v", "risk")
    }
    task = Task(TOKENS, DiscretePrior([[VARIANCES[0] ** 0.5]], [1.0]))
    state = State([[numbers["m"]]], [[0.0]], v=[numbers["v"]])
    exact = population_loss(state, task, layer_of(definition, 1), 1e-12)
    check = within("least loss", numbers["risk"], float(exact.value), float(exact.error) + 1e-11)
    yield Verified("E_min", check, "the exact loss at `m_min` and `v_min`")


def _spike_number(expression: Any, centre: float, spread: float) -> float:
    import mpmath
    from sympy import lambdify

    from derive.symbols import b

    def owens_t(h: Any, a: Any) -> Any:
        bell = mpmath.quad(lambda x: mpmath.exp(-(h**2) * (1 + x**2) / 2) / (1 + x**2), [0, a])
        return bell / (2 * mpmath.pi)

    symbols = sorted(expression.free_symbols, key=str)
    known = {"mean": centre, "q": spread, str(b): BIAS}
    function = lambdify(symbols, expression, [{"owens_t": owens_t}, "mpmath"])
    return float(function(*(known[str(x)] for x in symbols)))


def _of_bayes(definition: "Definition") -> Iterator[Verified]:
    """The Bayes weight of a Gaussian prior against its integral."""
    mean, variance, xi = 0.4, 1.5, 0.8
    found = log_bayes_weight(np.array([xi]), GaussianPrior([mean], [[variance]]))

    def density(theta: float) -> float:
        prior = np.exp(-((theta - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
        return float(prior * np.exp(theta * xi - theta**2 / 2))

    expected = float(np.log(quad(density, -12, 12, epsabs=1e-13)[0]))
    yield Verified(
        "log w(xi)", within("log w", float(found), expected, 1e-11), "the integral over `theta`"
    )


CHECKS = (
    _of_weights,
    _of_loss,
    _of_expansion,
    _of_hessian,
    landau_checks,
    _of_spike,
    _of_bayes,
)
"""In the order of a document's sections."""
