"""Stochastic gradient descent by its order parameters, exact in law at every D; for tests only.

(m, r) is a Markov chain in itself: a step needs the tokens' coordinates along the features (xi), along
an orthonormal basis of the keys' residual parts (u), and the Gram matrix of all else, which is Wishart
with D - F - H degrees of freedom and enters by its Bartlett factor. No D-dimensional vector is drawn.
"""

from dataclasses import dataclass

import numpy as np

from numeric.noise import initial_state
from numeric.scores import attention_weights, score_gradient
from numeric.task import Attention, Task

# Normal numbers drawn at a time.
DRAWN = 400_000


@dataclass(frozen=True)
class Setting:
    """SGD with one sample each step: random keys of norm `eta`, step ``kappa / dimension``.

    `target` "token" is the loss ``|y - yhat|^2 / D`` at finite D, "location" its limit
    ``sum_l (1{l = eps} - a_l)^2``. Biases and values stay what they are.
    """

    task: Task
    attention: Attention
    eta: float
    kappa: float
    dimension: int
    target: str = "token"


@dataclass
class Draws:
    """Random numbers of a block of steps, the step first and the run second."""

    xi: np.ndarray  # (n, runs, L, F)
    u: np.ndarray  # (n, runs, L, H)
    bartlett: np.ndarray  # (n, runs, L, L), lower triangular


def draws(setting: Setting, rng: np.random.Generator, steps: int, runs: int) -> Draws:
    """Draw the tokens of some steps; the first token is the relevant one."""
    prior, tokens, heads = setting.task.prior, setting.task.tokens, setting.attention.heads
    xi = rng.standard_normal((steps, runs, tokens, prior.features))
    xi[:, :, 0] += prior.sample(rng, steps * runs).reshape(steps, runs, prior.features)
    u = rng.standard_normal((steps, runs, tokens, heads))
    freedom = setting.dimension - prior.features - heads - np.arange(tokens)
    bartlett = np.zeros((steps, runs, tokens, tokens))
    below, diagonal = np.tril_indices(tokens, -1), np.arange(tokens)
    bartlett[..., *below] = rng.standard_normal((steps, runs, len(below[0])))
    bartlett[..., diagonal, diagonal] = np.sqrt(rng.chisquare(freedom, (steps, runs, tokens)))
    return Draws(xi, u, bartlett)


def moved(
    setting: Setting, m: np.ndarray, r: np.ndarray, xi: np.ndarray, u: np.ndarray, rest: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return m (runs, H, F) and r (runs, H, H) after one step."""
    attention, step = setting.attention, setting.kappa / setting.dimension
    root = np.linalg.cholesky(r)
    chi = m @ xi.swapaxes(1, 2) + root @ u.swapaxes(1, 2)
    bias = np.zeros(attention.heads)
    p, a = attention_weights(chi, bias, attention.value, attention.kernel)
    miss = a.copy()
    miss[:, 0] -= 1
    slope = 2 * miss
    if setting.target == "token":
        e = miss[..., None]
        gram = [x @ (x.swapaxes(1, 2) @ e) for x in (xi, u, rest)]
        slope = 2 / setting.dimension * sum(gram)[..., 0]
    c, *_ = score_gradient(chi, bias, attention.value, p, slope, attention.kernel)
    inside, outside = root - step * (c @ u), step * (c @ rest)
    return m - step * (c @ xi), inside @ inside.swapaxes(1, 2) + outside @ outside.swapaxes(1, 2)


def first_passages(
    setting: Setting, tau: float, runs: int, seed: int, threshold: float = 1.0
) -> np.ndarray:
    """Times (runs, F) at which feature norms first exceed a threshold; infinite if after `tau`.

    A run that has passed with every feature is not followed further.
    """
    task, attention = setting.task, setting.attention
    rng = np.random.default_rng(seed)
    starts = [
        initial_state(task, attention, setting.eta, setting.dimension, int(s))
        for s in rng.integers(2**40, size=runs)
    ]
    m, r = np.array([x.m for x in starts]), np.array([x.r for x in starts])
    passages = np.full((runs, task.prior.features), np.inf)
    going, step = np.arange(runs), setting.kappa / setting.dimension
    size = task.tokens * (task.prior.features + attention.heads + task.tokens)
    done, steps = 0, int(tau / step)
    while done < steps and len(going):
        block = min(max(1, DRAWN // (len(going) * size)), steps - done)
        drawn = draws(setting, rng, block, len(going))
        for numbers in zip(drawn.xi, drawn.u, drawn.bartlett, strict=True):
            m, r = moved(setting, m, r, *numbers)
            done += 1
            late = np.linalg.norm(m, axis=1) > threshold
            if late.any():
                passages[going] = np.where(
                    late, np.minimum(passages[going], done * step), passages[going]
                )
        kept = np.isinf(passages[going]).any(axis=1)
        going, m, r = going[kept], m[kept], r[kept]
    return passages
