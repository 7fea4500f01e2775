"""Hessian of the loss at a state: exact where heads meet in pairs, else by differences of the gradient.

The coordinates are (m, r), or (m, rho) with ``r = rho rho^T``: in these the flow is a gradient flow.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from numeric.curvature import Moments, curvature
from numeric.errors import InputError, QuadratureError
from numeric.law import token_laws
from numeric.loss import MOST_POINTS, Loss, evaluate, population_loss
from numeric.quadrature import ROUNDOFF, Array, principal_axes
from numeric.refine import refine
from numeric.task import Attention, State, Task
from numeric.validate import real_number

LEAST_DIGITS, MOST_DIGITS = 5.0, 12.0
# Digits of the gradient that is differenced, by preference; step of the five-point formula in units of
# the length over which the gradient varies.
DIGITS = (11.0, 9.0, 7.0, 5.0)
STEP = 0.01


@dataclass(frozen=True)
class LossHessian:
    """Second derivatives of a population loss.

    Attributes
    ----------
    matrix : (n, n) array
        Symmetric, ``n = H F + H H``, in m and then r, each flattened by rows: the loss changes by
        ``dx.gradient + dx.matrix dx / 2`` for dx = (dm, dr) with dr symmetric.
    error : float
        Estimate of the spectral norm of its error.
    """

    matrix: Array
    error: float


@dataclass(frozen=True)
class FactorHessian:
    """Second derivatives in (m, rho), ``r = rho rho^T``, rho of full column rank k.

    Attributes
    ----------
    matrix : (n, n) array
        ``n = H (F + k)``, in the rows (m_h, rho_h) of each head, flattened; on request b_h and v_h, as
        far as they are trained, follow in each row.
    bulk : (H, H) array
        ``2 dE/dr``: the Hessian along each residual dimension outside the span of rho.
    error, bulk_error : float
        Estimates of the spectral norms of their errors.
    """

    matrix: Array
    bulk: Array
    error: float
    bulk_error: float


def loss_hessian(state: State, task: Task, attention: Attention, tol: float = 1e-8) -> LossHessian:
    """Return the Hessian of the population loss in (m, r), biases and values held fixed.

    Parameters
    ----------
    state : State
        One state, m (H, F), r (H, H), b and v (H,).
    task : Task
    attention : Attention
        Its weights normalized head by head, or not at all.
    tol : float
        Absolute error aimed at; the reported error says what was reached.

    Returns
    -------
    LossHessian

    Raises
    ------
    InputError
        For a batch of states, one that does not fit, or pooled weights.
    QuadratureError
        If the scores are so spread that no affordable rule resolves them.

    Notes
    -----
    `derive.task` sections 1 and 4: derivatives act under the race integrals.
    """
    tol = real_number("tol", tol, positive=True)
    state = state.single(attention, task.prior.features)
    if attention.kernel.NORMALIZATION == "pooled":
        raise InputError("attention", attention.name, "weights that are not pooled over heads")
    matrix, (error,) = refine(
        lambda digits: exact(state, task, attention, digits),
        lambda a, b: (float(np.linalg.norm(a - b, 2)),),
        tol,
        1 - np.log10(tol),
        LEAST_DIGITS,
        MOST_DIGITS,
        lambda matrix: max(1.0, float(np.linalg.norm(matrix, 2))),
    )
    return LossHessian(matrix, error + ROUNDOFF * float(np.linalg.norm(matrix, 2)))


def factor_hessian(
    state: State, task: Task, attention: Attention, tol: float = 1e-8, *, trained: bool = False
) -> FactorHessian:
    """Return the Hessian in (m, rho) at one state, and along the other residual dimensions.

    Parameters
    ----------
    state : State
        One state, m (H, F), r (H, H), b and v (H,).
    task : Task
    attention : Attention
    tol : float
        Absolute error aimed at where derivatives are exact.
    trained : bool
        Whether a head's coordinates include the b_h and v_h that are trained; else these are held fixed.

    Returns
    -------
    FactorHessian
        Exact in (m, rho) where heads meet in pairs; differences of the exact gradient in b and v, and
        for pooled weights.

    Raises
    ------
    InputError
        For a batch of states, or one that does not fit.
    QuadratureError
        If the scores are so spread that no affordable rule resolves them.
    """
    state = state.single(attention, task.prior.features)
    layer = Coordinates(state, task, attention, attention.parameters if trained else ())
    heads, size = layer.x.shape
    known = layer.features + layer.rank
    matrix, error = np.zeros((heads, size, heads, size)), 0.0
    loss = population_loss(state, task, attention, min(tol, 10 ** (1 - layer.digits)))
    bulk_error = 2 * heads * float(loss.gradient_error)
    if attention.kernel.NORMALIZATION == "pooled":
        known = 0
    else:
        matrix[:, :known, :, :known], error = _factored(layer, loss, tol)
        error += bulk_error
    if known < size:
        rows, rows_error = layer.differences(range(known, size))
        matrix[:, known:] = rows
        matrix[:, :, :, known:] = rows.transpose(2, 3, 0, 1)
        error += rows_error + heads * float(loss.gradient_error) / layer.length
    flat = matrix.reshape(heads * size, heads * size)
    error += float(np.linalg.norm(flat - flat.T, 2))
    return FactorHessian((flat + flat.T) / 2, 2 * loss.r, error, bulk_error)


def _factored(layer: "Coordinates", loss: Loss, tol: float) -> tuple[Array, float]:
    """The exact Hessian in (m, rho): (H, F + k, H, F + k)."""
    found = loss_hessian(layer.state, layer.task, layer.attention, tol)
    heads, features, rank = len(layer.x), layer.features, layer.rank
    rho = layer.x[:, features : features + rank]
    # dr = drho rho^T + rho drho^T, and tr(G d2r) = 2 tr(G drho drho^T).
    change = np.zeros((heads * (features + heads), heads, features + rank))
    for h in range(heads):
        for f in range(features):
            change[h * features + f, h, f] = 1.0
        for k in range(heads):
            row = change[heads * features + h * heads + k]
            row[h, features:] += rho[k]
            row[k, features:] += rho[h]
    flat = change.reshape(len(change), -1)
    shape = heads, features + rank, heads, features + rank
    matrix = (flat.T @ found.matrix @ flat).reshape(shape)
    for a in range(features, features + rank):
        matrix[:, a, :, a] += 2 * loss.r
    return matrix, float(np.linalg.norm(flat, 2)) ** 2 * found.error


class Coordinates:
    """Each head's (m_h, rho_h, b_h, v_h) as a row of an array x (H, F + k + ...), and the loss there.

    Attributes
    ----------
    x : (H, n) array
        Of the state.
    features, rank : int
        Columns of m, and columns of rho.
    length : float
        Length over which the gradient varies: where the scores change by order one.
    """

    def __init__(
        self, state: State, task: Task, attention: Attention, parameters: Sequence[str] = ()
    ) -> None:
        self.state, self.task, self.attention = state, task, attention
        self.parameters = tuple(parameters)
        rho = factor(state.r)
        self.features, self.rank = state.m.shape[1], rho.shape[1]
        others = [getattr(state, name)[:, None] for name in self.parameters]
        self.x: Array = np.concatenate([state.m, rho, *others], axis=1)
        self.length = gradient_length(task)

    @cached_property
    def digits(self) -> float:
        """Digits of gradients that are differenced: as many as can be afforded."""
        return affordable_digits(self.state, self.task, self.attention)

    def at(self, x: Array) -> State:
        """Return the state at other coordinates."""
        end = self.features + self.rank
        rho = x[:, self.features : end]
        overlap = rho @ rho.T
        others = {name: x[:, end + i] for i, name in enumerate(self.parameters)}
        return replace(self.state, m=x[:, : self.features], r=(overlap + overlap.T) / 2, **others)

    def gradient(self, x: Array) -> Array:
        """Return the gradient (H, n) at some coordinates."""
        return self.along(
            x, evaluate(self.at(x), self.task, self.attention, self.digits, MOST_POINTS)
        )

    def along(self, x: Array, loss: Loss) -> Array:
        """Return the gradient (H, n) at some coordinates, of the loss and its derivatives there."""
        rho = x[:, self.features : self.features + self.rank]
        others = [getattr(loss, name)[:, None] for name in self.parameters]
        return np.concatenate([loss.m, 2 * loss.r @ rho, *others], axis=1)

    def differences(self, columns: Iterable[int]) -> tuple[Array, float]:
        """Differentiate the gradient in some columns of x: (H, columns, H, n), and the error's norm."""
        fine, coarse = (
            np.array([[self._slope(h, a, k) for a in columns] for h in range(len(self.x))])
            for k in (1.0, 2.0)
        )
        # Weyl: an eigenvalue moves by at most the norm of the perturbation. The five-point error falls
        # sixteenfold when its step is halved; a quarter of the change is a safe estimate.
        change = (fine - coarse).reshape(-1, self.x.size)
        return fine, float(np.linalg.norm(change, 2)) / 4

    def _slope(self, head: int, column: int, scale: float) -> Array:
        """Derivative of the gradient in one coordinate."""
        first = self.features + self.rank
        name = self.parameters[column - first] if column >= first else "m"
        return five_point(self.gradient, self.x, (head, column), name, self.length, scale)


