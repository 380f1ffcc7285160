"""Evidence over an executor's claims: honest streams stay below the limit, mixtures show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scoring.simulated import HONEST, INT4, INT8, Law, draws, group, measurement, profile

from assay.errors import SettingsError
from assay.scoring.evalues import Accumulated, Wealth, accumulate
from assay.scoring.measure import Measurement
from assay.scoring.profile import Profile
from assay.scoring.samples import record_of
from assay.scoring.share import claim_p


def stream(known: Profile, measured: Sequence[Measurement], fpr: float = 1e-3) -> Accumulated:
    return accumulate([(known, m) for m in measured], fpr)


def mixture(share: float, count: int, seed: int, cheat: Law) -> list[Measurement]:
    honest, other = draws(HONEST, count, seed), draws(cheat, count, seed + 1)
    cheats = np.random.default_rng(seed).random(count) < share
    return [o if c else h for h, o, c in zip(honest, other, cheats, strict=True)]


def test_honest_executors_are_convicted_at_most_at_the_stated_rate() -> None:
    """40 executors of 30 claims at rate 0.1, looked at after every claim: each executor has its
    own profile, since the luck of a profile is part of the risk."""
    convicted = 0
    for seed in range(40):
        known = profile(draws(HONEST, 60, seed))
        convicted += stream(known, draws(HONEST, 30, 5000 + seed), 0.1).outcome == "convicted"
    # 4 expected at most; 12 or more happen once in 2000.
    assert convicted <= 11


def test_a_small_profile_does_not_repeat_its_luck_in_every_claim() -> None:
    """Against 20 fixed honest claims the same lucky draw would count again and again; ranking the
    executor's own claims among them ends that, over however many claims."""
    convicted = 0
    for seed in range(20):
        known = profile(draws(HONEST, 20, seed))
        convicted += stream(known, draws(HONEST, 120, 7000 + seed), 0.1).outcome == "convicted"
    # 2 expected at most; 8 or more happen once in 2000.
    assert convicted <= 7


def test_wealth_is_a_fair_game() -> None:
    """The expected e-value of one uniform p-value is 1, by integration."""
    paid = []
    for p in (np.arange(2000) + 0.5) / 2000:
        wealth = Wealth()
        wealth.bet(float(p))
        paid.append(math.exp(wealth.log_e))
    # The midpoint rule misses a part of the pole at 0, so it errs below 1.
    assert 0.85 < np.mean(paid) <= 1.0


@pytest.mark.parametrize("p", [0.0, -0.1, 1.1, math.nan, math.inf])
def test_what_is_no_p_value_is_no_bet(p: float) -> None:
    with pytest.raises(ValueError, match="p-value"):
        Wealth().bet(p)


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=50))
@settings(deadline=None)
def test_wealth_stays_a_positive_number(p_values: list[float]) -> None:
    wealth = Wealth()
    for p in p_values:
        wealth.bet(p)
    assert math.isfinite(wealth.log_e)


def test_a_mixture_of_30_percent_cheating_accumulates() -> None:
    known = profile(draws(HONEST, 200, 0))
    found = stream(known, mixture(0.3, 80, 20, INT4))
    assert found.outcome == "convicted"
    assert found.convicted_at is not None
    assert found.convicted_at <= 60
    assert found.share is not None
    assert found.share.low > 0.1
    assert found.share.low <= 0.3 <= found.share.high
    assert 0.1 < found.share.share < 0.45


def test_weak_evidence_adds_up() -> None:
    """int8: hardly any single claim fails, the executor does."""
    known = profile(draws(HONEST, 200, 0))
    claims = draws(INT8, 40, 3)
    alone = sum((claim_p(known, record_of(claim)) or 1) <= 1e-3 for claim in claims)
    found = stream(known, claims)
    assert alone <= 4
    assert found.outcome == "convicted"
    assert "claim" in found.reason


def test_the_share_of_an_honest_executor_includes_none() -> None:
    known = profile(draws(HONEST, 200, 0))
    found = stream(known, draws(HONEST, 100, 50))
    assert found.outcome == "not_shown"
    assert found.share is not None
    assert found.share.low == 0.0
    assert found.e_value is not None
    assert found.e_value < 10


def test_the_share_interval_covers() -> None:
    """Over 20 executors that cheat (visibly) in 30 % of 60 claims each."""
    covered = 0
    for seed in range(20):
        known = profile(draws(HONEST, 100, seed % 4))
        share = stream(known, mixture(0.3, 60, 900 + 2 * seed, Law(0.2, 0.6))).share
        assert share is not None
        covered += share.low <= 0.3 <= share.high
    assert covered >= 17


def test_laundered_claims_add_up_by_being_too_close() -> None:
    """Distance 0 at every claim, where no honest claim of the profile had it: one claim says
    1/201, twenty say enough."""
    known = profile(draws(HONEST, 200, 0))
    claims = [measurement(f"l{i}", {"value_distance": np.zeros(64)}) for i in range(20)]
    found = stream(known, claims)
    assert found.outcome == "convicted"
    assert found.by_statistic["value_distance (too close)"] > 1000
    assert "too close" in found.reason


