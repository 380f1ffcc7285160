"""``/generate`` over all backends of a node: vectors and verdicts, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.node.pow.nodes import (
    POW,
    PowNode,
    Receiver,
    ask_for,
    check,
    pow_config,
    pow_node,
    until,
    until_it,
)
from tests.plugin.poc.fake import vector

from assay.poc.bodies import Identity


def job_body(receiver: Receiver | None = None, **changes: Any) -> dict[str, Any]:
    return ask_for(receiver, **{"nonces": [1, 4, 7], **changes})


def artifacts(body: dict[str, Any], nonces: list[int]) -> list[dict[str, Any]]:
    challenge = Identity.model_validate(body).challenge
    return [
        {
            "nonce": nonce,
            "vector_b64": base64.b64encode(
                vector(challenge, nonce).astype("<f2").tobytes()
            ).decode(),
        }
        for nonce in nonces
    ]


async def ended(node: PowNode, job_id: str) -> Any:
    async def ask() -> Any:
        return (await node.get(f"/generate/{job_id}")).json()

    return await until_it(ask, lambda answer: answer["status"] not in ("queued", "running"), job_id)


async def test_jobs_go_round_and_keep_their_ids(tmp_path: Path) -> None:
    async with pow_node(tmp_path) as node:
        ids = []
        for _ in range(4):
            answer = (await node.post("/generate", job_body())).json()
            assert (answer["status"], answer["queued_count"]) == ("queued", 3)
            ids.append(answer["request_id"])
        assert [int(one.partition(":")[0]) for one in ids] == node.ports * 2
        assert len(set(ids)) == 4
        for one in ids:
            result = await ended(node, one)
            assert (result["status"], result["request_id"]) == ("completed", one)
            assert result["artifacts"] == artifacts(job_body(), [1, 4, 7])
            assert result["encoding"] == {"dtype": "f16", "k_dim": 12, "endian": "le"}
        for unknown in ("1:abc", f"{node.ports[0]}:abc", f"{node.ports[0]}:..%2fstop", "abc"):
            assert (await node.get(f"/generate/{unknown}")).status_code == 404


async def test_waiting_for_vectors_and_for_a_verdict(tmp_path: Path) -> None:
    async with pow_node(tmp_path) as node:
        got = (await node.post("/generate", job_body(wait=True))).json()
        assert got["status"] == "completed"
        assert int(got["request_id"].partition(":")[0]) in node.ports
        check(got["artifacts"], {**job_body(), "node_count": 3}, 1)

        honest = artifacts(job_body(), [1, 4, 7])
        body = job_body(wait=True, validation={"artifacts": honest})
        verdict = (await node.post("/generate", body)).json()
        assert (verdict["n_total"], verdict["n_mismatch"]) == (3, 0)
        assert verdict["fraud_detected"] is False

        other = artifacts(job_body(block_hash="another"), [1, 4, 7])
        body = job_body(wait=True, validation={"artifacts": other})
        verdict = (await node.post("/generate", body)).json()
        assert verdict["mismatch_nonces"] == [1, 4, 7]
        assert verdict["fraud_detected"] is True


@pytest.mark.parametrize("wait", [False, True])
async def test_callbacks_carry_the_id_the_client_knows_f53(tmp_path: Path, wait: bool) -> None:
    async with Receiver().serving() as receiver, pow_node(tmp_path) as node:
        plain = job_body(receiver, wait=wait)
        checked = {**plain, "validation": {"artifacts": artifacts(plain, [1, 4, 7])}}
        first = (await node.post("/generate", plain)).json()["request_id"]
        second = (await node.post("/generate", checked)).json()["request_id"]
        await until(lambda: len(receiver.taken) >= 2, "both callbacks")
        found = {kind: body for kind, _, body in receiver.taken}
        assert found["generated"]["request_id"] == first
        assert found["generated"]["artifacts"] == artifacts(plain, [1, 4, 7])
        assert found["validated"]["request_id"] == second
        assert found["validated"]["fraud_detected"] is False
        assert found["validated"]["n_total"] == 3
        for body in found.values():
            assert (body["node_id"], body["block_hash"]) == (1, plain["block_hash"])
        assert len(receiver.taken) == 2


async def test_refusals_are_passed_on_f54(tmp_path: Path) -> None:
    async with pow_node(tmp_path) as node:
        empty = job_body(validation={"artifacts": artifacts(job_body(), [1, 4])})
        answer = await node.post("/generate", empty)
        assert answer.status_code == 400  # F54: a nonce without a vector to compare with
        many = await node.post("/generate", job_body(nonces=list(range(100_001))))
        assert many.status_code == 429
        assert "100000" in many.json()["detail"]
        other = job_body(params={"model": "another", "seq_len": 16})
        answer = await node.post("/generate", other)
        assert (answer.status_code, answer.json()["detail"]["error"]) == (409, "params mismatch")
        assert (await node.post("/generate", job_body(nonces=[]))).status_code == 400
        assert (await node.post("/generate", job_body(nonces=[2**32]))).status_code == 400
        for index in (0, 1):
            await node.tell(index, sleeping=True)
        assert (await node.post("/generate", job_body())).status_code == 409
        assert (await node.status())["status"] == "IDLE"


async def test_status_while_validating_and_a_client_that_goes_away_case_42(tmp_path: Path) -> None:
    """Case 42: the job of a client that is gone is called off on the backend."""
    async with pow_node(tmp_path) as node:
        for index in (0, 1):
            await node.tell(index, held=True)
        impatient = httpx.AsyncClient(base_url=str(node.http.base_url), trust_env=False)
        async with impatient:
            asking = asyncio.create_task(
                impatient.post(f"{POW}/generate", json=job_body(wait=True), timeout=None)
            )
            shown = await until_it(node.status, lambda s: s["status"] == "MIXED", "one validates")
            assert shown["status"] == "MIXED"
            await until_it(
                lambda: node.ask(0, "/jobs"), lambda jobs: "running" in jobs.values(), "it runs"
            )
            second = (await node.post("/generate", job_body())).json()["request_id"]
            assert (await node.status())["status"] == "VALIDATING"
            state = (await node.http.get("/api/v1/state")).json()
            assert state["poc_status"] == "VALIDATING"
            asking.cancel()
            await asyncio.wait({asking})
        jobs = await until_it(
            lambda: node.ask(0, "/jobs"), lambda jobs: "running" not in jobs.values(), "it ends"
        )
        assert list(jobs.values()) == ["cancelled"]
        for index in (0, 1):
            await node.tell(index, held=False)
        assert (await ended(node, second))["status"] == "completed"
        await until_it(node.status, lambda s: s["status"] == "IDLE", "nothing left to do")


async def test_stop_calls_jobs_off(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, pow_node(tmp_path) as node:
        for index in (0, 1):
            await node.tell(index, seconds=0.2)
        body = job_body(receiver, nonces=list(range(1, 3000, 3)))
        ids = [(await node.post("/generate", body)).json()["request_id"] for _ in range(2)]
        assert (await node.post("/stop")).status_code == 200
        for one in ids:
            assert (await ended(node, one))["status"] == "cancelled"
        assert (await node.status())["status"] == "IDLE"
        assert receiver.seen == []


async def test_a_job_outlives_its_backend(tmp_path: Path) -> None:
    """Another one takes it over; the client finds the result under the id it knows, and once."""
    async with Receiver().serving() as receiver, pow_node(tmp_path) as node:
        await node.tell(0, held=True)
        body = job_body(receiver)
        job_id = (await node.post("/generate", body)).json()["request_id"]
        assert job_id.startswith(f"{node.ports[0]}:")
        waiting = asyncio.create_task(node.post("/generate", {**job_body(), "wait": True}))
        second = await waiting  # goes to the other one
        assert second.json()["request_id"].startswith(f"{node.ports[1]}:")
        held = asyncio.create_task(node.post("/generate", {**job_body(), "wait": True}))
        await until_it(lambda: node.ask(0, "/jobs"), lambda jobs: len(jobs) == 2, "both are there")
        node.kill(0)
        result = await ended(node, job_id)
        assert (result["status"], result["request_id"]) == ("completed", job_id)
        assert result["artifacts"] == artifacts(body, [1, 4, 7])
        assert (await held).json()["artifacts"] == artifacts(body, [1, 4, 7])
        await until(lambda: receiver.taken, "its callback")
        assert [post["request_id"] for _, _, post in receiver.taken] == [job_id]


async def test_a_job_outlives_its_node(tmp_path: Path) -> None:
    config = pow_config(tmp_path)
    async with Receiver().serving() as receiver:
        body = job_body(receiver)
        async with pow_node(tmp_path, config=config) as node:
            for index in (0, 1):
                await node.tell(index, held=True)
            job_id = (await node.post("/generate", body)).json()["request_id"]
        assert receiver.seen == []
        async with pow_node(tmp_path, config=config) as node:
            result = await ended(node, job_id)
            assert result["artifacts"] == artifacts(body, [1, 4, 7])
            await until(lambda: receiver.taken, "its callback")
            assert [post["request_id"] for _, _, post in receiver.taken] == [job_id]
            # A client that was never told of a job asks again, and nothing else is begun.
            await asyncio.sleep(0.2)
            assert (await node.status())["status"] == "IDLE"
        assert len(receiver.taken) == 1
