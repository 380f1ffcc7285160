"""From a miner's outbox to the receiver's store, on SQLite and on a real PostgreSQL (F46)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from tests.plugin.poc.fake import FakeEngine, init_body, running, serving, vector

from assay.node.receive import ReceiverConfig, create_receiver
from assay.poc.artifact_file import Challenge
from assay.store.outbox import Outbox
from assay.store.received import ReceivedStore
from assay.store.received_tables import Received, Sender

ROOT = Path(__file__).parents[2]
WITHIN = 120.0
BASE = "/v2/poc-batches/a%252Fb"
SENDER = Sender("abc", "node-key", 0)
MINER = """
import asyncio, sys
sys.path.insert(0, sys.argv[3])
from tests.plugin.poc.fake import running, init_body, FakeEngine

async def main():
    async with running(sys.argv[1], FakeEngine(seconds=0.01)) as server:
        answer = await server.post("/init/generate", init_body(url=sys.argv[2], batch_size=8))
        assert answer.status_code == 200, answer.text
        await asyncio.sleep(600)

asyncio.run(main())
"""


@asynccontextmanager
async def receiving(database: str) -> AsyncIterator[tuple[str, ReceivedStore]]:
    app = create_receiver(ReceiverConfig(store=database))
    async with app.router.lifespan_context(app), serving(app) as url:
        yield url + BASE, app.state.store


async def arrived(store: ReceivedStore, least: int) -> Received:
    """The miner's state at the receiver once it holds ``least`` artifacts."""
    async with asyncio.timeout(WITHIN):
        while True:
            _, found = await asyncio.to_thread(store.senders, 1)
            if found and found[0].artifacts >= least:
                return found[0]
            await asyncio.sleep(0.05)


async def test_f46_a_miner_killed_twice_loses_nothing_and_doubles_nothing(
    database: str, tmp_path: Path
) -> None:
    """The receiver refuses a nonce that comes twice, so the miner would never be done with it."""
    outbox = database if "://" in database else str(tmp_path / "outbox.db")
    async with receiving(database) as (url, store):
        count = 0
        for _ in range(2):
            miner = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", MINER, outbox, url, str(ROOT)),
                env={**os.environ, "PYTHONWARNINGS": "default"},
            )
            try:
                count = (await arrived(store, count + 20)).artifacts
            finally:
                miner.send_signal(signal.SIGKILL)
                await miner.wait()
        engine = FakeEngine(seconds=0.01)
        async with running(outbox, engine) as server:  # type: ignore[arg-type]
            await server.post("/init/generate", init_body(url=url, batch_size=8))
            await arrived(store, count + 20)
            await server.post("/stop")
        left = Outbox(outbox)
        waiting = left.waiting()
        left.close()
        [one] = store.senders(1)[1]
        kept = store.vectors(SENDER)
    assert one.rejected == 0
    assert (one.artifacts, one.porosity) == (len(kept), (len(kept) - 1) / len(kept))
    assert list(kept) == list(range(len(kept)))  # no gap where one miner ended
    assert sum(w.artifacts for w in waiting.values()) + len(kept) > max(engine.mined())
    challenge = Challenge("abc", "node-key")
    for nonce, raw in kept.items():
        assert raw == vector(challenge, nonce).astype("<f2").tobytes()
    assert np.frombuffer(kept[0], "<f2").shape == (challenge.k,)
