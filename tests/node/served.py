"""The node's proxy on a real port, in front of a raw upstream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from tests.node.helpers import HOST, SOON, stand_in_config, until
from tests.node.upstream import Upstream, join, upstream

from assay.node import health, proxy
from assay.node.app import create_app
from assay.node.node import Node
from assay.node.protocol import http_protocol
from assay.node.run import listen


@dataclass
class Served:
    """A node's proxy on a port, in front of ``up``."""

    node: Node
    up: Upstream
    http: httpx.AsyncClient
    port: int

    @asynccontextmanager
    async def raw(
        self, request: bytes
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection of its own, on which ``request`` was sent."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        writer.write(request)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def last(self, request: bytes) -> bytes:
        """All that comes back until the node closes the connection."""
        async with self.raw(request) as (reader, _):
            return await asyncio.wait_for(reader.read(), SOON)


@asynccontextmanager
async def served(folder: Path, http: str = "", **flags: Any) -> AsyncIterator[Served]:
    """``http``: how the node reads requests, if not as it does by default."""
    config = stand_in_config(folder, **flags)
    app = create_app(config, parts=(health.part, proxy.part))
    listener = listen(HOST, config.port)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            http=http or http_protocol(),
        )
    )
    url = f"http://{HOST}:{config.port}"
    with contextlib.closing(listener):
        async with app.router.lifespan_context(app), upstream() as up:
            join(app.state.node, up.port)
            running = asyncio.create_task(server.serve(sockets=[listener]))
            await until(lambda: server.started, "the node listens")
            try:
                async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as client:
                    yield Served(app.state.node, up, client, config.port)
            finally:
                up.go.set()
                server.should_exit = True
                await running
