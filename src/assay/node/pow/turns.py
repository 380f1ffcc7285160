"""One thing at a time, and a way to call off what is being done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from assay.errors import AssayError

Done = TypeVar("Done")


class CalledOffError(AssayError):
    """A stop came first."""


class Turns:
    """Works run one after the other; the one that runs, and those that wait, can be called off."""

    def __init__(self) -> None:
        self._free = asyncio.Lock()
        self._task: asyncio.Task[Any] | None = None
        self._called_off = 0

    async def take(self, work: Callable[[], Coroutine[Any, Any, Done]]) -> Done:
        """Run ``work`` in its turn. Raises CalledOffError; cancelled, it ends ``work`` first."""
        before = self._called_off
        async with self._free:
            if self._called_off != before:
                raise CalledOffError("called off")
            task: asyncio.Task[Done] = asyncio.create_task(work())
            self._task = task
            try:
                await asyncio.wait({task})
            finally:
                self._task = None
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})
            if task.cancelled():
                raise CalledOffError("called off")
            return task.result()

    @asynccontextmanager
    async def first(self) -> AsyncIterator[None]:
        """Call off everything before, and have the next turn."""
        self._called_off += 1
        if self._task is not None:
            self._task.cancel()
        async with self._free:
            yield
