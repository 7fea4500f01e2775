"""Reduced SGD against direct SGD, in law; planted errors; the compiled loop against NumPy's.

Seeds are fixed. All two-sample tests together raise a false alarm with probability `FALSE_ALARM`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from scipy.stats import ks_2samp, norm

from numeric import direct, reduced
from numeric.errors import InputError, SimulationError
from numeric.loss import population_loss
from numeric.prior import DiscretePrior, GaussianPrior, Prior, isotropic
from numeric.sgd import SGDRuns, run_sgd
from numeric.task import Attention, State, Task
from numeric.watch import feature_norms
from tests.numeric.oracle import LAYERS, NAMES

FALSE_ALARM = 1e-6
GAUSSIAN = GaussianPrior([0.4, -0.2], [[1.5, 0.3], [0.3, 0.6]])
SPIKES = DiscretePrior([[1.5, 0.0], [0.0, -1.0]], [0.4, 0.6])
OTHERS = {"b": np.array([0.3, -0.5, 0.1]), "v": np.array([0.4, 0.6, 0.2])}
ROOT = np.array([[0.6, 0.0, 0.0], [-0.4, 0.5, 0.0], [0.2, 0.3, 0.4]])
M = np.array([[0.6, -0.2], [0.1, 0.5], [-0.4, 0.3]])


@dataclass(frozen=True)
class Setting:
    """One comparison: the overlap has rank 0, 1 or H."""

    activation: str
    batch: int
    rank: int
    dimension: int
    heads: int = 2
    tokens: int = 4
    kappa: float = 1.0
    tau: float = 1.0
    prior: Prior = GAUSSIAN
    target: str = "token"

    def runs(self, method: str, runs: int, seed: int, **more: Any) -> SGDRuns:
        state, task, layer = self.problem()
        step = self.kappa * self.batch / self.dimension
        times = step * np.unique(np.rint(self.tau * np.array([0.1, 0.5, 1.0]) / step).clip(1))
        return run_sgd(
            state, task, layer, dimension=self.dimension, tau=times, kappa=self.kappa,
            batch=self.batch, runs=runs, seed=seed, target=self.target, method=method, **more,
        )  # fmt: skip

    def problem(self) -> tuple[State, Task, Attention]:
        h = self.heads
        root = ROOT[:h, :h] if self.rank == h else ROOT[:h, : self.rank]
        others = {name: OTHERS[name][:h] for name in LAYERS[self.activation].trained}
        state = State(M[:h], root @ root.T, **others)
        return state, Task(self.tokens, self.prior), Attention(self.activation, h)


# Large kappa and few dimensions: many fluctuations; small kappa: precise means.
SETTINGS = (
    Setting("softmax", 1, 2, 20, tau=2.0),
    Setting("softmax", 16, 1, 40, kappa=0.5),
    Setting("softmax-v", 1, 1, 60, 3, prior=SPIKES),
    Setting("softmax-1", 16, 3, 30, 3, tokens=3),
    Setting("softmax-1", 1, 0, 25, kappa=2.0),
    Setting("b-softmax", 1, 1, 200, 2, tokens=6, kappa=3.0, tau=4.0),
    Setting("b-softmax", 16, 3, 40, 3, prior=SPIKES),
    Setting("linear", 1, 2, 50, kappa=0.2, tau=0.5),
    Setting("linear", 16, 0, 20, kappa=0.1, tau=0.5, target="location"),
    Setting("erf", 16, 1, 25, kappa=0.2, tau=0.5),
    Setting("erf", 1, 2, 100, 2, kappa=0.5, tau=0.5, prior=SPIKES),
    Setting("softplus", 16, 0, 30, kappa=2.0),
    Setting("softplus", 1, 1, 20, 1, tokens=2, kappa=2.0, target="location"),
)


def statistics(found: SGDRuns) -> np.ndarray:
    """Columns: every order parameter at every time, and products that tell of their joint law."""
    columns = []
    upper = np.triu_indices(found.r.shape[2])
    for i in range(len(found.tau)):
        m, r = found.m[:, i].reshape(len(found.m), -1), found.r[:, i][:, *upper]
        parts = [m, r, m[:, :1] * m[:, 1:2], m[:, :1] * r[:, :1], r[:, :1] * r[:, -1:]]
        parts += [x[:, i] for x in (found.b, found.v) if x is not None]
        parts += [x[:, i, :1] * m[:, :1] for x in (found.b, found.v) if x is not None]
        columns += parts
    return np.concatenate(columns, axis=1)


def smallest_p(one: np.ndarray, other: np.ndarray) -> float:
    """Bonferroni-corrected p-value of three tests for each column: laws, means and spreads."""
    found = []
    for x, y in zip(one.T, other.T, strict=True):
        found.append(ks_2samp(x, y, method="asymp").pvalue)
        for a, b in ((x, y), ((x - x.mean()) ** 2, (y - y.mean()) ** 2)):
            error = np.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
            found.append(2 * norm.sf(abs(a.mean() - b.mean()) / max(error, 1e-12)))
    return min(found) * len(found)


def p_value(setting: Setting, runs: int) -> float:
    one = setting.runs("direct", runs, seed=1)
    return smallest_p(statistics(one), statistics(setting.runs("reduced", runs, seed=2)))


@pytest.mark.parametrize("setting", SETTINGS[:4], ids=str)
def test_laws_agree_in_few_runs(setting: Setting) -> None:
    assert p_value(setting, 400) > FALSE_ALARM / len(SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_laws_agree(setting: Setting) -> None:
    assert p_value(setting, 4000) > FALSE_ALARM / len(SETTINGS)


# A small kappa makes means precise, and r from nothing shows the noise alone.
DRIFT = Setting("softmax-1", 16, 2, 200, kappa=0.2, tau=2.0)
NOISE = Setting("softmax-1", 1, 0, 100, kappa=1.0, tau=0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "terms"), [(DRIFT, ("m", "rho", "b", "v")), (NOISE, ("outside",))]
)
def test_three_percent_in_any_term_are_seen(
    setting: Setting, terms: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``m - s C xi``, ``rho - s C u``, ``s^2 C W C^T`` beyond the frame, b and v."""
    original, limit = reduced.Reduced._step, FALSE_ALARM / len(SETTINGS)
    expected = statistics(setting.runs("direct", 4000, seed=1))

    def p_of() -> float:
        found = setting.runs("reduced", 4000, seed=2, compiled=False)
        return smallest_p(expected, statistics(found))

    assert p_of() > limit
    for term in terms:

        def wrong(self: reduced.Reduced, outside: np.ndarray, term: str = term) -> None:
            if term == "outside":
                outside = np.sqrt(1.03) * outside
            elif term in ("b", "v"):
                self.sums[term] *= 1.03
            else:
                self.sums["keys"][..., slice(0, 2) if term == "m" else slice(2, None)] *= 1.03
            original(self, outside)

        monkeypatch.setattr(reduced.Reduced, "_step", wrong)
        assert p_of() < limit, term


