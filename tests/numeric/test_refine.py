"""Growing numbers of digits on made-up computations whose true errors are known."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from numeric.errors import QuadratureError
from numeric.refine import STEP, refine

LEAST, MOST = 4.0, 14.0


def run(
    error: Callable[[float], float], tol: float, digits: float, reach: float = 99.0
) -> tuple[float, float, list[float]]:
    """Refine a result whose truth is one; return it, its estimated error and the digits tried."""
    tried: list[float] = []

    def at(digits: float) -> float:
        tried.append(digits)
        if digits > reach:
            raise QuadratureError("scores: out of reach")
        return 1 + error(digits)

    value, (estimate, twice) = refine(
        at, lambda a, b: (abs(a - b), 2 * abs(a - b)), tol, digits, LEAST, MOST
    )
    assert twice >= estimate
    return value, estimate, tried


@pytest.mark.parametrize("rate", [1.0, 0.7, 0.4, 0.1, 0.03])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-9, 1e-14])
def test_errors_are_covered_at_any_rate_of_convergence(tol: float, sign: int, rate: float) -> None:
    """Rules may gain fewer digits than they promise, by a factor `rate`, on one side or alternating."""

    def error(digits: float) -> float:
        alternating = sign ** round(digits / STEP)
        return float(alternating * 0.3 * 10 ** (-rate * digits))

    for digits in (4.0, 6.3, 9.0, 11.0, 13.7):
        value, estimate, tried = run(error, tol, digits)
        assert abs(value - 1) <= estimate
        assert estimate <= tol or max(tried) == pytest.approx(MOST)


def test_the_last_step_is_a_whole_one() -> None:
    """A shorter one changes less, which must not be taken for convergence."""
    for digits in (3.0, 4.0, 9.0, 9.5, 13.9, 14.0, 20.0):
        _, _, tried = run(lambda digits: 0.1 / digits, 1e-9, digits)
        assert tried == sorted(tried)
        steps = [y - x for x, y in pairwise(tried)]
        assert steps == pytest.approx([STEP] * len(steps))
        assert tried[-1] == pytest.approx(MOST)


def test_it_stops_where_the_error_is_small_enough() -> None:
    value, estimate, tried = run(lambda digits: 10**-digits, 1e-6, 7.0)
    assert len(tried) == 3
    assert abs(value - 1) <= estimate <= 1e-6
    # Rules of few nodes may agree at several numbers of digits: no better than these promise.
    _, estimate, tried = run(lambda _: 1e-3, 1e-6, 7.0)
    assert estimate >= 10 ** -max(tried)


@pytest.mark.parametrize("reach", [4.0, 5.5, 8.2])
def test_what_is_out_of_reach(reach: float) -> None:
    """Fewer digits are taken, and what can be afforded is returned with its error."""
    value, estimate, tried = run(lambda digits: 10**-digits, 1e-12, 13.0, reach)
    assert max(tried) > reach
    assert abs(value - 1) <= estimate < 10 ** (3 - reach)
    with pytest.raises(QuadratureError, match="out of reach"):
        run(lambda digits: 0.0, 1e-12, 13.0, 3.5)
