"""The account channel: what a claim says about itself, checked without an engine.

It sees what the distributions cannot (spec replay, section 5): truncation, padded or inflated
counts, a false stop reason, ids that no vocabulary holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from assay.claims.claim import Claim

Outcome = Literal["pass", "fail", "not_available"]

INFLATION_TOLERANCE = 3
"""Tokens by which claimed usage may exceed the replayed usage before it is called inflated: the
published rule of the networks that use this protocol (spec replay, section 4)."""


class Check(BaseModel):
    """One check. ``code`` is the reason a verdict gives when it fails."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    outcome: Outcome
    reason: str
    code: str
    position: int | None = None


@dataclass(frozen=True)
class Known:
    """What the validator knows beyond the claim; ``None`` where it does not.

    ``eos_ids`` are the end-of-sequence ids of the model, ``max_model_len`` the context in tokens,
    ``replayed_tokens`` the completion tokens of the validator's own replay.
    """

    vocab_size: int | None = None
    eos_ids: tuple[int, ...] | None = None
    max_model_len: int | None = None
    replayed_tokens: int | None = None


def check_account(claim: Claim, known: Known) -> tuple[Check, ...]:
    """Every account check, in a fixed order; none of them needs an engine or a tokenizer."""
    return (
        _output_count(claim),
        _inflated(claim, known),
        _ids_in_range(claim, known),
        _max_tokens(claim),
        _finish_reason(claim, known),
        _end_inside(claim, known),
        _prompt_ids(claim),
        _prompt_count(claim),
    )


def _output_count(claim: Claim) -> Check:
    """Positions and ids against usage.completion_tokens."""
    name, code = "output_count", "position_gap"
    counted = claim.usage.completion_tokens
    if counted is None:
        return _unknown(name, code, "the claim has no usage.completion_tokens")
    if not claim.positions and claim.output_ids is None:
        return _unknown(name, code, "the claim has no token ids and no positions to count")
    held = len(claim.positions) if claim.positions else len(claim.output_ids or ())
    # A server may be unable to name the end token and leave its position out (case 9).
    unnamed_end = counted == held + 1 and claim.finish_reason == "stop"
    if held == counted or unnamed_end:
        return _pass(name, code, f"{held} positions, {counted} tokens counted")
    return _fail(
        name,
        code,
        f"the claim counts {counted} output tokens and shows {held}: evidence is missing"
        if held < counted
        else f"the claim shows {held} output tokens and counts only {counted}",
    )


def _inflated(claim: Claim, known: Known) -> Check:
    name = code = "inflated"
    counted = claim.usage.completion_tokens
    if counted is None or known.replayed_tokens is None:
        return _unknown(name, code, "needs usage.completion_tokens and a replay")
    surplus = counted - known.replayed_tokens
    if surplus > INFLATION_TOLERANCE:
        return _fail(
            name,
            code,
            f"the claim counts {counted} output tokens, the replay {known.replayed_tokens}: more"
            f" than the {INFLATION_TOLERANCE} that are tolerated",
        )
    return _pass(name, code, f"{counted} tokens counted, {known.replayed_tokens} replayed")


def _ids_in_range(claim: Claim, known: Known) -> Check:
    """Chosen ids and alternatives; an id from -1 down is out of range in every vocabulary."""
    name, code = "ids_in_range", "out_of_vocabulary"
    ids = list(enumerate(claim.output_ids or ()))
    for index, position in enumerate(claim.positions or ()):
        keys = [position.token, *(entry.key for entry in position.top)]
        ids.extend((index, key) for key in keys if isinstance(key, int))
    if not ids:
        return _unknown(name, code, "the claim has no token ids")
    size = known.vocab_size
    for index, token in ids:
        if token < 0 or (size is not None and token >= size):
            limit = "from 0" if size is None else f"in [0, {size})"
            return _fail(
                name, code, f"id {token} is not {limit}: no engine can have sampled it", index
            )
    if size is None:
        return _unknown(name, code, "the size of the vocabulary is not known; no id is negative")
    return _pass(name, code, f"all ids in [0, {size})")


def _max_tokens(claim: Claim) -> Check:
    name, code = "max_tokens", "over_max_tokens"
    limit, tokens = _limit(claim), _tokens(claim)
    if limit is None or tokens is None:
        return _unknown(name, code, "needs max_tokens of the request and a token count")
    if tokens > limit:
        return _fail(name, code, f"{tokens} output tokens although max_tokens was {limit}")
    return _pass(name, code, f"{tokens} output tokens, max_tokens {limit}")


def _finish_reason(claim: Claim, known: Known) -> Check:
    """``length`` needs max_tokens or a full context, ``stop`` something that stops."""
    name, code = "finish_reason", "false_finish_reason"
    limit, tokens = _limit(claim), _tokens(claim)
    if tokens is None:
        return _unknown(name, code, "the number of output tokens is not known")
    if claim.finish_reason == "length":
        return _length_reason(claim, known, limit, tokens)
    if claim.finish_reason == "stop":
        return _stop_reason(claim, known)
    return _unknown(
        name, code, f"nothing to check for the finish reason {claim.finish_reason or 'none'}"
    )


