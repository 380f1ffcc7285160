"""Structured logs: one JSON object a line on standard error, and no key in any of them."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TextIO

from assay.node.config import Backends, NodeConfig

HIDDEN = "***"
SHORTEST_SECRET = 4
"""Shorter values of the backends' environment are switches such as ``1``, not secrets."""


class JsonLines(logging.Formatter):
    """``secrets`` are replaced wherever they turn up: in a message, a path, a traceback."""

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        super().__init__()
        self._secrets = tuple(secrets)

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        hidden = {name: hide(str(value), self._secrets) for name, value in fields.items()}
        return json.dumps(hidden, ensure_ascii=False)


def hide(text: str, secrets: Sequence[str]) -> str:
    """``text`` with every secret in it replaced; the longest first, as one may be part of another."""
    for secret in sorted((s for s in secrets if s), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def secrets_of(config: NodeConfig) -> list[str]:
    """Every text that must not be logged."""
    keys = (config.keys.control, config.keys.inference, config.store.url)
    values = [key.get_secret_value() for key in keys if key is not None]
    return values + environment_secrets(config.backends)


def environment_secrets(settings: Backends) -> list[str]:
    """Values of the backends' variables that may be secrets."""
    values = [value.get_secret_value() for value in settings.environment.values()]
    return [value for value in values if len(value) >= SHORTEST_SECRET]


def log_as_json(config: NodeConfig, stream: TextIO | None = None) -> None:
    """Send every logger of this process to ``stream`` (standard error) as JSON lines."""
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonLines(secrets_of(config)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.logs.level.upper())
    # One line a request to a backend would drown everything else.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
