"""The prefill path on real engines: the numbers of the decode path, from one forward pass."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.engine.servers import BLOCK, MAX_LOGPROBS, STEP_TOKENS
from tests.engine.talk import Talk, chat, text
from tests.support.server import Server

from assay.claims.claim import Claim
from assay.claims.jsonl import read_claims
from assay.claims.positions import IMPOSSIBLE, Position, TopEntry
from assay.claims.read_json import read_response
from assay.replay.client import HttpEngineClient
from assay.replay.decode import ReplayRun, replay_by_decode
from assay.replay.identity import ServerIdentity, identify
from assay.replay.prefill import replay_by_prefill
from assay.replay.request import ReplayOptions
from assay.replay.verify import VerifyOptions, verify_all
from assay.settings import ClientSettings
from assay.store.result import VerifyResult

PREFILL = ReplayOptions(path="prefill")
SAMPLED = {"temperature": 1.0, "seed": 11, "logprobs_mode": "raw_logprobs"}
CLOSE = 2e-3
"""Nats. A decode step and a prefill add the same numbers in another order."""
ROUTE = "/v1/assay/prefill"
INT4_CLAIMS = Path(__file__).parent / "data" / "smollm2_int4_claims.jsonl"

both = pytest.mark.parametrize("talk", ["v1", "v2"], indirect=True)


def claim_of(talk: Talk, body: dict[str, Any]) -> Claim:
    response = talk.post(body)
    assert response.status_code == 200, response.text
    claim = read_response(response.content, body)
    return claim.model_copy(update={"logprobs_mode": "raw_logprobs"})


def prefilled(url: str, claims: Sequence[Claim], *, plain: bool = False) -> list[ReplayRun]:
    """One after the other. ``plain``: as on a server that has no plugin."""

    async def run() -> list[ReplayRun]:
        async with HttpEngineClient(url, ClientSettings()) as http:
            server = await identify(http)
            if plain:
                server = without_plugin(server)
            return [await replay_by_prefill(http, server, claim, PREFILL) for claim in claims]

    return asyncio.run(run())


def decoded(url: str, claim: Claim) -> ReplayRun:
    async def run() -> ReplayRun:
        async with HttpEngineClient(url, ClientSettings()) as http:
            return await replay_by_decode(http, await identify(http), claim)

    return asyncio.run(run())


def without_plugin(server: ServerIdentity) -> ServerIdentity:
    return ServerIdentity(
        model=server.model, served_models=server.served_models, max_model_len=server.max_model_len
    )


def same_numbers(ours: Sequence[Position] | None, theirs: Sequence[Position] | None) -> None:
    """Equal tokens, and equal values for every id both list. Near ties may change places, so one
    id in a list may differ; the likeliest may not."""
    assert ours is not None
    assert theirs is not None
    assert [p.token for p in ours] == [p.token for p in theirs]
    for one, two in zip(ours, theirs, strict=True):
        assert one.logprob == pytest.approx(two.logprob, abs=CLOSE)
        a, b = ({e.key: e.logprob for e in p.top} for p in (one, two))
        shared = a.keys() & b.keys()
        assert len(shared) >= max(len(a), len(b)) - 1
        assert len(a) == len(b)
        for key in shared:
            assert a[key] == pytest.approx(b[key], abs=CLOSE)


@both
@pytest.mark.parametrize("plain", [False, True], ids=["plugin", "stock"])
def test_case_59_one_forward_gives_the_numbers_of_the_decode_path(talk: Talk, plain: bool) -> None:
    claims = [
        claim_of(talk, chat(max_tokens=16, **SAMPLED)),
        claim_of(talk, text(max_tokens=16, **SAMPLED)),
        claim_of(talk, text([7, 8, 9], max_tokens=5, ignore_eos=True, **SAMPLED)),
    ]
    for claim, run in zip(claims, prefilled(talk.server.url, claims, plain=plain), strict=True):
        same_numbers(run.replay.positions, claim.positions)
        if not plain:
            same_numbers(run.replay.positions, decoded(talk.server.url, claim).replay.positions)
        assert run.replay.prompt_token_ids == claim.prompt.token_ids
        assert run.notes == ()
        assert min(map(len, run.replay.alternatives)) >= MAX_LOGPROBS


@both
def test_a_token_that_was_never_drawn_has_its_true_probability(talk: Talk) -> None:
    """Also where it is far from likely, and for ids the claim only lists (runner V2)."""
    claim = claim_of(talk, text(max_tokens=6, ignore_eos=True, **SAMPLED))
    ids, positions = list(claim.output_ids or ()), list(claim.positions or ())
    [whole] = prefilled(talk.server.url, [claim])
    listed = {entry.key for entry in whole.replay.alternatives[3]}
    odd = next(i for i in range(5, 500) if i not in listed)
    moved = claim.model_copy(update={"output_ids": (*ids[:3], odd, *ids[4:])})
    truth = decoded(talk.server.url, moved).replay.positions
    [run] = prefilled(talk.server.url, [moved])
    same_numbers(run.replay.positions, truth)
    assert truth is not None
    top = (*positions[3].top, TopEntry(key=odd, logprob=-1.0))
    positions[3] = positions[3].model_copy(update={"top": top})
    [run] = prefilled(talk.server.url, [claim.model_copy(update={"positions": tuple(positions)})])
    if talk.status()["runner"] == "v2":
        [entry] = [e for e in run.replay.claimed_entries[3] if e.key == odd]
        assert entry.logprob == pytest.approx(truth[3].logprob, abs=CLOSE)
    else:
        assert run.replay.claimed_entries == ()


@both
def test_processed_numbers_follow_from_raw_ones_where_top_k_is_small(talk: Talk) -> None:
    """At most one of 16 positions may lie so close to the edge of top-p or min-p that the last bits
    of a sum decide who is kept."""
    mode = {"logprobs_mode": "processed_logprobs", "seed": 4}
    cuts = {"temperature": 0.8, "top_k": 8, "top_p": 0.5, "min_p": 0.02}
    body = text(max_tokens=16, ignore_eos=True, **mode, **cuts)
    claim = claim_of(talk, body).model_copy(update={"logprobs_mode": "processed_logprobs"})
    [run] = prefilled(talk.server.url, [claim])
    assert run.replay.logprobs_mode == "processed_logprobs"
    forced = decoded(talk.server.url, claim).replay.positions or ()
    off = 0
    for ours, theirs in zip(run.replay.positions or (), forced, strict=True):
        a, b = (
            {e.key: e.logprob for e in p.top if e.logprob != IMPOSSIBLE} for p in (ours, theirs)
        )
        off += a.keys() != b.keys() or any(abs(a[key] - b[key]) > CLOSE for key in a)
    assert off <= 1
    assert any(position.effective_k < len(position.top) for position in forced), "nothing was cut"


@both
def test_case_17_order_and_repetition_change_nothing(talk: Talk) -> None:
    """Prompts that share a prefix of several blocks, so that a cache could serve some of them."""
    shared = [5 + i % 200 for i in range(2 * BLOCK + 3)]
    claims = [
        claim_of(talk, text([*shared, 300 + i], max_tokens=4, ignore_eos=True, **SAMPLED))
        for i in range(3)
    ]
    first = [run.replay for run in prefilled(talk.server.url, claims)]
    again = [run.replay for run in prefilled(talk.server.url, claims)]
    turned = [run.replay for run in prefilled(talk.server.url, claims[::-1])][::-1]
    assert first == again == turned
    plain = [run.replay for run in prefilled(talk.server.url, claims[::-1], plain=True)][::-1]
    for claim, one, two in zip(claims, first, plain, strict=True):
        same_numbers(one.positions, claim.positions)
        assert one.positions == two.positions


@both
def test_case_19_lengths_around_a_block_twice(talk: Talk) -> None:
    for length in (BLOCK - 1, BLOCK, BLOCK + 1):
        prompt = [5 + i % 90 for i in range(length - 8)]
        claim = claim_of(talk, text(prompt, max_tokens=8, ignore_eos=True, **SAMPLED))
        one, two = prefilled(talk.server.url, [claim, claim])
        assert one.replay == two.replay
        same_numbers(one.replay.positions, claim.positions)


@both
@pytest.mark.parametrize("plain", [False, True], ids=["plugin", "stock"])
def test_a_claim_longer_than_a_step_is_prefilled_in_chunks(talk: Talk, plain: bool) -> None:
    prompt = [5 + (7 * i) % 400 for i in range(STEP_TOKENS - 20)]
    claim = claim_of(talk, text(prompt, max_tokens=40, ignore_eos=True, **SAMPLED))
    [run] = prefilled(talk.server.url, [claim], plain=plain)
    same_numbers(run.replay.positions, claim.positions)
    assert len(run.replay.positions or ()) == 40


@both
def test_many_at_once_and_beside_ordinary_answers(talk: Talk) -> None:
    """A server with room for eight short rows: chunks of different claims share a step."""
    bodies = [
        text([5 + i, *range(20, 60 + 15 * i)], max_tokens=8, ignore_eos=True, **SAMPLED)
        for i in range(5)
    ]
    claims = [claim_of(talk, body) for body in bodies]
    found: list[VerifyResult] = []

    async def run() -> None:
        async with HttpEngineClient(talk.server.url, ClientSettings()) as http:
            options = VerifyOptions(replay=PREFILL, concurrency=5, retries=0)
            beside = asyncio.gather(*(http.send("POST", "/v1/completions", b) for b in bodies[:2]))
            await verify_all(http, await identify(http), claims, options, found.append)
            assert [reply.status for reply in await beside] == [200, 200]

    asyncio.run(run())
    replays = {result.claim.id: result.replay for result in found}
    for claim in claims:
        replay = replays[claim.id]
        assert replay is not None
        same_numbers(replay.positions, claim.positions)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt_token_ids": []}, "prompt_token_ids"),
    ({"prompt_token_ids": [1, 2.5]}, "prompt_token_ids[1]"),
    ({"prompt_token_ids": [True]}, "prompt_token_ids[0]"),
    ({"output_token_ids": [6, -1]}, "output_token_ids[1]"),
    ({"output_token_ids": [6, 512]}, "output_token_ids[1]"),
    ({"output_token_ids": [10**30]}, "output_token_ids[0]"),
    ({"output_token_ids": [6] * 600}, "output_token_ids"),
    ({"top": MAX_LOGPROBS + 1}, "top"),
    ({"top": -1}, "top"),
    ({"claimed_token_ids": [[1]]}, "claimed_token_ids"),
    ({"claimed_token_ids": [[1], [2] * 65]}, "claimed_token_ids[1]"),
    ({"surprise": 1}, "surprise"),
]


@pytest.mark.parametrize("talk", ["v1"], indirect=True)
def test_case_46_the_route_refuses_by_name(talk: Talk) -> None:
    good = {"prompt_token_ids": [5, 6], "output_token_ids": [7, 8], "top": 2}
    for change, field in REFUSED:
        refusal = talk.refused(good | change, ROUTE)
        assert refusal["param"] == field
    answer = talk.post(good | {"claimed_token_ids": [[10**9, -5], []]}, ROUTE)
    assert answer.status_code == 200, answer.text


@pytest.mark.engine
@pytest.mark.v2
def test_a_plain_server_scores_its_own_answers(v2_plain_server: Server) -> None:
    """No plugin anywhere: claim and replay from stock vLLM."""
    talk = Talk(v2_plain_server)
    fields = {"temperature": 1.0, "seed": 3, "max_tokens": 20}
    claims = [claim_of(talk, body) for body in (chat(**fields), text(**fields))]
    talk.close()
    for claim, run in zip(claims, prefilled(v2_plain_server.url, claims), strict=True):
        same_numbers(run.replay.positions, claim.positions)
        assert run.replay.engine.plugin_version is None


@pytest.mark.parametrize("talk", ["real"], indirect=True)
def test_honest_passes_and_int4_fails_in_one_forward(talk: Talk) -> None:
    """The int4 claim was recorded from a server with the weights rounded to int4
    (``tests/engine/data/README.md``); this one holds them whole."""
    honest = [claim_of(talk, chat("How is bread made?", max_tokens=64, **SAMPLED))]
    cheat = read_claims(INT4_CLAIMS)
    found: list[VerifyResult] = []

    async def run() -> None:
        async with HttpEngineClient(talk.server.url, ClientSettings()) as http:
            options = VerifyOptions(replay=PREFILL, retries=0)
            await verify_all(http, await identify(http), [*honest, *cheat], options, found.append)

    asyncio.run(run())
    verdicts = {result.claim.id: result.verdict for result in found}
    assert [verdicts[claim.id].verdict for claim in honest] == ["pass"] * len(honest)
    assert [verdicts[claim.id].verdict for claim in cheat] == ["fail"] * len(cheat)
    assert {result.replay.path for result in found if result.replay} == {"prefill"}
