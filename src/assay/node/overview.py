"""What the page shows: backends, what they do, and the last verdicts, as one JSON object."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from assay import __version__
from assay.node.backend import Backend
from assay.node.checks import Checks
from assay.node.node import Node
from assay.node.state import STATUS_WITHIN, pow_status, service_state
from assay.store.result import VerifyResult

VERDICTS = 20
"""Verdicts on the page, newest first."""
SHORTEST_S = 0.5
"""Two looks closer together than this make no rate: the older one is kept."""


class BackendView(BaseModel):
    """``tokens_per_s``: prompt and output tokens, since the look before; None at the first look.
    ``gate``: closed (mining has the device), open, or unknown."""

    port: int
    state: str
    reason: str
    model: str | None
    gpus: list[str]
    in_flight: int
    restarts: int
    seconds_in_state: float
    tokens_per_s: float | None
    poc: str
    nonces_per_s: float | None
    gate: str


class VerdictView(BaseModel):
    claim: str
    label: str
    verdict: str
    reason: str
    decided_at: str


class Overview(BaseModel):
    version: str
    state: str
    phase: str
    error: str | None
    loaded_model: str | None
    backends: list[BackendView]
    verdicts: list[VerdictView]


@dataclass(frozen=True)
class _Look:
    generation: int
    tokens: float
    at: float


class Overviews:
    """Makes overviews; remembers the token counters of the look before."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._looks: dict[int, _Look] = {}
        self._rates: dict[int, float] = {}

    async def now(self) -> Overview:
        node = self._node
        asked = node.supervisor.request
        views, verdicts = await asyncio.gather(
            asyncio.gather(*(self._view(backend) for backend in node.pool.backends)),
            asyncio.to_thread(node.store.latest, VERDICTS),
        )
        return Overview(
            version=__version__,
            state=service_state(node),
            phase=node.supervisor.phase,
            error=node.supervisor.error,
            loaded_model=None if asked is None else asked.model,
            backends=list(views),
            verdicts=[_verdict(result) for result in verdicts],
        )

    async def _view(self, backend: Backend) -> BackendView:
        poc: dict[str, Any] = {"status": "UNKNOWN"}
        rate = None
        if backend.healthy:
            poc, rate = await asyncio.gather(pow_status(self._node, backend), self._rate(backend))
        stats = poc.get("stats")
        speed = stats.get("nonces_per_second") if isinstance(stats, dict) else None
        return BackendView(
            port=backend.port,
            state=backend.state.value,
            reason=backend.reason,
            model=backend.model,
            gpus=list(backend.gpus),
            in_flight=backend.in_flight,
            restarts=backend.restarts,
            seconds_in_state=self._node.clock() - backend.since,
            tokens_per_s=rate,
            poc=str(poc.get("status")),
            nonces_per_s=float(speed) if isinstance(speed, int | float) else None,
            gate={"GENERATING": "closed", "UNKNOWN": "unknown"}.get(str(poc["status"]), "open"),
        )

    async def _rate(self, backend: Backend) -> float | None:
        """Tokens per second since the look before; a restart begins anew."""
        work = await Checks(self._node.http, backend, STATUS_WITHIN).work()
        if work is None:
            return None
        before, at = self._looks.get(backend.port), self._node.clock()
        if before is None or before.generation != backend.generation:
            self._rates.pop(backend.port, None)
        elif at - before.at < SHORTEST_S:
            return self._rates.get(backend.port)
        else:
            self._rates[backend.port] = (work.tokens - before.tokens) / (at - before.at)
        self._looks[backend.port] = _Look(backend.generation, work.tokens, at)
        return self._rates.get(backend.port)


def _verdict(result: VerifyResult) -> VerdictView:
    reasons = result.verdict.reasons
    return VerdictView(
        claim=result.claim.id,
        label=result.label,
        verdict=result.verdict.verdict,
        reason=reasons[0].message if reasons else "",
        decided_at=result.decided_at.isoformat(timespec="seconds"),
    )
