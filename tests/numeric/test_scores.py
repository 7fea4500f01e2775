"""One sample's attention weights and score gradients against exact arithmetic and differences."""

from types import SimpleNamespace
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from numeric._generated import ACTIVATIONS
from numeric.scores import attention_weights, score_gradient
from tests.numeric.oracle import LAYERS, NAMES, attention, sample_loss

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
BIAS, VALUE = np.array([0.7, -30.0]), np.array([0.6, -1.3])
WEIGHT = {
    "softmax": lambda x, b: (mp.exp(x), 1),
    "softmax-v": lambda x, b: (mp.exp(x), 1),
    "softmax-1": lambda x, b: (mp.exp(x + b), 1),
    "b-softmax": lambda x, b: (mp.exp(x + b), 1),
    "linear": lambda x, b: (1 + x, 1),
    # erfc(-x), which mpmath gives to all digits on the left.
    "erf": lambda x, b: (mp.erfc(-x - b), 2 * mp.exp(-((x + b) ** 2)) / mp.sqrt(mp.pi)),
    "softplus": lambda x, b: (
        mp.log1p(mp.exp(x)),
        1 / (1 + mp.exp(-x)) / mp.log1p(mp.exp(x)),
    ),
}


def table(rows: Any) -> np.ndarray:
    return np.array([[float(x) for x in row] for row in rows])


def exact(name: str, chi: np.ndarray, b: np.ndarray, v: np.ndarray) -> SimpleNamespace:
    """Shares p, weights a, and gradients of ``sum_l (a_l - 1{l=0})^2``, at 1,600 digits.

    The digits cover what is lost when weights of exp(-1600) are subtracted. Slopes of a normalized
    weight are relative.
    """
    layer = LAYERS[name]
    heads, tokens = (range(n) for n in chi.shape)
    with mp.workdps(1600):
        both = [[WEIGHT[name](mp.mpf(chi[h, k]), mp.mpf(b[h])) for k in tokens] for h in heads]
        w = [[x for x, _ in row] for row in both]
        background = mp.mpf(layer.background)
        if layer.normalization == "pooled":
            total = [background + mp.fsum(x for row in w for x in row)] * len(heads)
        elif layer.normalization == "per-head":
            total = [background + mp.fsum(row) for row in w]
        else:
            total = [mp.mpf(1)] * len(heads)
        p = [[x / total[h] for x in w[h]] for h in heads]
        value = [mp.mpf(x) for x in v]
        a = [mp.fsum(value[h] * p[h][k] for h in heads) for k in tokens]
        g = [2 * (a[k] - (k == 0)) for k in tokens]
        means = [mp.fsum(p[h][k] * g[k] for k in tokens) for h in heads]
        in_v = list(means)
        if layer.normalization == "pooled":
            means = [mp.fsum(means)] * len(heads)
        c = []
        for h in heads:
            if layer.normalization == "none":
                c.append([value[h] * g[k] * both[h][k][1] for k in tokens])
            else:
                c.append([value[h] * p[h][k] * (g[k] - means[h]) * both[h][k][1] for k in tokens])
        biased = "b" in layer.trained
        in_b = [mp.fsum(row) if biased else mp.mpf(0) for row in c]
        return SimpleNamespace(
            p=table(p), a=table([a])[0], c=table(c), in_b=table([in_b])[0], in_v=table([in_v])[0]
        )


def computed(name: str, chi: np.ndarray, b: Any, v: Any) -> SimpleNamespace:
    kernel = ACTIVATIONS[name]
    p, a = attention_weights(chi, b, v, kernel)
    slope = 2 * a
    slope[..., 0] -= 2
    c, in_b, in_v = score_gradient(chi, b, v, p, slope, kernel)
    return SimpleNamespace(p=p, a=a, c=c, in_b=in_b, in_v=in_v)


