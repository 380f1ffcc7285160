"""Recorded claims judged by their draws on real servers, by both paths."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.talk import Talk

from assay.replay.client import HttpEngineClient
from assay.replay.identity import identify
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, record_one
from assay.replay.request import PathChoice, ReplayOptions
from assay.replay.verify import VerifyOptions, verify_one
from assay.scoring.channels import ChannelResult
from assay.settings import ClientSettings

ASKED = {
    "messages": [{"role": "user", "content": "Who runs this server?"}],
    "temperature": 0.8,
    "top_p": 0.97,
    "seed": 4242,
    "ignore_eos": True,
    "top_logprobs": 16,
}
PATHS: tuple[PathChoice, ...] = ("decode", "prefill")


async def drawn(talk: Talk, tokens: int) -> dict[tuple[str, bool], ChannelResult]:
    """The choice channel of a claim and of one that names another seed, by both paths."""
    prompt = PromptLine(1, "chat", {**ASKED, "max_tokens": tokens})
    found = {}
    async with HttpEngineClient(talk.server.url, ClientSettings()) as client:
        server = await identify(client)
        claim = await record_one(client, server, prompt, RecordOptions())
        assert claim.tape is not None
        for path in PATHS:
            for seed in (ASKED["seed"], 4243):
                told = claim.model_copy(update={"request": claim.request | {"seed": seed}})
                options = VerifyOptions(replay=ReplayOptions(path=path), retries=0)
                result = await verify_one(client, server, told, options)
                assert result.failure is None
                assert result.verdict.path == path
                found[path, seed == ASKED["seed"]] = result.verdict.channels[1]
    return found


@pytest.mark.parametrize("talk", ["v1", "v2"], indirect=True)
def test_tokens_follow_from_the_seed_that_drew_them(talk: Talk) -> None:
    """The tape and the defaults come from the server, so nothing has to be assumed; the noise of
    the prefill path is computed here, with no engine taking part in the draw."""
    channels = asyncio.run(drawn(talk, 14))
    for path in PATHS:
        honest, other = channels[path, True], channels[path, False]
        assert honest.outcome == "pass", honest
        assert honest.statistics["choice_mismatch"] == 0
        assert honest.statistics["choice_contradiction"] == 0
        assert other.outcome == "fail", other
        assert other.code == "choice_contradiction"
        assert other.statistics["choice_mismatch"] > 0.5
