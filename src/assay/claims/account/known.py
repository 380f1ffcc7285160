"""What the validator knows beyond the claim."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from assay.claims.claim import Claim, Replay
from assay.claims.positions import IMPOSSIBLE, Position


@dataclass(frozen=True)
class End:
    """The last claimed token in the validator's own distribution there, in nats.

    ``best_*`` is the likeliest token's. ``raw`` is before, ``processed`` after the sampler's
    parameters; ``None`` where not known, minus infinity where impossible.
    """

    raw: float | None = None
    best_raw: float | None = None
    processed: float | None = None
    best_processed: float | None = None


@dataclass(frozen=True)
class Known:
    """What the validator knows beyond the claim; ``None`` where it does not.

    ``eos_ids`` are the end-of-sequence ids of the model, the tokenizer's own first: every server
    ends there, while the others come from a generation config that a server may not use.
    ``max_model_len`` is the context in tokens, ``replayed_tokens`` the completion tokens of the
    validator's own replay, ``end`` its view of the last claimed token.

    ``rendered_prompt_ids`` is the validator's own rendering of the claim's messages or text;
    ``same_template`` is true where the executor's server was seen to render as the validator's
    does. ``decoded_output`` is what ``text.decodable_ids`` decode to, special tokens spelled out.
    ``beacon`` is the public value that every seed must follow from, where the validator demands it.
    ``missing`` says, by field name, why one is ``None``.
    """

    vocab_size: int | None = None
    eos_ids: tuple[int, ...] | None = None
    max_model_len: int | None = None
    replayed_tokens: int | None = None
    end: End | None = None
    rendered_prompt_ids: tuple[int, ...] | None = None
    same_template: bool = False
    decoded_output: str | None = None
    beacon: str | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, name: str, default: str) -> str:
        return self.missing.get(name, default)


def with_replay(known: Known, claim: Claim, replay: Replay) -> Known:
    """``known`` with what an enforced replay shows; fields already known stay as they are."""
    rendered = replay.prompt_token_ids if _is_rendered(claim, replay) else None
    return dataclasses.replace(
        known,
        end=known.end or _end(claim, replay),
        rendered_prompt_ids=known.rendered_prompt_ids or rendered,
        same_template=known.same_template or _same_template(claim, replay),
    )


def _is_rendered(claim: Claim, replay: Replay) -> bool:
    """Both paths render messages and text again. The claim's own ids are run only where it has
    neither, and a replay in a file was made nobody knows how."""
    text = claim.prompt.messages or claim.prompt.text or claim.request.get("messages")
    return replay.path != "file" and bool(text)


def _same_template(claim: Claim, replay: Replay) -> bool:
    """Equal renderings of the fixed conversation, and nothing in the claim that it does not show."""
    theirs, ours = claim.engine.template_digest, replay.engine.template_digest
    return theirs is not None and theirs == ours and is_plain(claim)


NOT_SHOWN = (
    "tools",
    "functions",
    "documents",
    "reasoning_effort",
    "chat_template",
    "mm_processor_kwargs",
    "media_io_kwargs",
    "truncate_prompt_tokens",
)
"""Request fields that shape a prompt in ways in which versions of one engine differ."""


def is_plain(claim: Claim) -> bool:
    """True for messages of plain text only, and for a text prompt."""
    if any(claim.request.get(name) for name in NOT_SHOWN):
        return False
    messages = claim.prompt.messages or ()
    return all(
        isinstance(message, dict)
        and isinstance(message.get("content"), str)
        and message.get("role") in ("system", "user", "assistant")
        for message in messages
    )


def _end(claim: Claim, replay: Replay) -> End | None:
    if not claim.output_ids:
        return None
    last = len(claim.output_ids) - 1
    end = _from_evidence(replay, last)
    # A mode that the server only guessed names no number (case 53).
    positions = () if replay.mode_source == "inferred" else replay.positions or ()
    if last < len(positions) and positions[last].token == claim.output_ids[-1]:
        value, best = positions[last].logprob, _best(positions[last])
        if replay.logprobs_mode == "raw_logprobs":
            end = dataclasses.replace(end, raw=value, best_raw=best)
        elif replay.logprobs_mode == "processed_logprobs":
            end = dataclasses.replace(end, processed=value, best_processed=best)
    return None if end == End() else end


def _best(position: Position) -> float | None:
    listed = [entry.logprob for entry in position.top]
    return max([position.logprob, *listed]) if listed else None


def _from_evidence(replay: Replay, last: int) -> End:
    evidence = replay.evidence
    if evidence is None or not evidence.complete or last >= len(evidence.logprob_raw):
        return End()
    raw = _value(evidence.logprob_raw[last])
    processed = _value(evidence.logprob_processed[last])
    return End(
        raw=raw,
        best_raw=raw if evidence.rank_raw[last] == 1 else None,
        processed=processed,
        best_processed=processed if evidence.rank_processed[last] == 1 else None,
    )


def _value(logprob: float | None) -> float:
    return IMPOSSIBLE if logprob is None else logprob
