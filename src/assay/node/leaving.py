"""Work that is called off when the client that asked for it closes its connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.requests import Request


class ThreadedWork:
    """A coroutine in a thread with a loop of its own: its processor time is not that of streams.

    ``make`` makes the coroutine, in that thread.
    """

    def __init__(self, make: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._make = make
        self._called_off = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    async def done_before_leaving(self, request: Request) -> bool:
        """Do it; False when the client left first. The body must have been read.

        Returns when the thread has ended, in every case, and raises what the coroutine raises.
        """
        work = asyncio.create_task(asyncio.to_thread(self._run))
        gone = asyncio.create_task(_left(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                self._call_off()
                await asyncio.wait({work})
        return work.result()

    def _run(self) -> bool:
        async def main() -> bool:
            self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
            try:
                # Called off before there was a task to cancel.
                if not self._called_off:
                    await self._make()
            except asyncio.CancelledError:
                return False
            return not self._called_off

        return asyncio.run(main())

    def _call_off(self) -> None:
        self._called_off = True
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(task.cancel)


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
