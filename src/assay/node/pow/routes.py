"""``/api/v1/inference/pow/*``: proof of compute, as network clients ask a node for it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.delivery.couriers import Deliveries
from assay.delivery.settings import DeliverySettings
from assay.delivery.targets import CallbackTargets, TargetError
from assay.node.bodies import parse, read_body
from assay.node.callback_route import own_url
from assay.node.config import Callbacks
from assay.node.failures import NodeRefusal
from assay.node.node import Node
from assay.node.part import Part, Route
from assay.node.pow.calls import PowCalls
from assay.node.pow.inbox import PATH, Inbox
from assay.node.pow.jobs import Jobs
from assay.node.pow.mining import Mining
from assay.node.pow.status import merged
from assay.poc.bodies import Generate, Identity, InitGenerate
from assay.store.outbox import Outbox
from assay.store.pow_jobs import PowJobs
from assay.store.rounds import Rounds

logger = logging.getLogger("assay.node")

PREFIX = "/api/v1/inference/pow"
Asked = TypeVar("Asked", bound=Identity)


class PowMetrics:
    """What the node's couriers count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting = Gauge(
            "assay_node_artifacts_waiting", "Artifacts that wait for a receiver", registry=registry
        )
        self.delivered = Counter(
            "assay_node_artifacts_delivered", "Artifacts a receiver accepted", registry=registry
        )
        self.callbacks = Counter(
            "assay_node_callbacks", "Callback requests by outcome", ["outcome"], registry=registry
        )


@dataclass(frozen=True)
class _Running:
    """What exists while the node runs."""

    deliveries: Deliveries
    mining: Mining
    jobs: Jobs
    inbox: Inbox


def part(node: Node) -> Part:
    routes = _Pow(node)
    return Part(
        [
            Route(
                "POST",
                f"{PREFIX}/init/generate",
                routes.init_generate,
                summary="Mine on every backend until stopped",
                body=InitGenerate,
            ),
            Route(
                "POST",
                f"{PREFIX}/generate",
                routes.generate,
                summary="Vectors of given nonces, or a verdict on given vectors, by one backend",
                body=Generate,
            ),
            Route("GET", f"{PREFIX}/generate/{{request_id}}", routes.result),
            Route("GET", f"{PREFIX}/status", routes.status),
            Route("POST", f"{PREFIX}/stop", routes.stop, summary="Stop mining and jobs everywhere"),
            Route("POST", f"{PATH}/{{token}}/generated", routes.generated, "none", hidden=True),
            Route("POST", f"{PATH}/{{token}}/validated", routes.validated, "none", hidden=True),
        ],
        routes.running,
    )


class _Pow:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._limit = node.config.limits.pow_body_bytes
        callbacks = node.config.callbacks
        self._targets = CallbackTargets(
            callbacks.allow, "callbacks.allow in the node's configuration"
        )
        self._metrics = PowMetrics(node.metrics.registry)
        self._running: _Running | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the outbox, take up what an earlier node left, look after rounds and jobs."""
        node = self._node
        outbox = await asyncio.to_thread(Outbox, node.config.store_url)
        deliveries = Deliveries(
            outbox,
            delivery_settings(node.config.callbacks),
            self._targets,
            self._metrics,
            logger,
        )
        try:
            rounds = await asyncio.to_thread(Rounds, outbox)
            kept = await asyncio.to_thread(PowJobs, outbox)
            calls = PowCalls(node.http)
            mining = Mining(node.pool, calls, rounds, self._inbox_url, node.clock)
            jobs = Jobs(node.pool, calls, kept, self._inbox_url, node.clock)
            inbox = Inbox(rounds, jobs, deliveries, mining.receiver, self._limit)
            await jobs.resume()
            await deliveries.resume()
            self._running = _Running(deliveries, mining, jobs, inbox)
            node.validating = jobs.at_work
            watching = [asyncio.create_task(mining.watch()), asyncio.create_task(jobs.watch())]
            try:
                yield
            finally:
                self._running = None
                for task in watching:
                    task.cancel()
                await asyncio.wait(watching)
        finally:
            await deliveries.close()

    async def init_generate(self, request: Request) -> Response:
        asked, body = await self._read(request, InitGenerate)
        if asked.node_id >= asked.node_count:
            raise NodeRefusal(
                400,
                f"node_id: {asked.node_id} given for node_count {asked.node_count}; ids start at 0",
            )
        running = await self._ready_for(asked, request)
        return JSONResponse(await running.mining.begin(asked, body, _caller(request)))

    async def generate(self, request: Request) -> Response:
        asked, body = await self._read(request, Generate)
        running = await self._ready_for(asked, request)
        work = asyncio.create_task(running.jobs.submit(asked, body, _caller(request)))
        if not await _done_before_disconnect(work, request):
            work.cancel()
            await asyncio.wait({work})
            # Nobody reads it; the backend sees its own connection close and calls the job off.
            raise NodeRefusal(499, "the client went away")
        return JSONResponse(work.result())

    async def result(self, request: Request) -> Response:
        return JSONResponse(await self._require().jobs.result(request.path_params["request_id"]))

    async def status(self, request: Request) -> Response:
        running = self._require()
        return JSONResponse(await merged(self._node, running.mining, running.jobs))

    async def stop(self, request: Request) -> Response:
        running = self._require()
        results, errors = await running.mining.stop()
        await running.jobs.cancel_all()
        shown = [error.to_json() for error in errors]
        if errors and not results:
            raise NodeRefusal(502, {"error": "no backend stopped", "errors": shown})
        return JSONResponse(
            {
                "status": "OK",
                "backends": len(results) + len(errors),
                "results": results,
                "errors": shown,
                "pow_status": {"status": "STOPPED"},
            }
        )

    async def generated(self, request: Request) -> Response:
        return await self._require().inbox.generated(request)

    async def validated(self, request: Request) -> Response:
        return await self._require().inbox.validated(request)

    async def _read(self, request: Request, model: type[Asked]) -> tuple[Asked, dict[str, Any]]:
        """The request, checked, and as it came: keys we do not know go on to the backends."""
        raw = await read_body(request, self._limit)
        asked = await asyncio.to_thread(parse, model, raw)
        body = json.loads(raw)
        for ours in ("shares", "group_id", "n_groups"):
            body.pop(ours, None)
        return asked, body

    async def _ready_for(self, asked: Identity, request: Request) -> _Running:
        running = self._require()
        if asked.url is not None:
            try:
                await self._targets.check(asked.url, _caller(request))
            except TargetError as error:
                raise NodeRefusal(400, str(error)) from error
        return running

    def _require(self) -> _Running:
        if self._running is None:
            raise NodeRefusal(503, "the node starts or ends")
        return self._running

    def _inbox_url(self, token: str) -> str:
        return f"{own_url(self._node.config)}{PATH}/{token}"


def delivery_settings(callbacks: Callbacks) -> DeliverySettings:
    return DeliverySettings(
        interval_s=callbacks.interval_s,
        timeout_s=callbacks.timeout_s,
        max_concurrent=callbacks.max_concurrent,
        max_artifacts=callbacks.max_artifacts,
    )


def _caller(request: Request) -> str | None:
    return None if request.client is None else request.client.host


async def _done_before_disconnect(work: asyncio.Task[Any], request: Request) -> bool:
    """Wait for ``work``; False when the client closed its connection first."""
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    return work.done()


async def _disconnected(request: Request) -> None:
    # The body has been read to its end: what still comes is the disconnect.
    while (await request.receive())["type"] != "http.disconnect":
        continue
