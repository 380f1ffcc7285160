"""Connections that vLLM is about to close: a request must not meet that moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from tests.node.helpers import stand_in_config

from assay.node.node import Node
from assay.replay.client import HttpEngineClient
from assay.settings import ClientSettings

LEAVES_AFTER_S = 3.0
"""Our server closes an idle connection after this long, and never answers what comes then: of one
that vLLM closes after 5 s the two may not know of each other for as long as the network takes."""
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


@asynccontextmanager
async def leaving_server() -> AsyncIterator[tuple[str, list[int]]]:
    """Its address, and how many requests came on each connection."""
    counts: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(counts)
        counts.append(0)
        idle_since = None
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                now = asyncio.get_running_loop().time()
                if idle_since is not None and now - idle_since >= LEAVES_AFTER_S:
                    break
                counts[number] += 1
                writer.write(ANSWER)
                await writer.drain()
                idle_since = asyncio.get_running_loop().time()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", counts


async def _three_times(send: Callable[[], Awaitable[object]]) -> None:
    for pause in (0.0, 0.0, LEAVES_AFTER_S + 0.2):
        await asyncio.sleep(pause)
        await send()


async def test_a_validator_reuses_a_connection_only_while_it_is_surely_open() -> None:
    async with leaving_server() as (url, counts), HttpEngineClient(url, ClientSettings()) as client:
        await _three_times(lambda: client.send("GET", "/health"))
    assert counts == [2, 1]


async def test_a_node_reuses_a_connection_only_while_it_is_surely_open(
    tmp_path: Path,
) -> None:
    async with leaving_server() as (url, counts):
        node = Node(stand_in_config(tmp_path))
        async with node.http:
            await _three_times(lambda: node.http.get(f"{url}/health"))
    assert counts == [2, 1]
