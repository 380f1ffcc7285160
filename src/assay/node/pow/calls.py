"""Requests to one backend's ``/api/v1/pow`` routes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import httpx

from assay.errors import AssayError
from assay.node.backend import Backend
from assay.node.failures import NodeRefusal
from assay.node.pool import Pool
from assay.node.pow.patience import Patience
from assay.node.pow.secrecy import without_secrets

LARGE = 200_000
"""Bytes of JSON that are read and written in a thread: streams of others pass here meanwhile."""
LOOK_AGAIN = 1.0
"""Seconds between two looks at a backend that is expected to begin."""


class CallError(AssayError):
    """A backend refused (``status``), or gave no answer (None: it may have done it all the same)."""

    def __init__(self, backend: Backend, status: int | None, detail: Any) -> None:
        self.detail = without_secrets(detail)
        super().__init__(f"backend {backend.port}: {self.detail}")
        self.port = backend.port
        self.status = status

    def to_json(self) -> dict[str, Any]:
        """One entry of ``errors``."""
        return {"port": self.port, "status_code": self.status, "error": self.detail}

    def refusal(self) -> NodeRefusal:
        """What the node answers when this is all there is to say."""
        if self.status is None:
            return NodeRefusal(502, f"vLLM connection failed: {self}")
        detail = self.detail if isinstance(self.detail, dict) else str(self.detail)
        return NodeRefusal(self.status, detail)


def all_failed(errors: Sequence[CallError]) -> NodeRefusal:
    """What all backends refuse alike is the answer (case 44: they sleep); else 502."""
    shown = [error.to_json() for error in errors]
    statuses = {error.status for error in errors}
    status = statuses.pop() if len(statuses) == 1 else None
    if status is None or not 400 <= status < 500:
        return NodeRefusal(502, {"error": "no backend began to generate", "errors": shown})
    detail = errors[0].detail
    said = detail if isinstance(detail, dict) else {"error": str(detail)}
    return NodeRefusal(status, {**said, "errors": shown})


class PowCalls:
    """``http``: the node's client for control requests. Every method may raise CallError."""

    def __init__(self, http: httpx.AsyncClient, pool: Pool, patience: Patience) -> None:
        self._http = http
        self._pool = pool
        self._patience = patience

    async def init(
        self, backend: Backend, body: Mapping[str, Any], *, rejoin: bool
    ) -> dict[str, Any]:
        """Begin to mine; given up as soon as the backend is no longer well."""
        limit = self._patience.rejoin if rejoin else self._patience.begin
        call = self.post(backend, "/init/generate", body, limit)
        return await self._while_well(backend, call)

    async def stop(self, backend: Backend) -> dict[str, Any]:
        return await self.post(backend, "/stop", {}, self._patience.stop)

    async def stop_all(
        self, backends: Sequence[Backend]
    ) -> tuple[list[dict[str, Any]], list[CallError]]:
        """Answers and failures. Does not raise CallError."""
        results: list[dict[str, Any]] = []
        errors: list[CallError] = []

        async def one(backend: Backend) -> None:
            try:
                results.append({"port": backend.port, **await self.stop(backend)})
            except CallError as error:
                errors.append(error)

        await asyncio.gather(*(one(backend) for backend in backends))
        return sorted(results, key=lambda r: int(r["port"])), sorted(errors, key=lambda e: e.port)

    async def shares(self, backend: Backend, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.post(backend, "/shares", body, self._patience.change)

    async def generate(
        self, backend: Backend, body: Mapping[str, Any], *, wait: bool
    ) -> dict[str, Any]:
        """Queue a job, or with ``wait`` see it through."""
        if wait:
            return await self._while_well(backend, self.post(backend, "/generate", body, None))
        return await self.post(backend, "/generate", body, self._patience.change)

    async def result(self, backend: Backend, remote: str) -> dict[str, Any]:
        """What has become of a job. ``remote``: its id there, of letters and digits."""
        return await self._call("GET", backend, f"/generate/{remote}", self._patience.change, None)

    async def state(self, backend: Backend) -> dict[str, Any]:
        """What its proof of compute does; ``UNKNOWN`` without an answer. Never raises CallError."""
        try:
            return await self._call("GET", backend, "/status", self._patience.tell, None)
        except CallError:
            return {"status": "UNKNOWN"}

    async def post(
        self, backend: Backend, path: str, body: Mapping[str, Any], timeout_s: float | None
    ) -> dict[str, Any]:
        """The JSON object it answers; CallError for anything else."""
        return await self._call("POST", backend, path, timeout_s, body)

    async def _while_well(
        self, backend: Backend, call: Coroutine[Any, Any, dict[str, Any]]
    ) -> dict[str, Any]:
        generation = backend.generation
        asked = asyncio.create_task(call)
        try:
            while not asked.done():
                if not backend.healthy or backend.generation != generation:
                    raise CallError(backend, None, f"no answer: it is {backend.state}")
                news = asyncio.create_task(self._pool.changed())
                try:
                    await asyncio.wait(
                        {asked, news}, timeout=LOOK_AGAIN, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    news.cancel()
            return asked.result()
        finally:
            if not asked.done():
                asked.cancel()
                await asyncio.wait({asked})

    async def _call(
        self,
        method: str,
        backend: Backend,
        path: str,
        timeout_s: float | None,
        body: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        headers = dict(backend.headers)
        content = None
        if body is not None:
            content = await asyncio.to_thread(json.dumps, body)
            headers["Content-Type"] = "application/json"
        try:
            # The limit of httpx is for each read; this one is for the whole of it.
            async with asyncio.timeout(timeout_s):
                answer = await self._http.request(
                    method,
                    f"{backend.base_url}/api/v1/pow{path}",
                    content=content,
                    headers=headers,
                    timeout=timeout_s,
                )
        except httpx.HTTPError as error:
            words = str(error) or type(error).__name__
            raise CallError(backend, None, f"no answer: {words}") from error
        except TimeoutError as error:
            raise CallError(backend, None, f"no answer within {timeout_s:g} s") from error
        read = await _read(answer)
        if not answer.is_success:
            detail = read.get("detail", read) if isinstance(read, dict) else answer.text[:500]
            raise CallError(backend, answer.status_code, detail)
        if not isinstance(read, dict):
            # It may have done what it was asked: as with no answer at all, nobody knows (case 32).
            raise CallError(backend, None, "its answer is no JSON object, or broke off")
        return read


async def _read(answer: httpx.Response) -> Any:
    try:
        if len(answer.content) > LARGE:
            return await asyncio.to_thread(answer.json)
        return answer.json()
    except ValueError:
        return None
