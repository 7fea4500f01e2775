"""One head on a fixed spike: published risks, and how the activations rank.

Signal theta = sqrt(nu) for certain; a head k with m = k.k* and residual r = |k|^2 - m^2.
"""

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import minimize
from sympy import erf

from derive import Attention as Definition
from derive.symbols import chi
from numeric import Attention, DiscretePrior, State, Task, bayes_risk, population_loss
from numeric.loss import evaluate

CASES = ((1.0, 3), (4.0, 5), (9.0, 50))


def spike(nu: float, tokens: int) -> Task:
    return Task(tokens, DiscretePrior([[np.sqrt(nu)]], [1.0]))


def least_loss(name: str, task: Task) -> float:
    """Least loss over (m, b, v) at r = 0, and over r near it, from a few starts."""
    attention = Attention(name, 1)
    trained = attention.parameters

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        others = {key: x[2 + i : 3 + i] for i, key in enumerate(trained)}
        found = evaluate(State([[x[0]]], [[x[1] ** 2]], **others), task, attention, 9.0)
        gradient = [found.m[0, 0], 2 * x[1] * found.r[0, 0]]
        gradient += [getattr(found, key)[0] for key in trained]
        return float(found.value), np.array(gradient)

    starts = [[m, 0.1, *[start for _ in trained]] for m in (0.3, 1.0) for start in (-0.5, 0.2)]
    bounds = [(-9.0, 9.0), (-2.0, 2.0), *[(-9.0, 9.0) for _ in trained]]
    options = {"gtol": 1e-9, "ftol": 1e-14}
    found = [minimize(loss, x, jac=True, bounds=bounds, options=options) for x in starts]
    best = min(found, key=lambda result: result.fun)
    assert abs(best.x[1]) < 1e-3, "a residual part of the key only adds noise"
    return float(best.fun)


@pytest.mark.parametrize(("nu", "tokens"), CASES)
def test_softmax_on_the_spike_attains_the_bayes_risk(nu: float, tokens: int) -> None:
    task = spike(nu, tokens)
    loss = population_loss(State([[np.sqrt(nu)]], [[0.0]]), task, Attention("softmax", 1), 1e-11)
    risk = bayes_risk(task, 1e-11)
    assert abs(float(loss.value) - risk.value) <= float(loss.error) + risk.error
    assert float(loss.error) + risk.error < 1e-10
    assert abs(loss.m).max() < 1e-9


@pytest.mark.parametrize(("nu", "tokens"), CASES)
def test_activations_rank_between_bayes_and_linear(nu: float, tokens: int) -> None:
    task = spike(nu, tokens)
    linear = tokens * (tokens - 1) / (tokens**2 + nu * (tokens - 1))
    risk = bayes_risk(task, 1e-10).value
    assert least_loss("linear", task) == pytest.approx(linear, abs=1e-8)
    assert least_loss("softmax", task) == pytest.approx(risk, abs=1e-8)
    for name in ("erf", "softplus"):
        assert risk < least_loss(name, task) < linear


def marion_risk(kappa: mp.mpf, scale: mp.mpf, dimension: int, tokens: int) -> mp.mpf:
    """Risk of ``sum_l erf(scale k.x_l) x_l`` per output coordinate, arXiv 2410.01537.

    The relevant token has mean ``sqrt(d/2) k*``, ``kappa = k.k*``, ``|k| = 1`` and the output direction
    is learned; the variance of the irrelevant tokens' weights, constant there, is added.
    """

    def mean_square(shift: mp.mpf) -> mp.mpf:
        """``E erf(shift + scale z)^2`` as one integral of its derivative in the shift."""
        broad = mp.sqrt(1 + 2 * scale**2)

        def slope(s: mp.mpf) -> mp.mpf:
            steep = 2 / mp.sqrt(mp.pi) * mp.exp(-((s / broad) ** 2))
            return 2 / broad * mp.erf(s / broad / mp.sqrt(1 + 4 * scale**2)) * steep

        return 1 + mp.quad(slope, [-mp.inf, -1, 0, 1, shift] if shift > 1 else [-mp.inf, -1, shift])

    signal = scale * mp.sqrt(mp.mpf(dimension) / 2) * kappa
    won = mp.erf(signal / mp.sqrt(1 + 2 * scale**2))
    return 1 - 2 * won + mean_square(signal) + (tokens - 1) * mean_square(mp.mpf(0))


@pytest.mark.parametrize("kappa", [0.3, 1.0])
def test_erf_attention_has_the_risk_of_marion_and_others(kappa: float) -> None:
    scale, dimension, tokens = 0.6, 80, 10
    plain = Attention(Definition("plain erf", erf(chi), "none"), 1)
    state = State([[scale * kappa]], [[scale**2 * (1 - kappa**2)]])
    loss = population_loss(state, spike(dimension / 2, tokens), plain, 1e-11)
    expected = float(marion_risk(mp.mpf(kappa), mp.mpf(scale), dimension, tokens))
    assert float(loss.value) == pytest.approx(expected, abs=1e-10)
