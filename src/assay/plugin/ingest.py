"""From request fields to a request the engine understands, or a refusal before it sees anything."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import Any

from assay.claims.mode_inference import infer_mode
from assay.errors import RequestError
from assay.plugin.constants import (
    KEY_ARG,
    MODE_ARG,
    REQUEST_FIELDS,
    RESERVED_PREFIX,
    TRACE_ARG,
)
from assay.plugin.room import room_checking
from assay.plugin.trace import Encode, Trace, read_mode, read_trace

logger = logging.getLogger("vllm.assay")


@dataclass(frozen=True)
class EngineLimits:
    """What the engine behind this server can take."""

    vocab_size: int
    """Ids at or above it are refused: the smaller of the model's and the tokenizer's vocabulary."""
    max_model_len: int
    deployment_mode: str
    speculative: bool
    sampling_mask: bool
    max_new_tokens: int | None
    """The deployment's own cap on generated tokens, which vLLM applies silently."""


@dataclass(frozen=True)
class Job:
    """One accepted request with fields of ours. ``key`` names its evidence; ``None`` = no replay."""

    key: str | None
    positions: int
    mode: str
    mode_source: str
    inferred: dict[str, float | int] | None
    trace_field: str


def our_fields(request: Any) -> dict[str, Any]:
    """The fields of ours a request model carries (vLLM keeps unknown ones in ``model_extra``).

    JSON null counts as absent. ``vllm_xargs`` may not use our reserved names: they would reach the
    sampler without having been checked.
    """
    for name in getattr(request, "vllm_xargs", None) or {}:
        if name.startswith(RESERVED_PREFIX):
            raise RequestError(
                f"vllm_xargs.{name} is reserved; use the plain field "
                f"{' or '.join(REQUEST_FIELDS)} instead",
                param=f"vllm_xargs.{name}",
            )
    extra = request.model_extra or {}
    return {name: extra[name] for name in REQUEST_FIELDS if extra.get(name) is not None}


def given_fields(body: dict[str, Any]) -> frozenset[str]:
    """Names the caller gave a value. JSON null counts as absent: completions turn it into 16 tokens."""
    return frozenset(name for name, value in body.items() if value is not None)


def ingest(
    request: Any,
    fields: dict[str, Any],
    given: frozenset[str],
    limits: EngineLimits,
    encode: Encode,
) -> Job:
    """Check ``fields`` against the rest of ``request`` and write them where the engine looks.

    ``given`` (:func:`given_fields`): the model fills in defaults of its own.
    Changes ``request``: our data goes into ``vllm_xargs``; a replay's ``max_tokens`` becomes the
    longer of the trace and what the caller asked for, and its stop strings are cleared (they shape
    no distribution and would cut it).
    """
    mode = read_mode(fields)
    if limits.speculative:
        raise RequestError(
            f"{next(iter(fields))} needs a server without speculative decoding: its numbers come "
            "from several forward passes. Restart without --speculative-config.",
            param=next(iter(fields)),
        )
    trace = read_trace(fields, limits.vocab_size, encode)
    source, inferred = "explicit" if mode else "deployment", None
    if trace is None:
        arguments: dict[str, Any] = {}
    else:
        _check_replay(request, trace, limits, _trace_field(fields))
        arguments = {TRACE_ARG: list(trace.tokens), KEY_ARG: uuid.uuid4().hex}
        _make_room(request, len(trace.tokens), given)
        request.stop = []
        if mode is None:
            guess = infer_mode(trace.top_ids)
            if guess.mode is not None:
                mode, source = guess.mode, "inferred"
                inferred = {"low_id_ratio": guess.ratio, "entries": guess.entries}
                logger.info(
                    "assay: request %s names no logprobs_mode; inferred %s from %.4f low ids of %d",
                    request.request_id,
                    mode,
                    guess.ratio,
                    guess.entries,
                )
    if mode is not None:
        arguments[MODE_ARG] = mode
    request.vllm_xargs = {**(request.vllm_xargs or {}), **arguments}
    return Job(
        key=arguments.get(KEY_ARG),
        positions=len(trace.tokens) if trace else 0,
        mode=mode or limits.deployment_mode,
        mode_source=source,
        inferred=inferred,
        trace_field=_trace_field(fields),
    )


def _trace_field(fields: dict[str, Any]) -> str:
    return next((name for name in REQUEST_FIELDS[:2] if name in fields), "logprobs_mode")


def _check_replay(request: Any, trace: Trace, limits: EngineLimits, field: str) -> None:
    """Refuse what a replay cannot be combined with (spec replay section 1)."""
    refusals = (
        ("n", (request.n or 1) > 1, "asks for several answers; one trace replays one"),
        ("use_beam_search", request.use_beam_search, "searches instead of sampling"),
        ("prompt_logprobs", request.prompt_logprobs is not None, "is not served in a replay"),
        ("echo", bool(request.echo), "is not served in a replay"),
        ("prompt", _several_prompts(request), "holds several prompts; one trace replays one"),
        (
            "prompt_embeds",
            _has(request, "prompt_embeds"),
            "carries no token ids to bind a claim to",
        ),
    )
    for param, refused, why in refusals:
        if refused:
            raise RequestError(f"{param} {why}; leave it out with {field}", param=param)
    if limits.sampling_mask:
        raise RequestError(f"{field} needs a server without --return-sampling-mask", param=field)
    positions = len(trace.tokens)
    if positions >= limits.max_model_len:
        raise RequestError(
            f"{field} has {positions} positions, but this server's context holds "
            f"{limits.max_model_len} tokens including the prompt",
            param=field,
        )
    if limits.max_new_tokens is not None and positions > limits.max_new_tokens:
        raise RequestError(
            f"{field} has {positions} positions, but this deployment generates at most "
            f"{limits.max_new_tokens} tokens",
            param=field,
        )


def _make_room(request: Any, positions: int, given: frozenset[str]) -> None:
    """Let the request generate its whole trace; ``room.py`` refuses it if the prompt leaves no room."""
    asked = next(
        (
            request.__dict__[name]  # reading the attribute warns that max_tokens is deprecated
            for name in ("max_completion_tokens", "max_tokens")
            if name in given and request.__dict__.get(name) is not None
        ),
        0,
    )
    name = "max_completion_tokens" if "max_completion_tokens" in request.__dict__ else "max_tokens"
    setattr(request, name, max(positions, asked))
    request.__class__ = room_checking(type(request))


def _several_prompts(request: Any) -> bool:
    prompt = getattr(request, "prompt", None)
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


def _has(request: Any, name: str) -> bool:
    return getattr(request, name, None) is not None
