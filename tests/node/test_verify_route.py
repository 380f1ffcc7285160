"""``/inference/verify``: claims in, verdicts out. The engine is the replay tests' own small model."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.node.helpers import Driver, driven, stand_in_config
from tests.support.fake_engine import FakeEngine

from assay.claims.claim import Claim
from assay.node.backend import Backend, BackendState
from assay.replay.client import HttpEngineClient
from assay.replay.identity import identify
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, collect
from assay.settings import ClientSettings

VERIFY = "/api/v1/inference/verify"


async def claims_of(engine: FakeEngine, count: int = 2) -> list[dict[str, Any]]:
    prompts = [
        PromptLine(i, "chat", {"messages": [{"role": "user", "content": f"number {i}"}]})
        for i in range(count)
    ]
    transport = engine.transport
    async with HttpEngineClient("http://engine", ClientSettings(), transport=transport) as http:
        server = await identify(http)
        found: list[Claim] = await collect(http, server, prompts, RecordOptions(max_tokens=40))
    return [json.loads(claim.model_dump_json()) for claim in found]


@asynccontextmanager
async def judging(folder: Path, engine: FakeEngine, **flags: Any) -> AsyncIterator[Driver]:
    """A node whose one backend is ``engine``."""
    with engine.serving() as address:
        async with driven(stand_in_config(folder, **flags)) as driver:
            backend = Backend(int(address.rpartition(":")[2]))
            driver.node.pool.replace([backend])
            driver.node.pool.move(backend, BackendState.READY)
            yield driver


async def test_honest_claims_pass_and_are_kept(tmp_path: Path) -> None:
    claims = await claims_of(FakeEngine())
    async with judging(tmp_path, FakeEngine()) as driver:
        answer = await driver.http.post(VERIFY, json={"claims": claims, "label": "executor-7"})
        body = answer.json()
        assert answer.status_code == 200
        assert (body["verdict"], body["claims"]) == ("pass", 2)
        assert {result["claim"] for result in body["results"]} == {c["id"] for c in claims}
        kept = driver.node.store.results("executor-7")
        assert [result.verdict.verdict for result in kept] == ["pass", "pass"]
        assert driver.backends[0].in_flight == 0


async def test_a_cheaper_model_fails(tmp_path: Path) -> None:
    claims = await claims_of(FakeEngine(noise=3.0))
    async with judging(tmp_path, FakeEngine()) as driver:
        body = (await driver.http.post(VERIFY, json={"claims": claims})).json()
        assert body["verdict"] == "fail"
        assert body["results"][0]["reasons"]


async def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    claims = await claims_of(FakeEngine())
    broken = [claims[0], {**claims[1], "tokens": "none"}]
    config = {"limits__verify_claims": 2, "limits__verify_body_bytes": 1_000_000}
    async with judging(tmp_path, FakeEngine(), **config) as driver:
        for sent, status, says in (
            (b"{", 400, "not JSON"),
            (b'{"claims": [NaN]}', 400, "NaN"),
            (b"{}", 400, "claims: Field required"),
            (b'{"claims": []}', 400, "claims: "),
            (json.dumps({"claims": broken}).encode(), 400, "claims[1]."),
            (json.dumps({"claims": claims, "threshold": 2}).encode(), 400, "threshold: "),
            (json.dumps({"claims": claims, "treshold": 1}).encode(), 400, "treshold: "),
            (json.dumps({"claims": [*claims, *claims]}).encode(), 413, "claims: 4 are more than 2"),
            (b" " * 1_000_001, 413, "1000000 bytes"),
        ):
            answer = await driver.http.post(VERIFY, content=sent)
            assert answer.status_code == status, answer.text
            assert says in str(answer.json()["detail"]), (says, answer.text)


async def test_no_backend_is_503_and_one_that_cannot_judge_is_502(tmp_path: Path) -> None:
    claims = await claims_of(FakeEngine(), 1)
    async with driven(stand_in_config(tmp_path)) as driver:
        answer = await driver.http.post(VERIFY, json={"claims": claims})
        assert (answer.status_code, answer.json()["detail"]) == (503, "No vLLM backend available")
    async with judging(tmp_path, FakeEngine(plugin=False)) as driver:
        answer = await driver.http.post(VERIFY, json={"claims": claims})
        assert answer.status_code == 502
        assert answer.json()["detail"]["code"] == "validator_unusable"


async def test_an_outage_is_502_with_the_verdicts_there_are(tmp_path: Path) -> None:
    claims = await claims_of(FakeEngine(), 2)
    engine = FakeEngine(dead_after=1)
    async with judging(tmp_path, engine, limits__verify_concurrency=1) as driver:
        answer = await driver.http.post(VERIFY, json={"claims": claims})
        assert answer.status_code == 502
        detail = answer.json()["detail"]
        assert detail["code"] == "validator_unreachable"
        assert detail["counts"]["pass"] == 1
        assert detail["counts"]["fail"] == 0
