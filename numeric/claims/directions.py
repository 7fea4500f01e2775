"""Negative directions of the Hessian beside the eigenvectors of Cov theta: A4 and A5.

And losses of D-dimensional tokens, in which no formula of the theory enters: A1, too.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import SeedSequence, default_rng
from scipy.special import softmax

from numeric.alike import alike_hessian
from numeric.claims.claim import Condition, Measured, array
from numeric.prior import Prior
from numeric.quadrature import Array
from numeric.task import Attention, State, Task

ANGLE = Condition("largest angle to an eigenvector of Cov θ (radian)", high=0.05)
COUNT = Condition("negative directions minus the rank of Cov θ", 0, 0)

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


def directions_found(found: Mapping[str, Any], rank: int) -> dict[str, Measured]:
    """Return what `COUNT` and `ANGLE` ask of `directions`."""
    return {
        COUNT.name: Measured(len(found["eigenvalues"]) - rank),
        ANGLE.name: Measured(found["angle"]),
    }


def power(own: Mapping[str, Any], half: Mapping[str, Any]) -> Measured:
    """Return the power with which the angle vanishes, from that at half of a small parameter."""
    return Measured(float(np.log2(own["angle"] / half["angle"])))


def curvature_score(seen: Mapping[str, Any], hessian: Mapping[str, Any]) -> Measured:
    """Return the largest |z| of `finite_curvature` against `directions`."""
    z = (array(seen["curvature"]) - array(hessian["along"])) / array(seen["error"])
    return Measured(float(np.abs(z).max()))


def softmax_losses(keys: Array, x: Array) -> Array:
    """Return ``|x_eps - sum_l a_l x_l|^2 / D`` of softmax heads, keys (H, D), on samples x (n, L, D).

    The relevant token is the first one.
    """
    a = softmax(np.einsum("hd,nld->nhl", keys, x), axis=-1).mean(axis=1)
    apart = x[:, 0] - np.einsum("nl,nld->nd", a, x)
    result: Array = (apart**2).sum(axis=1) / x.shape[-1]
    return result


def finite_samples(full: bool) -> dict[str, int]:
    """Return `dimension` and `samples` of `finite_curvature`."""
    if full:
        return {"dimension": 4000, "samples": 50_000}
    return {"dimension": 1000, "samples": 20_000}


def finite_curvature(
    m: Array, task: Task, heads: int, dimension: int, samples: int, seed: int
) -> dict[str, Array]:
    """Return second derivatives of D-dimensional losses along head differences, and standard errors.

    Along each eigenvector u of Cov theta, two of the softmax heads move by ``+-u / sqrt 2``; random
    numbers are common to all losses.
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
        middle, curvatures = softmax_losses(keys, x), []
        for u in axes.T:
            moved = np.zeros_like(keys)
            moved[:2] = np.outer([STEP, -STEP], u @ basis) / np.sqrt(2)
            there, back = softmax_losses(keys + moved, x), softmax_losses(keys - moved, x)
            curvatures.append((there + back - 2 * middle) / STEP**2)
        found.append(np.array(curvatures))
    every = np.concatenate(found, axis=1)
    error = every.std(axis=1, ddof=1) / np.sqrt(samples)
    return {"curvature": every.mean(axis=1), "error": error}
