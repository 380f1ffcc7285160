"""Faults 38 to 56 and public reports, where the node itself could have them (docs/faults.md, docs/cases.md).

What a fault looks like at the engine is held with the engine's part; here a stand-in has it, and the
node must neither make it worse nor believe it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Route as StarletteRoute
from tests.node.helpers import HOST, SOON, driven, stand_in_config, until
from tests.node.process import NodeProcess, wait

from assay.node.app import PARTS, create_app
from assay.node.backend import BackendState
from assay.node.overview import Overviews
from assay.node.part import Part

POW = "/api/v1/inference/pow"
IDENTITY = {
    "block_hash": "b",
    "block_height": 1,
    "public_key": "key",
    "node_id": 0,
    "node_count": 1,
    "params": {"model": "model", "seq_len": 64},
}
COMPLETION = {"prompt": "a", "max_tokens": 1}


# --- faults ---------------------------------------------------------------------------------------


async def test_f42_every_part_is_begun_and_ended_by_the_lifespan(tmp_path: Path) -> None:
    """Also when one of them cannot begin: those before it end."""
    seen: list[str] = []

    def named(name: str, *, fails: bool = False) -> Any:
        @asynccontextmanager
        async def running() -> AsyncIterator[None]:
            seen.append(f"{name} begins")
            if fails:
                raise RuntimeError("cannot begin")
            yield
            seen.append(f"{name} ends")

        return lambda node: Part([], running)

    app = create_app(stand_in_config(tmp_path), parts=[named("a"), named("b")])
    async with app.router.lifespan_context(app):
        assert seen == ["a begins", "b begins"]
    assert seen[2:] == ["b ends", "a ends"]

    seen.clear()
    app = create_app(stand_in_config(tmp_path), parts=[named("a"), named("b", fails=True)])
    with pytest.raises(RuntimeError, match="cannot begin"):
        async with app.router.lifespan_context(app):
            pass
    assert seen == ["a begins", "b begins"]
    assert app.state.node.draining.is_set(), "the node itself has ended"


async def test_f43_nothing_is_added_to_an_app_that_serves(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        transport: Any = driver.http._transport
        app = transport.app
        before = (len(app.routes), len(app.user_middleware))
        assert (await driver.up()).status_code == 200
        for path in ("/", "/health", "/metrics", "/api/v1/state", f"{POW}/status"):
            assert (await driver.http.get(path)).status_code == 200
        assert (len(app.routes), len(app.user_middleware)) == before


def test_f44_routes_are_plain_and_there_once(tmp_path: Path) -> None:
    app = create_app(stand_in_config(tmp_path))
    plain = [route for route in app.routes if isinstance(route, APIRoute | StarletteRoute)]
    assert len(plain) == len(app.routes), "no router inside a router"
    pairs = [(route.path, method) for route in plain for method in (route.methods or ()) - {"HEAD"}]
    assert sorted(pairs) == sorted(set(pairs))
    again = create_app(stand_in_config(tmp_path), parts=PARTS)
    assert len(again.routes) == len(app.routes)


def test_f45_the_node_loads_no_engine_so_nothing_is_initialised_before_its_backends() -> None:
    """Backends are new programs, not forks; and what was never imported cannot be half set up."""
    code = (
        "import sys, assay.node.run\n"
        "print([m for m in ('torch', 'vllm', 'ray', 'assay.plugin') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=SOON
    )
    assert found.stdout.strip() == "[]"


async def test_f48_a_closed_gates_answer_reaches_the_client_as_it_is(tmp_path: Path) -> None:
    """503 with Retry-After of one second, once; and the node takes the backend for neither dead
    nor hung."""
    async with driven(stand_in_config(tmp_path)) as driver:
        assert (await driver.up()).status_code == 200
        for backend in driver.backends:
            await driver.tell(backend, gate=True)
        answer = await driver.http.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 503
        assert answer.headers.get_list("retry-after") == ["1"]
        assert answer.json() == {"error": {"message": "mining", "code": 503}}
        assert [backend.state for backend in driver.backends] == [BackendState.READY] * 2


async def test_f55_a_validation_no_backend_could_make_is_no_verdict(tmp_path: Path) -> None:
    """Each is asked once; the last one's own refusal is the answer."""
    body = {
        **IDENTITY,
        "nonces": [1],
        "validation": {"artifacts": [{"nonce": 1, "vector_b64": ""}]},
    }
    async with driven(stand_in_config(tmp_path)) as driver:
        assert (await driver.up()).status_code == 200
        for backend in driver.backends:
            await driver.tell(backend, refuses_to_mine=True)
        answer = await driver.http.post(f"{POW}/generate", json=body)
        assert answer.status_code == 503
        assert answer.json() == {"detail": "this engine cannot mine"}
        for backend in driver.backends:
            asked = [one["path"] for one in await driver.seen(backend)]
            assert asked.count("/api/v1/pow/generate") == 1


