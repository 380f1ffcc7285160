"""The client's side of a proxied request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive

from assay.node.failures import NodeRefusal

PIECES_HELD = 16
"""Pieces of a body that may wait for the backend; uvicorn's are up to 64 KiB."""


class ClientGoneError(Exception):
    """The client closed its connection; nobody is left to answer."""


class Client:
    """What comes from the client: its body, then its going away.

    ASGI has one ``receive`` for both. One task reads it; a few pieces may wait, so that a client
    that sends faster than the backend reads is held back by its own connection. ``limit`` is the
    body's, in bytes. ``failure`` is what ended the body, which may be being sent already.
    """

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive, self._limit = receive, limit
        self._pieces: asyncio.Queue[tuple[bytes, bool] | None] = asyncio.Queue(PIECES_HELD)
        self._first = b""
        self._ended = False
        self._length = 0
        self.failure: ClientGoneError | NodeRefusal | None = None

    async def watch(self) -> None:
        """Hand the body over, then return when the client has closed its connection."""
        ended = False
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if not ended:
                    await self._pieces.put(None)
                return
            if not ended:
                ended = not message.get("more_body", False)
                await self._pieces.put((message.get("body", b""), ended))

    async def begin(self) -> None:
        """Wait for the first piece of the body, for most requests the only one."""
        self._first = await self._next()

    @property
    def whole(self) -> bytes | None:
        """The body, once ``begin`` found all of it; ``None`` where more is to come."""
        return self._first if self._ended else None

    async def rest(self) -> AsyncIterator[bytes]:
        """The pieces of a body that ``begin`` did not find whole; once only."""
        yield self._first
        while not self._ended:
            piece = await self._next()
            if piece:
                yield piece

    async def _next(self) -> bytes:
        """NodeRefusal 413 at the first byte over the limit; ClientGoneError."""
        got = await self._pieces.get()
        if got is None:
            self.failure = ClientGoneError()
            raise self.failure
        piece, self._ended = got
        self._length += len(piece)
        if self._length > self._limit:
            self.failure = NodeRefusal(413, f"the body is longer than {self._limit} bytes")
            raise self.failure
        return piece
