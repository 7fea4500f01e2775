"""Risk curves: closed forms on one spike, gaps that stay and gaps that vanish with signal strength."""

import numpy as np
import pytest

from numeric._generated import bayes as formulas
from numeric.bayes import bayes_risk
from numeric.curves import risk_curves
from numeric.errors import InputError
from numeric.prior import DiscretePrior, flipped_spike, scaled
from numeric.task import Attention, Task

SPIKE = Task(5, DiscretePrior([[1.0]], [1.0]))
SIGNS = Task(5, flipped_spike([[1.0]]))


def test_one_spike_in_closed_form() -> None:
    """One softmax head is the Bayes estimator; a linear one falls as L / nu only."""
    signals = [0.5, 1.0, 2.0, 4.0, 6.0]
    layers = [Attention("softmax", 1), Attention("linear", 1)]
    curves = risk_curves(SPIKE, layers, "signal", signals, starts=2)
    gaps, errors = curves.gaps("softmax")
    assert np.abs(gaps).max() < 1e-9 and errors.max() < 1e-9
    exact = formulas.linear_spike_risk(5, np.square(signals))
    np.testing.assert_allclose(curves.losses("linear"), exact, atol=1e-8)
    assert repr(curves).startswith("<RiskCurves of softmax, linear")


@pytest.mark.parametrize("tokens", [2, 5])
def test_strong_spikes(tokens: int) -> None:
    """The expansion's error is of the order of the first term left out, and exp(-theta^2/12)."""
    for theta, bound in ((6.0, 0.03), (8.0, 2e-3), (10.0, 3e-3)):
        risk = bayes_risk(Task(tokens, DiscretePrior([[theta]], [1.0])), 1e-13)
        found = float(formulas.strong_spike_risk(tokens, theta**2))
        assert found == pytest.approx(risk.value, rel=bound, abs=2 * risk.error)
    assert formulas.linear_spike_risk(tokens, 1e8) * 1e8 == pytest.approx(tokens, rel=1e-6)


def test_two_signs_as_the_signal_grows() -> None:
    """Softmax keeps a gap, softmax-1 loses it as exp(-theta^2/8): its background sits halfway."""
    names = ("softmax", "softmax-1", "b-softmax")
    layers = [Attention(name, 2) for name in names]
    curves = risk_curves(SIGNS, layers, "signal", [4.0, 5.0, 6.0], starts=1)
    assert (curves.gaps("softmax")[0] > 0.3).all()
    assert np.abs(curves.gaps("b-softmax")[0]).max() < 1e-8
    fit = curves.decay("softmax-1", gap=True)
    assert fit is not None and fit.kind == "gaussian"
    assert fit.rate == pytest.approx(1 / 8, abs=0.015)
    assert curves.decay("softmax") is None
    assert curves.decay("b-softmax", gap=True) is None


def test_more_heads_and_more_tokens() -> None:
    curves = risk_curves(SIGNS, [Attention("b-softmax", 7)], "heads", [1, 2, 3], starts=1)
    assert [len(x.state.m) for x in curves.minima["b-softmax"]] == [1, 2, 3]
    assert curves.gaps("b-softmax")[0][0] > 0.01 > 10 * abs(curves.gaps("b-softmax")[0][1])
    assert np.ptp(curves.bayes) == 0
    assert curves.decay("b-softmax") is None
    curves = risk_curves(SPIKE, [Attention("softmax", 1)], "tokens", [2, 10, 1000], starts=1)
    exact = [bayes_risk(Task(n, SPIKE.prior)).value for n in (2, 10, 1000)]
    np.testing.assert_allclose(curves.losses("softmax"), exact, atol=1e-8)


def test_scaled_priors() -> None:
    twice = scaled(SIGNS.prior, 2.0)
    np.testing.assert_allclose(twice.second_moment, 4 * SIGNS.prior.second_moment)
    with pytest.raises(InputError, match=r"^factor: "):
        scaled(SIGNS.prior, -1.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quantity", "colour"),
        ("values", [2.0, 1.0]),
        ("values", []),
        ("values", [-1.0]),
        ("attentions", []),
        ("attentions", [Attention("softmax", 1), Attention("softmax", 2)]),
        ("attentions", ["softmax"]),
    ],
)
def test_bad_input_is_refused(name: str, value: object) -> None:
    given: dict[str, object] = {
        "attentions": [Attention("softmax", 1)],
        "quantity": "signal",
        "values": [1.0],
    }
    with pytest.raises(InputError, match=f"^{name}: "):
        risk_curves(SPIKE, **(given | {name: value}))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^values: "):
        risk_curves(SPIKE, [Attention("softmax", 1)], "tokens", [1.5])
