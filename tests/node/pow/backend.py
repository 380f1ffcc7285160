"""A backend with the real proof-of-compute routes over an engine that costs nothing.

Started by the node under test through ``backends.command``. ``POST`` with JSON to ``CONTROL`` sets
fields of ``Mood`` while it runs. Vectors are a function of the challenge and the nonce, so that
whoever gets one can check it.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CONTROL = "/api/v1/pow/control"
"""Where the gate of mining does not reach."""
sys.path.insert(0, str(Path(__file__).parents[3]))


@dataclass
class Mood:
    """What goes wrong. All good as it stands. Routes are named by their last part: ``init``,
    ``generate``, ``shares``, ``status``, ``stop``, ``health``."""

    hang: list[str] = field(default_factory=list)
    """Routes that neither do anything nor answer."""
    mute: list[str] = field(default_factory=list)
    """Routes that do what they are asked, and never answer."""
    refuse: dict[str, list[Any]] = field(default_factory=dict)
    """Routes that answer a status and a detail and do nothing."""
    failure: str | None = None
    """What the device reports instead of vectors."""
    sleeping: bool = False
    held: bool = False
    """Batches stay on the device."""
    seconds: float = 0.002
    """A batch."""
    bad_every: int = 0
    """Every so-manieth nonce gives a vector that is not finite."""


def main(arguments: list[str]) -> int:
    if "--dry-run" in arguments:
        arguments.remove("--dry-run")
        print(shlex.join(["serve", *arguments]))
        return 0
    import uvicorn  # not for a dry run: it is asked at every start

    host, port = (arguments[arguments.index(flag) + 1] for flag in ("--host", "--port"))
    uvicorn.run(
        make_app(arguments[0], int(port)),
        host=host,
        port=int(port),
        log_level="warning",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    return 0


def make_app(model: str, port: int) -> Any:
    from fastapi import FastAPI
    from prometheus_client import CollectorRegistry
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from tests.plugin.poc.fake import FakeEngine

    from assay.plugin.poc.access import ApiKeys
    from assay.plugin.poc.gate import Gate, GateMiddleware
    from assay.plugin.poc.metrics import PocMetrics
    from assay.plugin.poc.routes import PocRoutes
    from assay.plugin.poc.service import PocService
    from assay.plugin.poc.settings import poc_settings

    mood = Mood()
    engine = FakeEngine()
    settings = poc_settings()
    metrics = PocMetrics(CollectorRegistry())
    gate = Gate(metrics)
    routes = PocRoutes(settings, ApiKeys(()), "0.32.0")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = PocService(
            engine, gate, settings, metrics, models=[model], store=settings.store_at(port)
        )
        routes.service = service
        service.begin()
        yield
        engine.hold.set()
        await service.close()

    app = FastAPI(lifespan=lifespan)
    routes.attach(app)

    async def models(request: Request) -> Response:
        return JSONResponse({"data": [{"id": model}]})

    async def well(request: Request) -> Response:
        return JSONResponse({})

    async def complete(request: Request) -> Response:
        return JSONResponse({"choices": [{"text": "a"}], "served_by": port})

    async def control(request: Request) -> Response:
        for name, wish in (await request.json()).items():
            assert hasattr(mood, name), name
            setattr(mood, name, wish)
        engine.failure, engine.sleeping, engine.seconds = mood.failure, mood.sleeping, mood.seconds
        every = mood.bad_every
        engine.bad_nonces = (lambda nonce: nonce % every == 0) if every else (lambda nonce: False)
        (engine.hold.clear if mood.held else engine.hold.set)()
        return JSONResponse({})

    async def jobs(request: Request) -> Response:
        found = routes.service.jobs._jobs if routes.service is not None else {}
        return JSONResponse({name: job.state for name, job in found.items()})

    app.router.add_route("/health", well)
    app.router.add_route("/metrics", well)
    app.router.add_route("/v1/models", models)
    app.router.add_route("/v1/completions", complete, methods=["POST"])
    app.router.add_route(CONTROL, control, methods=["POST"])
    app.router.add_route("/jobs", jobs)
    app.add_middleware(GateMiddleware, gate=gate)
    return Moody(app, mood)


class Moody:
    """The app, as far as its mood allows."""

    def __init__(self, app: Any, mood: Mood) -> None:
        self._app = app
        self._mood = mood

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        name = "init" if path.endswith("/init/generate") else path.rpartition("/")[2]
        if scope["type"] != "http" or path == CONTROL:
            await self._app(scope, receive, send)
            return
        await self._while_in(lambda: name in self._mood.hang)
        if name in self._mood.refuse:
            status, detail = self._mood.refuse[name]
            await _answer(send, status, {"detail": detail})
            return

        async def answer(message: Any) -> None:
            await self._while_in(lambda: name in self._mood.mute)
            await send(message)

        await self._app(scope, receive, answer)

    async def _while_in(self, condition: Any) -> None:
        while condition():  # noqa: ASYNC110 - the mood changes by a request
            await asyncio.sleep(0.02)


async def _answer(send: Any, status: int, body: object) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode()})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
