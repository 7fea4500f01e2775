"""Least losses of activations beside the Bayes risk, against signal strength, tokens or heads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from numeric.bayes import bayes_risk
from numeric.decay import Decay, fit_decay
from numeric.errors import InputError
from numeric.head_counts import split_heads
from numeric.minimum import Minimum, minimize_loss
from numeric.prior import scaled
from numeric.quadrature import Array
from numeric.tabular import Tabular
from numeric.task import Attention, State, Task
from numeric.validate import one_of, real_array, whole_number

QUANTITIES = ("signal", "tokens", "heads")


@dataclass(frozen=True, repr=False)
class RiskCurves(Tabular):
    """Least losses against one quantity.

    Attributes
    ----------
    quantity : {"signal", "tokens", "heads"}
        Factor of all signal amplitudes; L; H.
    values : (n,) array
    bayes, bayes_errors : (n,) arrays
    minima : dict of tuple of Minimum
        By the activation's name, in the order of the values.
    """

    quantity: str
    values: Array
    bayes: Array
    bayes_errors: Array
    minima: dict[str, tuple[Minimum, ...]]

    def losses(self, name: str) -> Array:
        """Return an activation's least losses (n,)."""
        return np.array([x.loss for x in self.minima[name]])

    def gaps(self, name: str) -> tuple[Array, Array]:
        """Return its gaps to the Bayes risk, and their errors: two (n,) arrays."""
        found = self.minima[name]
        return np.array([x.gap for x in found]), np.array([x.gap_error for x in found])

    def decay(self, name: str, *, gap: bool = False) -> Decay | None:
        """Return how an activation's loss, or its gap to the Bayes risk, falls with signal strength.

        The fit is by ``exp(-a s^2)`` or by a power of s, whichever is closer, over the second half of the
        values; None where it cannot be made.
        """
        if self.quantity != "signal" or (self.values <= 0).any():
            return None
        y, errors = self.gaps(name)
        if not gap:
            y = self.losses(name)
        late = slice(len(y) // 2 if len(y) > 5 else 0, None)
        return fit_decay(self.values[late], y[late], errors[late], ("gaussian", "power"))

    def rows(self) -> list[list[str]]:
        """Return a row for each value, with the least losses; see `Tabular`."""
        losses = [self.losses(name) for name in self.minima]
        return [
            [self.quantity, "Bayes risk", *self.minima],
            *(
                [f"{x:.6g}" for x in row]
                for row in zip(self.values, self.bayes, *losses, strict=True)
            ),
        ]

    def __repr__(self) -> str:
        names = ", ".join(self.minima)
        return f"<RiskCurves of {names} at {len(self.values)} values of {self.quantity}>"


def risk_curves(
    task: Task,
    attentions: Sequence[Attention],
    quantity: str,
    values: ArrayLike,
    *,
    starts: int = 4,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> RiskCurves:
    """Return the least loss of each activation against a quantity, and the Bayes risk.

    Parameters
    ----------
    task : Task
    attentions : sequence of Attention
        Of different activations.
    quantity : {"signal", "tokens", "heads"}
        Factor of all signal amplitudes, L or H; what the task and the layers have of it is replaced.
    values : (n,) array_like
        Increasing.
    starts, seed : int
        Random descents at each value, at r = 0 (see `minimize_loss`; `Minimum.stiffness` tells whether r
        would help); one more goes on from the minimum at the value before.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    RiskCurves

    Raises
    ------
    InputError
        If an argument is not as above.
    """
    quantity = one_of("quantity", quantity, QUANTITIES)
    where = real_array("values", values, (None,))
    if not len(where) or where[0] < 0 or (np.diff(where) <= 0).any():
        raise InputError("values", values, "increasing numbers >= 0, at least one")
    if quantity != "signal":
        where = np.array([whole_number("values", x, 1) for x in np.asarray(values)], dtype=float)
    if not isinstance(attentions, Sequence) or not all(
        isinstance(x, Attention) for x in attentions
    ):
        raise InputError("attentions", attentions, "a sequence of Attention")
    names = [x.name for x in attentions]
    if not names or len(set(names)) < len(names):
        raise InputError("attentions", names, "different activations, at least one")
    minima: dict[str, tuple[Minimum, ...]] = {}
    if quantity == "heads":
        risks = [bayes_risk(task)] * len(where)
    else:
        risks = [bayes_risk(_problem(task, quantity, float(x), 1)[0]) for x in where]
    for a, layer in enumerate(attentions):
        found: list[Minimum] = []
        for i, value in enumerate(where):
            problem, heads = _problem(task, quantity, float(value), layer.heads)
            here = replace(layer, heads=heads)
            grows = quantity == "signal" and i > 0 and where[i - 1] > 0
            begin = _begin(found, heads, value / where[i - 1] if grows else 1.0)
            found.append(
                minimize_loss(
                    problem,
                    here,
                    starts=starts,
                    seed=seed,
                    begin=begin,
                    spectrum=False,
                    residual=False,
                    bayes=risks[i],
                )
            )
            if progress is not None:
                progress((a * len(where) + i + 1) / (len(where) * len(attentions)))
        minima[layer.name] = tuple(found)
    bayes, errors = np.array([[x.value, x.error] for x in risks]).T
    return RiskCurves(quantity, where, bayes, errors, minima)


def _problem(task: Task, quantity: str, value: float, heads: int) -> tuple[Task, int]:
    if quantity == "signal":
        return task.with_prior(scaled(task.prior, value)), heads
    if quantity == "tokens":
        return Task(int(value), task.prior), heads
    return task, int(value)


def _begin(found: Sequence[Minimum], heads: int, factor: float) -> list[State]:
    """The minimum at the value before, its alignments growing with the signal, its heads split."""
    if not found:
        return []
    state = found[-1].state
    state = replace(state, m=factor * state.m)
    while len(state.m) < heads:
        state = split_heads(state)[0]
    return [state] if len(state.m) == heads else []
