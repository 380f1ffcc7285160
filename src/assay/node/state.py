"""What the node is doing, in the words clients know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
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
    """What all healthy backends do: ``GENERATING``, ``VALIDATING`` or ``IDLE``; ``MIXED`` when they
    do not do the same, ``NO_BACKENDS`` when there is none."""
    healthy = node.pool.healthy()
    answers = await asyncio.gather(*(pow_status(node, backend) for backend in healthy))
    return one_word(
        activity(answer, node.validating(backend.port), node.mining(backend.port))
        for backend, answer in zip(healthy, answers, strict=True)
    )


def one_word(states: Iterable[str]) -> str:
    """The state all are in; ``MIXED`` when they differ, ``NO_BACKENDS`` when there is none."""
    found = set(states)
    if not found:
        return "NO_BACKENDS"
    return found.pop() if len(found) == 1 else "MIXED"


def activity(answer: Mapping[str, Any], has_jobs: bool, mines: bool) -> str:
    """One backend's, from its status and from what the node has given it: jobs, a part of a round.

    Without an answer the node says what it believes; it takes a part away from one that is silent.
    """
    status = answer.get("status")
    if status == "GENERATING" or (status == "UNKNOWN" and mines):
        return "GENERATING"
    return "VALIDATING" if has_jobs else "IDLE"


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