def test_exact_zeros_are_honest_where_the_profile_has_them() -> None:
    zeros = [measurement(f"z{i}", {"value_distance": np.zeros(64)}) for i in range(40)]
    found = stream(profile(zeros), zeros[:30])
    assert found.outcome == "not_shown"
    assert "value_distance (too close)" not in found.by_statistic


def test_differences_that_are_rounding_never_add_up() -> None:
    """An executor that answers one request at a time differs by 1e-6 from a profile of batches of
    eight, where every distance is 0: each claim outranks all honest ones, and none is suspicious."""
    known = profile([measurement(f"z{i}", {"value_distance": np.zeros(64)}) for i in range(100)])
    alone = [measurement(f"a{i}", {"value_distance": np.full(64, 1e-6)}) for i in range(100)]
    found = stream(known, alone)
    assert found.outcome == "not_shown"
    assert found.e_peak is not None
    assert found.e_peak <= 1.0


def test_an_executor_is_honest_if_it_is_so_under_one_run() -> None:
    """Two honest runs under different load: in one pool the claims of the farther run would rank
    high again and again; apart, they are held to their own."""
    near, far = Law(distance=0.005, between=0.1), Law(distance=0.008, between=0.1)
    groups = tuple(
        group(draws(law, 100, seed)).model_copy(update={"run": name})
        for law, seed, name in ((near, 0, "alone"), (far, 1, "busy"))
    )
    apart = Profile(name="m", path="decode", mode="raw_logprobs", groups=groups)
    pooled = profile([*draws(near, 100, 0), *draws(far, 100, 1)])
    claims = [
        m.model_copy(update={"series": {"value_distance": m.series["value_distance"]}})
        for m in draws(far, 100, 2)
    ]
    mixed, held = stream(pooled, claims), stream(apart, claims)
    assert held.outcome == "not_shown"
    assert mixed.e_peak is not None
    assert held.e_peak is not None
    assert held.e_peak < 2 < 5 * held.e_peak < mixed.e_peak
    assert stream(apart, draws(INT4, 20, 3)).outcome == "convicted"


def test_all_zero_and_constant_claims_never_convict_by_themselves() -> None:
    known = profile([*draws(HONEST, 100, 0), measurement("z", {"value_distance": np.zeros(64)})])
    for value in (0.0, 0.006):
        claims = [measurement(f"c{i}", {"value_distance": np.full(64, value)}) for i in range(30)]
        assert stream(known, claims).outcome == "not_shown"


def test_nothing_measured_is_not_available() -> None:
    known = profile(draws(HONEST, 30, 0))
    short = measurement("s", {"value_distance": np.ones(3)})
    nan = draws(HONEST, 1, 1)[0].model_copy(update={"series": {"value_distance": (math.nan,) * 64}})
    for measured in ([], [(None, short)], [(known, short)], [(known, nan)]):
        found = accumulate(measured, 1e-3)
        assert found.outcome == "not_available"
        assert found.e_value is None
        assert found.share is None
        assert found.skipped == len(measured)


def test_claims_without_a_profile_are_counted_as_skipped() -> None:
    known = profile(draws(HONEST, 30, 0))
    claims = draws(HONEST, 5, 1)
    found = accumulate([*((known, c) for c in claims), (None, claims[0])], 1e-3)
    assert (found.claims, found.skipped) == (5, 1)


def test_a_statistic_that_comes_late_does_not_lift_what_was_lost() -> None:
    """The mean runs over all games from the start."""
    known = profile(draws(HONEST, 100, 0))
    claims = draws(HONEST, 30, 4)
    values_only = [
        c.model_copy(update={"series": {"value_distance": c.series["value_distance"]}})
        for c in claims
    ]
    before = stream(known, values_only).e_value
    calm = measurement("m", {"choice_mismatch": np.zeros(64)})
    after = stream(known, [*values_only, calm]).e_value
    assert before is not None
    assert after is not None
    assert after <= before


def test_a_few_blatant_claims_convict_where_ranks_are_too_coarse() -> None:
    """A profile of 48 claims ranks no claim below 1/49; the tail of one claim is enough."""
    known = profile(draws(HONEST, 48, 0))
    found = stream(known, [*draws(HONEST, 6, 1), *draws(Law(0.3, 0.9), 1, 2)], 0.01)
    assert found.outcome == "convicted"
    assert (found.convicted_by, found.convicted_at) == ("single_claim", 7)
    assert "claim 7 alone" in found.reason


@pytest.mark.parametrize("fpr", [0.0, 1.0, math.nan])
def test_a_rate_that_is_none_is_refused(fpr: float) -> None:
    with pytest.raises(SettingsError, match="rate"):
        accumulate([], fpr)


def test_evidence_without_end_stays_a_number() -> None:
    known = profile(draws(HONEST, 100, 0))
    found = stream(known, draws(Law(0.3, 0.9), 400, 5))
    assert found.e_value is not None
    assert math.isfinite(found.e_value)
    assert found.model_dump_json()
