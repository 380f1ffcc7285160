"""``/generate`` over all backends: one backend a job, in turn; another one when that is lost."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from assay.errors import AssayError
from assay.node.backend import Backend
from assay.node.failures import NoBackendError, NodeRefusal
from assay.node.pool import Pool
from assay.node.pow.calls import CHANGE_WITHIN, CallError, PowCalls
from assay.poc.bodies import Generate
from assay.store.pow_jobs import PowJobs
from assay.store.rounds_tables import KeptJob

logger = logging.getLogger("assay.node")

KNOWN_FOR = 300.0
"""Seconds an ended job is remembered, as long as backends keep results (spec http section 1)."""
KEPT_FOR = 3600.0
"""Seconds after which a job that a dead node left is not begun again: its block is long past."""
LOOK_EVERY = 2.0
"""Seconds between two looks at jobs that have not ended."""
ENDED = ("completed", "failed", "cancelled")


@dataclass(eq=False)
class Job:
    """``id``: ``port:uuid`` of the backend that first took it; it keeps it on every other one.

    ``token``: address of its callback, where somebody is to be told. ``remote``: its id on the
    backend that has it now. ``ended``: monotonic seconds.
    """

    body: Mapping[str, Any]
    token: str | None
    id: str = ""
    backend: Backend | None = None
    generation: int = 0
    remote: str = ""
    ended: float | None = None
    error: str | None = None

    @property
    def lost(self) -> bool:
        """Its backend's process is gone, and the job with it."""
        return self.backend is None or (
            self.backend.pid is None or self.backend.generation != self.generation
        )


