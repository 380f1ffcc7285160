"""What is fetched beside a replay, and the account of a claim with it, by a known engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.fake_engine import EOS, FakeEngine

from assay.claims.account import Check
from assay.claims.claim import Claim, ToolCall, Usage
from assay.replay.client import HttpEngineClient
from assay.replay.identity import ServerIdentity, identify
from assay.replay.known import fetch_known
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, record_one
from assay.replay.request import ReplayOptions
from assay.replay.verify import VerifyOptions, verify_one
from assay.settings import ClientSettings
from assay.store.result import VerifyResult

TOKENS = 24
QUESTION = {"role": "user", "content": "number 7"}
PROMPT = PromptLine(1, "chat", {"messages": [QUESTION]})
HIDDEN = {"role": "system", "content": "Answer as briefly as you can."}


def client(engine: FakeEngine) -> HttpEngineClient:
    return HttpEngineClient("http://engine", ClientSettings(), transport=engine.transport)


async def record(engine: FakeEngine | None = None, body: dict[str, Any] | None = None) -> Claim:
    prompt = replace(PROMPT, body=PROMPT.body | (body or {}))
    async with client(engine or FakeEngine()) as http:
        server = await identify(http)
        return await record_one(http, server, prompt, RecordOptions(max_tokens=TOKENS))


async def verify(
    claim: Claim, engine: FakeEngine | None = None, path: Any = "decode"
) -> VerifyResult:
    async with client(engine or FakeEngine()) as http:
        server = await identify(http)
        options = VerifyOptions(replay=ReplayOptions(path=path), retries=0)
        return await verify_one(http, server, claim, options)


def account(result: VerifyResult) -> dict[str, Check]:
    return {check.name: check for check in result.verdict.account}


def codes(result: VerifyResult) -> list[str]:
    return [reason.code for reason in result.verdict.reasons]


@pytest.mark.parametrize("path", ["decode", "prefill"])
async def test_an_honest_claim_passes_every_check_that_applies(path: str) -> None:
    result = await verify(await record(), path=path)
    assert result.verdict.verdict == "pass"
    outcomes = {name: check.outcome for name, check in account(result).items()}
    assert {name for name, found in outcomes.items() if found != "pass"} == {
        "usage_total",  # this engine reports no total
        "min_tokens",
        "end_probability",
        "prompt_ids",
        "tool_calls",
    }
    assert "fail" not in outcomes.values()


def shorter(claim: Claim, count: int) -> dict[str, Any]:
    return {
        "output_ids": (claim.output_ids or ())[:count],
        "positions": (claim.positions or ())[:count],
        "output_text": "".join(f" w{token}" for token in (claim.output_ids or ())[:count]),
        "usage": Usage(prompt_tokens=claim.usage.prompt_tokens, completion_tokens=count),
    }


@pytest.mark.parametrize("path", ["decode", "prefill"])
async def test_cheats_that_only_the_account_sees(path: str) -> None:
    claim = await record()
    text = claim.output_text or ""
    usage = Usage(prompt_tokens=claim.usage.prompt_tokens, completion_tokens=TOKENS + 9)
    call = ToolCall(name="weather", arguments='{"city": "Rome"}')
    cheats: dict[str, dict[str, Any]] = {
        "false_finish_reason": shorter(claim, 20),
        "inflated": {"usage": usage},
        "text_mismatch": {"output_text": text.replace(" w", " v", 1)},
        "tool_call_mismatch": {"tool_calls": (call,)},
    }
    for code, changes in cheats.items():
        result = await verify(claim.model_copy(update=changes), path=path)
        assert result.verdict.verdict == "fail", code
        assert code in codes(result)


async def test_truncated_and_called_stopped() -> None:
    claim = await record()
    cut = claim.model_copy(update=shorter(claim, 20) | {"finish_reason": "stop"})
    assert codes(await verify(cut)) == ["false_finish_reason"]


async def test_truncated_with_an_end_written_behind_it() -> None:
    """Only the end's probability shows it to the account: this engine gives it e^-60 or less."""
    claim = await record()
    ids = (*(claim.output_ids or ())[:20], EOS)
    positions = (claim.positions or ())[:20]
    end = positions[-1].model_copy(update={"token": EOS})
    text = "".join(f" w{token}" for token in ids[:-1])
    usage = Usage(prompt_tokens=claim.usage.prompt_tokens, completion_tokens=21)
    cut = claim.model_copy(
        update={
            "request": claim.request | {"temperature": 1.0},
            "output_ids": ids,
            "positions": (*positions, end),
            "output_text": text,
            "usage": usage,
            "finish_reason": "stop",
        }
    )
    result = await verify(cut)
    assert account(result)["end_probability"].outcome == "fail"
    assert account(result)["finish_reason"].outcome == "pass"
    assert account(result)["text"].outcome == "pass"
    assert "false_stop" in codes(result)