def test_lower_factors() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(5, 4, 7))
    rows[1, 2] = 2 * rows[1, 0] - rows[1, 1]
    rows[2, 1] = 0
    rows[3, :] = rows[3, 0]
    rows[4, 1:] = 0
    root = reduced.lower_factor(rows)
    np.testing.assert_allclose(root @ root.mT, rows @ rows.mT, atol=1e-13)
    assert not np.triu(root, 1).any()
    assert (np.abs(root[1, 2, 2]), root[2, 1].any()) == (0, False)
    assert (root[3] == root[3, :1]).all()
    assert np.linalg.matrix_rank(root[3]) == 1
    wide = reduced.lower_factor(rows[:, :, :2])  # fewer columns than rows
    np.testing.assert_allclose(wide @ wide.mT, rows[..., :2] @ rows[..., :2].mT, atol=1e-13)


def test_heads_that_are_alike_stay_alike() -> None:
    """A rank-deficient overlap keeps its rank, whatever the number of steps."""
    state = State(np.array([[0.1], [0.1]]), np.full((2, 2), 0.2))
    found = run_sgd(
        state, Task(5, isotropic(1, 4.0)), Attention("softmax", 2), dimension=200, tau=[20.0],
        kappa=2.0, runs=4, method="reduced",
    )  # fmt: skip
    assert np.abs(found.m[:, 0, 0] - found.m[:, 0, 1]).max() < 1e-12
    assert np.abs(np.linalg.det(found.r[:, 0])).max() < 1e-12
    assert np.linalg.eigvalsh(found.r).min() > -1e-14


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", ["token", "location"])
def test_mean_step_at_huge_dimension_is_the_population_gradient(name: str, target: str) -> None:
    """D = 10^12: every direction but those of the order parameters is noise of a known size."""
    setting = Setting(name, 1, 2, 10**12, target=target)
    state, task, layer = setting.problem()
    loss = population_loss(state, task, layer)
    step, runs = 1e-7, 4000
    found = run_sgd(
        state, task, layer, dimension=10**12, tau=[step], step=step, runs=runs, seed=5,
        target=target, method="reduced",
    )  # fmt: skip
    drift = (found.m[:, 0] - state.m) / step
    z = (drift.mean(axis=0) + loss.m) / (drift.std(axis=0) / np.sqrt(runs))
    assert np.abs(z).max() < norm.isf(FALSE_ALARM / 100)
    assert np.abs(drift.mean(axis=0)).max() > 0.01


