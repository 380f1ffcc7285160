"""Requests to one backend's ``/api/v1/pow`` routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from assay.errors import AssayError
from assay.node.backend import Backend

INIT_WITHIN = 90.0
"""Seconds to begin: a backend just started probes its engine first."""
STOP_WITHIN = 40.0
"""Seconds to stop: a backend waits up to 30 for what is on its device."""
CHANGE_WITHIN = 15.0
"""Seconds to change the shares of a run, and to queue a job."""


class CallError(AssayError):
    """A backend refused (``status``), or gave no answer (None: it may have done it all the same)."""

    def __init__(self, backend: Backend, status: int | None, detail: object) -> None:
        super().__init__(f"backend {backend.port}: {detail}")
        self.port = backend.port
        self.status = status
        self.detail = detail

    def to_json(self) -> dict[str, Any]:
        """One entry of ``errors``."""
        return {"port": self.port, "status_code": self.status, "error": self.detail}


class PowCalls:
    """``http``: the node's client for control requests."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def init(self, backend: Backend, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.post(backend, "/init/generate", body, INIT_WITHIN)

    async def stop(self, backend: Backend) -> dict[str, Any]:
        return await self.post(backend, "/stop", {}, STOP_WITHIN)

    async def shares(self, backend: Backend, body: Mapping[str, Any]) -> dict[str, Any]:
        return await self.post(backend, "/shares", body, CHANGE_WITHIN)

    async def post(
        self,
        backend: Backend,
        path: str,
        body: Mapping[str, Any],
        timeout_s: float | None,
    ) -> dict[str, Any]:
        """The JSON object it answers; CallError for anything else."""
        return await self._call("POST", backend, path, timeout_s, body)

    async def get(self, backend: Backend, path: str, timeout_s: float) -> dict[str, Any]:
        return await self._call("GET", backend, path, timeout_s, None)

    async def _call(
        self,
        method: str,
        backend: Backend,
        path: str,
        timeout_s: float | None,
        body: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        url = f"{backend.base_url}/api/v1/pow{path}"
        try:
            answer = await self._http.request(
                method, url, json=body, headers=dict(backend.headers), timeout=timeout_s
            )
        except httpx.HTTPError as error:
            words = str(error) or type(error).__name__
            raise CallError(backend, None, f"no answer: {words}") from error
        try:
            read = answer.json()
        except ValueError:
            read = None
        if not answer.is_success:
            detail = read.get("detail", read) if isinstance(read, dict) else answer.text[:500]
            raise CallError(backend, answer.status_code, detail)
        if not isinstance(read, dict):
            raise CallError(backend, answer.status_code, "answered something that is no object")
        return read
