"""SGD against the flow over many dimensions: extrapolation, verdicts, and what they see.

Seeds are fixed; each verdict has a false-alarm rate of 1e-6.
"""

from typing import Any

import numpy as np
import pytest

from numeric import agreement as module
from numeric import direct
from numeric.agreement import Agreement, compare_with_flow, extrapolated
from numeric.errors import InputError
from numeric.prior import GaussianPrior
from numeric.task import Attention, State, Task

TASK = Task(5, GaussianPrior([0.3, 0.0], [[3.0, 0.0], [0.0, 1.0]]))
OTHERS = {"softmax": {}, "softmax-1": {"b": [0.2, -0.2], "v": [0.6, 0.5]}}


def compared(activation: str = "softmax", **changes: Any) -> Agreement:
    state = State([[0.4, 0.1], [-0.3, 0.3]], [[0.1, 0.02], [0.02, 0.1]], **OTHERS[activation])
    how: dict[str, Any] = {
        "dimensions": [100, 200, 400, 800], "kappa": 1.0, "tau_max": 4.0, "runs": 48, "seed": 1,
    }  # fmt: skip
    return compare_with_flow(state, TASK, Attention(activation, 2), **how | changes)


@pytest.mark.parametrize("activation", OTHERS)
def test_sgd_follows_the_flow(activation: str) -> None:
    found = compared(activation)
    assert found.passed
    assert len(found.checks) == (len(found.flow.tau) - 1) * (7 if activation == "softmax" else 11)
    # Fluctuations fall as D^(-1/2); the 1/D bias adds to the smallest D.
    assert -0.75 < found.exponent < -0.45
    assert (np.diff(found.deviation) < 0).all()
    assert (found.bias < found.deviation).all()
    assert "agree" in repr(found)
    half = compared(activation, workers=2)
    assert np.array_equal(half.deviation, found.deviation)


def test_the_bias_is_seen_without_extrapolation() -> None:
    """At one finite D means differ from the flow by more than their error; the limit does not."""
    found = compared(dimensions=[60, 120, 240, 480], runs=400)
    runs = found.runs[0]
    error = runs.r.std(axis=0)[-1] / np.sqrt(400)
    assert (np.abs(runs.r.mean(axis=0) - found.flow.r)[-1] / error).max() > 6
    assert found.passed


@pytest.mark.parametrize("method", ["direct", "reduced"])
def test_ten_percent_less_gradient_are_seen(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from numeric import reduced

    name = "numeric.direct" if method == "direct" else "numeric.reduced"
    original = direct.score_gradient

    def weaker(*arguments: Any) -> tuple[Any, ...]:
        return tuple(0.9 * x for x in original(*arguments))

    assert reduced.score_gradient is original
    monkeypatch.setattr(f"{name}.score_gradient", weaker)
    monkeypatch.setattr("numeric.sgd.WORTH_COMPILING", 10**12)
    found = compared(method=method, runs=100, dimensions=[100, 200, 400])
    assert not found.passed
    assert "disagree" in repr(found)
    assert abs(found.worst.z or 0) > 5


@pytest.mark.parametrize("count", [3, 4, 6])
def test_extrapolation_is_right_and_its_error_honest(count: int) -> None:
    sizes, rng = 100.0 * 2.0 ** np.arange(count), np.random.default_rng(3)
    exact = 0.3 + 2.0 / sizes - (30.0 / sizes**2 if count > 3 else 0.0)
    limit, variance = extrapolated(sizes, exact, np.full(count, 1e-12))
    # Its variance holds the estimate of the next power, here too large.
    assert limit == pytest.approx(0.3, abs=1e-9)
    assert variance > 0
    spread = 1e-3 / np.sqrt(sizes / 100)[:, None]
    drawn = exact[:, None] + spread * rng.standard_normal((count, 3000))
    limits, variances = extrapolated(sizes, drawn, np.broadcast_to(spread**2, drawn.shape))
    z = (limits - 0.3) / np.sqrt(variances)
    assert abs(z.mean()) < 5 / np.sqrt(3000)
    assert z.std() < 1.1


@pytest.mark.parametrize("activation", ["softmax", "b-softmax"])
def test_what_does_not_fluctuate_agrees(activation: str) -> None:
    """One token takes all attention: nothing moves, and differs by rounding."""
    state = State([[0.3, -0.7], [0.1, 0.9]], [[0.3, 0.1], [0.1, 0.2]])
    found = compare_with_flow(
        state, Task(1, TASK.prior), Attention(activation, 2), dimensions=[40, 80, 160, 320],
        kappa=1.0, tau_max=1.0, runs=8,
    )  # fmt: skip
    assert found.passed
    assert found.deviation.max() < 1e-12


def test_three_dimensions_at_least_and_other_errors() -> None:
    for name, change in (
        ("dimensions", {"dimensions": [100, 200]}),
        ("dimensions", {"dimensions": [200, 100, 400]}),
        ("kappa", {"kappa": 0.0}),
        ("kappa", {"kappa": 1e4}),
        ("tau_max", {"tau_max": -1.0}),
        ("runs", {"runs": 4}),
        ("seed", {"seed": -1}),
        ("method", {"method": "other"}),
    ):
        with pytest.raises(InputError) as caught:
            compared(**change)  # type: ignore[arg-type]
        assert caught.value.name == name
    assert module.TIMES > 2
