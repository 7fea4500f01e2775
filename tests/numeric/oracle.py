"""Attention and its loss by the definitions of the model (section 2), for tests only.

Plain NumPy formulas that keep to no range and share nothing with the package: real, complex and
extended numbers pass through, so that differences and imaginary steps differentiate them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.special

from numeric.prior import DiscretePrior, GaussianPrior, MixturePrior, Prior
from numeric.task import State, Task

NAMES = ("softmax", "softmax-v", "softmax-1", "b-softmax", "linear", "erf", "softplus")
EXACT = tuple(name for name in NAMES if name != "b-softmax")  # heads meet in pairs


@dataclass(frozen=True)
class Layer:
    """A weight w(chi, b), "per-head", "pooled" or "none", the background, and what is trained."""

    weight: Callable[[Any, Any], Any]
    normalization: str
    background: float = 0.0
    trained: tuple[str, ...] = ()

    def value(self, heads: int) -> float:
        """Head value unless one is given: 1/H of heads whose weights sum to one."""
        return 1 / heads if self.normalization == "per-head" and not self.background else 1.0


def softplus(x: Any) -> Any:
    """``log(1 + exp(x))``, from the side where the exponential is small."""
    right = np.real(x) > 0
    return np.where(right, x, 0 * x) + np.log1p(np.exp(np.where(right, -x, x)))


LAYERS = {
    "softmax": Layer(lambda x, b: np.exp(x), "per-head"),
    "softmax-v": Layer(lambda x, b: np.exp(x), "per-head", trained=("v",)),
    "softmax-1": Layer(lambda x, b: np.exp(b + x), "per-head", 1.0, ("b", "v")),
    "b-softmax": Layer(lambda x, b: np.exp(b + x), "pooled", trained=("b",)),
    "linear": Layer(lambda x, b: 1 + x, "none", trained=("v",)),
    "erf": Layer(lambda x, b: 1 + scipy.special.erf(b + x), "none", trained=("b", "v")),
    "softplus": Layer(lambda x, b: softplus(x), "per-head"),
}


def attention(layer: Layer, chi: Any, b: Any = None, v: Any = None) -> Any:
    """Attention weights (..., L) of scores (..., H, L), biases and values (..., H)."""
    heads = chi.shape[-2]
    w = layer.weight(chi, 0.0 if b is None else b[..., None])
    if layer.normalization == "pooled":
        return w.sum(axis=-2) / (layer.background + w.sum(axis=(-2, -1))[..., None])
    if layer.normalization == "per-head":
        w = w / (layer.background + w.sum(axis=-1, keepdims=True))
    v = np.full(heads, layer.value(heads)) if v is None else v
    return (v[..., None] * w).sum(axis=-2)


def sample_loss(a: Any) -> Any:
    """Loss of samples whose relevant token is the first, at orthonormal tokens."""
    return 1 - 2 * a[..., 0] + (a**2).sum(axis=-1)


def scores(state: State, task: Task, samples: int, seed: int) -> np.ndarray:
    """Scores (samples, H, L) from fields along the features and residual parts."""
    rng = np.random.default_rng(seed)
    heads, features = state.m.shape
    weights, means, covariances = task.prior.components()
    xi = rng.standard_normal((samples, task.tokens, features))
    component = rng.choice(len(weights), samples, p=weights)
    for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        mine = np.flatnonzero(component == k)
        xi[mine, 0] += rng.multivariate_normal(mean, covariance, len(mine), method="eigh")
    values, vectors = np.linalg.eigh(state.r)
    root = vectors * np.sqrt(np.maximum(values, 0))
    chi = xi @ state.m.T + rng.standard_normal((samples, task.tokens, heads)) @ root.T
    return chi.transpose(0, 2, 1)


def sampled_loss(
    layer: Layer, state: State, task: Task, samples: int, seed: int
) -> tuple[float, float]:
    """Monte-Carlo loss and its standard error."""
    size = max(1, 1_000_000 // (task.tokens * len(state.m)))
    losses = [
        sample_loss(attention(layer, scores(state, task, min(size, samples - i), (seed, i)),
                              state.b, state.v))
        for i in range(0, samples, size)
    ]  # fmt: skip
    values = np.concatenate(losses)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(samples))


def random_state(
    rng: np.random.Generator, layer: Layer, heads: int, features: int, scale: float = 0.7
) -> State:
    """A state with every trained parameter, its overlap of full rank."""
    root = scale * rng.normal(size=(heads, heads)) / np.sqrt(heads)
    trained = {
        "b": 0.6 * rng.normal(size=heads),
        "v": layer.value(heads) * (1 + 0.4 * rng.normal(size=heads)),
    }
    given = {name: trained[name] for name in layer.trained}
    return State(scale * rng.normal(size=(heads, features)), root @ root.T, **given)


def random_prior(rng: np.random.Generator, features: int, kind: str) -> Prior:
    """A Gaussian, three points, or a mixture of two Gaussians."""
    if kind == "gaussian":
        root = rng.normal(size=(features, features))
        return GaussianPrior(rng.normal(size=features), root @ root.T)
    if kind == "discrete":
        return DiscretePrior(1.5 * rng.normal(size=(3, features)), [0.2, 0.5, 0.3])
    return MixturePrior(
        [0.4, 0.6],
        rng.normal(size=(2, features)),
        np.array([np.eye(features), np.diag(rng.uniform(0, 3, features))]),
    )


def slope(function: Callable[[float], Any], h: float = 0.04) -> Any:
    """Derivative at zero: central differences, extrapolated three times; truncation O(h^8)."""
    steps = [h / 2**k for k in range(4)]
    found = [(function(x) - function(-x)) / (2 * x) for x in steps]
    for order in range(1, 4):
        found = [(4**order * b - a) / (4**order - 1) for a, b in pairwise(found)]
    return found[0]


def gradient(function: Callable[[np.ndarray], Any], x: np.ndarray, h: float = 0.04) -> np.ndarray:
    """Derivatives of a function of an array, the array's axes first."""
    rows = []
    for index in np.ndindex(x.shape):
        unit = np.zeros(x.shape)
        unit[index] = 1.0
        rows.append(slope(lambda s, unit=unit: function(x + s * unit), h))
    return np.array(rows).reshape(x.shape + np.shape(rows[0]) if rows else x.shape)


def symmetric_gradient(
    function: Callable[[np.ndarray], Any], r: np.ndarray, h: float = 0.04
) -> np.ndarray:
    """Symmetric G with ``dE = tr(G dr)``, by moves along symmetric directions of unit weight."""

    def moved(change: np.ndarray) -> Any:
        return function(r + (change + change.T) / 2)

    return gradient(moved, np.zeros(r.shape), h)
