"""The demo's second part: proof of compute by the same two servers, and chat beside it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from assay.errors import ReplayError
from assay.poc.settings import NETWORK
from assay.replay.client import HttpEngineClient
from assay.replay.pow import job_body, run_job
from assay.settings import ClientSettings

POW = "/api/v1/pow"
BLOCK, KEY, OTHER_KEY = "demo-block", "demo-key", "another-key"
NONCES = 24
SEQ_LEN = 64
"""Short, so that the demo stays quick: int4 weights show at any length."""
MINING_ENVIRONMENT = {"POC_POLICY": "share"}
"""Chat goes on while the server mines."""

EXPECTED = {"honest vectors": "pass", "int4 vectors": "fail", "another key's vectors": "fail"}
STAT_TEST = {
    "dist_threshold": NETWORK.dist_threshold,
    "p_mismatch": NETWORK.p_mismatch,
    "fraud_threshold": NETWORK.alpha,
}


@dataclass(frozen=True)
class PocOutcome:
    """Verdicts by name, and what one chat request saw while the server mined."""

    verdicts: dict[str, dict[str, Any]]
    mined: int
    chat_tokens: int

    @property
    def problems(self) -> list[str]:
        found = [
            f"{name}: {self.verdicts[name]['verdict']}, expected {expected}"
            for name, expected in EXPECTED.items()
            if self.verdicts[name]["verdict"] != expected
        ]
        if not self.mined:
            found.append("no vector was mined while chat was running")
        if not self.chat_tokens:
            found.append("chat was not answered while the server mined")
        return found

    def lines(self) -> list[str]:
        """One line a verdict, and one for the shared device."""
        told = [
            f"{name:22s} {body['verdict']:13s} {body['n_mismatch']} of {body['n_total']} nonces off"
            for name, body in self.verdicts.items()
        ]
        return [
            *told,
            f"while mining, chat got {self.chat_tokens} tokens and the server made "
            f"{self.mined} vectors",
        ]


async def vectors(
    url: str, model: str, public_key: str, settings: ClientSettings
) -> list[dict[str, Any]]:
    """Artifacts of the demo's nonces from one server."""
    async with HttpEngineClient(url, settings) as client:
        answer = await run_job(client, _job(model, public_key))
    artifacts: list[dict[str, Any]] = answer["artifacts"]
    return artifacts


async def judge(
    url: str, model: str, claimed: dict[str, list[dict[str, Any]]], settings: ClientSettings
) -> PocOutcome:
    """Let the validator judge each set of vectors, then mine and chat at once."""
    async with HttpEngineClient(url, settings) as client:
        verdicts = {}
        for name, artifacts in claimed.items():
            body = {
                **_job(model, KEY),
                "validation": {"artifacts": artifacts},
                "stat_test": STAT_TEST,
            }
            verdicts[name] = await run_job(client, body)
        mined, tokens = await _chat_while_mining(client, model)
    return PocOutcome(verdicts, mined, tokens)


async def _chat_while_mining(client: HttpEngineClient, model: str) -> tuple[int, int]:
    body = {**_job(model, KEY), "batch_size": 4}
    del body["nonces"]
    await _ask(client, "POST", f"{POW}/init/generate", body)
    try:
        chat = {
            "model": model,
            "messages": [{"role": "user", "content": "Name three metals and what they are for."}],
            "max_tokens": 32,
            "temperature": 0,
        }
        answer = await _ask(client, "POST", "/v1/chat/completions", chat)
        mined = 0
        for _ in range(60):
            stats = (await _ask(client, "GET", f"{POW}/status"))["stats"]
            mined = stats["total_processed"] if stats else 0
            if mined:
                break
            await asyncio.sleep(0.5)
    finally:
        await _ask(client, "POST", f"{POW}/stop", {})
    return mined, answer["usage"]["completion_tokens"]


async def _ask(
    client: HttpEngineClient, method: str, path: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    reply = await client.send(method, path, body)
    if reply.status != 200:
        raise ReplayError(
            f"{path} answered {reply.status}: {reply.body[:200].decode(errors='replace')}",
            blame="validator",
            status=reply.status,
        )
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


def _job(model: str, public_key: str) -> dict[str, Any]:
    identity = {"block_hash": BLOCK, "public_key": public_key}
    return job_body(identity, {"model": model, "seq_len": SEQ_LEN}, range(NONCES))
