"""Nodes that fan proof of compute out to real backend processes, and what their receivers hold."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from tests.node.helpers import HOST, SOON, stand_in_config
from tests.plugin.poc.fake import Receiver, init_body, vector

from assay.node import control, health, proxy, reports
from assay.node.app import create_app
from assay.node.backend import Backend, BackendState
from assay.node.config import NodeConfig
from assay.node.node import Node
from assay.node.pow import routes
from assay.node.pow.patience import Patience
from assay.node.run import listen
from assay.poc.bodies import Identity
from assay.poc.nonces import place

BACKEND = Path(__file__).with_name("backend.py")
POW = "/api/v1/inference/pow"
QUICK = Patience(look=0.05, rest=0.2, rest_most=0.4)
"""Often looked, soon asked again; nothing is given up sooner than by a node as it is."""


def pow_config(folder: Path, count: int = 2, **flags: Any) -> NodeConfig:
    return stand_in_config(
        folder,
        **{
            "backends__command": [sys.executable, str(BACKEND)],
            "backends__count": count,
            "backends__restart_limit": 1000,
            "backends__restart_backoff_max_s": 0.05,
            "callbacks__interval_s": 0.05,
            **flags,
        },
    )


class PowNode:
    """A node in this process, listening, with backends up."""

    def __init__(self, node: Node, http: httpx.AsyncClient) -> None:
        self.node = node
        self.http = http

    @property
    def ports(self) -> list[int]:
        return [backend.port for backend in self.node.pool.backends]

    def backend(self, index: int) -> Backend:
        return self.node.pool.backends[index]

    async def up(self, model: str = "model") -> None:
        body = {"model": model, "dtype": "auto", "additional_args": []}
        answer = await self.http.post("/api/v1/inference/up", json=body)
        assert answer.status_code == 200, answer.text
        for index in range(len(self.ports)):
            # Waits for the probe: a mood set before it has ended would spoil that.
            able = await self.ask(index, "/api/v1/pow/versions")
            assert able["poc_validation_inference"] is True

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """As the network's clients do: JSON bytes without saying that they are JSON."""
        content = None if body is None else json.dumps(body).encode()
        return await self.http.post(POW + path, content=content, headers=headers)

    async def get(self, path: str) -> httpx.Response:
        return await self.http.get(POW + path)

    async def status(self) -> Any:
        return (await self.get("/status")).json()

    async def round(self) -> Any:
        return (await self.status())["round"]

    async def tell(self, index: int, **mood: Any) -> None:
        """Change a backend's mood."""
        url = f"{self.backend(index).base_url}/api/v1/pow/control"
        answer = await self.node.http.post(url, json=mood)
        assert answer.status_code == 200, answer.text

    async def ask(self, index: int, path: str) -> Any:
        """Of the backend itself."""
        return (await self.node.http.get(self.backend(index).base_url + path)).json()

    def kill(self, index: int) -> None:
        """SIGKILL to its server, if that has not died already without anybody's notice."""
        pid = self.backend(index).pid
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    async def well(self, index: int, generation: int) -> None:
        """Return when a backend is ready in this or a later life."""
        backend = self.backend(index)
        await until(
            lambda: backend.state is BackendState.READY and backend.generation >= generation
        )


@asynccontextmanager
async def pow_node(
    folder: Path,
    count: int = 2,
    patience: Patience = QUICK,
    *,
    up: bool = True,
    config: NodeConfig | None = None,
    **flags: Any,
) -> AsyncIterator[PowNode]:
    """``config``: of a node that was here before, else one of its own."""
    config = pow_config(folder, count, **flags) if config is None else config
    parts = (
        control.part,
        health.part,
        reports.part,
        functools.partial(routes.part, patience=patience),
        proxy.part,
    )
    app = create_app(config, parts=parts)
    key = config.keys.control
    headers = {} if key is None else {"Authorization": f"Bearer {key.get_secret_value()}"}
    with closing(listen(HOST, config.port)) as listener:
        settings = uvicorn.Config(app, log_level="warning", ws="none", lifespan="off")
        server = uvicorn.Server(settings)
        server.capture_signals = _no_signals  # type: ignore[method-assign, assignment]
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(
                base_url=f"http://{HOST}:{config.port}",
                trust_env=False,
                timeout=SOON,
                headers=headers,
            ) as http,
        ):
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            driven = PowNode(app.state.node, http)
            try:
                if up:
                    await driven.up()
                yield driven
            finally:
                server.should_exit = server.force_exit = True
                await serving


