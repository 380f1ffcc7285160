"""The account channel: counts, reasons and ids that contradict each other."""

from __future__ import annotations

from typing import Any

import pytest
from tests.claims.account_claims import checks, claim, outcome
from tests.claims.bodies import completion

from assay.claims.account import End, Known, check_account
from assay.claims.claim import Claim, Prompt, ToolCall, Usage
from assay.claims.read_json import read_response

HONEST = Known(
    vocab_size=1000,
    eos_ids=(102,),
    max_model_len=4096,
    replayed_tokens=3,
    end=End(raw=-0.5, best_raw=-0.5),
    rendered_prompt_ids=(1, 2),
    decoded_output="one two three",
)


def test_an_honest_claim_passes_what_can_be_checked() -> None:
    request = {"max_tokens": 8, "min_tokens": 2, "temperature": 1.0}
    honest = claim(request, usage=Usage(prompt_tokens=2, completion_tokens=3, total_tokens=5))
    outcomes = {name: check.outcome for name, check in checks(honest, HONEST).items()}
    assert outcomes == {
        "output_count": "pass",
        "inflated": "pass",
        "usage_total": "pass",
        "ids_in_range": "pass",
        "max_tokens": "pass",
        "min_tokens": "pass",
        "finish_reason": "pass",
        "end_inside": "pass",
        "end_probability": "pass",
        "prompt_ids": "not_available",
        "prompt_digest": "pass",
        "prompt_render": "pass",
        "prompt_count": "pass",
        "text": "pass",
        "tool_calls": "not_available",
    }


def test_every_check_gives_a_reason_even_with_nothing_known() -> None:
    empty = Claim(id="x", endpoint="chat", prompt=claim().prompt)
    for check in check_account(empty, Known()):
        assert check.reason
        assert check.outcome != "fail"


@pytest.mark.parametrize(("counted", "outcome"), [(2, "fail"), (3, "pass"), (5, "fail")])
def test_output_count(counted: int, outcome: str) -> None:
    changed = claim(usage=Usage(completion_tokens=counted), finish_reason="length")
    assert checks(changed)["output_count"].outcome == outcome
    assert checks(changed)["output_count"].code == "position_gap"


def test_case_9_one_end_token_may_be_missing_after_a_stop() -> None:
    usage = Usage(completion_tokens=4)
    assert checks(claim(usage=usage))["output_count"].outcome == "pass"
    assert checks(claim(usage=usage, finish_reason="length"))["output_count"].outcome == "fail"


def test_an_end_that_is_shown_is_not_counted_once_more() -> None:
    """Usage inflated by one, with the excuse of case 9 although nothing was left out."""
    usage = Usage(completion_tokens=4)
    assert outcome("output_count", claim(usage=usage), Known(eos_ids=(102,))) == "fail"
    assert outcome("output_count", claim(usage=usage), Known(eos_ids=(7,))) == "pass"


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((2, 3, 5), "pass"), ((2, 3, 6), "fail"), ((2, 3, None), "not_available")],
)
def test_the_total_is_the_sum(counts: tuple[int | None, ...], expected: str) -> None:
    prompt, completion, total = counts
    usage = Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total)
    assert outcome("usage_total", claim(usage=usage)) == expected


@pytest.mark.parametrize(("counted", "outcome"), [(3, "pass"), (6, "pass"), (7, "fail")])
def test_inflated_usage_is_more_than_three_above_the_replay(counted: int, outcome: str) -> None:
    changed = claim(usage=Usage(completion_tokens=counted))
    assert checks(changed, Known(replayed_tokens=3))["inflated"].outcome == outcome


@pytest.mark.parametrize(
    ("size", "outcome", "position"),
    [(1000, "pass", None), (202, "fail", 2), (101, "fail", 1), (None, "not_available", None)],
)
def test_case_46_ids_outside_the_vocabulary(
    size: int | None, outcome: str, position: int | None
) -> None:
    check = checks(claim(), Known(vocab_size=size))["ids_in_range"]
    assert (check.outcome, check.position) == (outcome, position)


def test_case_46_a_negative_id_is_in_no_vocabulary() -> None:
    check = checks(claim(output_ids=(100, -1, 102)))["ids_in_range"]
    assert (check.outcome, check.position) == ("fail", 1)


def test_more_tokens_than_max_tokens() -> None:
    assert checks(claim({"max_tokens": 2}))["max_tokens"].outcome == "fail"
    assert checks(claim({"max_completion_tokens": 3}))["max_tokens"].outcome == "pass"
    assert checks(claim({"max_tokens": True}))["max_tokens"].outcome == "not_available"


