"""The backends of a node: which are healthy, which is least busy, and who wants to know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from assay.node.backend import Backend, BackendState
from assay.node.failures import NoBackendError


@dataclass(frozen=True)
class Change:
    """A backend went from ``old`` to ``new``. ``generation`` is that of the process it is about.

    A restart is seen as: ``restarting`` (the old generation is gone), ``starting`` (the generation
    is one higher), ``ready``.
    """

    backend: Backend
    old: BackendState
    new: BackendState
    generation: int
    reason: str = ""


Listener = Callable[[Change], None]


class Pool:
    """Backends sorted by port. Lives in one event loop; nothing here waits or blocks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._backends: tuple[Backend, ...] = ()
        self._listeners: list[Listener] = []
        self._clock = clock
        self._news = asyncio.Event()

    @property
    def backends(self) -> tuple[Backend, ...]:
        """All of them, whatever their state, sorted by port."""
        return self._backends

    def replace(self, backends: Sequence[Backend]) -> None:
        """Hold these from now on. Those that leave must have been moved to ``stopped`` before."""
        self._backends = tuple(sorted(backends, key=lambda backend: backend.port))
        self._tell()

    def healthy(self) -> list[Backend]:
        """Those that take requests, sorted by port."""
        return [backend for backend in self._backends if backend.healthy]

    def least_busy(self) -> Backend | None:
        """The healthy backend with the fewest leases; among equals the one leased least so far."""
        return min(
            self.healthy(), key=lambda backend: (backend.in_flight, backend.leases), default=None
        )

    @contextmanager
    def lease(self, backend: Backend | None = None) -> Iterator[Backend]:
        """Count a request on ``backend``, by default on the least busy healthy one.

        Hold it until the last byte of the answer is out. Raises NoBackendError.
        """
        chosen = self.least_busy() if backend is None else backend
        if chosen is None:
            raise NoBackendError
        chosen.in_flight += 1
        chosen.leases += 1
        try:
            yield chosen
        finally:
            chosen.in_flight -= 1

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` at once, in this loop, on every change; returns how to stop it.

        It must not raise and not block; start a task for work.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def changed(self) -> None:
        """Return at the next change of any backend."""
        await self._news.wait()

    def move(self, backend: Backend, state: BackendState, reason: str = "") -> None:
        """The supervisor's way to set a state. ``starting`` begins a new generation.

        Listeners are not called when only the reason is another one.
        """
        old, backend.state, backend.reason = backend.state, state, reason
        if state is BackendState.STARTING:
            backend.generation += 1
        if old is not state:
            backend.since = self._clock()
            change = Change(backend, old, state, backend.generation, reason)
            for listener in list(self._listeners):
                listener(change)
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
