"""One JSON answer into a claim, and everything a body can hide."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tests.claims.bodies import DATA, chat, completion, entry, id_entries, needs_data

from assay.claims.claim import Claim
from assay.claims.positions import IMPOSSIBLE
from assay.claims.read_json import read_replay, read_response
from assay.errors import ClaimError


def refused(body: Any, request: dict[str, Any] | None = None) -> ClaimError:
    with pytest.raises(ClaimError) as error:
        read_response(body, request)
    return error.value


def positions(claim: Claim) -> Any:
    assert claim.positions is not None
    return claim.positions


def test_chat_answer() -> None:
    claim = read_response(chat(), {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
    assert claim.endpoint == "chat"
    assert claim.id == "chatcmpl-1"
    assert claim.output_ids == (100, 101, 102)
    assert claim.prompt.token_ids == (1, 2)
    assert claim.prompt.source == "response"
    assert claim.prompt.messages == ({"role": "user", "content": "hi"},)
    assert claim.usage.completion_tokens == 3
    assert claim.engine.model == "m"
    assert [top.key for top in positions(claim)[1].top] == [101, 201, 9]
    assert claim.warnings == ()


def test_completions_answer() -> None:
    claim = read_response(completion(), {"prompt": "say"})
    assert claim.endpoint == "completions"
    assert claim.output_ids == (100, 101)
    assert claim.prompt.text == "say"
    assert claim.prompt.token_ids == (1, 2)
    assert {top.key: top.logprob for top in positions(claim)[1].top} == {8: -0.125, 101: -0.5}


def test_completions_prompt_sent_as_ids_is_known_without_the_response() -> None:
    claim = read_response(completion(choice={"prompt_token_ids": None}), {"prompt": [5, 6]})
    assert claim.prompt.token_ids == (5, 6)
    assert claim.prompt.source == "request"


def test_bytes_text_and_parsed_bodies_read_alike() -> None:
    text = json.dumps(chat())
    assert read_response(text) == read_response(text.encode()) == read_response(chat())


def test_case_2_every_field_of_the_request_is_kept() -> None:
    request = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "logit_bias": {"5": -100},
        "bad_words": ["x"],
        "min_tokens": 3,
        "seed": 7,
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "response_format": {"type": "json_object"},
        "vllm_xargs": {"unknown": 1},
    }
    claim = read_response(chat(), request | {"stream": True, "stream_options": {"x": 1}})
    assert claim.request == request


def test_case_53_the_mode_is_the_requests_own_and_never_guessed() -> None:
    low = [
        entry(
            "token_id:10", -0.2, [("token_id:10", -0.2), ("token_id:1", -1.9), ("token_id:3", -3)]
        )
        for _ in range(20)
    ]
    body = chat(low, choice={"token_ids": [10] * 20})
    assert read_response(body).logprobs_mode is None
    assert read_response(body, {"logprobs_mode": "raw_logprobs"}).logprobs_mode == "raw_logprobs"


def test_case_7_empty_alternatives_are_kept_as_such() -> None:
    claim = read_response(chat([entry("token_id:100", -0.2, [])]))
    assert positions(claim)[0].top == ()
    assert positions(claim)[0].logprob == -0.2
    assert any("case 7" in warning for warning in claim.warnings)


def test_case_8_padding_is_not_counted_as_evidence() -> None:
    real = [(f"token_id:{100 + i}", -0.1 - i) for i in range(20)]
    padding = [(f"token_id:{500 + i}", -9999.0) for i in range(30)]
    claim = read_response(chat([entry("token_id:100", -0.1, real + padding)]))
    assert len(positions(claim)[0].top) == 50
    assert positions(claim)[0].effective_k == 20
    assert any("20 of 50" in warning for warning in claim.warnings)


UNNAMED = {"token": "", "logprob": -9999.0, "bytes": [], "top_logprobs": []}


@pytest.mark.parametrize("counted", [3, 4])
def test_case_9_a_last_position_without_a_name_is_left_out(counted: int) -> None:
    body = chat(
        [*id_entries(), UNNAMED],
        choice={"token_ids": None},
        prompt_token_ids=None,
        usage={"completion_tokens": counted},
    )
    claim = read_response(body)
    assert claim.output_ids == (100, 101, 102)
    assert len(positions(claim)) == 3
    assert any("case 9" in warning for warning in claim.warnings)


def test_case_9_with_token_ids_the_last_position_has_its_id() -> None:
    claim = read_response(chat([*id_entries(), UNNAMED], choice={"token_ids": [100, 101, 102, 2]}))
    assert claim.output_ids == (100, 101, 102, 2)
    assert positions(claim)[3].token == 2
    assert positions(claim)[3].logprob == IMPOSSIBLE


def test_case_9_an_unnamed_position_elsewhere_is_refused() -> None:
    body = chat([UNNAMED, *id_entries()], choice={"token_ids": None}, prompt_token_ids=None)
    assert refused(body).field == "choices[0].logprobs.content[0]"


@pytest.mark.parametrize("literal", ["NaN", "Infinity"])
def test_case_10_a_literal_that_is_no_number_is_refused_with_line_and_column(literal: str) -> None:
    text = json.dumps(chat(), indent=1).replace("-1.75", literal, 1)
    line = next(n for n, row in enumerate(text.splitlines(), start=1) if literal in row)
    column = text.splitlines()[line - 1].index(literal) + 1
    assert f"line {line} column {column}" in str(refused(text))


def test_case_10_the_words_inside_strings_are_no_literals() -> None:
    body = chat(choice={"message": {"role": "assistant", "content": 'NaN "Infinity" \\'}})
    assert read_response(json.dumps(body)).output_text == 'NaN "Infinity" \\'
    text = json.dumps(body).replace("-1.75", "NaN", 1)
    assert f"column {text.index(': NaN') + 3}" in str(refused(text))


@pytest.mark.parametrize("value", ["null", "-Infinity", "-9999.0", "-9999", "-1e400", '"-inf"'])
def test_case_10_every_spelling_of_impossible(value: str) -> None:
    claim = read_response(json.dumps(chat()).replace("-1.75", value))
    assert positions(claim)[0].top[1].logprob == IMPOSSIBLE


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e400, True, "x", [1], {}, "NaN"])
def test_a_value_that_is_no_log_probability_is_refused_with_its_path(value: Any) -> None:
    body = chat()
    body["choices"][0]["logprobs"]["content"][2]["top_logprobs"][1]["logprob"] = value
    error = refused(body)
    assert error.code == "malformed"
    assert error.field == "choices[0].logprobs.content[2].top_logprobs[1].logprob"


def test_case_20_null_token_ids_stop_the_reader_when_ids_were_asked_for() -> None:
    error = refused(chat(choice={"token_ids": None}), {"return_token_ids": True})
    assert error.code == "no_token_ids"
    assert "cannot build a claim" in str(error)


def test_case_20_prompt_ids_without_output_ids_show_that_ids_were_asked_for() -> None:
    content = [entry("one", -0.2, [("one", -0.2), ("two", -2.0)])]
    assert refused(chat(content, choice={"token_ids": None})).code == "no_token_ids"


def test_case_22_log_probabilities_asked_for_and_not_returned_are_named() -> None:
    request = {"logprobs": True, "top_logprobs": None, "return_tokens_as_token_ids": True}
    none = read_response(chat(choice={"logprobs": None}), request)
    assert none.positions is None
    assert any("case 22" in warning for warning in none.warnings)
    chosen_only = read_response(chat([entry("token_id:100", -0.2, [])]), request)
    assert positions(chosen_only)[0].logprob == -0.2


def test_case_5_fewer_alternatives_than_asked_for_are_named() -> None:
    """Two ids with one text become one key of a completions answer: four asked for, two left."""
    claim = read_response(completion(), {"logprobs": 4})
    assert any("fewer than the 4" in warning for warning in claim.warnings)
    assert not any("fewer" in w for w in read_response(completion(), {"logprobs": 2}).warnings)


@pytest.mark.parametrize("missing", [None, []])
def test_case_23_missing_prompt_ids_are_never_an_empty_prompt(missing: Any) -> None:
    claim = read_response(chat(prompt_token_ids=missing), {"messages": [{"role": "user"}]})
    assert claim.prompt.token_ids is None
    assert claim.prompt.source == "rerendered"
    assert any("case 23" in warning for warning in claim.warnings)


@pytest.mark.parametrize("counted", [2, 4, 0])
def test_case_25_positions_must_be_as_many_as_usage_counts(counted: int) -> None:
    error = refused(chat(choice={"token_ids": None}, usage={"completion_tokens": counted}))
    assert error.code == "position_gap"
    assert str(counted) in str(error)


def test_case_25_positions_must_be_as_many_as_token_ids() -> None:
    assert refused(chat(choice={"token_ids": [100, 101]})).code == "position_gap"


def test_case_27_one_entry_for_four_tokens_is_truncated_evidence() -> None:
    body = chat(id_entries(1), choice={"token_ids": None}, usage={"completion_tokens": 4})
    error = refused(body)
    assert error.code == "position_gap"
    assert "truncated" in str(error)


def test_without_usage_the_reader_says_that_a_gap_would_go_unnoticed() -> None:
    claim = read_response(chat(usage=None))
    assert any("usage.completion_tokens is missing" in warning for warning in claim.warnings)


@pytest.mark.parametrize("ids", [[100, -1, 102], [100, 1.0, 102], [100, True, 102], "100", [None]])
def test_case_46_what_is_no_id_is_refused(ids: Any) -> None:
    error = refused(chat(choice={"token_ids": ids}))
    assert error.code == "malformed"
    assert error.field is not None
    assert error.field.startswith("choices[0].token_ids")


def test_case_46_no_log_probabilities_and_an_empty_list_stay_different() -> None:
    none = read_response(chat(choice={"logprobs": None}))
    empty = read_response(chat(choice={"logprobs": {"content": []}}))
    assert none.positions is None
    assert empty.positions == ()
    assert none.output_ids == empty.output_ids == (100, 101, 102)


def test_case_56_a_text_only_claim_says_what_nobody_checked() -> None:
    body = chat(choice={"token_ids": None, "logprobs": None}, prompt_token_ids=None)
    claim = read_response(body)
    assert claim.output_ids is None
    assert any("case 56" in warning and "encodes" in warning for warning in claim.warnings)


def test_ids_that_contradict_the_log_probabilities_are_refused() -> None:
    error = refused(chat(choice={"token_ids": [100, 999, 102]}))
    assert error.field == "choices[0].logprobs.content[1]"
    assert "999" in str(error)


def test_a_token_listed_twice_is_one_entry_and_flagged() -> None:
    content = [entry("token_id:100", -0.2, [("token_id:100", -0.2), ("token_id:100", -3.0)])]
    claim = read_response(chat(content))
    assert [top.logprob for top in positions(claim)[0].top] == [-0.2]
    assert positions(claim)[0].duplicates == 1


def test_several_choices_are_refused() -> None:
    body = chat()
    body["choices"].append(body["choices"][0] | {"index": 1})
    assert refused(body).code == "several_choices"
    assert refused(chat(choice={"index": 1})).code == "several_choices"


def test_an_error_object_is_named_as_the_servers_answer() -> None:
    error = refused({"error": {"message": "context too long", "code": 400}})
    assert error.code == "error_response"
    assert "context too long" in str(error)
    assert refused({"object": "error", "message": "old form"}).code == "error_response"


@pytest.mark.parametrize(
    "body", [b"", b"not json", b'{"a": 1', b"\xff\xfe", b"[" * 200_000, b"1" * 10_000]
)
def test_what_is_no_json_is_an_error_and_no_claim(body: bytes) -> None:
    assert refused(body).code == "not_json"


def test_a_key_given_twice_is_refused() -> None:
    text = json.dumps(chat()).replace('"logprob": -0.25', '"logprob": -0.25, "logprob": -9.0', 1)
    assert "'logprob' is given twice" in str(refused(text))


@pytest.mark.parametrize(
    "body",
    [[], "x", 1, {}, {"choices": None}, {"choices": []}, {"choices": [1]}, {"choices": [{}]}],
)
def test_bodies_of_another_shape_are_refused(body: Any) -> None:
    assert refused(json.dumps(body)).code in ("malformed", "not_json")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", ["token_id:100"]),
        ("token_logprobs", [-0.25]),
        ("top_logprobs", [{}]),
        ("tokens", None),
        ("top_logprobs", [[], {}]),
    ],
)
def test_lists_of_a_completions_answer_must_be_parallel(name: str, value: Any) -> None:
    body = completion()
    body["choices"][0]["logprobs"][name] = value
    assert refused(body).code in ("malformed", "position_gap")


def test_completions_without_alternatives() -> None:
    body = completion()
    body["choices"][0]["logprobs"]["top_logprobs"] = None
    assert [p.top for p in positions(read_response(body))] == [(), ()]


def test_a_missing_field_is_named() -> None:
    body = chat()
    del body["choices"][0]["logprobs"]["content"][1]["top_logprobs"][0]["logprob"]
    assert refused(body).field == "choices[0].logprobs.content[1].top_logprobs[0].logprob"


def test_answers_without_an_id_get_a_stable_one() -> None:
    first, again = (read_response(chat(id=None)) for _ in range(2))
    other = read_response(chat(id_entries(2), id=None))
    assert first.id == again.id
    assert first.id.startswith("unnamed-")
    assert other.id != first.id


@needs_data
def test_every_recorded_answer_reads() -> None:
    read = 0
    for file in sorted(DATA.rglob("*.json")):
        if file.name in {"meta.json", "response.json"}:
            continue
        claim = read_response(file.read_bytes())
        assert len(positions(claim)) == claim.usage.completion_tokens
        assert read_replay(file.read_bytes(), "file").positions == claim.positions
        read += 1
    assert read > 70
