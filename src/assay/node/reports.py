"""``/api/v1/state``, ``/versions`` and ``/gpu/*``: what this node is and has."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

import httpx
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay import __version__
from assay.node import gpus
from assay.node.failures import NodeRefusal
from assay.node.node import Node
from assay.node.part import Part, Route
from assay.node.state import STATUS_WITHIN, poc_status, service_state


class State(BaseModel):
    state: str
    version: str
    poc_status: str
    inference_healthy: bool
    loaded_model: str | None
    poc_validation_inference: bool


class Versions(BaseModel):
    assay_version: str
    vllm_version: str | None
    poc_validation_inference: bool
    backends: list[dict[str, Any]]


class Devices(BaseModel):
    """``reason``: why there are none, where there are none."""

    devices: list[dict[str, Any]]
    count: int
    reason: str | None = None


def part(node: Node) -> Part:
    routes = _Reports(node)
    return Part(
        [
            Route("GET", "/api/v1/state", routes.state, answer=State),
            Route("GET", "/api/v1/versions", routes.versions, answer=Versions),
            Route("GET", "/api/v1/gpu/devices", routes.devices, answer=Devices),
            Route("GET", "/api/v1/gpu/driver", routes.driver),
        ]
    )


class _Reports:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def state(self, request: Request) -> Response:
        node = self._node
        asked = node.supervisor.request
        status, versions = await asyncio.gather(poc_status(node), self._versions())
        report = State(
            state=service_state(node),
            version=node.config.report_version or __version__,
            poc_status=status,
            inference_healthy=bool(node.pool.healthy()),
            loaded_model=None if asked is None else asked.model,
            poc_validation_inference=_all_can(versions),
        )
        return JSONResponse(report.model_dump())

    async def versions(self, request: Request) -> Response:
        found = await self._versions()
        report = Versions(
            assay_version=__version__,
            vllm_version=next((v["vllm_version"] for v in found if "vllm_version" in v), None),
            poc_validation_inference=_all_can(found),
            backends=found,
        )
        return JSONResponse(report.model_dump())

    async def devices(self, request: Request) -> Response:
        """A machine without NVIDIA GPUs has none, which is an answer and no error."""
        found, reason = await asyncio.to_thread(gpus.devices)
        report = Devices(devices=[asdict(d) for d in found], count=len(found), reason=reason)
        return JSONResponse(report.model_dump())

    async def driver(self, request: Request) -> Response:
        """503 where there is no driver, as clients expect."""
        found = await asyncio.to_thread(gpus.driver)
        if isinstance(found, str):
            raise NodeRefusal(503, found)
        return JSONResponse(found)

    async def _versions(self) -> list[dict[str, Any]]:
        """One entry a healthy backend, from its own ``/api/v1/pow/versions``."""
        node = self._node

        async def ask(port: int, url: str, headers: dict[str, str]) -> dict[str, Any]:
            try:
                answer = await node.http.get(
                    f"{url}/api/v1/pow/versions", headers=headers, timeout=STATUS_WITHIN
                )
                body = answer.json() if answer.status_code == httpx.codes.OK else {}
            except (httpx.HTTPError, ValueError):
                body = {}
            return {"port": port, **(body if isinstance(body, dict) else {})}

        return list(
            await asyncio.gather(
                *(ask(b.port, b.base_url, dict(b.headers)) for b in node.pool.healthy())
            )
        )


def _all_can(versions: list[dict[str, Any]]) -> bool:
    """Whether every backend keeps serving while it validates; False without backends."""
    return bool(versions) and all(v.get("poc_validation_inference") is True for v in versions)
