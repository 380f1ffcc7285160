"""Steps that must not be cut in the middle, because a process would be left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def to_the_end(step: Coroutine[Any, Any, Result]) -> tuple[Result, bool]:
    """Run ``step`` to its end although this task is cancelled, once or more.

    Returns its result and whether a cancellation was held back: the caller cleans up and raises
    CancelledError then. Exceptions of the step are raised as they are. Needed around
    ``create_subprocess_exec`` too: cancelled before its pipes are connected, Python 3.11 waits
    for them for ever.
    """
    task = asyncio.ensure_future(step)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    return task.result(), cancelled