@pytest.mark.parametrize(
    ("limit", "context", "outcome"),
    [
        (3, None, "pass"),
        (8, None, "not_available"),
        (8, 5, "pass"),
        (8, 100, "fail"),
        (None, 100, "not_available"),
    ],
)
def test_finish_reason_length(limit: int | None, context: int | None, outcome: str) -> None:
    request = {} if limit is None else {"max_tokens": limit}
    check = checks(claim(request, finish_reason="length"), Known(max_model_len=context))
    assert check["finish_reason"].outcome == outcome


@pytest.mark.parametrize(
    ("request_", "eos", "outcome"),
    [
        ({}, (102,), "pass"),
        ({}, (7,), "fail"),
        ({"stop_token_ids": [102]}, (7,), "pass"),
        ({"stop": ["x"]}, (7,), "not_available"),
        ({}, None, "not_available"),
    ],
)
def test_finish_reason_stop(
    request_: dict[str, Any], eos: tuple[int, ...] | None, outcome: str
) -> None:
    assert checks(claim(request_), Known(eos_ids=eos))["finish_reason"].outcome == outcome


def test_tokens_after_the_end_are_padding() -> None:
    known = Known(eos_ids=(100,))
    check = checks(claim(), known)["end_inside"]
    assert (check.outcome, check.position) == ("fail", 0)
    assert checks(claim({"ignore_eos": True}), known)["end_inside"].outcome == "not_available"
    assert checks(claim({"min_tokens": 2}), known)["end_inside"].outcome == "pass"


def test_prompt_ids_of_the_request_must_be_those_that_ran() -> None:
    same = read_response(completion(), {"prompt": [1, 2]})
    other = read_response(completion(), {"prompt": [1, 3]})
    assert checks(same)["prompt_ids"].outcome == "pass"
    assert checks(other)["prompt_ids"].outcome == "fail"


def test_prompt_tokens_are_counted() -> None:
    changed = claim(usage=Usage(prompt_tokens=90, completion_tokens=3))
    assert checks(changed)["prompt_count"].outcome == "fail"


@pytest.mark.parametrize(
    ("request_", "reason", "counted", "expected"),
    [
        ({}, "stop", 3, "not_available"),
        ({"min_tokens": 3}, "stop", 3, "pass"),
        ({"min_tokens": 4}, "stop", 3, "fail"),
        ({"min_tokens": 4}, "tool_calls", 3, "fail"),
        ({"min_tokens": 4, "max_tokens": 9}, "length", 3, "fail"),
        ({"min_tokens": 4}, "stop", 4, "pass"),
        ({"min_tokens": 4, "max_tokens": 3}, "length", 3, "not_available"),
        ({"min_tokens": 4}, "abort", 3, "not_available"),
        ({"min_tokens": "4"}, "stop", 3, "not_available"),
    ],
)
def test_case_59_an_answer_that_ends_before_min_tokens(
    request_: dict[str, Any], reason: str, counted: int, expected: str
) -> None:
    changed = claim(request_, finish_reason=reason, usage=Usage(completion_tokens=counted))
    check = checks(changed)["min_tokens"]
    assert (check.outcome, check.code) == (expected, "under_min_tokens")


HOSTILE: list[Any] = [None, True, -1, 10**30, 1.5, float("nan"), "x", [], [None], {"a": [1]}, [[]]]


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_hostile_request_values_break_no_check(value: Any) -> None:
    fields = (
        *("max_tokens", "max_completion_tokens", "min_tokens", "stop", "stop_token_ids"),
        *("temperature", "tools", "tool_choice", "echo", "ignore_eos", "prompt", "response_format"),
        *("include_stop_str_in_output", "logit_bias", "repetition_penalty"),
    )
    for reason in ("stop", "length", "tool_calls", None):
        hostile = claim(dict.fromkeys(fields, value), finish_reason=reason)
        for check in check_account(hostile, HONEST):
            assert check.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"output_ids": (10**30,)},
        {"output_ids": ()},
        {"output_ids": None, "positions": None},
        {"output_text": "\ud800\0\ufffd"},
        {"prompt": Prompt(token_ids=(), digest="")},
        {"prompt": Prompt(token_ids=(10**30,), digest="x")},
        {"prompt": Prompt(messages=({"role": 3},), token_ids=(1,))},
        {"usage": Usage(completion_tokens=10**30, prompt_tokens=0, total_tokens=0)},
        {"tool_calls": (ToolCall(name="\0", arguments="[" * 5000),)},
        {"tool_calls": (ToolCall(arguments='{"a": NaN}'), ToolCall(arguments="9" * 5000))},
    ],
)
def test_hostile_claims_break_no_check(changes: dict[str, Any]) -> None:
    for check in check_account(claim(**changes), HONEST):
        assert check.reason
