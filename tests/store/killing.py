"""Kill -9 at random points of many rounds, then look at what the receiver has (issue 5, F46).

    python -m tests.store.killing [ROUNDS [SEED]]

kills on SQLite and on PostgreSQL, 200 rounds each unless told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.plugin.poc.fake import serving
from tests.store import victim
from tests.support.postgres import postgres

from assay.node.receive import ReceiverConfig, create_receiver
from assay.store.received import ReceivedStore
from assay.store.received_tables import Sender

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Killed:
    """``kills``: nodes killed, in ``hit`` of the ``rounds``. ``wrong``: what the receiver has too much
    or too little of, by round; ``refused``: how many requests it refused, and the last reason."""

    kills: int
    hit: int
    rounds: int
    wrong: dict[int, str]
    refused: dict[int, str]


async def kill(database: str, received: str, rounds: int, seed: int) -> Killed:
    """Nodes on ``database`` are killed, each of ``rounds`` at least; the receiver is in ``received``."""
    async with _receiving(received) as (url, store):
        killer = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.store.victim", database, url, str(rounds), str(seed)),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "default"},
        )
        assert killer.stdout is not None
        reading = asyncio.create_task(killer.stdout.read())
        try:
            while not reading.done() and not await asyncio.to_thread(_refused, store):
                await asyncio.wait([reading], timeout=1.0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                killer.kill()  # a nonce that is refused is sent for ever
            await killer.wait()
        # Nothing told: it was ended by what the receiver refused, or by an error of its own.
        told = json.loads(await reading or '{"kills": 0, "hit": 0, "rounds": 0}')
        wrong = {
            number: difference
            for number in range(told["rounds"])
            if (difference := _difference(store, number)) is not None
        }
        refused = await asyncio.to_thread(_refused, store)
        return Killed(**told, wrong=wrong, refused=refused)


@asynccontextmanager
async def _receiving(database: str) -> AsyncIterator[tuple[str, ReceivedStore]]:
    app = create_receiver(ReceiverConfig.model_validate({"store": database}))
    async with app.router.lifespan_context(app), serving(app) as url:
        yield url, app.state.store


def _refused(store: ReceivedStore) -> dict[int, str]:
    return {
        int(one.sender.block_hash.partition("-")[2]): f"{one.rejected}: {one.last_rejection}"
        for one in store.senders(100_000)[1]
        if one.rejected
    }


def _difference(store: ReceivedStore, number: int) -> str | None:
    sender = Sender(victim.block_hash(number), victim.PUBLIC_KEY, victim.NODE_ID)
    there, wanted = store.vectors(sender), victim.expected(number)
    if there == wanted:
        return None
    missing, more = sorted(wanted.keys() - there.keys()), sorted(there.keys() - wanted.keys())
    return f"missing {missing}, not asked for {more}"


def main(rounds: int, seed: int) -> int:
    good = True
    print(f"seed {seed}, {rounds} rounds")
    with tempfile.TemporaryDirectory() as folder, postgres() as url:
        for name, database in (("SQLite", f"{folder}/node.db"), ("PostgreSQL", url)):
            begun = time.perf_counter()
            found = asyncio.run(kill(database, f"{folder}/{name}.db", rounds, seed))
            print(f"{name}: {found} in {time.perf_counter() - begun:.1f} s", flush=True)
            good &= not found.wrong and not found.refused and found.hit >= rounds
    print("nothing lost, nothing doubled" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    given = [int(one) for one in sys.argv[1:]]
    sys.exit(
        main(*given) if len(given) > 1 else main(given[0] if given else 200, random.getrandbits(31))
    )
