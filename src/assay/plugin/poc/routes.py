"""Handlers of ``/api/v1/pow/*``: bodies in, answers out; the work is the service's."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay import __version__
from assay.plugin.poc.access import ApiKeys
from assay.plugin.poc.body import parse, read_body
from assay.plugin.poc.failures import RefusedError
from assay.plugin.poc.jobs import Job
from assay.plugin.poc.service import PocService
from assay.plugin.poc.settings import PocSettings
from assay.poc.bodies import ChangeShares, Generate, InitGenerate

PREFIX = "/api/v1/pow"
PROBE_PATIENCE = 30.0
"""Seconds ``/versions`` waits for a probe under way; mining may have the device."""

Handler = Callable[[Request], Awaitable[Response]]


class PocRoutes:
    """``service`` is None until the engine is up, and on a server without one: 503 then."""

    def __init__(self, settings: PocSettings, keys: ApiKeys, vllm_version: str) -> None:
        self.service: PocService | None = None
        self.absent = "the engine is not up"
        """Why there is no service."""
        self._settings = settings
        self._keys = keys
        self._vllm_version = vllm_version

    def attach(self, app: FastAPI) -> None:
        """Add the routes one by one: a router object in ``app.routes`` breaks metrics names (F44)."""
        for method, path, handler in (
            ("POST", "/init/generate", self.init_generate),
            ("POST", "/shares", self.shares),
            ("POST", "/generate", self.generate),
            ("GET", "/generate/{request_id}", self.result),
            ("GET", "/status", self.status),
            ("POST", "/stop", self.stop),
            ("GET", "/versions", self.versions),
        ):
            app.add_api_route(PREFIX + path, self._guarded(handler), methods=[method])

    async def init_generate(self, request: Request) -> Response:
        body = parse(InitGenerate, await read_body(request, self._settings.max_body_bytes))
        await self._require().init_generate(body, _caller(request))
        return JSONResponse({"status": "OK", "pow_status": {"status": "GENERATING"}})

    async def shares(self, request: Request) -> Response:
        body = parse(ChangeShares, await read_body(request, self._settings.max_body_bytes))
        released, held = await self._require().miner.change_shares(body)
        return JSONResponse(
            {
                "status": "OK",
                "released": [asdict(share) for share in released],
                "shares": held.shown(),
            }
        )

    async def generate(self, request: Request) -> Response:
        body = parse(Generate, await read_body(request, self._settings.max_body_bytes))
        service = self._require()
        job, queued = await service.generate(body, _caller(request))
        if not body.wait:
            return JSONResponse({"status": "queued", "request_id": job.id, "queued_count": queued})
        if not await _done_before_disconnect(job, request):
            service.jobs.cancel(job, "the client went away")
        if job.state != "completed":
            raise RefusedError(503, f"{job.state}: {job.error}")
        return _answer(job)

    async def result(self, request: Request) -> Response:
        job = self._require().jobs.get(request.path_params["request_id"])
        if job is None:
            seconds = self._settings.generate_result_ttl_sec
            raise RefusedError(404, f"no such request; results are kept for {seconds:g} s")
        return _answer(job)

    async def status(self, request: Request) -> Response:
        return JSONResponse(self._require().miner.status())

    async def stop(self, request: Request) -> Response:
        if self.service is not None:
            await self.service.stop()
        return JSONResponse({"status": "OK", "pow_status": {"status": "STOPPED"}})

    async def versions(self, request: Request) -> Response:
        able = self.service is not None and await self.service.capability.serves_while_validating(
            PROBE_PATIENCE
        )
        return JSONResponse(
            {
                "vllm_version": self._vllm_version,
                "assay_version": __version__,
                "poc_validation_inference": able,
            }
        )

    def _require(self) -> PocService:
        if self.service is None:
            raise RefusedError(503, self.absent)
        return self.service

    def _guarded(self, handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def guarded(request: Request) -> Response:
            try:
                self._keys.check(request)
                return await handler(request)
            except RefusedError as refusal:
                return JSONResponse({"detail": refusal.detail}, status_code=refusal.status)

        return guarded


def _answer(job: Job) -> Response:
    body: bytes | dict[str, Any] = job.body()
    if isinstance(body, bytes):
        return Response(body, media_type="application/json")
    return JSONResponse(body)


async def _done_before_disconnect(job: Job, request: Request) -> bool:
    """Wait for the job's end; False when the client closed its connection first."""
    done = asyncio.create_task(job.done.wait())
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        done.cancel()
        gone.cancel()
    return job.done.is_set()


async def _disconnected(request: Request) -> None:
    # The body has been read to its end: what still comes is the disconnect.
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _caller(request: Request) -> str | None:
    return None if request.client is None else request.client.host
