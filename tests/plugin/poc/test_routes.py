"""The wire: what existing clients send, what they get, every status they may see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugin.poc.fake import (
    CHAT,
    FakeEngine,
    Receiver,
    generate_body,
    init_body,
    running,
    until,
    vector,
)

from assay.plugin.poc.body import parse
from assay.plugin.poc.bounds import batch_size
from assay.plugin.poc.failures import RefusedError
from assay.plugin.poc.settings import PocSettings
from assay.poc.artifact_file import Challenge
from assay.poc.artifacts import decode_vector, encode_vector
from assay.poc.bodies import Generate, InitGenerate

CHALLENGE = Challenge("abc", "node-key", seq_len=16)


def artifacts(nonces: list[int], challenge: Challenge = CHALLENGE) -> list[dict[str, Any]]:
    return [{"nonce": n, "vector_b64": encode_vector(vector(challenge, n))} for n in nonces]


async def test_the_life_of_a_mining_run(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        idle = {"status": "IDLE", "config": None, "stats": None}
        assert await server.status() == idle
        started = await server.post("/init/generate", init_body())
        assert started.status_code == 200
        assert started.json() == {"status": "OK", "pow_status": {"status": "GENERATING"}}
        await until(lambda: len(server.engine.mined()) > 64)
        status = await server.status()
        assert status["status"] == "GENERATING"
        assert status["config"]["block_hash"] == "abc"
        assert status["config"]["batch_size"] == 32
        assert status["config"]["k_dim"] == 12
        assert status["stats"]["total_processed"] > 0
        assert status["stats"]["nonces_per_second"] > 0
        again = await server.post("/init/generate", init_body())
        assert (again.status_code, again.json()) == (409, {"detail": "Already generating"})
        stopped = await server.post("/stop")
        assert stopped.json() == {"status": "OK", "pow_status": {"status": "STOPPED"}}
        assert await server.status() == idle
        assert (await server.post("/stop")).json() == stopped.json()  # idempotent


async def test_nonces_of_a_node_in_a_group(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        body = init_body(node_id=1, node_count=3, group_id=1, n_groups=2, batch_size=4)
        await server.post("/init/generate", body)
        await until(lambda: len(server.engine.mined()) >= 8)
        await server.post("/stop")
        assert server.engine.mined()[:8] == [4, 10, 16, 22, 28, 34, 40, 46]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"block_hash": ""}, "block_hash"),
        ({"block_hash": None}, "block_hash"),
        ({"node_id": 1}, "node_id"),
        ({"group_id": 2, "n_groups": 2}, "group_id"),
        ({"node_count": 0}, "node_count"),
        ({"block_height": -1}, "block_height"),
        ({"block_height": "7"}, "block_height"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 200}, "200 x 16 = 3200 tokens exceed the engine's budget of 2048"),
        ({"params": {"model": "model", "seq_len": 4096}}, "params.seq_len"),
        ({"params": {"model": "model", "seq_len": 0}}, "params.seq_len"),
        ({"params": {"model": "model", "seq_len": 16, "k_dim": 65}}, "params.k_dim"),
        ({"params": {"model": "model", "seq_len": 16, "k_dim": 0}}, "params.k_dim"),
        ({"params": {"model": "model", "seq_len": 16, "seed": 1}}, "params.seed"),
        ({"poc_stronger_rng": "yes"}, "poc_stronger_rng"),
        ({"url": "ftp://127.0.0.1/x"}, "url"),
        ({"url": "http://user@127.0.0.1/x"}, "url"),
        ({"url": "http://127.0.0.1/x?y=1"}, "url"),
        ({"url": "http://192.0.2.1/x"}, "POC_CALLBACK_ALLOW"),
    ],
)
async def test_a_bad_init_names_its_field(
    tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    async with running(tmp_path / "o.db") as server:
        answer = await server.post("/init/generate", init_body(**change))
        assert answer.status_code == 400
        assert says in answer.json()["detail"]
        assert not server.service.miner.running


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b"null", b"[" * 100_000])
async def test_bodies_that_are_no_json_object(tmp_path: Path, body: bytes) -> None:
    async with running(tmp_path / "o.db") as server:
        for path in ("/init/generate", "/generate"):
            answer = await server.client.post("/api/v1/pow" + path, content=body)
            assert answer.status_code == 400


async def test_bodies_are_bounded_declared_or_not(tmp_path: Path) -> None:
    async def undeclared() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 4096

    async with running(tmp_path / "o.db", max_body_bytes=100_000) as server:
        for content in (b" " * 100_001, undeclared()):
            answer = await server.client.post("/api/v1/pow/generate", content=content)
            assert answer.status_code == 413
            assert "100000" in answer.json()["detail"]


async def test_params_mismatch(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db", pinned_seq_len=16, pinned_k_dim=12) as server:
        by_path = init_body(params={"model": "/models/model", "seq_len": 16})
        assert (await server.post("/init/generate", by_path)).status_code == 200
        await server.post("/stop")
        other = {"model": "other", "seq_len": 32, "k_dim": 8}
        for path, body in (
            ("/init/generate", init_body(params=other)),
            ("/generate", generate_body([1], params=other)),
        ):
            answer = await server.post(path, body)
            assert answer.status_code == 409
            assert answer.json()["detail"] == {
                "error": "params mismatch",
                "requested": other,
                "deployed": {"model": "model", "seq_len": 16, "k_dim": 12},
                "fields": ["model", "seq_len", "k_dim"],
            }


async def test_generate_now_and_later(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        waited = (await server.post("/generate", generate_body([5, 3, 9], wait=True))).json()
        assert waited["status"] == "completed"
        assert waited["encoding"] == {"dtype": "f16", "k_dim": 12, "endian": "le"}
        assert [a["nonce"] for a in waited["artifacts"]] == [5, 3, 9]
        first = decode_vector(waited["artifacts"][0]["vector_b64"], 12)
        assert first == pytest.approx(vector(CHALLENGE, 5), abs=1e-3)
        queued = (await server.post("/generate", generate_body([5, 3, 9]))).json()
        assert queued["status"] == "queued"
        assert queued["queued_count"] == 3
        job = server.service.jobs.get(queued["request_id"])
        assert job is not None
        await job.done.wait()
        later = (await server.get(f"/generate/{queued['request_id']}")).json()
        assert later["artifacts"] == waited["artifacts"]
        assert later["profile"]["kv_cache_dtype"] == "auto"  # case 50


async def test_results_are_kept_for_the_ttl_and_no_longer(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db", generate_result_ttl_sec=0.3) as server:
        queued = (await server.post("/generate", generate_body([1]))).json()
        job = server.service.jobs.get(queued["request_id"])
        assert job is not None
        await job.done.wait()
        path = f"/generate/{queued['request_id']}"
        assert (await server.get(path)).json()["status"] == "completed"
        await until(lambda: server.service.jobs.get(job.id) is None)
        assert (await server.get(path)).status_code == 404


async def test_states_of_a_job_and_the_queue_bound(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db", max_queued_nonces=10) as server:
        server.engine.hold.clear()
        running_job = (await server.post("/generate", generate_body(range(6)))).json()
        await until(lambda: len(server.engine.batches) == 2)
        waiting_job = (await server.post("/generate", generate_body([100, 101]))).json()
        assert waiting_job["queued_count"] == 8
        refused = await server.post("/generate", generate_body([1, 2, 3]))
        assert refused.status_code == 429
        assert "10" in refused.json()["detail"]
        for job, state in ((running_job, "running"), (waiting_job, "queued")):
            answer = (await server.get(f"/generate/{job['request_id']}")).json()
            assert answer == {"status": state, "request_id": job["request_id"]}
        assert server.metric("assay_poc_queued_nonces") == 8
        server.engine.hold.set()
        await until(lambda: not server.service.jobs.busy)
        assert (await server.post("/generate", generate_body(range(10)))).status_code == 200


async def test_stop_cancels_jobs_and_their_waiters(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        server.engine.hold.clear()
        queued = (await server.post("/generate", generate_body([1]))).json()
        waiter = asyncio.create_task(server.post("/generate", generate_body([2], wait=True)))
        await until(lambda: server.service.jobs.nonces == 2)
        stop = asyncio.create_task(server.post("/stop"))
        assert (await waiter).status_code == 503
        await asyncio.sleep(0.05)
        assert not stop.done()  # F51: it waits for what is on the device
        server.engine.hold.set()
        assert (await stop).status_code == 200
        state = (await server.get(f"/generate/{queued['request_id']}")).json()
        assert state["status"] == "cancelled"
        assert "stop" in state["error"]


async def test_a_client_that_goes_away_ends_its_job(tmp_path: Path) -> None:
    """Case 42, for PoC."""
    async with running(tmp_path / "o.db") as server:
        server.engine.hold.clear()
        waiter = asyncio.create_task(server.post("/generate", generate_body([2], wait=True)))
        await until(lambda: server.service.jobs.nonces == 1)
        waiter.cancel()
        await until(lambda: server.service.jobs.nonces == 0)
        server.engine.hold.set()
        assert (await server.post("/generate", generate_body([3], wait=True))).status_code == 200


async def test_generate_waits_until_mining_stops(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        await server.post("/init/generate", init_body())
        body = generate_body([4_000_000_000], wait=True)
        waiter = asyncio.create_task(server.post("/generate", body))
        await asyncio.sleep(0.1)
        assert not waiter.done()
        assert 4_000_000_000 not in server.engine.mined()
        # /stop would cancel the job with the queue; a run that ends by itself does not.
        server.engine.bad_nonces = lambda nonce: nonce < 4_000_000_000
        answer = await waiter
        assert not server.service.miner.running
        assert answer.status_code == 200
        assert [a["nonce"] for a in answer.json()["artifacts"]] == [4_000_000_000]


async def test_an_engine_error_fails_the_job_with_503(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        server.engine.failure = "the worker raised"
        waited = await server.post("/generate", generate_body([1], wait=True))
        assert waited.status_code == 503
        assert "the worker raised" in waited.json()["detail"]
        queued = (await server.post("/generate", generate_body([1]))).json()
        await until(lambda: not server.service.jobs.busy)
        state = (await server.get(f"/generate/{queued['request_id']}")).json()
        assert (state["status"], state["error"]) == ("failed", "the worker raised")
        server.engine.failure = None
        assert (await server.post("/generate", generate_body([1], wait=True))).status_code == 200


async def test_rows_that_are_not_finite_are_never_sent_but_named(tmp_path: Path) -> None:
    """F27, F28."""
    async with running(tmp_path / "o.db") as server:
        server.engine.bad_nonces = lambda nonce: nonce % 4 == 1
        answer = (await server.post("/generate", generate_body(range(8), wait=True))).json()
        assert [a["nonce"] for a in answer["artifacts"]] == [0, 2, 3, 4, 6, 7]
        assert answer["failed_nonces"] == [1, 5]
        assert server.metric("assay_poc_vectors_failed_total") == 2
        server.engine.bad_nonces = lambda nonce: True
        assert (await server.post("/generate", generate_body([1], wait=True))).status_code == 503


async def test_validation_of_honest_and_of_forged_vectors(tmp_path: Path) -> None:
    nonces = list(range(40))
    loose = {"dist_threshold": 0.4, "p_mismatch": 0.1, "p_value_threshold": 0.05}
    async with running(tmp_path / "o.db") as server:

        async def judge(claimed: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
            validation = {"artifacts": claimed, **changes}
            body = generate_body(nonces, wait=True, validation=validation, stat_test=loose)
            return (await server.post("/generate", body)).json()

        honest = await judge(artifacts(nonces))
        assert honest["status"] == "completed"
        assert (honest["n_total"], honest["n_mismatch"]) == (40, 0)
        assert honest["mismatch_nonces"] == []
        assert (honest["p_value"], honest["fraud_detected"]) == (1.0, False)
        assert (honest["n_excluded"], honest["excluded_nonces"]) == (0, [])
        assert honest["verdict"] == "pass"
        assert honest["profile"]["dtype"] == "float32"
        assert honest["stat_test"]["alpha"] == 0.05
        forged = await judge(artifacts(nonces, Challenge("abc", "another key", seq_len=16)))
        assert forged["fraud_detected"] is True
        assert forged["verdict"] == "fail"
        assert forged["n_mismatch"] > 35
        # F27: NaN is a mismatch by name. Case 46: so is text that is no vector.
        nan = [{**a, "vector_b64": "AH4" * 10 + "AA=="} for a in artifacts(nonces)]
        garbage = [{**a, "vector_b64": "!"} for a in artifacts(nonces)]
        for claimed in (nan, garbage):
            assert (await judge(claimed))["fraud_detected"] is True
        # Case 50: another KV dtype is configuration, not fraud.
        other = await judge(
            artifacts(nonces, Challenge("abc", "another key", seq_len=16)),
            profile={"kv_cache_dtype": "fp8"},
        )
        assert (other["verdict"], other["fraud_detected"]) == ("inconclusive", False)
        assert other["reasons"][0]["code"] == "configuration_differs"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"validation": {"artifacts": []}}, "nothing to validate"),  # F54
        ({"validation": {"artifacts": artifacts([1, 2])}}, "3 is in one only"),
        ({"validation": {"artifacts": artifacts([1, 2, 4])}}, "not of the same nonces"),
        ({"validation": {"artifacts": artifacts([1, 2, 3, 3])}}, "twice"),
        ({"nonces": [1, 2, 3, 3]}, "twice"),
        ({"nonces": []}, "nonces"),
        ({"nonces": [1, -1, 3]}, "nonces[1]"),
        ({"nonces": [1, 2**32, 3]}, "nonces[1]"),
        ({"nonces": [1, "2", 3]}, "nonces[1]"),
        ({"nonces": [1, True, 3]}, "nonces[1]"),
        ({"nonces": [1, 2.5, 3]}, "nonces[1]"),
        ({"stat_test": {"fraud_threshold": 0.01, "p_value_threshold": 0.05}}, "two names"),
        ({"stat_test": {"dist_threshold": -1}}, "dist_threshold"),
        ({"stat_test": {"alfa": 0.1}}, "alfa"),
        ({"wait": 1}, "wait"),
    ],
)
async def test_a_bad_generate_names_its_field(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    async with running(tmp_path / "o.db") as server:
        answer = await server.post("/generate", generate_body(**{"nonces": [1, 2, 3], **changes}))
        assert answer.status_code == 400
        assert says in answer.json()["detail"]
        assert not server.service.jobs.busy


@pytest.mark.parametrize("name", ["fraud_threshold", "p_value_threshold"])
async def test_both_names_of_alpha_count(tmp_path: Path, name: str) -> None:
    async with running(tmp_path / "o.db") as server:
        body = generate_body(
            [1, 2], wait=True, validation={"artifacts": artifacts([1, 2])}, stat_test={name: 0.2}
        )
        answer = (await server.post("/generate", body)).json()
        assert answer["stat_test"] == {"dist_threshold": 0.02, "p_mismatch": 0.001, "alpha": 0.2}


async def test_f55_too_few_recomputed_is_no_answer(tmp_path: Path) -> None:
    nonces = list(range(20))
    async with running(tmp_path / "o.db") as server:
        body = generate_body(nonces, wait=True, validation={"artifacts": artifacts(nonces)})
        server.engine.bad_nonces = lambda nonce: nonce < 2
        within = (await server.post("/generate", body)).json()
        assert (within["n_total"], within["n_excluded"]) == (18, 2)
        assert within["excluded_nonces"] == [0, 1]
        server.engine.bad_nonces = lambda nonce: nonce < 3
        assert (await server.post("/generate", body)).status_code == 503


async def test_f56_batches_follow_the_engine(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db", batch_size_default="auto") as server:
        await server.post("/generate", generate_body(range(200), wait=True))
        assert [len(batch) for batch in server.engine.batches[1:]] == [128, 72]


@given(
    budget=st.integers(1, 100_000),
    seq_len=st.integers(1, 2_000),
    default=st.one_of(st.just("auto"), st.integers(1, 4_096)),
)
def test_a_default_batch_is_never_over_the_budget(budget: int, seq_len: int, default: Any) -> None:
    request = InitGenerate.model_validate(init_body(params={"model": "m", "seq_len": seq_len}))
    size = batch_size(request, {"token_budget": budget}, PocSettings(batch_size_default=default))
    assert size == 1 or size * seq_len <= budget
    assert default == "auto" or size <= default


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda x: (
            st.lists(x, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["nonces", "params", "url", "block_hash", "validation", "stat_test"]
                ),
                x,
                max_size=6,
            )
        ),
    ).map(lambda v: json.dumps(v).encode())
)
def test_no_body_is_met_with_anything_but_a_refusal(body: bytes) -> None:
    for model in (InitGenerate, Generate):
        with pytest.raises(RefusedError) as refused:
            parse(model, body)
        assert refused.value.status == 400


async def test_api_key_guards_every_route(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db", keys=("secret", "other")) as server:
        calls = [
            ("POST", "/init/generate"),
            ("POST", "/shares"),
            ("POST", "/generate"),
            ("GET", "/generate/x"),
            ("GET", "/status"),
            ("POST", "/stop"),
            ("GET", "/versions"),
        ]
        for method, path in calls:
            for header in (None, "Bearer wrong", "secret", "Basic secret", "Bearer secret x"):
                headers = {} if header is None else {"Authorization": header}
                answer = await server.client.request(method, "/api/v1/pow" + path, headers=headers)
                assert answer.status_code == 401, (path, header)
        for key in ("secret", "other"):
            answer = await server.client.get(
                "/api/v1/pow/status", headers={"Authorization": f"Bearer {key}"}
            )
            assert answer.status_code == 200


async def test_f52_versions_are_probed(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        versions = (await server.get("/versions")).json()
        assert versions["vllm_version"] == "0.32.0"
        assert versions["assay_version"]
        assert versions["poc_validation_inference"] is True


async def test_versions_say_no_when_the_forward_does_not_work(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        server.service.capability._able = None  # as before the first probe
        server.engine.failure = "layers not found"
        assert (await server.get("/versions")).json()["poc_validation_inference"] is False
        refused = await server.post("/init/generate", init_body())
        assert refused.status_code == 503
        assert "layers not found" in refused.json()["detail"]
        server.engine.failure = None
        assert (await server.get("/versions")).json()["poc_validation_inference"] is True


async def test_case_44_asleep_is_refused_and_waking_is_enough(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        server.engine.sleeping = True
        for path, body in (
            ("/init/generate", init_body()),
            ("/generate", generate_body([1], wait=True)),
        ):
            answer = await server.post(path, body)
            assert answer.status_code == 409
            assert "asleep" in answer.json()["detail"]
        assert not server.gate.closed
        server.engine.sleeping = False
        assert (await server.post("/generate", generate_body([1], wait=True))).status_code == 200
        assert (await server.post("/init/generate", init_body())).status_code == 200
        server.engine.sleeping = True  # somebody puts it to sleep by other means than the route
        await until(lambda: not server.service.miner.running)
        status = await server.status()
        assert status["status"] == "ERROR"
        assert "asleep" in status["error"]


async def test_a_dead_engine_is_503(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        server.engine.hold.clear()
        waiter = asyncio.create_task(server.post("/generate", generate_body([1], wait=True)))
        await until(lambda: len(server.engine.batches) == 2)
        server.engine.errored = True  # vLLM leaves the call unanswered
        assert (await waiter).status_code == 503


async def test_case_30_a_long_batch_makes_the_server_busy_not_silent(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db", rpc_timeout_ms=100, policy="share") as server:
        server.engine.hold.clear()
        await server.post("/init/generate", init_body())
        await until(lambda: server.gate.closed)
        status = await server.status()
        assert status["status"] == "GENERATING"
        assert status["busy"] is True
        assert status["busy_seconds"] > 0.1
        chat = await server.client.post(CHAT, json={})
        assert chat.status_code == 503
        assert "on the device" in chat.json()["error"]["message"]
        assert len(server.engine.batches) == 2  # not sent again
        server.engine.hold.set()
        await until(lambda: not server.gate.closed)


async def test_a_chunk_that_takes_too_long_fails_its_job_only(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db", generate_chunk_timeout_sec=0.1) as server:
        server.engine.hold.clear()
        slow = await server.post("/generate", generate_body([1], wait=True))
        assert slow.status_code == 503
        assert "POC_GENERATE_CHUNK_TIMEOUT_SEC" in slow.json()["detail"]
        next_one = asyncio.create_task(server.post("/generate", generate_body([2], wait=True)))
        await asyncio.sleep(0.3)
        assert not next_one.done()  # waits for the device, and its own time has not begun
        server.engine.hold.set()
        assert (await next_one).status_code == 200


async def test_f53_every_field_reaches_the_callbacks(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, running(tmp_path / "o.db") as server:
        body = generate_body([1, 2], url=receiver.url, node_id=3, node_count=5)
        made = (await server.post("/generate", body)).json()
        judged = await server.post(
            "/generate", {**body, "wait": True, "validation": {"artifacts": artifacts([1, 2])}}
        )
        await until(lambda: len(receiver.taken) == 2)
        (kind, _, generated), (other, _, validated) = receiver.taken
        assert (kind, other) == ("generated", "validated")
        assert generated == {
            "public_key": "node-key",
            "block_hash": "abc",
            "block_height": 7,
            "node_id": 3,
            "artifacts": artifacts([1, 2]),
            "encoding": {"dtype": "f16", "k_dim": 12, "endian": "le"},
            "request_id": made["request_id"],
        }
        expected = {
            "public_key": "node-key",
            "block_hash": "abc",
            "block_height": 7,
            "node_id": 3,
            "request_id": judged.json()["request_id"],
        }
        expected |= {
            name: judged.json()[name]
            for name in ("n_total", "n_mismatch", "mismatch_nonces", "p_value", "fraud_detected")
        }
        assert {name: validated[name] for name in expected} == expected


async def test_no_engine_no_service() -> None:
    from fastapi import FastAPI
    from tests.plugin.poc.fake import serving

    from assay.plugin.poc.access import ApiKeys
    from assay.plugin.poc.routes import PocRoutes

    app = FastAPI()
    PocRoutes(PocSettings(), ApiKeys([]), "0.32.0").attach(app)
    async with serving(app) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        answer = await client.post("/api/v1/pow/init/generate", content=json.dumps(init_body()))
        assert answer.status_code == 503
        assert (await client.post("/api/v1/pow/stop")).status_code == 200


async def test_engines_that_answer_wrongly_are_faults() -> None:
    """Case 32: a short or torn answer is never a vector."""
    from assay.plugin.poc.engine import checked_vectors
    from assay.plugin.poc.failures import EngineFaultError

    whole = {"nonces": [1, 2], "vectors": b"\0" * 48, "finite": [True, True], "seconds": {}}
    assert checked_vectors([1, 2], 12, whole).finite == (True, True)
    for wrong in (
        {"vectors": b"\0" * 47},
        {"nonces": [2, 1]},
        {"finite": [True]},
        {"vectors": b""},
    ):
        with pytest.raises(EngineFaultError):
            checked_vectors([1, 2], 12, {**whole, **wrong})
    nan = checked_vectors([1, 2], 12, {**whole, "vectors": b"\xff" * 24 + b"\0" * 24})
    assert nan.finite == (False, True)  # whatever the worker said


def test_the_fake_is_an_engine() -> None:
    from assay.plugin.poc.engine import PocEngine

    engine: PocEngine = FakeEngine()
    assert not engine.errored
