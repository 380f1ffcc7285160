"""How an answer ended: stop strings, tool calls, the executor's context, the end token's chance."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.claims.account_claims import EOS, checks, claim, outcome
from tests.scoring.sides import claim_of, position, replay_of

from assay.claims.account import End, Known, with_replay
from assay.claims.claim import EngineIdentity, Evidence
from assay.claims.positions import IMPOSSIBLE

STOPPED = Known(eos_ids=(EOS,))
LN10 = math.log(10)


@pytest.mark.parametrize(
    ("decoded", "expected"),
    [
        ("one END", "pass"),
        ("one two", "fail"),
        ("one \ufffd two", "not_available"),
        (None, "not_available"),
    ],
)
def test_a_stop_string_must_stand_in_the_output(decoded: str | None, expected: str) -> None:
    asked = claim({"stop": ["END", "FIN"]})
    known = Known(eos_ids=(7,), decoded_output=decoded)
    assert outcome("finish_reason", asked, known) == expected


def test_with_stop_strings_an_end_token_still_ends() -> None:
    assert outcome("finish_reason", claim({"stop": "END"}), STOPPED) == "pass"
    unknown = Known(decoded_output="no end in it")
    assert outcome("finish_reason", claim({"stop": "END"}), unknown) == "not_available"


def test_ignore_eos_leaves_nothing_that_stops() -> None:
    assert outcome("finish_reason", claim({"ignore_eos": True}), STOPPED) == "fail"
    named = claim({"ignore_eos": True, "stop_token_ids": [EOS]})
    assert outcome("finish_reason", named, STOPPED) == "pass"


@pytest.mark.parametrize(
    ("limit", "eos", "expected"),
    [(8, EOS, "pass"), (3, 7, "pass"), (8, 7, "not_available"), (None, 7, "not_available")],
    ids=["at an end token", "cut by max_tokens", "perhaps by the context", "without a limit"],
)
def test_a_tool_call_ends_as_any_answer(limit: int | None, eos: int, expected: str) -> None:
    called = claim({"max_tokens": limit}, finish_reason="tool_calls")
    assert outcome("finish_reason", called, Known(eos_ids=(eos,))) == expected


@pytest.mark.parametrize(("context", "expected"), [(5, "pass"), (4096, "fail")])
def test_a_tool_call_cut_by_the_context_is_honest(context: int, expected: str) -> None:
    engine = EngineIdentity(max_model_len=context)
    called = claim({"max_tokens": 8}, finish_reason="tool_calls", engine=engine)
    assert outcome("finish_reason", called, Known(eos_ids=(7,))) == expected


@pytest.mark.parametrize(
    ("context", "expected"), [(5, "pass"), (4096, "fail"), (None, "not_available")]
)
def test_truncation_shows_in_the_context_that_the_executor_names(
    context: int | None, expected: str
) -> None:
    engine = EngineIdentity(max_model_len=context)
    cut = claim({"max_tokens": 8}, finish_reason="length", engine=engine)
    check = checks(cut)["finish_reason"]
    assert (check.outcome, check.code) == (expected, "false_finish_reason")


def test_the_executors_context_is_not_the_validators() -> None:
    """An honest executor with a small context, a validator with a large one."""
    small = claim({"max_tokens": 8}, finish_reason="length", engine=EngineIdentity(max_model_len=5))
    assert outcome("finish_reason", small, Known(max_model_len=4096)) == "pass"


def test_an_id_that_only_the_generation_config_makes_an_end_convicts_nobody() -> None:
    first, second = Known(eos_ids=(100, 7)), Known(eos_ids=(7, 100))
    assert outcome("end_inside", claim(), first) == "fail"
    assert outcome("end_inside", claim(), second) == "not_available"
    assert outcome("end_inside", claim({"stop_token_ids": [100]}), second) == "fail"


def chance(end: End | None, request: dict[str, Any] | None = None, **changes: Any) -> str:
    asked = claim({"temperature": 1.0} | (request or {}), **changes)
    return outcome("end_probability", asked, Known(eos_ids=(EOS,), end=end))


@pytest.mark.parametrize(
    ("digits", "expected"), [(0, "pass"), (7.9, "pass"), (8.1, "fail"), (300, "fail")]
)
def test_an_end_that_nothing_would_draw_was_put_there(digits: float, expected: str) -> None:
    """Truncated, with an end token written behind it: probability 10^-digits."""
    assert chance(End(processed=-digits * LN10)) == expected
    assert chance(End(raw=-digits * LN10 - 1.0, best_raw=-1.0)) == expected


def test_heat_makes_raw_numbers_prove_less() -> None:
    end = End(raw=-12 * LN10, best_raw=0.0)
    assert chance(end) == "fail"
    assert chance(end, {"temperature": 2.0}) == "pass"
    assert chance(End(raw=-5 * LN10, best_raw=0.0), {"temperature": 0.5}) == "fail"


def test_a_cut_off_end_convicts_only_far_from_the_cut() -> None:
    assert chance(End(processed=IMPOSSIBLE, raw=-5 * LN10, best_raw=0.0)) == "not_available"
    assert chance(End(processed=IMPOSSIBLE, raw=-7 * LN10, best_raw=0.0)) == "fail"
    assert chance(End(processed=IMPOSSIBLE)) == "not_available"
    assert chance(End(raw=IMPOSSIBLE, best_raw=-0.1)) == "fail"


@pytest.mark.parametrize(
    ("gap", "expected"), [(0.0, "pass"), (1.34, "pass"), (3.9, "pass"), (4.1, "fail")]
)
def test_a_greedy_end_must_be_nearly_the_likeliest(gap: float, expected: str) -> None:
    greedy = {"temperature": 0}
    assert chance(End(raw=-1 - gap, best_raw=-1.0), greedy) == expected
    assert chance(End(processed=-1 - gap, best_processed=-1.0), greedy) == expected


@pytest.mark.parametrize(
    "request_",
    [
        {"temperature": None},
        {"logit_bias": {"5": 10}},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.2},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
    ],
    ids=str,
)
def test_raw_numbers_bound_nothing_when_other_parameters_move_them(
    request_: dict[str, Any],
) -> None:
    end = End(raw=-300.0, best_raw=0.0)
    assert chance(end) == "fail"
    assert chance(end, request_) == "not_available"
    assert chance(End(processed=-300.0), request_) == "fail"


@pytest.mark.parametrize(
    ("end", "changes"),
    [
        (None, {}),
        (End(), {}),
        (End(processed=math.nan), {}),
        (End(raw=math.nan, best_raw=0.0), {}),
        (End(processed=-300.0), {"finish_reason": "length"}),
        (End(processed=-300.0), {"output_ids": (100, 101, 9)}),
    ],
)
def test_no_end_to_judge_is_no_outcome(end: End | None, changes: dict[str, Any]) -> None:
    assert chance(end, **changes) == "not_available"


def replay_sides(**fields: Any) -> Known:
    places = (position([(1, -0.5), (2, -1.5)]), position([(7, -3.0), (8, -0.25)]))
    ours = claim_of(places, output_ids=(1, 7))
    return with_replay(Known(), ours, replay_of(places, **fields))


def test_the_end_is_read_from_the_replays_last_position() -> None:
    raw = replay_sides(logprobs_mode="raw_logprobs").end
    assert raw == End(raw=-3.0, best_raw=-0.25)
    processed = replay_sides(logprobs_mode="processed_logprobs").end
    assert processed == End(processed=-3.0, best_processed=-0.25)
    assert replay_sides(logprobs_mode=None).end is None
    assert replay_sides(mode_source="inferred").end is None  # case 53


def test_the_plugins_evidence_gives_both_kinds() -> None:
    evidence = Evidence(
        runner="v1",
        drawn=(1, 7),
        rank_raw=(1, 3),
        rank_processed=(1, 9),
        logprob_raw=(-0.5, -3.0),
        logprob_processed=(-0.5, None),
    )
    end = replay_sides(evidence=evidence).end
    assert end == End(raw=-3.0, best_raw=-0.25, processed=IMPOSSIBLE)
    likeliest = evidence.model_copy(update={"rank_processed": (1, 1), "logprob_processed": (0, -1)})
    end = replay_sides(evidence=likeliest, logprobs_mode=None).end
    assert end == End(raw=-3.0, processed=-1.0, best_processed=-1.0)
    broken = evidence.model_copy(update={"complete": False})
    assert replay_sides(evidence=broken, logprobs_mode=None).end is None
