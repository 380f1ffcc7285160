"""Reasoning and tool calls, from whole answers and from deltas; the digest of a prompt."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.claims.bodies import chat, chunk, id_entries, sse

from assay.claims.claim import ToolCall
from assay.claims.digest import prompt_digest
from assay.claims.read_json import read_response
from assay.claims.read_stream import read_stream
from assay.errors import ClaimError

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def message(**fields: Any) -> dict[str, Any]:
    return chat(choice={"message": {"role": "assistant", "content": None, **fields}})


def test_a_whole_answer_keeps_its_reasoning_and_its_calls() -> None:
    claim = read_response(message(reasoning="so", tool_calls=[CALL, CALL]))
    assert claim.reasoning_text == "so"
    assert claim.tool_calls == (ToolCall(name="f", arguments='{"a": 1}'),) * 2
    assert read_response(message(reasoning_content="so")).reasoning_text == "so"
    both = read_response(message(reasoning="so", reasoning_content="so"))
    assert both.reasoning_text == "so"


def test_arguments_sent_as_an_object_are_kept_as_json() -> None:
    call = {"function": {"name": "f", "arguments": {"town": "Québec"}}}
    assert read_response(message(tool_calls=[call])).tool_calls[0].arguments == '{"town": "Québec"}'
    old = read_response(message(function_call={"name": "f", "arguments": "{}"}))
    assert old.tool_calls == (ToolCall(name="f", arguments="{}"),)


def test_case_25_deltas_of_two_calls_are_put_together_by_their_index() -> None:
    def delta(**fields: Any) -> dict[str, Any]:
        return {"delta": fields}

    lines = sse(
        chunk(id_entries(1), **delta(reasoning="so ")),
        chunk(id_entries(1), **delta(reasoning="far")),
        chunk(
            id_entries(1),
            **delta(tool_calls=[{"index": 1, "function": {"name": "g"}}, CALL | {"index": 0}]),
        ),
        chunk(
            id_entries(1),
            **delta(tool_calls=[{"index": 1, "function": {"arguments": "{}"}}]),
            finish_reason="tool_calls",
        ),
    )
    claim = read_stream(lines)
    assert claim.reasoning_text == "so far"
    assert claim.tool_calls == (
        ToolCall(name="f", arguments='{"a": 1}'),
        ToolCall(name="g", arguments="{}"),
    )


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tool_calls": "f"}, "tool_calls"),
        ({"tool_calls": [3]}, r"tool_calls\[0\]"),
        ({"tool_calls": [{"function": {"name": 3}}]}, r"tool_calls\[0\].function.name"),
        ({"tool_calls": [{"function": {"arguments": [1]}}]}, r"function.arguments"),
        ({"reasoning": {}}, "reasoning"),
    ],
)
def test_other_types_are_refused_with_their_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(ClaimError, match=path):
        read_response(message(**fields))


def test_total_tokens_are_kept() -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert read_response(chat(usage=usage)).usage.total_tokens == 5


def test_the_prompt_digest_is_over_little_endian_32_bit_ids() -> None:
    written = bytes.fromhex("01000000 02010000")
    assert prompt_digest((1, 258)) == hashlib.sha256(written).hexdigest()
    assert prompt_digest((2, 1)) != prompt_digest((1, 2))
    assert prompt_digest((1 << 32,)) is None
    assert prompt_digest((-1,)) is None
    assert read_response(chat()).prompt.digest == prompt_digest((1, 2))
    assert read_response(chat(prompt_token_ids=None)).prompt.digest is None
