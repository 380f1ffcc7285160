"""Several channels, one verdict, one stated false-positive rate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import SettingsError
from assay.scoring.channels import ChannelName, ChannelOutcome, ChannelResult
from assay.scoring.combine import bonferroni, combine, holm

P_VALUES = st.floats(1e-12, 1.0)


def channel(name: ChannelName, outcome: ChannelOutcome = "pass", **fields: Any) -> ChannelResult:
    return ChannelResult(name=name, outcome=outcome, reason=f"{name} says so", code="x", **fields)


def test_all_pass() -> None:
    found = combine([channel("value", p_value=0.4), channel("choice", p_value=0.2)], 0.001)
    assert found.outcome == "pass"
    assert found.p_value == pytest.approx(0.4)
    assert found.tests == 2
    assert found.failed == ()


def test_the_failing_channel_is_named_with_its_tail() -> None:
    found = combine([channel("value", p_value=0.4), channel("choice", p_value=1e-6)], 0.001)
    assert found.outcome == "fail"
    assert found.failed == ("choice",)
    assert found.tests_failed[0].tail == "upper"
    assert "too far" in found.reason
    assert "rate 0.001" in found.reason


def test_laundered_evidence_fails_by_being_too_close() -> None:
    found = combine([channel("value", p_value=1.0, p_low=1e-6)], 0.001)
    assert found.outcome == "fail"
    assert found.tests_failed[0].tail == "lower"
    assert "too close" in found.reason


def test_a_p_value_must_pay_for_the_others_looked_at() -> None:
    """0.0008 is below 0.001 alone, not as the best of two."""
    assert combine([channel("value", p_value=0.0008)], 0.001).outcome == "fail"
    both = [channel("value", p_value=0.0008), channel("choice", p_value=0.5)]
    assert combine(both, 0.001).outcome == "pass"


def test_a_check_that_no_honest_claim_fails_needs_no_p_value() -> None:
    found = combine([channel("value", p_value=0.5), channel("account", "fail")], 0.001)
    assert found.outcome == "fail"
    assert found.failed == ("account",)
    assert "account says so" in found.reason


def test_a_fail_at_another_rate_is_undecided_here() -> None:
    found = combine([channel("value", "fail", p_value=0.005)], 0.001)
    assert found.outcome == "inconclusive"


@pytest.mark.parametrize(
    "channels",
    [
        [],
        [channel("value", "not_available"), channel("choice", "not_available")],
        [channel("account", "pass")],
        [channel("account", "pass"), channel("value", "not_available")],
        [channel("value", "pass", p_value=0.5), channel("choice", "inconclusive", p_value=0.5)],
    ],
)
def test_nothing_looked_at_or_undecided_never_passes_and_never_fails(
    channels: list[ChannelResult],
) -> None:
    found = combine(channels, 0.001)
    assert found.outcome == "inconclusive"
    assert found.reason


def test_not_available_is_neither_for_nor_against() -> None:
    found = combine([channel("value", p_value=0.5), channel("choice", "not_available")], 0.001)
    assert found.outcome == "pass"
    assert found.reason == "passed: value"


@pytest.mark.parametrize("fpr", [0.0, -0.1, 0.5, 1.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(fpr: float) -> None:
    with pytest.raises(SettingsError, match="false-positive rate"):
        combine([], fpr)


@given(st.lists(P_VALUES, min_size=1, max_size=6), st.floats(1e-6, 0.4))
def test_holm_convicts_as_a_whole_exactly_when_bonferroni_does(
    p_values: list[float], alpha: float
) -> None:
    adjusted = holm(p_values)
    assert min(adjusted) == pytest.approx(bonferroni(p_values))
    assert all(a >= p for a, p in zip(adjusted, p_values, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert all(np.diff(np.array(adjusted)[order]) >= 0)
    assert all(a >= min(1.0, len(p_values) * min(p_values)) - 1e-12 for a in adjusted)
    assert (min(adjusted) <= alpha) == (bonferroni(p_values) <= alpha)


@pytest.mark.parametrize("correlation", [0.0, 0.9, 1.0])
def test_honest_claims_fail_at_most_at_the_stated_rate_however_dependent(
    correlation: float,
) -> None:
    """Three channels that look at the same tokens: normal scores with a common part."""
    rng = np.random.default_rng(int(correlation * 10))
    own, common = rng.normal(size=(1500, 3)), rng.normal(size=(1500, 1))
    scores = math.sqrt(1 - correlation) * own + math.sqrt(correlation) * common
    p_values = [[0.5 * math.erfc(z / math.sqrt(2)) for z in row] for row in scores]
    failed = sum(
        combine(
            [
                channel("value", p_value=p[0], p_low=p[1]),
                channel("choice", p_value=p[2]),
            ],
            0.05,
        ).outcome
        == "fail"
        for p in p_values
    )
    assert failed / 1500 <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / 1500)
