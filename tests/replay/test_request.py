"""The replay request: what of the origin's body is kept, and what is put into it."""

from __future__ import annotations

from typing import Any

import pytest

from assay.claims.claim import Claim, Prompt
from assay.claims.positions import IMPOSSIBLE, Position, TopEntry
from assay.errors import ReplayError
from assay.replay.request import MAX_POSITIONS, ReplayOptions, build_replay_request

MESSAGES = ({"role": "user", "content": "hi"},)


def position(token: int, *top: int) -> Position:
    entries = tuple(TopEntry(key=key, logprob=-1.0 - i) for i, key in enumerate(top))
    return Position(token=token, logprob=-1.0, top=entries)


def claim(**changes: Any) -> Claim:
    values: dict[str, Any] = {
        "id": "c1",
        "endpoint": "chat",
        "prompt": Prompt(token_ids=(1, 2, 3), messages=MESSAGES, source="response"),
        "request": {"model": "m", "messages": list(MESSAGES), "logprobs": True, "top_logprobs": 2},
        "output_ids": (5, 6),
        "output_text": "ab",
        "positions": (position(5, 5, 7), position(6, 9, 6)),
        "logprobs_mode": "raw_logprobs",
    }
    return Claim(**{**values, **changes})


def with_request(**fields: Any) -> Claim:
    base = claim()
    return base.model_copy(update={"request": base.request | fields})


def test_tokens_are_spelled_with_their_ids_and_the_claimed_top() -> None:
    request = build_replay_request(claim())
    assert request.body["enforced_tokens"] == {
        "tokens": [
            {"token": "token_id:5", "top_tokens": ["token_id:5", "token_id:7"]},
            {"token": "token_id:6", "top_tokens": ["token_id:9", "token_id:6"]},
        ]
    }
    assert request.path == "/v1/chat/completions"
    assert request.body["logprobs_mode"] == "raw_logprobs"
    assert request.body["stream"] is False
    assert request.body["max_tokens"] == 2
    assert (request.body["logprobs"], request.body["top_logprobs"]) == (True, 2)
    assert request.notes == ()


SAMPLING = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.2,
    "logit_bias": {"5": 1.5},
    "bad_words": ["no"],
    "seed": 7,
    "min_tokens": 1,
    "stop": ["x"],
    "stop_token_ids": [4],
    "ignore_eos": True,
    "allowed_token_ids": [1, 2, 5, 6],
    "response_format": {"type": "json_object"},
    "structured_outputs": {"regex": "a+"},
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "chat_template_kwargs": {"enable_thinking": False},
}


@pytest.mark.parametrize("name", SAMPLING)
def test_case_2_and_40_every_sampling_parameter_is_kept(name: str) -> None:
    body = build_replay_request(with_request(**SAMPLING)).body
    assert body[name] == SAMPLING[name]


def test_how_the_origin_was_called_is_not_repeated() -> None:
    body = build_replay_request(
        with_request(stream=True, stream_options={"x": 1}, user="u", priority=3, request_id="r")
    ).body
    assert not {"stream_options", "user", "priority", "request_id"} & body.keys()
    assert body["stream"] is False


def test_fields_that_replays_refuse_are_dropped_and_named() -> None:
    request = build_replay_request(with_request(n=3, echo=True, prompt_logprobs=0))
    assert not {"n", "echo", "prompt_logprobs"} & request.body.keys()
    [note] = request.notes
    assert note.code == "dropped_fields"
    assert note.message.endswith("echo, n, prompt_logprobs")


def test_one_plain_choice_needs_no_note() -> None:
    assert build_replay_request(with_request(n=1, echo=False, best_of=1)).notes == ()


def test_beam_search_is_not_replayable() -> None:
    with pytest.raises(ReplayError, match="beam search") as caught:
        build_replay_request(with_request(use_beam_search=True))
    assert caught.value.blame == "validator"


def test_more_than_64_top_tokens_are_cut_at_64() -> None:
    wide = claim(output_ids=(5,), positions=(position(5, *range(100)),))
    [token] = build_replay_request(wide).body["enforced_tokens"]["tokens"]
    assert len(token["top_tokens"]) == 64
    assert token["top_tokens"][-1] == "token_id:63"


def test_case_59_max_tokens_is_the_length_of_the_trace_whatever_the_origin_asked() -> None:
    body = build_replay_request(with_request(max_tokens=500, max_completion_tokens=400)).body
    assert body["max_tokens"] == 2
    assert "max_completion_tokens" not in body


def test_min_tokens_above_the_trace_is_kept_and_named() -> None:
    request = build_replay_request(with_request(min_tokens=9))
    assert (request.body["min_tokens"], request.body["max_tokens"]) == (9, 9)
    assert [note.code for note in request.notes] == ["shorter_than_min_tokens"]


