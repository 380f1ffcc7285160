"""Readers of a streamed answer (server-sent events)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from assay.claims.assemble import RawResponse, build_claim
from assay.claims.claim import Claim, Replay
from assay.claims.entries import RawPosition
from assay.claims.fields import as_ids, as_list, as_object
from assay.claims.read_json import (
    Path,
    build_replay,
    check_index,
    optional_text,
    read_head,
    read_logprobs,
    read_usage,
    refuse_error,
)
from assay.claims.read_message import Said
from assay.claims.strict_json import parse_json
from assay.errors import ClaimError

Lines = Iterable[str | bytes] | str | bytes
DONE = "[DONE]"
_LINE_END = re.compile(r"\r\n|\n|\r")


def read_stream(lines: Lines, request: dict[str, Any] | None = None) -> Claim:
    """The claim in a streamed answer, given as its lines or as one text.

    Every entry of ``logprobs.content`` of every chunk counts, and a chunk may carry several.
    Chunks without log probabilities are skipped and counted.

    Raises ClaimError as ``read_response`` does, with the line it happened in; also ``truncated``
    for a stream that stops before a finish reason and before ``[DONE]``, and ``error_response``
    for an error object inside the stream.
    """
    return build_claim(_collect(lines), request)


def read_replay_stream(lines: Lines, path: Path = "decode") -> Replay:
    """As ``read_replay``, from a streamed answer."""
    return build_replay(_collect(lines), path)


@dataclass
class _Stream:
    raw: RawResponse
    positions: list[RawPosition] = field(default_factory=list)
    has_logprobs: bool = False
    token_ids: list[int] = field(default_factory=list)
    has_token_ids: bool = False
    text: list[str] = field(default_factory=list)
    said: Said = field(default_factory=Said)
    skipped: int = 0
    """Chunks that carry text or a tool call and no log probabilities."""
    chunks: int = 0
    done: bool = False


def _collect(lines: Lines) -> RawResponse:
    stream = _Stream(RawResponse(endpoint="chat"))
    number = 0
    for number, data in _events(lines):
        if data == DONE:
            stream.done = True
            break
        try:
            _chunk(stream, data)
        except ClaimError as error:
            raise ClaimError(f"line {number}: {error}", code=error.code) from error
    return _finish(stream, number)


def _events(lines: Lines) -> Iterator[tuple[int, str]]:
    """Line number, from 1, and payload of each ``data:`` line; comments, other fields and blank
    lines are skipped. Servers of this protocol write one JSON document a line."""
    source: Iterable[str | bytes]
    if isinstance(lines, str):
        # Not splitlines(): a JSON string may hold U+2028, which ends no line of the protocol.
        source = _LINE_END.split(lines)
    else:
        source = lines.splitlines() if isinstance(lines, bytes) else lines
    for number, line in enumerate(source, start=1):
        try:
            text = line.decode("utf-8-sig") if isinstance(line, bytes) else line
        except UnicodeDecodeError as error:
            raise ClaimError(f"line {number}: not UTF-8 text", code="not_json") from error
        text = text.strip("\r\n")
        if text.startswith("data:"):
            yield number, text.removeprefix("data:").strip()
        elif text.lstrip().startswith("{"):
            # A bare object in place of an event: how some proxies report an error mid-stream.
            yield number, text


def _chunk(stream: _Stream, data: str) -> None:
    value = as_object(parse_json(data), "chunk")
    refuse_error(value)
    raw = stream.raw
    name = raw.id
    read_head(raw, value)
    if name is not None and raw.id != name:
        raise ClaimError(f"the stream changes its id from {name!r} to {raw.id!r}", field="id")
    stream.chunks += 1
    if value.get("usage") is not None:
        raw.usage = read_usage(value["usage"])
    _prompt_ids(raw, value)
    for index, entry in enumerate(as_list(value.get("choices"), "choices")):
        path = f"choices[{index}]"
        choice = as_object(entry, path)
        check_index(choice, path)
        _prompt_ids(raw, choice)
        _choice(stream, choice, path)


def _prompt_ids(raw: RawResponse, value: dict[str, Any]) -> None:
    if raw.prompt_token_ids is None and value.get("prompt_token_ids") is not None:
        raw.prompt_token_ids = as_ids(value["prompt_token_ids"], "prompt_token_ids")


def _choice(stream: _Stream, choice: dict[str, Any], path: str) -> None:
    raw = stream.raw
    says_something = False
    if "text" in choice:
        raw.endpoint = "completions"
        piece = optional_text(choice["text"], f"{path}.text")
    else:
        delta = as_object(choice.get("delta", {}), f"{path}.delta")
        piece = optional_text(delta.get("content"), f"{path}.delta.content")
        says_something = stream.said.add(delta, f"{path}.delta")
    if piece:
        stream.text.append(piece)
        says_something = True
    where, positions = read_logprobs(choice.get("logprobs"), f"{path}.logprobs")
    if positions is not None:
        stream.has_logprobs = True
        stream.positions.extend(positions)
        raw.content_path = where
    elif says_something:
        stream.skipped += 1
    if choice.get("token_ids") is not None:
        stream.has_token_ids = True
        stream.token_ids.extend(as_ids(choice["token_ids"], f"{path}.token_ids"))
    reason = optional_text(choice.get("finish_reason"), f"{path}.finish_reason")
    raw.finish_reason = reason or raw.finish_reason


def _finish(stream: _Stream, last_line: int) -> RawResponse:
    raw = stream.raw
    if not stream.chunks:
        raise ClaimError("the stream holds no chunk; is this a server-sent event stream?")
    if not stream.done:
        if raw.finish_reason is None:
            raise ClaimError(
                f"the stream stops after line {last_line} without a finish reason and without"
                f" {DONE}; it was cut off",
                code="truncated",
            )
        raw.warnings.append(f"the stream ends without {DONE}")
    raw.text = "".join(stream.text) or None
    raw.reasoning, raw.tool_calls = stream.said.reasoning_text, stream.said.tool_calls
    raw.content = stream.positions if stream.has_logprobs else None
    raw.token_ids = tuple(stream.token_ids) if stream.has_token_ids else None
    if stream.has_logprobs and stream.skipped:
        raw.warnings.append(
            f"{stream.skipped} chunks carry output and no log probabilities (case 25)"
        )
    return raw