def gradient_length(task: Task) -> float:
    """Length over which a gradient varies: where the scores change by order one."""
    spread = float(np.linalg.eigvalsh(task.prior.second_moment).max(initial=0.0))
    return float(1 / np.sqrt(1 + spread))


def five_point(
    gradient: Callable[[Array], Array],
    x: Array,
    place: tuple[int, ...],
    name: str,
    length: float,
    scale: float,
) -> Array:
    """Five-point derivative of a gradient in one coordinate, of m, rho, "b" or "v".

    The loss is quadratic in v: there any step will do. Steps are multiplied by `scale`.
    """
    h = scale * (1.0 if name == "v" else STEP * length)
    step = np.zeros_like(x)
    step[place] = h
    near = gradient(x + step) - gradient(x - step)
    far = gradient(x + 2 * step) - gradient(x - 2 * step)
    return (8 * near - far) / (12 * h)


def factor(r: Array) -> Array:
    """Columns rho with ``r = rho rho^T``, as many as its rank."""
    sigma, axes = principal_axes(r)
    kept = sigma > 1e-6 * max(float(sigma.max(initial=0.0)), 1e-150)
    return axes[:, kept] * sigma[kept]


def exact(state: State, task: Task, attention: Attention, digits: float) -> Array:
    kernel, heads, features = attention.kernel, attention.heads, task.prior.features
    if attention.ignores_scores(task.tokens):
        return np.zeros((heads * (features + heads),) * 2)
    null, relevant = token_laws(state, task, attention)
    unit = np.eye(features)
    moments = [Moments(np.zeros(features), unit)]
    moments += [
        Moments(mean, unit + covariance)
        for weight, mean, covariance in zip(*task.prior.components(), strict=True)
        if weight > 0
    ]
    bias, values = state.biases_and_values(attention)
    tokens = float(task.tokens)
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = curvature(state.m, null, relevant, moments, bias, kernel, tokens, values, digits)
    if not np.isfinite(matrix).all():
        raise QuadratureError(
            "scores: the Hessian is not finite; weights or values are out of reach"
        )
    return matrix


def affordable_digits(state: State, task: Task, attention: Attention) -> float:
    """Digits of the gradients that are differenced: the most that can be afforded."""
    for digits in DIGITS[:-1]:
        try:
            evaluate(state, task, attention, digits, MOST_POINTS)
        except QuadratureError:
            continue
        return digits
    return DIGITS[-1]
