"""A PoC engine, its server and its receiver, all in the test's own event loop.

The engine stands in for vLLM's client only: gate, queue, mining, store and HTTP are the real ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from assay.plugin.poc.access import ApiKeys
from assay.plugin.poc.engine import Vectors, checked_vectors
from assay.plugin.poc.failures import AsleepError, EngineFaultError
from assay.plugin.poc.gate import Gate, GateMiddleware
from assay.plugin.poc.metrics import PocMetrics
from assay.plugin.poc.routes import PREFIX, PocRoutes
from assay.plugin.poc.service import PocService
from assay.plugin.poc.settings import PocSettings
from assay.poc.artifact_file import Challenge

CHAT = "/v1/chat/completions"
PROFILE = {
    "engine_version": "0.32.0",
    "dtype": "float32",
    "kv_cache_dtype": "auto",
    "attention_backend": "CPU_ATTN",
    "hidden_size": 64,
    "max_model_len": 1024,
    "token_budget": 2048,
}


@dataclass
class FakeEngine:
    """Vectors are a pure function of challenge and nonce. ``hold`` clear: batches stay out."""

    profile_fields: dict[str, Any] = field(default_factory=lambda: dict(PROFILE))
    seconds: float = 0.001
    errored: bool = False
    sleeping: bool = False
    failure: str | None = None
    bad_nonces: Callable[[int], bool] = lambda nonce: False
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    batches: list[list[int]] = field(default_factory=list)
    aborts: int = 0
    chats: set[asyncio.Event] = field(default_factory=set)
    abort_failure: str | None = None

    def __post_init__(self) -> None:
        self.hold.set()

    async def forward(self, challenge: Challenge, nonces: Sequence[int]) -> Vectors:
        self.batches.append(list(nonces))
        await asyncio.sleep(self.seconds)
        await self.hold.wait()
        if self.failure is not None:
            raise EngineFaultError(self.failure)
        rows = np.array([vector(challenge, nonce) for nonce in nonces], dtype="<f2")
        for index, nonce in enumerate(nonces):
            if self.bad_nonces(nonce):
                rows[index, 0] = np.nan
        answer = {
            "nonces": list(nonces),
            "vectors": rows.tobytes(),
            "finite": [True] * len(nonces),
            "seconds": {"forward": self.seconds},
        }
        return checked_vectors(nonces, challenge.k, answer)

    async def profile(self) -> dict[str, Any]:
        return self.profile_fields

    async def asleep(self) -> bool:
        if self.errored:
            await asyncio.Event().wait()  # a dead vLLM leaves calls unanswered
        return self.sleeping

    async def abort_all(self) -> None:
        if self.sleeping:
            raise AsleepError
        if self.abort_failure is not None:
            raise EngineFaultError(self.abort_failure)
        self.aborts += 1
        for chat in self.chats:
            chat.set()

    def mined(self) -> list[int]:
        """Nonces sent to the device, without the probe's."""
        return [nonce for batch in self.batches[1:] for nonce in batch]


def vector(challenge: Challenge, nonce: int) -> np.ndarray:
    """A unit vector ``[k]``; that of another nonce, block or key is far away."""
    text = f"{challenge.block_hash}/{challenge.public_key}/{nonce}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    values = np.random.default_rng(seed).normal(size=challenge.k)
    return values / np.linalg.norm(values)


@dataclass
class Running:
    """One server: its parts, and a client that sends no Content-Type."""

    engine: FakeEngine
    gate: Gate
    service: PocService
    registry: CollectorRegistry
    client: httpx.AsyncClient

    async def post(self, path: str, body: Any = None) -> httpx.Response:
        """As the network's clients do: JSON bytes without saying that they are JSON."""
        content = None if body is None else json.dumps(body).encode()
        return await self.client.post(PREFIX + path, content=content)

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(PREFIX + path)

    async def status(self) -> dict[str, Any]:
        return (await self.get("/status")).json()

    def chat(self) -> asyncio.Task[httpx.Response]:
        return asyncio.create_task(self.client.post(CHAT, json={}))

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


