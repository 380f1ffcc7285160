"""Callback throughput: artifacts a second from the outbox to a receiver on this machine.

Vectors are kept, sealed and posted by the server's own code; the receiver is another process that
parses every body and counts nonces. Prints the rate of keeping (batches of the size a fast GPU
gives), the rate of delivery, both at once, and the ratio to posting the same bodies with no store.

    python bench/callbacks.py [artifacts]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
from prometheus_client import CollectorRegistry

from assay.delivery.couriers import POST_ARTIFACTS, Deliveries
from assay.delivery.payload import with_artifacts
from assay.delivery.settings import DeliverySettings
from assay.delivery.targets import CallbackTargets
from assay.plugin.poc.engine import checked_vectors
from assay.plugin.poc.metrics import PocMetrics
from assay.plugin.poc.payloads import artifacts_text
from assay.store.outbox import Campaign, Outbox

BATCH = 512
K = 12
HEAD = {"public_key": "key", "block_hash": "hash", "block_height": 1, "node_id": 0}
RECEIVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

nonces = set()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        nonces.update(entry["nonce"] for entry in body["artifacts"])
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self):
        answer = str(len(nonces)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def pieces(total: int) -> list[str]:
    """Artifact texts of ``total`` nonces, a batch each."""
    made = []
    for start in range(0, total, BATCH):
        nonces = list(range(start, min(start + BATCH, total)))
        answer = {
            "nonces": nonces,
            "vectors": b"\x00\x3c" * K * len(nonces),
            "finite": [True] * len(nonces),
            "seconds": {},
        }
        made.append(artifacts_text(checked_vectors(nonces, K, answer)))
    return made


@contextlib.asynccontextmanager
async def receiver() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", RECEIVER, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def received(url: str) -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        return int((await client.get(url)).text)


def deliveries(store: Path) -> Deliveries:
    return Deliveries(
        Outbox(store),
        DeliverySettings(interval_s=0.05),
        CallbackTargets((), "the list"),
        PocMetrics(CollectorRegistry()),
        logging.getLogger("bench"),
    )


async def keep(made: Deliveries, url: str, texts: list[str], total: int) -> None:
    campaign = await made.open_campaign(Campaign(url, "127.0.0.1", "generated", HEAD))
    for index, text in enumerate(texts):
        count = min(BATCH, total - index * BATCH)
        await made.append(campaign.id, url, count, text, (index + 1) * BATCH)
    await made.close_campaign(campaign.id)


async def drained(made: Deliveries) -> None:
    while made.waiting().artifacts:  # noqa: ASYNC110 - the queue has no event for "empty"
        await asyncio.sleep(0.005)


async def plain_posts(url: str, texts: list[str]) -> float:
    """Seconds to post the same artifacts in the same sizes with nothing kept."""
    step = POST_ARTIFACTS // BATCH
    begun = time.perf_counter()
    async with httpx.AsyncClient(trust_env=False) as client:
        for start in range(0, len(texts), step):
            body = with_artifacts(json.dumps(HEAD), texts[start : start + step])
            (await client.post(url, content=body)).raise_for_status()
    return time.perf_counter() - begun


async def main(total: int) -> None:
    begun = time.perf_counter()
    texts = pieces(total)
    print(f"{total:,} artifacts, batches of {BATCH}, posts of {POST_ARTIFACTS:,}")
    print(f"to text          {total / (time.perf_counter() - begun):12,.0f} artifacts/s")
    with tempfile.TemporaryDirectory() as folder:
        outbox = Outbox(Path(folder) / "kept.sqlite3")
        async with receiver() as url:
            begun = time.perf_counter()
            opened = outbox.open_campaign(Campaign(url, "127.0.0.1", "generated", HEAD))
            for index, text in enumerate(texts):
                count = min(BATCH, total - index * BATCH)
                outbox.append(opened.id, count, text, (index + 1) * BATCH)
            outbox.close()
            print(f"kept             {total / (time.perf_counter() - begun):12,.0f} artifacts/s")
            begun = time.perf_counter()
            made = deliveries(Path(folder) / "kept.sqlite3")
            await made.resume()
            await drained(made)
            delivery = time.perf_counter() - begun
            await made.close()
            assert await received(url) == total
            print(f"delivered        {total / delivery:12,.0f} artifacts/s (wanted: 50,000)")
        async with receiver() as url:
            made = deliveries(Path(folder) / "both.sqlite3")
            begun = time.perf_counter()
            await keep(made, url, texts, total)
            await drained(made)
            print(f"kept + delivered {total / (time.perf_counter() - begun):12,.0f} artifacts/s")
            await made.close()
            assert await received(url) == total
        async with receiver() as url:
            plain = await plain_posts(url, texts)
            print(f"posted, no store {total / plain:12,.0f} artifacts/s")
            print(f"delivery / plain {plain / delivery:12.2f}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000))
