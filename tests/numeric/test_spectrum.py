"""Hessian spectra against quadratic forms written by hand and against Hessians of the loss's values."""

from dataclasses import replace

import numpy as np
import pytest

from numeric.errors import InputError
from numeric.loss import evaluate
from numeric.origin import at_rest
from numeric.prior import DiscretePrior, GaussianPrior, Prior, flipped_spike, isotropic
from numeric.spectrum import Spectrum, feature_axes, hessian_spectrum
from numeric.task import Attention, State, Task
from tests.numeric.oracle import LAYERS, NAMES

ACTIVATIONS = ("softmax", "b-softmax")
RACED = [name for name in NAMES if LAYERS[name].normalization != "none"]
PRIORS = {
    "two features": GaussianPrior([0.0, 0.0], [[4.0, 0.0], [0.0, 2.0]]),
    "correlated": GaussianPrior([0.0, 0.0], [[2.0, 0.9], [0.9, 1.0]]),
    "mean signal": GaussianPrior([1.0, -0.5], [[1.0, 0.2], [0.2, 0.5]]),
    "spikes": flipped_spike([[1.5, 0.0], [0.3, 1.0]]),
    "no features": isotropic(0, 1.0),
}


def expanded(spectrum: Spectrum) -> np.ndarray:
    return np.sort(np.repeat(spectrum.eigenvalues, spectrum.multiplicities))


def origin_hessian(activation: str, heads: int, tokens: int, moment: np.ndarray) -> np.ndarray:
    """Hessian in m of the expansion at the origin, features varying fastest; a residual dimension
    is a feature of second moment zero.

    Softmax: derive.task section 5. Pooled: its log weight is, to second order, the mean score plus
    half of the scores' variance over heads, which enters like a score: minus (1/H) sum_h d_h^T M d_h.
    """
    mean = np.full((heads, heads), 1 / heads**2)
    difference = np.eye(heads) / heads - mean
    unit = np.eye(len(moment))
    form = np.kron(mean, unit + moment / tokens)
    if activation == "softmax":
        form -= (1 - 2 / tokens) * np.kron(np.eye(heads) / heads, moment)
    else:
        form -= (1 - 2 / tokens) * np.kron(mean, moment) + np.kron(difference, moment)
    return 2 * form * (1 - 1 / tokens) / tokens


def origin_eigenvalues(task: Task, attention: Attention) -> np.ndarray:
    parts = [
        np.linalg.eigvalsh(
            origin_hessian(attention.activation, attention.heads, task.tokens, moment)
        )
        for moment in (task.prior.second_moment, np.zeros((1, 1)))
    ]
    return np.sort(np.concatenate(parts))


