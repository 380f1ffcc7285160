"""The routes on a real vLLM server (V1, tiny model): real workers, real abort, real shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.plugin.poc.fake import Receiver, generate_body, init_body, until
from tests.support import specs
from tests.support.server import Server
from typer.testing import CliRunner

from assay.cli.poc import app as poc_app
from assay.poc import decode_vector, encode_vector

pytestmark = pytest.mark.engine

CHAT = {
    "model": "model",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0,
    "ignore_eos": True,
    "logprobs": True,
    "top_logprobs": 5,
}


@pytest.fixture(scope="module")
def server(start_server: Any, tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Exclusive policy, development routes for /sleep, an outbox of its own."""
    store = tmp_path_factory.mktemp("poc") / "outbox.sqlite3"
    spec = specs.v1(tiny_path, plugin=True, max_model_len=specs.TINY_MODEL_LENGTH)
    env = {
        **spec.env,
        "VLLM_SERVER_DEV_MODE": "1",
        "POC_STORE": str(store),
        "POC_CALLBACK_INTERVAL_SEC": "0.2",
    }
    return start_server("v1-poc", replace(spec, env=env))


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=120) as client:
        yield client
        await post(client, "/stop")


async def post(client: httpx.AsyncClient, path: str, body: Any = None) -> httpx.Response:
    content = None if body is None else json.dumps(body).encode()
    return await client.post("/api/v1/pow" + path, content=content)


async def chat(client: httpx.AsyncClient, **changes: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json={**CHAT, "max_tokens": 20, **changes})


async def metric(client: httpx.AsyncClient, name: str) -> float:
    """The first sample of a metric without or with labels."""
    for line in (await client.get("/metrics")).text.splitlines():
        if line.startswith((f"{name}{{", f"{name} ")):
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no metric {name}")


async def test_mining_aborts_chat_answers_503_and_leaves_chat_as_it_was(
    http: httpx.AsyncClient,
) -> None:
    """F35, F36, F37, F49, F50, case 39, case 49."""
    before = (await chat(http)).json()["choices"]
    async with Receiver().serving() as receiver:
        requests = [asyncio.create_task(chat(http, max_tokens=900)) for _ in range(3)]
        requests.append(asyncio.create_task(chat(http, max_tokens=900, n=2, temperature=1)))
        async with asyncio.timeout(60):
            while await metric(http, "vllm:num_requests_running") < 5:
                assert not any(request.done() for request in requests)
        assert (await post(http, "/init/generate", init_body(url=receiver.url))).status_code == 200
        for answer in await asyncio.gather(*requests):
            assert answer.status_code == 200
            reasons = {choice["finish_reason"] for choice in answer.json()["choices"]}
            assert reasons == {"abort"}
        refused = await chat(http)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        await until(lambda: len(receiver.nonces()) > 100, 60)
        status = (await http.get("/api/v1/pow/status")).json()
        assert status["status"] == "GENERATING"
        assert status["stats"]["total_failed"] == 0
        await post(http, "/stop")
        done = (await chat(http)).json()["choices"]
        assert done == before
        async with asyncio.timeout(60):
            while await metric(http, "assay_poc_artifacts_waiting"):
                assert len(receiver.nonces()) > 100
        assert sorted(receiver.nonces()) == list(range(len(receiver.nonces())))


async def test_shares_move_while_the_engine_mines(http: httpx.AsyncClient) -> None:
    """Real workers: released at an exact position, the next class taken on, vectors of each."""
    async with Receiver().serving() as receiver:
        body = init_body(
            n_groups=3, batch_size=5, url=receiver.url, shares=[{"group_id": 0}, {"group_id": 1}]
        )
        assert (await post(http, "/init/generate", body)).status_code == 200
        await until(lambda: len(receiver.nonces()) > 20)
        ranges = [{"group_id": 2, "start": 7, "stop": 30}]
        answer = await post(
            http, "/shares", {"url": receiver.url, "release": [0, 1], "add": ranges}
        )
        assert answer.status_code == 200, answer.text
        released = {entry["group_id"]: entry["position"] for entry in answer.json()["released"]}
        mined = [
            group + 3 * position
            for group, start, stop in ((0, 0, released[0]), (1, 0, released[1]), (2, 7, 30))
            for position in range(start, stop)
        ]
        await until(lambda: len(receiver.nonces()) >= len(mined))
        status = (await http.get("/api/v1/pow/status")).json()
        assert status["status"] == "GENERATING"
        assert status["config"]["shares"] == []
        assert (await chat(http)).status_code == 503
        await post(http, "/stop")
        assert sorted(receiver.nonces()) == sorted(mined)
        last = [entry for _, _, taken in receiver.taken for entry in taken["artifacts"]][-1]
        again = await post(http, "/generate", generate_body([last["nonce"]], wait=True))
        mine, theirs = (
            decode_vector(text, 12)
            for text in (last["vector_b64"], again.json()["artifacts"][0]["vector_b64"])
        )
        assert np.linalg.norm(mine - theirs) < 1e-2


