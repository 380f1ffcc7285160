"""Proof of compute on a running server: ask for vectors, or for a verdict on vectors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from assay.errors import ReplayError, SettingsError
from assay.poc.constants import UINT32_RANGE
from assay.replay.client import EngineClient, EngineReply
from assay.replay.failures import as_replay_error

ROUTE = "/api/v1/pow/generate"
POLL_S = 0.25
LONGEST_POLL_S = 2.0


def parse_nonces(text: str) -> list[int]:
    """``0-31,40,50-59`` as numbers, in order. SettingsError for anything else, or one named twice."""
    nonces: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (part.isascii() and first.isdigit() and (not dash or last.isdigit())):
            raise SettingsError(f"--nonces {part!r}: expected a number or a range such as 0-31")
        low, high = int(first), int(last or first)
        if high < low or high >= UINT32_RANGE:
            raise SettingsError(f"--nonces {part!r}: expected low-high below {UINT32_RANGE}")
        if high - low >= 1_000_000:
            raise SettingsError(f"--nonces {part!r}: at most a million nonces in a range")
        nonces.extend(range(low, high + 1))
    if len(set(nonces)) != len(nonces):
        raise SettingsError("--nonces: a nonce is named twice")
    return nonces


async def served_model(client: EngineClient) -> str:
    """The first model name the server answers to."""
    reply = await client.send("GET", "/v1/models")
    models = _body(reply).get("data") or []
    if not models:
        raise ReplayError("the server names no model", blame="validator", code="no_model")
    return str(models[0]["id"])


async def run_job(
    client: EngineClient,
    body: Mapping[str, Any],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> dict[str, Any]:
    """Queue one ``/generate`` job and wait for its answer by asking, however long it takes.

    Raises ReplayError(blame="validator") when the server refuses, loses, cancels or fails the job.
    """
    queued = _body(await client.send("POST", ROUTE, {**body, "wait": False}))
    path = f"{ROUTE}/{queued['request_id']}"
    wait = POLL_S
    while True:
        state = _body(await client.send("GET", path))
        if state["status"] == "completed":
            return state
        if state["status"] not in ("queued", "running"):
            raise ReplayError(
                f"the server's job ended as {state['status']}: {state.get('error', 'no reason')}",
                blame="validator",
                code="poc_" + str(state["status"]),
            )
        await sleep(wait)
        wait = min(wait * 1.5, LONGEST_POLL_S)


def job_body(
    identity: Mapping[str, Any], params: Mapping[str, Any], nonces: Sequence[int]
) -> dict[str, Any]:
    """The body of one job. The command line speaks for a node of its own: node 0 of 1."""
    return {
        "block_height": 0,
        "node_id": 0,
        "node_count": 1,
        **identity,
        "params": dict(params),
        "nonces": list(nonces),
    }


def _body(reply: EngineReply) -> dict[str, Any]:
    if reply.status != 200:
        raise as_replay_error(reply)
    body = json.loads(reply.body)
    if not isinstance(body, dict):
        raise ReplayError(
            "the server answered no JSON object", blame="validator", code="odd_answer"
        )
    return body
