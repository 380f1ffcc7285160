"""The gate: who may use the engine while PoC is at work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.plugin.poc.gated_routes import generates, takes_the_device_away
from assay.plugin.poc.metrics import PocMetrics

RETRY_AFTER = "1"
TRY_AGAIN_LATER = 1013
"""WebSocket close code."""

MINING = "this server is generating proof of compute; try again"
BUSY = "a proof-of-compute batch has been on the device for {:.0f} s; try again"
AT_WORK = "proof of compute is at work on this engine; POST /api/v1/pow/stop first"


class Gate:
    """Closed while mining has priority, and while a batch is overdue.

    Also counts the requests that generate and are running, which is what ``share`` goes by.
    """

    def __init__(self, metrics: PocMetrics) -> None:
        self._metrics = metrics
        self._mining = False
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.overdue: Callable[[], float | None] = lambda: None
        """Seconds of an overdue batch, or None; the device's, once there is one."""
        self.at_work: Callable[[], bool] = lambda: False
        """Whether mining or a job is under way."""

    @property
    def running(self) -> int:
        """Generating requests between their arrival and the end of their answer."""
        return self._running

    @property
    def closed(self) -> bool:
        return self.message() is not None

    def message(self) -> str | None:
        """Why generating requests are refused now; None while they are not."""
        if self._mining:
            return MINING
        overdue = self.overdue()
        return None if overdue is None else BUSY.format(overdue)

    def close(self) -> None:
        self._mining = True
        self._metrics.gate_closed.set(1)

    def open(self) -> None:
        self._mining = False
        self._metrics.gate_closed.set(0)

    def enter(self) -> None:
        self._running += 1
        self._idle.clear()

    def leave(self) -> None:
        self._running -= 1
        if self._running == 0:
            self._idle.set()

    async def yield_to_chat(self, device_seconds: float, share: float) -> None:
        """After a batch of ``device_seconds``: leave chat its part of the device's time.

        PoC gets ``share``: wait ``device_seconds * (1/share - 1)``, but only while a generating
        request is running.
        """
        if self._running == 0:
            return
        # Not wait_for: before Python 3.12 it drops a cancellation that meets the event, and a
        # miner that missed its stop would go on for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(device_seconds * (1 / share - 1)):
                await self._idle.wait()


class GateMiddleware:
    """Inside vLLM's own middleware: what it refuses has passed the API key check already."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["type"] == "http" else "WEBSOCKET"
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if takes_the_device_away(method, path) and self._gate.at_work():
            await JSONResponse(_error(AT_WORK, "conflict", 409), status_code=409)(
                scope, receive, send
            )
        elif not generates(method, path):
            await self._app(scope, receive, send)
        elif (message := self._gate.message()) is not None:
            await _refuse(message, scope, receive, send)
        else:
            self._gate.enter()
            try:
                await self._app(scope, receive, send)
            finally:
                self._gate.leave()


async def _refuse(message: str, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": message})
        return
    response = JSONResponse(
        _error(message, "service_unavailable", 503),
        status_code=503,
        headers={"Retry-After": RETRY_AFTER},
    )
    await response(scope, receive, send)


def _error(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}
