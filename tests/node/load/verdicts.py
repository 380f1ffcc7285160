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
        if answer.status_code == 502:
            # An outage in the middle: no claim may be judged the wrong way by it.
            detail = answer.json()["detail"]
            counts = detail["counts"] if isinstance(detail, dict) else {}
            if counts.get("fail" if wanted == "pass" else "pass"):
                self.ledger.violation(
                    f"{what}: wrong verdicts beside an outage: {answer.text[:600]}"
                )
            elif self.ledger.gated(begin) or self.ledger.killed(begin) or self.ledger.nobody(begin):
                self.ledger.note(f"{what}: 502 by an outage")
            else:
                self.ledger.violation(f"{what}: 502 that nothing excuses: {answer.text[:600]}")
        elif answer.status_code != 200:
            self.ledger.refused(what, begin, answer.status_code, answer.text)
        elif (verdict := answer.json()["verdict"]) != wanted:
            self.ledger.violation(f"{what}: verdict {verdict}: {_short(answer.json())}")
        else:
            self.ledger.note(f"{what}: {verdict}")


def _short(body: dict[str, Any]) -> str:
    return str([result.get("reasons") for result in body["results"]])[:600]
