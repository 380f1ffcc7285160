"""One PoC batch on the device at a time, whoever asks; it outlives the one who asked.

A batch is a call into the workers that nobody can call off. So it runs in a task of its own:
when its caller is cancelled the device is still known to be busy, and ``/stop`` can wait for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from assay.plugin.poc.engine import PocEngine, Vectors
from assay.plugin.poc.failures import AsleepError, EngineFaultError
from assay.plugin.poc.metrics import PocMetrics
from assay.poc.artifact_file import Challenge

LOOK_EVERY = 1.0
"""Seconds between looks at whether the engine still lives while a batch is out."""


class Device:
    """``overdue_after``: seconds after which a batch makes the server busy (case 30)."""

    def __init__(self, engine: PocEngine, metrics: PocMetrics, overdue_after: float) -> None:
        self._engine = engine
        self._metrics = metrics
        self._overdue_after = overdue_after
        self._lock = asyncio.Lock()
        self._batch: asyncio.Task[Vectors] | None = None
        self._since = 0.0

    @property
    def busy_for(self) -> float | None:
        """Seconds the present batch is out; None when the device is free of PoC."""
        return None if self._batch is None else time.monotonic() - self._since

    @property
    def overdue(self) -> bool:
        busy = self.busy_for
        return busy is not None and busy > self._overdue_after

    async def submit(self, challenge: Challenge, nonces: Sequence[int]) -> asyncio.Task[Vectors]:
        """Start a batch as soon as the device is free. Await the task under ``asyncio.shield``."""
        await self._lock.acquire()
        try:
            batch = asyncio.create_task(self._run(challenge, nonces))
        except BaseException:
            self._lock.release()
            raise
        self._batch, self._since = batch, time.monotonic()
        batch.add_done_callback(self._done)
        return batch

    async def forward(self, challenge: Challenge, nonces: Sequence[int]) -> Vectors:
        """Vectors of a batch; a cancelled caller leaves it running.

        Raises EngineFaultError and AsleepError.
        """
        return await asyncio.shield(await self.submit(challenge, nonces))

    async def free(self) -> None:
        """Return when no batch is out."""
        async with self._lock:
            return

    async def drain(self, seconds: float) -> bool:
        """Wait for the batch that is out; whether it ended within ``seconds`` (F51)."""
        batch = self._batch
        if batch is None:
            return True
        await asyncio.wait({batch}, timeout=seconds)
        return batch.done()

    async def close(self) -> None:
        """Forget the batch that is out: the server ends."""
        if self._batch is not None:
            self._batch.cancel()
            await asyncio.wait({self._batch})

    async def _run(self, challenge: Challenge, nonces: Sequence[int]) -> Vectors:
        if self._engine.errored:
            raise EngineFaultError("the engine is not running")
        call = asyncio.ensure_future(self._forward(challenge, nonces))
        try:
            while not call.done():
                await asyncio.wait({call}, timeout=LOOK_EVERY)
                if self._engine.errored and not call.done():
                    # A call to a dead engine may stay unanswered for ever.
                    raise EngineFaultError("the engine ended while it computed a PoC batch")
        finally:
            call.cancel()
        vectors = call.result()
        self._metrics.batch(vectors)
        return vectors

    async def _forward(self, challenge: Challenge, nonces: Sequence[int]) -> Vectors:
        if await self._engine.asleep():
            raise AsleepError
        self._since = time.monotonic()
        return await self._engine.forward(challenge, nonces)

    def _done(self, batch: asyncio.Task[Vectors]) -> None:
        self._batch = None
        self._lock.release()
        if not batch.cancelled():
            batch.exception()  # its caller may be gone; looked at, asyncio does not complain
