"""Rounds of proof of compute through the node, one after the other, and judgements between them."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.node.load.known import Known
from tests.node.load.ledger import Ledger, Window
from tests.node.load.receiver import NODE_COUNT, NODE_ID, Receiver

PREFIX = "/api/v1/inference/pow"
JUDGED = 12
"""Vectors of a round that are sent back to be judged, one of them forged now and then."""
WAITING = re.compile(r"^assay_node_artifacts_waiting (\S+)$", re.MULTILINE)


def challenge(**more: Any) -> dict[str, Any]:
    """The same in every round, so that the same nonce has the same vector."""
    return {
        "block_hash": "load",
        "block_height": 1,
        "public_key": "load",
        "node_id": NODE_ID,
        "node_count": NODE_COUNT,
        "batch_size": 4,
        "params": {"model": "model", "seq_len": 64},
        **more,
    }


@dataclass
class Rounds:
    """``closes_gate``: the policy is exclusive. ``length_s``: shortest and longest round."""

    http: httpx.AsyncClient
    known: Known
    ledger: Ledger
    receiver: Receiver
    rng: random.Random
    bound: float
    closes_gate: bool
    length_s: tuple[float, float] = (5.0, 25.0)
    pause_s: tuple[float, float] = (1.0, 5.0)
    number: int = 0
    hung: list[str] = field(default_factory=list)

    async def learn(self, count: int) -> None:
        """Vectors of the first nonces, by two calls, which the node gives to its backends in turn."""
        nonces = [NODE_ID + x * NODE_COUNT for x in range(count)]
        for _ in range(2):
            answer = await self.http.post(
                f"{PREFIX}/generate", json=challenge(nonces=nonces, wait=True)
            )
            assert answer.status_code == 200, answer.text
            found = answer.json()["artifacts"]
            assert sorted(one["nonce"] for one in found) == nonces
            for one in found:
                self.receiver.compare("before the load", one["nonce"], one["vector_b64"])

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.one(over)
            await _sleep(over, self.rng.uniform(*self.pause_s))

    async def one(self, over: asyncio.Event) -> None:
        self.number += 1
        gate = Window(self.ledger.clock())
        if self.closes_gate:
            self.ledger.gates.append(gate)
        n_groups = await self._begin()
        if n_groups:
            await _sleep(over, self.rng.uniform(*self.length_s))
        await self._stop()
        gate.end = self.ledger.clock()
        if n_groups:
            self.ledger.note("rounds")
            await self._drained()
            if self.ledger.outage(gate.begin):
                self.ledger.note("rounds beside an outage")
            else:
                self.receiver.whole(self.number, n_groups)
            if not self.receiver.nonces.get(self.number):
                self.ledger.note("rounds without a vector")
            await self._judged()
        # What the rounds were is kept by the known vectors; the run must not grow by its own books.
        self.receiver.vectors.pop(self.number, None)

    async def _begin(self) -> int:
        """The number of classes; 0 when the round was refused."""
        body = challenge(url=self.receiver.url_of(self.number))
        answer = await self._post("PoC init", "/init/generate", body)
        return 0 if answer is None else int(answer["n_groups"])

    async def _stop(self) -> None:
        answer = await self._post("PoC stop", "/stop", {})
        if answer is not None and answer["pow_status"] != {"status": "STOPPED"}:
            self.ledger.violation(f"PoC stop: {answer}")

    async def _drained(self) -> None:
        """Everything mined reaches the receiver."""
        begin = self.ledger.clock()
        try:
            async with asyncio.timeout(self.bound):
                while await self.waiting():  # noqa: ASYNC110 - only the node knows
                    await asyncio.sleep(0.2)
        except TimeoutError:
            self.ledger.stuck("delivery of artifacts", begin)
        self.ledger.took(begin)

    async def waiting(self) -> float:
        found = WAITING.search((await self.http.get("/metrics")).text)
        assert found is not None, "the node shows no assay_node_artifacts_waiting"
        return float(found.group(1))

    async def _judged(self) -> None:
        """Vectors of this round, sent back: the node finds the forged one and no other."""
        came = self.receiver.vectors.get(self.number, {})
        if len(came) < 2:
            return
        picked = self.rng.sample(sorted(came), min(JUDGED, len(came)))
        sent = {nonce: came[nonce] for nonce in picked}
        forged = picked[:1] if self.rng.random() < 0.5 else []
        for nonce in forged:
            sent[nonce] = came[picked[-1]]
        body = challenge(
            nonces=picked,
            wait=True,
            validation={"artifacts": [{"nonce": n, "vector_b64": v} for n, v in sent.items()]},
        )
        answer = await self._post("PoC validation", "/generate", body)
        if answer is None:
            return
        if answer.get("status") != "completed" or answer.get("mismatch_nonces") != forged:
            self.ledger.violation(f"PoC validation: forged {forged}, answer {answer}")
        else:
            self.ledger.note("PoC validations")

    async def _post(self, what: str, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """The answer; None for one that was refused, which the ledger judges."""
        begin = self.ledger.clock()
        try:
            async with asyncio.timeout(self.bound):
                answer = await self.http.post(f"{PREFIX}{path}", json=body)
        except TimeoutError:
            self.ledger.stuck(what, begin)
            return None
        except httpx.TransportError as error:
            self.ledger.violation(f"{what}: the node broke the connection: {error!r}")
            return None
        finally:
            self.ledger.took(begin)
        if answer.status_code != 200:
            self.ledger.refused(what, begin, answer.status_code, answer.text)
            return None
        found: dict[str, Any] = answer.json()
        return found


async def _sleep(over: asyncio.Event, seconds: float) -> None:
    """Up to ``seconds``; shorter when the load is over."""
    try:
        async with asyncio.timeout(seconds):
            await over.wait()
    except TimeoutError:
        return
