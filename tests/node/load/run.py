"""A node under mixed load with its backends killed: what runs at once, when it ends, what counts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
from tests.node.load.chats import Chats
from tests.node.load.flat import Watch
from tests.node.load.kills import Kills
from tests.node.load.known import Known, known_chats, known_claims, tampered
from tests.node.load.ledger import Ledger
from tests.node.load.receiver import Receiver
from tests.node.load.rounds import Rounds
from tests.node.load.verdicts import Verdicts

REST_WITHIN = 60.0
"""Seconds for idle connections to close after the load."""
EXCUSED = (" by a kill", " by an outage", " by the gate", " without a backend")


@dataclass(frozen=True)
class LoadOptions:
    """``bound``: seconds after which a request counts as stuck: the slowest honest one on a busy
    machine takes some tens. ``closes_gate``: the node's policy is exclusive. ``poc``: with rounds."""

    seed: int
    kill_every_s: float = 45.0
    chats: int = 4
    prompts: int = 12
    claims: int = 6
    nonces: int = 200
    bound: float = 240.0
    back_within: float = 420.0
    closes_gate: bool = False
    poc: bool = True
    round_s: tuple[float, float] = (5.0, 25.0)
    pause_s: tuple[float, float] = (1.0, 5.0)


@dataclass
class Load:
    """Everything of one run. Made by :func:`prepared`."""

    options: LoadOptions
    http: httpx.AsyncClient
    ledger: Ledger
    known: Known
    receiver: Receiver
    rounds: Rounds
    kills: Kills
    watch: Watch
    close_calls: int
    begun: float = 0.0

    async def run(
        self, until: Callable[[], bool], say: Callable[[str], None], every: float
    ) -> None:
        """Load until ``until`` holds (looked at once a second), then let everything come to rest.

        ``say`` gets a line each ``every`` seconds. What was wrong is in ``ledger.violations``.
        """
        ledger, options = self.ledger, self.options
        over, watched = asyncio.Event(), asyncio.Event()
        self.watch.begin()
        await self.kills.begin()
        self.begun = ledger.clock()
        rng = random.Random(options.seed)
        chats = [
            Chats(self.http, self.known, ledger, random.Random(rng.random()), options.bound)
            for _ in range(options.chats)
        ]
        verdicts = Verdicts(
            self.http, self.known, ledger, random.Random(rng.random()), options.bound
        )
        async with asyncio.TaskGroup() as watching:
            watching.create_task(self.kills.watch(watched))
            watching.create_task(self.watch.run(watched))
            async with asyncio.TaskGroup() as working:
                for client in (*chats, verdicts, self.kills):
                    working.create_task(client.run(over))
                if options.poc:
                    working.create_task(self.rounds.run(over))
                working.create_task(self._say(over, say, every))
                while not until():  # noqa: ASYNC110 - any condition
                    await asyncio.sleep(1.0)
                over.set()
            watched.set()
        await self.kills.all_back()
        await self._rest()

    async def _rest(self) -> None:
        """Judge what must be the same as before, once nothing is asked any more."""
        ledger = self.ledger
        begin = ledger.clock()
        while True:
            busy = [b for b in await self.kills.backends() if b["in_flight"]]
            files, near = self.watch.files_now()
            if near and not busy:
                break
            if ledger.clock() - begin > REST_WITHIN:
                if busy:
                    ledger.violation(f"requests in flight that nobody waits for: {busy}")
                if not near:
                    ledger.violation(f"{files} open files at rest, {self.watch.at_rest} before")
                break
            await asyncio.sleep(0.5)
        # The children of a killed server are ended by its guard within a moment.
        await asyncio.sleep(1.0)
        self.watch.judge_processes()

    async def _say(self, over: asyncio.Event, say: Callable[[str], None], every: float) -> None:
        while not over.is_set():
            try:
                async with asyncio.timeout(every):
                    await over.wait()
            except TimeoutError:
                say(self.line())

    def line(self) -> str:
        """Where the run stands."""
        c, last = self.ledger.counts, self.watch.samples[-1]
        excused = sum(n for name, n in c.items() if name.endswith(EXCUSED))
        return (
            f"{(self.ledger.clock() - self.begun) / 60:5.1f} min"
            f"  chats {c['chat: right']}+{c['stream: right']} right, {c['tokens']} tokens"
            f"  replays {c['replay of honest claims: pass']} pass"
            f" {c['replay of a tampered claim: fail']} fail"
            f"  PoC {c['rounds']} rounds {c['vectors compared']} vectors"
            f" {c['PoC validations']} validations"
            f"  kills {c['kills']} mended {c['kills mended']}  excused {excused}"
            f"  memory {last.memory / 2**20:.0f} MiB files {last.files:.0f}"
            f"  violations {c['violations']}"
        )

    def figures(self) -> list[str]:
        """All that was counted, a line each."""
        ledger = self.ledger
        return [
            f"prompts: {len(self.known.chats)} used, {self.close_calls} left out as close calls",
            *(f"{name}: {count}" for name, count in sorted(ledger.counts.items())),
            f"longest request: {ledger.longest:.1f} s (bound {self.options.bound:g} s)",
            f"log probabilities moved by {ledger.noise:.2g} nats at most",
            f"slowest return of a killed backend: {self.kills.slowest:.1f} s",
            self.watch.judge_growth(),
            f"open files at rest: {self.watch.at_rest} before, {self.watch.files_now()[0]} after",
        ]


@asynccontextmanager
async def prepared(base_url: str, node: int, options: LoadOptions) -> AsyncIterator[Load]:
    """What is known of the node at ``base_url`` (process ``node``) before the load begins."""
    rng = random.Random(options.seed)
    ledger = Ledger()
    async with httpx.AsyncClient(
        base_url=base_url, timeout=None, trust_env=False, limits=httpx.Limits(max_connections=None)
    ) as http:
        chats, close = await known_chats(http, rng, options.prompts)
        honest = await known_claims(base_url, options.claims)
        known = Known(chats, honest, [tampered(claim) for claim in honest])
        receiver = Receiver(known, ledger)
        rounds = Rounds(
            http,
            known,
            ledger,
            receiver,
            random.Random(rng.random()),
            options.bound,
            options.closes_gate,
            options.round_s,
            options.pause_s,
        )
        kills = Kills(
            http, ledger, random.Random(rng.random()), options.kill_every_s, options.back_within
        )
        if options.poc:
            await rounds.learn(options.nonces)
        async with receiver.serving():
            yield Load(
                options, http, ledger, known, receiver, rounds, kills, Watch(node, ledger), close
            )
