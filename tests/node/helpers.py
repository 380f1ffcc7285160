"""Nodes for tests: real processes behind them, times short enough to watch them pass."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from assay.node.app import create_app
from assay.node.backend import Backend, BackendState
from assay.node.config import NodeConfig
from assay.node.config_file import node_config
from assay.node.guard import descendants
from assay.node.node import Node
from assay.node.pool import Change

HOST = "127.0.0.1"
STAND_IN = Path(__file__).with_name("stand_in.py")
SOON = 150.0
"""Seconds after which something that should happen never will, however slow the machine."""


def free_ports(count: int) -> int:
    """The first of ``count`` neighbouring ports nothing listens on."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            first = int(probe.getsockname()[1])
        if first + count < 65_536 and all(_is_free(first + index) for index in range(count)):
            return first
    raise AssertionError("no neighbouring free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def stand_in_config(folder: Path, **flags: Any) -> NodeConfig:
    """Two stand-ins on free ports. ``flags``: names with __ for the dot, as ``backends__hung_s``."""
    port = free_ports(4)
    given = {
        "port": port,
        "proxy.port": 0,
        "store.folder": str(folder / "state"),
        "backends.log_folder": str(folder / "logs"),
        "backends.command": [sys.executable, str(STAND_IN)],
        "backends.gpus": [],
        "backends.count": 2,
        "backends.first_port": port + 1,
        "backends.stagger_s": 0,
        "backends.check_every_s": 0.05,
        "backends.restart_backoff_s": 0.05,
        "backends.stop_grace_s": 10,
    }
    given |= {name.replace("__", "."): value for name, value in flags.items()}
    return node_config(None, given, {})


class Driver:
    """A node in this process, driven over HTTP as clients do."""

    def __init__(self, node: Node, http: httpx.AsyncClient) -> None:
        self.node = node
        self.http = http
        self.changes: list[tuple[int, BackendState, int]] = []
        """Port, new state, generation, in order."""
        node.pool.listen(self._note)

    def _note(self, change: Change) -> None:
        self.changes.append((change.backend.port, change.new, change.generation))

    @property
    def backends(self) -> tuple[Backend, ...]:
        return self.node.pool.backends

    async def up(self, model: str = "model", *flags: str, dtype: str = "auto") -> httpx.Response:
        body = {"model": model, "dtype": dtype, "additional_args": flags}
        return await self.http.post("/api/v1/inference/up", json=body)

    async def get(self, path: str) -> Any:
        return (await self.http.get(path)).json()

    async def status(self) -> Any:
        return await self.get("/api/v1/inference/up/status")

    async def tell(self, backend: Backend, **mood: Any) -> int:
        """Change a stand-in's mood; its process id."""
        answer = await self.node.http.post(f"{backend.base_url}/control", json=mood)
        return int(answer.json()["pid"])

    async def seen(self, backend: Backend) -> list[dict[str, Any]]:
        answer = await self.node.http.get(f"{backend.base_url}/seen")
        return list(answer.json())

    async def seen_so_many(self, backend: Backend, count: int) -> None:
        """Return when a stand-in has seen ``count`` completions."""
        for _ in range(int(SOON / 0.05)):
            if len(await self.seen(backend)) >= count:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"{count} completions never came")

    async def asked_again(self, backend: Backend, times: int) -> None:
        """Return when the node has asked a stand-in so often what its proof of compute does."""
        counts = []
        for _ in range(int(SOON / 0.05)):
            answer = await self.node.http.get(f"{backend.base_url}/asked")
            counts.append(int(answer.json()))
            if counts[-1] >= counts[0] + times:
                return
            await asyncio.sleep(0.05)
        raise AssertionError("the node does not ask any more")


@asynccontextmanager
async def driven(
    config: NodeConfig, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Driver]:
    app = create_app(config, node=Node(config, clock=clock))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://node", timeout=SOON
        ) as http,
    ):
        yield Driver(app.state.node, http)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Return once ``condition`` holds; it is looked at often, so that short states are seen."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what or condition}"
        await asyncio.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def children_of_this_process() -> list[int]:
    return descendants(os.getpid())
