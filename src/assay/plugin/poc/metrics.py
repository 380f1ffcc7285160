"""PoC in numbers, on the registry that vLLM's ``/metrics`` shows."""

from __future__ import annotations

from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from assay.plugin.poc.engine import Vectors

# Gauges of several API server processes add up; each process holds its own queue and gate.
_MODE: Final = "livesum"


class PocMetrics:
    """Counters and gauges of one server. ``close`` takes them off the registry again."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self.computed = Counter(
            "assay_poc_vectors_computed",
            "Finite PoC vectors the device gave back",
            registry=registry,
        )
        self.failed = Counter(
            "assay_poc_vectors_failed", "PoC vectors with NaN or Inf, never sent", registry=registry
        )
        self.delivered = Counter(
            "assay_poc_vectors_delivered", "PoC vectors a receiver accepted", registry=registry
        )
        self.forward_seconds = Counter(
            "assay_poc_forward_seconds",
            "Device seconds of PoC batches by part",
            ["part"],
            registry=registry,
        )
        self.callbacks = Counter(
            "assay_poc_callbacks", "Callback requests by outcome", ["outcome"], registry=registry
        )
        self.queued = Gauge(
            "assay_poc_queued_nonces",
            "Nonces of /generate that wait or run",
            registry=registry,
            multiprocess_mode=_MODE,
        )
        self.waiting = Gauge(
            "assay_poc_artifacts_waiting",
            "PoC vectors that wait for their receiver",
            registry=registry,
            multiprocess_mode=_MODE,
        )
        self.gate_closed = Gauge(
            "assay_poc_gate_closed",
            "1 while routes that generate answer 503",
            registry=registry,
            multiprocess_mode=_MODE,
        )

    def batch(self, vectors: Vectors) -> None:
        """Count one batch that came back from the device."""
        good = sum(vectors.finite)
        self.computed.inc(good)
        self.failed.inc(len(vectors.finite) - good)
        for part, seconds in vectors.seconds.items():
            self.forward_seconds.labels(part=part).inc(seconds)

    def close(self) -> None:
        for metric in (
            self.computed,
            self.failed,
            self.delivered,
            self.forward_seconds,
            self.callbacks,
            self.queued,
            self.waiting,
            self.gate_closed,
        ):
            self._registry.unregister(metric)
