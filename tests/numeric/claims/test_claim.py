"""Conditions, outcomes and verdicts; intervals cover what they should."""

import numpy as np
import pytest
from scipy.stats import beta, norm

from numeric.claims.claim import (
    CONFIDENCE,
    INCONCLUSIVE,
    REFUTED,
    STATUSES,
    SUPPORTED,
    Condition,
    Finding,
    Measured,
    Outcome,
    Regime,
    mean_of,
    part_seed,
    sampled,
    share_of,
)
from numeric.claims.registry import IDS, claims
from numeric.errors import InputError


@pytest.mark.parametrize(
    ("value", "error", "verdict"),
    [
        (0.5, 0.4, SUPPORTED),
        (0.5, 0.6, INCONCLUSIVE),
        (1.5, 0.4, REFUTED),
        (1.5, 0.6, INCONCLUSIVE),
        (-1.0, 0.5, REFUTED),
        (1.0, 0.0, SUPPORTED),
        (np.nan, 0.0, INCONCLUSIVE),
        (0.5, np.inf, INCONCLUSIVE),
    ],
)
def test_an_outcome_is_where_the_interval_lies(value: float, error: float, verdict: str) -> None:
    assert Outcome(Condition("x", 0, 1), Measured(value, error)).verdict == verdict


def test_one_failure_refutes_and_one_doubt_leaves_open() -> None:
    condition = Condition("x", high=0)

    def verdict(*values: float) -> str:
        regime = Regime("r", (condition,) * len(values))
        found = Finding(regime, tuple(Outcome(condition, Measured(v, 0.5)) for v in values))
        assert found.decisive.verdict == found.verdict
        return found.verdict

    assert verdict(-1.0, -2.0) == SUPPORTED
    assert verdict(-1.0, 0.0) == INCONCLUSIVE
    assert verdict(-1.0, 0.0, 1.0) == REFUTED


def test_ranges_in_words() -> None:
    assert Condition("x", 0, 0).allowed == "0"
    assert Condition("x", low=2).allowed == "at least 2"
    assert Condition("x", high=2).allowed == "at most 2"
    assert Condition("x", 1, 2).allowed == "1 to 2"


def test_intervals_have_their_confidence() -> None:
    assert sampled(1.0, 0.1).error == pytest.approx(0.1 * norm.isf((1 - CONFIDENCE) / 2))
    found = share_of(7, 20)
    low, high = found.value - found.error, found.value + found.error
    assert low == pytest.approx(beta.ppf((1 - CONFIDENCE) / 2, 7, 14))
    assert high == pytest.approx(beta.isf((1 - CONFIDENCE) / 2, 8, 13))
    for count, edge in ((0, 0.0), (20, 1.0)):
        found = share_of(count, 20)
        assert abs(found.value - edge) == pytest.approx(found.error)
    assert np.isnan(mean_of([1.0, np.nan]).value)
    rng = np.random.default_rng(1)
    missed = sum(
        abs(x.value) > x.error for x in (mean_of(rng.normal(size=200)) for _ in range(2000))
    )
    assert missed <= 4  # 0.2 expected; more with a probability of 1e-6


def test_seeds_depend_on_names() -> None:
    assert part_seed(0, "a") == part_seed(0, "a")
    assert len({part_seed(s, n) for s in (0, 1) for n in ("a", "b")}) == 4


def test_every_claim_is_there_once() -> None:
    found = claims()
    assert [x.id for x in found] == list(IDS)
    assert len({x.title for x in found}) == len(IDS)
    for claim in found:
        assert claim.status in STATUSES
        assert claim.source.startswith("arXiv 260")
        assert claim.statement.count("$") % 2 == 0 and claim.method.count("$") % 2 == 0
        names = [x.name for x in claim.regimes]
        assert len(set(names)) == len(names)
        for regime in claim.regimes:
            assert regime.conditions
            assert all(np.isfinite([c.low, c.high]).any() for c in regime.conditions)
        for full in (False, True):
            parts = claim.parts(full, 0)
            assert parts
            assert all(p.keywords["seed"] == part_seed(0, n) for n, p in parts.items())


def test_claims_are_chosen_by_id() -> None:
    assert [x.id for x in claims(["b2", "A6", "B2"])] == ["A6", "B2"]
    with pytest.raises(InputError, match=r"^ID: found 'A14', expected one of A1, "):
        claims(["A14"])
