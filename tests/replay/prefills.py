"""What the tests of the prefill path share: claims of the fake engine, and replays of them."""

from __future__ import annotations

from typing import Any

from tests.support.fake_engine import FakeEngine

from assay.claims.claim import Claim
from assay.replay.client import HttpEngineClient
from assay.replay.decode import ReplayRun, replay_by_decode
from assay.replay.identity import identify
from assay.replay.paths import replay_claim
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, record_one
from assay.replay.request import ReplayOptions
from assay.settings import ClientSettings

CHAT = PromptLine(1, "chat", {"messages": [{"role": "user", "content": "hi"}]})
TEXT = PromptLine(1, "completions", {"prompt": "hi"})
IDS = PromptLine(1, "completions", {"prompt": [10, 11, 12]})
PREFILL = ReplayOptions(path="prefill")
AUTO = ReplayOptions(path="auto")
PENALTIES = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
PLAIN = {"temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, **PENALTIES}


def client(engine: FakeEngine) -> HttpEngineClient:
    return HttpEngineClient("http://engine", ClientSettings(), transport=engine.transport)


async def record(prompt: PromptLine = CHAT, engine: FakeEngine | None = None) -> Claim:
    async with client(engine or FakeEngine()) as http:
        server = await identify(http)
        return await record_one(http, server, prompt, RecordOptions(max_tokens=6, seed=3))


async def replay(engine: FakeEngine, claim: Claim, options: ReplayOptions = PREFILL) -> ReplayRun:
    async with client(engine) as http:
        return await replay_claim(http, await identify(http), claim, options)


async def decoded(engine: FakeEngine, claim: Claim) -> ReplayRun:
    async with client(engine) as http:
        return await replay_by_decode(http, await identify(http), claim)


def with_request(claim: Claim, **fields: Any) -> Claim:
    return claim.model_copy(update={"request": claim.request | fields})
