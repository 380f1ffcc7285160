"""Nulls: honest p-values at any length, both tails, counts, maxima, bit-equal engines."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scoring.simulated import (
    HONEST,
    INT4,
    Law,
    draws,
    group,
    key,
    measurement,
    profile,
)

from assay.scoring.constants import LADDER, MIN_CALIBRATION_CLAIMS
from assay.scoring.nulls import rounding_of
from assay.scoring.profile import Profile
from assay.scoring.samples import Prefixes, prefixes
from assay.scoring.tail import Least, critical_value, fit_tail, rank_p, upper_p


def rate_below(level: float, p_values: list[float]) -> float:
    return sum(p <= level for p in p_values) / len(p_values)


def most(level: float, count: int) -> float:
    """A rate that ``count`` draws of a valid p-value exceed once in about 30 000: 4 sigma."""
    return level + 4 * math.sqrt(level * (1 - level) / count)


@cache
def honest_profile(seed: int) -> Profile:
    return profile(draws(HONEST, 200, seed))


# --- the null


@pytest.mark.parametrize("length", [8, 21, 64, 100, 300])
@pytest.mark.parametrize("statistic", ["value_distance", "value_peak", "choice_mismatch"])
def test_honest_p_values_hold_at_every_length(statistic: str, length: int) -> None:
    """The claims are as far apart as their levels say, whatever the length: a null that took
    positions for independent would reject many of the long ones."""
    p_values: list[float] = []
    for seed in range(8):
        null = honest_profile(seed).nulls[statistic]
        for claim in draws(HONEST, 50, 1000 + seed, length):
            p = null.p_upper(claim.series[statistic])
            assert p is not None
            p_values.append(p)
    for level in (0.01, 0.05, 0.2):
        # Eight profiles of 200: their own luck moves the true rate by a fifth.
        assert rate_below(level, p_values) <= most(1.3 * level, len(p_values)), level


def test_a_position_by_position_null_would_convict_long_honest_claims() -> None:
    """What the test above protects from: pooled positions, central limit, no claim effect."""
    honest = draws(HONEST, 200, 0, 256)
    pooled = np.concatenate([claim.series["value_distance"] for claim in honest])
    limit = pooled.mean() + 3 * pooled.std() / 16
    fresh = draws(HONEST, 200, 1, 256)
    naive = sum(claim.statistics["value_distance"] > limit for claim in fresh)
    null = profile(honest).nulls["value_distance"]
    ours = sum((null.p_upper(c.series["value_distance"]) or 1) < 0.00135 for c in fresh)
    assert naive > 20
    assert ours <= 2


@pytest.mark.parametrize("between", [0.1, 0.3, 0.7])
def test_the_tail_beyond_the_largest_holds(between: float) -> None:
    """Where rank has nothing left to say, the tail's own p-values are honest too."""
    law = Law(between=between)
    rng = np.random.default_rng(3)

    def scores(count: int) -> np.ndarray:
        level = np.exp(law.between * rng.normal(size=count))
        return np.asarray(level * rng.gamma(64 * 1.2, 1 / (64 * 1.2), size=count))

    fresh = np.sort(scores(400_000))
    for level in (1e-3, 1e-4):
        exceeded = []
        for _ in range(60):
            critical = critical_value(scores(200), level)
            exceeded.append(1 - np.searchsorted(fresh, critical) / len(fresh))
        assert np.mean(exceeded) <= level, (between, level)


def test_short_claims_get_wider_nulls() -> None:
    """The same mean is less surprising from fewer positions."""
    null = profile(draws(Law(between=0.1), 200, 0)).nulls["value_distance"]
    short, middle, long = (null.p_upper([0.0085] * length) or 0 for length in (8, 24, 64))
    assert short > 3 * middle > 9 * long > 0


def test_int4_is_far_out_and_never_impossible() -> None:
    null = honest_profile(0).nulls["value_distance"]
    far = [null.p_upper(claim.series["value_distance"]) for claim in draws(INT4, 20, 1)]
    assert all(p is not None and 0 < p < 1e-4 for p in far)
    assert null.p_upper([0.5] * 64) > 0
    assert null.p_upper([1e300] * 64) > 0


def test_few_claims_say_less() -> None:
    few, many = profile(draws(HONEST, 20, 0)), profile(draws(HONEST, 200, 1))
    values = [0.02] * 64
    weak, strong = (p.nulls["value_distance"].p_upper(values) or 0 for p in (few, many))
    assert 1 / 21 >= weak > 3 * strong > 0


