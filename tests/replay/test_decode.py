"""The decode path against an engine with known numbers."""

from __future__ import annotations

import httpx
import pytest
from tests.support.fake_engine import FakeEngine, error

from assay.claims.claim import Claim, Prompt
from assay.errors import ReplayError
from assay.replay.client import HttpEngineClient, normal_server
from assay.replay.decode import ReplayRun, replay_by_decode, token_texts
from assay.replay.identity import ServerIdentity, identify
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, record_one
from assay.replay.request import ReplayOptions
from assay.settings import ClientSettings

PROMPT = PromptLine(1, "chat", {"messages": [{"role": "user", "content": "hi"}]})
TEXT_PROMPT = PromptLine(1, "completions", {"prompt": "hi"})


def client(engine: FakeEngine, *, api_key: str | None = None) -> HttpEngineClient:
    settings = ClientSettings(api_key=None)
    return HttpEngineClient("http://engine", settings, api_key=api_key, transport=engine.transport)


async def record(engine: FakeEngine, prompt: PromptLine = PROMPT) -> Claim:
    async with client(engine) as http:
        server = await identify(http)
        return await record_one(http, server, prompt, RecordOptions(max_tokens=6, seed=3))


async def replay(
    engine: FakeEngine, claim: Claim, options: ReplayOptions | None = None, retries: int = 0
) -> ReplayRun:
    async with client(engine) as http:
        server = await identify(http)
        return await replay_by_decode(
            http, server, claim, options or ReplayOptions(), retries=retries
        )


@pytest.mark.parametrize("prompt", [PROMPT, TEXT_PROMPT], ids=["chat", "completions"])
async def test_an_honest_claim_comes_back_number_for_number(prompt: PromptLine) -> None:
    engine = FakeEngine()
    claim = await record(engine, prompt)
    run = await replay(engine, claim)
    assert run.replay.positions == claim.positions
    assert run.replay.prompt_token_ids == claim.prompt.token_ids
    assert run.replay.evidence is not None
    assert len(run.replay.evidence.drawn) == 6
    assert run.replay.engine.engine_version == "0.32.0"


async def test_case_59_forced_tokens_come_back_whatever_the_engine_would_have_drawn() -> None:
    claim = await record(FakeEngine())
    run = await replay(FakeEngine(noise=3.0), claim)
    assert tuple(p.token for p in run.replay.positions or ()) == claim.output_ids
    assert run.replay.positions != claim.positions


async def test_texts_are_for_people_and_come_from_the_chosen_tokens_bytes() -> None:
    engine = FakeEngine()
    claim = await record(engine)
    run = await replay(engine, claim)
    assert run.token_texts == tuple(f" w{token}" for token in claim.output_ids or ())


def test_texts_survive_bytes_that_are_none_or_broken() -> None:
    body = (
        b'{"choices":[{"logprobs":{"content":[{"bytes":null},{"bytes":[255]},{"bytes":[300]},'
        b'{"bytes":[]}]}}]}'
    )
    assert token_texts(body) == (None, "\ufffd", None, "")


async def test_case_23_a_prompt_rendered_otherwise_is_named_with_its_position() -> None:
    engine = FakeEngine()
    claim = await record(engine)
    ids = claim.prompt.token_ids or ()
    other = claim.model_copy(
        update={"prompt": claim.prompt.model_copy(update={"token_ids": (*ids[:4], 9, *ids[5:])})}
    )
    run = await replay(engine, other)
    [note] = run.notes
    assert note.code == "prompt_mismatch"
    assert "prompt token 4" in note.message


async def test_case_46_an_id_outside_the_vocabulary_is_the_claims_fault() -> None:
    engine = FakeEngine()
    claim = await record(engine)
    ids = claim.output_ids or ()
    bad = claim.model_copy(update={"output_ids": (*ids[:2], 99_999_999, *ids[3:])})
    with pytest.raises(ReplayError, match="output token 2 is id 99999999") as caught:
        await replay(engine, bad)
    assert caught.value.blame == "claim"


async def test_case_46_a_refusal_by_the_engine_itself_is_blamed_the_same_way() -> None:
    engine = FakeEngine()
    claim = await record(engine)
    bad = claim.model_copy(update={"output_ids": (600, *(claim.output_ids or ())[1:])})
    async with client(engine) as http:
        server = (await identify(http)).model_copy(update={"vocab_size": None})
        with pytest.raises(ReplayError, match=r"enforced_tokens\.tokens\[0\]") as caught:
            await replay_by_decode(http, server, bad)
    assert (caught.value.blame, caught.value.status) == ("claim", 400)


async def test_case_8_a_top_k_over_the_servers_limit_is_the_validators() -> None:
    claim = await record(FakeEngine())
    with pytest.raises(ReplayError, match="--max-logprobs 5") as caught:
        await replay(FakeEngine(max_logprobs=3), claim)
    assert (caught.value.blame, caught.value.code) == ("validator", "k_over_limit")


async def test_a_context_too_small_is_the_validators() -> None:
    claim = await record(FakeEngine())
    with pytest.raises(ReplayError, match="--max-model-len") as caught:
        await replay(FakeEngine(max_model_len=20), claim)
    assert (caught.value.blame, caught.value.code) == ("validator", "context_too_small")


async def test_a_claim_of_another_model_is_never_run_on_the_one_that_is_here() -> None:
    claim = await record(FakeEngine(model="big"))
    with pytest.raises(ReplayError, match="--as-model") as caught:
        await replay(FakeEngine(model="small"), claim)
    assert (caught.value.blame, caught.value.code) == ("validator", "model_not_served")


