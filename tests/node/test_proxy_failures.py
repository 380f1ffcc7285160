"""Backends that break off, die, come back, or answer what nobody asked."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.node.helpers import SOON, free_ports, until
from tests.node.served import served
from tests.node.upstream import backend, head_of, join, ok

from assay.node.backend import BackendState

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST, as a killed process may."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("abrupt", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("framing", ["chunked", "length"])
@pytest.mark.parametrize("bare", [False, True], ids=["", "bare-ids"])
async def test_a_stream_whose_backend_dies_is_seen_to_break(
    tmp_path: Path, framing: str, abrupt: bool, bare: bool
) -> None:
    """Never a clean end: no last chunk, or fewer bytes than were announced."""
    seen = asyncio.Event()

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        event = b"data: 1\n\n"
        if framing == "chunked":
            writer.write(EVENTS + CHUNKED + b"9\r\n" + event + b"\r\n")
        else:
            writer.write(EVENTS + b"Content-Length: 1000\r\n\r\n" + event)
        await asyncio.wait_for(seen.wait(), SOON)
        if abrupt:
            reset(writer)

    async with served(tmp_path, proxy__bare_token_ids=bare) as at, backend(dies) as port:
        (one,) = join(at.node, port)
        async with at.raw(b"GET /v1/x HTTP/1.1\r\nHost: a\r\n\r\n") as (reader, _):
            head = await asyncio.wait_for(head_of(reader), SOON)
            await asyncio.wait_for(reader.readuntil(b"data: 1\n\n"), SOON)
            seen.set()
            rest = await asyncio.wait_for(reader.read(), SOON)
        assert head.startswith(b"HTTP/1.1 200 ")
        assert (b"chunked" if framing == "chunked" else b"content-length: 1000") in head
        assert rest in (b"", b"\r\n")
        await until(lambda: one.in_flight == 0, "its lease is given back")


async def test_a_json_answer_that_breaks_off_before_it_was_begun_is_502(tmp_path: Path) -> None:
    """With bare ids an answer is held until it is whole, so there is still something to say."""

    async def dies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")

    async with served(tmp_path, proxy__bare_token_ids=True) as at, backend(dies) as port:
        join(at.node, port)
        answer = await at.http.get("/v1/x")
        assert (answer.status_code, answer.json()) == (502, {"detail": "vLLM connection failed"})


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"",
    ],
    ids=["no-end", "upgrade", "gzip-framing", "bad-length", "no-http", "nothing"],
)
async def test_an_answer_that_cannot_be_passed_on_is_502(tmp_path: Path, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(answer)

    async with served(tmp_path) as at, backend(serve) as port:
        join(at.node, port)
        got = await at.http.get("/v1/x")
        assert (got.status_code, got.json()) == (502, {"detail": "vLLM connection failed"})


async def test_connections_of_a_backend_that_restarted_are_not_used(tmp_path: Path) -> None:
    together = asyncio.Barrier(4)
    end, ended = asyncio.Event(), 0

    async def first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ended
        await head_of(reader)
        await together.wait()  # so that the node needs four connections
        writer.write(ok(b"old"))
        await end.wait()
        writer.write_eof()
        assert await reader.read() == b""  # the node has noticed
        ended += 1

    async def second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await head_of(reader)
            writer.write(ok(b"new"))

    async def four() -> list[bytes]:
        answers = await asyncio.gather(*(at.http.post("/v1/x") for _ in range(4)))
        return [answer.content for answer in answers]

    async with served(tmp_path) as at:
        async with backend(first) as port:
            join(at.node, port)
            assert await four() == [b"old"] * 4
            end.set()
            await until(lambda: ended == 4, "the old connections are gone")
        async with backend(second, port):
            assert await four() == [b"new"] * 4


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
async def test_what_was_sent_is_not_sent_again(tmp_path: Path, method: str) -> None:
    """Over a connection used before, which the backend closes instead of answering."""
    asked: list[bytes] = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(ok(b""))
        asked.append((await head_of(reader)).split()[0])

    async with served(tmp_path) as at, backend(once) as one, backend(once) as two:
        join(at.node, one, two)
        for _ in range(2):
            assert (await at.http.get("/v1/x")).status_code == 200
        answer = await at.http.request(method, "/v1/x")
        assert answer.status_code == 502
        assert asked == [method.encode()]


async def test_a_body_reaches_the_next_backend_whole_when_the_first_is_gone(
    tmp_path: Path,
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(64):
            yield bytes([number]) * 4096

    async with served(tmp_path) as at:
        for _ in range(2):
            join(at.node, free_ports(1), at.up.port)
            answer = await at.http.post("/v1/echo", content=pieces())
            assert answer.status_code == 200
            ((_, _, body),) = at.up.requests
            assert body == b"".join([piece async for piece in pieces()])
            at.up.requests.clear()


async def test_no_backend_is_left_to_try(tmp_path: Path) -> None:
    async with served(tmp_path) as at:
        backends = join(at.node, free_ports(1), free_ports(1))
        answer = await at.http.post("/v1/echo", content=b"{}")
        assert (answer.status_code, answer.json()) == (502, {"detail": "vLLM connection failed"})
        assert [one.leases for one in backends] == [1, 1]
        at.node.pool.move(backends[0], BackendState.RESTARTING)
        at.node.pool.move(backends[1], BackendState.RESTARTING)
        assert (await at.http.post("/v1/echo", content=b"{}")).status_code == 503


async def test_an_answer_before_the_end_of_the_body_passes(tmp_path: Path) -> None:
    """The connection with half a request on it is not used again."""
    connections = 0

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while head := await head_of(reader):
            if b"content-length: 1000" not in head.lower():
                writer.write(ok(b"fine"))
                continue
            writer.write(b"HTTP/1.1 413 No\r\nContent-Length: 4\r\n\r\nlong")

    async with served(tmp_path) as at, backend(refuses) as port:
        join(at.node, port)
        request = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nhalf"
        async with at.raw(request) as (reader, _):
            answer = await asyncio.wait_for(reader.readuntil(b"long"), SOON)
            assert answer.startswith(b"HTTP/1.1 413 ")
        assert (await at.http.get("/v1/x")).content == b"fine"
        assert connections == 2


@pytest.mark.parametrize("late", [False, True], ids=["behind", "idle"])
async def test_an_answer_nobody_asked_for_reaches_nobody(tmp_path: Path, late: bool) -> None:
    """Sent behind the one that was, or later on the idle connection. The next client gets its own
    or a failure, never this one."""
    answered, strayed = asyncio.Event(), asyncio.Event()

    async def strays(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        if late:
            writer.write(ok(b"mine"))
            await answered.wait()
            writer.write(ok(b"stray"))
        else:
            writer.write(ok(b"mine") + ok(b"stray"))
        await writer.drain()
        strayed.set()
        while True:
            await head_of(reader)
            writer.write(ok(b"next"))

    async with served(tmp_path) as at, backend(strays) as port:
        join(at.node, port)
        assert (await at.http.get("/v1/x")).content == b"mine"
        answered.set()
        await asyncio.wait_for(strayed.wait(), SOON)
        for _ in range(3):
            answer = await at.http.get("/v1/x")
            assert answer.content in (b"mine", b"next") or answer.status_code == 502


async def test_an_answer_is_passed_on_as_it_is(tmp_path: Path) -> None:
    """Compressed bytes, cookies, redirects, answers without a body: nothing is read into them."""
    zipped = gzip.compress(b"text" * 100)
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await head_of(reader)
            seen.append(head.lower())
            path = head.split()[1]
            if path == b"/v1/zip":
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nSet-Cookie: a=1\r\n"
                    b"Set-Cookie: b=2\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"
                    b"Content-Length: %d\r\n\r\n" % len(zipped) + zipped
                )
            elif path == b"/v1/moved":
                writer.write(
                    b"HTTP/1.1 307 Moved\r\nLocation: /v1/zip\r\nContent-Length: 0\r\n\r\n"
                )
            elif path == b"/v1/same":
                writer.write(b"HTTP/1.1 304 Same\r\nETag: x\r\nContent-Length: 400\r\n\r\n")
            else:
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 None\r\n\r\n")

    async with served(tmp_path) as at, backend(serve) as port:
        join(at.node, port)
        async with at.http.stream("GET", "/v1/zip") as answer:
            assert b"".join([piece async for piece in answer.aiter_raw()]) == zipped
        assert answer.headers.get_list("set-cookie") == ["a=1", "b=2"]
        assert len(answer.headers.get_list("date")) == 1
        async with httpx.AsyncClient(base_url=at.http.base_url, trust_env=False) as other:
            moved = await other.get("/v1/moved")
            assert (moved.status_code, moved.headers["location"]) == (307, "/v1/zip")
            assert (await other.get("/v1/same")).status_code == 304
            assert (await other.delete("/v1/none")).status_code == 204
        assert len(seen) == 4
        assert not any(b"\ncookie:" in head for head in seen)
        assert all(b"\naccept-encoding: gzip" in head for head in seen)
