"""A node's store with backends that only pretend to mine, made to be killed at any moment.

The process of :mod:`tests.store.killing`: imports everything once, then forks one node after another,
kills it (SIGKILL) somewhere in its work, and lets the next one take up what it left. All on the real
store and the real couriers.

    python -m tests.store.victim DATABASE RECEIVER ROUNDS SEED
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import random
import signal
import ssl
import struct
import sys
import time
import traceback
from base64 import b64encode
from dataclasses import dataclass, field

import httpx
import psycopg  # noqa: F401 - imported once here and not by every child
import sqlalchemy.dialects.postgresql.psycopg  # noqa: F401
from prometheus_client import CollectorRegistry, Counter, Gauge
from sqlalchemy import Engine, event

from assay.delivery import couriers
from assay.delivery.couriers import Deliveries
from assay.delivery.settings import DeliverySettings
from assay.delivery.targets import CallbackTargets
from assay.store import one_server
from assay.store.outbox import Outbox
from assay.store.rounds import Artifact, Rounds
from assay.store.rounds_tables import Round, RoundSpec, Share, Worker

GROUPS, POSITIONS = 2, 9
NODE_ID, NODE_COUNT = 1, 4
PUBLIC_KEY = "node-key"
FOR_EVER = 1_000_000
"""Rounds that no node gets to the end of."""
LOST_ANSWERS = 0.3
"""Share of posts whose answer the backend does not get, so that it sends them again."""


def finite(position: int) -> bool:
    """Some vectors are not: they come without one, and are never delivered."""
    return position % 6 != 4


def nonce(group_id: int, position: int) -> int:
    return NODE_ID + (group_id + position * GROUPS) * NODE_COUNT


def vector(number: int, one: int) -> bytes:
    """Twelve finite float16 values that only this nonce of this round has."""
    return struct.pack("<12e", *(float(number * 7 % 97), float(one), *range(10)))


def expected(number: int) -> dict[int, bytes]:
    """What the receiver must have of a round: all of it, and nothing else."""
    nonces = [nonce(g, p) for g in range(GROUPS) for p in range(POSITIONS) if finite(p)]
    return {one: vector(number, one) for one in sorted(nonces)}


def block_hash(number: int) -> str:
    return f"round-{number}"


@dataclass
class _Metrics:
    waiting: Gauge
    delivered: Counter
    callbacks: Counter


@dataclass(eq=False)
class Backend:
    """``ranges``: [class, next position, end]. ``posts``: made and not yet answered for."""

    worker: Worker
    ranges: list[list[int]] = field(default_factory=list)
    posts: list[list[Artifact]] = field(default_factory=list)

    def take(self, share: Share) -> None:
        stop = POSITIONS if share.stop is None else min(share.stop, POSITIONS)
        self.ranges.append([share.group_id, share.reached, stop])

    def mine(self, number: int, rng: random.Random) -> None:
        post: list[Artifact] = []
        for one in self.ranges:
            for _ in range(rng.randrange(4)):
                group_id, position, stop = one
                if position >= stop:
                    break
                one[1] += 1
                found = nonce(group_id, position)
                text = b64encode(vector(number, found)).decode() if finite(position) else ""
                post.append((found, text))
        if post:
            self.posts.append(post)

    @property
    def done(self) -> bool:
        return not self.posts and all(position >= stop for _, position, stop in self.ranges)


class Mine:
    """Rounds one after another, each with two backends that lose answers, classes and lives."""

    def __init__(self, rounds: Rounds, deliveries: Deliveries, url: str, seed: int) -> None:
        self._rounds = rounds
        self._deliveries = deliveries
        self._url = url
        self._rng = random.Random(seed)
        self._lock = asyncio.Lock()

    async def round(self, number: int) -> None:
        """Returns when everything of the round is kept."""
        head = {"public_key": PUBLIC_KEY, "block_hash": block_hash(number), "node_id": NODE_ID}
        spec = RoundSpec(f"work {number}", self._url, None, head, NODE_ID, NODE_COUNT)
        begun = await asyncio.to_thread(self._rounds.begin, spec, GROUPS)
        while await self._left(begun):
            first, second = await self._hire(begun), await self._hire(begun)
            async with self._lock:
                for share in await self._left(begun):
                    await self._give(share, self._rng.choice([first, second]))
            async with asyncio.TaskGroup() as group:
                sending = [group.create_task(self._send(b, number)) for b in (first, second)]
                group.create_task(self._move_one_class(begun, first, second))
            assert all(task.done() for task in sending)
            for backend in (first, second):
                await asyncio.to_thread(self._rounds.dismiss, backend.worker)

    async def _left(self, begun: Round) -> list[Share]:
        """Shares of which the backends have not delivered all they are to mine here."""
        shares = await asyncio.to_thread(self._rounds.shares, begun.id)
        return [share for share in shares if share.reached < POSITIONS]

    async def _hire(self, begun: Round) -> Backend:
        return Backend(await asyncio.to_thread(self._rounds.hire, begun.id, 5001, 1))

    async def _give(self, share: Share, backend: Backend) -> None:
        await asyncio.to_thread(self._rounds.give, [share], backend.worker)
        backend.take(share)

    async def _send(self, backend: Backend, number: int) -> None:
        """Posts in order, the first repeated until its answer arrives."""
        while not backend.done:
            async with self._lock:
                backend.mine(number, self._rng)
            if not backend.posts:
                continue
            answer = await asyncio.to_thread(
                self._rounds.keep, backend.worker.token, backend.posts[0]
            )
            if answer is None:
                return  # dismissed meanwhile
            if answer.kept:
                self._deliveries.arrived(self._url, answer.kept, 0)
            if self._rng.random() >= LOST_ANSWERS:
                backend.posts.pop(0)

    async def _move_one_class(self, begun: Round, donor: Backend, taker: Backend) -> None:
        """The taker gets a class in the middle; sometimes it is all the donor's, who is dismissed."""
        await asyncio.sleep(self._rng.random() * 0.02)
        async with self._lock:
            shares = await asyncio.to_thread(self._rounds.shares, begun.id)
            held = [share for share in shares if share.worker_id == donor.worker.id]
            if not held:
                return
            if self._rng.random() < 0.3:
                await asyncio.to_thread(self._rounds.dismiss, donor.worker)
                donor.ranges.clear()
                return
            share = self._rng.choice(held)
            [mined] = [one for one in donor.ranges if one[0] == share.group_id]
            position = mined[1]
            if share.stop is None and position < POSITIONS:
                mined[2] = position
                await asyncio.to_thread(self._rounds.cut, share, position)
                [rest] = [
                    one
                    for one in await asyncio.to_thread(self._rounds.shares, begun.id)
                    if one.worker_id is None and one.start == position
                    if one.group_id == share.group_id
                ]
                await self._give(rest, taker)


