"""Recording: what is asked for, what becomes a claim, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.fake_engine import FakeEngine, error

from assay.claims.claim import Claim, Tape
from assay.claims.seeds import verify_seed
from assay.errors import ClaimError, ReplayError, SettingsError
from assay.replay.client import HttpEngineClient
from assay.replay.identity import ServerIdentity, identify
from assay.replay.prompts import PromptLine, read_prompts
from assay.replay.record import RecordOptions, record_all, record_request
from assay.settings import ClientSettings

SERVER = ServerIdentity(model="m", plugin_version="0.1.0", logprobs_mode="raw_logprobs")
CHAT = PromptLine(1, "chat", {"messages": [{"role": "user", "content": "hi"}]})


def chats(count: int) -> list[PromptLine]:
    return [
        PromptLine(i, "chat", {"messages": [{"role": "user", "content": f"number {i}"}]})
        for i in range(1, count + 1)
    ]


async def run(
    engine: FakeEngine, prompts: list[PromptLine], options: RecordOptions
) -> list[Claim | ClaimError]:
    settings = ClientSettings()
    async with HttpEngineClient("http://e", settings, transport=engine.transport) as http:
        server = await identify(http)
        return [answer async for answer in record_all(http, server, prompts, options)]


def test_evidence_is_asked_for_on_both_routes() -> None:
    chat = record_request(CHAT, SERVER, RecordOptions())
    assert (chat["logprobs"], chat["top_logprobs"], chat["max_tokens"]) == (True, 5, 128)
    text = record_request(PromptLine(1, "completions", {"prompt": "x"}), SERVER, RecordOptions())
    assert text["logprobs"] == 5
    for body in (chat, text):
        assert body["return_token_ids"] is True
        assert body["return_tokens_as_token_ids"] is True
        assert body["model"] == "m"


def test_case_22_a_null_top_logprobs_is_replaced_by_a_number() -> None:
    prompt = PromptLine(1, "chat", {**CHAT.body, "logprobs": True, "top_logprobs": None})
    assert record_request(prompt, SERVER, RecordOptions())["top_logprobs"] == 5


def test_case_7_zero_alternatives_can_be_asked_for() -> None:
    assert record_request(CHAT, SERVER, RecordOptions(top_logprobs=0))["top_logprobs"] == 0


def test_a_line_of_the_prompts_file_wins_over_the_command_line() -> None:
    prompt = PromptLine(1, "chat", {**CHAT.body, "seed": 1, "max_completion_tokens": 9})
    body = record_request(prompt, SERVER, RecordOptions(seed=2, temperature=0.5, max_tokens=3))
    assert (body["seed"], body["temperature"]) == (1, 0.5)
    assert "max_tokens" not in body


def test_a_mode_is_only_sent_to_a_server_that_can_choose() -> None:
    options = RecordOptions(logprobs_mode="processed_logprobs")
    assert record_request(CHAT, SERVER, options)["logprobs_mode"] == "processed_logprobs"
    stock = SERVER.model_copy(update={"plugin_version": None})
    assert "logprobs_mode" not in record_request(CHAT, stock, options)


async def test_the_claim_says_what_turned_its_seed_into_draws() -> None:
    told = Tape(runner="v2")
    [claim] = await run(FakeEngine(), [CHAT], RecordOptions(max_tokens=2, tape=told))
    [stock] = await run(FakeEngine(plugin=False), [CHAT], RecordOptions(max_tokens=2, tape=told))
    [silent] = await run(FakeEngine(plugin=False), [CHAT], RecordOptions(max_tokens=2))
    assert isinstance(claim, Claim)
    assert claim.tape == Tape(runner="v1", generation=2, device="cpu"), "the server's own word"
    assert claim.engine.hardware == "fake device"
    assert isinstance(stock, Claim)
    assert stock.tape == told
    assert isinstance(silent, Claim)
    assert silent.tape is None


def test_a_newer_plugins_tape_may_say_more() -> None:
    tape = {"runner": "v2", "generation": 3, "fp64": True, "device": "cuda", "salt": 5}
    known = ServerIdentity.model_validate({"tape": tape})
    assert known.tape == Tape(runner="v2", generation=3, fp64=True, device="cuda")


async def test_a_beacon_chooses_every_seed_that_the_prompt_does_not() -> None:
    own = PromptLine(2, "chat", {**CHAT.body, "seed": 5})
    options = RecordOptions(max_tokens=2, beacon="block 7", temperature=0.7)
    drawn, chosen = await run(FakeEngine(), [CHAT, own], options)
    assert isinstance(drawn, Claim)
    assert isinstance(chosen, Claim)
    assert (drawn.seed_source, chosen.seed_source) == ("beacon", "client")
    assert chosen.request["seed"] == 5
    assert verify_seed(drawn, "block 7").ok
    assert not verify_seed(drawn, "block 8").ok
    [stream] = await run(FakeEngine(), [CHAT], replace(options, stream=True))
    assert isinstance(stream, Claim)
    assert stream.request["seed"] == drawn.request["seed"]


async def test_a_seed_without_a_beacon_is_the_clients() -> None:
    [seeded] = await run(FakeEngine(), [CHAT], RecordOptions(max_tokens=2, seed=3))
    [none] = await run(FakeEngine(), [CHAT], RecordOptions(max_tokens=2))
    assert isinstance(seeded, Claim)
    assert isinstance(none, Claim)
    assert (seeded.seed_source, none.seed_source) == ("client", None)


@pytest.mark.parametrize("stream", [False, True])
async def test_claims_come_in_the_order_of_the_prompts(stream: bool) -> None:
    engine = FakeEngine()
    options = RecordOptions(max_tokens=5, concurrency=4, stream=stream)
    answers = await run(engine, chats(9), options)
    assert [a.request["messages"][0]["content"] for a in answers if isinstance(a, Claim)] == [
        f"number {i}" for i in range(1, 10)
    ]


async def test_a_streamed_claim_equals_the_plain_one() -> None:
    [plain] = await run(FakeEngine(), [CHAT], RecordOptions(max_tokens=5))
    [streamed] = await run(FakeEngine(), [CHAT], RecordOptions(max_tokens=5, stream=True))
    assert isinstance(plain, Claim)
    assert isinstance(streamed, Claim)
    assert streamed.positions == plain.positions
    assert streamed.output_ids == plain.output_ids
    assert streamed.prompt == plain.prompt
    assert streamed.request == plain.request


async def test_the_claim_says_which_engine_made_it() -> None:
    [claim] = await run(FakeEngine(), [CHAT], RecordOptions(max_tokens=2))
    assert isinstance(claim, Claim)
    assert claim.engine.engine_version == "0.32.0"
    assert (claim.engine.runner, claim.engine.dtype) == ("v1", "float32")
    assert claim.logprobs_mode == "raw_logprobs"


async def test_a_stock_servers_mode_is_only_what_the_recorder_says() -> None:
    stock = FakeEngine(plugin=False)
    [unknown] = await run(stock, [CHAT], RecordOptions(max_tokens=2))
    [told] = await run(stock, [CHAT], RecordOptions(max_tokens=2, logprobs_mode="raw_logprobs"))
    assert isinstance(unknown, Claim)
    assert isinstance(told, Claim)
    assert unknown.logprobs_mode is None
    assert any("not known" in warning for warning in unknown.warnings)
    assert told.logprobs_mode == "raw_logprobs"
    assert any("told so" in warning for warning in told.warnings)


async def test_case_20_null_token_ids_are_no_claim() -> None:
    engine = FakeEngine(token_ids=False)
    [refused] = await run(engine, [CHAT], RecordOptions(max_tokens=2))
    assert isinstance(refused, ClaimError)
    assert refused.code == "no_token_ids"
    assert "prompt line 1" in str(refused)


async def test_one_bad_answer_does_not_lose_the_others() -> None:
    engine = FakeEngine(fail_with=[(200, {}, b'{"choices": []}')])
    answers = await run(engine, chats(3), RecordOptions(max_tokens=2, concurrency=1))
    assert [type(answer) for answer in answers] == [ClaimError, Claim, Claim]


async def test_a_server_that_refuses_stops_the_run_and_names_the_line() -> None:
    engine = FakeEngine(fail_with=[error(400, "temperature must be non-negative")])
    with pytest.raises(ReplayError, match=r"prompt line 1: .*temperature"):
        await run(engine, chats(3), RecordOptions(max_tokens=2, concurrency=1))


def test_prompts_of_every_kind(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(
        '{"messages": [{"role": "user", "content": "a"}], "seed": 1}\n'
        "\n"
        '{"prompt": "b"}\n'
        "plain text with a \u2028 separator\n"
        '{"custom_id": "x", "method": "POST", "body": {"prompt": [1, 2]}}\n',
        encoding="utf-8",
    )
    lines = read_prompts(file)
    assert [(line.line, line.endpoint) for line in lines] == [
        (1, "chat"),
        (3, "completions"),
        (4, "chat"),
        (5, "completions"),
    ]
    assert lines[2].body["messages"][0]["content"] == "plain text with a \u2028 separator"
    assert lines[3].body == {"prompt": [1, 2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no prompts"),
        ("{broken", "line 1: not JSON"),
        ('ok\n{"model": "x"}', "line 2: expected exactly one"),
        ('{"messages": [], "prompt": ""}', "line 1: expected exactly one"),
    ],
)
def test_a_bad_prompts_file_names_its_line(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match=message):
        read_prompts(file)


def test_a_missing_prompts_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read prompts"):
        read_prompts(tmp_path / "none.jsonl")
