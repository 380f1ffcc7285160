"""Running a node: its ports, its signals, and an end that lets streams finish."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from assay.errors import SettingsError
from assay.node.app import create_app
from assay.node.config import NodeConfig
from assay.node.logs import log_as_json
from assay.node.node import Node
from assay.node.protocol import http_protocol

logger = logging.getLogger("assay.node")

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Seconds an idle client connection stays open; longer than load balancers wait, so that it is
they who close and no request meets a connection that is just going away."""
TRY_AGAIN_S = 30.0
"""Seconds between attempts to listen on a second port that something else holds."""


def run_node(config: NodeConfig) -> None:
    """Run until SIGINT, SIGTERM or SIGHUP. Raises SettingsError or StoreError when it cannot start."""
    log_as_json(config)
    with asyncio.Runner(loop_factory=_faster_loop()) as runner:
        runner.run(serve(config))


async def serve(config: NodeConfig) -> None:
    """The node in this event loop; must run in the main thread, for its signals.

    The first signal ends it: no new work, running answers may finish for ``limits.graceful_s``,
    then every backend is stopped. A second signal does not wait for the answers.
    """
    listener = listen(config.host, config.port)
    app = create_app(config)
    node: Node = app.state.node
    server = _Server(_settings(app, config))
    servers = [server]
    loop = asyncio.get_running_loop()

    def end() -> None:
        for one in servers:
            one.force_exit = node.draining.is_set()
            one.should_exit = True
        node.draining.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end)
    with contextlib.closing(listener):
        async with app.router.lifespan_context(app), second_port(app, node, servers):
            logger.info("node listens on %s port %d", config.host, config.port)
            await server.serve(sockets=[listener])
            logger.info("node ends")


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; SettingsError that names the port when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host.strip("[]"), port))
    except OSError as error:
        bound.close()
        raise SettingsError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return bound


def _faster_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed, as beside vLLM: it passes streams on with less CPU time."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module(
        "uvloop"
    ).new_event_loop
    return factory


@asynccontextmanager
async def second_port(app: FastAPI, node: Node, servers: list[_Server]) -> AsyncIterator[None]:
    """Inference on ``proxy.port`` while a backend is healthy: connections are refused otherwise.

    The port's server is one of ``servers`` while it runs.
    """
    if not node.config.proxy.port:
        yield
        return
    task = asyncio.create_task(_follow(inference_only(app), node, servers))
    try:
        yield
    finally:
        # Draining has begun, so this ends by itself, after running answers as on the first port.
        node.draining.set()
        await asyncio.wait({task})
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the second port met a fault", exc_info=error)


def inference_only(app: ASGIApp) -> ASGIApp:
    """``app`` with every path outside ``/v1`` and ``/health`` answered 404."""

    async def only(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and not (path.startswith("/v1/") or path in ("/v1", "/health")):
            scope = {**scope, "path": "/not-on-this-port", "raw_path": b"/not-on-this-port"}
        await app(scope, receive, send)

    return only


async def _follow(app: ASGIApp, node: Node, servers: list[_Server]) -> None:
    """Open and close the port as backends come and go, until the node drains."""
    host, port = node.config.host, node.config.proxy.port
    while not node.draining.is_set():
        if not node.pool.healthy():
            await _first(node.draining.wait(), node.pool.changed())
            continue
        try:
            listener = listen(host, port)
        except SettingsError as error:
            logger.error("second port: %s", error)
            await _first(node.draining.wait(), asyncio.sleep(TRY_AGAIN_S))
            continue
        logger.info("inference listens on %s port %d", host, port)
        with contextlib.closing(listener):
            server = _Server(_settings(app, node.config))
            servers.append(server)
            await _serve_while_healthy(server, node, listener)
            servers.remove(server)
        logger.info("inference no longer listens on port %d", port)


async def _serve_while_healthy(server: _Server, node: Node, listener: socket.socket) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not serving.done() and node.pool.healthy() and not node.draining.is_set():
        await _first(node.draining.wait(), node.pool.changed(), asyncio.wait({serving}))
    server.should_exit = True
    await serving


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return when the first of these is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


class _Server(uvicorn.Server):
    """Signals are the node's: uvicorn would raise them again once its connections are closed,
    and the process would end with its backends still running."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _settings(app: ASGIApp, config: NodeConfig) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",  # entered by whoever serves, so that its errors reach the command line
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=http_protocol(),
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(config.limits.graceful_s),
    )
