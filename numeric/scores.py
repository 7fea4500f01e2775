"""One sample: attention weights from scores, and what the sample's loss feels at each score.

Shapes: scores (..., H, L), weights over tokens (..., L), biases and values (..., H). Weights come from
log weights by a shifted softmax, so scores of +-800 are as good as any.
"""

import numpy as np

from numeric.activation import Kernels
from numeric.quadrature import Array

Over = tuple[int, ...]


def attention_weights(
    chi: Array, b: Array | None, v: Array | float, kernel: Kernels
) -> tuple[Array, Array]:
    """Return each score's share and the attention weight of each token.

    Parameters
    ----------
    chi : (..., H, L) array
        Scores.
    b : (H,) or (..., H) array or None
        Head biases.
    v : float or (..., H) array
        Head values; not used by pooled weights.
    kernel : Kernels
        The activation.

    Returns
    -------
    p : (..., H, L) array
        Share ``w_hl / Z``: Z sums over tokens, over heads too when weights are pooled, and the
        background; the weight ``w_hl`` itself where nothing is normalized.
    a : (..., L) array
        Attention weights ``a_l = sum_h v_h p_hl``.

    Notes
    -----
    `derive.task` section 2.
    """
    p = kernel.weight_functions_2(chi, _column(b, chi))[0]
    if kernel.NORMALIZATION != "none":
        largest, total = _partition(p, kernel)
        p = np.exp(p - largest) / total
    return p, (_values(v, kernel) * p).sum(axis=-2)


def attention_slope(error: Array, x: Array, target: str, dimension: int) -> Array:
    """Return a sample's loss derivatives in its attention weights.

    Parameters
    ----------
    error : (..., L) array
        ``e = a - e_eps``.
    x : (..., L, n) array
        The tokens, in all coordinates along which ``X^T e`` does not vanish.
    target : {"token", "location"}
        See `numeric.run_sgd`.
    dimension : int
        Token dimension D.

    Returns
    -------
    (..., L) array
        ``(2/D) X X^T e``, or ``2 e``.
    """
    if target == "location":
        return 2 * error
    # X (X^T e) is cheaper than the Gram matrix X X^T of more than two tokens.
    slope: Array = (x @ (error[..., None, :] @ x).mT)[..., 0]
    slope *= 2 / dimension
    return slope


def score_gradient(
    chi: Array, b: Array | None, v: Array | float, p: Array, slope: Array, kernel: Kernels
) -> tuple[Array, Array, Array]:
    """Return a sample's loss derivatives in its scores, in the biases and in the values.

    Parameters
    ----------
    chi, b, v, p, kernel
        As in `attention_weights`.
    slope : (..., L) array
        ``d(loss)/d a_l``.

    Returns
    -------
    c : (..., H, L) array
        ``d(loss)/d chi_hl`` (`derive.task` section 3).
    in_b, in_v : (..., H) arrays
        ``d(loss)/d b_h`` and ``d(loss)/d v_h`` (of no meaning for pooled weights).
    """
    gamma = slope[..., None, :]
    in_v = (p * gamma).sum(axis=-1)
    mean_slope: Array | float = 0.0
    if kernel.NORMALIZATION != "none":
        over = _over(kernel)
        # Slopes are taken from the likeliest token's: of its own share, nearly one, no digits are lost.
        weight = p if len(over) == 1 else p.sum(axis=-2, keepdims=True)
        shift = np.take_along_axis(gamma, weight.argmax(axis=-1)[..., None], axis=-1)
        gamma = gamma - shift
        mean_slope = (p * gamma).sum(axis=over, keepdims=True)
        if kernel.BACKGROUND:
            log_weight = kernel.weight_functions_2(chi, _column(b, chi))[0]
            largest, total = _partition(log_weight, kernel)
            mean_slope = mean_slope - shift * np.exp(np.log(kernel.BACKGROUND) - largest) / total
    c, in_b = kernel.score_gradient(chi, _column(b, chi), p, gamma, mean_slope, _values(v, kernel))
    return c, in_b.sum(axis=-1), in_v


def _over(kernel: Kernels) -> Over:
    """Axes of the scores that one denominator sums."""
    return (-1,) if kernel.NORMALIZATION == "per-head" else (-2, -1)


def _partition(log_weight: Array, kernel: Kernels) -> tuple[Array, Array]:
    """Largest log weight of each denominator, and the denominator relative to it."""
    over, background = _over(kernel), kernel.BACKGROUND
    largest = log_weight.max(axis=over, keepdims=True)
    if background:
        largest = np.maximum(largest, np.log(background))
    total = np.exp(log_weight - largest).sum(axis=over, keepdims=True)
    if background:
        total = total + np.exp(np.log(background) - largest)
    return largest, total


def _values(v: Array | float, kernel: Kernels) -> Array | float:
    return 1.0 if kernel.NORMALIZATION == "pooled" else np.asarray(v, dtype=float)[..., None]


def _column(b: Array | None, chi: Array) -> Array:
    return np.zeros(chi.shape[-2])[:, None] if b is None else b[..., None]