async def test_the_caller_may_say_that_two_names_are_one_model() -> None:
    claim = await record(FakeEngine(model="org/name"))
    engine = FakeEngine(model="/models/name")
    run = await replay(engine, claim, ReplayOptions(as_model="/models/name"))
    assert run.replay.positions == claim.positions


async def test_f20_a_server_that_ignores_the_field_is_found_out() -> None:
    claim = await record(FakeEngine())
    with pytest.raises(ReplayError, match="did not force") as caught:
        await replay(FakeEngine(ignores_enforcement=True), claim)
    assert (caught.value.blame, caught.value.code) == ("validator", "validator_unusable")


async def test_an_answer_that_is_no_answer_is_the_validators_fault() -> None:
    claim = await record(FakeEngine())
    broken = FakeEngine(fail_with=[(200, {}, b'{"choices": NaN}')])
    with pytest.raises(ReplayError) as caught:
        await replay(broken, claim)
    assert (caught.value.blame, caught.value.code) == ("validator", "validator_error")


async def test_a_busy_server_is_asked_again() -> None:
    engine = FakeEngine()
    claim = await record(engine)
    engine.fail_with = [(503, {"retry-after": "0"}, b"")]
    run = await replay(engine, claim, retries=1)
    assert run.replay.positions == claim.positions
    assert len(engine.requests) == 3


async def test_case_10_a_request_that_is_no_json_counts_against_the_claim() -> None:
    engine = FakeEngine()
    claim = await record(engine)
    odd = claim.model_copy(update={"request": claim.request | {"temperature": float("nan")}})
    with pytest.raises(ReplayError, match="JSON") as caught:
        await replay(engine, odd)
    assert caught.value.blame == "claim"


class _Broken(httpx.AsyncBaseTransport):
    def __init__(self, failure: httpx.HTTPError) -> None:
        self.failure = failure

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise self.failure


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (httpx.ConnectError("refused"), "validator_unreachable"),
        (httpx.RemoteProtocolError("cut"), "validator_unreachable"),
        (httpx.ReadTimeout("late"), "validator_timeout"),
    ],
)
async def test_no_answer_is_never_a_verdict(failure: httpx.HTTPError, code: str) -> None:
    async with HttpEngineClient("h:1", ClientSettings(), transport=_Broken(failure)) as http:
        with pytest.raises(ReplayError) as caught:
            await http.send("GET", "/health")
    assert (caught.value.blame, caught.value.code) == ("validator", code)
    assert "http://h:1/health" in str(caught.value)


async def test_the_key_is_sent_and_a_wrong_one_named() -> None:
    engine = FakeEngine(api_key="secret")
    async with client(engine, api_key="secret") as http:
        assert (await identify(http)).has_plugin
    async with client(engine, api_key="wrong") as http:
        with pytest.raises(ReplayError, match="--api-key") as caught:
            await identify(http)
    assert caught.value.code == "validator_unauthorised"


async def test_identity_of_a_server_without_the_plugin() -> None:
    async with client(FakeEngine(plugin=False)) as http:
        server = await identify(http)
    assert not server.has_plugin
    assert (server.vllm_version, server.model, server.max_model_len) == ("0.32.0", "fake-1", 2048)


async def test_something_that_is_no_vllm_is_named() -> None:
    page = FakeEngine()
    page.answer = lambda *_: (200, {}, b"<html>")  # type: ignore[method-assign]
    async with client(page) as http:
        with pytest.raises(ReplayError, match="vLLM server") as caught:
            await identify(http)
    assert caught.value.code == "validator_unusable"


def test_identity_ignores_the_address_and_sees_every_setting() -> None:
    one = ServerIdentity(model="m", dtype="float32")
    assert one.digest() == ServerIdentity(model="m", dtype="float32").digest()
    assert one.digest() != ServerIdentity(model="m", dtype="bfloat16").digest()


@pytest.mark.parametrize(
    "typed", ["h:8000", "http://h:8000", "http://h:8000/", "http://h:8000/v1", " h:8000/v1/ "]
)
def test_addresses_as_people_type_them(typed: str) -> None:
    assert normal_server(typed) == "http://h:8000"


async def test_case_23_messages_alone_still_replay() -> None:
    engine = FakeEngine()
    claim = await record(engine)
    bare = claim.model_copy(update={"prompt": Prompt(messages=claim.prompt.messages)})
    run = await replay(engine, bare)
    assert run.replay.positions == claim.positions
    assert "prompt_rerendered" in [note.code for note in run.notes]
    assert any("rendered the prompt again" in warning for warning in run.replay.warnings)


async def test_case_56_text_is_forced_where_the_caller_allows_it() -> None:
    engine = FakeEngine()
    claim = await record(engine)
    text = claim.model_copy(update={"output_ids": None})
    run = await replay(engine, text, ReplayOptions(allow_text=True))
    assert tuple(p.token for p in run.replay.positions or ())[:6] == claim.output_ids


async def test_an_unreadable_error_page_is_quoted() -> None:
    engine = FakeEngine()
    claim = await record(engine)
    engine.fail_with = [error(500, "EngineCore died")]
    with pytest.raises(ReplayError, match="EngineCore died") as caught:
        await replay(engine, claim)
    assert caught.value.blame == "validator"
