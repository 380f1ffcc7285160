"""Mining: this node's nonces, batch after batch, until stopped."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from assay.delivery.couriers import Deliveries
from assay.errors import AssayError
from assay.plugin.poc.device import Device
from assay.plugin.poc.engine import PocEngine, Vectors
from assay.plugin.poc.failures import EngineFaultError, RefusedError
from assay.plugin.poc.gate import Gate
from assay.plugin.poc.payloads import artifacts_text
from assay.plugin.poc.run import Run, callback_head, identity_of, own_class
from assay.plugin.poc.settings import PocSettings
from assay.plugin.poc.shares import Released, Shares
from assay.poc.bodies import ChangeShares
from assay.store.outbox import Campaign

logger = logging.getLogger("vllm.assay")

WHOLE_BATCHES_LOST = 3
"""Batches in a row without one finite vector before mining stops: an engine fault, not bad luck."""
STRAGGLER_SWEEPS, STRAGGLER_PAUSE = 8, 0.25
"""Requests that had passed the gate but not yet reached the engine are aborted too: this often,
this many seconds apart."""
DRAIN_SECONDS = 30.0
CLOSE_SECONDS = 5.0


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

    async def change_shares(self, change: ChangeShares) -> tuple[list[Released], Shares]:
        """Let the run go of shares and take on others, at once or not at all. Raises RefusedError.

        What is released, and all that is held now. From now on the run waits at its last nonce.
        """
        run = self._run
        if run is None:
            raise RefusedError(409, "nothing is mined")
        if run.request.url != change.url:
            raise RefusedError(409, "url: what is mined goes to another one")
        if run.shares is None:
            await run.opened.wait()
        # Its task may have come to its end before we are told.
        if run.shares is None or self._run is not run or self._task is None or self._task.done():
            raise RefusedError(409, "nothing is mined any more")
        released = run.shares.change(change.release, change.add)
        run.waits = True
        run.news.set()
        return released, run.shares

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
        shares = await self._open_campaign(run, deliveries)
        request = run.request
        while await self._has_more(run, shares):
            if deliveries is not None and request.url and deliveries.is_full(request.url):
                raise EngineFaultError(
                    f"{self._settings.callback_max_artifacts} artifacts wait for {request.url}; "
                    "mining stops until it takes them (none is lost)"
                )
            batch = shares.take(run.batch_size)
            run.batch = await self._device.submit(request.challenge, batch)
            run.position = shares.first_position
            vectors = await asyncio.shield(run.batch)
            # The next batch goes to the device while this one goes to the database.
            await self._stored(run)
            self._store(run, vectors, deliveries)
            run.batch = None
            self._count_lost(run, vectors)
            if self._settings.policy == "share":
                await self._gate.yield_to_chat(vectors.device_seconds, self._settings.share)

    async def _has_more(self, run: Run, shares: Shares) -> bool:
        """Whether to go on: a run of shares waits for more, any other ends with its last nonce."""
        while True:
            run.news.clear()
            if not shares.exhausted:
                return True
            await self._stored(run)
            # No await from here to the task's end, or a change would be lost between them.
            if not run.waits and shares.exhausted:
                return False
            await run.news.wait()

    async def _clear_engine(self) -> None:
        await self._engine.abort_all()
        for _ in range(STRAGGLER_SWEEPS):
            if self._gate.running == 0:
                return
            await asyncio.sleep(STRAGGLER_PAUSE)
            await self._engine.abort_all()

    async def _open_campaign(self, run: Run, deliveries: Deliveries | None) -> Shares:
        """What to mine, from 0 or from where a crash of this server stopped the same work."""
        request = run.request
        position = 0
        if deliveries is not None and request.url is not None:
            opened = await deliveries.open_campaign(
                Campaign(
                    url=request.url,
                    caller=run.caller,
                    kind="generated",
                    head=callback_head(request),
                    identity=identity_of(request),
                )
            )
            run.campaign, position = opened.id, opened.position
        if run.shares is None:
            run.shares = own_class(request, position)
        run.position = run.shares.first_position
        run.opened.set()
        return run.shares

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
            marks = run.request.mark_failed
            count = len(vectors.finite) if marks else good
            text = artifacts_text(vectors, mark_failed=marks)
            await deliveries.append(run.campaign, run.request.url, count, text, position)
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
        run.opened.set()
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
        # One after the other, and none after one that was lost: a receiver takes a position that is
        # missing below another of its class for one that was not finite.
        kept = await self._all_kept(run)
        if kept and run.batch is not None and _came_back(run.batch):
            self._store(run, run.batch.result(), deliveries)
            await self._all_kept(run)
        if deliveries is not None and run.campaign is not None:
            await deliveries.close_campaign(run.campaign)

    async def _all_kept(self, run: Run) -> bool:
        """Wait for the batches that are being kept; False, and logged, when one was not."""
        if not run.stores:
            return True
        done, _ = await asyncio.wait(run.stores)
        lost = [store for store in done if not _came_back(store)]
        for store in lost:
            error = "cancelled" if store.cancelled() else store.exception()
            logger.error("poc: the last batches of a run were not kept: %s", error)
        return not lost


def _came_back(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and task.exception() is None