def test_a_profile_of_too_few_claims_gives_no_p_value() -> None:
    null = profile(draws(HONEST, MIN_CALIBRATION_CLAIMS - 1, 0)).nulls["value_distance"]
    assert null.p_upper([0.01] * 64) is None
    assert "20 are needed" in (null.why_not([0.01] * 64) or "")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_never_enters(bad: float) -> None:
    """A NaN in a series is no p-value, neither small nor large, and enters no profile."""
    null = profile(draws(HONEST, 40, 0)).nulls["value_distance"]
    values = [0.01] * 63 + [bad]
    assert null.p_upper(values) is None
    assert null.p_lower(values) is None
    assert "NaN" in (null.why_not(values) or "")
    with pytest.raises(ValueError, match="NaN"):
        prefixes("value_distance", values)


def test_too_few_positions_give_no_p_value_and_say_how_many_are_needed() -> None:
    null = profile(draws(HONEST, 40, 0)).nulls["value_distance"]
    assert null.p_upper([0.4] * 7) is None
    assert null.p_upper([]) is None
    assert "7 positions" in (null.why_not([0.4] * 7) or "")


def test_constant_and_all_zero_claims_are_ordinary_numbers() -> None:
    """They neither crash nor look extreme by being constant; whether they pass is not decided by
    the upper tail (all zero has none)."""
    null = profile(draws(HONEST, 100, 0)).nulls["value_distance"]
    assert null.p_upper([0.0] * 64) == 1.0
    assert 0.05 < (null.p_upper([0.006] * 64) or 0) <= 1


@given(st.lists(st.floats(0, 0.5), min_size=8, max_size=80))
@settings(max_examples=60, deadline=None)
def test_every_series_gets_a_p_value_above_0(values: list[float]) -> None:
    for null in SMALL.nulls.values():
        p = null.p_upper(values)
        assert p is not None
        assert 0 < p <= 1
        low = null.p_lower(values)
        assert low is None or 0 < low <= 1


SMALL = profile(draws(HONEST, 60, 0))


@given(st.floats(0, 0.2), st.floats(1.0, 3.0))
@settings(max_examples=60, deadline=None)
def test_a_larger_distance_never_has_a_larger_p_value(value: float, factor: float) -> None:
    null = SMALL.nulls["value_distance"]
    near, far = null.p_upper([value] * 64), null.p_upper([value * factor] * 64)
    assert near is not None
    assert far is not None
    assert far <= near


def test_counts_have_a_tail_even_where_no_honest_claim_had_one() -> None:
    """float32 against float32 rarely draws otherwise: many honest claims without a mismatch must
    still tell one from thirty of 64."""
    honest = [measurement(f"c{i}", {"choice_mismatch": np.zeros(64)}) for i in range(100)]
    null = profile(honest).nulls["choice_mismatch"]
    one = null.p_upper([1.0] + [0.0] * 63)
    many = null.p_upper([1.0] * 36 + [0.0] * 28)
    assert one == pytest.approx(1 / 101)
    assert many is not None
    assert many < 1e-3 / 3


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1e-5), ("bfloat16", 1e-2), (None, 1e-2)])
def test_bit_equal_engines_are_held_to_what_rounding_may_do(
    dtype: str | None, scale: float
) -> None:
    """All honest distances are 0: their scale is unknown, and the dtype's rounding stands in. A
    claim at that scale is not convicted, one at a thousand times it is."""
    zeros = [measurement(f"c{i}", {"value_distance": np.zeros(64)}) for i in range(100)]
    side = key().executor.model_copy(update={"dtype": dtype})
    k = key().model_copy(update={"executor": side, "validator": side})
    equal = group(zeros).model_copy(update={"key": k})
    null = Profile(name="m", path="decode", mode="raw_logprobs", groups=(equal,)).nulls
    small = null["value_distance"].p_upper([scale] * 64)
    large = null["value_distance"].p_upper([1000 * scale] * 64)
    assert small is not None
    assert large is not None
    assert large < 2.5e-5
    assert small > 1e-3


def test_the_coarser_dtype_of_the_two_sides_counts() -> None:
    assert rounding_of("value_distance", "float32", "bfloat16") == 1e-2
    assert rounding_of("value_distance", "torch.float32", "float32") == 1e-5
    assert rounding_of("value_distance", "float32", None) == 1e-2
    assert rounding_of("choice_mismatch", "bfloat16", "bfloat16") == 0.0