async def test_generate_right_after_init_is_queued_not_called_asleep(
    http: httpx.AsyncClient,
) -> None:
    """Our own abort pauses the scheduler for a moment; nobody may take that for sleep."""
    for _ in range(5):
        assert (await post(http, "/init/generate", init_body())).status_code == 200
        assert (await post(http, "/generate", generate_body([1]))).status_code == 200
        await post(http, "/stop")


async def test_vectors_validate_against_themselves_and_not_against_another_key(
    http: httpx.AsyncClient,
) -> None:
    nonces = list(range(40))
    made = (await post(http, "/generate", generate_body(nonces, wait=True))).json()
    assert made["profile"]["runner"] == "v1"
    loose = {"dist_threshold": 0.1, "p_mismatch": 0.05, "p_value_threshold": 0.01}
    for key, fraud in (("node-key", False), ("another-key", True)):
        body = generate_body(
            nonces,
            wait=True,
            public_key=key,
            batch_size=7,
            validation={"artifacts": made["artifacts"], "profile": made["profile"]},
            stat_test=loose,
        )
        verdict = (await post(http, "/generate", body)).json()
        assert verdict["n_total"] == 40
        assert verdict["fraud_detected"] is fraud, verdict["mean_distance"]
        assert verdict["verdict"] == ("fail" if fraud else "pass")


async def test_the_stronger_seed_gives_other_vectors(http: httpx.AsyncClient) -> None:
    """F26: the flag reaches the forward."""
    plain = (await post(http, "/generate", generate_body([1], wait=True))).json()
    body = generate_body([1], wait=True, poc_stronger_rng=True)
    strong = (await post(http, "/generate", body)).json()
    assert plain["artifacts"] != strong["artifacts"]


async def test_case_44_asleep_refused_awake_served(http: httpx.AsyncClient) -> None:
    assert (await post(http, "/init/generate", init_body())).status_code == 200
    assert (await http.post("/sleep?level=0")).status_code == 409
    await post(http, "/stop")
    assert (await http.post("/sleep?level=0")).status_code == 200
    try:
        for path, body in (
            ("/init/generate", init_body()),
            ("/generate", generate_body([1], wait=True)),
        ):
            assert (await post(http, path, body)).status_code == 409
    finally:
        await http.post("/wake_up")
    assert (await post(http, "/generate", generate_body([1], wait=True))).status_code == 200
    assert (await chat(http)).status_code == 200


async def test_f44_metrics_name_routes_and_show_poc(http: httpx.AsyncClient) -> None:
    await post(http, "/generate", generate_body([1, 2], wait=True))
    text = (await http.get("/metrics")).text
    assert 'handler="/api/v1/pow/generate"' in text
    assert await metric(http, "assay_poc_vectors_computed_total") >= 2
    for part in ("inputs", "metadata", "forward", "projection"):
        assert f'assay_poc_forward_seconds_total{{part="{part}"}}' in text
    for name in ("queued_nonces", "gate_closed", "artifacts_waiting"):
        assert f"assay_poc_{name} 0.0" in text


async def test_f52_versions(http: httpx.AsyncClient) -> None:
    versions = (await http.get("/api/v1/pow/versions")).json()
    assert versions["poc_validation_inference"] is True
    assert versions["vllm_version"].startswith("0.")


