"""Which heads can be removed: the exact loss after each, with and without training what is left.

Heads are removed one by one, always the one whose loss costs least. An average over heads is one over
those that are left; Bayes-softmax pools those that are left; head values stay as they are, unless they
are trained again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from numeric.errors import QuadratureError
from numeric.loss import evaluate, population_loss
from numeric.minimum import FARTHEST
from numeric.quadrature import Array
from numeric.tabular import Tabular
from numeric.task import Attention, State, Task
from numeric.validate import real_number

# Digits of the losses that are compared, and of the reported ones.
DIGITS, TOLERANCE = 7.0, 1e-8


@dataclass(frozen=True, repr=False)
class Pruning(Tabular):
    """Losses after removing 0, 1, ... heads, the last one excepted.

    Attributes
    ----------
    order : (H - 1,) array of int
        Heads, counted from 0, in the order in which they are removed.
    losses, errors : (H,) arrays
        Loss after so many removals, and its error.
    states : tuple of State
        What is left after so many, retrained if that was asked for.
    retrained : bool
    """

    order: NDArray[np.int64]
    losses: Array
    errors: Array
    states: tuple[State, ...]
    retrained: bool

    def removable(self, cost: float) -> int:
        """Return how many heads can go at a loss of at most ``1 + cost`` times the full one.

        Raises
        ------
        InputError
            If `cost` is not a number >= 0.
        """
        cost = real_number("cost", cost, minimum=0)
        return int(np.flatnonzero(self.losses <= (1 + cost) * self.losses[0] + self.errors).max())

    def rows(self) -> list[list[str]]:
        """Return a row for each removal; see `Tabular`."""
        heads = ["none", *(str(h + 1) for h in self.order)]
        return [
            ["head removed", "loss", "error"],
            *(
                [head, f"{loss:.8g}", f"{error:.1e}"]
                for head, loss, error in zip(heads, self.losses, self.errors, strict=True)
            ),
        ]

    def __repr__(self) -> str:
        losses = ", ".join(f"{x:.6g}" for x in self.losses)
        return f"<Pruning: heads {self.order.tolist()} removed in turn, losses {losses}>"


def prune_heads(
    state: State,
    task: Task,
    attention: Attention,
    *,
    retrain: bool = False,
    progress: Callable[[float], object] | None = None,
) -> Pruning:
    """Remove heads one by one, always the one whose loss costs least.

    Parameters
    ----------
    state : State
        One state, m (H, F), r (H, H), b and v (H,).
    task : Task
    attention : Attention
    retrain : bool
        Whether b and v of the heads that are left are trained again, keys held fixed, before removals are
        compared. Where neither is trained there is nothing to retrain.
    progress : callable, optional
        Called with the fraction done.

    Returns
    -------
    Pruning

    Raises
    ------
    InputError
        For a batch of states, or one that does not fit.

    Notes
    -----
    arXiv 2603.03993, section IV (claim A12 of the model).
    """
    state = state.single(attention, task.prior.features)
    prepare: Callable[[State], State] = partial(_retrained, task=task, attention=attention)
    if not (retrain and attention.parameters):
        prepare = _as_it_is
    left, kept = prepare(state), list(range(attention.heads))
    states, order = [left], []
    comparisons, done = attention.heads * (attention.heads + 1) / 2 - 1, 0
    while len(kept) > 1:
        layer, found = replace(attention, heads=len(kept) - 1), []
        for i in range(len(kept)):
            candidate = prepare(_without(left, i))
            found.append((evaluate(candidate, task, layer, DIGITS).value, i, candidate))
            done += 1
            if progress is not None:
                progress(done / comparisons)
        _, i, left = min(found, key=lambda x: x[:2])
        order.append(kept.pop(i))
        states.append(left)
    losses = [
        population_loss(x, task, replace(attention, heads=len(x.m)), TOLERANCE) for x in states
    ]
    return Pruning(
        np.array(order, dtype=np.int64),
        np.array([float(x.value) for x in losses]),
        np.array([float(x.error) for x in losses]),
        tuple(states),
        retrain,
    )


def _without(state: State, head: int) -> State:
    """The other heads."""
    b, v = (None if x is None else np.delete(x, head) for x in (state.b, state.v))
    r = np.delete(np.delete(state.r, head, 0), head, 1)
    return State(np.delete(state.m, head, 0), r, b, v)


def _as_it_is(state: State) -> State:
    return state


def _retrained(state: State, task: Task, attention: Attention) -> State:
    """The state with the b and v of least loss that a descent from its own finds."""
    layer = replace(attention, heads=len(state.m))
    shape = len(attention.parameters), len(state.m)

    def at(x: Array) -> State:
        return replace(state, **dict(zip(attention.parameters, x.reshape(shape), strict=True)))

    def loss(x: Array) -> tuple[float, Array]:
        found = evaluate(at(x), task, layer, DIGITS)
        return float(found.value), np.concatenate([getattr(found, n) for n in attention.parameters])

    start = np.concatenate([getattr(state, name) for name in attention.parameters])
    bounds = [(min(-FARTHEST, x), max(FARTHEST, x)) for x in start]
    options = {"ftol": 1e-11, "gtol": 1e-7}
    try:
        end = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    except QuadratureError:
        return state
    return at(end.x) if end.fun <= loss(start)[0] else state
