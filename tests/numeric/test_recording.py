"""Recordings, first passages, checkpoints and workers of simulations, direct and reduced."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numeric import checkpoint as module
from numeric.errors import InputError, SimulationError
from numeric.prior import DiscretePrior, GaussianPrior, isotropic
from numeric.sgd import SGDRuns, run_sgd
from numeric.task import Attention, State, Task
from numeric.watch import Watch, feature_norms, mean_alignment, specialization

TASK = Task(4, GaussianPrior([0.4, -0.2], [[1.5, 0.3], [0.3, 0.6]]))
LAYER = Attention("softmax-1", 2)
STATE = State([[0.5, -0.2], [0.1, 0.6]], [[0.4, 0.1], [0.1, 0.3]])
WATCHES = (*feature_norms(TASK, LAYER, 0.7), specialization(TASK, LAYER, 0.9))
METHODS = ("direct", "reduced")


def runs(method: str, **changes: Any) -> SGDRuns:
    how: dict[str, Any] = {
        "dimension": 30, "tau": [0.0, 1.0, 2.0, 3.0], "kappa": 1.0, "runs": 7, "seed": 4,
        "watch": WATCHES, "method": method,
    }  # fmt: skip
    how |= changes
    state, task, layer = how.pop("state", STATE), how.pop("task", TASK), how.pop("layer", LAYER)
    return run_sgd(state, task, layer, **how)


def same(one: SGDRuns, other: SGDRuns) -> bool:
    names = [x for x in ("tau", "m", "r", "b", "v", "passages") if getattr(one, x) is not None]
    return all(np.array_equal(getattr(one, x), getattr(other, x), equal_nan=True) for x in names)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [1, 5])
def test_results_do_not_depend_on_workers(method: str, batch: int) -> None:
    one = runs(method, batch=batch)
    for workers in (2, 4, 7):
        assert same(runs(method, batch=batch, workers=workers), one)
    first = runs(method, batch=batch, runs=3)
    assert np.array_equal(first.m, one.m[:3])
    assert np.array_equal(first.passages, one.passages[:3])


@pytest.mark.parametrize("method", METHODS)
def test_passages_are_those_of_the_trajectory(method: str) -> None:
    fine = runs(method, tau=np.arange(0, 91) / 30)
    assert fine.step == 1 / 30
    for w, watch in enumerate(WATCHES):
        norms = watch.norm(fine.m)
        for run in range(7):
            late = np.flatnonzero(norms[run] > watch.threshold)
            expected = fine.tau[late[0]] if len(late) else np.inf
            assert fine.passages[run, w] == pytest.approx(expected)
    assert np.isfinite(fine.passages).any() and (fine.passages > 0).any()
    assert np.array_equal(runs(method).passages, fine.passages)


@pytest.mark.parametrize("method", METHODS)
def test_runs_stop_when_all_is_passed(method: str) -> None:
    watches = feature_norms(TASK, LAYER, 0.66)[:1]
    whole = runs(method, watch=watches)
    for workers in (1, 3):
        ended = runs(method, watch=watches, stop=True, workers=workers)
        assert np.array_equal(ended.passages, whole.passages)
        over = ended.tau > ended.passages  # (runs, n)
        assert over.any() and not over.all()
        assert np.isnan(ended.m[over]).all() and np.isnan(ended.b[over]).all()  # type: ignore[index]
        assert np.array_equal(ended.m[~over], whole.m[~over])
    # The flow would go on for ever: 10^9 steps are not taken.
    fast = runs(method, watch=watches, stop=True, tau=[1e8], task=Task(4, isotropic(2, 9.0)))
    assert np.isfinite(fast.passages).all()


def test_each_run_from_its_own_start() -> None:
    starts = State(
        np.stack([STATE.m, 2 * STATE.m, -STATE.m]), np.stack([STATE.r, STATE.r / 2, 0 * STATE.r])
    )
    found = runs("reduced", state=starts, runs=3, tau=[0.0, 1.0])
    np.testing.assert_array_equal(found.m[:, 0], starts.m)
    np.testing.assert_allclose(found.r[:, 0], starts.r, atol=1e-15)
    with pytest.raises(InputError, match=r"^state: found a batch of shape \(3,\), expected"):
        runs("reduced", state=starts, runs=2)


class Stop(Exception):
    """An interruption."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch", [1, 40])
