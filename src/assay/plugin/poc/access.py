"""The server's API key also guards PoC: vLLM checks it under its own prefixes only."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.requests import Request

from assay.plugin.poc.failures import RefusedError


class ApiKeys:
    """Keys are compared by their digests, each in constant time, all of them always."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys if key]

    def check(self, request: Request) -> None:
        """RefusedError 401 unless the request carries one of the keys as a bearer token."""
        if not self._digests:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = _digest(token)
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() != "bearer" or not any(matches):
            raise RefusedError(401, "Unauthorized: send this server's API key as a bearer token")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
