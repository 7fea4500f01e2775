"""What a theorist would otherwise write: the loss over quasi-Monte-Carlo samples in JAX, with autodiff.

A sample is the signal and, for each token, its coordinates along the features and along the heads'
residual space; by symmetry the relevant token is the first. The first coordinates of the scrambled
Sobol points, which are the best ones, go to the signal and to that token.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtri
from scipy.stats import qmc

from tests.benchmarks.problem import FEATURES, HEADS, TOKENS, VARIANCES, errors, factors

jax.config.update("jax_enable_x64", True)

LARGEST, BLOCK = 2**18, 64
# Samples whose scores fit in the cache.
CHUNK = 1024
SCRAMBLES = 8

Parameters = tuple[Any, Any]


def samples(size: int, seed: int) -> np.ndarray:
    """Return standard normal coordinates of the tokens, signals added: (size, L, F + H)."""
    rng = np.random.default_rng(seed)
    net = qmc.Sobol(FEATURES + TOKENS * (FEATURES + HEADS), rng=rng).random(size)
    z = ndtri(np.clip(net, 1e-16, 1 - 1e-16))
    x = z[:, FEATURES:].reshape(size, TOKENS, FEATURES + HEADS).copy()
    x[:, 0, :FEATURES] += z[:, :FEATURES] * np.sqrt(VARIANCES)
    return x


def mean_loss(parameters: Parameters, x: Any) -> Any:
    """Return the loss at (m, rho) averaged over samples."""
    scores = x @ jnp.concatenate(parameters, axis=1).T
    a = jax.nn.softmax(scores, axis=1).mean(axis=-1)
    return 1 - 2 * a[:, 0].mean() + (a**2).sum(axis=1).mean()


plain: Callable[..., Any] = jax.jit(jax.value_and_grad(mean_loss))


@jax.jit
def chunked(parameters: Parameters, x: Any) -> Any:
    """Return the same as `plain` from samples in chunks (K, S, L, F + H), for the cache's sake."""

    def add(total: Any, chunk: Any) -> tuple[Any, None]:
        found = jax.value_and_grad(mean_loss)(parameters, chunk)
        return jax.tree.map(jnp.add, total, found), None

    start = jax.tree.map(jnp.zeros_like, (jnp.zeros(()), parameters))
    total, _ = jax.lax.scan(add, start, x)
    return jax.tree.map(lambda t: t / len(x), total)


@jax.jit
def _by_block(parameters: Parameters, x: Any) -> Any:
    return jax.lax.map(lambda block: jax.value_and_grad(mean_loss)(parameters, block), x)


def accuracy(names: tuple[str, ...]) -> dict[str, list[tuple[int, float, float]]]:
    """Return samples and RMS errors of loss and gradient over scrambles, for each state.

    The first 2^k points of a net are a net, so one large net tells about all smaller ones.
    """
    sizes = [BLOCK << k for k in range((LARGEST // BLOCK).bit_length())]
    last = np.array(sizes) // BLOCK - 1
    squares = {name: np.zeros((2, len(sizes))) for name in names}
    for seed in range(SCRAMBLES):
        x = samples(LARGEST, seed).reshape(-1, BLOCK, TOKENS, FEATURES + HEADS)
        for name in names:
            value, (in_m, in_rho) = _by_block(factors(name), x)
            means = (
                np.cumsum(part, axis=0)[last] / (last + 1).reshape(-1, *(1,) * (part.ndim - 1))
                for part in (value, in_m, in_rho)
            )
            squares[name] += np.square(errors(name, *means))
    return {
        name: [(n, *map(float, e)) for n, e in zip(sizes, np.sqrt(s / SCRAMBLES).T, strict=True)]
        for name, s in squares.items()
    }


def jobs(sizes: list[int]) -> dict[str, Callable[[], object]]:
    """Return evaluations to be timed; values of the parameters do not matter."""
    parameters = tuple(map(jnp.asarray, factors("middle")))
    x = samples(max(sizes), 0)

    def job(function: Callable[..., Any], data: Any) -> Callable[[], object]:
        return lambda: jax.block_until_ready(function(parameters, data))

    found = {}
    for size in sizes:
        found[f"plain {size}"] = job(plain, jnp.asarray(x[:size]))
        if size > CHUNK:
            chunks = x[:size].reshape(-1, CHUNK, *x.shape[1:])
            found[f"chunked {size}"] = job(chunked, jnp.asarray(chunks))
    return found
