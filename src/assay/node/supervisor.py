"""The deployment: which model is up, on which backends, and how it comes and goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from assay.node.backend import Backend, BackendState
from assay.node.failures import NodeRefusal
from assay.node.keeper import Keeper, Tools
from assay.node.plan import Planned, UpRequest, plan

logger = logging.getLogger("assay.node")

Phase = Literal["stopped", "starting", "running", "failed"]


@dataclass(frozen=True)
class Deployment:
    """One ``up``: what was asked for and who keeps it. ``began`` is monotonic seconds."""

    request: UpRequest
    keepers: tuple[Keeper, ...]
    began: float


class Supervisor:
    """At most one deployment. ``up`` and ``down`` wait for each other."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._settings = tools.settings
        self._pool = tools.pool
        self._clock = tools.clock
        self._deployment: Deployment | None = None
        self._changing = asyncio.Lock()
        self._planning = 0
        self._closed = False
        self._failure: str | None = None

    @property
    def request(self) -> UpRequest | None:
        """What is up or starting."""
        return None if self._deployment is None else self._deployment.request

    @property
    def phase(self) -> Phase:
        """``starting`` until every backend is ready or has failed; ``failed`` when all have."""
        if self._planning:
            return "starting"
        if self._deployment is None:
            return "stopped" if self._failure is None else "failed"
        if not all(keeper.settled.is_set() for keeper in self._deployment.keepers):
            return "starting"
        return "failed" if self._all_failed(self._deployment) else "running"

    @property
    def error(self) -> str | None:
        """What is wrong with backends that failed; None while nothing is."""
        if self._deployment is None:
            return self._failure
        failed = [b for b in self._backends() if b.state is BackendState.FAILED]
        return "\n".join(f"port {b.port}: {b.reason}" for b in failed) or None

    @property
    def elapsed_seconds(self) -> float | None:
        """Since the last ``up`` began."""
        return None if self._deployment is None else self._clock() - self._deployment.began

    async def up(self, request: UpRequest) -> None:
        """Stop what runs, start this, return when every backend is ready or has failed.

        NodeRefusal 400 before anything is stopped when the request cannot work; 500 with the
        reasons when no backend came up; 409 when another ``up`` or ``down`` took over meanwhile.
        """
        deployment = await self._begin(request)
        await asyncio.gather(*(keeper.settled.wait() for keeper in deployment.keepers))
        if self._deployment is not deployment:
            raise NodeRefusal(409, "stopped before it was ready")
        if self._all_failed(deployment):
            raise NodeRefusal(500, self.error or "no backend became ready")

    def up_async(self, request: UpRequest) -> asyncio.Task[Deployment]:
        """Begin and return; NodeRefusal 409 when something runs or starts already."""
        if self.phase in ("starting", "running"):
            raise NodeRefusal(409, f"a model is {self.phase}; POST /api/v1/inference/down first")
        return asyncio.create_task(self._begin(request))

    async def down(self) -> None:
        """Stop every backend; returns when all processes are gone. Idempotent."""
        async with self._changing:
            await self._end_deployment()
            self._failure = None

    async def close(self) -> None:
        """As ``down``, and no ``up`` afterwards."""
        self._closed = True
        await self.down()

    def _begin(self, request: UpRequest) -> Coroutine[Any, Any, Deployment]:
        # Counted at once, not when the coroutine first runs: a second async up must see it.
        self._planning += 1
        return self._plan_and_start(request)

    async def _plan_and_start(self, request: UpRequest) -> Deployment:
        try:
            planned = await plan(request, self._settings, self._tools.variables)
            async with self._changing:
                if self._closed:
                    raise NodeRefusal(503, "the node is about to end")
                await self._end_deployment()
                self._failure = None
                self._deployment = self._start(request, planned)
                return self._deployment
        except NodeRefusal as refusal:
            if self._deployment is None:
                self._failure = str(refusal)
            raise
        finally:
            self._planning -= 1

    def _start(self, request: UpRequest, planned: list[Planned]) -> Deployment:
        keepers = tuple(Keeper(one, self._tools) for one in planned)
        logger.info("up: %s on %d backends", request.model, len(keepers))
        self._pool.replace([keeper.backend for keeper in keepers])
        for index, keeper in enumerate(keepers):
            keeper.start(index * self._settings.stagger_s)
        return Deployment(request, keepers, self._clock())

    async def _end_deployment(self) -> None:
        deployment, self._deployment = self._deployment, None
        if deployment is None:
            return
        logger.info("down: %s", deployment.request.model)
        await asyncio.gather(*(keeper.stop() for keeper in deployment.keepers))
        self._pool.replace(())

    def _backends(self) -> tuple[Backend, ...]:
        deployment = self._deployment
        return () if deployment is None else tuple(k.backend for k in deployment.keepers)

    def _all_failed(self, deployment: Deployment) -> bool:
        return all(k.backend.state is BackendState.FAILED for k in deployment.keepers)