def zero(heads: int, features: int) -> State:
    return State(np.zeros((heads, features)), np.zeros((heads, heads)))


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize(("heads", "tokens"), [(1, 2), (2, 3), (4, 5), (3, 10**6)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_closed_form_at_the_origin(activation: str, heads: int, tokens: int, name: str) -> None:
    task, attention = Task(tokens, PRIORS[name]), Attention(activation, heads)
    spectrum = hessian_spectrum(task, attention)
    expected = origin_eigenvalues(task, attention)
    assert np.abs(expanded(spectrum) - expected).max() < 1e-13
    assert spectrum.point == "origin"
    assert (spectrum.errors <= 2e-15 * np.abs(spectrum.eigenvalues).max()).all()
    assert (np.diff(spectrum.eigenvalues) >= 0).all()
    assert (spectrum.growth_rates == -spectrum.eigenvalues).all()
    differences = [s for s in spectrum.sectors if s.startswith("difference")]
    assert len(differences) == (task.prior.features + 1 if heads > 1 else 0)


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_differentiated_gradient_at_the_origin(activation: str, heads: int, name: str) -> None:
    task, attention = Task(4, PRIORS[name]), Attention(activation, heads)
    spectrum = hessian_spectrum(task, attention, zero(heads, task.prior.features))
    expected = origin_eigenvalues(task, attention)
    assert spectrum.point == "state"
    deviation = np.abs(expanded(spectrum) - expected).max()
    assert deviation < 1e-7
    # The reported error covers it, up to the spread that merging allows.
    assert deviation <= spectrum.errors.max() + 2e-9


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("nu", [10.0, 40.0])
def test_error_is_honest_for_a_strong_signal(nu: float, activation: str) -> None:
    """Where gradients are differenced, the step is then large for the loss's own scale."""
    task, attention = Task(4, isotropic(1, nu)), Attention(activation, 2)
    spectrum = hessian_spectrum(task, attention, zero(2, 1))
    deviation = np.abs(expanded(spectrum) - origin_eigenvalues(task, attention)).max()
    assert deviation <= 1.1 * spectrum.errors.max()
    assert deviation < (1e-8 if activation == "softmax" else 1e-3)


@pytest.mark.parametrize("heads", [1, 3])
def test_linear_attention_bends_along_the_mean_alone(heads: int) -> None:
    """Everywhere: ``2 v_h v_k (L + nu)`` along a feature, ``2 v_h v_k L`` along the residual."""
    task, attention = Task(5, isotropic(2, 3.0)), Attention("linear", heads)
    rng = np.random.default_rng(heads)
    for state in (None, zero(heads, 2), State(rng.normal(size=(heads, 2)), np.eye(heads))):
        spectrum = hessian_spectrum(task, attention, state)
        flat = spectrum.multiplicities[np.abs(spectrum.eigenvalues) < 1e-7].sum()
        residual = 1 if state is None or not state.r.any() else 1 + heads
        assert flat == (heads - 1) * (2 + residual)
        values = expanded(spectrum)[flat:]
        expected = np.array([2 * heads * 5.0] * residual + [2 * heads * 8.0] * 2)
        # Without a state the attention of all five tokens sums to one.
        expected *= (1 / (5 * heads)) ** 2 if state is None else 1.0
        assert values == pytest.approx(expected, rel=1e-9)


def dense_hessian(task: Task, attention: Attention, state: State, rho: np.ndarray) -> np.ndarray:
    """Hessian of the loss's values in (m, rho, one more residual dimension)."""
    heads, features = state.m.shape
    base = np.concatenate([state.m, rho, np.zeros((heads, 1))], axis=1)

    def value(x: np.ndarray) -> float:
        x = x.reshape(base.shape)
        overlap = x[:, features:] @ x[:, features:].T
        moved = replace(state, m=x[:, :features], r=(overlap + overlap.T) / 2)
        return float(evaluate(moved, task, attention, 11.0).value)

    def at(h: float) -> np.ndarray:
        units = h * np.eye(base.size)
        pairs = [
            [
                sum(
                    si * sj * value(base.ravel() + si * units[i] + sj * units[j])
                    for si in (1, -1)
                    for sj in (1, -1)
                )
                / (4 * h * h)
                for j in range(i + 1)
            ]
            for i in range(base.size)
        ]
        lower = np.array([row + [0.0] * (base.size - len(row)) for row in pairs])
        return lower + np.tril(lower, -1).T

    return (4 * at(0.015) - at(0.03)) / 3


@pytest.mark.parametrize(
    ("activation", "rank"),
    [
        ("softmax", 0),
        ("softmax", 1),
        pytest.param("softmax", 2, marks=pytest.mark.slow),
        pytest.param("softmax-1", 1, marks=pytest.mark.slow),
        ("b-softmax", 0),
        ("b-softmax", 1),
        pytest.param("b-softmax", 2, marks=pytest.mark.slow),
        ("linear", 1),
        ("erf", 2),
        pytest.param("softplus", 1, marks=pytest.mark.slow),
    ],
)
def test_any_state_against_the_losses_values(activation: str, rank: int) -> None:
    """Two heads, one feature: 2 + 2 rank coordinates, and 2 for a residual dimension."""
    rng = np.random.default_rng(rank)
    task = Task(4, DiscretePrior([[1.5], [-0.5]], [0.4, 0.6]))
    attention = Attention(activation, 2)
    rho = 0.4 * rng.normal(size=(2, rank))
    trained = {"b": np.array([0.3, -0.4]), "v": np.array([0.6, 0.2])}
    trained = {name: trained[name] for name in attention.parameters}
    state = State(0.4 * rng.normal(size=(2, 1)), rho @ rho.T, **trained)
    spectrum = hessian_spectrum(task, attention, state)
    expected = np.linalg.eigvalsh(dense_hessian(task, attention, state, rho))
    assert spectrum.multiplicities.sum() == 2 + 2 * rank + 2
    assert np.abs(expanded(spectrum) - expected).max() < 1e-6
    assert spectrum.errors.max() < 1e-7
    assert np.isrealobj(spectrum.eigenvalues)


@pytest.mark.parametrize(
    ("name", "heads", "rank"),
    [("two features", 2, 2), ("correlated", 2, 1), ("mean signal", 1, 1), ("no features", 2, 2)],
)
def test_multiplicities_count_all_coordinates(name: str, heads: int, rank: int) -> None:
    rng = np.random.default_rng(8)
    features = PRIORS[name].features
    rho = 0.5 * rng.normal(size=(heads, rank))
    state = State(0.4 * rng.normal(size=(heads, features)), rho @ rho.T)
    spectrum = hessian_spectrum(Task(3, PRIORS[name]), Attention("softmax", heads), state)
    assert spectrum.multiplicities.sum() == heads * (features + rank + 1)
    assert len(spectrum.sectors) == len(spectrum.eigenvalues) == len(spectrum.errors)
    assert (np.diff(spectrum.eigenvalues) >= 0).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_sectors_of_identical_heads(activation: str) -> None:
    """Heads that are alike: every displacement is a mean or a difference."""
    task, attention = Task(5, isotropic(1, 4.0)), Attention(activation, 3)
    state = State(np.full((3, 1), 0.4), np.full((3, 3), 0.2))
    spectrum = hessian_spectrum(task, attention, state)
    heads = [sector.split(",")[0] for sector in spectrum.sectors]
    assert set(heads) == {"mean", "difference"}
    counts = {name: 0 for name in heads}
    for name, count in zip(heads, spectrum.multiplicities, strict=True):
        counts[name] += int(count)
    # A feature, a dimension of rho and the rest: each twice a difference and once a mean.
    assert counts == {"mean": 3, "difference": 6}
    twofold = [
        count for s, count in zip(heads, spectrum.multiplicities, strict=True) if s == "difference"
    ]
    assert all(count % 2 == 0 for count in twofold)


def names(spectrum: Spectrum) -> dict[str, tuple[float, int]]:
    return {
        sector: (round(float(value), 6) + 0.0, int(count))
        for sector, value, count in zip(
            spectrum.sectors, spectrum.eigenvalues, spectrum.multiplicities, strict=True
        )
    }


@pytest.mark.parametrize("name", ["two features", "correlated", "mean signal"])
@pytest.mark.parametrize("activation", RACED)
def test_sectors_at_the_origin(activation: str, name: str) -> None:
    """The closed form's names and values are those of the loss's own derivatives."""
    task, attention = Task(5, PRIORS[name]), Attention(activation, 3)
    derived = names(hessian_spectrum(task, attention))
    assert derived == names(hessian_spectrum(task, attention, at_rest(zero(3, 2), task, attention)))
    assert set(derived) == {
        f"{heads}, {what}"
        for heads in ("mean", "difference")
        for what in ("feature 1", "feature 2", "residual")
    }
    # The first feature has the larger second moment: its differences grow faster.
    assert derived["difference, feature 1"] < derived["difference, feature 2"]


def test_features_are_numbered_as_in_a_diagonal_prior() -> None:
    task = Task(5, GaussianPrior([0.0, 0.0], [[1.0, 0.0], [0.0, 3.0]]))
    moments, axes = feature_axes(task)
    assert moments.tolist() == [1.0, 3.0]
    assert axes.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    found = names(hessian_spectrum(task, Attention("softmax", 2)))
    assert found["difference, feature 2"] < found["difference, feature 1"]
    moments, axes = feature_axes(Task(5, PRIORS["correlated"]))
    assert moments[0] > moments[1]
    moment = PRIORS["correlated"].second_moment
    assert np.abs(axes @ np.diag(moments) @ axes.T - moment).max() < 1e-14


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("prior", [isotropic(2, 2.0), flipped_spike(np.eye(2))])
def test_degenerate_eigenvalues_are_real(prior: Prior, activation: str) -> None:
    task, attention = Task(5, prior), Attention(activation, 3)
    spectrum = hessian_spectrum(task, attention, zero(3, 2))
    assert np.isrealobj(spectrum.eigenvalues)
    assert np.abs(expanded(spectrum) - origin_eigenvalues(task, attention)).max() < 1e-7


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_degenerate_eigenvalues_are_merged(activation: str) -> None:
    """Equal features: the differences' eigenvalue is fourfold, or twice twofold, by symmetry."""
    spectrum = hessian_spectrum(Task(5, isotropic(2, 2.0)), Attention(activation, 3), zero(3, 2))
    counts = [
        int(count)
        for sector, count in zip(spectrum.sectors, spectrum.multiplicities, strict=True)
        if sector.startswith("difference") and not sector.endswith("residual")
    ]
    assert counts in ([4], [2, 2])


def test_bad_states_are_refused() -> None:
    task, attention = Task(3, isotropic(1, 1.0)), Attention("softmax", 2)
    with pytest.raises(InputError, match=r"^state: ") as caught:
        hessian_spectrum(task, attention, State(np.zeros((4, 2, 1)), np.zeros((4, 2, 2))))
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match=r"^m: "):
        hessian_spectrum(task, attention, zero(2, 2))


@pytest.mark.parametrize("activation", ["softmax", "softmax-v", "b-softmax", "softplus"])
def test_one_token_is_flat(activation: str) -> None:
    task, attention = Task(1, isotropic(1, 1.0)), Attention(activation, 2)
    for state in (None, State([[0.4], [0.1]], np.eye(2))):
        assert np.abs(hessian_spectrum(task, attention, state).eigenvalues).max() < 1e-14


def test_features_of_very_different_strength_do_not_hide_each_other() -> None:
    """At the origin each eigenvalue rounds relative to its own feature."""
    strengths = np.array([1e16, 1.0, 1e-12])
    spectrum = hessian_spectrum(
        Task(5, GaussianPrior(np.zeros(3), np.diag(strengths))), Attention("softmax", 4)
    )
    for f, nu in enumerate(strengths, start=1):
        at = spectrum.sectors.index(f"difference, feature {f}")
        assert spectrum.eigenvalues[at] == pytest.approx(-0.048 * nu, rel=1e-12)
        assert 0 < spectrum.errors[at] < 0.1 * nu
