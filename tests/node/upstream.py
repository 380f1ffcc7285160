"""A backend for the proxy: raw HTTP/1.1 over asyncio streams, so that every byte is the test's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from assay.node.backend import Backend, BackendState
from assay.node.node import Node

HOST = "127.0.0.1"
STREAM = b'data: {"a": 1}\n\n' + b": comment\r\n\r\n" + 'data: {"b": "\u00e9"}\n\n'.encode()

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


@dataclass
class Upstream:
    """``go`` lets a held stream run on; ``lost`` counts clients that went away before its end."""

    port: int = 0
    connections: int = 0
    requests: list[tuple[str, list[tuple[str, str]], bytes]] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    held: int = 0
    lost: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self._one(reader, writer):
                pass
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        headers = [(n.lower(), v.strip()) for n, _, v in (line.partition(":") for line in lines)]
        body = await _body(reader, dict(headers))
        self.requests.append((first, headers, body))
        path = first.split(" ")[1].partition("?")[0]
        if path == "/v1/hold":
            return await self._hold(reader, writer)
        if path == "/v1/stream":
            _start(writer, b"text/event-stream")
            for byte in STREAM:
                _chunk(writer, bytes([byte]))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
        elif path == "/v1/break":
            _start(writer, b"text/event-stream")
            _chunk(writer, b"data: 1\n\n")
            await writer.drain()
            writer.close()
            return False
        elif path == "/v1/refuse":
            _answer(writer, b"418 I'm a teapot", b'{"error": "x"}', b"X-Mine: yes\r\n")
        else:
            data = json.dumps(echo(first, headers, body)).encode()
            _answer(writer, b"200 OK", data, empty=first.startswith("HEAD "))
        await writer.drain()
        return True

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One event at once, the other when told to; notices a client that goes away."""
        _start(writer, b"text/event-stream")
        _chunk(writer, b"data: first\n\n")
        await writer.drain()
        self.held += 1
        gone, go = asyncio.ensure_future(reader.read(1)), asyncio.ensure_future(self.go.wait())
        await asyncio.wait({gone, go}, return_when=asyncio.FIRST_COMPLETED)
        if gone.done() and not go.done():
            self.lost += 1
            go.cancel()
            return False
        gone.cancel()
        _chunk(writer, b"data: second\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return False


def echo(first: str, headers: list[tuple[str, str]], body: bytes) -> dict[str, Any]:
    return {"first": first, "headers": headers, "body": body.decode("latin-1")}


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    if headers.get("transfer-encoding") != "chunked":
        return b""
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    await reader.readline()
    return body


def _start(writer: asyncio.StreamWriter, kind: bytes) -> None:
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: " + kind + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    )


def _chunk(writer: asyncio.StreamWriter, piece: bytes) -> None:
    writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")


def _answer(
    writer: asyncio.StreamWriter,
    status: bytes,
    body: bytes,
    headers: bytes = b"",
    empty: bool = False,
) -> None:
    writer.write(
        b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nConnection: keep-alive\r\n"
        b"Content-Length: " + str(len(body)).encode() + b"\r\n" + headers + b"\r\n"
    )
    if not empty:
        writer.write(body)


@asynccontextmanager
async def upstream() -> AsyncIterator[Upstream]:
    up = Upstream()
    server = await asyncio.start_server(up.serve, HOST, 0)
    up.port = server.sockets[0].getsockname()[1]
    try:
        yield up
    finally:
        up.go.set()
        server.close()


@asynccontextmanager
async def backend(serve: Serve, port: int = 0) -> AsyncIterator[int]:
    """A server of raw bytes; its port. ``serve`` has a connection until it returns."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(one, HOST, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def head_of(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def join(node: Node, *ports: int, **fields: Any) -> list[Backend]:
    """Make these ports the node's healthy backends."""
    backends = [Backend(port=port, **fields) for port in ports]
    node.pool.replace(backends)
    for backend in backends:
        node.pool.move(backend, BackendState.READY)
    return backends
