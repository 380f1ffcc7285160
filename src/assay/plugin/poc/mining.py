"""Mining: this node's nonces, batch after batch, until stopped."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from assay.delivery.couriers import Deliveries
from assay.errors import AssayError
from assay.plugin.poc.device import Device
from assay.plugin.poc.engine import PocEngine, Vectors
from assay.plugin.poc.failures import EngineFaultError, RefusedError
from assay.plugin.poc.gate import Gate
from assay.plugin.poc.payloads import artifacts_text
from assay.plugin.poc.settings import PocSettings
from assay.poc.artifacts import encoding
from assay.poc.bodies import InitGenerate
from assay.poc.nonces import partition
from assay.store.outbox import Campaign

logger = logging.getLogger("vllm.assay")

WHOLE_BATCHES_LOST = 3
"""Batches in a row without one finite vector before mining stops: an engine fault, not bad luck."""
STRAGGLER_SWEEPS, STRAGGLER_PAUSE = 8, 0.25
"""Requests that had passed the gate but not yet reached the engine are aborted too: this often,
this many seconds apart."""
DRAIN_SECONDS = 30.0
CLOSE_SECONDS = 5.0


@dataclass
class Run:
    """One mining run. ``kept`` vectors are in the outbox (or, without a url, back from the device);
    ``failed`` had NaN or Inf; ``position`` is the first index of the partition not yet sent to the
    device."""

    request: InitGenerate
    batch_size: int
    caller: str | None
    started: float = field(default_factory=time.monotonic)
    position: int = 0
    kept: int = 0
    failed: int = 0
    lost_batches: int = 0
    campaign: int | None = None
    stores: set[asyncio.Task[None]] = field(default_factory=set)
    batch: asyncio.Task[Vectors] | None = None
    error: str | None = None

    @property
    def config(self) -> dict[str, Any]:
        fields = self.request.model_dump(exclude={"params", "batch_size"})
        return {**fields, **self.request.params.model_dump(), "batch_size": self.batch_size}

    def stats(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.started
        return {
            "total_processed": self.kept,
            "nonces_per_second": self.kept / seconds if seconds > 0 else 0.0,
            "total_failed": self.failed,
        }


class Miner:
    """At most one run. Owns its task, and closes and opens the gate around it."""

    def __init__(
        self,
        engine: PocEngine,
        device: Device,
        gate: Gate,
        settings: PocSettings,
    ) -> None:
        self._engine = engine
        self._device = device
        self._gate = gate
        self._settings = settings
        self._run: Run | None = None
        self._task: asyncio.Task[None] | None = None
        self._endings: set[asyncio.Task[None]] = set()
        self._failed: tuple[Run, str] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> bool:
        return self._task is not None

    async def idle(self) -> None:
        """Return when nothing is mined."""
        await self._idle.wait()

    def start(self, run: Run, deliveries: Deliveries | None) -> None:
        """Begin ``run``. The gate closes first: no request slips in before the task runs (F38)."""
        if self.running:
            raise RefusedError(409, "Already generating")
        if self._settings.policy == "exclusive":
            self._gate.close()
        try:
            task = asyncio.create_task(self._mine(run, deliveries))
        except BaseException:
            self._gate.open()
            raise
        self._run, self._task, self._failed = run, task, None
        self._idle.clear()
        task.add_done_callback(lambda done: self._ended(done, run, deliveries))

    async def stop(self, drain_seconds: float) -> None:
        """End the run, open the gate, wait for what is on the device. Idempotent (F51)."""
        self._failed = None
        if self._task is not None:
            task = self._task
            task.cancel()
            await asyncio.wait({task})  # _ended was called first: its callback is older
        if self._endings:
            await asyncio.wait(set(self._endings), timeout=drain_seconds)

    def status(self) -> dict[str, Any]:
        """The answer of ``/status``."""
        if self._run is not None:
            state: dict[str, Any] = {
                "status": "GENERATING",
                "config": self._run.config,
                "stats": self._run.stats(),
            }
        elif self._failed is not None:
            run, error = self._failed
            state = {
                "status": "ERROR",
                "config": run.config,
                "stats": run.stats(),
                "error": error,
            }
        else:
            state = {"status": "IDLE", "config": None, "stats": None}
        if self._device.overdue:
            state |= {"busy": True, "busy_seconds": self._device.busy_for}
        return state

    async def close(self) -> None:
        """End with the server. Close the device first; what came back is still kept."""
        if self._task is not None:
            task = self._task
            task.cancel()
            await asyncio.wait({task})
        if self._endings:
            await asyncio.wait(set(self._endings), timeout=CLOSE_SECONDS)

    async def _mine(self, run: Run, deliveries: Deliveries | None) -> None:
        if self._settings.policy == "exclusive":
            await self._clear_engine()
        run.position = await self._open_campaign(run, deliveries)
        request = run.request
        nonces = partition(
            request.node_id,
            request.node_count,
            request.group_id,
            request.n_groups,
            start=run.position,
        )
        for batch in _batches(nonces, run.batch_size):
            if deliveries is not None and request.url and deliveries.is_full(request.url):
                raise EngineFaultError(
                    f"{self._settings.callback_max_artifacts} artifacts wait for {request.url}; "
                    "mining stops until it takes them (none is lost)"
                )
            run.batch = await self._device.submit(request.challenge, batch)
            run.position += len(batch)
            vectors = await asyncio.shield(run.batch)
            # The next batch goes to the device while this one goes to the database.
            await self._stored(run)
            self._store(run, vectors, deliveries)
            run.batch = None
            self._count_lost(run, vectors)
            if self._settings.policy == "share":
                await self._gate.yield_to_chat(vectors.device_seconds, self._settings.share)
        await self._stored(run)

    async def _clear_engine(self) -> None:
        await self._engine.abort_all()
        for _ in range(STRAGGLER_SWEEPS):
            if self._gate.running == 0:
                return
            await asyncio.sleep(STRAGGLER_PAUSE)
            await self._engine.abort_all()

    async def _open_campaign(self, run: Run, deliveries: Deliveries | None) -> int:
        """Where in the partition to begin: 0, or where a crash of this server stopped this work."""
        request = run.request
        if deliveries is None or request.url is None:
            return 0
        opened = await deliveries.open_campaign(
            Campaign(
                url=request.url,
                caller=run.caller,
                kind="generated",
                head=callback_head(request),
                identity=_identity(request),
            )
        )
        run.campaign = opened.id
        return opened.position

    def _store(self, run: Run, vectors: Vectors, deliveries: Deliveries | None) -> None:
        store = asyncio.create_task(self._keep(run, vectors, run.position, deliveries))
        run.stores.add(store)

    async def _stored(self, run: Run) -> None:
        """Wait for earlier batches to be kept; raises what kept them from it."""
        for store in list(run.stores):
            await asyncio.shield(store)
            run.stores.discard(store)

    async def _keep(
        self, run: Run, vectors: Vectors, position: int, deliveries: Deliveries | None
    ) -> None:
        good = sum(vectors.finite)
        if deliveries is not None and run.campaign is not None and run.request.url is not None:
            await deliveries.append(
                run.campaign, run.request.url, good, artifacts_text(vectors), position
            )
        run.kept += good
        run.failed += len(vectors.finite) - good

    def _count_lost(self, run: Run, vectors: Vectors) -> None:
        run.lost_batches = 0 if any(vectors.finite) else run.lost_batches + 1
        if run.lost_batches == WHOLE_BATCHES_LOST:
            raise EngineFaultError(
                f"{WHOLE_BATCHES_LOST} batches in a row gave no finite vector; the engine computes "
                "NaN, look at its log and at the model's dtype"
            )

    def _ended(self, task: asyncio.Task[None], run: Run, deliveries: Deliveries | None) -> None:
        """Every way a run can end passes here: the gate opens first of all (F39)."""
        self._gate.open()
        self._run = self._task = None
        self._idle.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed = (run, str(error) or type(error).__name__)
            logger.error(
                "poc: mining stopped: %s",
                self._failed[1],
                exc_info=(None if isinstance(error, AssayError) else error),
            )
        ending = asyncio.get_running_loop().create_task(self._wind_down(run, deliveries))
        self._endings.add(ending)
        ending.add_done_callback(self._endings.discard)

    async def _wind_down(self, run: Run, deliveries: Deliveries | None) -> None:
        """Keep what the device still gives back, then close the campaign."""
        if run.batch is not None:
            await asyncio.wait({run.batch})
            if not run.batch.cancelled() and run.batch.exception() is None:
                self._store(run, run.batch.result(), deliveries)
        if run.stores:
            await asyncio.wait(run.stores)
        for store in run.stores:
            if not store.cancelled() and (error := store.exception()) is not None:
                logger.error("poc: the last batches of a run were not kept: %s", error)
        if deliveries is not None and run.campaign is not None:
            await deliveries.close_campaign(run.campaign)


def callback_head(request: Any, request_id: str | None = None) -> dict[str, Any]:
    """What every ``/generated`` of a run repeats; artifacts are added."""
    head = {
        "public_key": request.public_key,
        "block_hash": request.block_hash,
        "block_height": request.block_height,
        "node_id": request.node_id,
        "encoding": encoding(request.params.k_dim),
    }
    return head if request_id is None else {**head, "request_id": request_id}


def _batches(nonces: Iterator[int], size: int) -> Iterator[list[int]]:
    while batch := list(islice(nonces, size)):
        yield batch


def _identity(request: InitGenerate) -> str:
    """Names the work: equal for two requests that mine the same vectors in the same order."""
    fields = request.model_dump(exclude={"url", "batch_size"}, mode="json")
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
