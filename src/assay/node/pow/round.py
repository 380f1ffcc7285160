"""The round under way, as the node has it in memory."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.node.backend import Backend
from assay.node.pow.patience import Patience
from assay.node.pow.plan import as_range
from assay.poc.artifacts import encoding
from assay.poc.bodies import InitGenerate
from assay.store.rounds_tables import Round, RoundSpec, Share, Worker


@dataclass
class Holder:
    """A backend that mines for the round. ``heard``: when it last said so, monotonic seconds."""

    backend: Backend
    worker: Worker
    heard: float

    @property
    def trouble(self) -> str | None:
        """Why it cannot mine any more; None when it can."""
        backend = self.backend
        if backend.generation != self.worker.generation or backend.pid is None:
            return "its process is gone"
        return None if backend.healthy else f"it is {backend.state}"


class Rests:
    """Backends that refused or failed, and are left alone for a while."""

    def __init__(self, patience: Patience, clock: Callable[[], float]) -> None:
        self._patience = patience
        self._clock = clock
        self._times: dict[int, tuple[int, int, float]] = {}

    def begin(self, backend: Backend) -> None:
        """Twice as long as before, when its process is the same."""
        generation, count, _ = self._times.get(backend.port, (-1, 0, 0.0))
        count = count + 1 if generation == backend.generation else 1
        rest = min(self._patience.rest * 2 ** (count - 1), self._patience.rest_most)
        self._times[backend.port] = (backend.generation, count, self._clock() + rest)

    def over(self, backend: Backend) -> bool:
        generation, _, until = self._times.get(backend.port, (-1, 0, 0.0))
        return generation != backend.generation or self._clock() >= until

    def forget(self, backend: Backend) -> None:
        """It mines."""
        self._times.pop(backend.port, None)


@dataclass
class Active:
    """``body``: what the client asked for. ``homes``: port each class began on, by class."""

    round: Round
    request: InitGenerate
    body: Mapping[str, Any]
    homes: Mapping[int, int]
    rests: Rests
    holders: dict[int, Holder] = field(default_factory=dict)
    begun: bool = False
    """Whether it has been answered to the client."""
    degraded: str | None = None
    """Why not every class has a backend of its own; None while each has."""
    taken_down: bool = False
    """Its model was stopped: it is not to go on with the next one."""

    def init_body(self, url: str, shares: Sequence[Share]) -> dict[str, Any]:
        """What one backend is asked to begin with; ``url`` is where it hands over."""
        first = shares[0]
        body = {
            **self.body,
            "group_id": first.group_id,
            "n_groups": self.round.n_groups,
            "url": url,
            "mark_failed": True,
        }
        # A whole class is what any server knows; only what is left of one needs our own field.
        if len(shares) > 1 or first.reached or first.stop is not None:
            body["shares"] = [as_range(share) for share in shares]
        return body


def spec_of(request: InitGenerate, caller: str | None) -> RoundSpec:
    """What the store knows a round by. How fast and by how many it is mined is no part of it."""
    fields = request.model_dump(
        mode="json", exclude={"url", "batch_size", "group_id", "n_groups", "shares", "mark_failed"}
    )
    identity = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    head = {
        "public_key": request.public_key,
        "block_hash": request.block_hash,
        "block_height": request.block_height,
        "node_id": request.node_id,
        "encoding": encoding(request.params.k_dim),
    }
    return RoundSpec(identity, request.url, caller, head, request.node_id, request.node_count)
