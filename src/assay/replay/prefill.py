"""The prefill path: prompt and claimed answer in one forward pass, nothing generated.

The whole is sent as a prompt and its prompt log probabilities are read at the answer's positions.
Works on a plain vLLM server. No noise and no sampler take part, so there is no evidence of what
the engine would have drawn; in its place the replay carries more alternatives than the claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.claims.claim import Claim, Replay, Usage
from assay.errors import ClaimError, ReplayError
from assay.replay.client import EngineClient
from assay.replay.decode import ReplayRun, check_limits, prompt_note, served_model
from assay.replay.failures import with_retries
from assay.replay.identity import ServerIdentity
from assay.replay.prefill_fits import check_fits, not_available, settle_mode
from assay.replay.prefill_read import ScoredToken, read_prompt_logprobs
from assay.replay.rendering import render_prompt
from assay.replay.request import (
    DEFAULT_OPTIONS,
    Note,
    ReplayOptions,
    ReplayRequest,
    build_replay_request,
)

ROUTE = "/v1/completions"

MAX_ENTRIES = 300_000
"""Listed log probabilities in one answer: about 25 MB of JSON and 150 MB while it is read. A plain
server lists the prompt's positions too, so a long prompt lowers the number of alternatives."""


@dataclass(frozen=True)
class Whole:
    """Prompt and output as one list of ids; ``width`` alternatives are asked for, ``k`` claimed."""

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    k: int
    width: int


async def replay_by_prefill(
    client: EngineClient,
    server: ServerIdentity,
    claim: Claim,
    options: ReplayOptions = DEFAULT_OPTIONS,
    *,
    retries: int = 0,
) -> ReplayRun:
    """Score ``claim`` in one forward pass.

    Raises ReplayError as ``replay_by_decode`` does, and with code ``prefill_not_available`` (blame
    ``validator``) for a claim that only the decode path can replay.
    """
    request = build_replay_request(claim, options)
    check_fits(claim, request.body)
    mode = settle_mode(claim, options, server)
    request.body["model"] = served_model(claim, server, options)
    check_limits(claim, server, request)
    prompt = await render_prompt(client, claim, request, retries=retries)
    whole = _whole(claim, server, request, options, prompt)
    scored = await _score(client, request, whole, retries)
    replay = Replay(
        id=claim.id,
        path="prefill",
        prompt_token_ids=prompt,
        positions=tuple(token.position(whole.k, claim.endpoint) for token in scored),
        alternatives=tuple(token.alternatives for token in scored),
        usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(whole.output)),
        logprobs_mode=mode.mode,
        mode_source=mode.source,
        engine=server.engine(),
    )
    kept = tuple(note for note in request.notes if not _is_answered(note, mode.source))
    notes = (*kept, *mode.notes, *prompt_note(claim, replay))
    return ReplayRun(
        replay.model_copy(update={"warnings": tuple(note.message for note in notes)}), notes
    )


def _is_answered(note: Note, source: str) -> bool:
    """A mode that is not named matters only where the parameters make modes differ."""
    return note.code == "mode_not_named" and source == "explicit"


def _whole(
    claim: Claim,
    server: ServerIdentity,
    request: ReplayRequest,
    options: ReplayOptions,
    prompt: tuple[int, ...],
) -> Whole:
    output = claim.output_ids or ()
    tokens = len(prompt) + len(output)
    # The engine generates one token behind the prompt, whether anybody wants it or not.
    if server.max_model_len is not None and tokens >= server.max_model_len:
        raise not_available(
            f"prompt and answer are {tokens} tokens, and a prefill needs room for one more than"
            f" the {server.max_model_len} of this server"
        )
    limit = server.max_logprobs
    wanted = max(request.k, options.prefill_top)
    if limit is not None and limit >= 0:
        wanted = min(wanted, limit)
    width = min(wanted, MAX_ENTRIES // tokens - 1)
    if width < request.k:
        raise not_available(
            f"{tokens} positions with {request.k} alternatives each are more than the {MAX_ENTRIES}"
            " entries that one answer may have"
        )
    return Whole(prompt, output, request.k, width)


async def _score(
    client: EngineClient, request: ReplayRequest, whole: Whole, retries: int
) -> list[ScoredToken]:
    """One request; a second one with the claim's own k where the first asked a plain server, whose
    limit nobody knows, for more."""
    try:
        return await _send(client, request, whole, whole.width, retries)
    except ReplayError as error:
        if error.code != "request_refused" or whole.width == whole.k:
            raise
    return await _send(client, request, whole, whole.k, retries)


async def _send(
    client: EngineClient, request: ReplayRequest, whole: Whole, width: int, retries: int
) -> list[ScoredToken]:
    body: dict[str, Any] = {
        "model": request.body["model"],
        "prompt": [*whole.prompt, *whole.output],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": width,
    }
    if isinstance(salt := request.body.get("cache_salt"), str):
        body["cache_salt"] = salt
    reply = await with_retries(lambda: client.send("POST", ROUTE, body), retries=retries)
    try:
        return read_prompt_logprobs(reply.body, len(whole.prompt), whole.output, width)
    except ClaimError as error:
        raise ReplayError(
            f"the validator's own engine answered something that cannot be read: {error}",
            blame="validator",
            code="validator_error",
        ) from error
