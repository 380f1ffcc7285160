"""The prefill path: prompt and claimed answer in one forward pass, nothing generated.

The whole is sent as a prompt and its prompt log probabilities are read at the answer's positions.
Works on a plain vLLM server. No noise and no sampler take part, so there is no evidence of what
the engine would have drawn; in its place the replay carries more alternatives than the claim.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from assay.claims.claim import Claim, Replay, Usage
from assay.claims.positions import TopEntry
from assay.errors import ClaimError, ReplayError
from assay.replay.client import EngineClient
from assay.replay.decode import ReplayRun, check_limits, prompt_note, served_model
from assay.replay.failures import with_retries
from assay.replay.identity import ServerIdentity
from assay.replay.prefill_fits import PrefillMode, check_fits, not_available, settle_mode
from assay.replay.prefill_read import ScoredToken, read_columns, read_prompt_logprobs
from assay.replay.rendering import render_prompt
from assay.replay.request import (
    DEFAULT_OPTIONS,
    MAX_TOP_TOKENS,
    Note,
    ReplayOptions,
    ReplayRequest,
    build_replay_request,
)

STOCK_ROUTE = "/v1/completions"
PLUGIN_ROUTE = "/v1/assay/prefill"

MAX_ENTRIES = 300_000
"""Listed log probabilities in one answer: about 25 MB of JSON and 150 MB while it is read. A plain
server lists the prompt's positions too, so a long prompt leaves fewer alternatives."""


@dataclass(frozen=True)
class Scoring:
    """What to ask: prompt and output ids, ``width`` alternatives a position where the claim has
    ``k`` and ``least`` are needed, and the ids the claim lists at each position, without those that
    no vocabulary has."""

    model: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    k: int
    least: int
    width: int
    claimed: tuple[tuple[int, ...], ...]
    by_plugin: bool
    cache_salt: str | None = None


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
    scoring = _scoring(claim, server, request, options, prompt=prompt, mode=mode)
    scored = await _score(client, scoring, retries)
    if mode.cuts is not None:
        scored = [mode.cuts.apply(token) for token in scored]
    replay = Replay(
        id=claim.id,
        path="prefill",
        prompt_token_ids=prompt,
        positions=tuple(token.position(scoring.k, claim.endpoint) for token in scored),
        alternatives=tuple(token.alternatives for token in scored),
        claimed_entries=_unless_empty(tuple(token.claimed_entries for token in scored)),
        usage=Usage(prompt_tokens=len(prompt), completion_tokens=len(scoring.output)),
        logprobs_mode=mode.mode,
        mode_source=mode.source,
        engine=server.engine(),
    )
    kept = tuple(note for note in request.notes if not _is_answered(note, mode.source))
    notes = (*kept, *mode.notes, *prompt_note(claim, replay))
    return ReplayRun(
        replay.model_copy(update={"warnings": tuple(note.message for note in notes)}), notes
    )


def _unless_empty(rows: tuple[tuple[TopEntry, ...], ...]) -> tuple[tuple[TopEntry, ...], ...]:
    return rows if any(rows) else ()


def _is_answered(note: Note, source: str) -> bool:
    """A mode that is not named matters only where the parameters make modes differ."""
    return note.code == "mode_not_named" and source == "explicit"


