"""``/api/v1/inference/pow/*``: proof of compute, as network clients ask a node for it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.delivery.couriers import Deliveries
from assay.delivery.targets import CallbackTargets, TargetError
from assay.node.bodies import parse, read_body
from assay.node.callback_route import own_url
from assay.node.failures import NodeRefusal
from assay.node.node import Node
from assay.node.part import Part, Route
from assay.node.pow.answers import as_json, done_before_disconnect
from assay.node.pow.calls import PowCalls
from assay.node.pow.delivery import PowMetrics, delivery_settings
from assay.node.pow.inbox import Inbox
from assay.node.pow.jobs import Jobs
from assay.node.pow.mining import Mining
from assay.node.pow.patience import Patience
from assay.node.pow.secrecy import PATH, Addresses
from assay.node.pow.status import merged
from assay.poc.bodies import Generate, Identity, InitGenerate
from assay.store.outbox import Outbox
from assay.store.pow_jobs import PowJobs
from assay.store.rounds import Rounds

logger = logging.getLogger("assay.node")

DEFAULT = Patience()
PREFIX = "/api/v1/inference/pow"
Asked = TypeVar("Asked", bound=Identity)


@dataclass(frozen=True)
class _Running:
    """What exists while the node runs."""

    mining: Mining
    jobs: Jobs
    inbox: Inbox


def part(node: Node, patience: Patience = DEFAULT) -> Part:
    """``patience``: how long backends are waited for."""
    routes = _Pow(node, patience)
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
    def __init__(self, node: Node, patience: Patience) -> None:
        self._node = node
        self._patience = patience
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
            async with self._at_work(outbox, deliveries):
                yield
        finally:
            await deliveries.close()

    @asynccontextmanager
    async def _at_work(self, outbox: Outbox, deliveries: Deliveries) -> AsyncIterator[None]:
        node, patience = self._node, self._patience
        rounds = await asyncio.to_thread(Rounds, outbox)
        kept = await asyncio.to_thread(PowJobs, outbox)
        calls = PowCalls(node.http, node.pool, patience)
        addresses = Addresses(own_url(node.config))
        mining = Mining(
            node.pool,
            calls,
            rounds,
            addresses,
            is_full=deliveries.is_full,
            clock=node.clock,
            patience=patience,
        )
        jobs = Jobs(node.pool, calls, kept, addresses, clock=node.clock, patience=patience)
        await jobs.resume()
        await deliveries.resume()
        inbox = Inbox(rounds, jobs, deliveries, addresses, self._limit)
        self._running = _Running(mining, jobs, inbox)
        node.validating, node.mining = jobs.at_work, mining.mines
        node.round = mining.report
        watching = [asyncio.create_task(mining.watch()), asyncio.create_task(jobs.watch())]
        for task in watching:
            task.add_done_callback(_report)
        try:
            yield
        finally:
            self._running = None
            for task in watching:
                task.cancel()
            await asyncio.wait(watching)

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
        try:
            if not await done_before_disconnect(work, request):
                # Nobody reads it; the backend sees its own connection close and calls the job off.
                raise NodeRefusal(499, "the client went away")
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
        return await as_json(work.result())

    async def result(self, request: Request) -> Response:
        return await as_json(await self._require().jobs.result(request.path_params["request_id"]))

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
        body = await asyncio.to_thread(json.loads, raw)
        for ours in ("shares", "mark_failed", "group_id", "n_groups"):
            body.pop(ours, None)
        return asked, body

    async def _ready_for(self, asked: Identity, request: Request) -> _Running:
        running = self._require()
        if self._node.draining.is_set():
            raise NodeRefusal(503, "the node is about to end")
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


def _caller(request: Request) -> str | None:
    return None if request.client is None else request.client.host


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("poc: nobody looks after mining or jobs any more", exc_info=error)