async def test_f56_the_node_sets_no_batch_size(tmp_path: Path) -> None:
    """A client that omits it leaves the choice to the engine, which knows its device."""
    async with driven(stand_in_config(tmp_path)) as driver:
        assert (await driver.up()).status_code == 200
        body = {**IDENTITY, "url": "http://127.0.0.1:9/callback"}
        assert (await driver.http.post(f"{POW}/init/generate", json=body)).status_code == 200
        for sent in ({"nonces": [1]}, {"nonces": [1], "batch_size": 512}):
            answer = await driver.http.post(f"{POW}/generate", json={**IDENTITY, **sent})
            assert answer.status_code == 200, answer.text
        bodies = [
            one["body"]
            for backend in driver.backends
            for one in await driver.seen(backend)
            if one["path"].endswith("generate")
        ]
        assert len(bodies) == 4
        assert [one["batch_size"] for one in bodies if "batch_size" in one] == [512]


# --- public reports -------------------------------------------------------------------------------


async def test_case_30_a_busy_backend_is_shown_as_busy_and_left_alone(tmp_path: Path) -> None:
    """A batch of proof of compute that is late is no death: nothing is restarted before hung_s."""
    async with driven(stand_in_config(tmp_path)) as driver:
        assert (await driver.up()).status_code == 200
        busy, dead = driver.backends
        await driver.tell(busy, busy_seconds=61.0)
        await driver.asked_again(busy, 5)
        [shown] = [
            one
            for one in (await driver.get(f"{POW}/status"))["backends"]
            if one["port"] == busy.port
        ]
        assert (shown["busy"], shown["busy_seconds"]) == (True, 61.0)
        view = (await Overviews(driver.node).now()).backends[0]
        assert (view.state, view.gate, view.restarts) == ("ready", "closed", 0)
        # The very next thing: one that is dead is told apart from it.
        await driver.tell(dead, health=500)
        await until(lambda: dead.state is BackendState.UNHEALTHY, "the dead one is found")
        await driver.asked_again(busy, 1)
        assert (busy.state, busy.generation, busy.restarts) == (BackendState.READY, 1, 0)


async def test_case_32_a_torn_answer_is_an_error_and_no_data(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        assert (await driver.up()).status_code == 200
        for backend in driver.backends:
            await driver.tell(backend, torn=True)
        answer = await driver.http.post(f"{POW}/generate", json={**IDENTITY, "nonces": [1, 2]})
        assert answer.status_code == 502, answer.text
        answer = await driver.http.post(f"{POW}/init/generate", json=IDENTITY)
        assert answer.status_code == 502, answer.text
        status = await driver.get(f"{POW}/status")
        assert (status["stats"], status["round"]) == (None, None)
        assert (await driver.http.get("/api/v1/state")).status_code == 200
        views = (await Overviews(driver.node).now()).backends
        assert [(view.poc, view.nonces_per_s) for view in views] == [("UNKNOWN", None)] * 2
        assert [backend.state for backend in driver.backends] == [BackendState.READY] * 2


def running_requests(node: NodeProcess, port: int) -> float:
    page = node.http.get(f"http://{HOST}:{port}/metrics").text
    [line] = [one for one in page.splitlines() if one.startswith("vllm:num_requests_running{")]
    return float(line.rpartition(" ")[2])


def test_case_42_a_client_that_closes_its_socket_leaves_no_request_running(tmp_path: Path) -> None:
    """Over real sockets and processes: the engine's own count, and the node's, go back to 0."""
    with NodeProcess(tmp_path) as node:
        assert node.up().status_code == 200
        ports = [backend["port"] for backend in node.status()["backends"]]
        body = json.dumps({"stream": True, "max_tokens": 10_000_000, "pause": 0.01}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: node\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((HOST, node.port), timeout=SOON) as client:
            client.sendall(head.encode() + body)
            received = b""
            while b"data: " not in received:
                received += client.recv(4096)
            assert sum(running_requests(node, port) for port in ports) == 1
            assert sum(b["in_flight"] for b in node.status()["backends"]) == 1
        wait(
            lambda: sum(running_requests(node, port) for port in ports) == 0,
            "the engine has no request left",
        )
        wait(
            lambda: sum(b["in_flight"] for b in node.status()["backends"]) == 0,
            "the node counts none either",
        )
        assert [b["restarts"] for b in node.status()["backends"]] == [0, 0]


async def test_case_44_a_sleeping_backend_refuses_and_is_not_taken_for_hung(
    tmp_path: Path,
) -> None:
    """Its gauge shows a request, no token moves, for many times hung_s; the refusal passes as it is."""
    config = stand_in_config(tmp_path, backends__hung_s=0.3, backends__count=1)
    async with driven(config) as driver:
        assert (await driver.up()).status_code == 200
        [backend] = driver.backends
        await driver.tell(backend, asleep=True, stale_gauge=1)
        await driver.asked_again(backend, 40)  # one look every 0.05 s at most
        answer = await driver.http.post("/v1/completions", json=COMPLETION)
        assert answer.status_code == 409
        assert answer.json()["error"]["message"] == "the engine sleeps; wake it"
        assert (backend.state, backend.generation) == (BackendState.READY, 1)
        await driver.tell(backend, asleep=False, stale_gauge=0)
        assert (await driver.http.post("/v1/completions", json=COMPLETION)).status_code == 200
