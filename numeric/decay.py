"""How a positive quantity falls: least-squares fits of its logarithm, by exponentials and a power law."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numeric.quadrature import Array

# Values are fitted while they exceed so many errors, and each is less than this part of the one before.
SEEN, FALLS = 3.0, 0.8
KINDS: dict[str, Callable[[Array], Array]]
KINDS = {"exponential": lambda x: x, "gaussian": lambda x: x**2, "power": np.log}


@dataclass(frozen=True)
class Decay:
    """A least-squares fit ``log y = constant - rate f(x)``.

    Attributes
    ----------
    kind : {"exponential", "gaussian", "power"}
        ``f(x)`` is x, x^2 or log x: the one with the smallest residuals.
    rate, error : float
        The rate and its standard error.
    other : float
        Residual sum of squares of the next kind, in units of this one's.
    points : int
        Values fitted: from the first on, while they exceed three errors and fall by a fifth at least.
    """

    kind: str
    rate: float
    error: float
    other: float
    points: int

    def __str__(self) -> str:
        x = {"exponential": "exp(-{} x)", "gaussian": "exp(-{} x^2)", "power": "x^-{}"}[self.kind]
        rate = f"({self.rate:.4g} +- {self.error:.2g})"
        return f"{x.format(rate)} over {self.points} values"


def fit_decay(
    x: Array, y: Array, errors: Array, kinds: tuple[str, ...] = ("exponential", "power")
) -> Decay | None:
    """Fit values that fall, or return None where fewer than three can be fitted.

    Parameters
    ----------
    x, y, errors : (n,) arrays
        Increasing x > 0.
    kinds : tuple of str
        Those that are compared.
    """
    seen = y > SEEN * errors
    seen[1:] &= y[1:] < FALLS * y[:-1]
    seen = np.logical_and.accumulate(seen)
    n = int(seen.sum())
    if n < 3:
        return None
    log_y, fits = np.log(y[seen]), {}
    for kind in kinds:
        f = KINDS[kind](np.asarray(x, dtype=float)[seen])
        f = f - f.mean()
        rate = -float(f @ log_y / (f @ f))
        rest = float(np.sum((log_y - log_y.mean() + rate * f) ** 2))
        fits[kind] = rest, rate, float(np.sqrt(rest / (n - 2) / (f @ f)))
    best, *others = sorted(fits, key=lambda name: fits[name][0])
    rest, rate, error = fits[best]
    other = fits[others[0]][0] / max(rest, 1e-300) if others else np.inf
    return Decay(best, rate, error, other, n)