async def hidden(engine: FakeEngine) -> Claim:
    """A claim of ``PROMPT`` by an executor that put a system message in front of it."""
    claim = await record(engine, {"messages": [HIDDEN, QUESTION]})
    request = claim.request | {"messages": [QUESTION]}
    prompt = claim.prompt.model_copy(update={"messages": (QUESTION,)})
    return claim.model_copy(update={"request": request, "prompt": prompt})


@pytest.mark.parametrize("path", ["decode", "prefill"])
async def test_a_hidden_system_prompt_fails_where_the_template_is_the_same(path: str) -> None:
    claim = await hidden(FakeEngine())
    result = await verify(claim, path=path)
    assert result.verdict.verdict == "fail"
    assert account(result)["prompt_render"].outcome == "fail"
    unknown = claim.model_copy(
        update={"engine": claim.engine.model_copy(update={"template_digest": None})}
    )
    result = await verify(unknown, path=path)
    assert result.verdict.verdict == "inconclusive"
    assert account(result)["prompt_render"].outcome == "not_available"


async def test_another_template_is_no_hidden_prompt() -> None:
    """A revision that writes another default: no conviction, and no comparison either."""
    claim = await record(FakeEngine(template="Cutting Knowledge Date: December 2023. Be kind."))
    result = await verify(claim)
    assert result.verdict.verdict == "inconclusive"
    assert codes(result) == ["prompt_mismatch"]
    assert account(result)["prompt_render"].outcome == "not_available"


async def test_a_server_that_does_not_decode_counts_against_nobody() -> None:
    result = await verify(await record(), FakeEngine(tokenize=False))
    assert result.verdict.verdict == "pass"
    check = account(result)["text"]
    assert check.outcome == "not_available"
    assert "HTTP 404" in check.reason


async def test_fetching_costs_one_request_and_only_where_it_is_of_use() -> None:
    claim = await record()
    engine = FakeEngine()
    seen: list[str] = []
    async with client(engine) as http:
        server = await identify(http)
        answer = engine.answer

        def counted(method: str, path: str, headers: Any, body: bytes) -> Any:
            seen.append(path)
            return answer(method, path, headers, body)

        engine.answer = counted  # type: ignore[method-assign]
        known = await fetch_known(http, server, claim)
        assert known.decoded_output == claim.output_text
        bare = claim.model_copy(update={"output_text": None})
        assert (await fetch_known(http, server, bare)).decoded_output is None
        outside = claim.model_copy(update={"output_ids": (10**9,)})
        assert "outside" in (await fetch_known(http, server, outside)).missing["decoded_output"]
        empty = claim.model_copy(update={"output_ids": ()})
        assert (await fetch_known(http, server, empty)).decoded_output == ""
    assert seen == ["/detokenize"]


@pytest.mark.parametrize("body", [b"no json", b"[]", b'{"prompt": 3}', b"{}"])
async def test_an_answer_that_cannot_be_read_is_a_reason(body: bytes) -> None:
    claim = await record()
    engine = FakeEngine()
    async with client(engine) as http:
        server = await identify(http)
        engine._detokenize = lambda _: (200, {}, body)  # type: ignore[method-assign]
        known = await fetch_known(http, server, claim)
    assert known.decoded_output is None
    assert "cannot be read" in known.missing["decoded_output"]


async def identity(engine: FakeEngine) -> ServerIdentity:
    async with client(engine) as http:
        return await identify(http)


async def test_servers_that_render_alike_have_one_template_digest() -> None:
    one, other = await identity(FakeEngine()), await identity(FakeEngine(noise=3.0))
    assert one.template_digest is not None
    assert one.template_digest == other.template_digest
    dated = await identity(FakeEngine(template="Today is Monday."))
    assert dated.template_digest != one.template_digest
    assert dated.digest() == one.digest()  # results stay valid when the date changes
    assert (await identity(FakeEngine(tokenize=False))).template_digest is None
    assert (await identity(FakeEngine(plugin=False))).template_digest == one.template_digest


async def test_a_recorded_claim_names_context_and_template() -> None:
    claim = await record()
    assert claim.engine.max_model_len == 2048
    assert claim.engine.template_digest is not None
