"""The addresses backends call back at hold secrets: they are shown to nobody."""

from __future__ import annotations

import re
from typing import Any

PATH = "/api/v1/inference/pow/callbacks"
"""Where callbacks of backends arrive; a secret of the worker or job follows."""
_ADDRESS = re.compile(re.escape(PATH) + r"/[0-9a-fA-F]+")


class Addresses:
    """Where backends call back at, by token. ``base``: URL of the node, as its backends reach it."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._given: set[str] = set()

    def url(self, token: str) -> str:
        """The address to give to a backend."""
        self._given.add(token)
        return f"{self._base}{PATH}/{token}"

    def knows(self, token: str) -> bool:
        """Whether a backend has been given this one. Those of an earlier node are gone."""
        return token in self._given

    def forget(self, token: str) -> None:
        """Nothing more will come for it."""
        self._given.discard(token)


def is_ours(url: object) -> bool:
    """Whether a callback address is one of this kind."""
    return isinstance(url, str) and PATH in url


def without_secrets(value: Any) -> Any:
    """``value``, as read from JSON, with the secret of every such address taken out."""
    if isinstance(value, str):
        return _ADDRESS.sub(PATH + "/...", value)
    if isinstance(value, dict):
        return {name: without_secrets(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_secrets(one) for one in value]
    return value