def settings(**changes: Any) -> PocSettings:
    """Settings of a test: callbacks at once, and none of the caller's environment."""
    return PocSettings(**{"callback_interval_sec": 0.05, **changes})


@asynccontextmanager
async def running(
    store: Path | str,
    engine: FakeEngine | None = None,
    keys: tuple[str, ...] = (),
    **changes: Any,
) -> AsyncIterator[Running]:
    """A PoC server with a chat route whose requests run until they are aborted."""
    engine = engine or FakeEngine()
    chosen = settings(**changes)
    registry = CollectorRegistry()
    metrics = PocMetrics(registry)
    gate = Gate(metrics)
    routes = PocRoutes(chosen, ApiKeys(keys), "0.32.0")
    app = FastAPI()
    routes.attach(app)

    async def chat(request: Request) -> Response:
        ended = asyncio.Event()
        engine.chats.add(ended)
        try:
            await ended.wait()
        finally:
            engine.chats.discard(ended)
        return JSONResponse({"finish_reason": "abort"})

    app.add_api_route(CHAT, chat, methods=["POST"])
    app.add_middleware(GateMiddleware, gate=gate)
    service = PocService(
        engine, gate, chosen, metrics, models=["model", "/models/model"], store=str(store)
    )
    routes.service = service
    service.begin()
    async with serving(app) as url, httpx.AsyncClient(base_url=url, trust_env=False) as client:
        await service.capability.get()
        try:
            yield Running(engine, gate, service, registry, client)
        finally:
            for ended in list(engine.chats):
                ended.set()
            engine.hold.set()
            await service.close()


@dataclass
class Receiver:
    """Takes callbacks. ``answer`` decides the status of each; what got 2xx is ``taken``."""

    answer: Callable[[int], int] = lambda number: 200
    delay: float = 0.0
    url: str = ""
    seen: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    taken: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    paths: list[bytes] = field(default_factory=list)

    async def handle(self, request: Request) -> Response:
        body = json.loads(await request.body())
        entry = (request.url.path.rpartition("/")[2], request.headers["idempotency-key"], body)
        self.seen.append(entry)
        self.paths.append(request.scope["raw_path"])
        await asyncio.sleep(self.delay)
        status = self.answer(len(self.seen))
        if status < 300:
            self.taken.append(entry)
        headers = {"Location": "/elsewhere/generated"} if 300 <= status < 400 else None
        return Response(status_code=status, headers=headers)

    def nonces(self) -> list[int]:
        """Of every accepted artifact, each key counted once."""
        once = {key: body for kind, key, body in self.taken if kind == "generated"}
        return [entry["nonce"] for body in once.values() for entry in body["artifacts"]]

    @asynccontextmanager
    async def serving(self, path: str = "/callbacks") -> AsyncIterator[Receiver]:
        app = Starlette(routes=[Route("/{rest:path}", self.handle, methods=["POST"])])
        async with serving(app) as url:
            self.url = url + path
            yield self


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """``app`` on a loopback port."""
    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, log_level="warning", ws="none", lifespan="off"
    )
    server = uvicorn.Server(config)
    server.capture_signals = _no_signals  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        await task


def _no_signals() -> Any:
    from contextlib import nullcontext

    return nullcontext()


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Return when ``condition`` holds; fails the test when it does not within ``seconds``."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - any condition, not only events
            await asyncio.sleep(0.01)


def init_body(**changes: Any) -> dict[str, Any]:
    """``/init/generate`` as a real client sends it: no batch_size, no k_dim, a key nobody knows."""
    return {
        "block_hash": "abc",
        "block_height": 7,
        "public_key": "node-key",
        "node_id": 0,
        "node_count": 1,
        "params": {"model": "model", "seq_len": 16},
        "epoch": 12,
        **changes,
    }


def generate_body(nonces: Sequence[int], **changes: Any) -> dict[str, Any]:
    return init_body(nonces=list(nonces), **changes)
