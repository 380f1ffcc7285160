"""The prefill path against an engine with known numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.replay.prefills import (
    AUTO,
    CHAT,
    IDS,
    TEXT,
    client,
    decoded,
    record,
    replay,
    with_request,
)
from tests.support.fake_engine import VOCABULARY, Answer, FakeEngine, error, reply

from assay.claims.claim import Prompt
from assay.claims.positions import IMPOSSIBLE, TopEntry
from assay.errors import ReplayError
from assay.replay import prefill
from assay.replay.identity import identify
from assay.replay.paths import replay_claim
from assay.replay.prefill_fits import NOT_AVAILABLE
from assay.replay.prompts import PromptLine
from assay.replay.request import ReplayOptions


@pytest.mark.parametrize("prompt", [CHAT, TEXT, IDS], ids=["chat", "text", "ids"])
@pytest.mark.parametrize("plugin", [True, False])
async def test_case_59_a_prefill_lists_what_a_decode_replay_lists(
    prompt: PromptLine, plugin: bool
) -> None:
    claim = await record(prompt)
    run = await replay(FakeEngine(plugin=plugin), claim)
    forced = await decoded(FakeEngine(), claim)
    assert run.replay.positions == forced.replay.positions == claim.positions
    assert run.replay.prompt_token_ids == claim.prompt.token_ids
    assert (run.replay.path, forced.replay.path) == ("prefill", "decode")
    assert run.replay.evidence is None
    assert [note.code for note in run.notes] == []


async def test_only_one_token_is_generated_and_nothing_is_drawn() -> None:
    engine = FakeEngine(plugin=False)
    claim = await record()
    await replay(engine, claim)
    [body] = engine.requests
    assert body["prompt"] == [*(claim.prompt.token_ids or ()), *(claim.output_ids or ())]
    assert (body["max_tokens"], body["prompt_logprobs"]) == (1, 20)


async def test_a_tampered_token_has_its_true_log_probability() -> None:
    """The claimed id stands in the list although it is far from the likeliest."""
    claim = await record()
    ids = claim.output_ids or ()
    engine = FakeEngine()
    row = engine.logprobs([*(claim.prompt.token_ids or ()), *ids[:2]])
    worst = int(row.argmin())
    bad = claim.model_copy(update={"output_ids": (*ids[:2], worst, *ids[3:])})
    run = await replay(engine, bad)
    positions = run.replay.positions or ()
    assert positions[2].token == worst
    assert positions[2].logprob == pytest.approx(row[worst])
    assert len(positions[2].top) == len(positions[1].top) == 5
    assert positions == (await decoded(FakeEngine(), bad)).replay.positions


async def test_the_choice_channel_gets_more_alternatives_than_the_claim_lists() -> None:
    claim = await record()
    run = await replay(FakeEngine(), claim, ReplayOptions(path="prefill", prefill_top=12))
    row = FakeEngine().logprobs(list(claim.prompt.token_ids or ()))
    listed = run.replay.alternatives[0]
    best = [int(i) for i in (-row).argsort(kind="stable")[:12]]
    assert [entry.key for entry in listed][:12] == best
    assert (claim.output_ids or ())[0] in [entry.key for entry in listed]
    assert len(run.replay.alternatives) == 6
    assert {len(position.top) for position in run.replay.positions or ()} == {5}


async def test_case_8_a_plain_server_that_gives_less_is_asked_for_the_claims_own_k() -> None:
    claim = await record()
    engine = FakeEngine(plugin=False, max_logprobs=6)
    run = await replay(engine, claim)
    assert run.replay.positions == claim.positions
    assert [body["prompt_logprobs"] for body in engine.requests] == [20, 5]


async def test_case_8_a_claim_with_more_than_the_server_gives_is_the_validators() -> None:
    claim = await record()
    with pytest.raises(ReplayError, match="--max-logprobs 5") as caught:
        await replay(FakeEngine(max_logprobs=3), claim)
    assert (caught.value.blame, caught.value.code) == ("validator", "k_over_limit")
    with pytest.raises(ReplayError, match="greater than max") as caught:
        await replay(FakeEngine(plugin=False, max_logprobs=3), claim)
    assert (caught.value.blame, caught.value.code) == ("validator", "request_refused")


async def test_case_46_an_id_outside_the_vocabulary_is_the_claims_fault() -> None:
    claim = await record()
    bad = claim.model_copy(update={"output_ids": (VOCABULARY, *(claim.output_ids or ())[1:])})
    engine = FakeEngine()
    with pytest.raises(ReplayError, match="output token 0") as caught:
        await replay(engine, bad)
    assert caught.value.blame == "claim"
    assert engine.requests == []


async def test_case_23_the_prompt_is_rendered_on_the_validator_and_a_difference_named() -> None:
    claim = await record()
    ids = claim.prompt.token_ids or ()
    other = Prompt(token_ids=(*ids[:4], 9, *ids[5:]), messages=claim.prompt.messages)
    engine = FakeEngine()
    run = await replay(engine, claim.model_copy(update={"prompt": other}))
    assert run.replay.prompt_token_ids == ids
    assert [note.code for note in run.notes] == ["prompt_mismatch"]
    # /tokenize differed, so the chat route itself was asked before anybody was accused
    first, second = engine.requests
    assert (first["max_tokens"], "messages" in first) == (1, True)
    assert second["prompt_token_ids"] == list(ids)


async def test_case_23_a_claim_without_prompt_ids_is_rendered_and_says_so() -> None:
    claim = await record()
    bare = claim.model_copy(update={"prompt": Prompt(messages=claim.prompt.messages)})
    run = await replay(FakeEngine(), bare)
    assert run.replay.positions == claim.positions
    assert "prompt_rerendered" in [note.code for note in run.notes]
    with pytest.raises(ReplayError, match="strict"):
        await replay(FakeEngine(), bare, ReplayOptions(path="prefill", strict=True))


async def test_case_23_ids_alone_are_run_as_they_are() -> None:
    claim = await record()
    request = {k: v for k, v in claim.request.items() if k != "messages"}
    bare = claim.model_copy(
        update={"prompt": Prompt(token_ids=claim.prompt.token_ids), "request": request}
    )
    run = await replay(FakeEngine(), bare)
    assert run.replay.positions == claim.positions
    assert [note.code for note in run.notes] == ["prompt_from_ids"]


@pytest.mark.parametrize("fields", [{"tools": [{"type": "function"}]}, {"reasoning_effort": "low"}])
async def test_case_23_what_tokenize_does_not_render_the_chat_route_does(
    fields: dict[str, Any],
) -> None:
    claim = with_request(await record(), **fields)
    engine = FakeEngine()
    await replay(engine, claim)
    first, second = engine.requests
    assert first["messages"] == claim.request["messages"]
    assert first.items() >= fields.items()
    assert "enforced_tokens" not in first
    assert second["output_token_ids"] == list(claim.output_ids or ())


async def test_a_server_without_tokenize_renders_by_the_chat_route() -> None:
    claim = await record()
    run = await replay(FakeEngine(plugin=False, tokenize=False), claim)
    assert run.replay.positions == claim.positions


async def test_a_context_that_the_answer_fills_is_decoded() -> None:
    """A prefill needs room for the one token that the engine draws behind it."""
    claim = await record()
    tokens = len(claim.prompt.token_ids or ()) + 6
    with pytest.raises(ReplayError, match="room for one more") as caught:
        await replay(FakeEngine(max_model_len=tokens), claim)
    assert caught.value.code == NOT_AVAILABLE
    chosen = await replay(FakeEngine(max_model_len=tokens), claim, AUTO)
    assert chosen.replay.positions == claim.positions
    assert (await replay(FakeEngine(max_model_len=tokens + 1), claim)).replay.path == "prefill"


async def test_an_answer_is_never_larger_than_was_agreed(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = await record()
    tokens = len(claim.prompt.token_ids or ()) + 6
    monkeypatch.setattr(prefill, "MAX_ENTRIES", tokens * 10)
    engine = FakeEngine(plugin=False)
    await replay(engine, claim)
    assert engine.requests[0]["prompt_logprobs"] == 9
    monkeypatch.setattr(prefill, "MAX_ENTRIES", tokens * 5)
    with pytest.raises(ReplayError, match="entries") as caught:
        await replay(engine, claim)
    assert caught.value.code == NOT_AVAILABLE


async def test_case_1_a_server_in_logits_mode_is_no_validator() -> None:
    claim = await record()
    async with client(FakeEngine()) as http:
        server = (await identify(http)).model_copy(update={"logprobs_mode": "raw_logits"})
        with pytest.raises(ReplayError, match="sends logits") as caught:
            await replay_claim(http, server, claim, AUTO)
    assert caught.value.code == "validator_unusable"


def _answer(rows: Any) -> Answer:
    return reply({"choices": [{"index": 0, "text": "", "prompt_logprobs": rows}]})


async def test_an_answer_of_another_shape_is_the_validators_fault() -> None:
    claim = await record()
    count = len(claim.prompt.token_ids or ()) + 6
    entry = {"1": {"logprob": -1.0, "rank": 1}}
    unranked = {str(token): {"logprob": -1.0} for token in claim.output_ids or ()}
    answers = [
        _answer(None),
        _answer([None, entry]),
        _answer([None] * count),
        _answer([None] + [entry] * (count - 1)),
        _answer([None] + [unranked] * (count - 1)),
        (200, {}, json.dumps({"choices": []}).encode()),
        (200, {}, b'{"choices": [NaN]}'),
    ]
    for answer in answers:
        with pytest.raises(ReplayError) as caught:
            await replay(FakeEngine(plugin=False, fail_with=[answer]), claim)
        assert (caught.value.blame, caught.value.code) == ("validator", "validator_error")


async def test_columns_of_another_shape_are_the_validators_fault() -> None:
    claim = await record()
    ids = [[token, 7] for token in claim.output_ids or ()]
    numbers = [[-1.0, -2.0]] * 6
    good = {"token_ids": ids, "logprobs": numbers, "claimed_logprobs": None}
    broken: list[dict[str, Any]] = [
        {"token_ids": ids[:5]},
        {"token_ids": [[7, 7]] * 6},
        {"token_ids": [[]] * 6},
        {"logprobs": [[-1.0]] * 6},
        {"logprobs": [["x", "y"]] * 6},
        {"claimed_logprobs": []},
    ]
    for change in broken:
        answer = reply(good | change)
        with pytest.raises(ReplayError) as caught:
            await replay(FakeEngine(fail_with=[answer]), claim)
        assert (caught.value.blame, caught.value.code) == ("validator", "validator_error")
    run = await replay(FakeEngine(fail_with=[reply(good)]), claim)
    assert [entry.key for entry in run.replay.alternatives[0]] == [7, ids[0][0]]


async def test_the_claims_own_ids_are_scored_whatever_their_rank() -> None:
    """Runner V2: the plugin's route answers for them; hostile ids are not even sent."""
    claim = await record()
    positions = list(claim.positions or ())
    odd = TopEntry(key=VOCABULARY + 5, logprob=-1.0)
    positions[0] = positions[0].model_copy(update={"top": (*positions[0].top, odd)})
    scored = [[-9.0 - i for i in range(5)]] + [[None] * 5] * 5
    ids = [[token, 7] for token in claim.output_ids or ()]
    columns = {"token_ids": ids, "logprobs": [[-1.0, -2.0]] * 6, "claimed_logprobs": scored}
    engine = FakeEngine(fail_with=[reply(columns)])
    run = await replay(engine, claim.model_copy(update={"positions": tuple(positions)}))
    sent = engine.requests[0]["claimed_token_ids"]
    assert sent[0] == [entry.key for entry in (claim.positions or ())[0].top]
    known = {entry.key: entry.logprob for entry in run.replay.alternatives[0]}
    assert known == {7: -2.0, ids[0][0]: -1.0}
    more = {entry.key: entry.logprob for entry in run.replay.claimed_entries[0]}
    assert {more[key] for key in sent[0][1:]} == {-10.0, -11.0, -12.0, -13.0}
    assert run.replay.claimed_entries[1][-1].logprob == IMPOSSIBLE


