"""``/api/v1/inference/up`` and its relatives: what network clients drive a node with."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.node.bodies import read_model
from assay.node.failures import NodeRefusal
from assay.node.node import Node
from assay.node.part import Part, Route
from assay.node.plan import UpRequest


class Done(BaseModel):
    """``{"status": "OK"}``."""

    status: str = "OK"


class BackendReport(BaseModel):
    """One backend, for people and for the page."""

    port: int
    state: str
    reason: str
    generation: int
    restarts: int
    in_flight: int
    gpus: list[str]
    pid: int | None
    model: str | None
    seconds_in_state: float


class UpStatus(BaseModel):
    """``status``: stopped, starting, running or failed. ``backends`` is ours."""

    is_running: bool
    is_starting: bool
    status: str
    elapsed_seconds: float | None
    error: str | None
    backends: list[BackendReport]


def part(node: Node) -> Part:
    """Start and stop."""
    routes = _Control(node)
    return Part(
        [
            Route(
                "POST",
                "/api/v1/inference/up",
                routes.up,
                summary="Start a model, wait until it is ready",
                body=UpRequest,
                answer=Done,
            ),
            Route(
                "POST",
                "/api/v1/inference/up/async",
                routes.up_async,
                summary="Start a model",
                body=UpRequest,
                answer=Done,
            ),
            Route(
                "GET",
                "/api/v1/inference/up/status",
                routes.status,
                summary="How the start goes",
                answer=UpStatus,
            ),
            Route(
                "POST", "/api/v1/inference/down", routes.down, summary="Stop the model", answer=Done
            ),
            Route("POST", "/api/v1/stop", routes.down, summary="Stop everything", answer=Done),
        ]
    )


class _Control:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._begun: set[asyncio.Task[Any]] = set()

    async def up(self, request: Request) -> Response:
        await self._node.supervisor.up(await self._body(request))
        return JSONResponse({"status": "OK"})

    async def up_async(self, request: Request) -> Response:
        task = self._node.supervisor.up_async(await self._body(request))
        # Its refusals are what /inference/up/status shows as error.
        self._begun.add(task)
        task.add_done_callback(self._over)
        return JSONResponse({"status": "OK"})

    async def status(self, request: Request) -> Response:
        return JSONResponse(up_status(self._node).model_dump())

    async def down(self, request: Request) -> Response:
        await self._node.supervisor.down()
        return JSONResponse({"status": "OK"})

    async def _body(self, request: Request) -> UpRequest:
        if self._node.draining.is_set():
            raise NodeRefusal(503, "the node is about to end")
        return await read_model(request, UpRequest, self._node.config.limits.control_body_bytes)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._begun.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not report it as forgotten


def up_status(node: Node) -> UpStatus:
    supervisor = node.supervisor
    return UpStatus(
        is_running=supervisor.phase == "running",
        is_starting=supervisor.phase == "starting",
        status=supervisor.phase,
        elapsed_seconds=supervisor.elapsed_seconds,
        error=supervisor.error,
        backends=[
            BackendReport(
                port=backend.port,
                state=backend.state.value,
                reason=backend.reason,
                generation=backend.generation,
                restarts=backend.restarts,
                in_flight=backend.in_flight,
                gpus=list(backend.gpus),
                pid=backend.pid,
                model=backend.model,
                seconds_in_state=node.clock() - backend.since,
            )
            for backend in node.pool.backends
        ],
    )
