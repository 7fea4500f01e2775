"""A seeded grid of states over activations, priors, sizes and score deviations."""

import numpy as np

from numeric import (
    Attention,
    DiscretePrior,
    GaussianPrior,
    MixturePrior,
    State,
    Task,
    empirical,
    flipped_spike,
    isotropic,
)
from numeric._generated import ACTIVATIONS
from numeric.prior import Prior

TOKENS = (1, 2, 3, 10, 100, 10_000, 1_000_000)
DEVIATIONS = (0.01, 10.0)
NAMES = tuple(ACTIVATIONS)


def some_prior(rng: np.random.Generator, features: int) -> Prior:
    """Draw one of the kinds of an experiment file, singular covariances included."""
    root = rng.standard_normal((features, features))
    kind = rng.integers(6)
    if kind == 0:
        root[:, : features // 2] = 0
        return GaussianPrior(rng.standard_normal(features), root @ root.T)
    if kind == 1:
        return DiscretePrior(rng.standard_normal((3, features)), np.array([0.5, 0.5, 0.0]))
    if kind == 2:
        covariances = np.array([0.3 * root @ root.T, np.zeros((features, features))])
        return MixturePrior(np.array([0.4, 0.6]), rng.standard_normal((2, features)), covariances)
    if kind == 3:
        return isotropic(features, float(rng.choice([0.0, 1.0, 4.0])))
    if kind == 4:
        return flipped_spike(1.5 * rng.standard_normal((1, features)))
    return empirical(rng.standard_normal((4, features)))


def cell(index: int) -> tuple[State, Task, Attention]:
    """Return case number `index`: all of it follows from the number."""
    rng = np.random.default_rng(np.random.SeedSequence(2026, spawn_key=(index,)))
    name = NAMES[index % len(NAMES)]
    heads, features = int(rng.integers(1, 9)), int(rng.integers(0, 5))
    task = Task(int(rng.choice(TOKENS)), some_prior(rng, features))
    attention = Attention(name, heads)
    m = rng.standard_normal((heads, features))
    rank = int(rng.integers(0, heads + 1))
    root = 0.7 * rng.standard_normal((heads, rank))
    if heads > 1 and rng.random() < 0.25:
        m[1], root[1] = m[0], root[0]
    if rng.random() < 0.1:
        m[:] = 0
    covariance = m @ (np.eye(features) + task.prior.covariance) @ m.T + root @ root.T
    largest = float(np.sqrt(np.diag(covariance).max(initial=0.0)))
    deviation = float(np.exp(rng.uniform(*np.log(DEVIATIONS))))
    scale = deviation / largest if largest > 0 else 1.0
    trained = {
        key: (0.0 if key == "b" else attention.value) + 0.5 * rng.standard_normal(heads)
        for key in attention.parameters
    }
    return State(scale * m, scale**2 * root @ root.T, **trained), task, attention