def test_interrupted_runs_resume(
    method: str, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty interruptions at random calls, in all places: the result is that of one call."""
    monkeypatch.setattr(module, "EVERY", 0.0)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    how = {"batch": batch, "tau": [0.0, 4.0, 40.0], "workers": 1, "stop": False}
    expected = runs(method, **how)
    rng = np.random.default_rng(0)
    original = module.GroupStore.save
    for _ in range(20):
        left = int(rng.integers(1, 12))

        def save(self: module.GroupStore, arrays: dict[str, Any]) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Stop  # before it is written
            original(self, arrays)

        monkeypatch.setattr(module.GroupStore, "save", save)
        try:
            runs(method, checkpoint=tmp_path / "at", **how)
        except Stop:
            continue
        break
    monkeypatch.setattr(module.GroupStore, "save", original)
    assert same(runs(method, checkpoint=tmp_path / "at", **how), expected)
    # Another number of workers goes on with the groups that there are.
    assert same(runs(method, checkpoint=tmp_path / "at", **how | {"workers": 3}), expected)
    assert not list((tmp_path / "at").glob(".*"))


SCRIPT = """
import sys
from numeric import Attention, State, Task, isotropic, run_sgd
run_sgd(State([[0.1], [-0.1]], [[0.1, 0.0], [0.0, 0.1]]), Task(5, isotropic(1, 4.0)),
        Attention("softmax", 2), dimension=4000, tau=[{tau}], kappa=1.0, runs=6, seed=1,
        method="reduced", workers=2, checkpoint=sys.argv[1])
"""


@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_killed_process_loses_little(how: signal.Signals, tmp_path: Path) -> None:
    text = SCRIPT.format(tau=3.0)
    process = subprocess.Popen(
        [sys.executable, "-c", text, str(tmp_path)], stderr=subprocess.DEVNULL
    )
    until = time.monotonic() + 60
    while not list(tmp_path.glob("runs-*.npz")) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(process.pid, how)
    assert process.wait(timeout=60) != 0
    saved = [np.load(x)["place"] for x in tmp_path.glob("runs-*.npz")]
    assert saved and all(0 < place[1] < 12_000 for place in saved)
    found, whole = (
        run_sgd(
            State([[0.1], [-0.1]], [[0.1, 0.0], [0.0, 0.1]]), Task(5, isotropic(1, 4.0)),
            Attention("softmax", 2), dimension=4000, tau=[3.0], kappa=1.0, runs=6, seed=1,
            method="reduced", checkpoint=folder,
        )
        for folder in (tmp_path, None)
    )  # fmt: skip
    assert np.array_equal(found.m, whole.m)


def test_folders_of_others_are_refused(tmp_path: Path) -> None:
    runs("reduced", checkpoint=tmp_path)
    before = {x.name: x.read_bytes() for x in tmp_path.iterdir()}
    for change in (
        {"seed": 5}, {"kappa": 2.0}, {"dimension": 31}, {"runs": 8}, {"batch": 2},
        {"tau": [0.0, 3.0]}, {"target": "location"}, {"watch": WATCHES[:1]}, {"stop": True},
        {"state": State(2 * STATE.m, STATE.r)}, {"task": Task(5, TASK.prior)},
        {"task": Task(4, GaussianPrior([0.4, -0.2], [[1.5, 0.3], [0.3, 0.7]]))},
        {"task": Task(4, DiscretePrior([[0.4, -0.2]], [1.0]))},
        {"layer": Attention("erf", 2)},
    ):  # fmt: skip
        with pytest.raises(InputError, match=r"^checkpoint: found another in .*same simulation$"):
            runs("reduced", checkpoint=tmp_path, **change)
    assert {x.name: x.read_bytes() for x in tmp_path.iterdir()} == before
    (tmp_path / "runs-0.npz").write_bytes(b"PK broken")
    with pytest.raises(InputError, match=r"^checkpoint: found runs-0.npz, which cannot be used"):
        runs("reduced", checkpoint=tmp_path)
    np.savez(tmp_path / "runs-0.npz", x=1)
    with pytest.raises(InputError, match=r"^checkpoint: found runs-0.npz"):
        runs("reduced", checkpoint=tmp_path)
    key = json.loads((tmp_path / "run.json").read_text())["key"]
    for arrays in ({}, {"recorded_m": np.zeros(3)}):
        np.savez(tmp_path / "runs-0.npz", key=np.array(key), **arrays)  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"^checkpoint: found runs-0.npz"):
            runs("reduced", checkpoint=tmp_path)
    for text in ("", "[]", json.dumps({"key": 3}), *(
        json.dumps({"key": key, "group": x}) for x in (0, -1, "a", 1e999)
    )):  # fmt: skip
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(InputError, match=r"^checkpoint: found another"):
            runs("reduced", checkpoint=tmp_path)


def test_files_of_another_call_are_never_used(tmp_path: Path) -> None:
    """Whatever became of run.json."""
    runs("reduced", checkpoint=tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(InputError, match=r"^checkpoint: found another"):
        runs("reduced", checkpoint=tmp_path, seed=99)
    other = tmp_path / "other"
    runs("reduced", checkpoint=other, seed=99)
    os.replace(tmp_path / "runs-0.npz", other / "runs-0.npz")
    with pytest.raises(InputError, match=r"^checkpoint: found runs-0.npz"):
        runs("reduced", checkpoint=other, seed=99)


def test_runs_that_have_ended_do_not_count() -> None:
    """They may diverge while others go on."""
    layer, task = Attention("linear", 2), Task(3, isotropic(2, 4.0))
    state = State(np.full((2, 2), 0.3), 0.1 * np.eye(2), v=np.ones(2))
    for method in METHODS:
        found = [
            runs(method, state=state, task=task, layer=layer, watch=feature_norms(task, layer, 0.6),
                 stop=True, workers=n, dimension=100, kappa=3.0, tau=[200.0])
            for n in (1, 2, 7)
        ]  # fmt: skip
        assert np.isfinite(found[0].passages).all()
        assert same(found[0], found[1]) and same(found[0], found[2])


def test_the_last_record_of_a_run_does_not_depend_on_the_others() -> None:
    """Where a run ends at the end of what is drawn together, as every step of a large batch is."""
    task, layer = Task(3, isotropic(1, 4.0)), Attention("softmax", 1)
    found = [
        run_sgd(
            State([[0.3]], [[0.1]]), task, layer, dimension=40, batch=64, runs=5, seed=3, step=5.0,
            watch=feature_norms(task, layer, 0.31), stop=True, tau=5.0 * np.arange(12), workers=n,
        )
        for n in (1, 2, 5)
    ]  # fmt: skip
    assert same(found[0], found[1]) and same(found[0], found[2])
    ended = np.rint(found[0].passages[:, 0] / 5).astype(int)
    assert (np.isfinite(found[0].m[..., 0, 0]).sum(axis=1) == np.minimum(ended, 11) + 1).all()


def test_norms_are_as_precise_as_the_alignments() -> None:
    """Heads that are alike but for rounding differ by rounding, not by its square root."""
    layer = Attention("softmax", 7)
    watch = specialization(TASK, layer, 1e-8)
    for seed in range(10):
        m = np.tile(3 * np.random.default_rng(seed).normal(size=2), (7, 1))
        found = runs(
            "reduced", state=State(m, np.ones((7, 7))), layer=layer, watch=(watch,), tau=[0]
        )
        assert np.isinf(found.passages).all()
    tiny = State(1e-165 * STATE.m, 0 * STATE.r)
    for scale, when in ((1e-166, 0.0), (1e155, np.inf)):
        found = runs("reduced", state=tiny, watch=feature_norms(TASK, LAYER, scale), tau=[0])
        assert (found.passages == when).all()


def test_progress_counts_what_was_done_before(tmp_path: Path) -> None:
    runs("reduced", checkpoint=tmp_path)
    heard: list[float] = []
    assert same(runs("reduced", checkpoint=tmp_path, progress=heard.append), runs("reduced"))
    assert heard[-1] == 1.0


def test_an_error_in_one_group_ends_all() -> None:
    far = DiscretePrior([[1e5, 0.0]], [1.0])
    with pytest.raises(SimulationError, match="diverged"):
        runs("reduced", task=Task(4, far), layer=Attention("linear", 2), step=1e300, kappa=None,
             tau=[1e303], workers=3)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("method", {"method": "fast"}),
        ("watch", {"watch": [1.0]}),
        ("watch", {"watch": feature_norms(TASK, Attention("softmax", 3))}),
        ("stop", {"watch": (), "stop": True}),
        ("stop", {"stop": 1}),
        ("compiled", {"compiled": "yes"}),
        ("checkpoint", {"checkpoint": ""}),
        ("checkpoint", {"checkpoint": 5}),
        ("checkpoint", {"checkpoint": "a\0b"}),
        ("watch", {"watch": [Watch("large", 1e200 * np.eye(2), 1e200 * np.eye(2), 1.0)]}),
        ("workers", {"workers": 0}),
        ("workers", {"workers": 2.5}),
        ("dimension", {"dimension": 10**16}),
        ("dimension", {"dimension": 10**9, "method": "direct"}),
        ("tau", {"tau": np.arange(1e7)}),
        ("tokens", {"task": Task(10**8, TASK.prior)}),
    ],
)
def test_inputs_refused(name: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        runs(changes.pop("method", "reduced"), **changes)
    assert caught.value.name == name


def test_watches() -> None:
    m = np.array([[[3.0, 1.0], [1.0, -1.0]], [[1.0, 0.0], [1.0, 0.0]]])
    by_feature = feature_norms(TASK, LAYER)
    assert [x.name for x in by_feature] == ["feature 1", "feature 2"]
    np.testing.assert_allclose(by_feature[0].norm(m), np.sqrt([10, 2]))
    mean = mean_alignment(TASK, LAYER, 0.3)
    np.testing.assert_allclose(mean.norm(m), [0.8 / 0.2**0.5, 0.4 / 0.2**0.5])
    apart = specialization(TASK, LAYER)
    np.testing.assert_allclose(apart.norm(m), [2.0, 0.0], atol=1e-15)
    for x in (*by_feature, mean, apart):
        parts = m.reshape(2, -1) @ x.rows.T * x.threshold
        np.testing.assert_allclose(np.linalg.norm(parts, axis=1), x.norm(m), atol=1e-15)
    with pytest.raises(InputError, match=r"^prior: "):
        mean_alignment(Task(4, isotropic(2, 1.0)), LAYER, 0.3)
    with pytest.raises(InputError, match=r"^heads: "):
        specialization(TASK, Attention("softmax", 1))
    with pytest.raises(InputError, match=r"^threshold: "):
        Watch("none", np.eye(2), np.eye(2), 0.0)
