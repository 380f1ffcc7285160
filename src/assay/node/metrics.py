"""The node in numbers. Each node has a registry of its own; parts add their collectors to it."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from assay.node.backend import BackendState
from assay.node.pool import Change, Pool


class NodeMetrics:
    """``registry`` is what ``/metrics`` shows: ``Counter(..., registry=node.metrics.registry)``."""

    def __init__(self, pool: Pool) -> None:
        self.registry = CollectorRegistry()
        self._backends = Gauge(
            "assay_node_backends", "Backends by state", ["state"], registry=self.registry
        )
        self._in_flight = Gauge(
            "assay_node_in_flight", "Requests on a backend", ["port"], registry=self.registry
        )
        self.restarts = Counter(
            "assay_node_backend_restarts",
            "Backends started again, by what had happened",
            ["port", "cause"],
            registry=self.registry,
        )
        for state in BackendState:
            self._backends.labels(state=state.value).set_function(partial(_count, pool, state))
        pool.listen(self._on_change)

    def _on_change(self, change: Change) -> None:
        # Set at the first change of a port: ports are known only once a model is up.
        backend = change.backend
        self._in_flight.labels(port=str(backend.port)).set_function(lambda: backend.in_flight)


def _count(pool: Pool, state: BackendState) -> float:
    return sum(backend.state is state for backend in pool.backends)