async def test_over_the_token_budget_is_refused_and_the_engine_lives(
    http: httpx.AsyncClient,
) -> None:
    """Case 49: an undersized max_num_batched_tokens."""
    params = {"model": "model", "seq_len": 1024}
    answer = await post(http, "/init/generate", init_body(params=params, batch_size=32))
    assert answer.status_code == 400
    assert "32 x 1024 = 32768 tokens" in answer.json()["detail"]
    assert (await post(http, "/generate", generate_body([1], wait=True))).status_code == 200


def test_the_commands_make_vectors_and_judge_them(server: Server, tmp_path: Path) -> None:
    """``assay poc generate`` and ``validate``: honest passes, another key's vectors fail."""
    mine, other = tmp_path / "mine.json", tmp_path / "other.json"
    challenge = ["--block-hash", "block", "--seq-len", "32", "--nonces", "0-19,40"]
    for path, key in ((mine, "key"), (other, "other-key")):
        made = run_poc(
            "generate", "--server", server.url, "-o", str(path), "--public-key", key, *challenge
        )
        assert made.exit_code == 0, made.output
    content = json.loads(mine.read_text())
    assert [artifact["nonce"] for artifact in content["artifacts"]] == [*range(20), 40]
    assert content["profile"]["runner"] == "v1"
    honest = run_poc("validate", str(mine), "--server", server.url, "--json")
    assert (honest.exit_code, json.loads(honest.output)["n_mismatch"]) == (0, 0)
    # The same vectors claimed for another key: nobody's.
    content["public_key"] = "other-key"
    mine.write_text(json.dumps(content))
    forged = run_poc("validate", str(mine), "--server", server.url, "--json")
    verdict = json.loads(forged.output)
    assert (forged.exit_code, verdict["verdict"], verdict["n_total"]) == (2, "fail", 21)
    assert run_poc("compare", str(mine), str(other), "--json").exit_code == 2


def test_a_profile_judges_what_the_server_recomputes(server: Server, tmp_path: Path) -> None:
    """``calibrate`` on this engine and one a little off, then ``validate --profile`` by it."""
    mine, off, profile = (tmp_path / name for name in ("mine.json", "off.json", "profile.json"))
    challenge = ["--block-hash", "block", "--public-key", "key", "--seq-len", "16"]
    made = run_poc(
        *("generate", "--server", server.url, "-o", str(mine), "--nonces", "0-119", *challenge)
    )
    assert made.exit_code == 0, made.output
    content = json.loads(mine.read_text())
    content["profile"]["hardware"] = "another kind"
    rng = np.random.default_rng(0)
    for artifact in content["artifacts"]:
        vector = decode_vector(artifact["vector_b64"]) + 0.01 * rng.normal(size=12)
        artifact["vector_b64"] = encode_vector(vector / np.linalg.norm(vector))
    off.write_text(json.dumps(content))
    calibrated = run_poc("calibrate", str(mine), str(off), "-o", str(profile), "--json")
    assert json.loads(calibrated.output)["new"] == 1
    arguments = ["--server", server.url, "--profile", str(profile), "--json"]
    honest = run_poc("validate", str(off), *arguments)
    body = json.loads(honest.output)
    assert (honest.exit_code, body["verdict"], body["basis"]) == (0, "pass", "pair")
    off.write_text(json.dumps({**content, "public_key": "other-key"}))
    forged = run_poc("validate", str(off), *arguments)
    assert (forged.exit_code, json.loads(forged.output)["verdict"]) == (2, "fail")


async def test_f42_shutdown_ends_mining_waiters_and_the_server(server: Server) -> None:
    """Last: it stops the server of this module."""
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=60) as client:
        assert (await post(client, "/init/generate", init_body())).status_code == 200
        waiter = asyncio.create_task(post(client, "/generate", generate_body([1], wait=True)))
        await asyncio.sleep(0.3)
        assert not waiter.done()
        os.kill(server.pid, signal.SIGINT)
        await until(server.exited, 30)
        with contextlib.suppress(httpx.TransportError):  # the connection may go with the server
            assert (await waiter).status_code == 503
    log = server.log_text()
    assert "Application shutdown complete" in log
    # Stock vLLM ends its engine first, and its output handler may find that out and print it.
    stock = "[async_llm.py:"
    assert not [line for line in log.splitlines() if "Traceback" in line and stock not in line]
    assert "was never awaited" not in log


def run_poc(*arguments: str) -> Any:
    return CliRunner().invoke(poc_app, list(arguments))
