"""One sample: attention weights from scores, and what the sample's loss feels at each score.

Shapes: scores (..., H, L), weights over tokens (..., L), biases (H,). Weights come from log weights by
a shifted softmax, so scores of +-800 are as good as any.
"""

from types import ModuleType

import numpy as np

from numeric._generated import ACTIVATIONS
from numeric.quadrature import Array


def attention_weights(chi: Array, b: Array | None, activation: str) -> tuple[Array, Array]:
    """Return each score's share and the attention weight of each token.

    Parameters
    ----------
    chi : (..., H, L) array
        Scores.
    b : (H,) or (..., H) array or None
        Head biases.
    activation : str

    Returns
    -------
    p : (..., H, L) array
        Share ``w_hl / Z``: Z sums over tokens, and over heads too when weights are pooled.
    a : (..., L) array
        Attention weights ``a_l = sum_h v_h p_hl``.

    Notes
    -----
    `derive.task` section 2.
    """
    kernel = ACTIVATIONS[activation]
    log_weight = kernel.log_weight(chi, _bias(b, chi))[0]
    over = (-1,) if kernel.NORMALIZATION == "per-head" else (-2, -1)
    p = np.exp(log_weight - log_weight.max(axis=over, keepdims=True))
    p /= p.sum(axis=over, keepdims=True)
    return p, head_value(kernel, chi.shape[-2]) * p.sum(axis=-2)


def score_gradient(
    chi: Array, b: Array | None, p: Array, slope: Array, activation: str
) -> tuple[Array, Array]:
    """Return a sample's loss derivatives in its scores and in the biases.

    Parameters
    ----------
    chi, b, p
        As in `attention_weights`.
    slope : (..., L) array
        ``d(loss)/d a_l``.

    Returns
    -------
    c : (..., H, L) array
        ``d(loss)/d chi_hl`` (`derive.task` section 3).
    in_b : (..., H) array
        ``d(loss)/d b_h``.
    """
    kernel = ACTIVATIONS[activation]
    over = (-1,) if kernel.NORMALIZATION == "per-head" else (-2, -1)
    # Slopes are taken from the likeliest token's: of its own share, nearly one, no digits are lost.
    weight = p if len(over) == 1 else p.sum(axis=-2, keepdims=True)
    likeliest = weight.argmax(axis=-1)[..., None]
    slope = slope[..., None, :]
    slope = slope - np.take_along_axis(slope, likeliest, axis=-1)
    mean_slope = (p * slope).sum(axis=over, keepdims=True)
    value = head_value(kernel, chi.shape[-2])
    c, in_b = kernel.score_gradient(chi, _bias(b, chi), p, slope, mean_slope, value)
    return c, in_b.sum(axis=-1)


def head_value(kernel: ModuleType, heads: int) -> float:
    """Return v_h: 1/H for separately normalized heads, 1 for pooled weights."""
    return 1 / heads if kernel.NORMALIZATION == "per-head" else 1.0


def _bias(b: Array | None, chi: Array) -> Array:
    return np.zeros(chi.shape[-2])[:, None] if b is None else b[..., None]
