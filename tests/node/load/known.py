"""What the node answered before the load: the truth that every later answer is held against."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np

from assay.replay.client import HttpEngineClient
from assay.replay.identity import identify
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, collect
from assay.settings import ClientSettings

MARGIN = 0.01
"""Nats between the first and the second id, at every step of a prompt that is used. Sums of another
batch in float32 move a log probability by about 1e-6; the run measures by how much they did and ends
in a violation when it is half of this. So another token is never a tie that fell the other way."""
MAX_TOKENS = 32
WORDS = (
    *("assay", "metal", "server", "claim", "token", "answer", "proof", "nonce", "vector", "honest"),
    *("replay", "city", "people", "count", "name", "list", "what", "where", "why", "how", "is"),
    *("the", "a", "of", "and", "12", "7", "2024", "3.14", "true", "null"),
)


@dataclass(frozen=True)
class KnownChat:
    """``body``: greedy, every answer ``MAX_TOKENS`` long. ``logprobs`` of the chosen ids, in nats."""

    body: Mapping[str, Any]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str


@dataclass
class Known:
    """``vectors``: by nonce, float64 `[k]`; grows by nonces first seen under load."""

    chats: Sequence[KnownChat]
    honest: Sequence[dict[str, Any]]
    tampered: Sequence[dict[str, Any]]
    vectors: dict[int, np.ndarray] = field(default_factory=dict)


def evidence_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """``body`` with ids and the two likeliest of every step."""
    return {**body, "return_token_ids": True, "logprobs": True, "top_logprobs": 2}


async def known_chats(
    http: httpx.AsyncClient, rng: random.Random, count: int
) -> tuple[list[KnownChat], int]:
    """``count`` prompts of different lengths that are no close call at any step, and how many were.

    Every one is asked twice, one after the other, and must be answered alike.
    """
    kept: list[KnownChat] = []
    close = 0
    while len(kept) < count:
        assert close < 20 * count, "hardly a prompt has a clear answer; is the model the tiny one?"
        text = " ".join(rng.choices(WORDS, k=rng.randint(2, 40)))
        body = {
            "model": "model",
            "messages": [{"role": "user", "content": text}],
            "max_tokens": MAX_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        first, second = [await _asked(http, body) for _ in range(2)]
        if first is None or second is None:
            close += 1
            continue
        assert first.ids == second.ids, f"two backends answer {text!r} differently"
        kept.append(first)
    return kept, close


async def _asked(http: httpx.AsyncClient, body: Mapping[str, Any]) -> KnownChat | None:
    """None when some step was a close call."""
    answer = await http.post("/v1/chat/completions", json=evidence_of(body))
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    steps = choice["logprobs"]["content"]
    for step in steps:
        first, second = sorted((e["logprob"] for e in step["top_logprobs"]), reverse=True)[:2]
        if first - second < MARGIN:
            return None
    return KnownChat(
        body,
        tuple(choice["token_ids"]),
        tuple(step["logprob"] for step in steps),
        choice["message"]["content"],
    )


async def known_claims(base_url: str, count: int) -> list[dict[str, Any]]:
    """Claims of sampled answers that the node gave."""
    prompts = [
        PromptLine(n + 1, "chat", {"messages": [{"role": "user", "content": f"Which {word}?"}]})
        for n, word in enumerate(WORDS[:count])
    ]
    async with HttpEngineClient(
        base_url, ClientSettings(), transport=httpx.AsyncHTTPTransport()
    ) as client:
        server = await identify(client)
        claims = await collect(client, server, prompts, RecordOptions(max_tokens=48))
    return [json.loads(claim.model_dump_json()) for claim in claims]


def tampered(claim: dict[str, Any]) -> dict[str, Any]:
    """The claim with log probabilities of a model far sharper than the one that answered."""
    copy: dict[str, Any] = json.loads(json.dumps(claim))
    for position in copy["positions"]:
        for entry in (position, *position["top"]):
            entry["logprob"] = 5 * entry["logprob"] - 5
    return copy


def vector_of(text: str) -> np.ndarray:
    """float64 `[k]` of one ``vector_b64``, little-endian float16."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<f2").astype(np.float64)
