"""Does ``POC_POLICY=share`` share? Chat alone, PoC alone, and both, on one server, alternating.

Prints each as a part of its own rate alone, the median of the rounds. The aim: with PoC at half of
its rate or more, chat keeps at least 0.4 of its own.

    python bench/poc_share.py [rounds] [seconds]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx

from assay.demo.models import smollm2
from assay.demo.server import DemoServer
from assay.demo.settings import CacheSettings
from assay.settings import process_environment

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
ENVIRONMENT = {
    "POC_POLICY": "share",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
CHATS, CHAT_TOKENS = 4, 16
MINING = {
    "block_hash": "bench",
    "block_height": 1,
    "public_key": "bench",
    "node_id": 0,
    "node_count": 1,
    "batch_size": 2,
}
SEQ_LEN = 64


class Bench:
    """One server; counts chat tokens and PoC vectors within a window."""

    def __init__(self, client: httpx.AsyncClient, model: str) -> None:
        self._client = client
        self._model = model
        self._tokens = 0

    async def window(self, seconds: float, *, chat: bool, poc: bool) -> tuple[float, float]:
        """Chat tokens and PoC vectors a second."""
        async with contextlib.AsyncExitStack() as load:
            if poc:
                await load.enter_async_context(self._mining())
            if chat:
                await load.enter_async_context(self._chatting())
            await asyncio.sleep(2)  # past the first requests and the first batch
            tokens, vectors, begun = self._tokens, await self._vectors(), time.perf_counter()
            await asyncio.sleep(seconds)
            passed = time.perf_counter() - begun
            return (self._tokens - tokens) / passed, (await self._vectors() - vectors) / passed

    @contextlib.asynccontextmanager
    async def _mining(self) -> AsyncIterator[None]:
        body = {**MINING, "params": {"model": self._model, "seq_len": SEQ_LEN}}
        await self._post("/api/v1/pow/init/generate", body)
        try:
            yield
        finally:
            await self._post("/api/v1/pow/stop", {})

    @contextlib.asynccontextmanager
    async def _chatting(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._chat()) for _ in range(CHATS)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _chat(self) -> None:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": "Tell me about metals."}],
            "max_tokens": CHAT_TOKENS,
            "ignore_eos": True,
            "stream": True,
        }
        while True:
            async with self._client.stream("POST", "/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    self._tokens += line.startswith("data: {")

    async def _vectors(self) -> float:
        for line in (await self._client.get("/metrics")).text.splitlines():
            if line.startswith("assay_poc_vectors_computed_total "):
                return float(line.rpartition(" ")[2])
        raise RuntimeError("the server shows no PoC metrics; is the plugin loaded?")

    async def _post(self, path: str, body: dict[str, object]) -> None:
        (await self._client.post(path, content=json.dumps(body))).raise_for_status()


async def measure(url: str, model: str, rounds: int, seconds: float) -> None:
    chat_parts, poc_parts = [], []
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=120) as client:
        bench = Bench(client, model)
        await bench.window(2, chat=True, poc=False)
        for number in range(1, rounds + 1):
            chat, _ = await bench.window(seconds, chat=True, poc=False)
            _, poc = await bench.window(seconds, chat=False, poc=True)
            chat_both, poc_both = await bench.window(seconds, chat=True, poc=True)
            chat_parts.append(chat_both / chat)
            poc_parts.append(poc_both / poc)
            print(
                f"round {number}: chat {chat:.1f} tokens/s alone, {chat_both:.1f} beside PoC "
                f"({chat_parts[-1]:.2f}); PoC {poc:.2f} vectors/s alone, {poc_both:.2f} beside "
                f"chat ({poc_parts[-1]:.2f})",
                flush=True,
            )
    print(
        f"median: chat keeps {statistics.median(chat_parts):.2f}, "
        f"PoC keeps {statistics.median(poc_parts):.2f}"
    )


def main(rounds: int, seconds: float) -> None:
    model = smollm2(CacheSettings().assay_cache_dir or ROOT / ".cache" / "assay")
    with tempfile.TemporaryDirectory() as folder:
        environment = {**process_environment(), **ENVIRONMENT, "POC_STORE_FOLDER": folder}
        log = Path(folder) / "server.log"
        with DemoServer(model, FLAGS, environment, log) as server:
            server.wait()
            asyncio.run(measure(server.url, str(model), rounds, seconds))


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 3,
        float(sys.argv[2]) if len(sys.argv) > 2 else 20,
    )