def test_case_23_without_prompt_ids_the_messages_are_used_and_said_so() -> None:
    bare = claim(prompt=Prompt(messages=MESSAGES))
    request = build_replay_request(bare)
    assert request.body["messages"] == list(MESSAGES)
    assert [note.code for note in request.notes] == ["prompt_rerendered"]


def test_case_23_strict_refuses_a_prompt_that_must_be_rendered_again() -> None:
    bare = claim(prompt=Prompt(messages=MESSAGES))
    with pytest.raises(ReplayError, match="case 23") as caught:
        build_replay_request(bare, ReplayOptions(strict=True))
    assert (caught.value.blame, caught.value.code) == ("validator", "no_prompt_ids")


def test_case_23_no_prompt_at_all_is_never_an_empty_one() -> None:
    nothing = claim(prompt=Prompt(), request={"top_logprobs": 2})
    with pytest.raises(ReplayError, match="neither a prompt") as caught:
        build_replay_request(nothing)
    assert caught.value.code == "no_prompt"


def test_ids_without_messages_run_as_they_are_and_the_note_says_what_that_proves() -> None:
    ids_only = claim(
        prompt=Prompt(token_ids=(1, 2, 3), source="response"),
        request={"model": "m", "top_logprobs": 2, "temperature": 0.5, "tools": [], "max_tokens": 9},
    )
    request = build_replay_request(ids_only)
    assert request.path == "/v1/completions"
    assert request.body["prompt"] == [1, 2, 3]
    assert request.body["logprobs"] == 2
    assert request.body["temperature"] == 0.5
    assert not {"tools", "top_logprobs", "messages"} & request.body.keys()
    assert [note.code for note in request.notes] == ["prompt_from_ids"]


def test_completions_keep_their_own_prompt() -> None:
    text = claim(
        endpoint="completions",
        prompt=Prompt(token_ids=(1, 2), text="hi", source="response"),
        request={"model": "m", "prompt": "hi", "logprobs": 3},
    )
    request = build_replay_request(text)
    assert request.path == "/v1/completions"
    assert (request.body["prompt"], request.body["logprobs"]) == ("hi", 3)


def test_k_comes_from_the_answer_where_the_request_is_unknown() -> None:
    unknown = claim(request={"messages": list(MESSAGES)})
    assert build_replay_request(unknown).k == 2


def test_case_56_text_claims_are_refused_unless_allowed() -> None:
    text = claim(output_ids=None, positions=None)
    with pytest.raises(ReplayError, match="--allow-text") as caught:
        build_replay_request(text)
    assert caught.value.code == "no_token_ids"
    request = build_replay_request(text, ReplayOptions(allow_text=True))
    assert request.body["enforced_str"] == "ab"
    assert "enforced_tokens" not in request.body
    assert request.positions is None
    assert [note.code for note in request.notes] == ["retokenised"]


def test_strict_wins_over_allow_text() -> None:
    text = claim(output_ids=None, positions=None)
    with pytest.raises(ReplayError):
        build_replay_request(text, ReplayOptions(allow_text=True, strict=True))


def test_case_46_an_empty_output_is_no_evidence_and_not_a_pass() -> None:
    with pytest.raises(ReplayError) as caught:
        build_replay_request(claim(output_ids=(), positions=()))
    assert caught.value.code == "no_evidence"


def test_f9_a_trace_over_the_limit_is_the_validators_limit() -> None:
    long = claim(output_ids=(5,) * (MAX_POSITIONS + 1), positions=None)
    with pytest.raises(ReplayError, match="32768") as caught:
        build_replay_request(long)
    assert caught.value.blame == "validator"


def test_case_1_logits_are_not_replayed_as_log_probabilities() -> None:
    with pytest.raises(ReplayError, match="logits") as caught:
        build_replay_request(claim(logprobs_mode="raw_logits"))
    assert caught.value.code == "mode_mismatch"


def test_case_53_a_mode_nobody_names_is_said_to_be_inferred() -> None:
    unnamed = claim(logprobs_mode=None)
    request = build_replay_request(unnamed)
    assert "logprobs_mode" not in request.body
    assert [note.code for note in request.notes] == ["mode_not_named"]
    named = build_replay_request(unnamed, ReplayOptions(logprobs_mode="processed_logprobs"))
    assert named.body["logprobs_mode"] == "processed_logprobs"


def test_case_3_the_claims_own_mode_wins_over_the_callers() -> None:
    request = build_replay_request(claim(), ReplayOptions(logprobs_mode="processed_logprobs"))
    assert request.body["logprobs_mode"] == "raw_logprobs"


def test_padding_is_passed_on_for_the_mode_inference() -> None:
    padded = Position(
        token=5,
        logprob=0.0,
        top=(TopEntry(key=5, logprob=0.0), TopEntry(key=1, logprob=IMPOSSIBLE)),
    )
    request = build_replay_request(claim(output_ids=(5,), positions=(padded,)))
    [token] = request.body["enforced_tokens"]["tokens"]
    assert token["top_tokens"] == ["token_id:5", "token_id:1"]
