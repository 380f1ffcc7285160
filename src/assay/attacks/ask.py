"""How a cheating executor answers: it runs one request and claims another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import replace
from typing import Any

from assay.attacks import constants
from assay.attacks.catalogue import Run
from assay.attacks.prompts import question
from assay.claims.claim import Claim
from assay.claims.digest import prompt_digest
from assay.replay.client import EngineClient
from assay.replay.identity import identify
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, record_one, record_request

RETRIES = 3
"""A run takes an hour: one connection that a server closed while idle must not end it."""


def claim_name(run: str, index: int) -> str:
    """The id of claim ``index`` of a run or an attack."""
    return f"{run}-{index:04d}"


def asked(run: Run, index: int, tokens: int, fields: Mapping[str, Any]) -> PromptLine:
    """What the client of claim ``index`` asks for; ``fields`` win over the usual sampling."""
    body: dict[str, Any] = {
        "messages": question(index).messages(),
        "max_tokens": tokens,
        "temperature": constants.TEMPERATURE,
        "top_k": constants.TOP_K,
        "top_p": constants.TOP_P,
        **constants.NEUTRAL,
        "seed": run.first_seed + index,
        "top_logprobs": constants.TOP_LOGPROBS,
        "logprobs_mode": run.mode,
        **fields,
    }
    if not run.free:
        body.setdefault("min_tokens", tokens)
    return PromptLine(index + 1, "chat", body)


def executed(run: Run, wanted: PromptLine) -> PromptLine:
    """What the executor runs instead."""
    body = {**wanted.body, **run.runs}
    body["seed"] = wanted.body["seed"] + run.seed_shift
    if run.system is not None:
        head = {"role": "system", "content": run.system}
        body["messages"] = [head, *(m for m in body["messages"] if m["role"] != "system")]
    return replace(wanted, body=body)


async def answers(
    client: EngineClient,
    run: Run,
    *,
    claims: int,
    tokens: int,
    fields: Mapping[str, Any] | None = None,
    done: Collection[str] = frozenset(),
) -> AsyncGenerator[Claim, None]:
    """The claims of ``run`` that are not ``done``, in order, ``run.batch`` requests in flight.

    Raises ReplayError when the server refuses or fails, ClaimError when an answer is no evidence.
    """
    server = await identify(client)
    options = RecordOptions(concurrency=run.batch, retries=RETRIES)
    slots = asyncio.Semaphore(run.batch)

    async def one(index: int) -> Claim:
        wanted = asked(run, index, tokens, fields or {})
        really = executed(run, wanted)
        async with slots:
            claim = await record_one(client, server, really, options)
            told = claim.model_copy(
                update={
                    "id": claim_name(run.name, index),
                    "request": record_request(wanted, server, options),
                }
            )
            return told if run.system is None else await _without_system(client, told)

    left = [index for index in range(claims) if claim_name(run.name, index) not in done]
    tasks = [asyncio.create_task(one(index)) for index in left]
    try:
        for task in tasks:
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _without_system(client: EngineClient, claim: Claim) -> Claim:
    """The claim with the prompt the client sent: its messages, its ids, its count.

    The executor's own server renders the honest prompt, by a request for one token.
    """
    body = {**claim.request, "max_tokens": 1, "min_tokens": 0}
    reply = await client.send("POST", "/v1/chat/completions", body)
    answer = json.loads(reply.body)
    ids = tuple(answer["prompt_token_ids"])
    usage = claim.usage.model_copy(update={"prompt_tokens": len(ids)})
    if usage.total_tokens is not None and usage.completion_tokens is not None:
        usage = usage.model_copy(update={"total_tokens": len(ids) + usage.completion_tokens})
    prompt = claim.prompt.model_copy(
        update={
            "token_ids": ids,
            "digest": prompt_digest(ids),
            "messages": tuple(claim.request["messages"]),
        }
    )
    return claim.model_copy(update={"prompt": prompt, "usage": usage})