def test_dimensions_with_nothing_to_reduce_are_direct() -> None:
    setting = Setting("softmax", 1, 2, 5)
    for dimension in (5, 9):
        small = Setting("softmax", 1, 2, dimension)
        np.testing.assert_array_equal(
            small.runs("reduced", 3, seed=1).m, small.runs("direct", 3, seed=1).m
        )
    least = reduced.least_dimension(2, 2)
    assert least == 10
    large = Setting("softmax", 1, 2, least)
    assert not np.array_equal(large.runs("reduced", 3, seed=1).m, large.runs("direct", 3, seed=1).m)
    with pytest.raises(InputError, match=r"^dimension: found 3, .* features \+ heads = 4"):
        Setting("softmax", 1, 2, 3).runs("reduced", 3, seed=1)
    assert setting.runs("reduced", 2, seed=1).dimension == 5


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_the_compiled_loop_is_numpys(name: str, batch: int) -> None:
    pytest.importorskip("numba")
    for target in ("token", "location"):
        setting = Setting(name, batch, 1, 60, 3, target=target)
        state, task, layer = setting.problem()
        how: dict[str, Any] = {"watch": feature_norms(task, layer, 0.729)}
        one = setting.runs("reduced", 3, seed=1, compiled=False, **how)
        two = setting.runs("reduced", 3, seed=1, compiled=True, **how)
        assert (one.compiled, two.compiled) == (False, True)
        for key in ("m", "r", "b", "v"):
            if (values := getattr(one, key)) is not None:
                np.testing.assert_allclose(getattr(two, key), values, rtol=1e-11, atol=1e-13)
        np.testing.assert_array_equal(one.passages, two.passages)
    assert (one.m[:, -1] != state.m).any()


@pytest.mark.parametrize(
    ("weight", "normalization"),
    [
        ("softplus(chi + b) + expit(chi)", "per-head"),
        pytest.param("log(1 + exp(chi)) * (2 + sin(b))", "pooled", marks=pytest.mark.slow),
        pytest.param("1 + chi/2 + cos(chi)/4 + erfc(b)", "none", marks=pytest.mark.slow),
        pytest.param("sqrt(1 + chi**2) + tanh(chi + b)", "none", marks=pytest.mark.slow),
    ],
)
def test_own_activations_compile(weight: str, normalization: str) -> None:
    pytest.importorskip("numba")
    from derive.user import user_attention

    task, how = Task(4, GAUSSIAN), {"dimension": 60, "kappa": 1.0, "runs": 2, "tau": [0.5]}
    trained = ("b", "v") if normalization != "pooled" else ("b",)
    layer = Attention(user_attention(weight, normalization, 0, trained), 2)
    state = State(M[:2], ROOT[:2, :2] @ ROOT[:2, :2].T)
    one, two = (
        run_sgd(state, task, layer, method="reduced", compiled=x, **how)  # type: ignore[arg-type]
        for x in (False, True)
    )
    np.testing.assert_allclose(two.m, one.m, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(two.r, one.r, rtol=1e-10, atol=1e-12)


def test_what_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting("softmax", 1, 2, 30)
    monkeypatch.setitem(__import__("sys").modules, "numeric.compiled", None)
    with pytest.raises(InputError, match=r"^compiled: found True without numba, expected numba"):
        setting.runs("reduced", 2, seed=1, compiled=True)
    monkeypatch.setattr("numeric.sgd.WORTH_COMPILING", 1)
    assert not setting.runs("reduced", 2, seed=1).compiled
    with pytest.raises(InputError, match=r"^compiled: found True, expected"):
        setting.runs("direct", 2, seed=1, compiled=True)


def test_divergence_is_an_error() -> None:
    state, task, layer = Setting("linear", 1, 2, 100).problem()
    for compiled in (False, True) if has_numba() else (False,):
        with pytest.raises(SimulationError, match="diverged"):
            run_sgd(
                state, task, layer, dimension=100, tau=[1e5], step=50.0, runs=2,
                method="reduced", compiled=compiled,
            )  # fmt: skip


def has_numba() -> bool:
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def test_pieces_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of a step may be drawn in several pieces: the stream is another, the law the same."""
    setting = Setting("softmax-1", 7, 2, 40)
    monkeypatch.setattr(reduced, "DRAWN", 100)
    pieces = setting.runs("reduced", 2000, seed=3)
    monkeypatch.setattr(reduced, "DRAWN", 2**13)
    whole = setting.runs("reduced", 2000, seed=4)
    assert smallest_p(statistics(pieces), statistics(whole)) > FALSE_ALARM
    assert direct.NORMALS > reduced.DRAWN
