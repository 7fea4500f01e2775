"""The law of one token's scores, and the score weight on it."""

from dataclasses import dataclass

import numpy as np

from numeric.activation import Kernels
from numeric.errors import QuadratureError
from numeric.quadrature import Array
from numeric.task import Attention, State, Task

# Scores beyond this are certainly out of reach, and their squares might overflow.
LARGEST_SCORE = 1e6
# Deviations over which a weight is probed, points of a probe, and probes, each around the largest change.
PROBED, PROBES, ROUNDS = 8.0, 257, 3


# A weight that adds nothing to the loss, whatever the values.
NOTHING = 1e-100


@dataclass
class Law:
    """A Gaussian law of a token's H scores, with the loss derivatives gathered so far.

    Attributes
    ----------
    weight : float
        Mixture weight (of the relevant token's law).
    mean, cov : (H,), (H, H) arrays
    scale : float
        How fast a score weight varies: a rule for exp(chi) of that many times the deviation resolves it.
    g, Gamma, b : (H,), (H, H), (H,) arrays
        Derivatives of the loss in the mean, in the covariance and in the biases.
    """

    weight: float
    mean: Array
    cov: Array
    scale: float = 1.0

    @property
    def width(self) -> float:
        """Largest score deviation, as rules must resolve it."""
        return self.scale * float(np.sqrt(np.diag(self.cov).max(initial=0.0)))

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the derivatives gathered so far."""
        heads = len(self.mean)
        self.g, self.Gamma, self.b = (
            np.zeros(heads),
            np.zeros((heads, heads)),
            np.zeros(heads),
        )


def token_laws(state: State, task: Task, attention: Attention) -> tuple[Law, list[Law]]:
    """Return the Gaussian score law of an irrelevant token and the relevant token's mixture."""
    m, r = state.m, state.r
    with np.errstate(over="ignore", invalid="ignore"):
        null = Law(1.0, np.zeros(len(m)), m @ m.T + r)
        relevant = [
            Law(float(weight), m @ mean, null.cov + m @ covariance @ m.T)
            for weight, mean, covariance in zip(*task.prior.components(), strict=True)
            if weight > 0
        ]
    for law in (null, *relevant):
        size = max(np.abs(law.mean).max(initial=0.0), np.sqrt(np.diag(law.cov).max(initial=0.0)))
        if not size <= LARGEST_SCORE:
            raise QuadratureError(
                f"scores: found means or deviations of {size:.3g}, expected at most {LARGEST_SCORE:g}"
            )
    bias, values = state.biases_and_values(attention)
    if not np.abs(values).max() <= 1 / NOTHING:
        raise QuadratureError(
            f"v: found a head value of {np.abs(values).max():.3g}, expected at most {1 / NOTHING:g}"
        )
    for law in (null, *relevant):
        law.scale = _scale(law, bias, attention.kernel)
    return null, relevant


def _scale(law: Law, bias: Array, kernel: Kernels) -> float:
    """How fast the weight of any head varies within reach, compared with exp(chi).

    The k-th derivative of ``exp(s chi)`` is s^k times itself; a weight that is narrower somewhere, or
    that has a singularity near the real axis, has larger ones. Where nothing is normalized, derivatives
    are compared with the largest weight.
    """
    if kernel.SLOPE is not None:
        return float(kernel.SLOPE)
    sigma = np.sqrt(np.diag(law.cov))[:, None]
    scores = law.mean[:, None] + sigma * np.linspace(-PROBED, PROBED, PROBES)
    rate, unit = 1.0, 1.0
    for probe in range(ROUNDS):
        value, *derivatives = weight_of(kernel, scores, bias[:, None], 4)
        if kernel.NORMALIZATION == "none" and probe == 0:
            # A weight that is nothing within reach is compared with its own slopes, or not at all.
            sizes = np.abs(np.array([value, *derivatives])).reshape(5, -1).max(axis=1)
            if sizes.max() < NOTHING:
                return 1.0
            unit = float(sizes[0] if sizes[0] > NOTHING else sizes.max())
        for k, x in enumerate(derivatives, 1):
            rate = max(rate, float((np.abs(x).max() / unit) ** (1 / k)))
        largest = np.abs(np.diff(value, axis=1)).argmax(axis=1)[:, None]
        first = np.take_along_axis(scores, largest, axis=1)
        last = np.take_along_axis(scores, largest + 1, axis=1)
        scores = first + (last - first) * np.linspace(0, 1, 33)
    return rate


def weight_of(kernel: Kernels, scores: Array, bias: Array, order: int = 2) -> tuple[Array, ...]:
    """Return a score weight (normalized: its log) and its derivatives.

    Of order 2: two in the score and one in the bias; of order 4: four in the score.

    Raises
    ------
    QuadratureError
        If the weight is not finite, or a normalized one not positive.
    """
    with np.errstate(all="ignore"):
        functions = kernel.weight_functions_2 if order == 2 else kernel.weight_functions_4
        found: tuple[Array, ...] = functions(scores, bias)
    value, *ratios = found
    bad = np.isnan(value) | (value == np.inf)
    if kernel.NORMALIZATION == "none":
        bad |= value == -np.inf
    else:
        # A weight that underflows to zero has no ratios, and none are needed.
        zero = value == -np.inf
        if zero.any():
            ratios = [np.where(zero, 0.0, x) for x in ratios]
    for x in ratios:
        bad = bad | ~np.isfinite(x)
    if bad.any():
        at = np.broadcast_to(scores, bad.shape)[bad][0]
        kind = "finite" if kernel.NORMALIZATION == "none" else "positive and finite"
        raise QuadratureError(
            f"activation: found a weight that is not {kind}, or not smooth, at chi = {at:.6g}"
        )
    return (value, *ratios)
