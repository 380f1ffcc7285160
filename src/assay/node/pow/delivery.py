"""How the node's own couriers are set up."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from assay.delivery.settings import DeliverySettings
from assay.node.config import Callbacks


class PowMetrics:
    """What the node's couriers count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting = Gauge(
            "assay_node_artifacts_waiting", "Artifacts that wait for a receiver", registry=registry
        )
        self.delivered = Counter(
            "assay_node_artifacts_delivered", "Artifacts a receiver accepted", registry=registry
        )
        self.callbacks = Counter(
            "assay_node_callbacks", "Callback requests by outcome", ["outcome"], registry=registry
        )


def delivery_settings(callbacks: Callbacks) -> DeliverySettings:
    return DeliverySettings(
        interval_s=callbacks.interval_s,
        timeout_s=callbacks.timeout_s,
        max_concurrent=callbacks.max_concurrent,
        max_artifacts=callbacks.max_artifacts,
    )
