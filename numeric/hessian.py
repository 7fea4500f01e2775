"""Hessian of the loss at a state: exact where heads meet in pairs, else by differences of the gradient.

The coordinates are (m, r), or (m, rho) with ``r = rho rho^T``: in these the flow is a gradient flow.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from numeric.curvature import Moments, curvature
from numeric.errors import InputError, QuadratureError
from numeric.law import token_laws
from numeric.loss import MOST_POINTS, evaluate, population_loss
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
        ``n = H (F + k)``, in the rows (m_h, rho_h) of each head, flattened.
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
        lambda digits: _exact(state, task, attention, digits),
        lambda a, b: (float(np.linalg.norm(a - b, 2)),),
        tol,
        1 - np.log10(tol),
        LEAST_DIGITS,
        MOST_DIGITS,
        lambda matrix: max(1.0, float(np.linalg.norm(matrix, 2))),
    )
    return LossHessian(matrix, error + ROUNDOFF * float(np.linalg.norm(matrix, 2)))


def factor_hessian(state: State, task: Task, attention: Attention) -> FactorHessian:
    """Return the Hessian in (m, rho) at one state, and along the other residual dimensions.

    Biases and values are held fixed. Pooled weights: by differences of the exact gradient.
    """
    state = state.single(attention, task.prior.features)
    rho = factor(state.r)
    if attention.kernel.NORMALIZATION == "pooled":
        return _differenced(state, rho, task, attention)
    found = loss_hessian(state, task, attention)
    loss = population_loss(state, task, attention)
    heads, features = state.m.shape
    rank = rho.shape[1]
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
    second = np.zeros((heads, features + rank, heads, features + rank))
    for a in range(features, features + rank):
        second[:, a, :, a] = 2 * loss.r
    matrix = flat.T @ found.matrix @ flat + second.reshape(flat.shape[1], flat.shape[1])
    bulk_error = 2 * heads * float(loss.gradient_error)
    error = float(np.linalg.norm(flat, 2)) ** 2 * found.error + bulk_error
    return FactorHessian((matrix + matrix.T) / 2, 2 * loss.r, error, bulk_error)


def factor(r: Array) -> Array:
    """Columns rho with ``r = rho rho^T``, as many as its rank."""
    sigma, axes = principal_axes(r)
    kept = sigma > 1e-6 * max(float(sigma.max(initial=0.0)), 1e-150)
    return axes[:, kept] * sigma[kept]


def _exact(state: State, task: Task, attention: Attention, digits: float) -> Array:
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


def _differenced(state: State, rho: Array, task: Task, attention: Attention) -> FactorHessian:
    x0 = np.concatenate([state.m, rho], axis=1)
    features = task.prior.features
    # A gradient varies where the scores change by order one.
    spread = float(np.linalg.eigvalsh(task.prior.second_moment).max(initial=0.0))
    length = 1 / np.sqrt(1 + spread)
    digits = _affordable_digits(state, task, attention)

    def gradient(x: Array) -> Array:
        m, other = x[:, :features], x[:, features:]
        overlap = other @ other.T
        moved = State(m, (overlap + overlap.T) / 2, state.b, state.v)
        loss = evaluate(moved, task, attention, digits, MOST_POINTS)
        return np.concatenate([loss.m, 2 * loss.r @ other], axis=1).ravel()

    hessian, coarse = (_differentiate(gradient, x0, STEP * length * k) for k in (1.0, 2.0))
    loss = population_loss(state, task, attention, 10 ** (1 - digits))
    # Weyl: an eigenvalue moves by at most the norm of the perturbation. The five-point error falls
    # sixteenfold when its step is halved; a quarter of the change is a safe estimate.
    error = (
        np.linalg.norm(hessian - coarse, 2) / 4
        + np.linalg.norm(hessian - hessian.T, 2)
        + attention.heads * float(loss.gradient_error) / length
    )
    bulk_error = 2 * attention.heads * float(loss.gradient_error)
    return FactorHessian((hessian + hessian.T) / 2, 2 * loss.r, float(error), bulk_error)


def _affordable_digits(state: State, task: Task, attention: Attention) -> float:
    """Digits of the gradients that are differenced: the most that can be afforded."""
    for digits in DIGITS[:-1]:
        try:
            evaluate(state, task, attention, digits, MOST_POINTS)
        except QuadratureError:
            continue
        return digits
    return DIGITS[-1]


def _differentiate(gradient: Callable[[Array], Array], x0: Array, h: float) -> Array:
    """Five-point derivative of a gradient in every coordinate: (n, n)."""
    rows = []
    for i in range(x0.size):
        step = np.zeros_like(x0)
        step.flat[i] = h
        rows.append(
            (
                8 * (gradient(x0 + step) - gradient(x0 - step))
                - (gradient(x0 + 2 * step) - gradient(x0 - 2 * step))
            )
            / (12 * h)
        )
    return np.array(rows).reshape(x0.size, x0.size)
