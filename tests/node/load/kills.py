"""SIGKILL to a backend's server at random times, and what the node makes of it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.node.load.ledger import Ledger, Window

LOOK_EVERY = 0.2
LAST = 0.25
"""Part of the kills that may hit the only backend left: a node without any answers 503 to all, which
must happen too, but not for most of the run on a machine where a start takes long."""


@dataclass
class Kills:
    """``every_s``: mean seconds between two. ``back_within``: seconds until a backend must be back."""

    http: httpx.AsyncClient
    ledger: Ledger
    rng: random.Random
    every_s: float
    back_within: float
    generations: dict[int, int] = field(default_factory=dict)
    slowest: float = 0.0
    """Seconds from a kill until the backend was ready again."""

    async def backends(self) -> list[dict[str, Any]]:
        answer = await self.http.get("/api/v1/inference/up/status")
        return list(answer.json()["backends"])

    async def begin(self) -> None:
        """Take note of the backends; every one must be ready."""
        for backend in await self.backends():
            assert backend["state"] == "ready", backend
            self.generations[backend["port"]] = backend["generation"]
            self.ledger.outages[backend["port"]] = []

    async def run(self, over: asyncio.Event) -> None:
        while True:
            try:
                async with asyncio.timeout(self.rng.expovariate(1 / self.every_s)):
                    await over.wait()
            except TimeoutError:
                await self.one()
            else:
                return

    async def one(self) -> None:
        """Kill the server of a backend that is ready, whatever it is at."""
        ready = [b for b in await self.backends() if b["state"] == "ready" and not self._open(b)]
        if not ready or (len(ready) == 1 and self.rng.random() >= LAST):
            return
        victim = self.rng.choice(ready)
        now = self.ledger.clock()
        self.ledger.hits.append(Window(now))
        self.ledger.outages[victim["port"]].append(Window(now))
        self.generations[victim["port"]] += 1
        os.kill(victim["pid"], signal.SIGKILL)
        self.ledger.note("kills")
        if victim["in_flight"]:
            self.ledger.note("kills with requests in flight")

    async def watch(self, over: asyncio.Event) -> None:
        """Close the windows of the ledger as the node learns of the kills and mends them."""
        while not over.is_set():
            await self.look()
            await asyncio.sleep(LOOK_EVERY)

    async def look(self) -> None:
        asked = self.ledger.clock()
        for backend in await self.backends():
            port = backend["port"]
            expected = self.generations[port]
            if backend["generation"] > expected:
                self.ledger.violation(
                    f"backend {port} was restarted although nobody killed it: {backend['reason']}"
                )
                self.generations[port] = backend["generation"]
            window = self._open(backend)
            if window is None:
                if backend["state"] != "ready":
                    self.ledger.violation(
                        f"backend {port} is {backend['state']} although nobody killed it:"
                        f" {backend['reason']}"
                    )
                continue
            hit = next(h for h in self.ledger.hits if h.begin == window.begin)
            knows = backend["state"] != "ready" or backend["generation"] == expected
            if asked > window.begin and knows:
                hit.end = min(hit.end, self.ledger.clock())
                if backend["state"] == "ready":
                    window.end = self.ledger.clock()
                    self.slowest = max(self.slowest, window.end - window.begin)
                    self.ledger.note("kills mended")

    async def all_back(self) -> None:
        """Every backend is ready again within ``back_within`` of its kill, else a violation."""
        while True:
            await self.look()
            open_windows = [w for ws in self.ledger.outages.values() for w in ws if w.end > 1e300]
            if not open_windows:
                return
            late = [w for w in open_windows if self.ledger.clock() - w.begin > self.back_within]
            if late:
                self.ledger.violation(f"not back {self.back_within:g} s after a kill")
                return
            await asyncio.sleep(LOOK_EVERY)

    def _open(self, backend: dict[str, Any]) -> Window | None:
        """The backend's outage that has not ended."""
        return next((w for w in self.ledger.outages[backend["port"]] if w.end > 1e300), None)
