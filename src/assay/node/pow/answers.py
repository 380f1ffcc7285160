"""Answers that are large, and clients that do not wait for theirs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response


async def as_json(answer: dict[str, Any]) -> Response:
    """As text made in a thread: 100,000 artifacts are 7 MB, and streams must not wait for them."""
    return Response(await asyncio.to_thread(json.dumps, answer), media_type="application/json")


async def done_before_disconnect(work: asyncio.Task[Any], request: Request) -> bool:
    """Wait for ``work``; False when the client closed its connection first."""
    gone = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    return work.done()


async def _disconnected(request: Request) -> None:
    # The body has been read to its end: what still comes is the disconnect.
    while (await request.receive())["type"] != "http.disconnect":
        continue
