"""Who may call what: one key for the control plane, one for inference."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from pydantic import SecretStr
from starlette.requests import HTTPConnection

from assay.node.config import Keys
from assay.node.failures import NodeRefusal


class Access:
    """Keys are compared by their digests, each in constant time, all of them always."""

    def __init__(self, keys: Keys) -> None:
        self._control = _digests([keys.control])
        # Whoever may start and stop the model may also use it.
        self._inference = _digests([keys.inference, keys.control]) if keys.inference else []

    def control(self, request: HTTPConnection) -> None:
        """NodeRefusal 401 unless the request carries the control key, where there is one."""
        _check(request, self._control, "the node's control key")

    def inference(self, request: HTTPConnection) -> None:
        """NodeRefusal 401 unless it carries the inference key (or control key), where there is one."""
        _check(request, self._inference, "the node's inference key")


def _check(request: HTTPConnection, digests: Sequence[bytes], name: str) -> None:
    if not digests:
        return
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    given = _digest(token)
    matches = [hmac.compare_digest(given, digest) for digest in digests]
    if scheme.lower() != "bearer" or not any(matches):
        raise NodeRefusal(
            401,
            f"Unauthorized: send {name} as a bearer token",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _digests(keys: Sequence[SecretStr | None]) -> list[bytes]:
    return [_digest(key.get_secret_value()) for key in keys if key is not None]


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
