"""The loop: every outcome has a verdict or an error, and an outage is no verdict."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from tests.support.fake_engine import FakeEngine, error

from assay.claims.claim import Claim
from assay.errors import ReplayError, StoreError
from assay.replay.client import HttpEngineClient
from assay.replay.identity import identify
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, collect
from assay.replay.request import ReplayOptions
from assay.replay.verify import (
    Key,
    VerifyOptions,
    require_validator,
    result_key,
    verify_all,
)
from assay.settings import ClientSettings
from assay.store.result import VerifyResult

TOKENS = 40
ONCE = VerifyOptions(retries=0)


def client(engine: FakeEngine) -> HttpEngineClient:
    return HttpEngineClient("http://engine", ClientSettings(), transport=engine.transport)


async def record(engine: FakeEngine, count: int) -> list[Claim]:
    prompts = [
        PromptLine(i, "chat", {"messages": [{"role": "user", "content": f"number {i}"}]})
        for i in range(count)
    ]
    async with client(engine) as http:
        server = await identify(http)
        return await collect(http, server, prompts, RecordOptions(max_tokens=TOKENS))


async def verify(
    engine: FakeEngine,
    claims: list[Claim],
    options: VerifyOptions = ONCE,
    done: Collection[Key] = frozenset(),
) -> list[VerifyResult]:
    results: list[VerifyResult] = []
    async with client(engine) as http:
        server = await identify(http)
        require_validator(server, "http://engine")
        await verify_all(http, server, claims, options, results.append, done=done)
    return results


def verdicts(results: list[VerifyResult]) -> list[str]:
    return [result.verdict.verdict for result in results]


async def test_honest_claims_pass_and_a_cheaper_copy_fails() -> None:
    honest = await record(FakeEngine(), 6)
    cheat = await record(FakeEngine(noise=3.0), 6)
    validator = FakeEngine()
    assert verdicts(await verify(validator, honest)) == ["pass"] * 6
    assert verdicts(await verify(validator, cheat)) == ["fail"] * 6


async def test_case_46_a_claim_without_log_probabilities_fails() -> None:
    [claim] = await record(FakeEngine(), 1)
    for positions in (None, ()):
        bare = claim.model_copy(update={"positions": positions})
        [result] = await verify(FakeEngine(), [bare])
        assert result.verdict.verdict == "fail"


@pytest.mark.parametrize("token", [99_999_999, -1])
async def test_case_46_ids_that_no_engine_has_fail_without_a_replay(token: int) -> None:
    [claim] = await record(FakeEngine(), 1)
    ids = (token, *(claim.output_ids or ())[1:])
    engine = FakeEngine()
    [result] = await verify(engine, [claim.model_copy(update={"output_ids": ids})])
    assert (result.verdict.verdict, result.blame) == ("fail", "claim")
    assert result.replay is None
    assert engine.requests == []


async def test_an_outage_is_inconclusive_and_can_be_settled_later() -> None:
    [claim] = await record(FakeEngine(), 1)
    broken = FakeEngine(fail_with=[error(500, "CUDA error")])
    [result] = await verify(broken, [claim])
    assert (result.verdict.verdict, result.blame, result.failure) == (
        "inconclusive",
        "validator",
        "validator_error",
    )
    assert "CUDA error" in result.verdict.reasons[0].message
    assert not result.settled


async def test_case_23_strict_mode_leaves_the_claim_undecided() -> None:
    [claim] = await record(FakeEngine(), 1)
    prompt = claim.prompt.model_copy(update={"token_ids": None, "source": "rerendered"})
    bare = claim.model_copy(update={"prompt": prompt})
    strict = VerifyOptions(replay=ReplayOptions(strict=True), retries=0)
    [result] = await verify(FakeEngine(), [bare], strict)
    assert (result.verdict.verdict, result.failure) == ("inconclusive", "no_prompt_ids")
    [loose] = await verify(FakeEngine(), [bare])
    assert loose.verdict.verdict == "pass"
    assert [note.code for note in loose.notes] == ["prompt_rerendered"]


async def test_done_claims_are_not_replayed() -> None:
    claims = await record(FakeEngine(), 4)
    engine = FakeEngine()
    first = await verify(engine, claims)
    sent = len(engine.requests)
    assert await verify(engine, claims, done={result.key for result in first}) == []
    assert len(engine.requests) == sent


async def test_the_key_changes_with_claim_server_and_options() -> None:
    claims = await record(FakeEngine(), 2)
    async with client(FakeEngine()) as http:
        server = await identify(http)
    options = VerifyOptions()
    other_server = server.model_copy(update={"dtype": "bfloat16"})
    keys = {
        result_key(claims[0], server, options),
        result_key(claims[1], server, options),
        result_key(claims[0].model_copy(update={"finish_reason": None}), server, options),
        result_key(claims[0], other_server, options),
        result_key(claims[0], server, VerifyOptions(threshold=0.5)),
        result_key(claims[0], server, VerifyOptions(replay=ReplayOptions(strict=True))),
    }
    assert len(keys) == 6
    assert result_key(claims[0], server, VerifyOptions(concurrency=1, retries=0)) in keys


async def test_a_server_that_dies_stops_the_run_and_keeps_what_was_decided() -> None:
    claims = await record(FakeEngine(), 6)
    dying = FakeEngine(dead_after=3)
    results: list[VerifyResult] = []
    async with client(dying) as http:
        server = await identify(http)
        with pytest.raises(ReplayError, match="run the same command again"):
            await verify_all(
                http, server, claims, VerifyOptions(concurrency=1, retries=0), results.append
            )
    assert verdicts(results) == ["pass"] * 3 + ["inconclusive"]
    assert [result.settled for result in results] == [True, True, True, False]


async def test_an_error_while_keeping_results_comes_out_as_itself() -> None:
    claims = await record(FakeEngine(), 3)

    def full(result: VerifyResult) -> None:
        raise StoreError("disk full")

    async with client(FakeEngine()) as http:
        server = await identify(http)
        with pytest.raises(StoreError, match="disk full"):
            await verify_all(http, server, claims, VerifyOptions(), full)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (FakeEngine(plugin=False), "assay serve"),
        (FakeEngine(speculative=True), "--speculative-config"),
    ],
)
async def test_case_13_a_server_that_cannot_judge_is_refused_before_any_claim(
    engine: FakeEngine, message: str
) -> None:
    claims = await record(FakeEngine(), 1)
    with pytest.raises(ReplayError, match=message):
        await verify(engine, claims)
    assert engine.requests == []


async def test_case_15_replays_at_once_do_not_mix() -> None:
    claims = await record(FakeEngine(), 12)
    results = await verify(FakeEngine(), claims, VerifyOptions(concurrency=12, retries=0))
    for result in results:
        assert result.replay is not None
        assert result.replay.positions == result.claim.positions


async def test_a_seed_that_somebody_chose_fails_where_a_beacon_is_demanded() -> None:
    prompt = PromptLine(1, "chat", {"messages": [{"role": "user", "content": "number 1"}]})
    engine = FakeEngine()
    async with client(engine) as http:
        server = await identify(http)
        options = RecordOptions(max_tokens=TOKENS, beacon="block 7")
        drawn = await collect(http, server, [prompt], options)
        chosen = await collect(http, server, [prompt], replace(options, beacon=None, seed=3))
    demanded = replace(ONCE, beacon="block 7")
    assert demanded.digest() != ONCE.digest()
    (honest,) = await verify(engine, drawn, demanded)
    assert "chosen_seed" not in [reason.code for reason in honest.verdict.reasons]
    (ground,) = await verify(engine, chosen, demanded)
    assert ground.verdict.verdict == "fail"
    assert "chosen_seed" in [reason.code for reason in ground.verdict.reasons]
    (unasked,) = await verify(engine, chosen)
    assert "chosen_seed" not in [reason.code for reason in unasked.verdict.reasons]
