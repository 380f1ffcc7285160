"""Clients that are slow or leave: what the node holds of a body is bounded, either way."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path

from tests.node.helpers import SOON, until
from tests.node.served import served
from tests.node.upstream import backend, head_of, join, ok

MIB = 2**20
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


async def test_a_client_that_leaves_in_the_middle_of_its_body_ends_the_request(
    tmp_path: Path,
) -> None:
    begun, left = asyncio.Event(), asyncio.Event()
    got = b""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await head_of(reader)
        begun.set()
        got = await reader.read()
        left.set()

    async with served(tmp_path) as at, backend(serve) as port:
        join(at.node, port)
        for framing, end in (
            (b"Content-Length: 1000\r\n\r\n1234", b""),
            (CHUNKED + b"4\r\n1234\r\n", b"0\r\n"),
        ):
            request = b"POST /v1/x HTTP/1.1\r\nHost: a\r\n" + framing
            async with at.raw(request):
                await asyncio.wait_for(begun.wait(), SOON)
            await asyncio.wait_for(left.wait(), SOON)
            assert b"1234" in got
            assert not end or not got.endswith(end + b"\r\n")
            begun.clear()
            left.clear()


class Gauge:
    """Bytes that went into a socket, and whether any still do."""

    def __init__(self) -> None:
        self.sent = 0
        self.done = False
        self._at = time.monotonic()

    async def fill(self, writer: asyncio.StreamWriter, total: int, piece: bytes) -> None:
        """Write ``total`` bytes as fast as the other side takes them."""
        writer.transport.set_write_buffer_limits(high=0)
        while self.sent < total:
            writer.write(piece)
            await writer.drain()
            self.sent += len(piece)
            self._at = time.monotonic()
        self.done = True

    def stuck(self) -> bool:
        return self.sent > 0 and time.monotonic() - self._at > 1.0


async def test_an_answer_that_its_client_does_not_read_is_held_back(tmp_path: Path) -> None:
    """The backend cannot write on, so the node holds little of it; nothing is lost."""
    total, gauge = 128 * MIB, Gauge()
    piece = b"x" * 65_536

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        await gauge.fill(writer, total, piece)

    async with served(tmp_path) as at, backend(serve) as port:
        (one,) = join(at.node, port)
        request = b"GET /v1/x HTTP/1.1\r\nHost: a\r\n\r\n"
        async with at.raw(request):
            await until(lambda: gauge.done or gauge.stuck(), "the backend is held back")
            assert gauge.sent < total // 2
        await until(lambda: one.in_flight == 0, "a reader that leaves ends it")
        gauge.sent, gauge.done = 0, False
        async with at.raw(request) as (reader, _):
            await until(lambda: gauge.done or gauge.stuck(), "the backend is held back")
            await head_of(reader)
            left = total
            while left:
                got = await asyncio.wait_for(reader.read(MIB), SOON)
                assert got
                left -= len(got)


async def test_a_body_that_the_backend_does_not_read_is_held_back(tmp_path: Path) -> None:
    total, gauge, go = 64 * MIB, Gauge(), asyncio.Event()
    piece = bytes(range(256)) * 256
    digest = hashlib.sha256()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        await go.wait()
        for _ in range(total // 65_536):
            digest.update(await reader.readexactly(65_536))
        writer.write(ok(b"all"))

    async with served(tmp_path) as at, backend(serve) as port:
        join(at.node, port)
        head = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % total
        async with at.raw(head) as (reader, writer):
            filling = asyncio.ensure_future(gauge.fill(writer, total, piece))
            await until(lambda: gauge.done or gauge.stuck(), "the client is held back")
            assert gauge.sent < total // 2
            go.set()
            await filling
            assert (await asyncio.wait_for(reader.readuntil(b"all"), SOON))[:12] == b"HTTP/1.1 200"
        assert digest.digest() == hashlib.sha256(piece * (total // len(piece))).digest()
