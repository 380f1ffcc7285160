"""``/generate`` over all backends: one backend a job, in turn; another one when that is lost."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from assay.errors import AssayError
from assay.node.backend import Backend
from assay.node.failures import NoBackendError, NodeRefusal
from assay.node.pool import Pool
from assay.node.pow.calls import CallError, PowCalls
from assay.node.pow.job import ENDED, KEPT_FOR, KNOWN_FOR, Job
from assay.node.pow.patience import Patience
from assay.node.pow.secrecy import Addresses
from assay.poc.bodies import Generate
from assay.store.outbox_tables import Kind
from assay.store.pow_jobs import PowJobs
from assay.store.rounds_tables import KeptJob

logger = logging.getLogger("assay.node")


class Jobs:
    """Jobs not yet over, and those over a while ago."""

    def __init__(
        self,
        pool: Pool,
        calls: PowCalls,
        kept: PowJobs,
        addresses: Addresses,
        *,
        clock: Callable[[], float],
        patience: Patience,
    ) -> None:
        self._pool = pool
        self._calls = calls
        self._kept = kept
        self._addresses = addresses
        self._clock = clock
        self._patience = patience
        self._jobs: dict[str, Job] = {}
        self._by_token: dict[str, Job] = {}
        self._waiting: dict[int, int] = {}
        self._sent: dict[str, int] = {}
        self._turn = -1

    async def resume(self) -> None:
        """Take up the jobs that the node left when it last ended."""
        for kept in await asyncio.to_thread(self._kept.all):
            if kept.id is None:
                await asyncio.to_thread(self._kept.drop, kept.token)
                continue
            job = Job(json.loads(kept.body), kept.token, kept.id, begun=kept.begun)
            self._jobs[kept.id] = self._by_token[kept.token] = job

    def at_work(self, port: int) -> bool:
        """Whether a backend has jobs of this node."""
        return self._waiting.get(port, 0) > 0 or any(
            not job.done and job.ended is None and job.backend and job.backend.port == port
            for job in self._jobs.values()
        )

    async def submit(
        self, request: Generate, body: Mapping[str, Any], caller: str | None
    ) -> dict[str, Any]:
        """The answer of ``/pow/generate``: queued, or with ``wait`` the result.

        NodeRefusal with the backend's own status when it refuses, 503 without a backend, 502 when
        none answers.
        """
        token = None
        if request.url is not None:
            text = await asyncio.to_thread(json.dumps, body)
            token = (await asyncio.to_thread(self._kept.add, request.url, caller, text)).token
        job = Job(body, token)
        try:
            return await self._submit(job, wait=request.wait)
        except BaseException:
            if token is not None and not job.id:
                await asyncio.shield(asyncio.to_thread(self._kept.drop, token))
            raise

    async def result(self, job_id: str) -> dict[str, Any]:
        """The answer of ``/pow/generate/{id}``; NodeRefusal 404 for one nobody knows."""
        job = self._jobs.get(job_id)
        backend, remote = (job.backend, job.remote) if job is not None else self._find(job_id)
        if job is not None and job.error is not None:
            return {"status": job.verdict, "request_id": job_id, "error": job.error}
        if job is not None and job.lost and job.ended is None:
            return {"status": "queued", "request_id": job_id}
        if backend is None or (job is not None and job.lost):
            raise NodeRefusal(404, f"no such request; results are kept for {KNOWN_FOR:g} s")
        try:
            answer = await self._calls.result(backend, remote)
        except CallError as error:
            if error.status is None and job is not None and job.ended is None:
                # The node has it: should its backend be gone, another one gets it.
                return {"status": "queued", "request_id": job_id}
            raise error.refusal() from error
        return {**answer, "request_id": job_id}

    async def arrived(
        self, token: str, kind: Kind, head: dict[str, Any], count: int, body: str
    ) -> KeptJob | None:
        """A job's callback: to the outbox, under the id the client knows. None for a repeated one."""
        job = self._by_token.get(token)
        if job is not None:
            head["request_id"] = job.id
        elif token in self._sent:
            # It ended before its backend's answer to the request had been read.
            head["request_id"] = f"{self._sent[token]}:{head['request_id']}"
        kept = await asyncio.to_thread(self._kept.finish, token, kind, head, count, body)
        if job is not None:
            job.told = True
        return kept

    async def cancel_all(self) -> None:
        """After ``/stop``: the backends have called their jobs off."""
        for job in list(self._jobs.values()):
            if job.ended is None and not job.done:
                await self._end(job, "stopped by POST /stop", "cancelled")

    async def watch(self) -> None:
        """Look after the jobs until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience.look):
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
                    self._forget(job)
            elif job.done and not job.untold:
                await self._end(job, None)
            elif job.lost:
                await self._again(job)
            elif job.backend is not None and not job.done:
                unfinished.setdefault(job.backend.port, []).append(job)
        await asyncio.gather(*(self._follow(jobs) for jobs in unfinished.values()))

    async def _follow(self, jobs: list[Job]) -> None:
        # A backend works on its jobs in order: the first that has not ended ends the look.
        for job in jobs:
            if job.backend is None or job.ended is not None:
                continue
            try:
                answer = await self._calls.result(job.backend, job.remote)
            except CallError as error:
                if error.status == 404 and not job.lost:
                    await self._end(job, "its backend does not know it any more")
                    continue
                return
            if answer.get("status") not in ENDED:
                return
            job.done = True
            if answer["status"] != "completed":
                # The backend keeps the reason, and no callback will come.
                await self._end(job, None)

    async def _again(self, job: Job) -> None:
        now = self._clock()
        if time.time() - job.begun > KEPT_FOR:
            await self._end(job, "its backend was lost, and no other one took it in time")
            return
        if job.asked is not None and now - job.asked < self._patience.rest:
            return
        try:
            await self._submit(job, wait=False)
        except NoBackendError:
            return
        except NodeRefusal as refusal:
            logger.warning("poc: job %s cannot be begun again: %s", job.id, refusal)
            job.asked = now
            # 409: it sleeps, or has another model; both may pass.
            if refusal.status < 500 and refusal.status not in (409, 429):
                await self._end(job, str(refusal))

    async def _end(self, job: Job, error: str | None, verdict: str = "failed") -> None:
        job.end(self._clock(), error, verdict)
        if job.untold and job.token is not None:
            await asyncio.to_thread(self._kept.drop, job.token)

    def _forget(self, job: Job) -> None:
        self._jobs.pop(job.id, None)
        if job.token is not None:
            self._by_token.pop(job.token, None)
            self._addresses.forget(job.token)

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
                    break
        if last is None:
            raise NoBackendError
        raise last.refusal() from last

    async def _send(self, job: Job, backend: Backend, *, wait: bool) -> dict[str, Any]:
        body = {**job.body, "wait": wait}
        body["url"] = None if job.token is None else self._addresses.url(job.token)
        generation = backend.generation
        port = backend.port
        self._waiting[port] = self._waiting.get(port, 0) + 1
        if job.token is not None:
            self._sent[job.token] = port
        try:
            answer = await self._calls.generate(backend, body, wait=wait)
            remote = str(answer.get("request_id"))
            if not job.id:
                job.id = f"{port}:{remote}"
                if job.token is not None:
                    self._by_token[job.token] = job
                    await asyncio.shield(asyncio.to_thread(self._kept.name, job.token, job.id))
        finally:
            self._waiting[port] -= 1
            self._sent.pop(job.token or "", None)
        job.remote, job.backend, job.generation, job.done = remote, backend, generation, wait
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
