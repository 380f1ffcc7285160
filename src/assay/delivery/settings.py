"""What couriers go by; the engine's plugin and the node fill it from settings of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from prometheus_client import Counter, Gauge


@dataclass(frozen=True)
class DeliverySettings:
    """``interval_s``: seconds artifacts are collected before they are sent. ``timeout_s``: one
    request, connecting included. ``max_concurrent``: requests in flight over all receivers.
    ``max_artifacts`` may wait for one receiver. ``max_failures`` in a row and a receiver counts as
    down; it is still tried."""

    interval_s: float = 5.0
    timeout_s: float = 10.0
    max_concurrent: int = 10
    max_artifacts: int = 1_000_000
    max_failures: int = 10


class DeliveryMetrics(Protocol):
    """What couriers count."""

    @property
    def waiting(self) -> Gauge: ...

    @property
    def delivered(self) -> Counter: ...

    @property
    def callbacks(self) -> Counter:
        """Labelled ``outcome``: accepted or failed."""
        ...
