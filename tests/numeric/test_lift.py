"""Spectra of keys in D dimensions against sampled Hessians, with biases and values, and their parts.

The sampled Hessian is that of ``sum_l (1{l = eps} - a_l)^2`` in the keys K (H, D). By Weyl
its eigenvalues are off by no more than the norm of its error, which the difference of two independent
halves measures.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from numeric.errors import InputError
from numeric.hessian import Coordinates, factor, factor_hessian
from numeric.loss import evaluate
from numeric.origin import at_rest
from numeric.prior import DiscretePrior, GaussianPrior, isotropic
from numeric.quadrature import gaussian_rule, product_rule, product_size
from numeric.spectrum import Spectrum, hessian_spectrum
from numeric.task import Attention, State, Task
from tests.numeric.oracle import LAYERS, attention, gradient, sample_loss

TOKENS, HEADS = 3, 2
SOFTMAX, TASK = Attention("softmax", HEADS), Task(TOKENS, isotropic(1, 2.0))
M = np.array([[1.0], [-0.6]])
RHO = {1: np.array([[0.7], [0.5]]), 2: np.array([[0.7, 0.0], [0.3, 0.6]])}
BLOCKS = 8


def expanded(spectrum: Spectrum) -> np.ndarray:
    return np.sort(np.repeat(spectrum.eigenvalues, spectrum.multiplicities))


def curvatures(chi: np.ndarray) -> np.ndarray:
    """Second derivatives (N, H, L, H, L) of the sample loss in the scores (N, H, L), by hand."""
    p = np.exp(chi - chi.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    left = -p.mean(axis=1)
    left[:, 0] += 1.0  # what the attention misses
    spread = p[..., None] * (np.eye(TOKENS) - p[..., None, :])  # dp_i / dchi_j
    result = np.einsum("nhia,nkib->nhakb", spread, spread) * (2 / HEADS**2)
    gain = left[:, None] - np.einsum("ni,nhi->nh", left, p)[..., None]
    along = np.einsum("ni,nhia->nha", left, spread)
    bent = gain[..., None] * spread - p[..., None] * along[..., None, :]
    for h in range(HEADS):
        result[:, h, :, h] -= 2 / HEADS * bent[:, h]
    return result


def test_curvatures_are_those_of_the_sample_loss() -> None:
    chi = np.random.default_rng(0).normal(size=(4, HEADS, TOKENS))

    def slopes(x: np.ndarray) -> np.ndarray:
        """Imaginary steps: (N, H, L)."""
        rows = []
        for index in np.ndindex(HEADS, TOKENS):
            moved = x.astype(complex)
            moved[(slice(None), *index)] += 1e-30j
            rows.append(sample_loss(attention(LAYERS["softmax"], moved)).imag / 1e-30)
        return np.array(rows).T.reshape(x.shape)

    for n in range(len(chi)):
        found = gradient(lambda x: slopes(x[None])[0], chi[n], 0.02)
        assert np.abs(found - curvatures(chi[n : n + 1])[0]).max() < 1e-9


class Sampled(NamedTuple):
    """Hessians (B, HD, HD) of independent blocks of samples, and what the keys and features span."""

    blocks: np.ndarray
    frame: np.ndarray


@cache
def sampled(rank: int, dimension: int, samples: int) -> Sampled:
    """Keys in a random frame: feature, rho, and nothing else."""
    rng = np.random.default_rng((7, rank, dimension))
    frame = np.linalg.qr(rng.normal(size=(dimension, 1 + rank)))[0]
    keys = np.concatenate([M, RHO[rank]], axis=1) @ frame.T
    size = 20_000 if dimension < 100 else 5_000
    rounds = samples // (BLOCKS * size)
    blocks = np.zeros((BLOCKS, HEADS, dimension, HEADS, dimension))
    for block in blocks:
        for _ in range(rounds):
            x = rng.standard_normal((TOKENS, size, dimension))
            x[0] += np.sqrt(2.0) * rng.standard_normal((size, 1)) * frame[:, 0]
            c = curvatures(np.einsum("lnd,hd->nhl", x, keys, optimize=True))
            for h in range(HEADS):
                for k in range(h + 1):
                    for one in range(TOKENS):
                        right = sum(c[:, h, one, k, two, None] * x[two] for two in range(TOKENS))
                        block[h, :, k] += x[one].T @ right
        block[0, :, 1] = block[1, :, 0].T
        block /= rounds * size
    return Sampled(blocks.reshape(BLOCKS, HEADS * dimension, -1), frame)


def check_lifted(rank: int, dimension: int, samples: int, sharp: float) -> None:
    state = State(M, RHO[rank] @ RHO[rank].T)
    spectrum = hessian_spectrum(TASK, SOFTMAX, state)
    assert spectrum.spanned == 1 + rank
    lifted = spectrum.lifted(dimension)
    blocks, frame = sampled(rank, dimension, samples)
    mean = blocks.mean(axis=0)
    mean = (mean + mean.T) / 2
    halves = (blocks[::2].mean(axis=0) - blocks[1::2].mean(axis=0)) / 2
    noise = float(np.linalg.norm((halves + halves.T) / 2, 2))
    values, vectors = np.linalg.eigh(mean)
    expected = expanded(lifted)
    assert len(values) == len(expected) == HEADS * dimension
    # Eigenvalue by eigenvalue: multiplicities are right where sectors are further apart than that.
    apart = np.abs(values - expected)
    assert apart.max() <= 1.5 * noise
    assert noise < sharp * np.abs(expected).max()
    bulk = lifted.eigenvalues[lifted.residual]
    counts = lifted.multiplicities[lifted.residual]
    assert (counts == dimension - 1 - rank).all()
    assert len(bulk) == HEADS
    # Along the other dimensions, whose average keeps little noise: 2 dE/dr.
    rest = (np.eye(dimension) - frame @ frame.T) / (dimension - 1 - rank)
    parts = np.tensordot(
        blocks.reshape(BLOCKS, HEADS, dimension, HEADS, -1), rest, ((2, 4), (0, 1))
    )
    deviation = float(np.linalg.norm(parts.std(axis=0, ddof=1))) / np.sqrt(BLOCKS)
    outside = np.linalg.eigvalsh(parts.mean(axis=0))
    assert np.abs(outside - np.sort(bulk)).max() < 5 * deviation
    assert 5 * deviation < 0.02 * bulk.max()
    # Outliers: the error along an eigenvector from independent blocks, and at second order.
    for i in np.flatnonzero(np.abs(expected[:, None] - bulk).min(axis=1) > 4 * noise):
        gaps = np.abs(np.delete(expected, i) - expected[i])
        if gaps.min() < 4 * noise:
            continue
        parts = np.einsum("i,bij,j->b", vectors[:, i], blocks, vectors[:, i])
        deviation = parts.std(ddof=1) / np.sqrt(BLOCKS)
        assert apart[i] < 5 * deviation + 2 * noise**2 / gaps.min(), lifted.sectors


@pytest.mark.parametrize("rank", [1, 2])
def test_keys_in_forty_dimensions(rank: int) -> None:
    check_lifted(rank, 40, 320_000, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1, 2])
def test_keys_in_two_hundred_dimensions(rank: int) -> None:
    check_lifted(rank, 200, 800_000, 0.05)


def test_lifting_counts_dimensions() -> None:
    spectrum = hessian_spectrum(TASK, SOFTMAX, State(M, RHO[2] @ RHO[2].T))
    assert spectrum.residual.sum() == HEADS
    for dimension in (3, 4, 1000):
        lifted = spectrum.lifted(dimension)
        assert lifted.multiplicities.sum() == HEADS * dimension
        assert lifted.spanned == dimension
        assert len(lifted.sectors) == len(lifted.eigenvalues) == len(lifted.errors)
    for bad in (2, 0, 3.5):
        with pytest.raises(InputError, match=r"^dimension: .* >= 3"):
            spectrum.lifted(bad)  # type: ignore[arg-type]


def test_index_counts_what_is_beyond_its_error() -> None:
    names = ("mean, feature 1", "difference, residual", "mean, residual", "difference, feature 1")
    spectrum = Spectrum(
        "state", np.array([-2.0, -1.0, -0.1, 3.0]), np.array([1, 3, 2, 5]), names,
        np.array([0.5, 0.5, 0.5, 0.5]), 4,
    )  # fmt: skip
    assert spectrum.unstable.tolist() == [True, True, False, False]
    assert spectrum.residual.tolist() == [False, True, True, False]
    assert spectrum.index == 4
    assert spectrum.lifted(14).index == 31
    assert spectrum.lifted(4).index == 1
    origin = hessian_spectrum(Task(5, isotropic(2, 2.0)), Attention("softmax", 3))
    assert origin.index == 2 * 2


NAMES = ("softmax-v", "softmax-1", "b-softmax", "linear", "erf")
SKEW = Task(4, DiscretePrior([[1.5], [-0.5]], [0.4, 0.6]))


def mixed(name: str, rank: int) -> tuple[State, Attention]:
    given = {"b": np.array([0.3, -0.4]), "v": np.array([0.6, 0.2])}
    trained = {key: given[key] for key in LAYERS[name].trained}
    rho = np.array([[0.4], [-0.3]])[:, :rank]
    return State([[0.4], [-0.3]], rho @ rho.T, **trained), Attention(name, 2)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_biases_and_values_are_coordinates(name: str, rank: int) -> None:
    """Against differences of the gradient in every coordinate."""
    state, layer = mixed(name, rank)
    found = factor_hessian(state, SKEW, layer, trained=True)
    rho, end, names = factor(state.r), 1 + rank, LAYERS[name].trained

    def slopes(x: np.ndarray) -> np.ndarray:
        r = x[:, 1:end] @ x[:, 1:end].T
        others = {key: x[:, end + i] for i, key in enumerate(names)}
        now = evaluate(State(x[:, :1], (r + r.T) / 2, **others), SKEW, layer, 11.0, 600_000)
        columns = [getattr(now, key)[:, None] for key in names]
        return np.concatenate([now.m, 2 * now.r @ x[:, 1:end], *columns], axis=1)

    trained = [getattr(state, key)[:, None] for key in names]
    x = np.concatenate([state.m, rho, *trained], axis=1)
    expected = gradient(slopes, x, 0.03).reshape(x.size, x.size)
    size = max(1.0, np.abs(expected).max())
    deviation = np.linalg.norm(found.matrix - expected, 2)
    assert deviation <= found.error + 1e-8 * size
    coordinates = Coordinates(state, SKEW, layer, layer.parameters)
    assert np.abs(coordinates.x - x).max() < 1e-14
    assert np.abs(coordinates.gradient(x) - slopes(x)).max() < 1e-9
    back = coordinates.at(x)
    assert np.abs(back.r - state.r).max() < 1e-14
    spectrum = hessian_spectrum(SKEW, layer, state, trained=True)
    assert spectrum.multiplicities.sum() == 2 * (1 + rank + len(names)) + 2
    values = np.sort([*np.linalg.eigvalsh(expected), *np.linalg.eigvalsh(found.bulk)])
    assert np.abs(expanded(spectrum) - values).max() <= 2 * spectrum.errors.max() + 1e-7 * size
    held = factor_hessian(state, SKEW, layer).matrix.reshape(2, end, 2, end)
    free = found.matrix.reshape(2, x.shape[1], 2, x.shape[1])[:, :end, :, :end]
    assert np.abs(held - free).max() <= 2 * found.error


@pytest.mark.parametrize("name", ["softmax", *NAMES])
def test_alike_heads_take_the_short_way(name: str) -> None:
    """Two blocks where heads are alike, against heads that differ by next to nothing."""
    task, layer = Task(4, GaussianPrior([0.5], [[1.0]])), Attention(name, 3)
    zero = at_rest(State(np.zeros((3, 1)), np.zeros((3, 3))), task, layer)
    state = replace(zero, m=np.full((3, 1), 0.4))
    near = replace(state, m=state.m + 1e-12 * np.eye(3)[:, :1])
    one, two = (hessian_spectrum(task, layer, x, trained=True) for x in (state, near))
    apart = np.abs(expanded(one) - expanded(two)).max()
    assert apart <= one.errors.max() + two.errors.max() + 1e-7
    assert one.multiplicities.sum() == two.multiplicities.sum() == 3 * (2 + len(layer.parameters))
    assert {x.split(",")[0] for x in one.sectors} == {"mean", "difference"}


def test_products_of_more_axes_than_arrays_may_have() -> None:
    one, few = gaussian_rule(0.0, 6.0), gaussian_rule(0.5, 3.0)
    rules = [few if axis in (3, 39) else one for axis in range(40)]
    points, weights = product_rule(rules)
    assert points.shape == (product_size(rules), 40) == (len(few[0]) ** 2, 40)
    assert weights.sum() == pytest.approx(1.0, abs=1e-14)
    moments = (points.T * weights) @ points
    assert not np.delete(points, [3, 39], axis=1).any()
    expected = np.zeros((40, 40))
    expected[[3, 39], [3, 39]] = 1.0
    assert moments == pytest.approx(expected, abs=1e-4)
