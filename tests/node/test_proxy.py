"""The proxy between real sockets: bytes, disconnects, limits, failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.node.helpers import HOST, free_ports, until
from tests.node.served import Served, served
from tests.node.upstream import STREAM, join, upstream

from assay.node.backend import BackendState


async def test_a_request_and_its_answer_pass_unchanged(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        body = b'{"model": "m", "x":  [1, 2]}'
        answer = await at.http.post("/v1/echo?a=%20b", content=body, headers={"X-Request-Id": "7"})
        seen = answer.json()
        assert seen["first"] == "POST /v1/echo?a=%20b HTTP/1.1"
        assert seen["body"].encode() == body
        names = dict(seen["headers"])
        assert names["x-request-id"] == "7"
        assert names["host"] == f"{HOST}:{at.up.port}"
        assert names["content-length"] == str(len(body))
        assert "transfer-encoding" not in names


async def test_a_body_of_no_stated_type_is_json(tmp_path: Path) -> None:
    """Network clients state none, and vLLM then answers 400 (spec http, traps)."""

    async def types(at: Served, **request: Any) -> list[str]:
        seen = (await at.http.post("/v1/echo", **request)).json()
        return [value for name, value in seen["headers"] if name == "content-type"]

    async with served(tmp_path) as at:
        assert await types(at, content=b"{}") == ["application/json"]
        assert await types(at, content=b"{}", headers={"Content-Type": "a/b"}) == ["a/b"]
        assert await types(at) == []


async def test_a_chunked_body_passes(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"x" * 1000

    async with served(tmp_path) as at:
        seen = (await at.http.post("/v1/echo", content=pieces())).json()
        assert seen["body"] == "x" * 50_000
        framing = {"transfer-encoding", "content-length"} & dict(seen["headers"]).keys()
        assert len(framing) == 1


async def test_a_stream_is_the_backends_byte_for_byte(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        answer = await at.http.post("/v1/stream", content=b"{}")
        assert answer.content == STREAM
        assert answer.headers["content-type"] == "text/event-stream"


async def test_a_stream_is_not_held_back(tmp_path: Path) -> None:
    """The first event arrives while the backend still holds the second."""
    async with served(tmp_path) as at, at.http.stream("POST", "/v1/hold", content=b"{}") as answer:
        pieces = answer.aiter_raw()
        assert await anext(pieces) == b"data: first\n\n"
        at.up.go.set()
        assert b"".join([piece async for piece in pieces]) == b"data: second\n\n"


async def test_statuses_and_headers_of_a_refusal_pass(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        answer = await at.http.get("/v1/refuse")
        assert (answer.status_code, answer.content) == (418, b'{"error": "x"}')
        assert answer.headers["x-mine"] == "yes"


async def test_case_42_a_client_that_leaves_ends_the_request_at_the_backend(
    tmp_path: Path,
) -> None:
    """In the middle of a stream, and before any answer."""
    async with served(tmp_path) as at:
        async with at.http.stream("POST", "/v1/hold", content=b"{}") as answer:
            await anext(answer.aiter_raw())
        await until(lambda: at.up.lost == 1, "the backend sees the client go")
        (backend,) = at.node.pool.backends
        await until(lambda: backend.in_flight == 0, "its lease is given back")


async def test_a_client_that_leaves_before_the_answer_ends_the_request_too(
    tmp_path: Path,
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        left.set()
        writer.close()

    asked, left = asyncio.Event(), asyncio.Event()
    server = await asyncio.start_server(silent, HOST, 0)
    async with served(tmp_path) as at, server:
        join(at.node, server.sockets[0].getsockname()[1])
        asking = asyncio.create_task(at.http.get("/v1/models"))
        await asyncio.wait_for(asked.wait(), 30)
        asking.cancel()
        await asyncio.wait_for(left.wait(), 30)


async def test_without_a_backend_503_in_the_known_words(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        at.node.pool.move(at.node.pool.backends[0], BackendState.UNHEALTHY)
        answer = await at.http.get("/v1/models")
        assert (answer.status_code, answer.json()) == (503, {"detail": "No vLLM backend available"})


async def test_a_backend_that_cannot_be_reached_502_in_the_known_words(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        join(at.node, free_ports(1))
        answer = await at.http.post("/v1/chat/completions", json={})
        assert (answer.status_code, answer.json()) == (502, {"detail": "vLLM connection failed"})


async def test_another_backend_is_tried_when_nothing_was_sent(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        dead = free_ports(1)
        join(at.node, dead, at.up.port)
        for _ in range(4):
            assert (await at.http.post("/v1/echo", content=b"{}")).status_code == 200


async def test_an_answer_that_breaks_off_breaks_off_here(tmp_path: Path) -> None:
    """A cut stream must not look like a finished one."""
    async with served(tmp_path) as at:
        with pytest.raises(httpx.RemoteProtocolError):
            await at.http.post("/v1/break", content=b"{}")
        assert (await at.http.get("/v1/echo")).status_code == 200


async def test_requests_go_to_the_least_busy_backend(tmp_path: Path) -> None:
    async with served(tmp_path) as at, upstream() as other:
        join(at.node, at.up.port, other.port)
        holding = [asyncio.create_task(at.http.post("/v1/hold", content=b"{}")) for _ in range(6)]
        await until(lambda: at.up.held + other.held == 6, "six streams run")
        assert (at.up.held, other.held) == (3, 3)
        at.up.go.set()
        other.go.set()
        await asyncio.gather(*holding)


async def test_connections_to_a_backend_are_used_again(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        for _ in range(10):
            await at.http.post("/v1/echo", content=b"{}")
        assert len(at.up.requests) == 10
        assert at.up.connections < 10


async def test_a_body_over_the_limit_is_refused(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100

    async with served(tmp_path, limits__inference_body_bytes=1000) as at:
        declared = await at.http.post("/v1/echo", content=b"x" * 1001)
        assert declared.status_code == 413
        assert "1000 bytes" in declared.json()["detail"]
        assert at.up.requests == []
        undeclared = await at.http.post("/v1/echo", content=pieces())
        assert undeclared.status_code == 413
        assert at.up.requests == []
        assert (await at.http.post("/v1/echo", content=b"x" * 1000)).status_code == 200


async def test_over_the_concurrency_limit_429(tmp_path: Path) -> None:
    async with served(tmp_path, limits__inference_concurrency=1) as at:
        holding = asyncio.create_task(at.http.post("/v1/hold", content=b"{}"))
        await until(lambda: at.up.held == 1, "one stream runs")
        answer = await at.http.get("/v1/echo")
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
        at.up.go.set()
        await holding
        assert (await at.http.get("/v1/echo")).status_code == 200


async def test_the_inference_key_opens_and_is_not_passed_on(tmp_path: Path) -> None:
    async with served(tmp_path, keys__inference="secret-key") as at:
        assert (await at.http.get("/v1/echo")).status_code == 401
        answer = await at.http.get("/v1/echo", headers={"Authorization": "Bearer secret-key"})
        assert answer.status_code == 200
        assert "secret-key" not in answer.text
        assert "authorization" not in dict(answer.json()["headers"])


async def test_a_backends_own_key_is_added(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        join(at.node, at.up.port, headers={"Authorization": "Bearer own"})
        answer = await at.http.get("/v1/echo", headers={"Authorization": "Bearer client"})
        held = [v for n, v in answer.json()["headers"] if n == "authorization"]
        assert held == ["Bearer own"]


async def test_bare_ids_are_an_option_of_the_node(tmp_path: Path) -> None:
    body = {"choices": [{"logprobs": {"content": [{"token": "token_id:5"}]}}]}

    async def ids(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        data = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(ids, HOST, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for flag, wanted in ((False, "token_id:5"), (True, "5")):
            async with served(tmp_path, proxy__bare_token_ids=flag) as at:
                join(at.node, port)
                answer = (await at.http.get("/v1/x")).json()
                assert answer["choices"][0]["logprobs"]["content"][0]["token"] == wanted
