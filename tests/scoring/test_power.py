"""How much evidence an attack needs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.scoring.simulated import HONEST, INT4, INT8, Law, draws, measurement, profile

from assay.errors import ProfileError, SettingsError
from assay.scoring.calibrated import channel_tests
from assay.scoring.combine import bonferroni
from assay.scoring.power import interval, power

KNOWN = (
    profile(draws(HONEST, 200, 0))
    .with_attack("int4", draws(INT4, 32, 1))
    .with_attack("int8", draws(INT8, 32, 2))
    .with_attack("honest", draws(HONEST, 32, 3))
)


def test_a_strong_attack_needs_few_tokens() -> None:
    found = power(KNOWN, "int4", 1e-3)
    assert found.tokens is not None
    assert found.tokens <= 64
    assert found.tokens_estimated is None
    assert found.executor_claims is not None
    assert found.executor_claims <= 10
    assert f"{found.tokens} tokens is enough" in found.reason


def test_the_answer_is_what_claims_of_that_length_show() -> None:
    """Fresh int4 claims of the length given are caught at least about as often as wanted."""
    found = power(KNOWN, "int4", 1e-3)
    assert found.tokens is not None
    caught = 0
    for claim in draws(INT4, 100, 77, found.tokens):
        tested = channel_tests(claim, KNOWN)
        p_values = [p for t in tested.values() for p in (t.p_value, t.p_low) if p is not None]
        caught += bonferroni(p_values) <= 1e-3
    assert caught >= 80


def test_a_weak_attack_needs_many_claims_and_says_so() -> None:
    found = power(KNOWN, "int8", 1e-3)
    assert found.tokens is None
    assert found.executor_claims is not None
    assert found.executor_claims > 5
    assert "no " in found.reason


def test_tokens_are_estimated_where_no_measured_length_is_enough() -> None:
    """Claims of nearly one level: more tokens do help, by the square root."""
    same = Law(between=0.02)
    weak = Law(distance=0.0066, mismatch=0.02, between=0.02)
    known = profile(draws(same, 300, 0)).with_attack("weak", draws(weak, 64, 1))
    found = power(known, "weak", 1e-3)
    assert found.tokens is None
    assert found.tokens_estimated is not None
    assert 300 < found.tokens_estimated < 20_000


def test_claims_that_differ_more_than_the_attack_defeat_any_length() -> None:
    wide = Law(between=1.0)
    known = profile(draws(wide, 100, 0)).with_attack(
        "weak", draws(Law(0.0062, 0.02, between=1.0), 32, 1)
    )
    found = power(known, "weak", 1e-3)
    assert found.tokens is None
    assert found.tokens_estimated is None
    assert found.executor_claims is None
    assert "only many claims" in found.reason


def test_honest_claims_are_caught_at_no_more_than_the_rate() -> None:
    found = power(KNOWN, "honest", 1e-3)
    assert found.tokens is None
    assert found.executor_claims is None
    assert all(at.caught <= 1 for at in found.detection)


def test_a_mixture_needs_more_claims() -> None:
    whole, part = power(KNOWN, "int4"), power(KNOWN, "int4", mixture=0.3)
    assert whole.executor_claims is not None
    assert part.executor_claims is not None
    assert part.executor_claims > whole.executor_claims


def test_a_stricter_rate_needs_no_fewer_tokens() -> None:
    loose, strict = power(KNOWN, "int4", 0.05), power(KNOWN, "int4", 1e-4)
    assert loose.tokens is not None
    assert strict.tokens is None or strict.tokens >= loose.tokens


def test_the_same_question_has_the_same_answer() -> None:
    assert power(KNOWN, "int4") == power(KNOWN, "int4")


def test_an_unknown_attack_lists_those_known() -> None:
    with pytest.raises(ProfileError, match="known: honest, int4, int8"):
        power(KNOWN, "fp8")


def test_an_attack_without_a_common_statistic() -> None:
    known = profile(
        [measurement(f"c{i}", {"value_distance": np.full(64, 0.001 * i)}) for i in range(20)]
    ).with_attack("seed", [measurement("s", {"choice_mismatch": np.ones(64)})])
    with pytest.raises(ProfileError, match="no statistic in common"):
        power(known, "seed")


@pytest.mark.parametrize(
    "rates", [{"fpr": 0.0}, {"wanted": 0.0}, {"wanted": 1.5}, {"mixture": 0.0}, {"fpr": math.nan}]
)
def test_rates_that_are_none(rates: dict[str, float]) -> None:
    with pytest.raises(SettingsError):
        power(KNOWN, "int4", **rates)


def test_the_interval_of_a_rate() -> None:
    assert interval(0, 10) == pytest.approx((0.0, 0.3085), abs=1e-4)
    assert interval(10, 10) == pytest.approx((0.6915, 1.0), abs=1e-4)
    assert interval(5, 10) == pytest.approx((0.1871, 0.8129), abs=1e-4)
