"""Ask a server and keep its answers as claims."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from assay.claims.claim import Claim, EngineIdentity, LogprobsMode, SeedSource, Tape
from assay.claims.read_json import read_response
from assay.claims.read_stream import read_stream
from assay.claims.seeds import derive_seed, verify_seed
from assay.errors import ClaimError, ReplayError
from assay.replay.client import EngineClient
from assay.replay.failures import as_replay_error, with_retries
from assay.replay.identity import ServerIdentity
from assay.replay.prompts import PromptLine

DEFAULT_TOP_LOGPROBS = 5
"""What the networks that use this protocol ask for; vLLM allows 20 unless told otherwise."""
DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True)
class RecordOptions:
    """Sampling fields for every request; a field that a prompt line sets itself wins.

    ``logprobs_mode`` is sent to servers that have the plugin; a stock server cannot choose, so
    there it is only what the caller says the server runs. So is ``tape`` where the server does not
    say it. ``beacon`` gives every request without a seed of its own the seed that follows from it.
    """

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    beacon: str | None = None
    tape: Tape | None = None
    top_logprobs: int | None = None
    stream: bool = False
    logprobs_mode: LogprobsMode | None = None
    concurrency: int = 8
    retries: int = 0


def record_request(
    prompt: PromptLine, server: ServerIdentity, options: RecordOptions
) -> dict[str, Any]:
    """The body to send for one prompt, without ``stream``."""
    body = dict(prompt.body)
    body.pop("stream", None)
    body.pop("stream_options", None)
    if options.model is not None:
        body["model"] = options.model
    elif "model" not in body and server.model is not None:
        body["model"] = server.model
    if "max_tokens" not in body and "max_completion_tokens" not in body:
        body["max_tokens"] = options.max_tokens or DEFAULT_MAX_TOKENS
    for name, value in (("temperature", options.temperature), ("seed", options.seed)):
        if value is not None:
            body.setdefault(name, value)
    _ask_for_evidence(prompt, body, options)
    if options.logprobs_mode is not None and server.has_plugin:
        body.setdefault("logprobs_mode", options.logprobs_mode)
    if options.beacon is not None and body.get("seed") is None:
        body["seed"] = derive_seed(options.beacon, body)
    return body


def _ask_for_evidence(prompt: PromptLine, body: dict[str, Any], options: RecordOptions) -> None:
    """Ids on both sides, ids for every alternative, and alternatives at all."""
    body["return_token_ids"] = True
    body["return_tokens_as_token_ids"] = True
    wanted = DEFAULT_TOP_LOGPROBS if options.top_logprobs is None else options.top_logprobs
    if prompt.endpoint == "chat":
        body["logprobs"] = True
        # null counts as not set: a vLLM server then sends no log probabilities (case 22)
        body["top_logprobs"] = _or_default(body.get("top_logprobs"), wanted)
    else:
        body["logprobs"] = _or_default(body.get("logprobs"), wanted)


def _or_default(value: object, default: int) -> object:
    return default if value is None or isinstance(value, bool) else value


async def record_one(
    client: EngineClient, server: ServerIdentity, prompt: PromptLine, options: RecordOptions
) -> Claim:
    """One exchange as a claim.

    Raises ClaimError naming the prompt's line when the answer is no usable evidence (no token
    ids: case 20), ReplayError when the server refuses or fails.
    """
    body = record_request(prompt, server, options)
    path = "/v1/chat/completions" if prompt.endpoint == "chat" else "/v1/completions"
    try:
        claim = await _ask(client, path, body, options)
        _refuse_without_ids(claim)
    except ClaimError as error:
        raise ClaimError(
            f"prompt line {prompt.line}: cannot build a claim: {error}", code=error.code
        ) from error
    except ReplayError as error:
        raise ReplayError(
            f"prompt line {prompt.line}: {error}",
            blame="validator",
            status=error.status,
            code=error.code,
        ) from error
    return _with_identity(claim, server, options)


async def _ask(
    client: EngineClient, path: str, body: dict[str, Any], options: RecordOptions
) -> Claim:
    if not options.stream:
        reply = await with_retries(lambda: client.send("POST", path, body), retries=options.retries)
        return read_response(reply.body, body)
    streamed = body | {"stream": True, "stream_options": {"include_usage": True}}
    reply, lines = await client.send_stream(path, streamed)
    if reply.status != 200:
        raise as_replay_error(reply)
    return read_stream(lines, body)


def _refuse_without_ids(claim: Claim) -> None:
    if claim.output_ids is None:
        raise ClaimError(
            "the server returned no output token ids (token_ids is null or missing) although"
            " return_token_ids was asked for; text is not tokenised again in silence (case 20)",
            code="no_token_ids",
        )
    if claim.prompt.token_ids is None:
        raise ClaimError(
            "the server returned no prompt_token_ids although return_token_ids was asked for"
            " (case 23)",
            code="no_prompt_ids",
        )


def _with_identity(claim: Claim, server: ServerIdentity, options: RecordOptions) -> Claim:
    """Add what the server says of itself, and the log probability mode with where it is from."""
    warnings = claim.warnings
    if server.has_plugin:
        mode = claim.logprobs_mode or server.mode
    else:
        mode = options.logprobs_mode
        warnings += (
            "the server has no assay plugin: its log probability mode is "
            + (f"{mode} because the recorder was told so" if mode else "not known"),
        )
    source: SeedSource | None = None
    if claim.request.get("seed") is not None:
        by_beacon = options.beacon is not None and verify_seed(claim, options.beacon).ok
        source = "beacon" if by_beacon else "client"
    known = server.engine()
    seen = {name: value for name, value in claim.engine if value is not None}
    return claim.model_copy(
        update={
            "engine": EngineIdentity(**{**known.model_dump(), **seen}),
            "logprobs_mode": mode,
            "tape": server.tape or options.tape,
            "seed_source": source,
            "warnings": warnings,
        }
    )


async def record_all(
    client: EngineClient,
    server: ServerIdentity,
    prompts: Sequence[PromptLine],
    options: RecordOptions,
) -> AsyncGenerator[Claim | ClaimError, None]:
    """Claims in the order of ``prompts``, up to ``options.concurrency`` requests in flight.

    An answer that is no evidence comes back as its ClaimError and the rest goes on; a server that
    fails stops the run with ReplayError. Leaving the iteration early cancels what is in flight.
    """
    slots = asyncio.Semaphore(options.concurrency)

    async def one(prompt: PromptLine) -> Claim | ClaimError:
        async with slots:
            try:
                return await record_one(client, server, prompt, options)
            except ClaimError as error:
                return error

    tasks = [asyncio.create_task(one(prompt)) for prompt in prompts]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def collect(
    client: EngineClient,
    server: ServerIdentity,
    prompts: Sequence[PromptLine],
    options: RecordOptions,
) -> list[Claim]:
    """All claims at once; raises the first ClaimError or ReplayError."""
    claims: list[Claim] = []
    async with aclosing(record_all(client, server, prompts, options)) as answers:
        async for answer in answers:
            if isinstance(answer, ClaimError):
                raise answer
            claims.append(answer)
    return claims
