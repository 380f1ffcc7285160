"""Proof of compute as part of vLLM's API server: attached to the app, started with the engine."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import vllm
from fastapi import FastAPI
from vllm import envs
from vllm.engine.protocol import EngineClient

from assay.plugin.poc.access import ApiKeys
from assay.plugin.poc.gate import Gate, GateMiddleware
from assay.plugin.poc.metrics import PocMetrics
from assay.plugin.poc.routes import PocRoutes
from assay.plugin.poc.service import PocService
from assay.plugin.poc.settings import poc_settings
from assay.plugin.poc.vllm_engine import VllmPocEngine

logger = logging.getLogger("vllm.assay")


class PocEndpoints:
    """Routes, gate and metrics of one server. Raises SettingsError for a ``POC_*`` it cannot use."""

    def __init__(self) -> None:
        self._settings = poc_settings()
        self._metrics = PocMetrics()
        self._gate = Gate(self._metrics)
        self._routes: PocRoutes | None = None

    def attach(self, app: FastAPI) -> None:
        """Add routes, the gate and the end of life to an app that is still being built.

        The middleware must be in before the first request builds the stack (F43); it stays inside
        those vLLM adds later, with the API key check. The server's own lifespan is wrapped,
        because ``on_event`` handlers are ignored beside one (F42).
        """
        args = app.state.args
        keys = ApiKeys([*(args.api_key or [envs.VLLM_API_KEY or ""])])
        self._routes = PocRoutes(self._settings, keys, vllm.__version__)
        self._routes.attach(app)
        app.add_middleware(GateMiddleware, gate=self._gate)
        stock = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(running: FastAPI) -> AsyncIterator[Any]:
            async with stock(running) as state:
                try:
                    yield state
                finally:
                    await self.close()

        app.router.lifespan_context = lifespan

    async def start(self, engine_client: EngineClient | None, state: Any, args: Namespace) -> None:
        """Connect the routes to the engine. Without one, or where no one process could hold the
        gate, they answer 503 with the reason."""
        if self._routes is None:
            return
        servers = getattr(args, "api_server_count", None) or 1
        if engine_client is None:
            self._routes.absent = "this server has no engine"
            return
        if servers > 1:
            self._routes.absent = (
                f"this deployment runs {servers} API servers, and none can close the gate of the "
                "others; start with --api-server-count 1"
            )
            return
        service = PocService(
            VllmPocEngine(engine_client),
            self._gate,
            self._settings,
            self._metrics,
            models=model_names(args, engine_client),
            store=self._settings.store_at(args.port),
        )
        self._routes.service = service
        service.begin()
        logger.info("poc: policy %s, share %g", self._settings.policy, self._settings.share)

    async def close(self) -> None:
        """End what :meth:`start` began."""
        if self._routes is not None and self._routes.service is not None:
            service, self._routes.service = self._routes.service, None
            self._routes.absent = "the server is stopping"
            await service.close()
        self._metrics.close()


def model_names(args: Namespace, engine_client: EngineClient) -> list[str]:
    """What clients may call the model: its served names, then its path."""
    served = args.served_model_name or [args.model]
    names = [served] if isinstance(served, str) else list(served)
    return list(dict.fromkeys([*names, args.model, engine_client.model_config.model]))
