"""A claim as an executable check: what is measured, what it may be, and the verdict that follows.

A claim is a set of conditions on numbers, fixed before anything is measured. Each number is measured
with an error, the half-width of a confidence interval or a bound, and a condition

    holds       where the whole interval is allowed,
    fails       where none of it is,
    is open     otherwise.

A regime of parameters is *supported* if all of its conditions hold, *refuted* if one fails, and
*inconclusive* otherwise. The verdict of a claim is that of the regime for which it is made; others tell
where it stops to hold.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.random import SeedSequence
from scipy.special import ndtri
from scipy.stats import binomtest

SUPPORTED, REFUTED, INCONCLUSIVE = "supported", "refuted", "inconclusive"
STATUSES = ("proved", "conjectured", "numerical", "assumed")

CONFIDENCE = 1 - 1e-4
"""Of every interval: a hundred statistical conditions give one wrong outcome in a hundred ledgers."""

Results = Mapping[str, Mapping[str, Any]]
Part = partial[dict[str, Any]]


@dataclass(frozen=True)
class Condition:
    """What a number must be if a claim holds.

    Attributes
    ----------
    name : str
    low, high : float
        Least and largest value allowed.
    """

    name: str
    low: float = -np.inf
    high: float = np.inf

    @property
    def allowed(self) -> str:
        """The range in words."""
        if self.low == self.high:
            return f"{self.low:g}"
        if np.isinf(self.low):
            return f"at most {self.high:g}"
        if np.isinf(self.high):
            return f"at least {self.low:g}"
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class Measured:
    """A number with the half-width of its interval; see `CONFIDENCE`."""

    value: float
    error: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """A condition beside what was measured."""

    condition: Condition
    measured: Measured

    @property
    def verdict(self) -> str:
        """Whether the condition holds, as the verdict that it calls for."""
        low, high = self.condition.low, self.condition.high
        value, error = self.measured.value, self.measured.error
        if not np.isfinite([value, error]).all():
            return INCONCLUSIVE
        if low <= value - error and value + error <= high:
            return SUPPORTED
        return REFUTED if value + error < low or high < value - error else INCONCLUSIVE

    def __str__(self) -> str:
        value, error = self.measured.value, self.measured.error
        margin = f" ± {error:.2g}" if error else ""
        return f"{self.condition.name}: {value:.5g}{margin} (allowed: {self.condition.allowed})"


@dataclass(frozen=True)
class Regime:
    """A set of parameters, and the conditions that the claim implies there."""

    name: str
    conditions: tuple[Condition, ...]


@dataclass(frozen=True)
class Finding:
    """What came out in one regime."""

    regime: Regime
    outcomes: tuple[Outcome, ...]

    @property
    def verdict(self) -> str:
        """All conditions together."""
        found = {outcome.verdict for outcome in self.outcomes}
        if REFUTED in found:
            return REFUTED
        return SUPPORTED if found == {SUPPORTED} else INCONCLUSIVE

    @property
    def decisive(self) -> Outcome:
        """The first outcome that calls for the verdict."""
        return next(x for x in self.outcomes if x.verdict == self.verdict)


@dataclass(frozen=True)
class Claim:
    """One claim of a paper.

    Attributes
    ----------
    id, title : str
    statement : str
        In our words, with formulas between dollar signs.
    source : str
        Paper and number of the result.
    status : str
        In the paper: one of `STATUSES`.
    method : str
        What is computed to check it, with formulas.
    regimes : tuple of Regime
        The first is the one for which the claim is made.
    parts : callable
        From (full, seed) to independent pieces of work by name, each a function of plain values that
        returns what JSON can keep. Claims may share parts, by sharing their names.
    measure : callable
        From the parts' results to numbers, by the names of regimes and conditions. A regime that the
        quick check leaves out is absent.
    draw : callable
        From the parts' results to a figure.
    """

    id: str
    title: str
    statement: str
    source: str
    status: str
    method: str
    regimes: tuple[Regime, ...]
    parts: Callable[[bool, int], dict[str, Part]] = field(repr=False)
    measure: Callable[[Results], dict[str, dict[str, Measured]]] = field(repr=False)
    draw: Callable[[Results], Figure] = field(repr=False)

    def findings(self, results: Results) -> tuple[Finding, ...]:
        """Hold what was measured against the conditions.

        Raises
        ------
        KeyError
            If a condition of a regime that was looked at was not measured.
        """
        measured = self.measure(results)
        return tuple(
            Finding(
                regime, tuple(Outcome(c, measured[regime.name][c.name]) for c in regime.conditions)
            )
            for regime in self.regimes
            if regime is self.regimes[0] or regime.name in measured
        )

    @property
    def unmeasured(self) -> tuple[Finding, ...]:
        """What is found where nothing could be measured."""
        nothing = Measured(np.nan)
        own = self.regimes[0]
        return (Finding(own, tuple(Outcome(c, nothing) for c in own.conditions)),)


def part_seed(seed: int, name: str) -> int:
    """Return the seed of a part: it depends on its name and the ledger's seed alone."""
    return int(SeedSequence([seed, *name.encode()]).generate_state(1, np.uint32)[0])


def parts(
    seed: int, function: Callable[..., dict[str, Any]], calls: Mapping[str, Mapping[str, Any]]
) -> dict[str, Part]:
    """Return parts that call one function, each with a seed of its own."""
    return {
        name: partial(function, **arguments, seed=part_seed(seed, name))
        for name, arguments in calls.items()
    }


def sampled(value: float, standard_error: float) -> Measured:
    """Return an estimate with a normal error."""
    return Measured(float(value), float(-ndtri((1 - CONFIDENCE) / 2) * standard_error))


def mean_of(values: object) -> Measured:
    """Return the mean of independent values, NaN if one is missing."""
    x = np.asarray(values, dtype=float)
    return sampled(x.mean(), x.std(ddof=1) / np.sqrt(len(x)))


def share_of(count: int, runs: int) -> Measured:
    """Return a share of runs: centre and half-width of the Clopper-Pearson interval."""
    found = binomtest(count, runs).proportion_ci(CONFIDENCE, method="exact")
    return Measured(float(found.low + found.high) / 2, float(found.high - found.low) / 2)


def of(results: Results, prefix: str) -> dict[str, Mapping[str, Any]]:
    """Return the results of the parts whose names begin alike, by what follows."""
    return {name.removeprefix(prefix): x for name, x in results.items() if name.startswith(prefix)}


def array(values: object) -> np.ndarray:
    """Return what JSON kept as an array; what is missing is NaN."""
    return np.asarray(values, dtype=float)
