"""Who works with a resource now, so that it is closed when nobody does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from assay.errors import StoreError


class Users:
    """Threads outlive the task that waited for them: one that was cancelled may be in the middle of
    a transaction, whose connection a closing engine would leave open."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Work with it; StoreError once it is closed."""
        with self._changed:
            if self._closed:
                raise StoreError(f"{self._name} is closed")
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Nobody new from now on; returns when the last one is done. Not for one of the users."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._count == 0)