class Watched:
    """What a node tells its killer, a line each: ``N`` and the statements of the round that is over,
    before each next round; ``K`` when it is due; ``D`` when the receiver has everything.

    Due is the ``statements``-th statement after ``rounds`` of them are over.
    """

    def __init__(self, pipe: int, rounds: int, statements: int) -> None:
        self._pipe = pipe
        self._rounds = rounds
        self._statements = statements
        self._counted = 0

    def statement(self, *_: object) -> None:
        self._counted += 1
        if self._rounds <= 0:
            self._statements -= 1
            if self._statements == 0:
                self._tell("K")

    def next_round(self) -> None:
        self._tell(f"N {self._counted}")
        self._rounds -= 1
        self._counted = 0

    def done(self) -> None:
        self._tell("D")

    def _tell(self, line: str) -> None:
        os.write(self._pipe, f"{line}\n".encode())


async def live(database: str, url: str, rounds: range, seed: int, watched: Watched) -> None:
    """A node that works on some rounds, and then waits until the receiver has everything."""
    registry = CollectorRegistry()
    metrics = _Metrics(
        Gauge("waiting", "", registry=registry),
        Counter("delivered", "", registry=registry),
        Counter("callbacks", "", ["outcome"], registry=registry),
    )
    outbox = await asyncio.to_thread(Outbox, database)
    deliveries = Deliveries(
        outbox,
        DeliverySettings(interval_s=0.01),
        CallbackTargets((), "nothing"),
        metrics,
        logging.getLogger("victim"),
    )
    opened = await asyncio.to_thread(Rounds, outbox)
    await deliveries.resume()
    mine = Mine(opened, deliveries, url, seed)
    for number in rounds:
        if number > rounds.start:
            watched.next_round()
        await mine.round(number)
    while await asyncio.to_thread(outbox.waiting):  # noqa: ASYNC110 - it has no event for empty
        await asyncio.sleep(0.005)
    watched.done()
    await deliveries.close()


