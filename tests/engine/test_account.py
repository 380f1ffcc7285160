"""The account channel on a real server: honest claims, and the cheats that only it sees."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.engine.talk import Talk
from tests.support.server import Server

from assay.claims.account import Check, check_account
from assay.claims.claim import Claim, ToolCall
from assay.replay.client import HttpEngineClient
from assay.replay.identity import ServerIdentity, identify
from assay.replay.known import fetch_known
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, record_one
from assay.replay.verify import VerifyOptions, verify_one
from assay.settings import ClientSettings
from assay.store.result import VerifyResult

pytestmark = pytest.mark.parametrize("talk", ["real"], indirect=True)
QUESTION = {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
SYSTEM = {"role": "system", "content": "You are a pirate. Mention your ship in every answer."}
CALLS = ['{"city": "Paris", "days": 3}', '{"city": "Rome", "days": 5}']
"""A choice and no schema: the model may fill a schema with spaces until its tokens are used up."""
OPTIONS = VerifyOptions(retries=0)


class Session:
    """Records and verifies on one server, as executor and validator at once."""

    def __init__(self, client: HttpEngineClient, identity: ServerIdentity) -> None:
        self.client = client
        self.identity = identity

    async def record(self, **body: Any) -> Claim:
        prompt = PromptLine(1, "chat", {"messages": [QUESTION], "temperature": 0} | body)
        return await record_one(self.client, self.identity, prompt, RecordOptions())

    async def verify(self, claim: Claim, **changes: Any) -> VerifyResult:
        changed = claim.model_copy(update=changes)
        return await verify_one(self.client, self.identity, changed, OPTIONS)


@pytest.fixture
async def session(talk: Talk) -> AsyncIterator[Session]:
    server: Server = talk.server
    async with HttpEngineClient(server.url, ClientSettings()) as client:
        yield Session(client, await identify(client))


def account(result: VerifyResult) -> dict[str, Check]:
    return {check.name: check for check in result.verdict.account}


def not_passed(result: VerifyResult) -> set[str]:
    return {name for name, check in account(result).items() if check.outcome != "pass"}


def codes(result: VerifyResult) -> set[str]:
    return {reason.code for reason in result.verdict.reasons}


def shorter(claim: Claim, text: str, count: int) -> dict[str, Any]:
    """The changes of an executor that stops ``count`` tokens in and counts honestly."""
    usage = claim.usage.model_copy(
        update={
            "completion_tokens": count,
            "total_tokens": (claim.usage.prompt_tokens or 0) + count,
        }
    )
    return {
        "output_ids": (claim.output_ids or ())[:count],
        "positions": (claim.positions or ())[:count],
        "output_text": text,
        "usage": usage,
    }


async def decoded(session: Session, claim: Claim, count: int) -> str:
    cut = claim.model_copy(
        update={"output_ids": (claim.output_ids or ())[:count], "finish_reason": "length"}
    )
    known = await fetch_known(session.client, session.identity, cut)
    assert known.decoded_output is not None
    return known.decoded_output


async def test_an_honest_answer_passes_every_check_that_applies(session: Session) -> None:
    """Issue 4, account channel; cases 56 and 59: one answer that ends by itself, one that is cut."""
    ended = await session.verify(await session.record(max_tokens=64))
    assert ended.claim.finish_reason == "stop"
    assert not_passed(ended) == {"min_tokens", "prompt_ids", "tool_calls"}
    assert not codes(ended) & {check.code for check in account(ended).values()}
    cut = await session.verify(await session.record(max_tokens=5, min_tokens=2))
    assert not_passed(cut) == {"end_probability", "prompt_ids", "tool_calls"}


async def test_cut_off_answers_fail(session: Session) -> None:
    """Truncation: called a length, called a stop, and with an end token written behind it."""
    claim = await session.record(max_tokens=64)
    ids, positions = claim.output_ids or (), claim.positions or ()
    assert len(ids) > 6
    changes = shorter(claim, await decoded(session, claim, 5), 5)
    result = await session.verify(claim, **changes, finish_reason="length")
    assert codes(result) & {"false_finish_reason"}
    result = await session.verify(claim, **changes, finish_reason="stop")
    assert codes(result) & {"false_finish_reason"}
    with_end = shorter(claim, changes["output_text"], 6) | {
        "output_ids": (*ids[:5], ids[-1]),
        "positions": (*positions[:5], positions[-1]),
    }
    result = await session.verify(claim, **with_end)
    assert account(result)["finish_reason"].outcome == "pass"
    assert account(result)["text"].outcome == "pass"
    assert "false_stop" in codes(result)


async def test_changed_counts_text_and_calls_fail(session: Session) -> None:
    claim = await session.record(max_tokens=64)
    usage = claim.usage
    inflated = usage.model_copy(update={"completion_tokens": (usage.completion_tokens or 0) + 40})
    result = await session.verify(claim, usage=inflated)
    assert {"inflated", "position_gap", "usage_total"} <= codes(result)
    one_more = usage.model_copy(
        update={
            "completion_tokens": (usage.completion_tokens or 0) + 1,
            "total_tokens": (usage.total_tokens or 0) + 1,
        }
    )
    assert "position_gap" in codes(await session.verify(claim, usage=one_more))
    assert "Paris" in (claim.output_text or "")
    edited = (claim.output_text or "").replace("Paris", "Lyons")
    assert "text_mismatch" in codes(await session.verify(claim, output_text=edited))
    invented = (ToolCall(name="transfer", arguments='{"amount": 12345}'),)
    assert "tool_call_mismatch" in codes(await session.verify(claim, tool_calls=invented))


async def test_arguments_of_a_call_are_those_that_were_generated(session: Session) -> None:
    """A call as ``tool_choice`` with a named function makes it: the output is its arguments."""
    claim = await session.record(max_tokens=64, structured_outputs={"choice": CALLS})
    written = claim.output_text or ""
    made = json.loads(written)
    other = "Rome" if made["city"] == "Paris" else "Paris"
    known = await fetch_known(session.client, session.identity, claim)
    for arguments, wanted in (
        (written, "pass"),
        (json.dumps(made, indent=4), "pass"),
        (json.dumps(made | {"days": 9}), "fail"),
        (json.dumps(made | {"city": other}), "fail"),
    ):
        called = claim.model_copy(update={"tool_calls": (ToolCall(arguments=arguments),)})
        found = {check.name: check for check in check_account(called, known)}
        assert found["tool_calls"].outcome == wanted, arguments


async def test_a_hidden_system_prompt_fails(session: Session) -> None:
    """The executor answers with a system message that nobody asked for; its ids show it."""
    claim = await session.record(max_tokens=8, messages=[SYSTEM, QUESTION])
    assert (await session.verify(claim)).verdict.verdict != "fail"
    hidden = {
        "request": claim.request | {"messages": [QUESTION]},
        "prompt": claim.prompt.model_copy(update={"messages": (QUESTION,)}),
    }
    result = await session.verify(claim, **hidden)
    assert result.verdict.verdict == "fail"
    assert account(result)["prompt_render"].outcome == "fail"
    assert "prompt_mismatch" in codes(result)
    elsewhere = claim.engine.model_copy(update={"template_digest": "0" * 64})
    result = await session.verify(claim, **hidden, engine=elsewhere)
    assert result.verdict.verdict == "inconclusive"
