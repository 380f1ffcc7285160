"""From what a body holds to a claim: positions, ids, prompt, and the gaps between them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from assay.claims.claim import (
    Claim,
    Endpoint,
    EngineIdentity,
    LogprobsMode,
    Prompt,
    ToolCall,
    Usage,
)
from assay.claims.digest import prompt_digest
from assay.claims.entries import RawPosition
from assay.claims.positions import IMPOSSIBLE, Position, TopEntry
from assay.claims.spelling import Spelling, choose_spelling, key_of
from assay.errors import ClaimError

MODES: tuple[LogprobsMode, ...] = (
    "raw_logprobs",
    "processed_logprobs",
    "raw_logits",
    "processed_logits",
)

POSITION_GAP = "position_gap"
"""Code of a ClaimError for a body whose log probabilities do not cover the tokens it counts."""


@dataclass
class RawResponse:
    """One answer as read, JSON and stream alike. ``content`` None: no log probabilities at all."""

    endpoint: Endpoint
    id: str | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    content: list[RawPosition] | None = None
    content_path: str = "choices[0].logprobs.content"
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    text: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    usage: Usage = field(default_factory=Usage)
    assay: object = None
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Output:
    """Positions and ids of an answer, checked against each other and against usage."""

    positions: tuple[Position, ...] | None
    ids: tuple[int, ...] | None
    spelling: Spelling | None


def read_output(raw: RawResponse) -> Output:
    """Decide the spelling, build the positions and refuse gaps.

    Raises ClaimError: ``position_gap`` where positions, token ids and usage.completion_tokens
    disagree (a parser swallowed a chunk, a gateway kept only the last entry; shifting would
    compare the wrong positions: cases 25, 27), ``malformed`` for mixed spellings and for ids that
    contradict each other.
    """
    if not raw.content:
        if raw.content is not None:
            raw.warnings.append(f"{raw.content_path} is an empty list")
        _refuse_count(raw, len(raw.token_ids or ()), "token_ids", raw.token_ids is not None)
        if raw.token_ids is None and raw.text:
            raw.warnings.append(
                "the answer is text only: without a tokenizer nobody checked that the text encodes"
                " back to the ids that were sampled (case 56); ask for return_token_ids"
            )
        return Output(None if raw.content is None else (), raw.token_ids, None)
    content = raw.content
    entries = len(content)
    _refuse_gap(raw, entries)
    choice = choose_spelling(content)
    raw.warnings.extend(choice.warnings)
    if raw.token_ids is None and content[-1].is_unnamed:
        raw.warnings.append(
            f"the last position ({content[-1].chosen.path}) names no token and carries no"
            " evidence (case 9); it is left out"
        )
        content = content[:-1]
    positions = tuple(
        _position(raw, index, position, choice.spelling) for index, position in enumerate(content)
    )
    _warn_about_evidence(raw, positions)
    ids = raw.token_ids
    if ids is None and choice.spelling == "ids":
        ids = tuple(p.token for p in positions if isinstance(p.token, int))
    if choice.spelling == "text":
        raw.warnings.append(
            "tokens are spelled as text: two ids with the same text cannot be told apart (case 5)"
            + (
                ""
                if ids is not None
                else ", and without a tokenizer nobody checked that the text encodes back to the"
                " ids that were sampled (case 56); ask for return_token_ids and"
                " return_tokens_as_token_ids"
            )
        )
    return Output(positions, ids, choice.spelling)


def _refuse_gap(raw: RawResponse, entries: int) -> None:
    if raw.token_ids is not None and len(raw.token_ids) != entries:
        raise ClaimError(
            f"{entries} positions have log probabilities but {len(raw.token_ids)} token ids were"
            " returned; positions are missing and are not guessed",
            code=POSITION_GAP,
            field=raw.content_path,
        )
    unnamed = bool(raw.content and raw.content[-1].is_unnamed)
    counted = raw.usage.completion_tokens
    if unnamed and counted == entries - 1:
        return
    _refuse_count(raw, entries, "positions with log probabilities", True)


def _refuse_count(raw: RawResponse, found: int, what: str, known: bool) -> None:
    counted = raw.usage.completion_tokens
    if counted is None:
        if known:
            raw.warnings.append(
                "usage.completion_tokens is missing: a gap in the positions would go unnoticed"
            )
    elif known and found != counted:
        raise ClaimError(
            f"{found} {what} but usage.completion_tokens is {counted}; the evidence is truncated"
            " or has a gap, and the positions cannot be matched",
            code=POSITION_GAP,
            field=raw.content_path,
        )


def _position(raw: RawResponse, index: int, source: RawPosition, spelling: Spelling) -> Position:
    chosen = source.chosen
    token = None if source.is_unnamed else key_of(chosen, spelling)
    if raw.token_ids is not None:
        reported = raw.token_ids[index]
        if isinstance(token, int) and token != reported:
            raise ClaimError(
                f"log probabilities name token {token} but token_ids[{index}] is {reported}",
                field=chosen.path,
            )
        token = reported
    if token is None:
        raise ClaimError(
            "the position names no token; only the last one may be empty", field=chosen.path
        )
    top: dict[int | str, TopEntry] = {}
    for entry in source.top:
        key = key_of(entry, spelling)
        # The server sorts from likely to unlikely: the first of two equal keys is kept.
        top.setdefault(key, TopEntry(key=key, logprob=entry.logprob))
    return Position(
        token=token,
        logprob=chosen.logprob,
        top=tuple(top.values()),
        duplicates=len(source.top) - len(top),
    )


def _warn_about_evidence(raw: RawResponse, positions: tuple[Position, ...]) -> None:
    doubled = [index for index, position in enumerate(positions) if position.duplicates]
    if doubled:
        raw.warnings.append(
            f"{len(doubled)} positions name a token twice, first at position {doubled[0]}; each is"
            " one entry"
        )
    bare = [index for index, position in enumerate(positions) if not position.top]
    if bare:
        raw.warnings.append(
            f"{len(bare)} positions have no alternatives, first at position {bare[0]}: no top-k"
            " evidence there (case 7)"
        )
    listed = max((len(position.top) for position in positions), default=0)
    finite = max((position.effective_k for position in positions), default=0)
    if finite < listed:
        raw.warnings.append(
            f"at most {finite} of {listed} alternatives are possible at any position; the rest is"
            " padding and no evidence (case 8)"
        )


def build_claim(raw: RawResponse, request: dict[str, Any] | None) -> Claim:
    """The claim of an answer. ``request`` is the body the origin sent, kept whole (case 2).

    Raises what ``read_output`` raises, and ClaimError ``no_token_ids`` when ids were asked for
    and not given (case 20): text is never tokenised again in silence.
    """
    asked = request or {}
    if raw.token_ids is None and (
        asked.get("return_token_ids")
        or (raw.prompt_token_ids is not None and not _spelled_in_ids(raw))
    ):
        raise ClaimError(
            "cannot build a claim: the server returned token_ids null although token ids were"
            " asked for (case 20); use a server or a parser that returns them",
            code="no_token_ids",
            field="choices[0].token_ids",
        )
    output = read_output(raw)
    _warn_about_request(raw, asked, output)
    prompt = _prompt(raw, asked)
    return Claim(
        id=raw.id or _name_of(raw, output),
        endpoint=raw.endpoint,
        prompt=prompt,
        request={k: v for k, v in asked.items() if k not in ("stream", "stream_options")},
        output_ids=output.ids,
        output_text=raw.text,
        reasoning_text=raw.reasoning,
        tool_calls=raw.tool_calls,
        positions=output.positions,
        finish_reason=raw.finish_reason,
        usage=raw.usage,
        logprobs_mode=_mode(asked),
        engine=EngineIdentity(model=raw.model, system_fingerprint=raw.system_fingerprint),
        warnings=tuple(raw.warnings),
    )


def _warn_about_request(raw: RawResponse, asked: dict[str, Any], output: Output) -> None:
    """Name what was asked for and did not come."""
    if asked.get("logprobs") and not output.positions:
        raw.warnings.append(
            "log probabilities were asked for and the answer has none; some servers need"
            " top_logprobs beside logprobs (case 22)"
        )
    k = asked.get("top_logprobs" if raw.endpoint == "chat" else "logprobs")
    if not isinstance(k, int) or isinstance(k, bool) or not output.positions:
        return
    fewer = [i for i, p in enumerate(output.positions) if 0 < len(p.top) + p.duplicates < k]
    if fewer:
        raw.warnings.append(
            f"{len(fewer)} positions list fewer than the {k} alternatives asked for, first at"
            f" position {fewer[0]}: ids that decode to one text were merged (case 5), or the"
            " server gives no more"
        )


def _spelled_in_ids(raw: RawResponse) -> bool:
    return bool(raw.content) and choose_spelling(raw.content or []).spelling == "ids"


def _mode(asked: dict[str, Any]) -> LogprobsMode | None:
    return next((mode for mode in MODES if mode == asked.get("logprobs_mode")), None)


def _prompt(raw: RawResponse, asked: dict[str, Any]) -> Prompt:
    messages = asked.get("messages")
    text = asked.get("prompt")
    sent = _sent_ids(text)
    ids = raw.prompt_token_ids or sent
    known = {
        "messages": tuple(messages) if isinstance(messages, list) else None,
        "text": text if isinstance(text, str) else None,
        "digest": prompt_digest(ids) if ids else None,
    }
    if ids:
        source = "response" if raw.prompt_token_ids else "request"
        return Prompt(token_ids=ids, source=source, **known)
    raw.warnings.append(
        "the response has no prompt_token_ids: the prompt must be rendered again, and nobody can"
        " tell whether the executor saw the same one (case 23)"
    )
    return Prompt(source="rerendered", **known)


def _sent_ids(prompt: object) -> tuple[int, ...] | None:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if (
        isinstance(prompt, list)
        and prompt
        and all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in prompt)
    ):
        return tuple(prompt)
    return None


def _name_of(raw: RawResponse, output: Output) -> str:
    """A stable id for an answer that has none: equal answers get equal names."""
    rows = [
        [p.token, None if p.logprob == IMPOSSIBLE else p.logprob] for p in output.positions or ()
    ]
    seen = json.dumps([raw.model, raw.text, output.ids, rows], sort_keys=True)
    return "unnamed-" + hashlib.sha256(seen.encode()).hexdigest()[:16]
