"""Greedy chat, streamed and not, held against the known answers token by token."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from tests.node.load.known import MARGIN, Known, KnownChat, evidence_of
from tests.node.load.ledger import Ledger

CANCELLED = 0.05
"""Part of the streams whose client goes away in the middle."""

RETRY_AFTER = 1.0
"""Seconds a client that was refused waits, as the gate's answer asks."""


@dataclass
class _Answer:
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    finish: str | None = None
    done: bool = False

    def add(self, choice: dict[str, Any], text: str | None) -> None:
        self.ids += choice.get("token_ids") or []
        self.logprobs += [
            step["logprob"] for step in (choice.get("logprobs") or {"content": []})["content"]
        ]
        self.text += text or ""
        self.finish = choice.get("finish_reason") or self.finish


class _WentAwayError(Exception):
    """The client of this stream closed it, as it had planned."""


@dataclass
class Chats:
    """``bound``: seconds after which a request counts as stuck."""

    http: httpx.AsyncClient
    known: Known
    ledger: Ledger
    rng: random.Random
    bound: float

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            await self.one(streamed=self.rng.random() < 0.5)
            await asyncio.sleep(self.rng.random() * 0.3)

    async def one(self, *, streamed: bool) -> None:
        known = self.rng.choice(self.known.chats)
        what = "stream" if streamed else "chat"
        body = dict(known.body) | {"return_token_ids": True}
        if self.rng.random() < 0.5:
            body = evidence_of(body)
        leaves_at = self.rng.randrange(1, len(known.ids)) if self.rng.random() < CANCELLED else None
        answer = _Answer()
        begin = self.ledger.clock()
        try:
            async with asyncio.timeout(self.bound):
                if streamed:
                    status, text = await self._streamed(body, answer, leaves_at)
                else:
                    status, text = await self._whole(body, answer)
        except TimeoutError:
            self.ledger.stuck(what, begin)
        except httpx.TransportError as error:
            self._compare(what, known, answer, whole=False)
            self.ledger.broken(what, begin, repr(error))
        except _WentAwayError:
            self._compare(what, known, answer, whole=False)
            self.ledger.note("stream: left by its client")
        else:
            if status != 200:
                self.ledger.refused(what, begin, status, text)
                await asyncio.sleep(RETRY_AFTER)
            else:
                self._judge(what, begin, known, answer, text)
        self.ledger.took(begin)

    async def _whole(self, body: dict[str, Any], answer: _Answer) -> tuple[int, str]:
        reply = await self.http.post("/v1/chat/completions", json=body)
        if reply.status_code == 200:
            choice = reply.json()["choices"][0]
            answer.add(choice, choice["message"]["content"])
            answer.done = True
        return reply.status_code, reply.text

    async def _streamed(
        self, body: dict[str, Any], answer: _Answer, leaves_at: int | None
    ) -> tuple[int, str]:
        sent = {**body, "stream": True}
        async with self.http.stream("POST", "/v1/chat/completions", json=sent) as reply:
            if reply.status_code != 200:
                return reply.status_code, (await reply.aread()).decode(errors="replace")
            async for line in reply.aiter_lines():
                if line == "data: [DONE]":
                    answer.done = True
                elif line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        return 200, line
                    for choice in event["choices"]:
                        answer.add(choice, choice["delta"].get("content"))
                if leaves_at is not None and len(answer.ids) >= leaves_at:
                    raise _WentAwayError
        return 200, ""

    def _judge(self, what: str, begin: float, known: KnownChat, answer: _Answer, text: str) -> None:
        """An answer that came with status 200 and an orderly end."""
        if not answer.done:
            self._compare(what, known, answer, whole=False)
            self.ledger.violation(f"{what}: it ended in good order without [DONE]: {text[:300]}")
        elif answer.finish == "abort" and self.ledger.gated(begin):
            self._compare(what, known, answer, whole=False)
            self.ledger.note(f"{what}: aborted by the gate")
        elif answer.finish != "length":
            self.ledger.violation(f"{what}: finish_reason {answer.finish}: {text[:300]}")
        elif self._compare(what, known, answer, whole=True):
            self.ledger.note(f"{what}: right")

    def _compare(self, what: str, known: KnownChat, answer: _Answer, *, whole: bool) -> bool:
        """Every token that came must be the known one; of a whole answer none may be missing."""
        self.ledger.note("tokens", len(answer.ids))
        expected: Sequence[int] = known.ids if whole else known.ids[: len(answer.ids)]
        if list(expected) != answer.ids:
            self.ledger.violation(f"{what}: wrong tokens {answer.ids}, not {list(known.ids)}")
            return False
        if whole and answer.text != known.text:
            self.ledger.violation(f"{what}: wrong text {answer.text!r}, not {known.text!r}")
            return False
        noise = max(
            (abs(a - b) for a, b in zip(answer.logprobs, known.logprobs, strict=False)), default=0.0
        )
        self.ledger.noise = max(self.ledger.noise, noise)
        if not noise < MARGIN / 2:
            self.ledger.violation(f"{what}: a log probability is off by {noise:.3g} nats")
            return False
        return True