def _length_reason(claim: Claim, known: Known, limit: int | None, tokens: int) -> Check:
    name, code = "finish_reason", "false_finish_reason"
    if limit is not None and tokens >= limit:
        return _pass(name, code, f"stopped at max_tokens {limit}")
    prompt = claim.usage.prompt_tokens
    if prompt is None and claim.prompt.token_ids is not None:
        prompt = len(claim.prompt.token_ids)
    if limit is None or prompt is None or known.max_model_len is None:
        return _unknown(
            name, code, "length: needs max_tokens, the prompt length and the context length"
        )
    if prompt + tokens >= known.max_model_len:
        return _pass(name, code, f"stopped at the context length {known.max_model_len}")
    return _fail(
        name,
        code,
        f"finish reason length after {tokens} tokens, below max_tokens {limit} and the context"
        f" {known.max_model_len}: the answer was truncated",
    )


def _stop_reason(claim: Claim, known: Known) -> Check:
    name, code = "finish_reason", "false_finish_reason"
    if claim.request.get("stop"):
        return _unknown(name, code, "the request has stop strings, which need a tokenizer")
    if not claim.output_ids or known.eos_ids is None:
        return _unknown(name, code, "stop: needs output ids and the end ids of the model")
    ends = set(known.eos_ids) | set(_stop_ids(claim))
    last = claim.output_ids[-1]
    if last in ends:
        return _pass(name, code, f"stopped at id {last}")
    counted = claim.usage.completion_tokens
    if counted == len(claim.output_ids) + 1:
        return _unknown(name, code, "the position of the end token is not in the claim")
    return _fail(
        name,
        code,
        f"finish reason stop, but the last id {last} ends nothing: the answer was truncated",
        len(claim.output_ids) - 1,
    )


def _end_inside(claim: Claim, known: Known) -> Check:
    """Tokens after an end id were never sampled by this request: padding."""
    name, code = "end_inside", "tokens_after_end"
    if not claim.output_ids or known.eos_ids is None:
        return _unknown(name, code, "needs output ids and the end ids of the model")
    if claim.request.get("ignore_eos"):
        return _unknown(name, code, "the request has ignore_eos")
    least = claim.request.get("min_tokens")
    start = least if isinstance(least, int) and not isinstance(least, bool) else 0
    for index, token in enumerate(claim.output_ids[:-1]):
        if index >= start and token in known.eos_ids:
            return _fail(
                name,
                code,
                f"{len(claim.output_ids) - 1 - index} tokens follow the end id {token}",
                index,
            )
    return _pass(name, code, "no end id before the last token")


def _prompt_ids(claim: Claim) -> Check:
    """Ids the caller sent must be the ids the server says it ran."""
    name, code = "prompt_ids", "prompt_mismatch"
    if claim.prompt.token_ids is None:
        return _unknown(name, code, "the claim has no prompt ids; its prompt is rendered again")
    sent = claim.request.get("prompt")
    if isinstance(sent, list) and len(sent) == 1 and isinstance(sent[0], list):
        sent = sent[0]
    if not isinstance(sent, list) or not all(isinstance(token, int) for token in sent):
        return _unknown(name, code, "the request gives messages or text, which need a tokenizer")
    if tuple(sent) == claim.prompt.token_ids:
        return _pass(name, code, "the prompt ids are those of the request")
    return _fail(name, code, "the server reports other prompt ids than the request sent")


def _prompt_count(claim: Claim) -> Check:
    name, code = "prompt_count", "prompt_count"
    counted, ids = claim.usage.prompt_tokens, claim.prompt.token_ids
    if counted is None or ids is None:
        return _unknown(name, code, "needs usage.prompt_tokens and prompt ids")
    if counted == len(ids):
        return _pass(name, code, f"{counted} prompt tokens")
    return _fail(name, code, f"the claim counts {counted} prompt tokens and shows {len(ids)}")


def _limit(claim: Claim) -> int | None:
    for field in ("max_completion_tokens", "max_tokens"):
        value = claim.request.get(field)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _tokens(claim: Claim) -> int | None:
    if claim.output_ids is not None:
        return len(claim.output_ids)
    if claim.positions:
        return len(claim.positions)
    return claim.usage.completion_tokens


def _stop_ids(claim: Claim) -> tuple[int, ...]:
    value = claim.request.get("stop_token_ids")
    return tuple(t for t in value if isinstance(t, int)) if isinstance(value, list) else ()


def _pass(name: str, code: str, reason: str) -> Check:
    return Check(name=name, outcome="pass", reason=reason, code=code)


def _fail(name: str, code: str, reason: str, position: int | None = None) -> Check:
    return Check(name=name, outcome="fail", reason=reason, code=code, position=position)


def _unknown(name: str, code: str, reason: str) -> Check:
    return Check(name=name, outcome="not_available", reason=reason, code=code)
