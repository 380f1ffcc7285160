"""One request, passed on to one backend and back, byte for byte as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from assay.node.backend import Backend
from assay.node.bare_ids import BareEvents, bare_json
from assay.node.failures import NodeRefusal
from assay.node.hygiene import Headers, answer_headers, request_headers
from assay.node.pool import Pool

logger = logging.getLogger("assay.node")

FAILED = {"detail": "vLLM connection failed"}
PIECES_HELD = 16
"""Pieces of a body that may wait for the backend; uvicorn's are up to 64 KiB."""


class ClientGoneError(Exception):
    """The client closed its connection; nobody is left to answer."""


@dataclass(frozen=True)
class Outgoing:
    """A checked request. ``length`` is the declared one; ``limit`` that of its body, in bytes."""

    method: str
    target: bytes
    headers: Headers
    length: int | None
    limit: int


class Forward(Response):
    """An ASGI response that fetches itself from the least busy backend.

    A backend that cannot be connected to has seen nothing, so the next one is tried; after the
    first byte was sent nothing is ever sent twice. The client's going away ends the request at the
    backend at once, whether its answer has begun or not. ``slot`` is held as long as it runs;
    ``failed`` is called when no backend could be talked to.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        pool: Pool,
        outgoing: Outgoing,
        *,
        slot: AbstractContextManager[None],
        bare_ids: bool = False,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._http, self._pool, self._outgoing = http, pool, outgoing
        self._slot, self._bare_ids, self._failed = slot, bare_ids, failed
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._slot:
            await self._pass(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = _Client(receive)
        work = asyncio.ensure_future(self._work(client, send))
        gone = asyncio.ensure_future(client.watch())
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Cancelling closes the connection to the backend, which then aborts the request.
            for task in (work, gone):
                task.cancel()
            await asyncio.wait({work, gone})
        if work.cancelled():
            return
        error = work.exception()
        if error is None or isinstance(error, ClientGoneError):
            return
        if self._begun or not isinstance(error, NodeRefusal | httpx.HTTPError):
            # The answer cannot be taken back: breaking the connection is how a client learns.
            raise error
        if isinstance(error, NodeRefusal):
            answer = JSONResponse({"detail": error.detail}, error.status, error.headers)
        else:
            self._failed()
            logger.warning("a backend failed a request: %s", type(error).__name__)
            answer = JSONResponse(FAILED, 502)
        await answer(scope, receive, send)

    async def _work(self, client: _Client, send: Send) -> None:
        tried: set[int] = set()
        while True:
            backend = self._next(tried)
            tried.add(backend.port)
            with self._pool.lease(backend):
                try:
                    await self._once(backend, client, send)
                except (httpx.ConnectError, httpx.ConnectTimeout):
                    if client.body_begun or self._begun or not self._has_more(tried):
                        raise
                else:
                    return

    def _next(self, tried: set[int]) -> Backend:
        fresh = [backend for backend in self._pool.healthy() if backend.port not in tried]
        if not fresh:
            # Raises NoBackendError where there is none at all.
            with self._pool.lease() as backend:
                return backend
        return min(fresh, key=lambda backend: (backend.in_flight, backend.leases))

    def _has_more(self, tried: set[int]) -> bool:
        return any(backend.port not in tried for backend in self._pool.healthy())

    async def _once(self, backend: Backend, client: _Client, send: Send) -> None:
        out = self._outgoing
        headers = request_headers(out.headers, backend.headers)
        # An address without a body has neither a length nor an encoding.
        content: AsyncIterator[bytes] | None = None
        if out.length or (out.length is None and _chunked(out.headers)):
            content = client.body(out.limit)
        if out.length is not None:
            headers.append((b"content-length", str(out.length).encode()))
        url = httpx.URL(backend.base_url).copy_with(raw_path=out.target)
        # Built by hand: the client would add headers of its own, such as Accept-Encoding.
        request = httpx.Request(
            out.method, url, headers=headers, content=content, extensions=self._timeouts()
        )
        answer = await self._http.send(request, stream=True)
        try:
            await self._pass_back(answer, send)
        finally:
            await answer.aclose()

    def _timeouts(self) -> dict[str, Any]:
        """Only connecting has a limit: an answer may take as long as it takes."""
        connect = self._http.timeout.connect
        return {"timeout": {"connect": connect, "read": None, "write": None, "pool": None}}

    async def _pass_back(self, answer: httpx.Response, send: Send) -> None:
        headers = answer_headers(answer.headers.raw)
        events = answer.headers.get("content-type", "").startswith("text/event-stream")
        readable = "content-encoding" not in answer.headers and self._bare_ids
        if readable and not events:
            body = bare_json(await _whole(answer))
            headers = [h for h in headers if h[0] != b"content-length"]
            headers.append((b"content-length", str(len(body)).encode()))
            await self._start(answer.status_code, headers, send)
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        await self._start(answer.status_code, headers, send)
        rewriting = BareEvents() if readable else None
        async for piece in answer.aiter_raw():
            out = piece if rewriting is None else rewriting.feed(piece)
            if out:
                await send({"type": "http.response.body", "body": out, "more_body": True})
        rest = b"" if rewriting is None else rewriting.rest()
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    async def _start(self, status: int, headers: Headers, send: Send) -> None:
        self._begun = True
        await send({"type": "http.response.start", "status": status, "headers": headers})


class _Client:
    """The client's side of a request: its body, then its going away.

    ASGI has one ``receive`` for both. One task reads it; a few pieces may wait, so that a client
    that sends faster than the backend reads is held back by its own connection.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._pieces: asyncio.Queue[tuple[bytes, bool] | None] = asyncio.Queue(PIECES_HELD)
        self.body_begun = False

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

    async def body(self, limit: int) -> AsyncIterator[bytes]:
        """Pieces of the body. NodeRefusal 413 at the first byte over ``limit``."""
        self.body_begun = True
        length, ended = 0, False
        while not ended:
            got = await self._pieces.get()
            if got is None:
                raise ClientGoneError
            piece, ended = got
            length += len(piece)
            if length > limit:
                raise NodeRefusal(413, f"the body is longer than {limit} bytes")
            if piece:
                yield piece


async def _whole(answer: httpx.Response) -> bytes:
    pieces = [piece async for piece in answer.aiter_raw()]
    return b"".join(pieces)


def _chunked(headers: Headers) -> bool:
    return any(name.lower() == b"transfer-encoding" for name, _ in headers)
