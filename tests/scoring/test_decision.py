"""The rule that turns distances into pass, fail or cannot tell."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import gammainc
from tests.scoring.sides import position

from assay.errors import SettingsError
from assay.scoring import constants
from assay.scoring.arrays import Floats, build_arrays
from assay.scoring.decision import (
    Limits,
    choose_limits,
    decide,
    gamma_below,
    informative_positions,
    published_name,
)
from assay.scoring.value import distances

LIMITS = Limits(0.99, 0.01, 0.05, False, "a test")


def outcome(values: Floats, similarity: float = 0.5, limits: Limits = LIMITS) -> bool | None:
    every = np.ones(len(values), dtype=np.bool_)
    return decide(values, every, similarity, limits).outcome


@pytest.mark.parametrize("shape", [0.5, 1, 2, 5, 12, 48, 100, 1000, 30_000])
def test_gamma_law_against_scipy(shape: float) -> None:
    for factor in (0.01, 0.3, 0.9, 1.0, 1.1, 2.0, 10.0):
        expected = float(gammainc(shape, shape * factor))
        assert gamma_below(shape, shape * factor) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert gamma_below(shape, 0) == 0
    assert gamma_below(shape, math.inf) == 1


def test_the_minimum_for_a_pass_is_derived_from_the_mildest_cheat() -> None:
    share_that_looks_honest, luck = 0.55, 0.001
    derived = math.ceil(math.log(luck) / math.log(share_that_looks_honest))
    assert derived == constants.MIN_INFORMATIVE


@pytest.mark.parametrize(("count", "passes"), [(11, None), (12, True), (64, True)])
def test_identical_claims_pass_from_the_minimum_on(count: int, passes: bool | None) -> None:
    assert outcome(np.zeros(count)) is passes
    assert outcome(np.full(count, 1e-5)) is passes


def test_ten_honest_looking_positions_are_never_a_pass() -> None:
    for value in (0.0, 1e-5, 0.0036, 0.009):
        assert outcome(np.full(10, value)) is None


def test_the_nearer_the_limit_the_more_positions_are_needed() -> None:
    assert outcome(np.full(20, 0.008)) is None
    assert outcome(np.full(200, 0.008)) is True
    assert outcome(np.full(2000, 0.0101)) is None


def test_clearly_wrong_positions_fail_a_short_claim() -> None:
    assert outcome(np.full(4, 0.4)) is None
    assert outcome(np.full(5, 0.4)) is False
    assert outcome(np.full(48, 0.0845)) is False


def test_nobody_fails_by_distance_whom_the_published_rule_accepts() -> None:
    assert outcome(np.full(48, 0.0845), similarity=0.991) is None


def test_error_rates_at_the_limits() -> None:
    """An executor exactly at a limit is misjudged no more often than ERROR_RATE says."""
    rng = np.random.default_rng(0)
    trials = 4000
    for count in (12, 48, 200):
        at_pass = rng.exponential(LIMITS.pass_limit, size=(trials, count))
        at_fail = rng.exponential(LIMITS.fail_limit, size=(trials, count))
        passed = sum(outcome(row) is True for row in at_pass)
        failed = sum(outcome(row) is False for row in at_fail)
        # Four standard deviations of the count of misjudged.
        allowed = trials * constants.ERROR_RATE
        assert passed <= allowed + 4 * math.sqrt(allowed)
        assert failed <= allowed + 4 * math.sqrt(allowed)
        assert passed > 0
        assert failed > 0


def test_a_margin_over_all_positions_allows_informative_ones_more() -> None:
    values = np.concatenate([np.full(10, 0.12), np.zeros(90)])
    informative = values > 0
    whole = Limits(0.95, 0.05, 0.05, True, "a test")
    part = Limits(0.95, 0.05, 0.05, False, "a test")
    assert decide(values, informative, 0.5, whole).outcome is None
    assert decide(values, informative, 0.5, part).outcome is False


def test_no_informative_position_decides_nothing() -> None:
    nothing = decide(np.zeros(50), np.zeros(50, dtype=np.bool_), 1.0, LIMITS)
    assert nothing.outcome is None
    assert nothing.informative == 0
    assert nothing.mean is None


def test_what_is_informative() -> None:
    minus = -math.inf
    rows = [
        ([(1, 0.0), (0, minus)], [(1, 0.0), (2, minus)], False),  # both certain, of the same
        ([(1, 0.0), (0, minus)], [(2, 0.0), (0, minus)], True),  # certain of different tokens
        ([(1, 0.0), (0, minus)], [(1, -0.5), (2, -0.9)], True),  # one side sees alternatives
        ([(1, -0.1), (2, -3.0)], [(1, -0.1), (2, -3.0)], True),
        ([(1, -0.7), (2, -0.7)], [(1, -0.7), (2, -0.7)], False),  # constant on both sides
    ]
    arrays = build_arrays([position(c) for c, _, _ in rows], [position(r) for _, r, _ in rows])
    found = informative_positions(arrays, distances(arrays))
    assert found.tolist() == [expected for _, _, expected in rows]


def test_limits_of_a_given_threshold() -> None:
    limits = choose_limits(
        0.9, "MiniMaxAI/MiniMax-M2.7", "processed_logprobs", flat=False, cut=True
    )
    assert (limits.pass_limit, limits.fail_limit) == pytest.approx((0.1, 0.1))
    assert limits.over_all_positions


@pytest.mark.parametrize("threshold", [1.0, -0.1, math.nan, 2.0])
def test_a_threshold_that_is_none_is_refused(threshold: float) -> None:
    with pytest.raises(SettingsError, match="threshold"):
        choose_limits(threshold, None, None, flat=False, cut=True)


def test_published_thresholds_hold_for_processed_mode_only() -> None:
    name = "MiniMaxAI/MiniMax-M2.7"
    processed = choose_limits(None, name, "processed_logprobs", flat=False, cut=True)
    unknown = choose_limits(None, name, None, flat=False, cut=True)
    raw = choose_limits(None, name, "raw_logprobs", flat=False, cut=True)
    assert processed == unknown
    assert processed.similarity == 0.922
    assert raw.similarity == 0.99
    assert "not calibrated" in raw.source


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("moonshotai/Kimi-K2.6", "Kimi-K2.6"),
        ("zai-org/glm-5.3-fp8", "GLM-5.3"),
        ("Qwen/QwQ-32B", None),
        (None, None),
        ("", None),
    ],
)
def test_which_model_has_a_published_threshold(model: str | None, name: str | None) -> None:
    assert published_name(model) == name


def test_case_51_flat_claims_have_a_wider_fail_limit_and_no_wider_pass_limit() -> None:
    plain = choose_limits(None, None, "raw_logprobs", flat=False, cut=True)
    flat = choose_limits(None, None, "raw_logprobs", flat=True, cut=True)
    assert flat.fail_limit == pytest.approx(1 - 0.8616)
    assert flat.pass_limit == plain.pass_limit


def test_where_nobody_declares_a_mode_padding_decides_which_limit_holds() -> None:
    whole = choose_limits(None, None, None, flat=False, cut=False)
    cut = choose_limits(None, None, None, flat=False, cut=True)
    raw = choose_limits(None, None, "raw_logprobs", flat=False, cut=True)
    assert whole.fail_limit == raw.fail_limit == constants.RAW_FAIL_LIMIT
    assert cut.fail_limit == constants.PROCESSED_FAIL_LIMIT
