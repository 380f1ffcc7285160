"""Everything PoC owns in one server, made when the engine is known and ended with the server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection

from assay.delivery.couriers import Deliveries
from assay.delivery.targets import CallbackTargets, TargetError
from assay.errors import StoreError
from assay.plugin.poc.bounds import batch_size, check_nodes, check_params, check_shape
from assay.plugin.poc.capability import Able, Capability
from assay.plugin.poc.device import Device
from assay.plugin.poc.engine import PocEngine
from assay.plugin.poc.failures import AsleepError, EngineFaultError, RefusedError
from assay.plugin.poc.gate import Gate
from assay.plugin.poc.jobs import Job, JobQueue
from assay.plugin.poc.metrics import PocMetrics
from assay.plugin.poc.mining import DRAIN_SECONDS, Miner
from assay.plugin.poc.run import Run
from assay.plugin.poc.settings import PocSettings
from assay.plugin.poc.shares import Shares
from assay.plugin.poc.validation import check_validation
from assay.poc.bodies import Generate, Identity, InitGenerate
from assay.store.outbox import Outbox

logger = logging.getLogger("vllm.assay")


class PocService:
    """``models``: names the deployment goes by, the one to show first. ``store``: the outbox."""

    def __init__(
        self,
        engine: PocEngine,
        gate: Gate,
        settings: PocSettings,
        metrics: PocMetrics,
        *,
        models: Collection[str],
        store: str,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._models = models
        self._store = store
        self._targets = CallbackTargets(
            settings.callback_allow, "POC_CALLBACK_ALLOW on this server"
        )
        self._device = Device(engine, metrics, settings.overdue_after)
        self.capability = Capability(engine, self._device)
        self.miner = Miner(engine, self._device, gate, settings)
        self.jobs = JobQueue(self._device, gate, self.miner, settings, metrics)
        self._opening: asyncio.Task[Deliveries] | None = None
        self._started: asyncio.Task[None] | None = None
        gate.overdue = lambda: self._device.busy_for if self._device.overdue else None
        gate.at_work = lambda: self.miner.running or self.jobs.busy

    def begin(self) -> None:
        """Probe the engine and take up old deliveries, without keeping the server from starting."""
        self._started = asyncio.create_task(self._begin())

    async def init_generate(self, request: InitGenerate, caller: str | None) -> None:
        """Start mining. Raises RefusedError."""
        if self.miner.running:
            raise RefusedError(409, "Already generating")
        check_nodes(request)
        shares = None if request.shares is None else Shares(request, request.shares)
        able = await self._checked(request)
        deliveries = await self._deliveries_for(request, caller)
        size = batch_size(request, able.profile, self._settings)
        run = Run(request, size, caller, shares, waits=shares is not None)
        self.miner.start(run, deliveries)

    async def generate(self, request: Generate, caller: str | None) -> tuple[Job, int]:
        """Queue a job; the job and how many nonces are queued now. Raises RefusedError."""
        test = check_validation(request)
        able = await self._checked(request)
        deliveries = await self._deliveries_for(request, caller)
        size = batch_size(request, able.profile, self._settings)
        job = Job(request, test, size, dict(able.profile), caller)
        return job, self.jobs.submit(job, deliveries)

    async def stop(self) -> None:
        """Cancel mining and jobs, open the gate, wait for what is on the device."""
        deadline = time.monotonic() + DRAIN_SECONDS
        self.jobs.cancel_all("stopped by POST /stop")
        await self.miner.stop(DRAIN_SECONDS)
        await self._device.drain(max(0.0, deadline - time.monotonic()))

    async def close(self) -> None:
        """End every task; what waits for a receiver stays in the store (F40)."""
        if self._started is not None:
            self._started.cancel()
            await asyncio.wait({self._started})
        await self._device.close()
        await self.jobs.close()
        await self.miner.close()
        if self._opening is not None:
            await asyncio.wait({self._opening})
            if not _failed(self._opening):
                await self._opening.result().close()

    async def _begin(self) -> None:
        try:
            await self._open_deliveries()
        except StoreError as error:
            logger.error("poc: no callbacks can be kept: %s", error)
        await self.capability.serves_while_validating(self._settings.overdue_after)

    async def _checked(self, request: Identity) -> Able:
        """The engine's abilities, after every check that needs no work."""
        check_params(request, self._models, self._settings)
        try:
            able = await self.capability.get()
            check_shape(request, able.profile)
            if await self._engine.asleep():
                raise AsleepError
        except AsleepError as error:
            raise RefusedError(409, str(error)) from error
        except EngineFaultError as error:
            raise RefusedError(503, f"PoC is not available: {error}") from error
        return able

    async def _deliveries_for(self, request: Identity, caller: str | None) -> Deliveries | None:
        if request.url is None:
            return None
        try:
            await self._targets.check(request.url, caller)
            return await self._open_deliveries()
        except TargetError as error:
            raise RefusedError(400, str(error)) from error
        except StoreError as error:
            raise RefusedError(503, f"callbacks cannot be kept: {error}") from error

    async def _open_deliveries(self) -> Deliveries:
        """Opened once; an outbox that could not be opened is tried again."""
        if self._opening is None or _failed(self._opening):
            self._opening = asyncio.create_task(self._open())
        # Shielded: an outbox that opens for nobody would stay locked.
        return await asyncio.shield(self._opening)

    async def _open(self) -> Deliveries:
        outbox = await asyncio.to_thread(Outbox, self._store)
        deliveries = Deliveries(
            outbox, self._settings.delivery, self._targets, self._metrics, logger
        )
        await deliveries.resume()
        return deliveries


def _failed(task: asyncio.Task[Deliveries]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
