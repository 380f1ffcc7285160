"""What goes wrong between a PoC request and its answer."""

from __future__ import annotations

from typing import Any

from assay.errors import AssayError


class RefusedError(AssayError):
    """Answered with ``status`` and ``{"detail": detail}``, the shape the network's servers use."""

    def __init__(self, status: int, detail: str | dict[str, Any]) -> None:
        super().__init__(detail if isinstance(detail, str) else str(detail.get("error", detail)))
        self.status = status
        self.detail = detail


class EngineFaultError(AssayError):
    """The engine failed at a forward, or gave back something that is no answer."""


class AsleepError(AssayError):
    """The engine sleeps or is paused: its weights or its cache may not be there (case 44)."""

    def __init__(self) -> None:
        super().__init__("the engine is asleep or paused; wake it up (POST /wake_up) and ask again")