@pytest.mark.parametrize("token", [-1, 2**31, 10**30])
async def test_case_46_ids_of_no_vocabulary_never_reach_a_plain_server(token: int) -> None:
    claim = await record()
    engine = FakeEngine(plugin=False)
    bad = claim.model_copy(update={"output_ids": (token, *(claim.output_ids or ())[1:])})
    with pytest.raises(ReplayError, match="output token 0") as caught:
        await replay(engine, bad)
    assert caught.value.blame == "claim"
    assert engine.requests == []


@pytest.mark.parametrize(("id_", "blame"), [(600, "claim"), (500, "validator")])
async def test_case_46_a_plain_server_names_the_id_that_no_vocabulary_has(
    id_: int, blame: str
) -> None:
    claim = await record()
    bad = claim.model_copy(update={"output_ids": (id_, *(claim.output_ids or ())[1:])})
    refusal = error(400, "Token id 600 is out of vocabulary", "prompt")
    with pytest.raises(ReplayError, match="out of vocabulary") as caught:
        await replay(FakeEngine(plugin=False, fail_with=[refusal] * 2), bad)
    assert caught.value.blame == blame


async def test_an_outage_is_no_reason_to_take_the_other_path() -> None:
    claim = await record()
    with pytest.raises(ReplayError) as caught:
        await replay(FakeEngine(fail_with=[error(500, "out of memory")]), claim, AUTO)
    assert caught.value.code == "validator_error"