class Jobs:
    """Jobs not yet ended, and those ended a while ago. ``inbox``: URL of a token's callback."""

    def __init__(
        self,
        pool: Pool,
        calls: PowCalls,
        kept: PowJobs,
        inbox: Callable[[str], str],
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._calls = calls
        self._kept = kept
        self._inbox = inbox
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._waiting: dict[int, int] = {}
        self._sent: dict[str, int] = {}
        self._turn = 0

    async def resume(self) -> None:
        """Take up the jobs that the node left when it last ended."""
        for kept in await asyncio.to_thread(self._kept.all):
            if kept.id is None or time.time() - kept.begun > KEPT_FOR:
                await asyncio.to_thread(self._kept.drop, kept.token)
                continue
            self._jobs[kept.id] = Job(json.loads(kept.body), kept.token, kept.id)

    def at_work(self, port: int) -> bool:
        """Whether a backend has jobs of this node."""
        return self._waiting.get(port, 0) > 0 or any(
            job.ended is None and job.backend is not None and job.backend.port == port
            for job in self._jobs.values()
        )

    async def submit(
        self, request: Generate, body: Mapping[str, Any], caller: str | None
    ) -> dict[str, Any]:
        """The answer of ``/pow/generate``: queued, or with ``wait`` the result.

        NodeRefusal with the backend's own status when it refuses, 503 without a backend, 502 when
        none answers.
        """
        kept = None
        if request.url is not None:
            kept = await asyncio.to_thread(self._kept.add, request.url, caller, json.dumps(body))
        job = Job(body, None if kept is None else kept.token)
        try:
            return await self._submit(job, wait=request.wait)
        except BaseException:
            if kept is not None and not job.id:
                await asyncio.shield(asyncio.to_thread(self._kept.drop, kept.token))
            raise

    async def result(self, job_id: str) -> dict[str, Any]:
        """The answer of ``/pow/generate/{id}``; NodeRefusal 404 for one nobody knows."""
        job = self._jobs.get(job_id)
        backend, remote = (job.backend, job.remote) if job is not None else self._find(job_id)
        if job is not None:
            if job.error is not None:
                return {"status": "failed", "request_id": job_id, "error": job.error}
            if job.lost:
                return {"status": "queued", "request_id": job_id}
        if backend is None:
            raise NodeRefusal(404, f"no such request; results are kept for {KNOWN_FOR:g} s")
        try:
            answer = await self._calls.get(backend, f"/generate/{remote}", CHANGE_WITHIN)
        except CallError as error:
            raise _refusal(error) from error
        return {**answer, "request_id": job_id}

    async def arrived(
        self, token: str, kind: Any, head: dict[str, Any], count: int, body: str
    ) -> KeptJob | None:
        """A job's callback: to the outbox, under the id the client knows. None for a repeated one."""
        job = next((job for job in self._jobs.values() if job.token == token), None)
        if job is not None:
            head["request_id"] = job.id
        elif token in self._sent:
            # It ended before its backend's answer to the request had been read.
            head["request_id"] = f"{self._sent[token]}:{head['request_id']}"
        return await asyncio.to_thread(self._kept.finish, token, kind, head, count, body)

    async def cancel_all(self) -> None:
        """After ``/stop``: the backends have called their jobs off."""
        for job in list(self._jobs.values()):
            if job.ended is None:
                await self._end(job, "stopped by POST /stop")

    async def watch(self) -> None:
        """Look after the jobs until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY):
                    await self._pool.changed()
            try:
                await self.look()
            except AssayError as error:
                logger.error("poc: jobs cannot be looked after: %s", error)

    async def look(self) -> None:
        """Find out which have ended; send those of lost backends to others; forget the old ones."""
        unfinished: dict[int, list[Job]] = {}
        for job in list(self._jobs.values()):
            if job.ended is not None:
                if self._clock() - job.ended > KNOWN_FOR:
                    self._jobs.pop(job.id, None)
            elif job.lost:
                await self._again(job)
            elif job.backend is not None:
                unfinished.setdefault(job.backend.port, []).append(job)
        await asyncio.gather(*(self._follow(jobs) for jobs in unfinished.values()))

    async def _follow(self, jobs: list[Job]) -> None:
        # A backend works on its jobs in order: the first that has not ended ends the look.
        for job in jobs:
            assert job.backend is not None
            try:
                answer = await self._calls.get(
                    job.backend, f"/generate/{job.remote}", CHANGE_WITHIN
                )
            except CallError as error:
                if error.status == 404 and not job.lost:
                    await self._end(job, "its backend does not know it any more")
                    continue
                return
            if answer.get("status") not in ENDED:
                return
            failed = answer["status"] != "completed"
            # A completed one is dropped by its callback, which may still be on the way.
            await self._end(job, None, forget=failed)

    async def _again(self, job: Job) -> None:
        try:
            await self._submit(job, wait=False)
        except NoBackendError:
            return
        except NodeRefusal as refusal:
            logger.warning("poc: job %s cannot be begun again: %s", job.id, refusal)
            if refusal.status not in (429, 502, 503):
                await self._end(job, str(refusal))

    async def _end(self, job: Job, error: str | None, *, forget: bool = True) -> None:
        job.ended, job.error = self._clock(), error
        if job.token is not None and forget:
            await asyncio.to_thread(self._kept.drop, job.token)

    async def _submit(self, job: Job, *, wait: bool) -> dict[str, Any]:
        tried: set[int] = set()
        last: CallError | None = None
        while (backend := self._next(tried)) is not None:
            tried.add(backend.port)
            try:
                return await self._send(job, backend, wait=wait)
            except CallError as error:
                last = error
                if error.status is not None and error.status < 500:
                    raise _refusal(error) from error
        if last is None:
            raise NoBackendError
        raise _refusal(last) from last

    async def _send(self, job: Job, backend: Backend, *, wait: bool) -> dict[str, Any]:
        body = {**job.body, "wait": wait}
        body["url"] = None if job.token is None else self._inbox(job.token)
        generation = backend.generation
        port = backend.port
        self._waiting[port] = self._waiting.get(port, 0) + 1
        if job.token is not None:
            self._sent[job.token] = port
        try:
            answer = await self._calls.post(
                backend, "/generate", body, None if wait else CHANGE_WITHIN
            )
        finally:
            self._waiting[port] -= 1
            self._sent.pop(job.token or "", None)
        job.remote = str(answer.get("request_id"))
        job.backend, job.generation = backend, generation
        if not job.id:
            job.id = f"{port}:{job.remote}"
            if job.token is not None:
                await asyncio.to_thread(self._kept.name, job.token, job.id)
        if wait:
            job.ended = self._clock()
        self._jobs[job.id] = job
        return {**answer, "request_id": job.id}

    def _next(self, tried: set[int]) -> Backend | None:
        """The healthy backend whose turn it is."""
        healthy = [backend for backend in self._pool.healthy() if backend.port not in tried]
        if not healthy:
            return None
        self._turn += 1
        return healthy[self._turn % len(healthy)]

    def _find(self, job_id: str) -> tuple[Backend | None, str]:
        port, _, remote = job_id.partition(":")
        found = [b for b in self._pool.healthy() if str(b.port) == port and remote.isalnum()]
        return (found[0], remote) if found else (None, "")


def _refusal(error: CallError) -> NodeRefusal:
    if error.status is None:
        return NodeRefusal(502, f"vLLM connection failed: {error}")
    detail = error.detail if isinstance(error.detail, dict) else str(error.detail)
    return NodeRefusal(error.status, detail)
