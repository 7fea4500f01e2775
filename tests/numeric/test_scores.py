"""One sample's attention weights and score gradients against 40-digit arithmetic and differences."""

import mpmath as mp
import numpy as np
import pytest

from numeric.scores import attention_weights, score_gradient

ACTIVATIONS = ("softmax", "b-softmax")
# Rows are heads, columns tokens; token 0 is the relevant one.
EXTREMES = {
    "moderate": [[0.3, -1.2, 2.0], [1.0, 0.0, -0.5]],
    "high": [[800.0, 799.0, -800.0], [0.0, 800.0, 1.0]],
    "low": [[-800.0, -801.0, -802.0], [-800.0, -799.5, -800.0]],
    "far apart": [[800.0, -800.0, 0.0], [-800.0, 800.0, 0.0]],
    "gap of 40, relevant": [[40.0, 0.0, -1.0], [40.0, 0.5, 0.0]],
    "gap of 40, irrelevant": [[0.0, 40.0, -1.0], [0.5, 40.0, 0.0]],
    "equal": [[5.0, 5.0, 5.0], [-5.0, -5.0, -5.0]],
}
BIAS = np.array([0.7, -30.0])


def exact(
    chi: np.ndarray, b: np.ndarray | None, activation: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Shares p, weights a, gradients c and in_b of ``sum_l (a_l - 1{l=0})^2``, at 1,600 digits.

    The digits cover what is lost when weights of exp(-1600) are subtracted.
    """
    heads, tokens = chi.shape
    with mp.workdps(1600):
        w = [
            [
                mp.exp(mp.mpf(chi[h, k]) + (mp.mpf(b[h]) if b is not None else 0))
                for k in range(tokens)
            ]
            for h in range(heads)
        ]
        everything = mp.fsum(x for row in w for x in row)
        if activation == "softmax":
            p = [[x / mp.fsum(row) for x in row] for row in w]
            value = mp.mpf(1) / heads
        else:
            p = [[x / everything for x in row] for row in w]
            value = mp.mpf(1)
        a = [value * mp.fsum(p[h][k] for h in range(heads)) for k in range(tokens)]
        g = [2 * (a[k] - (k == 0)) for k in range(tokens)]
        pooled = mp.fsum(a[k] * g[k] for k in range(tokens))
        c = []
        for h in range(heads):
            # d a_l / d chi_hk = v p_hk (1{k=l} - p_hl) for one head, p_hk (1{k=l} - a_l) pooled.
            own = mp.fsum(p[h][k] * g[k] for k in range(tokens))
            mean = own if activation == "softmax" else pooled
            c.append([value * p[h][k] * (g[k] - mean) for k in range(tokens)])
        in_b = [mp.fsum(row) if activation == "b-softmax" else mp.mpf(0) for row in c]
        as_floats = [np.array([[float(x) for x in row] for row in table]) for table in (p, c)]
    return (
        as_floats[0],
        np.array([float(x) for x in a]),
        as_floats[1],
        np.array([float(x) for x in in_b]),
    )


def computed(
    chi: np.ndarray, b: np.ndarray | None, activation: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    p, a = attention_weights(chi, b, activation)
    slope = 2 * a
    slope[..., 0] -= 2
    return p, a, *score_gradient(chi, b, p, slope, activation)


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_extreme_scores_against_exact_arithmetic(activation: str, name: str) -> None:
    chi = np.array(EXTREMES[name])
    for b in (None, BIAS) if activation == "b-softmax" else (None,):
        with np.errstate(all="raise", under="ignore"):
            found = computed(chi, b, activation)
        for value, expected in zip(found, exact(chi, b, activation), strict=True):
            assert np.isfinite(value).all()
            assert np.abs(value - expected).max() < 1e-12


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_small_shares_keep_their_digits(activation: str, name: str) -> None:
    chi = np.array(EXTREMES[name])
    p, a, _, _ = computed(chi, None, activation)
    expected, weight, _, _ = exact(chi, None, activation)
    for value, truth in ((p, expected), (a, weight)):
        kept = truth > 1e-300
        assert np.abs(value[kept] / truth[kept] - 1).max() < 1e-12


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_keep_their_digits_at_a_gap_of_40(activation: str) -> None:
    """The irrelevant winner's gradient is minus the others' sum, 8e-18: small, but not zero."""
    chi = np.array([[0.0, 40.0, -1.0]])
    _, _, c, _ = computed(chi, None, activation)
    _, _, expected, _ = exact(chi, None, activation)
    assert np.abs(c / expected - 1).max() < 1e-12


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 4), (3, 5), (6, 2, 3, 5)])
def test_sums(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    chi = 3 * rng.normal(size=shape)
    p, a = attention_weights(chi, None, "softmax")
    assert p.shape == shape
    assert a.shape == (*shape[:-2], shape[-1])
    assert np.abs(p.sum(axis=-1) - 1).max() < 1e-14
    assert np.abs(a.sum(axis=-1) - 1).max() < 1e-14
    b = rng.normal(size=shape[-2])
    p, a = attention_weights(chi, b, "b-softmax")
    assert np.abs(p.sum(axis=(-2, -1)) - 1).max() < 1e-14
    assert np.abs(a.sum(axis=-1) - 1).max() < 1e-14
    assert np.abs(p.sum(axis=-2) - a).max() < 1e-14


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradient_sums(activation: str) -> None:
    """A shift of all of a head's scores moves nothing (softmax), or what its bias moves (pooled)."""
    rng = np.random.default_rng(2)
    chi = rng.normal(size=(10, 3, 5))
    b = rng.normal(size=3) if activation == "b-softmax" else None
    _, _, c, in_b = computed(chi, b, activation)
    assert in_b.shape == (10, 3)
    if activation == "softmax":
        assert np.abs(c.sum(axis=-1)).max() < 1e-15
        assert not in_b.any()
    else:
        assert np.abs(c.sum(axis=-1) - in_b).max() < 1e-15
        assert np.abs(c.sum(axis=(-2, -1))).max() < 1e-15


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradient_against_central_differences(activation: str) -> None:
    rng = np.random.default_rng(3)
    chi = 1.5 * rng.normal(size=(3, 4))
    b = rng.normal(size=3)

    def loss(chi: np.ndarray, b: np.ndarray) -> float:
        w = np.exp(chi + b[:, None]) if activation == "b-softmax" else np.exp(chi)
        a = (w / w.sum(axis=1, keepdims=True)).mean(axis=0)
        if activation == "b-softmax":
            a = w.sum(axis=0) / w.sum()
        return float(((a - np.eye(4)[0]) ** 2).sum())

    _, _, c, in_b = computed(chi, b if activation == "b-softmax" else None, activation)
    h = 1e-3
    for index in np.ndindex(chi.shape):
        step = np.zeros_like(chi)
        step[index] = h
        expected = (
            8 * (loss(chi + step, b) - loss(chi - step, b))
            - (loss(chi + 2 * step, b) - loss(chi - 2 * step, b))
        ) / (12 * h)
        assert c[index] == pytest.approx(expected, abs=1e-11)
    for k in range(3):
        step = h * np.eye(3)[k]
        expected = (
            8 * (loss(chi, b + step) - loss(chi, b - step))
            - (loss(chi, b + 2 * step) - loss(chi, b - 2 * step))
        ) / (12 * h)
        assert in_b[k] == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_permutations(activation: str) -> None:
    rng = np.random.default_rng(4)
    chi = rng.normal(size=(7, 3, 5))
    b = rng.normal(size=3) if activation == "b-softmax" else None
    p, a, c, in_b = computed(chi, b, activation)
    heads = [1, 2, 0]
    moved = computed(chi[:, heads], None if b is None else b[heads], activation)
    for value, expected in zip(moved, (p[:, heads], a, c[:, heads], in_b[:, heads]), strict=True):
        assert value == pytest.approx(expected, abs=1e-15)
    tokens = [0, 3, 1, 4, 2]
    moved = computed(chi[..., tokens], b, activation)
    for value, expected in zip(
        moved, (p[..., tokens], a[:, tokens], c[..., tokens], in_b), strict=True
    ):
        assert value == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_biases_of_a_batch(activation: str) -> None:
    """Each sample may have its own biases; those that are not trained change nothing."""
    rng = np.random.default_rng(5)
    chi, b = rng.normal(size=(6, 3, 5)), rng.normal(size=(6, 3))
    together = computed(chi, b, activation)
    for i in range(6):
        alone = computed(chi[i], b[i], activation)
        for one, all_ in zip(alone, together, strict=True):
            assert one == pytest.approx(all_[i], abs=1e-15)
        if activation == "softmax":
            plain = computed(chi[i], None, activation)
            assert plain[1] == pytest.approx(alone[1], abs=1e-15)
