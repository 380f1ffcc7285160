"""``/health``, ``/livez``, ``/readyz`` and ``/metrics``: for supervisors and load balancers."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.node.backend import BackendState
from assay.node.node import Node
from assay.node.part import Part, Route
from assay.node.state import service_state


class Manager(BaseModel):
    running: bool
    healthy: bool


class HealthReport(BaseModel):
    """``status``: healthy or unhealthy. Unhealthy while a model is up and no backend is ready."""

    status: str
    service_state: str
    managers: dict[str, Manager]
    backends: dict[str, str]


class Ready(BaseModel):
    ready: bool


def part(node: Node) -> Part:
    """Open without a key but for the metrics: these answers say nothing worth hiding."""
    routes = _Health(node)
    return Part(
        [
            Route("GET", "/health", routes.health, key="none", answer=HealthReport),
            Route("GET", "/livez", routes.live, key="none", answer=HealthReport),
            Route("GET", "/readyz", routes.ready, key="none", answer=Ready),
            Route("GET", "/metrics", routes.metrics, summary="Prometheus metrics of the node"),
        ]
    )


class _Health:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def health(self, request: Request) -> Response:
        """503 when a model is up and nobody serves it, so that whoever watches can act."""
        report = self._report()
        return JSONResponse(
            report.model_dump(), status_code=200 if report.status == "healthy" else 503
        )

    async def live(self, request: Request) -> Response:
        """200 as long as the node itself works: killing it would not mend a backend."""
        return JSONResponse(self._report().model_dump())

    async def ready(self, request: Request) -> Response:
        """503 while a model is up or starting and no backend is ready, and while the node ends.

        A node that has no model yet is ready: for the call that gives it one.
        """
        node = self._node
        idle = node.supervisor.phase == "stopped"
        ready = (idle or bool(node.pool.healthy())) and not node.draining.is_set()
        return JSONResponse({"ready": ready}, status_code=200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        text = generate_latest(self._node.metrics.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    def _report(self) -> HealthReport:
        node = self._node
        running = node.supervisor.phase == "running"
        healthy = any(backend.healthy for backend in node.pool.backends)
        failed = any(b.state is BackendState.FAILED for b in node.pool.backends)
        unwell = (running and not healthy) or (failed and not healthy)
        return HealthReport(
            status="unhealthy" if unwell else "healthy",
            service_state=service_state(node),
            managers={"inference": Manager(running=running, healthy=healthy)},
            backends={str(b.port): b.state.value for b in node.pool.backends},
        )
