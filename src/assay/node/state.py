"""What the node is doing, in the words clients know."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from assay.node.backend import Backend
from assay.node.node import Node

STATUS_WITHIN = 3.0
"""Seconds a backend has to say what its proof of compute does."""


def service_state(node: Node) -> str:
    """``INFERENCE`` while a model is up or starting, else ``STOPPED``."""
    return "INFERENCE" if node.supervisor.phase in ("starting", "running") else "STOPPED"


async def poc_status(node: Node) -> str:
    """``NO_BACKENDS``; ``GENERATING`` when all healthy backends mine, ``IDLE`` when none does."""
    healthy = node.pool.healthy()
    if not healthy:
        return "NO_BACKENDS"
    answers = await asyncio.gather(*(pow_status(node, backend) for backend in healthy))
    states = {answer.get("status") for answer in answers}
    if states == {"GENERATING"}:
        return "GENERATING"
    return "MIXED" if "GENERATING" in states else "IDLE"


async def pow_status(node: Node, backend: Backend) -> dict[str, Any]:
    """Body of one backend's ``/api/v1/pow/status``; ``{"status": "UNKNOWN"}`` without an answer."""
    try:
        answer = await node.http.get(
            f"{backend.base_url}/api/v1/pow/status",
            headers=dict(backend.headers),
            timeout=STATUS_WITHIN,
        )
        body = answer.json() if answer.status_code == httpx.codes.OK else None
    except (httpx.HTTPError, ValueError):
        body = None
    return body if isinstance(body, dict) else {"status": "UNKNOWN"}
