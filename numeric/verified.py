"""What the checks of derived formulas share: the small problem, verdicts in words, and oracles.

Symbols take the numbers below; a check says so where it takes others.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import factorial
from typing import TYPE_CHECKING, Any

import numpy as np

from numeric.checks import Check, within
from numeric.quadrature import Array
from numeric.task import Attention

if TYPE_CHECKING:
    from derive.attention import Attention as Definition

TOKENS, HEADS, BIAS, VALUE = 4, 2, 0.2, 0.3
VARIANCES = (2.0, 1.2)
BUDGET = (
    "unless they say otherwise; all comparisons with random numbers on this page together raise a false "
    "alarm with probability 1e-6 at most."
)
SAMPLES = 400_000
STATISTICAL = 6
"""Comparisons with random numbers that share the budget of false alarms."""
STEP = 0.02
SCALES = 0.3 / 2 ** (np.arange(5) / 2)
"""Of states, for a weight that varies over scores of order one."""


@dataclass(frozen=True)
class Verified:
    """A check of one formula, in words that stand below it.

    Attributes
    ----------
    formula : str
        Its left side.
    check : Check
    oracle : str
        What it was compared with.
    """

    formula: str
    check: Check
    oracle: str

    @property
    def words(self) -> str:
        """The check in one line."""
        x = self.check
        verdict = "agrees" if x.passed else "DISAGREES"
        if x.z is not None:
            margin = f"{abs(x.z):.1f} standard errors of {x.error:.1e} apart"
        else:
            margin = f"{abs(x.value - x.expected):.1e} apart, tolerance {x.error:.1e}"
        return f"{x.value:.9g}, and {x.expected:.9g} by {self.oracle}: {verdict} ({margin})."


def words_of(found: list[Verified], problem: str) -> dict[str, str]:
    """Return what is said of each formula, by its left side, and of the problem they are checked at."""
    return {"": f"Checks are made at {problem}, {BUDGET}"} | {x.formula: x.words for x in found}


def problem_of(definition: "Definition") -> str:
    """Return the problem of an activation's checks, in words."""
    numbers: dict[str, float] = {"L": TOKENS, "H": HEADS, "b": BIAS, "v": VALUE}
    names = [x for x in numbers if x in "LH" or x in definition.trained]
    first, second = VARIANCES
    stated = ", ".join(f"`{name} = {numbers[name]:g}`" for name in names)
    return f"{stated} and for two features of variance {first:g} and {second:g}"


def derive_error() -> type[ValueError]:
    from derive.errors import DeriveError

    return DeriveError


def trained(attention: Attention, values: bool = True) -> dict[str, Array]:
    known = {"b": BIAS, "v": VALUE}
    return {name: np.full(attention.heads, known[name]) for name in attention.parameters if values}


def layer_of(definition: "Definition", heads: int = HEADS) -> Attention:
    from derive.attention import ACTIVATIONS

    known = ACTIVATIONS.get(definition.name) == definition
    return Attention(definition.name if known else definition, heads)


def numbers_of(expression: Any, **more: float) -> float:
    """A derived expression at the problem's numbers."""
    from derive.stable import written_out
    from derive.symbols import H, L, b, v

    values: dict[Any, float] = {L: TOKENS, H: HEADS, b: BIAS, v: VALUE}
    plain = written_out(expression)
    values |= {x: more[x.name] for x in plain.free_symbols if x.name in more}
    return float(plain.subs(values).evalf(30))


def slope_check(value: float, function: Callable[[float], float], rounding: float) -> Check:
    """A derivative against five-point differences at two steps."""

    def quotient(h: float) -> float:
        near, far = (function(k * h) - function(-k * h) for k in (1, 2))
        return (8 * near - far) / (12 * h)

    coarse, fine = quotient(2 * STEP), quotient(STEP)
    expected = fine + (fine - coarse) / 15
    return within("slope", float(value), expected, abs(fine - coarse) + rounding)


def scales_of(definition: "Definition") -> Array:
    """Return small scales of states: `SCALES`, or less where the weight varies faster.

    The terms ``w_k chi^k / k!`` of its series, relative to the weight, are then below those of exp(chi).
    """
    from derive.expansion import taylor

    value, *derivatives = taylor(definition, 4)
    weight = 1.0 if definition.normalized else abs(numbers_of(value))
    relative = [abs(numbers_of(x)) / (weight or 1.0) for x in derivatives]
    steepness = max((x / factorial(k)) ** (1 / k) for k, x in enumerate(relative, 1))
    return SCALES / max(1.0, steepness)


def coefficient_check(
    value: float, scales: Array, found: list[float], power: int, rounding: float
) -> Check:
    """A coefficient of an even power series against values at five scales, its terms from there on."""
    fits = []
    for chosen in (slice(0, 4), slice(1, 5)):
        powers = scales[chosen, None] ** (power + 2 * np.arange(4))
        rows = np.linalg.inv(powers)[0]
        fits.append((float(rows @ np.array(found)[chosen]), float(np.abs(rows).sum())))
    (coarse, _), (fine, gain) = fits
    return within("coefficient", value, fine, abs(fine - coarse) + gain * rounding)