def _scoring(
    claim: Claim,
    server: ServerIdentity,
    request: ReplayRequest,
    options: ReplayOptions,
    *,
    prompt: tuple[int, ...],
    mode: PrefillMode,
) -> Scoring:
    output = claim.output_ids or ()
    tokens = len(prompt) + len(output)
    # The engine generates one token behind the prompt, whether anybody wants it or not.
    if server.max_model_len is not None and tokens >= server.max_model_len:
        raise not_available(
            f"prompt and answer are {tokens} tokens, and a prefill needs room for one more than"
            f" the {server.max_model_len} of this server"
        )
    least = request.k if mode.cuts is None else max(request.k, mode.cuts.top_k)
    wanted = max(least, options.prefill_top)
    if server.max_logprobs is not None and server.max_logprobs >= 0:
        wanted = min(wanted, server.max_logprobs)
    # The plugin's route knows the base model only, so an adapter is served by the stock route,
    # which lists the prompt's positions too.
    by_plugin = server.has_plugin and request.body["model"] == server.model
    listed = len(output) if by_plugin else tokens
    width = min(wanted, MAX_ENTRIES // listed - 1)
    if width < least:
        raise not_available(
            f"{least} alternatives at each of {listed} positions are needed, and the server's limit"
            f" or the {MAX_ENTRIES} entries that one answer may have leave {width}"
        )
    salt = request.body.get("cache_salt")
    return Scoring(
        model=request.body["model"],
        prompt=prompt,
        output=output,
        k=request.k,
        least=least,
        width=width,
        claimed=tuple(_listed_ids(claim, at, server.vocab_size) for at in range(len(output))),
        by_plugin=by_plugin,
        cache_salt=salt if isinstance(salt, str) else None,
    )


def _listed_ids(claim: Claim, at: int, vocabulary: int | None) -> tuple[int, ...]:
    positions = claim.positions or ()
    if at >= len(positions):
        return ()
    ids = (entry.key for entry in positions[at].top)
    kept = [i for i in ids if isinstance(i, int) and 0 <= i < (vocabulary or 0)]
    return tuple(kept[:MAX_TOP_TOKENS])


async def _score(client: EngineClient, scoring: Scoring, retries: int) -> list[ScoredToken]:
    """By the plugin's route where there is one, else by the stock route.

    A second request for no more than is needed follows where the first asked a plain server, whose
    limit nobody knows, for more.
    """
    if scoring.by_plugin:
        return await _by_plugin(client, scoring, retries)
    try:
        return await _by_stock_route(client, scoring, scoring.width, retries)
    except ReplayError as error:
        if _names_output_id(error, scoring):
            raise ReplayError(
                f"no engine can have sampled it: {error}", blame="claim", code="malformed"
            ) from error
        if error.code != "request_refused" or scoring.width == scoring.least:
            raise
    return await _by_stock_route(client, scoring, scoring.least, retries)


def _names_output_id(error: ReplayError, scoring: Scoring) -> bool:
    """A plain server does not tell its vocabulary; it refuses the largest id by name. That the
    executor wrote it is sure where no id of the prompt, the validator's own, is as large."""
    largest = max(scoring.output)
    return (
        error.code == "request_refused"
        and largest > max(scoring.prompt, default=-1)
        and f"Token id {largest} is out of vocabulary" in str(error)
    )


async def _by_plugin(client: EngineClient, scoring: Scoring, retries: int) -> list[ScoredToken]:
    body = {
        "prompt_token_ids": list(scoring.prompt),
        "output_token_ids": list(scoring.output),
        "claimed_token_ids": [list(ids) for ids in scoring.claimed],
        "top": scoring.width,
    }
    reply = await with_retries(lambda: client.send("POST", PLUGIN_ROUTE, body), retries=retries)
    with _unreadable():
        return read_columns(reply.body, scoring.output, scoring.claimed)


async def _by_stock_route(
    client: EngineClient, scoring: Scoring, width: int, retries: int
) -> list[ScoredToken]:
    body: dict[str, Any] = {
        "model": scoring.model,
        "prompt": [*scoring.prompt, *scoring.output],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": width,
    }
    if scoring.cache_salt is not None:
        body["cache_salt"] = scoring.cache_salt
    reply = await with_retries(lambda: client.send("POST", STOCK_ROUTE, body), retries=retries)
    with _unreadable():
        return read_prompt_logprobs(reply.body, len(scoring.prompt), scoring.output, width)


@contextmanager
def _unreadable() -> Iterator[None]:
    """An answer that cannot be read says nothing about the claim."""
    try:
        yield
    except ClaimError as error:
        raise ReplayError(
            f"the validator's own engine answered something that cannot be read: {error}",
            blame="validator",
            code="validator_error",
        ) from error
