"""Mining over all backends of a node: begun, shown, stopped. Real processes, real routes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from tests.node.pow.nodes import (
    POW,
    Receiver,
    artifacts_of,
    ask_for,
    check,
    classes_grown,
    pow_node,
    stopped,
    until_it,
)

STOPPED = {"status": "OK", "pow_status": {"status": "STOPPED"}}


@pytest.mark.parametrize("count", [2, 3])
async def test_every_backend_mines_a_class_of_its_own(tmp_path: Path, count: int) -> None:
    async with Receiver().serving() as receiver, pow_node(tmp_path, count) as node:
        body = ask_for(receiver)
        answer = await node.post("/init/generate", body)
        assert answer.status_code == 200
        assert answer.json() == {
            "status": "OK",
            "backends": count,
            "n_groups": count,
            "results": [
                {
                    "port": port,
                    "group_id": index,
                    "group_ids": [index],
                    "status": "OK",
                    "pow_status": {"status": "GENERATING"},
                }
                for index, port in enumerate(node.ports)
            ],
            "errors": [],
            "degraded": False,
            "pow_status": {"status": "GENERATING"},
        }
        await classes_grown(receiver, body, count)
        shown = await node.status()
        assert shown["status"] == "GENERATING"
        assert [one["config"]["group_id"] for one in shown["backends"]] == list(range(count))
        assert {one["config"]["n_groups"] for one in shown["backends"]} == {count}
        assert shown["round"]["classes"] == {
            str(port): [index] for index, port in enumerate(node.ports)
        }
        assert shown["stats"]["total_processed"] > 0
        state = (await node.http.get("/api/v1/state")).json()
        assert state["poc_status"] == "GENERATING"

        again = await node.post("/init/generate", body)
        assert (again.status_code, again.json()["detail"]) == (409, "Already generating")

        await stopped(node, receiver)
        ends = check(artifacts_of(receiver), body, count)
        assert all(ends)
        # What a receiver reads in every post is what the client asked for.
        for kind, _, post in receiver.taken:
            assert kind == "generated"
            assert {name: post[name] for name in ("block_hash", "public_key", "node_id")} == {
                name: body[name] for name in ("block_hash", "public_key", "node_id")
            }
            assert post["encoding"] == {"dtype": "f16", "k_dim": 12, "endian": "le"}


async def test_stop_is_everywhere_and_as_often_as_one_likes_f51(tmp_path: Path) -> None:
    async with pow_node(tmp_path) as node:
        idle = await node.post("/stop")
        assert (idle.status_code, idle.json()["pow_status"]) == (200, {"status": "STOPPED"})
        assert (await node.post("/init/generate", ask_for(None))).status_code == 200
        first, second = await asyncio.gather(node.post("/stop"), node.post("/stop"))
        for answer in (first, second):
            assert answer.json() == {
                "status": "OK",
                "backends": 2,
                "results": [{"port": port, **STOPPED} for port in node.ports],
                "errors": [],
                "pow_status": {"status": "STOPPED"},
            }
        shown = await node.status()
        assert shown["status"] == "IDLE"
        assert shown["round"] is None
        assert shown["stats"] is None
        # The gate is open again: chat is answered.
        chat = await node.http.post("/v1/completions", json={"model": "model", "prompt": "a"})
        assert chat.status_code == 200
        assert (await node.post("/init/generate", ask_for(None))).status_code == 200


async def test_without_a_backend(tmp_path: Path) -> None:
    async with pow_node(tmp_path, up=False) as node:
        for path, body in (
            ("/init/generate", ask_for(None)),
            ("/generate", {**ask_for(None), "nonces": [1]}),
        ):
            answer = await node.post(path, body)
            assert (answer.status_code, answer.json()) == (
                503,
                {"detail": "No vLLM backend available"},
            )
        assert (await node.status())["status"] == "NO_BACKENDS"
        assert (await node.http.get("/api/v1/state")).json()["poc_status"] == "NO_BACKENDS"
        assert (await node.post("/stop")).status_code == 200


async def test_status_says_mixed_when_backends_do_not_do_the_same(tmp_path: Path) -> None:
    async with pow_node(tmp_path) as node:
        own = {**ask_for(None), "group_id": 0, "n_groups": 1}
        url = f"{node.backend(0).base_url}/api/v1/pow/init/generate"
        assert (await node.node.http.post(url, json=own)).status_code == 200
        shown = await node.status()
        assert shown["status"] == "MIXED"
        assert [one["status"] for one in shown["backends"]] == ["GENERATING", "IDLE"]
        assert (await node.http.get("/api/v1/state")).json()["poc_status"] == "MIXED"
        # What somebody else asked a backend for is left alone, by all but a stop.
        await asyncio.sleep(0.3)
        assert (await node.status())["status"] == "MIXED"
        await node.post("/stop")
        assert (await node.status())["status"] == "IDLE"


async def test_bodies_are_read_as_clients_send_them(tmp_path: Path) -> None:
    async with pow_node(tmp_path) as node:
        for wrong, field in (
            ({"node_count": 0}, "node_count"),
            ({"node_id": 3}, "node_id"),
            ({"params": {"model": "model", "seq_len": 16, "more": 1}}, "params.more"),
            ({"block_height": "7"}, "block_height"),
        ):
            answer = await node.post("/init/generate", ask_for(None, **wrong))
            assert answer.status_code == 400
            assert answer.json()["detail"].startswith(field), answer.text
        assert (await node.http.post(f"{POW}/init/generate", content=b"{")).status_code == 400
        # A key nobody knows passes; groups and shares are the node's own affair.
        body = ask_for(None, group_id=5, n_groups=9, epoch=3, batch_size=4)
        assert (await node.post("/init/generate", body)).status_code == 200
        configs = [one["config"] for one in (await node.status())["backends"]]
        assert [(c["group_id"], c["n_groups"], c["batch_size"]) for c in configs] == [
            (0, 2, 4),
            (1, 2, 4),
        ]


async def test_what_all_refuse_alike_is_the_answer_case_44(tmp_path: Path) -> None:
    """Case 44: a sleeping model is a clear 409, and mines once it is awake."""
    async with pow_node(tmp_path) as node:
        for index in (0, 1):
            await node.tell(index, sleeping=True)
        answer = await node.post("/init/generate", ask_for(None))
        assert answer.status_code == 409
        detail = answer.json()["detail"]
        assert "asleep" in detail["error"] or "sleep" in detail["error"]
        assert [one["port"] for one in detail["errors"]] == node.ports
        for index in (0, 1):
            await node.tell(index, sleeping=False)
        assert (await node.post("/init/generate", ask_for(None))).status_code == 200

        await node.post("/stop")
        other = ask_for(None, params={"model": "another", "seq_len": 16})
        answer = await node.post("/init/generate", other)
        assert answer.status_code == 409
        assert answer.json()["detail"]["error"] == "params mismatch"
        assert answer.json()["detail"]["deployed"]["model"] == "model"


async def test_all_failed_is_502(tmp_path: Path) -> None:
    async with pow_node(tmp_path) as node:
        for index in (0, 1):
            await node.tell(index, refuse={"init": [503, "the engine is dead"]})
        answer = await node.post("/init/generate", ask_for(None))
        assert answer.status_code == 502
        assert answer.json()["detail"]["errors"] == [
            {"port": port, "status_code": 503, "error": "the engine is dead"} for port in node.ports
        ]
        assert (await node.status())["round"] is None


async def test_a_receiver_that_may_not_be_named_is_refused(tmp_path: Path) -> None:
    async with pow_node(tmp_path) as node:
        for url in ("http://192.0.2.1:9/x", "ftp://127.0.0.1/x", "http://u:p@127.0.0.1/x"):
            for path, more in (("/init/generate", {}), ("/generate", {"nonces": [1]})):
                answer = await node.post(path, ask_for(None, url=url, **more))
                assert answer.status_code == 400
                assert answer.json()["detail"].startswith("url:")
        assert (await node.status())["status"] == "IDLE"


async def test_keys_and_secret_addresses(tmp_path: Path) -> None:
    """The control key opens every route but the inbox, which only the secret of a worker opens."""
    key = "control-key-of-the-test"
    async with (
        Receiver().serving() as receiver,
        pow_node(tmp_path, keys__control=key) as node,
        httpx.AsyncClient(base_url=str(node.http.base_url), trust_env=False) as stranger,
    ):
        for method, path in (
            ("POST", "/init/generate"),
            ("POST", "/generate"),
            ("GET", "/generate/1:a"),
            ("GET", "/status"),
            ("POST", "/stop"),
        ):
            answer = await stranger.request(method, POW + path, content=b"{}")
            assert answer.status_code == 401, path
        for token in ("0" * 32, "x", "..%2f"):
            for kind in ("generated", "validated"):
                guess = await stranger.post(
                    f"{POW}/callbacks/{token}/{kind}", content=b'{"artifacts": []}'
                )
                assert guess.status_code == 404
        body = ask_for(receiver)
        assert (await node.post("/init/generate", body)).status_code == 200
        await classes_grown(receiver, body, 2)
        # Nothing that a client is shown tells where backends call back.
        shown = json.dumps(await node.status())
        assert f"{POW}/callbacks" not in shown
        assert receiver.url in shown
        status = await node.ask(0, "/api/v1/pow/status")
        secret = status["config"]["url"].rpartition("/")[2]
        assert secret not in shown
        # A stranger who knew it could add nothing that is not this node's.
        foreign = {"artifacts": [{"nonce": 0, "vector_b64": "AAAA"}]}
        known = await stranger.post(f"{POW}/callbacks/{secret}/generated", json=foreign)
        assert known.json() == {"kept": 0, "repeated": 0}
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2)


async def test_a_backend_that_a_stop_overtook_is_stopped(tmp_path: Path) -> None:
    """A stop does not wait for a backend that does not answer, and none mines after it."""
    async with pow_node(tmp_path) as node:
        await node.tell(1, hang=["init"])
        beginning = asyncio.create_task(node.post("/init/generate", ask_for(None)))
        await until_it(lambda: node.ask(0, "/api/v1/pow/status"), lambda s: s["status"] != "IDLE")
        busy = await node.post("/init/generate", ask_for(None))
        assert (busy.status_code, busy.json()["detail"]) == (409, "Already generating")
        assert (await node.post("/stop")).status_code == 200
        answer = await beginning
        assert answer.status_code == 409
        assert "stopped" in answer.json()["detail"]
        assert (await node.status())["status"] == "IDLE"
        # The request that was called off is still in there; now the backend gets to it.
        await node.tell(1, hang=[], mute=["init"])
        await until_it(node.status, lambda s: s["status"] == "IDLE", "nobody mines")
        await node.tell(1, mute=[])
        assert (await node.post("/init/generate", ask_for(None))).status_code == 200


async def test_an_init_whose_client_goes_away_goes_on(tmp_path: Path) -> None:
    """As on an engine: whoever asks again is told that mining is under way, and can stop it."""
    async with Receiver().serving() as receiver, pow_node(tmp_path) as node:
        await node.tell(1, hang=["init"])
        body = ask_for(receiver)
        async with httpx.AsyncClient(base_url=node.http.base_url, trust_env=False) as gone:
            asking = asyncio.create_task(gone.post(f"{POW}/init/generate", json=body, timeout=None))
            await until_it(
                lambda: node.ask(0, "/api/v1/pow/status"), lambda s: s["status"] == "GENERATING"
            )
            asking.cancel()
            await asyncio.wait({asking})
        assert (await node.post("/init/generate", body)).status_code == 409
        await node.tell(1, hang=[])
        await until_it(node.status, lambda s: s["status"] == "GENERATING", "both mine")
        await classes_grown(receiver, body, 2)
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2)
