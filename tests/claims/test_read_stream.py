"""Streamed answers: everything a chunk can do to the evidence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.claims.bodies import DATA, chat, chunk, id_entries, needs_data, sse, usage_chunk

from assay.claims.read_json import read_response
from assay.claims.read_stream import read_replay_stream, read_stream
from assay.errors import ClaimError


def whole(*, tokens: int = 3) -> list[dict[str, Any]]:
    """The chunks of the answer of ``chat()``: first a role, then one position a chunk."""
    first = chunk(None, delta={"role": "assistant", "content": ""}) | {"prompt_token_ids": [1, 2]}
    rest = [
        chunk([one], token_ids=[100 + index], delta={"content": f"{index}"})
        for index, one in enumerate(id_entries(tokens))
    ]
    last = chunk(None, delta={}, finish_reason="stop")
    return [first, *rest, last, usage_chunk(tokens)]


def refused(lines: Any, request: dict[str, Any] | None = None) -> ClaimError:
    with pytest.raises(ClaimError) as error:
        read_stream(lines, request)
    return error.value


def test_a_stream_reads_like_the_json_of_the_same_answer() -> None:
    streamed = read_stream(sse(*whole()), {"model": "m", "stream": True})
    plain = read_response(chat(choice={"message": {"content": "012"}}), {"model": "m"})
    assert streamed == plain


@pytest.mark.parametrize("form", ["text", "bytes", "byte lines", "no blanks", "crlf"])
def test_lines_may_come_in_any_form(form: str) -> None:
    lines = sse(*whole())
    given: Any = {
        "text": "\n".join(lines),
        "bytes": "\n".join(lines).encode(),
        "byte lines": [line.encode() for line in lines],
        "no blanks": [line for line in lines if line],
        "crlf": "\r\n".join(lines),
    }[form]
    assert read_stream(given) == read_stream(lines)


def test_several_positions_in_one_chunk_all_count() -> None:
    first, last = whole()[0], whole()[-2:]
    together = chunk(id_entries(), token_ids=[100, 101, 102], delta={"content": "012"})
    claim = read_stream(sse(first, together, *last))
    assert claim.positions == read_stream(sse(*whole())).positions


def test_comments_and_other_fields_are_skipped() -> None:
    lines = [": ping", "event: message", "id: 3", "retry: 10", *sse(*whole())]
    assert read_stream(lines) == read_stream(sse(*whole()))


def test_a_line_separator_inside_a_string_ends_no_line() -> None:
    chunks = whole()
    chunks[1]["choices"][0]["delta"]["content"] = "a\u2028b"
    text = "\n".join(f"data: {json.dumps(one, ensure_ascii=False)}" for one in chunks)
    assert "a\u2028b" in str(read_stream(text + "\ndata: [DONE]").output_text)


def test_case_25_a_swallowed_chunk_is_a_gap_and_refused() -> None:
    """The tool parser keeps the chunk of <tool_call>; its position vanishes."""
    chunks = whole()
    del chunks[2]
    error = refused(sse(*chunks))
    assert error.code == "position_gap"
    assert "2 positions" in str(error)


def test_case_25_log_probabilities_missing_from_one_chunk_are_a_gap() -> None:
    chunks = whole()
    chunks[2]["choices"][0]["logprobs"] = None
    assert refused(sse(*chunks)).code == "position_gap"


def test_case_25_without_usage_skipped_chunks_are_counted() -> None:
    chunks = whole()[:-1]
    for one in chunks:
        one["choices"][0].pop("token_ids", None)
        one.pop("prompt_token_ids", None)
    chunks[2]["choices"][0]["logprobs"] = None
    claim = read_stream(sse(*chunks))
    assert any("1 chunks carry output" in warning for warning in claim.warnings)
    assert any("usage.completion_tokens is missing" in warning for warning in claim.warnings)


def test_case_27_only_the_last_entry_survives_a_gateway() -> None:
    chunks = whole(tokens=4)
    for one in chunks[1:4]:
        one["choices"][0]["logprobs"] = None
        one["choices"][0]["token_ids"] = None
    error = refused(sse(*chunks))
    assert error.code == "position_gap"


def test_an_error_object_inside_a_stream_is_an_error() -> None:
    chunks = whole()
    error = refused(sse(*chunks[:2], {"error": {"message": "engine died", "code": 500}}))
    assert error.code == "error_response"
    assert "engine died" in str(error)
    assert "line 5" in str(error)


def test_an_error_object_without_the_event_prefix_is_an_error_too() -> None:
    lines = [*sse(*whole()[:2], done=False), '{"error": {"message": "proxy gave up"}}']
    assert refused(lines).code == "error_response"


def test_a_stream_that_was_cut_off_is_refused() -> None:
    assert refused(sse(*whole()[:3], done=False)).code == "truncated"
    assert refused([]).code == "malformed"
    assert refused("<html>busy</html>").code == "malformed"


def test_a_finished_stream_without_done_is_flagged() -> None:
    claim = read_stream(sse(*whole(), done=False))
    assert any("[DONE]" in warning for warning in claim.warnings)


def test_what_follows_done_is_not_read() -> None:
    claim = read_stream([*sse(*whole()), "data: nonsense"])
    assert claim.output_ids == (100, 101, 102)


def test_several_choices_are_refused() -> None:
    assert refused(sse(*whole()[:2], chunk(id_entries(1), index=1))).code == "several_choices"


def test_two_answers_in_one_stream_are_refused() -> None:
    other = chunk(id_entries(1)) | {"id": "chatcmpl-2"}
    assert "changes its id" in str(refused(sse(*whole()[:2], other)))


def test_a_bad_number_is_named_with_its_line() -> None:
    lines = sse(*whole())
    lines[2] = lines[2].replace("-1.75", "NaN")
    assert "line 3" in str(refused(lines))


def test_case_20_ids_that_were_asked_for_and_did_not_come() -> None:
    chunks = whole()
    for one in chunks:
        for choice in one["choices"]:
            choice.pop("token_ids", None)
    assert refused(sse(*chunks), {"return_token_ids": True}).code == "no_token_ids"


def test_completions_stream() -> None:
    def piece(index: int) -> dict[str, Any]:
        return {
            "id": "cmpl-1",
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "text": f" {index}",
                    "logprobs": {
                        "tokens": [f"token_id:{index}"],
                        "token_logprobs": [-0.5],
                        "top_logprobs": [{f"token_id:{index}": -0.5, "token_id:77": -2.0}],
                    },
                    "finish_reason": "length" if index else None,
                    "token_ids": [index],
                    "prompt_token_ids": [4, 5] if index == 0 else None,
                }
            ],
        }

    claim = read_stream(sse(piece(0), piece(1), usage_chunk(2) | {"id": "cmpl-1"}))
    assert claim.endpoint == "completions"
    assert claim.output_ids == (0, 1)
    assert claim.output_text == " 0 1"
    assert claim.prompt.token_ids == (4, 5)


def test_the_plugins_evidence_comes_in_a_chunk_of_its_own() -> None:
    evidence = {
        "version": 1,
        "runner": "v1",
        "logprobs_mode": "raw_logprobs",
        "mode_source": "explicit",
        "inferred": None,
        "positions": 3,
        "drawn": [100, 101, 7],
        "rank_raw": [1, 1, 2],
        "rank_processed": [1, 1, 2],
        "logprob_raw": [-0.25, -0.25, -0.25],
        "logprob_processed": [-0.1, -0.1, None],
        "grammar_conflict": None,
        "complete": True,
    }
    extra = {"id": "chatcmpl-1", "choices": [], "assay": evidence}
    replay = read_replay_stream(sse(*whole(), extra))
    assert replay.evidence is not None
    assert replay.evidence.drawn == (100, 101, 7)
    assert replay.evidence.logprob_processed == (-0.1, -0.1, None)
    assert replay.logprobs_mode == "raw_logprobs"


@needs_data
def test_recorded_streams() -> None:
    folder = DATA / "gonka-format-samples"
    with_ids = read_stream((folder / "response_streamed_token_ids.txt").read_bytes())
    plain = read_stream((folder / "response_streamed.txt").read_bytes())
    assert with_ids.positions is not None
    assert len(with_ids.positions) == 44
    assert with_ids.output_ids is not None
    assert with_ids.output_ids[-1] == 151645
    assert plain.positions is None
    assert plain.output_text == "Hello! How can I assist you today?"
    assert plain.usage.completion_tokens == 10
