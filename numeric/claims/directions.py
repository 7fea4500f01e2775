"""Negative directions of the Hessian beside the eigenvectors of Cov theta: A4 and A5."""

from typing import Any

import numpy as np
from numpy.random import SeedSequence, default_rng
from scipy.special import softmax

from numeric.alike import alike_hessian
from numeric.prior import Prior
from numeric.quadrature import Array
from numeric.task import Attention, State, Task

BLOCK = 200
STEP = 0.05
"""Of second differences; their error is of order STEP^2."""


def directions(state: State, task: Task, attention: Attention) -> dict[str, Any]:
    """Hessian of heads that are all alike, along their differences, beside Cov theta.

    Returns
    -------
    dict
        `eigenvalues` that are negative; `angle`, the largest one between an eigenvector of theirs and the
        nearest of Cov theta, in radians; `along`, the curvature along each eigenvector of Cov theta, from
        the least variance to the largest.
    """
    hessian = alike_hessian(state, task, attention).difference
    values, vectors = np.linalg.eigh(hessian)
    _, axes = np.linalg.eigh(covariance_of(task.prior))
    nearest = np.abs(axes.T @ vectors[:, values < 0]).max(axis=0, initial=0.0)
    return {
        "eigenvalues": values[values < 0],
        "angle": np.arccos(np.clip(nearest, -1, 1)).max(initial=0.0),
        "along": np.diag(axes.T @ hessian @ axes),
    }


def covariance_of(prior: Prior) -> Array:
    """Return Cov theta."""
    return prior.second_moment - np.outer(prior.mean, prior.mean)


def finite_curvature(
    m: Array, task: Task, heads: int, dimension: int, samples: int, seed: int
) -> tuple[Array, Array]:
    """Second derivatives of D-dimensional losses along head differences, and standard errors.

    Along each eigenvector u of Cov theta, two of the softmax heads move by ``+-u / sqrt 2``; losses are
    those of D-dimensional tokens at common random numbers, and no formula of the theory enters.
    """
    rng = default_rng(SeedSequence(seed))
    features = task.prior.features
    basis = np.linalg.qr(rng.standard_normal((dimension, features)))[0].T
    _, axes = np.linalg.eigh(covariance_of(task.prior))
    keys = np.tile(m @ basis, (heads, 1))
    found = []
    for first in range(0, samples, BLOCK):
        count = min(BLOCK, samples - first)
        x = rng.standard_normal((count, task.tokens, dimension))
        x[:, 0] += task.prior.sample(rng, count) @ basis

        def losses(keys: Array, x: Array = x) -> Array:
            a = softmax(np.einsum("hd,nld->nhl", keys, x), axis=-1).mean(axis=1)
            apart = x[:, 0] - np.einsum("nl,nld->nd", a, x)
            result: Array = (apart**2).sum(axis=1) / dimension
            return result

        middle, curvatures = losses(keys), []
        for u in axes.T:
            moved = np.zeros_like(keys)
            moved[:2] = np.outer([STEP, -STEP], u @ basis) / np.sqrt(2)
            curvatures.append((losses(keys + moved) + losses(keys - moved) - 2 * middle) / STEP**2)
        found.append(np.array(curvatures))
    every = np.concatenate(found, axis=1)
    return every.mean(axis=1), every.std(axis=1, ddof=1) / np.sqrt(samples)
