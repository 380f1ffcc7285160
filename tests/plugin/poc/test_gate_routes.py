"""The gate against the routes vLLM really has: what a new vLLM adds is closed by default."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute
from vllm import envs
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.serve.middleware.authenticate import AuthenticationMiddleware
from vllm.tasks import FRONTEND_TASKS, GENERATION_TASKS, POOLING_TASKS
from vllm.utils.argparse_utils import FlexibleArgumentParser

from assay.plugin.endpoint import AssayEndpoints
from assay.plugin.poc.gate import MINING, GateMiddleware
from assay.plugin.poc.gated_routes import (
    HARMLESS,
    HARMLESS_PATTERNS,
    TAKES_THE_DEVICE_AWAY,
    generates,
    takes_the_device_away,
)

KEY = "the-key"
MUST_BE_CLOSED = {
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/inference/v1/generate",
    "/generative_scoring",
    "/invocations",
    "/classify",
    "/v1/embeddings",
    "/v2/embed",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
}
"""Routes known to generate or to pool; the gate's own list is "everything but"."""
NOT_IN_EVERY_APP = {"/start_profile", "/stop_profile"}


@pytest.fixture(scope="module")
def app(tiny_path: Path) -> Iterator[FastAPI]:
    """vLLM's own app with every task, the development routes and this plugin."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vLLM's own, while it builds
        patch.setenv("VLLM_SERVER_DEV_MODE", "1")
        patch.setenv("VLLM_PLUGINS", "assay,assay_endpoints")
        parser = make_arg_parser(FlexibleArgumentParser())
        args = parser.parse_args(["--model", str(tiny_path), "--api-key", KEY])
        args.enable_fault_tolerance = True
        config = AsyncEngineArgs.from_cli_args(args).create_model_config()
        tasks = (*GENERATION_TASKS, *POOLING_TASKS, *FRONTEND_TASKS)
        assert envs.VLLM_SERVER_DEV_MODE
        built = build_app(args, tasks, config)
    yield built
    (plugin,) = built.state.endpoint_plugins
    asyncio.run(plugin._poc.close())


def endpoints(app: FastAPI) -> list[tuple[str, str]]:
    """(method, path) of every route that is not a plain read."""
    found = []
    for route in app.routes:
        if isinstance(route, APIWebSocketRoute):
            found.append(("WEBSOCKET", route.path))
        elif isinstance(route, APIRoute):
            found += [(method, route.path) for method in route.methods - {"GET", "HEAD"}]
    return found


def gate_of(app: FastAPI):
    (plugin,) = app.state.endpoint_plugins
    assert isinstance(plugin, AssayEndpoints)
    return plugin._poc._gate


def test_every_route_is_closed_or_listed(app: FastAPI) -> None:
    """A route that this test does not know is closed; look at it before it is listed."""
    paths = endpoints(app)
    assert len(paths) > 40
    open_routes = {path for method, path in paths if not generates(method, path)}
    listed = HARMLESS | TAKES_THE_DEVICE_AWAY
    for path in open_routes - listed:
        assert any(pattern.fullmatch(path) for pattern in HARMLESS_PATTERNS), path
    closed = {path for method, path in paths if generates(method, path)}
    assert closed >= MUST_BE_CLOSED
    assert ("WEBSOCKET", "/v1/realtime") in paths
    assert generates("WEBSOCKET", "/v1/realtime")


def test_the_lists_hold_real_routes(app: FastAPI) -> None:
    real = {path for _, path in endpoints(app)}
    assert HARMLESS - real == NOT_IN_EVERY_APP
    assert real >= TAKES_THE_DEVICE_AWAY


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/V1/chat/completions",
        "/v1/chat/completions/render/",
        "/tokenize/",
        "/api/v1/pow",
        "/api/v1/pow/../../v1/completions/x/..",
        "/nothing",
    ],
)
def test_another_spelling_of_a_path_is_closed(path: str) -> None:
    closed = generates("POST", path)
    assert closed or path.startswith("/api/v1/pow/")  # Starlette does not resolve "..": 404


async def test_every_generating_route_answers_503_while_mining(app: FastAPI) -> None:
    transport = httpx.ASGITransport(app)
    gate = gate_of(app)
    gate.close()
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            for method, path in endpoints(app):
                if method == "WEBSOCKET" or not generates(method, path):
                    continue
                filled = re.sub(r"\{[^}]*\}", "x", path)
                answer = await client.request(
                    method, filled, headers={"Authorization": f"Bearer {KEY}"}
                )
                assert answer.status_code == 503, path
                assert answer.headers["Retry-After"] == "1"
                assert answer.json() == {
                    "error": {"message": MINING, "type": "service_unavailable", "code": 503}
                }
            # vLLM's key check comes before the gate, and other routes stay open.
            assert (await client.post("/v1/completions")).status_code == 401
            assert (await client.get("/version")).status_code == 200
    finally:
        gate.open()


async def test_a_websocket_is_closed_with_try_again(app: FastAPI) -> None:
    sent = []

    async def receive() -> dict[str, str]:
        return {"type": "websocket.connect"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def inner(*_: object) -> None:
        raise AssertionError("the gate let it through")

    gate = gate_of(app)
    gate.close()
    try:
        scope = {"type": "websocket", "path": "/v1/realtime", "root_path": ""}
        await GateMiddleware(inner, gate)(scope, receive, send)
    finally:
        gate.open()
    assert sent == [{"type": "websocket.close", "code": 1013, "reason": MINING}]


@pytest.mark.parametrize("path", sorted(TAKES_THE_DEVICE_AWAY))
async def test_case_44_the_device_is_not_taken_from_poc(app: FastAPI, path: str) -> None:
    assert takes_the_device_away("POST", path)
    gate = gate_of(app)
    gate.at_work = lambda: True
    try:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            assert (await client.post(path)).status_code == 409
    finally:
        gate.at_work = lambda: False


def test_f44_routes_are_plain_and_there_once(app: FastAPI) -> None:
    ours = [route for route in app.routes if "/api/v1/pow" in getattr(route, "path", "")]
    assert all(isinstance(route, APIRoute) for route in ours)
    assert sorted((route.path, *route.methods) for route in ours) == [
        ("/api/v1/pow/generate", "POST"),
        ("/api/v1/pow/generate/{request_id}", "GET"),
        ("/api/v1/pow/init/generate", "POST"),
        ("/api/v1/pow/shares", "POST"),
        ("/api/v1/pow/status", "GET"),
        ("/api/v1/pow/stop", "POST"),
        ("/api/v1/pow/versions", "GET"),
    ]
    assert all(hasattr(route, "path") for route in app.routes)


def test_f43_the_middleware_is_in_before_the_stack_is_built(app: FastAPI) -> None:
    outermost_first = [middleware.cls for middleware in app.user_middleware]
    assert outermost_first.count(GateMiddleware) == 1
    # Inside the key check: who has no key learns nothing about the gate.
    assert outermost_first.index(AuthenticationMiddleware) < outermost_first.index(GateMiddleware)


async def test_the_api_key_guards_these_routes(app: FastAPI) -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        assert (await client.get("/api/v1/pow/status")).status_code == 401
        right = {"Authorization": f"Bearer {KEY}"}
        answer = await client.get("/api/v1/pow/status", headers=right)
        assert answer.status_code == 503  # no engine in this test
        assert answer.json() == {"detail": "the engine is not up"}
