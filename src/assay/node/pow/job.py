"""One ``/generate`` request, as the node has it in memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.node.backend import Backend

KNOWN_FOR = 300.0
"""Seconds an ended job is remembered, as long as backends keep results (spec http section 1)."""
KEPT_FOR = 3600.0
"""Seconds after which a job that nobody takes is not begun again: its block is long past."""
ENDED = ("completed", "failed", "cancelled")


@dataclass(eq=False)
class Job:
    """``id``: ``port:uuid`` of the backend that first took it; it keeps it on every other one.

    ``token``: address of its callback, where somebody is to be told. ``remote``: its id on the
    backend that has it now. ``done``: the backend has its result; over it is when its callback, if
    there is to be one, has come as well (``told``). ``ended``: when it was over, monotonic seconds.
    ``asked``: when a backend last refused to take it up again. ``error``: why it ended, where the
    node ended it, and ``verdict`` how: ``failed`` or ``cancelled``.
    """

    body: Mapping[str, Any]
    token: str | None
    id: str = ""
    backend: Backend | None = None
    generation: int = 0
    remote: str = ""
    done: bool = False
    told: bool = False
    ended: float | None = None
    asked: float | None = None
    error: str | None = None
    verdict: str = "failed"
    begun: float = field(default_factory=time.time)

    @property
    def lost(self) -> bool:
        """Its backend's process is gone, and the job with it."""
        return self.backend is None or (
            self.backend.pid is None or self.backend.generation != self.generation
        )

    @property
    def untold(self) -> bool:
        """Its callback is still to come."""
        return self.token is not None and not self.told

    def end(self, now: float, error: str | None, verdict: str) -> None:
        """It is over; what it was asked is not needed any more (7 MB, when it is large)."""
        self.ended, self.error, self.verdict, self.body = now, error, verdict, {}