def parameters(name: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Biases and values to try: those of a fresh layer, and others where they are trained."""
    layer = LAYERS[name]
    fresh = np.zeros(2), np.full(2, layer.value(2))
    b = BIAS if "b" in layer.trained else fresh[0]
    v = VALUE if "v" in layer.trained else fresh[1]
    return [fresh, (b, v)] if layer.trained else [fresh]


@pytest.mark.parametrize("scores", EXTREMES)
@pytest.mark.parametrize("name", NAMES)
def test_extreme_scores_against_exact_arithmetic(name: str, scores: str) -> None:
    chi = np.array(EXTREMES[scores])
    for b, v in parameters(name):
        with np.errstate(all="raise", under="ignore"):
            found = computed(name, chi, b if "b" in LAYERS[name].trained else None, v)
        expected = exact(name, chi, b, v)
        for key in ("p", "a", "c", "in_b", "in_v"):
            if key == "in_v" and LAYERS[name].normalization == "pooled":
                continue
            value, truth = getattr(found, key), getattr(expected, key)
            assert np.isfinite(value).all()
            assert np.abs(value - truth).max() < 1e-12 * max(1, np.abs(truth).max()), key


@pytest.mark.parametrize("scores", EXTREMES)
@pytest.mark.parametrize("name", [n for n in NAMES if LAYERS[n].normalization != "none"])
def test_small_shares_keep_their_digits(name: str, scores: str) -> None:
    chi = np.array(EXTREMES[scores])
    b, v = parameters(name)[0]
    found, expected = computed(name, chi, b, v), exact(name, chi, b, v)
    for value, truth in ((found.p, expected.p), (found.a, expected.a)):
        kept = truth > 1e-300
        assert np.abs(value[kept] / truth[kept] - 1).max(initial=0) < 1e-12


@pytest.mark.parametrize("gap", [40.0, 120.0])
@pytest.mark.parametrize("name", [n for n in NAMES if LAYERS[n].normalization != "none"])
def test_gradients_keep_their_digits_across_a_gap(name: str, gap: float) -> None:
    """The irrelevant winner's gradient is minus the others' sum: 8e-18 at a gap of 40, not zero."""
    chi, b = np.array([[0.0, gap, gap - 1.0]]), np.zeros(1)
    v = np.full(1, LAYERS[name].value(1))
    found, expected = computed(name, chi, b, v), exact(name, chi, b, v)
    assert np.abs(found.c / expected.c - 1).max() < 1e-11
    assert (found.c != 0).all()


@pytest.mark.parametrize("score", [-800.0, -40.0, -3.0, 40.0, 800.0])
def test_one_token_against_the_background(score: float) -> None:
    """Softmax-1 with one token: a = 1 / (1 + e^-x), and a gradient of 2 (a - 1) a (1 - a)."""
    chi, b, v = np.array([[score]]), np.zeros(1), np.ones(1)
    with np.errstate(all="raise", under="ignore"):
        found = computed("softmax-1", chi, b, v)
    expected = exact("softmax-1", chi, b, v)
    for value, truth in ((found.a, expected.a), (found.c, expected.c), (found.in_b, expected.in_b)):
        assert value.ravel() == pytest.approx(truth.ravel(), rel=1e-12, abs=1e-30)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 4), (3, 5), (6, 2, 3, 5)])
@pytest.mark.parametrize("name", NAMES)
def test_weights_against_their_definition(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    chi, heads = 2 * rng.normal(size=shape), shape[-2]
    layer = LAYERS[name]
    for batch in ((), shape[:-2]):
        b = rng.normal(size=(*batch, heads)) if "b" in layer.trained else None
        v = np.full(heads, layer.value(heads))
        v = rng.normal(size=(*batch, heads)) if "v" in layer.trained else v
        p, a = attention_weights(chi, b, v, ACTIVATIONS[name])
        assert (p.shape, a.shape) == (shape, (*shape[:-2], shape[-1]))
        assert a == pytest.approx(attention(layer, chi, b, v), rel=1e-13, abs=1e-14)
        if layer.normalization != "none" and not layer.background:
            over = (-2, -1) if layer.normalization == "pooled" else -1
            assert np.abs(p.sum(axis=over) - 1).max() < 1e-14


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4)])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_by_imaginary_steps(name: str, shape: tuple[int, ...]) -> None:
    """Of the definition, in every score, bias and value; each sample may have its own."""
    rng = np.random.default_rng(3)
    layer = LAYERS[name]
    parts = {"chi": 1.5 * rng.normal(size=shape)}
    parts |= {key: rng.normal(size=shape[:-1]) for key in layer.trained}

    def loss(moved: dict[str, np.ndarray]) -> np.ndarray:
        return sample_loss(attention(layer, moved["chi"], moved.get("b"), moved.get("v")))

    v = parts.get("v", np.full(3, layer.value(3)))
    found = computed(name, parts["chi"], parts.get("b"), v)
    names = {"chi": found.c, "b": found.in_b, "v": found.in_v}
    for key, values in parts.items():
        for index in np.ndindex(*values.shape):
            moved = {k: x.astype(complex) for k, x in parts.items()}
            moved[key][index] += 1e-30j
            expected = loss(moved).imag.sum() / 1e-30
            assert names[key][index] == pytest.approx(expected, rel=1e-12, abs=1e-14)
    if "b" not in layer.trained:
        assert not found.in_b.any()


@pytest.mark.parametrize("name", NAMES)
def test_gradient_sums(name: str) -> None:
    """A shift of all of a head's scores moves nothing (softmax), or what its bias moves."""
    rng = np.random.default_rng(2)
    layer = LAYERS[name]
    b = rng.normal(size=3) if "b" in layer.trained else None
    found = computed(name, rng.normal(size=(10, 3, 5)), b, np.full(3, layer.value(3)))
    assert found.in_b.shape == found.in_v.shape == (10, 3)
    if name in ("softmax", "softmax-v"):
        assert np.abs(found.c.sum(axis=-1)).max() < 1e-15
    elif "b" in layer.trained:
        assert np.abs(found.c.sum(axis=-1) - found.in_b).max() < 1e-14
    if name == "b-softmax":
        assert np.abs(found.c.sum(axis=(-2, -1))).max() < 1e-15


@pytest.mark.parametrize("name", NAMES)
def test_permutations(name: str) -> None:
    rng = np.random.default_rng(4)
    chi, layer = rng.normal(size=(7, 3, 5)), LAYERS[name]
    b = rng.normal(size=3) if "b" in layer.trained else None
    v = rng.normal(size=3) if "v" in layer.trained else np.full(3, layer.value(3))
    one = computed(name, chi, b, v)
    heads, tokens = [1, 2, 0], [0, 3, 1, 4, 2]
    two = computed(name, chi[:, heads], None if b is None else b[heads], v[heads])
    for key in ("p", "c", "in_b", "in_v"):
        expected = getattr(one, key)[:, heads]
        assert getattr(two, key) == pytest.approx(expected, rel=1e-14, abs=1e-15)
    assert two.a == pytest.approx(one.a, rel=1e-14)
    two = computed(name, chi[..., tokens], b, v)
    for key, expected in (("p", one.p[..., tokens]), ("a", one.a[:, tokens])):
        assert getattr(two, key) == pytest.approx(expected, rel=1e-14)
    assert two.c == pytest.approx(one.c[..., tokens], rel=1e-13, abs=1e-15)
    assert two.in_b == pytest.approx(one.in_b, rel=1e-13, abs=1e-15)


def test_values_may_be_one_number() -> None:
    chi = np.random.default_rng(5).normal(size=(4, 3, 5))
    for name in ("softmax", "softplus"):
        one, many = (computed(name, chi, None, v) for v in (1 / 3, np.full(3, 1 / 3)))
        for key in ("p", "a", "c", "in_v"):
            assert np.array_equal(getattr(one, key), getattr(many, key))
    # Biases that are not trained change nothing.
    plain, biased = (computed("softmax", chi, b, 1 / 3) for b in (None, np.ones((4, 3))))
    assert np.array_equal(plain.a, biased.a) and np.array_equal(plain.c, biased.c)
