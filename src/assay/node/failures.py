"""What a route of the node answers when it does not do what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.errors import AssayError


class NodeRefusal(AssayError):  # noqa: N818 - it is an answer, not a fault
    """Answered with ``status`` and ``{"detail": detail}``; ``headers`` are added."""

    def __init__(
        self,
        status: int,
        detail: str | Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail if isinstance(detail, str) else str(detail.get("error", detail)))
        self.status = status
        self.detail = detail if isinstance(detail, str) else dict(detail)
        self.headers = dict(headers or {})


class NoBackendError(NodeRefusal):
    """No backend is healthy: 503 with the words clients look for."""

    def __init__(self) -> None:
        super().__init__(503, "No vLLM backend available")


class BackendFailureError(AssayError):
    """A backend could not be started or kept running; the message says why, with its log's end."""
