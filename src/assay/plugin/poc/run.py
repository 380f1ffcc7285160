"""One mining run: what was asked for, and how far it is."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from assay.plugin.poc.engine import Vectors
from assay.plugin.poc.shares import Shares
from assay.poc.artifacts import encoding
from assay.poc.bodies import Identity, InitGenerate, ShareRange

OURS = ("shares", "mark_failed")
"""Fields of an init by which a coordinator steers; they change nothing about the work."""


@dataclass
class Run:
    """``kept`` vectors are in the outbox (or, without a url, back from the device); ``failed`` had
    NaN or Inf. ``shares``: what is mined; None until it is known where to begin. ``position``: how
    far the share that was given first has gone to the device. ``waits``: at its last nonce the run
    waits for other shares. ``news`` is set by every change of the shares."""

    request: InitGenerate
    batch_size: int
    caller: str | None
    shares: Shares | None = None
    waits: bool = False
    started: float = field(default_factory=time.monotonic)
    position: int = 0
    kept: int = 0
    failed: int = 0
    lost_batches: int = 0
    campaign: int | None = None
    stores: set[asyncio.Task[None]] = field(default_factory=set)
    batch: asyncio.Task[Vectors] | None = None
    error: str | None = None
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def config(self) -> dict[str, Any]:
        fields = self.request.model_dump(exclude={"params", "batch_size", *OURS})
        config = {**fields, **self.request.params.model_dump(), "batch_size": self.batch_size}
        if self.waits and self.shares is not None:
            config["shares"] = self.shares.shown()
        return config

    def stats(self) -> dict[str, Any]:
        seconds = time.monotonic() - self.started
        return {
            "total_processed": self.kept,
            "nonces_per_second": self.kept / seconds if seconds > 0 else 0.0,
            "total_failed": self.failed,
        }


def own_class(request: InitGenerate, start: int) -> Shares:
    """The one share of a run that names none: its class from position ``start`` on."""
    return Shares(request, [ShareRange.model_construct(group_id=request.group_id, start=start)])


def identity_of(request: InitGenerate) -> str:
    """Names the work: equal for two requests that mine the same vectors in the same order.

    Empty, which is equal to nothing, with ``shares``: whoever gave them knows what arrived.
    """
    if request.shares is not None:
        return ""
    fields = request.model_dump(exclude={"url", "batch_size", *OURS}, mode="json")
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def callback_head(request: Identity, request_id: str | None = None) -> dict[str, Any]:
    """What every ``/generated`` of a run repeats; artifacts are added."""
    head = {
        "public_key": request.public_key,
        "block_hash": request.block_hash,
        "block_height": request.block_height,
        "node_id": request.node_id,
        "encoding": encoding(request.params.k_dim),
    }
    return head if request_id is None else {**head, "request_id": request_id}
