"""The client's side of the callbacks: every vector compared, no nonce accepted twice in a round."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.node.load.known import Known, vector_of
from tests.node.load.ledger import Ledger
from tests.support.server import HOST, free_port

NODE_ID, NODE_COUNT = 1, 3
SPACING = 2.0**-11
"""Largest distance of two neighbouring float16 below 1. Sums of another batch may round a value to
its neighbour; the vector of another nonce is off by tenths."""


@dataclass
class Receiver:
    """``nonces``: by round number, what came. ``keys``: body by Idempotency-Key."""

    known: Known
    ledger: Ledger
    url: str = ""
    nonces: dict[int, set[int]] = field(default_factory=dict)
    keys: dict[str, bytes] = field(default_factory=dict)
    vectors: dict[int, dict[int, str]] = field(default_factory=dict)
    """By round, the text of each nonce's vector."""

    def url_of(self, number: int) -> str:
        return f"{self.url}/rounds/{number}"

    def take(self, number: int, key: str | None, raw: bytes) -> None:
        """One request of the node's courier."""
        if key is not None and self.keys.setdefault(key, raw) is not raw:
            # Sent again under the same key: no second time, if it is the same.
            self.ledger.note("posts repeated under their key")
            if self.keys[key] != raw:
                self.ledger.violation(f"round {number}: key {key} came with two bodies")
            return
        body = json.loads(raw)
        seen = self.nonces.setdefault(number, set())
        texts = self.vectors.setdefault(number, {})
        for artifact in body["artifacts"]:
            nonce = artifact["nonce"]
            if nonce in seen:
                self.ledger.violation(f"round {number}: nonce {nonce} came twice")
            if nonce % NODE_COUNT != NODE_ID:
                self.ledger.violation(f"round {number}: nonce {nonce} is another node's")
            seen.add(nonce)
            texts[nonce] = artifact["vector_b64"]
            self.compare(f"round {number}", nonce, artifact["vector_b64"])

    def compare(self, what: str, nonce: int, text: str) -> None:
        """Hold a vector against the known one; one not known yet is known from now on."""
        vector = vector_of(text)
        known = self.known.vectors.setdefault(nonce, vector)
        if known is vector:
            self.ledger.note("vectors seen first")
            wrong = not np.isfinite(vector).all()
        else:
            self.ledger.note("vectors equal", int(np.array_equal(known, vector)))
            self.ledger.note("vectors compared")
            wrong = known.shape != vector.shape or not np.abs(known - vector).max() <= SPACING
        if wrong:
            self.ledger.violation(f"{what}: wrong vector of nonce {nonce}: {text}")

    def whole(self, number: int, n_groups: int) -> None:
        """No nonce below the highest of its class may be missing.

        For a round in which every backend lived: what another would have mined of a killed one's
        classes is given up when the round is stopped.
        """
        came = [(nonce - NODE_ID) // NODE_COUNT for nonce in self.nonces.get(number, ())]
        for group in range(n_groups):
            positions = {x // n_groups for x in came if x % n_groups == group}
            missing = set(range(max(positions, default=0))) - positions
            if missing:
                self.ledger.violation(
                    f"round {number}: class {group} of {n_groups} lacks {len(missing)} nonces,"
                    f" positions {sorted(missing)[:10]}"
                )
                return
        self.ledger.note("rounds without a gap")

    async def generated(self, request: Request) -> Response:
        self.take(
            int(request.path_params["number"]),
            request.headers.get("Idempotency-Key"),
            await request.body(),
        )
        return Response()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = Starlette(
            routes=[Route("/rounds/{number:int}/generated", self.generated, methods=["POST"])]
        )
        port = free_port()
        self.url = f"http://{HOST}:{port}"
        server = _Quiet(
            uvicorn.Config(
                app, host=HOST, port=port, log_config=None, access_log=False, lifespan="off"
            )
        )
        task: asyncio.Task[Any] = asyncio.create_task(server.serve())
        try:
            while not server.started:
                assert not task.done(), "the receiver does not start"
                await asyncio.sleep(0.02)
            yield
        finally:
            server.should_exit = True
            await asyncio.wait({task})


class _Quiet(uvicorn.Server):
    """Leaves signals to whoever runs the load."""

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()
