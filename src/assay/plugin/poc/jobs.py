"""``/generate``: jobs of given nonces, one after the other, while nothing is mined."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from assay.delivery.couriers import Deliveries
from assay.delivery.payload import with_artifacts
from assay.errors import AssayError
from assay.plugin.poc.device import Device
from assay.plugin.poc.engine import Vectors
from assay.plugin.poc.failures import EngineFaultError, RefusedError
from assay.plugin.poc.gate import Gate
from assay.plugin.poc.metrics import PocMetrics
from assay.plugin.poc.mining import Miner
from assay.plugin.poc.payloads import artifacts_text
from assay.plugin.poc.run import callback_head
from assay.plugin.poc.settings import PocSettings
from assay.plugin.poc.validation import Row, validated
from assay.poc.artifacts import encoding
from assay.poc.bodies import Generate
from assay.poc.settings import StatTest
from assay.store.outbox import Campaign

logger = logging.getLogger("vllm.assay")

State = Literal["queued", "running", "completed", "failed", "cancelled"]

CALLBACK_FIELDS = (
    "n_total",
    "n_mismatch",
    "mismatch_nonces",
    "p_value",
    "fraud_detected",
    "n_excluded",
    "excluded_nonces",
    "verdict",
    "reasons",
    "profile",
)
"""Of a validation, what the callback carries; the first five are what receivers read today."""


@dataclass
class Job:
    """One ``/generate`` request. ``result`` is the JSON body of its completed answer."""

    request: Generate
    test: StatTest
    batch_size: int
    profile: dict[str, Any]
    caller: str | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    state: State = "queued"
    error: str | None = None
    result: bytes | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def body(self) -> bytes | dict[str, Any]:
        """What ``GET /generate/{id}`` answers."""
        if self.result is not None:
            return self.result
        state: dict[str, Any] = {"status": self.state, "request_id": self.id}
        return state if self.error is None else {**state, "error": self.error}


class JobQueue:
    """Bounded by nonces; results are kept for a while. Owns the one task that works on jobs."""

    def __init__(
        self,
        device: Device,
        gate: Gate,
        miner: Miner,
        settings: PocSettings,
        metrics: PocMetrics,
    ) -> None:
        self._device = device
        self._gate = gate
        self._miner = miner
        self._settings = settings
        self._metrics = metrics
        self._jobs: dict[str, Job] = {}
        self._queue: deque[Job] = deque()
        self._deliveries: dict[str, Deliveries] = {}
        self._news = asyncio.Event()
        self._running: tuple[Job, asyncio.Task[None]] | None = None
        self._worker: asyncio.Task[None] | None = None

    @property
    def nonces(self) -> int:
        """Nonces that wait or run."""
        return sum(
            len(job.request.nonces)
            for job in self._jobs.values()
            if job.state in ("queued", "running")
        )

    @property
    def busy(self) -> bool:
        return self.nonces > 0

    def submit(self, job: Job, deliveries: Deliveries | None) -> int:
        """Queue a job; returns how many nonces are queued with it. RefusedError 429 when too many."""
        count, limit = len(job.request.nonces), self._settings.max_queued_nonces
        if self.nonces + count > limit:
            raise RefusedError(
                429,
                f"{count} nonces more would be over the limit of {limit} queued nonces "
                f"({self.nonces} are queued)",
            )
        results = self._settings.callback_queue_size
        if deliveries is not None and deliveries.waiting().results >= results:
            raise RefusedError(
                429, f"{results} validation results wait for their receivers already"
            )
        if deliveries is not None:
            self._deliveries[job.id] = deliveries
        self._jobs[job.id] = job
        self._queue.append(job)
        self._metrics.queued.set(self.nonces)
        self._news.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return self.nonces

    def get(self, job_id: str) -> Job | None:
        return self._jobs.get(job_id)

    def cancel(self, job: Job, why: str) -> None:
        """End a job that has not ended. A batch of it on the device runs out by itself."""
        if job.state not in ("queued", "running"):
            return
        if self._running is not None and self._running[0] is job:
            self._running[1].cancel()
        else:
            self._queue.remove(job)
        self._end(job, "cancelled", why)

    def cancel_all(self, why: str) -> None:
        for job in list(self._jobs.values()):
            self.cancel(job, why)

    async def close(self) -> None:
        self.cancel_all("the server stops")
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait({self._worker})

    async def _work(self) -> None:
        while True:
            while not self._queue:
                self._news.clear()
                await self._news.wait()
            await self._miner.idle()
            if not self._queue:
                continue  # cancelled meanwhile
            job = self._queue.popleft()
            job.state = "running"
            task = asyncio.create_task(self._run(job))
            self._running = (job, task)
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()
                self._running = None
            if not task.cancelled() and (error := task.exception()) is not None:
                # Not one of the failures a job may meet: a fault of this program. It must not
                # take the queue with it.
                logger.error("poc: job %s met a fault", job.id, exc_info=error)
                self._end(job, "failed", f"internal fault: {type(error).__name__}: {error}")

    async def _run(self, job: Job) -> None:
        try:
            pieces, computed, failed = await self._compute(job)
            head = await self._head(job, computed, failed)
            await self._callback(job, pieces, head)
        except AssayError as error:
            self._end(job, "failed", str(error))
            return
        validation = job.request.validation is not None
        job.result = json.dumps(head).encode() if validation else with_artifacts(head, pieces)
        self._end(job, "completed", None)

    async def _compute(self, job: Job) -> tuple[list[str], dict[int, Row], list[int]]:
        """Artifact texts, finite rows by nonce (for a validation), nonces that failed."""
        request, size = job.request, job.batch_size
        pieces: list[str] = []
        computed: dict[int, Row] = {}
        failed: list[int] = []
        for start in range(0, len(request.nonces), size):
            # Mining has priority: a job under way waits between two chunks.
            await self._miner.idle()
            vectors = await self._chunk(job, list(request.nonces[start : start + size]))
            failed += [
                n for n, good in zip(vectors.nonces, vectors.finite, strict=True) if not good
            ]
            if request.validation is None:
                pieces.append(artifacts_text(vectors))
            else:
                computed |= _finite_rows(vectors)
            if start + size < len(request.nonces):
                # Validation never aborts chat; it leaves it room instead, under either policy.
                await self._gate.yield_to_chat(vectors.device_seconds, self._settings.share)
        if len(failed) == len(request.nonces):
            raise EngineFaultError("no nonce gave a finite vector; the engine computes NaN")
        return pieces, computed, failed

    async def _chunk(self, job: Job, nonces: list[int]) -> Vectors:
        await self._device.free()
        limit = self._settings.generate_chunk_timeout_sec
        try:
            async with asyncio.timeout(limit):
                return await self._device.forward(job.request.challenge, nonces)
        except TimeoutError as error:
            raise EngineFaultError(
                f"a chunk of {len(nonces)} nonces took more than {limit:g} s "
                "(POC_GENERATE_CHUNK_TIMEOUT_SEC)"
            ) from error

    async def _head(self, job: Job, computed: dict[int, Row], failed: list[int]) -> dict[str, Any]:
        """The completed answer without its artifacts."""
        head: dict[str, Any] = {"status": "completed", "request_id": job.id}
        request = job.request
        if request.validation is None:
            return {
                **head,
                "encoding": encoding(request.params.k_dim),
                "failed_nonces": failed,
                "profile": job.profile,
            }
        verdict = await asyncio.to_thread(
            validated, request.challenge, request.validation, computed, job.test, job.profile
        )
        return {**head, **verdict}

    async def _callback(self, job: Job, pieces: list[str], head: dict[str, Any]) -> None:
        request = job.request
        deliveries = self._deliveries.get(job.id)
        if deliveries is None or request.url is None:
            return
        identity = callback_head(request, job.id)
        if request.validation is None:
            count = len(request.nonces) - len(head["failed_nonces"])
            campaign = Campaign(request.url, job.caller, "generated", identity)
            await deliveries.add(campaign, count, ",".join(piece for piece in pieces if piece))
            return
        del identity["encoding"]
        result = {name: head[name] for name in CALLBACK_FIELDS}
        await deliveries.add(Campaign(request.url, job.caller, "validated", {**identity, **result}))

    def _end(self, job: Job, state: State, error: str | None) -> None:
        if job.done.is_set():
            return
        job.state, job.error = state, error
        self._deliveries.pop(job.id, None)
        self._metrics.queued.set(self.nonces)
        job.done.set()
        asyncio.get_running_loop().call_later(
            self._settings.generate_result_ttl_sec, self._jobs.pop, job.id, None
        )


def _finite_rows(vectors: Vectors) -> dict[int, Row]:
    rows = vectors.rows()
    return {
        nonce: rows[index] for index, nonce in enumerate(vectors.nonces) if vectors.finite[index]
    }
