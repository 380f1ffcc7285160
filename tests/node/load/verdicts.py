"""Replays through the node: honest claims pass, tampered ones fail, and an outage does neither."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import httpx
from tests.node.load.known import Known
from tests.node.load.ledger import Ledger

TAMPERED = 0.3


@dataclass
class Verdicts:
    """``bound``: seconds after which a request counts as stuck."""

    http: httpx.AsyncClient
    known: Known
    ledger: Ledger
    rng: random.Random
    bound: float

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.one(honest=self.rng.random() >= TAMPERED)
            await asyncio.sleep(self.rng.random())

    async def one(self, *, honest: bool) -> None:
        what = "replay of honest claims" if honest else "replay of a tampered claim"
        claims = (
            self.rng.sample(list(self.known.honest), 2)
            if honest
            else [self.rng.choice(self.known.tampered)]
        )
        begin = self.ledger.clock()
        try:
            async with asyncio.timeout(self.bound):
                answer = await self.http.post("/api/v1/inference/verify", json={"claims": claims})
        except TimeoutError:
            self.ledger.stuck(what, begin)
        except httpx.TransportError as error:
            # The node answers this one itself: a backend's end is no reason to break it.
            self.ledger.violation(f"{what}: the node broke the connection: {error!r}")
        else:
            self._judge(what, begin, "pass" if honest else "fail", answer)
        self.ledger.took(begin)

    def _judge(self, what: str, begin: float, wanted: str, answer: httpx.Response) -> None:
        if answer.status_code not in (200, 502):
            self.ledger.refused(what, begin, answer.status_code, answer.text)
            return
        body = answer.json() if answer.status_code == 200 else answer.json()["detail"]
        results = body["results"] if isinstance(body, dict) else []
        others = [result for result in results if result["verdict"] != wanted]
        if answer.status_code == 200 and not others:
            self.ledger.note(f"{what}: {wanted}")
        elif any(not _unjudged(result) for result in others):
            # Whatever happened to a backend, no claim may be judged the wrong way by it.
            self.ledger.violation(f"{what}: wrong verdict: {str(others)[:600]}")
        elif self.ledger.gated(begin) or self.ledger.killed(begin) or self.ledger.nobody(begin):
            self.ledger.note(f"{what}: not judged by an outage")
        else:
            self.ledger.violation(f"{what}: not judged for no reason: {answer.text[:600]}")


def _unjudged(result: dict[str, Any]) -> bool:
    """The verdict says that the validator's own server was away."""
    codes = {reason["code"] for reason in result["reasons"]}
    return result["verdict"] == "inconclusive" and codes == {"replay_unavailable"}
