"""What the page shows: backends, what they do, and the last verdicts, as one JSON object."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from assay import __version__
from assay.node.backend import Backend
from assay.node.checks import read_work
from assay.node.node import Node
from assay.node.state import STATUS_WITHIN, pow_status, service_state
from assay.store.result import VerifyResult

VERDICTS = 20
"""Verdicts on the page, newest first."""
SHORTEST_S = 0.5
"""Two looks closer together than this make no rate: the older one is kept."""
GATE = "assay_poc_gate_closed"
"""The backend's own word on its gate. Mining alone does not tell: under the share policy chat goes
on."""


class BackendView(BaseModel):
    """``tokens_per_s``: prompt and output tokens, since the look before; None at the first look.
    ``poc``: IDLE, GENERATING, VALIDATING (jobs of this node), ERROR or UNKNOWN. ``classes``: residue
    classes of the round it mines. ``gate``: closed (routes that generate answer 503), open, or
    unknown."""

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
    classes: list[int]
    gate: str


class VerdictView(BaseModel):
    claim: str
    label: str
    verdict: str
    reason: str
    decided_at: str


class RoundView(BaseModel):
    """The mining round under way. ``unassigned``: classes nobody mines now. ``degraded``: not every
    class has a backend of its own, for ``reason``."""

    block_hash: str
    n_groups: int
    unassigned: list[int]
    total_kept: int
    degraded: bool
    reason: str | None


class Overview(BaseModel):
    """``commit`` and ``weights_digest``: of the model files, where known; see ``/models/served``."""

    version: str
    state: str
    phase: str
    error: str | None
    loaded_model: str | None
    commit: str | None
    weights_digest: str | None
    round: RoundView | None
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
        under_way = await node.round()
        classes = {} if under_way is None else under_way["classes"]
        backends = node.pool.backends
        served = await node.served.of(backends[0]) if backends else None
        views, verdicts = await asyncio.gather(
            asyncio.gather(*(self._view(one, classes.get(str(one.port), [])) for one in backends)),
            asyncio.to_thread(node.store.latest, VERDICTS),
        )
        return Overview(
            version=__version__,
            state=service_state(node),
            phase=node.supervisor.phase,
            error=node.supervisor.error,
            loaded_model=None if asked is None else asked.model,
            commit=None if served is None else served.commit,
            weights_digest=None if served is None else served.weights_digest,
            round=None if under_way is None else RoundView.model_validate(under_way),
            backends=list(views),
            verdicts=[_verdict(result) for result in verdicts],
        )

    async def _view(self, backend: Backend, classes: list[int]) -> BackendView:
        poc: dict[str, Any] = {"status": "UNKNOWN"}
        page = None
        if backend.healthy:
            poc, page = await asyncio.gather(
                pow_status(self._node, backend), self._metrics(backend)
            )
        word = str(poc.get("status"))
        if word == "IDLE" and self._node.validating(backend.port):
            word = "VALIDATING"
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
            tokens_per_s=None if page is None else self._rate(backend, page),
            poc=word,
            nonces_per_s=float(speed) if isinstance(speed, int | float) else None,
            classes=classes,
            gate="closed" if poc.get("busy") is True else gate_of(page),
        )

    async def _metrics(self, backend: Backend) -> str | None:
        """A backend's own ``/metrics``; None without an answer."""
        try:
            answer = await self._node.http.get(
                f"{backend.base_url}/metrics",
                headers=dict(backend.headers),
                timeout=STATUS_WITHIN,
            )
        except httpx.HTTPError:
            return None
        return answer.text if answer.status_code == httpx.codes.OK else None

    def _rate(self, backend: Backend, page: str) -> float | None:
        """Tokens per second since the look before; a restart begins anew."""
        work = read_work(page)
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


def gate_of(page: str | None) -> str:
    """``closed``, ``open`` or, where a metrics page does not say, ``unknown``."""
    lines = [line for line in (page or "").splitlines() if line.startswith(GATE)]
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError:
        return "unknown"
    values = [sample.value for family in families for sample in family.samples]
    if not values:
        return "unknown"
    return "closed" if any(value > 0 for value in values) else "open"


def _verdict(result: VerifyResult) -> VerdictView:
    reasons = result.verdict.reasons
    return VerdictView(
        claim=result.claim.id,
        label=result.label,
        verdict=result.verdict.verdict,
        reason=reasons[0].message if reasons else "",
        decided_at=result.decided_at.isoformat(timespec="seconds"),
    )