def _no_signals() -> Any:
    from contextlib import nullcontext

    return nullcontext()


async def until(condition: Callable[[], object], what: str = "") -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what or condition}"
        await asyncio.sleep(0.01)


async def until_it(ask: Callable[[], Any], fits: Callable[[Any], object], what: str = "") -> Any:
    """The first answer of ``ask`` that ``fits``."""
    deadline = time.monotonic() + SOON
    while not fits(answer := await ask()):
        assert time.monotonic() < deadline, f"never happened: {what}; last: {answer}"
        await asyncio.sleep(0.02)
    return answer


async def grown(receiver: Receiver, by: int) -> None:
    """Return when the receiver has so many artifacts more."""
    before = len(receiver.nonces())
    await until(lambda: len(receiver.nonces()) >= before + by, f"{by} artifacts more")


async def classes_grown(receiver: Receiver, body: Mapping[str, Any], n_groups: int) -> None:
    """Return when every class has got further than it was."""
    before = reached(receiver.nonces(), body, n_groups)
    await until(
        lambda: all(
            now > then
            for now, then in zip(reached(receiver.nonces(), body, n_groups), before, strict=True)
        ),
        "every class is mined",
    )


def reached(nonces: Iterable[int], body: Mapping[str, Any], n_groups: int) -> list[int]:
    """How far each class has got: its highest position, and one."""
    found = [0] * n_groups
    for nonce in nonces:
        at = place(nonce, body["node_id"], body["node_count"], n_groups)
        assert at is not None, f"{nonce} is another node's"
        found[at[0]] = max(found[at[0]], at[1] + 1)
    return found


def check(
    artifacts: Sequence[Mapping[str, Any]],
    body: Mapping[str, Any],
    n_groups: int,
    holes: Callable[[int], bool] = lambda nonce: False,
) -> list[int]:
    """Every class from its beginning on, contiguous, each nonce once, every vector right.

    ``holes``: nonces that are rightly missing. How far each class got.
    """
    nonces = [entry["nonce"] for entry in artifacts]
    assert len(set(nonces)) == len(nonces), "a nonce came twice"
    ends = reached(nonces, body, n_groups)
    expected = {
        body["node_id"] + (group + position * n_groups) * body["node_count"]
        for group, end in enumerate(ends)
        for position in range(end)
    }
    missing = {nonce for nonce in expected - set(nonces) if not holes(nonce)}
    assert not missing, f"missing: {sorted(missing)[:10]} of {ends}"
    challenge = Identity.model_validate(body).challenge
    for entry in artifacts:
        right = vector(challenge, entry["nonce"]).astype("<f2").tobytes()
        assert base64.b64decode(entry["vector_b64"]) == right, f"vector of {entry['nonce']}"
    return ends


def artifacts_of(receiver: Receiver) -> list[dict[str, Any]]:
    """All it has taken, each idempotency key once, and the same under one key always."""
    once: dict[str, Any] = {}
    for kind, key, body in receiver.taken:
        if kind == "generated":
            assert once.setdefault(key, body) == body
    return [entry for body in once.values() for entry in body["artifacts"]]


def ask_for(receiver: Receiver | None, **changes: Any) -> dict[str, Any]:
    """Body of an init for the second of three nodes of a network."""
    url = {} if receiver is None else {"url": receiver.url}
    return init_body(**{"node_id": 1, "node_count": 3, **url, **changes})


async def stopped(node: PowNode, receiver: Receiver) -> None:
    """Stop, and wait until nothing comes any more."""
    answer = await node.post("/stop")
    assert answer.status_code == 200, answer.text
    # What was on a device is handed over within its interval, then sent within the node's.
    running = node.node.metrics.registry
    quiet = 0
    last = -1
    while quiet < 20:
        waits = running.get_sample_value("assay_node_artifacts_waiting") or 0
        now = len(receiver.nonces())
        quiet = quiet + 1 if now == last and not waits else 0
        last = now
        await asyncio.sleep(0.1)
