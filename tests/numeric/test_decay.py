"""Fits of decays: synthetic exponentials, Gaussians and powers, and where fits stop."""

import numpy as np
import pytest

from numeric.decay import fit_decay

X = np.arange(1.0, 9.0)


@pytest.mark.parametrize(
    ("kind", "y"),
    [
        ("exponential", 0.3 * np.exp(-1.3 * X)),
        ("gaussian", 2.0 * np.exp(-0.25 * X**2)),
        ("power", 0.5 * X**-1.3),
    ],
)
def test_each_kind_is_recognized(kind: str, y: np.ndarray) -> None:
    rate = 0.25 if kind == "gaussian" else 1.3
    for factor, error in ((np.ones(8), 1e-10), (1 + 0.02 * np.cos(9 * X), 0.05)):
        found = fit_decay(X, y * factor, 0 * X, ("exponential", "gaussian", "power"))
        assert found is not None and found.kind == kind
        assert found.rate == pytest.approx(rate, abs=error)
        assert abs(found.rate - rate) <= 4 * found.error + 1e-12
        assert found.other > 1
        assert f"{found.rate:.4g}" in str(found)


def test_values_at_the_error_or_level_are_left_out() -> None:
    y = np.exp(-X)
    y[5:] = y[4] * 0.95
    found = fit_decay(X, y, np.zeros(8))
    assert found is not None and found.points == 5
    assert found.rate == pytest.approx(1.0)
    found = fit_decay(X, np.exp(-X), np.full(8, 1e-2))
    assert found is not None and found.points == 3
    assert fit_decay(X, np.exp(-X), np.full(8, 0.1)) is None
    assert fit_decay(X[:2], np.exp(-X[:2]), np.zeros(2)) is None
