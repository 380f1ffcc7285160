"""The arithmetic of the detection table, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from assay.attacks.figures import Rate, auc, claims_needed, clopper_pearson
from assay.errors import SettingsError

numbers = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=12)


def test_auc_of_small_cases() -> None:
    assert auc([1, 2], [3, 4]) == 1.0
    assert auc([3, 4], [1, 2]) == 0.0
    assert auc([1, 1], [1, 1]) == 0.5
    assert auc([1, 3], [2, 4]) == 0.75
    assert auc([0, 0, 0, 1], [0, 1]) == pytest.approx((1.5 + 3.5) / 8)


@given(numbers, numbers)
def test_auc_counts_pairs(honest: list[float], cheating: list[float]) -> None:
    pairs = [(a < b) + (a == b) / 2 for a in honest for b in cheating]
    assert auc(honest, cheating) == pytest.approx(sum(pairs) / len(pairs))


def test_nothing_compared_is_no_figure() -> None:
    """A side without a finite value gives no AUC: neither a good one nor a bad one."""
    assert auc([], [1.0]) is None
    assert auc([1.0], [math.nan]) is None
    assert claims_needed([1.0], [], 0.9) is None
    assert Rate(0, 0).share is None
    assert Rate(0, 0).interval == (0.0, 1.0)
    assert Rate(0, 0).text() == "-"


def test_not_finite_values_are_left_out() -> None:
    assert auc([1.0, math.nan, math.inf], [2.0, -math.inf]) == 1.0


def test_clopper_pearson_covers_what_it_says() -> None:
    low, high = clopper_pearson(31, 32)
    assert stats.binom.sf(30, 32, low) == pytest.approx(0.025)
    assert stats.binom.cdf(31, 32, high) == pytest.approx(0.025)
    assert clopper_pearson(0, 32)[0] == 0.0
    assert clopper_pearson(32, 32) == (pytest.approx(0.025 ** (1 / 32)), 1.0)
    for wrong in ((3, 2), (-1, 2)):
        with pytest.raises(SettingsError, match="no rate"):
            clopper_pearson(*wrong)
    with pytest.raises(SettingsError, match="coverage"):
        clopper_pearson(1, 2, math.nan)


def test_more_claims_tell_more() -> None:
    honest = stats.norm.ppf([(i + 0.5) / 50 for i in range(50)]).tolist()
    cheating = [value + 0.5 for value in honest]
    alone = auc(honest, cheating)
    assert alone == pytest.approx(stats.norm.cdf(0.5 / math.sqrt(2)), abs=0.01)
    size, reached = claims_needed(honest, cheating, 0.95)
    # sqrt(m) * 0.5 / sqrt(2) >= 1.645 needs m >= 21.6.
    assert size == 32 and reached >= 0.95
    assert claims_needed(honest, honest, 0.95) is None
    assert claims_needed(honest, [v + 10 for v in honest], 0.95) == (1, 1.0)