class Killer:
    """Forks nodes and kills them until ``rounds`` rounds were hit. ``number``: the one under way."""

    def __init__(self, database: str, url: str, rounds: int, seed: int) -> None:
        self._database, self._url, self._rounds, self._seed = database, url, rounds, seed
        self._rng = random.Random(seed)
        self._children = 0
        self.number = 0
        self.kills = 0
        self.hit: set[int] = set()

    def run(self) -> None:
        usual = max(self._child(2, 1))  # statements of a round without a kill
        while len(self.hit) < self._rounds:
            if self._rng.random() < 0.2:  # while it opens the store and takes up what it finds
                self._child(0, self._rng.randrange(1, usual))
            else:
                self._child(1, self._rng.randrange(1, usual))
        self._child(FOR_EVER, 0)

    def _child(self, rounds: int, statements: int) -> list[int]:
        """Statements of the rounds that a node finished until it was killed, or had done all."""
        self._children += 1
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            last = self.number if rounds == FOR_EVER else self.number + FOR_EVER
            self._live(last, Watched(writing, rounds, statements))
        os.close(writing)
        counts, done = [], False
        with os.fdopen(reading, "rb") as lines:
            # What it tells after it is due counts as well: it has begun that round.
            for line in lines:
                word, _, count = line.decode().strip().partition(" ")
                if word == "N":
                    self.number += 1
                    counts.append(int(count))
                elif word == "K":
                    time.sleep(self._rng.random() * 0.002)  # not always on the edge of a statement
                    os.kill(child, signal.SIGKILL)
                done |= word == "D"
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            self.kills += 1
            self.hit.add(self.number)
        elif os.WEXITSTATUS(status) or not done:
            raise SystemExit(f"a node ended by itself with status {status}")
        return counts

    def _live(self, last: int, watched: Watched) -> None:
        status = 1
        try:
            event.listen(Engine, "before_cursor_execute", watched.statement)
            couriers.FIRST_BACKOFF, couriers.LONGEST_BACKOFF = 0.005, 0.05
            # However long a busy PostgreSQL takes to see that the one before is dead.
            one_server.OWNER_GONE_WITHIN = 120.0
            seed = self._seed * 1_000_003 + self._children
            asyncio.run(
                live(self._database, self._url, range(self.number, last + 1), seed, watched)
            )
            status = 0
        except BaseException:  # noqa: BLE001 - a forked child must not run its parent's code
            traceback.print_exc()
        finally:
            os._exit(status)


if __name__ == "__main__":
    # Reading the certificates of the system takes longer than a round.
    ssl.create_default_context = functools.cache(ssl.create_default_context)
    httpx.create_ssl_context()
    killer = Killer(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    killer.run()
    told = {"kills": killer.kills, "hit": len(killer.hit), "rounds": killer.number + 1}
    print(json.dumps(told))
