"""Heads that are all alike: the Hessian of H heads at the cost of two.

Where heads meet in pairs the loss of H heads is ``1 + sum_h s(x_h) + sum_{h != k} p(x_h, x_k)``, x_h =
(m_h, b_h, v_h): one head and two heads of the same value tell all that any number of them does. Heads
that share a denominator are moved one at a time instead. The Hessian has two blocks, ``d^2E/dx_h^2`` and
``d^2E/dx_h dx_k``, and two sectors: ``own + (H - 1) other``, where all heads move alike, and ``own -
other`` with multiplicity H - 1, where displacements sum to zero.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from numeric.errors import InputError
from numeric.hessian import (
    LEAST_DIGITS,
    MOST_DIGITS,
    affordable_digits,
    exact,
    five_point,
    gradient_length,
)
from numeric.loss import MOST_POINTS, Loss, evaluate
from numeric.quadrature import Array
from numeric.refine import STEP as DIGITS_STEP
from numeric.refine import refine
from numeric.task import Attention, State, Task


@dataclass(frozen=True)
class AlikeHessian:
    """Gradient and second derivatives of the loss at heads that are all alike.

    Attributes
    ----------
    gradient : (n,) array
        ``dE/dx_h``, x_h = (m_h, and what is trained of b_h and v_h).
    own, other : (n, n) arrays
        ``d^2E/dx_h^2`` and ``d^2E/dx_h dx_k``.
    own_bulk, other_bulk : float
        ``2 dE/dr_hh`` and ``2 dE/dr_hk``: the Hessian along each residual dimension outside the keys.
    heads : int
    error, bulk_error, gradient_error : float
        Estimates of the spectral norms of the errors of both sectors, of their bulk values, and of the
        largest error of the gradient.
    """

    gradient: Array
    own: Array
    other: Array
    own_bulk: float
    other_bulk: float
    heads: int
    error: float
    bulk_error: float
    gradient_error: float

    @property
    def mean(self) -> Array:
        """The sector where all heads move alike."""
        return self.own + (self.heads - 1) * self.other

    @property
    def difference(self) -> Array:
        """The sector where displacements of the heads sum to zero."""
        return self.own - self.other


def is_alike(state: State) -> bool:
    """Whether every permutation of the heads leaves a state as it is."""
    apart = state.r[~np.eye(len(state.r), dtype=bool)]
    rows = [x for x in (state.m, state.b, state.v, np.diag(state.r), apart) if x is not None]
    return all(bool((x == x[:1]).all()) for x in rows)


def first_head(state: State, attention: Attention) -> Array:
    """Return x_h = (m_h, and what is trained of b_h and v_h) of the first head: (n,)."""
    trained = [getattr(state, name)[:1] for name in attention.parameters]
    return np.concatenate([state.m[0], *trained])


def alike_hessian(
    state: State, task: Task, attention: Attention, tol: float = 1e-9
) -> AlikeHessian:
    """Return the Hessian at heads that are all alike.

    Parameters
    ----------
    state : State
        One state with equal m_h, b_h and v_h, and an r that permutations leave as it is.
    task : Task
    attention : Attention
    tol : float
        Absolute error aimed at, in m and where heads meet in pairs.

    Raises
    ------
    InputError
        If heads differ.
    QuadratureError
        If the scores are so spread that no affordable rule resolves them.
    """
    layer = _layer(state, task, attention)
    size = layer.x.size
    own, other = np.zeros((2, size, size))
    known, error = 0, 0.0
    if isinstance(layer, _Pairs):
        known = task.prior.features
        blocks, (error,) = refine(
            layer.exact,
            lambda x, y: (float(np.abs(x - y).sum()) * attention.heads,),
            tol,
            1 - np.log10(tol),
            LEAST_DIGITS,
            MOST_DIGITS,
        )
        own[:known, :known], other[:known, :known] = blocks
    gradient, bulk = layer.gradient(layer.digits)
    coarse = layer.gradient(layer.digits - DIGITS_STEP)
    gradient_error, bulk_error = (
        float(np.abs(x - y).max(initial=0.0)) + 10.0**-layer.digits
        for x, y in zip((gradient, bulk), coarse, strict=True)
    )
    for column in range(known, size):
        fine, double = (layer.slopes(column, scale) for scale in (1.0, 2.0))
        for block, found in zip((own, other), fine, strict=True):
            block[column], block[:, column] = found, found
        # The five-point error falls sixteenfold when its step is halved; this is a safe estimate.
        error += attention.heads * float(np.abs(fine - double).sum()) / 4
        error += attention.heads * gradient_error / layer.length
    return AlikeHessian(
        gradient,
        (own + own.T) / 2,
        (other + other.T) / 2,
        2 * float(bulk[0]),
        2 * float(bulk[1]),
        attention.heads,
        error,
        2 * attention.heads * bulk_error,
        gradient_error,
    )


def alike_gradient(state: State, task: Task, attention: Attention, digits: float = 8.0) -> Array:
    """Return ``dE/dx_h`` (n,), x_h = (m_h, b_h, v_h), at heads that are all alike."""
    return _layer(state, task, attention).gradient(digits)[0]


def alike_loss(state: State, task: Task, attention: Attention) -> tuple[float, float]:
    """Return the loss at heads that are all alike, and its error."""
    layer = _layer(state, task, attention)
    fine, coarse = (layer.value(x) for x in (layer.digits, layer.digits - DIGITS_STEP))
    return fine, abs(fine - coarse) + 10.0**-layer.digits


def _layer(state: State, task: Task, attention: Attention) -> "_Pooled | _Pairs":
    state = state.single(attention, task.prior.features)
    if not is_alike(state):
        raise InputError("state", state.m, "heads that are all alike")
    pooled = attention.kernel.NORMALIZATION == "pooled"
    return (_Pooled if pooled else _Pairs)(state, task, attention)


class _Alike:
    """Heads at one x = (m, b, v), of which the first may be moved."""

    def __init__(self, state: State, task: Task, attention: Attention) -> None:
        self.state, self.task, self.attention = state, task, attention
        self.x = first_head(state, attention)
        self.length = gradient_length(task)

    @cached_property
    def digits(self) -> float:
        """Digits of gradients that are differenced."""
        state, attention = self.layer(2)
        return affordable_digits(state, self.task, attention)

    def layer(self, count: int) -> tuple[State, Attention]:
        """As many heads as `count`, of the same biases and values, and their layer."""
        b, v = self.state.biases_and_values(self.attention)
        heads = min(count, self.attention.heads)
        state = State(self.state.m[:heads], self.state.r[:heads, :heads], b[:heads], v[:heads])
        return state, replace(self.attention, heads=heads)

    def rows(self, x: Array, count: int, digits: float) -> tuple[Array, Loss]:
        """Gradient (2, n) in the coordinates of the first head, at x, and of another one."""
        state, attention = self.layer(count)
        features = self.state.m.shape[1]
        m = state.m.copy()
        m[0] = x[:features]
        moved = {"b": state.b, "v": state.v}
        for name, value in zip(self.attention.parameters, x[features:], strict=True):
            moved[name] = np.concatenate([[value], moved[name][1:]])  # type: ignore[index]
        loss = evaluate(State(m, state.r, **moved), self.task, attention, digits, MOST_POINTS)
        others = [getattr(loss, name)[:, None] for name in self.attention.parameters]
        found: Array = np.concatenate([loss.m, *others], axis=1)
        return found[:2], loss

    def slopes(self, column: int, scale: float) -> Array:
        """Five-point derivatives (2, n) of the gradients of both heads in one coordinate of the first."""
        first = self.state.m.shape[1]
        name = self.attention.parameters[column - first] if column >= first else "m"
        return five_point(self.moved, self.x, (column,), name, self.length, scale)

    def moved(self, x: Array) -> Array:
        """Gradients (2, n) of the first head, at x, and of another one, up to a constant."""
        raise NotImplementedError


class _Pooled(_Alike):
    """All heads in one race."""

    def moved(self, x: Array) -> Array:
        rows, _ = self.rows(x, self.attention.heads, self.digits)
        return rows if len(rows) == 2 else np.concatenate([rows, np.zeros_like(rows)])

    def gradient(self, digits: float) -> tuple[Array, Array]:
        """``dE/dx_h``, and (dE/dr_hh, dE/dr_hk)."""
        rows, loss = self.rows(self.x, self.attention.heads, digits)
        other = loss.r[0, 1] if self.attention.heads > 1 else 0.0
        return rows[0], np.array([loss.r[0, 0], other])

    def value(self, digits: float) -> float:
        """The loss."""
        return float(self.rows(self.x, self.attention.heads, digits)[1].value)


class _Pairs(_Alike):
    """Heads that meet in pairs: what one head and two heads give, times their numbers."""

    def moved(self, x: Array) -> Array:
        one, _ = self.rows(x, 1, self.digits)
        if self.attention.heads == 1:
            return np.concatenate([one, np.zeros_like(one)])
        two, _ = self.rows(x, 2, self.digits)
        return np.array([self._many(one[0], two[0]), two[1]])

    def gradient(self, digits: float) -> tuple[Array, Array]:
        """``dE/dx_h``, and (dE/dr_hh, dE/dr_hk)."""
        one, alone = self.rows(self.x, 1, digits)
        if self.attention.heads == 1:
            return one[0], np.array([alone.r[0, 0], 0.0])
        two, pair = self.rows(self.x, 2, digits)
        bulk = np.array([self._many(alone.r[0, 0], pair.r[0, 0]), pair.r[0, 1]])
        return self._many(one[0], two[0]), bulk

    def value(self, digits: float) -> float:
        """The loss."""
        heads = self.attention.heads
        alone, pair = (float(self.rows(self.x, n, digits)[1].value) for n in (1, min(2, heads)))
        # E_n = 1 + n s + n (n - 1) p.
        return alone + (heads - 1) * ((alone - 1) + heads * (pair + 1 - 2 * alone) / 2)

    def exact(self, digits: float) -> Array:
        """Both blocks in m: (2, F, F)."""
        features = self.state.m.shape[1]
        own = slice(0, features)
        state, attention = self.layer(1)
        alone = exact(state, self.task, attention, digits)[own, own]
        if self.attention.heads == 1:
            return np.array([alone, np.zeros_like(alone)])
        state, attention = self.layer(2)
        pair = exact(state, self.task, attention, digits)
        return np.array([self._many(alone, pair[own, own]), pair[own, features : 2 * features]])

    def _many(self, alone: Array, pair: Array) -> Array:
        """What a head has in common with all others, from one alone and one with another."""
        return alone + (self.attention.heads - 1) * (pair - alone)