def test_a_long_claim_is_no_peak_by_its_length() -> None:
    """A maximum grows with the length: 300 positions of honest numbers are not extreme among
    claims of 64."""
    null = honest_profile(0).nulls["value_peak"]
    p_values = [null.p_upper(c.series["value_peak"]) or 0 for c in draws(HONEST, 100, 7, 300)]
    assert rate_below(0.05, p_values) <= most(0.065, 100)


def test_one_tampered_position_shows_in_the_peak_of_a_long_claim() -> None:
    null = profile(draws(HONEST, 200, 0, 300)).nulls
    claim = draws(HONEST, 1, 5, 300)[0]
    tampered = (*claim.series["value_peak"][:-1], 0.5)
    peak = null["value_peak"].p_upper(tampered)
    assert peak is not None
    assert peak < 1e-3


# --- too close


def test_laundered_numbers_are_too_close() -> None:
    """Numbers that the validator's own kind of run made have distance 0, where every honest claim
    was farther: no lower than one in the number of honest claims plus one."""
    null = honest_profile(0).nulls["value_distance"]
    assert null.p_lower([0.0] * 64) == 1 / 201
    fresh = [null.p_lower(c.series["value_distance"]) or 0 for c in draws(HONEST, 400, 9)]
    assert rate_below(0.05, fresh) <= most(0.065, 400)


def test_bit_equal_honest_engines_silence_the_lower_tail() -> None:
    zeros = [measurement(f"z{i}", {"value_distance": np.zeros(64)}) for i in range(3)]
    null = profile([*draws(HONEST, 100, 0), *zeros]).nulls["value_distance"]
    assert null.p_lower([0.0] * 64) is None
    assert "last bit" in (null.why_no_lower([0.0] * 64) or "")


def test_too_few_mismatches_are_no_evidence() -> None:
    null = profile(draws(HONEST, 100, 0)).nulls["choice_mismatch"]
    assert null.p_lower([0.0] * 64) is None
    assert "no evidence" in (null.why_no_lower([0.0] * 64) or "")


# --- tails by themselves


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=120),
    st.floats(0, 2),
    st.sampled_from([Least(), Least(grain=0.1), Least(scale=1e-5)]),
)
@settings(max_examples=100, deadline=None)
def test_the_tail_only_lowers_what_rank_leaves_open(
    scores: list[float], value: float, least: Least
) -> None:
    array = np.array(scores)
    p = upper_p(array, value, least)
    assert 0 < p <= rank_p(array, value)
    if value <= array.max():
        assert p == rank_p(array, value)


@given(st.integers(50, 300), st.sampled_from([0.2, 0.05, 1e-2, 1e-3, 1e-5]))
@settings(max_examples=60, deadline=None)
def test_the_critical_value_is_where_the_p_value_gets_there(count: int, level: float) -> None:
    scores = np.random.default_rng(count).gamma(3, size=count)
    at = critical_value(scores, level)
    assert upper_p(scores, at * (1 + 1e-9)) <= level * (1 + 1e-6)
    assert upper_p(scores, at * (1 - 1e-6)) >= level * (1 - 1e-3)


def test_no_tail_from_a_few_claims() -> None:
    assert fit_tail(np.arange(19.0)) is None
    assert critical_value(np.arange(19.0), 1e-3) == math.inf
    assert critical_value(np.arange(19.0), 1.0) == -math.inf
    assert fit_tail(np.arange(20.0)) is not None


def test_no_tail_from_equal_scores_of_unknown_scale() -> None:
    assert fit_tail(np.ones(60)) is None
    assert critical_value(np.ones(60), 1e-3) == math.inf
    assert fit_tail(np.ones(60), Least(scale=0.1)) is not None


# --- records


@given(st.integers(8, 700))
def test_prefixes_are_the_means_of_the_first_positions(length: int) -> None:
    values = np.random.default_rng(length).random(length)
    kept = prefixes("value_distance", values.tolist())
    assert kept.length == length
    for step, upto in enumerate(n for n in LADDER if n <= length):
        assert kept.values[step] == pytest.approx(values[:upto].mean(), rel=1e-8)
    assert kept.values[-1] == pytest.approx(values.mean(), rel=1e-8)
    assert len(kept.row()) == len(LADDER)


def test_a_record_with_numbers_missing_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 7"):
        Prefixes(length=64, values=(0.1, 0.2))
