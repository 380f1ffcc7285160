"""Everything one node owns. Made by the app, started and ended with its lifespan; no singletons."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from assay.connections import IDLE_S
from assay.node.access import Access
from assay.node.backend import Launcher
from assay.node.callback_route import callback_variables
from assay.node.config import NodeConfig
from assay.node.keeper import Tools
from assay.node.metrics import NodeMetrics
from assay.node.model_digests import Digests
from assay.node.plan import model_variables
from assay.node.pool import Pool
from assay.node.process import GuardedLauncher
from assay.node.served import Served
from assay.node.supervisor import Supervisor
from assay.store.database import Store

logger = logging.getLogger("assay.node")


class Node:
    """Parts take what they need from here.

    ``http`` is for control requests to backends (health, PoC routes): no proxy of the environment,
    no redirects. ``store`` exists while the node runs. ``clock`` is monotonic seconds.
    """

    store: Store

    def __init__(
        self,
        config: NodeConfig,
        *,
        launcher: Launcher | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.clock = clock
        self.access = Access(config.keys)
        self.pool = Pool(clock)
        self.metrics = NodeMetrics(self.pool)
        self.http = httpx.AsyncClient(
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(30.0, connect=config.limits.connect_timeout_s),
            limits=httpx.Limits(keepalive_expiry=IDLE_S),
        )
        self.supervisor = Supervisor(
            Tools(
                settings=config.backends,
                pool=self.pool,
                launcher=launcher or GuardedLauncher(config.backends),
                metrics=self.metrics,
                http=self.http,
                clock=clock,
                variables=callback_variables(config) | model_variables(config.models),
            )
        )
        self.digests = Digests(config.store.folder.expanduser())
        self.served = Served(self.pool, self.digests)
        """Which model files the backends serve."""
        self.validating: Callable[[int], bool] = lambda port: False
        """Whether the backend on a port has jobs of proof of compute; the part that sends them
        knows."""
        self.mining: Callable[[int], bool] = lambda port: False
        """Whether the backend on a port is taken to mine; the same part knows."""
        self.round: Callable[[], Awaitable[dict[str, Any] | None]] = _no_round
        """The mining round under way, as ``/pow/status`` shows it; the same part again."""
        self.draining = asyncio.Event()
        """Set when the node is about to end: new work is refused, running streams may finish."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open what is needed; at the end stop every backend, then close it."""
        self.store = await asyncio.to_thread(open_store, self.config)
        try:
            async with self.http:
                try:
                    yield
                finally:
                    self.draining.set()
                    await self.supervisor.close()
                    await self.served.close()
        finally:
            await asyncio.to_thread(self.store.close)


async def _no_round() -> dict[str, Any] | None:
    return None


def open_store(config: NodeConfig) -> Store:
    """The node's store; its folder is made when it is a SQLite file of the node's own."""
    if config.store.url is None:
        config.store.folder.expanduser().mkdir(parents=True, exist_ok=True)
    return Store(config.store_url)
