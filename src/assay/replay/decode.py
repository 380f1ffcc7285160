"""The decode path: the engine generates, and is made to choose the claimed tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass

from assay.claims.claim import Claim, Replay
from assay.claims.read_json import read_replay
from assay.errors import ClaimError, ReplayError
from assay.replay.client import EngineClient
from assay.replay.failures import with_retries
from assay.replay.identity import ServerIdentity
from assay.replay.request import (
    DEFAULT_OPTIONS,
    Note,
    ReplayOptions,
    ReplayRequest,
    build_replay_request,
)


@dataclass(frozen=True)
class ReplayRun:
    """One finished replay, on either path.

    ``token_texts`` is what the engine's tokenizer made of each forced id, ``None`` where the route
    does not say (completions); it is for people to read and takes part in no comparison.
    """

    replay: Replay
    notes: tuple[Note, ...] = ()
    token_texts: tuple[str | None, ...] = ()


async def replay_by_decode(
    client: EngineClient,
    server: ServerIdentity,
    claim: Claim,
    options: ReplayOptions = DEFAULT_OPTIONS,
    *,
    retries: int = 0,
) -> ReplayRun:
    """Run ``claim`` on the engine and read what it says.

    Raises ReplayError: blame ``claim`` where the executor wrote something no engine accepts,
    blame ``validator`` for every failure that says nothing about the executor.
    """
    request = build_replay_request(claim, options)
    request.body["model"] = served_model(claim, server, options)
    check_limits(claim, server, request)
    reply = await with_retries(
        lambda: client.send("POST", request.path, request.body), retries=retries
    )
    try:
        replay = read_replay(reply.body, path="decode")
    except ClaimError as error:
        raise ReplayError(
            f"the validator's own engine answered something that cannot be read: {error}",
            blame="validator",
            code="validator_error",
        ) from error
    _check_forced(replay, request)
    notes = request.notes + prompt_note(claim, replay)
    replay = replay.model_copy(
        update={
            "engine": server.engine(),
            "warnings": replay.warnings + tuple(note.message for note in notes),
        }
    )
    return ReplayRun(replay, notes, token_texts(reply.body))


def served_model(claim: Claim, server: ServerIdentity, options: ReplayOptions) -> str:
    """The served name to ask for.

    A claim of another model is never run on the one that happens to be here: an honest node
    would look like a fraud.
    """
    if options.as_model is not None:
        return options.as_model
    claimed = claim.request.get("model") or claim.engine.model
    names = server.served_models or ((server.model,) if server.model else ())
    if isinstance(claimed, str) and claimed in names:
        return claimed
    if claimed is None and len(names) == 1:
        return names[0]
    raise ReplayError(
        f"the claim is about the model {claimed!r} and this server serves"
        f" {', '.join(repr(name) for name in names) or 'none'}; when they are the same model"
        " under two names, say so with --as-model NAME",
        blame="validator",
        code="model_not_served",
    )


def check_limits(claim: Claim, server: ServerIdentity, request: ReplayRequest) -> None:
    """What can be known before the engine is asked.

    Ids outside the vocabulary are the executor's doing. A context or a top-k limit that is too
    small is the validator's, and must not be mistaken for it.
    """
    # A plain server does not tell its vocabulary; no tensor of ids is wider than 32 bits.
    vocabulary = server.vocab_size or 2**31
    for index, token in enumerate(claim.output_ids or ()):
        if not 0 <= token < vocabulary:
            raise ReplayError(
                f"output token {index} is id {token}, outside the vocabulary of {vocabulary}:"
                " no engine can have sampled it",
                blame="claim",
                code="malformed",
            )
    if server.max_logprobs is not None and 0 <= server.max_logprobs < request.k:
        raise ReplayError(
            f"the claim has {request.k} alternatives a position and this server returns at most"
            f" {server.max_logprobs}; start it with --max-logprobs {request.k}",
            blame="validator",
            code="k_over_limit",
        )
    prompt = claim.prompt.token_ids
    if server.max_model_len is not None and prompt is not None and request.positions is not None:
        need = len(prompt) + request.positions
        if need > server.max_model_len:
            raise ReplayError(
                f"prompt and answer are {need} tokens and this server's context holds"
                f" {server.max_model_len}; start it with a larger --max-model-len",
                blame="validator",
                code="context_too_small",
            )


def _check_forced(replay: Replay, request: ReplayRequest) -> None:
    """A server that ignores unknown fields answers 200 and generates its own text."""
    if replay.evidence is None:
        raise ReplayError(
            "the server answered without the field `assay`: it did not force the tokens; start it"
            " with `assay serve`",
            blame="validator",
            code="validator_unusable",
        )
    got = len(replay.positions or ())
    if request.positions is not None and got < request.positions:
        raise ReplayError(
            f"the server forced {got} of {request.positions} tokens and stopped; the replay is"
            " incomplete",
            blame="validator",
            code="replay_incomplete",
        )


def prompt_note(claim: Claim, replay: Replay) -> tuple[Note, ...]:
    """Name a prompt that the validator renders otherwise than the executor reported it."""
    claimed, ours = claim.prompt.token_ids, replay.prompt_token_ids
    if claimed is None or ours is None or claimed == ours:
        return ()
    same = next(
        (i for i, (a, b) in enumerate(zip(claimed, ours, strict=False)) if a != b),
        min(len(claimed), len(ours)),
    )
    return (
        Note(
            "prompt_mismatch",
            f"the claim reports {len(claimed)} prompt tokens and the validator renders"
            f" {len(ours)}; they differ from prompt token {same} on, so system prompt, template"
            " or tokenizer are not the same",
        ),
    )


def token_texts(body: bytes) -> tuple[str | None, ...]:
    """Readable text of each output token, from the ``bytes`` that chat answers carry.

    The chosen token's ``bytes`` are those of the decoded text even where ``token`` is spelled
    ``token_id:N``. A body already read without error; anything unexpected gives ``None``.
    """
    choice = (json.loads(body).get("choices") or [{}])[0]
    content = (choice.get("logprobs") or {}).get("content")
    if not isinstance(content, list):
        return ()
    return tuple(_text(entry.get("bytes")) for entry in content if isinstance(entry, dict))


def _text(raw: object) -> str | None:
    if not isinstance(raw, list) or not all(isinstance(b, int) and 0 <= b < 256 for b in raw):
        return None
    return bytes(raw).decode("utf-8", errors="replace")
