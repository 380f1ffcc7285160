"""One request, passed on to one backend and back, byte for byte as it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDict
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from yarl import URL

from assay.errors import AssayError
from assay.node.backend import Backend
from assay.node.bare_ids import BareEvents, bare_json
from assay.node.client import Client, ClientGoneError
from assay.node.failures import NodeRefusal
from assay.node.hygiene import (
    CLOSE,
    Headers,
    answer_headers,
    as_text,
    has_an_end,
    request_headers,
)
from assay.node.pool import Pool

logger = logging.getLogger("assay.node")

FAILED = {"detail": "vLLM connection failed"}


class BackendAnswerError(AssayError):
    """A backend's answer cannot be passed on."""


NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""No connection could be made, so the backend has seen nothing of the request."""
BROKEN = (aiohttp.ClientError, BackendAnswerError, OSError)
"""What a backend that fails a request is noticed by."""


@dataclass(frozen=True)
class Outgoing:
    """A checked request. ``length`` is the declared one; ``limit`` that of its body, in bytes.
    ``last`` on its connection, which is to be closed after the answer."""

    method: str
    target: bytes
    headers: Headers
    length: int | None
    limit: int
    last: bool = False


class Forward(Response):
    """An ASGI response that fetches itself from the least busy backend.

    A backend that cannot be connected to has seen nothing, so the next one is tried; after the
    first byte was sent nothing is ever sent twice. The client's going away ends the request at the
    backend at once, whether its answer has begun or not. ``slot`` is held as long as it runs;
    ``failed`` is called when no backend could be talked to.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
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
        client = Client(receive, self._outgoing.limit)
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
        if error is not None and client.failure is not None:
            error = client.failure  # aiohttp has its own words for a body that ended with it
        if error is None or isinstance(error, ClientGoneError):
            return
        if not isinstance(error, (NodeRefusal, *BROKEN)):
            raise error
        if self._begun:
            # The answer cannot be taken back. It is left without its end, and the server closes
            # the connection: that is how the client learns.
            logger.warning("an answer broke off: %s", type(error).__name__)
            return
        if isinstance(error, NodeRefusal):
            answer = JSONResponse({"detail": error.detail}, error.status, error.headers)
        else:
            self._failed()
            logger.warning("a backend failed a request: %s", type(error).__name__)
            answer = JSONResponse(FAILED, 502)
        await answer(scope, receive, send)

    async def _work(self, client: Client, send: Send) -> None:
        # A client that is slow to send keeps no backend busy until its first bytes are here.
        await client.begin()
        tried: set[int] = set()
        while True:
            backend = self._next(tried)
            tried.add(backend.port)
            with self._pool.lease(backend):
                try:
                    await self._once(backend, client, send)
                except NOT_SENT:
                    if not self._has_more(tried):
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

    async def _once(self, backend: Backend, client: Client, send: Send) -> None:
        out = self._outgoing
        headers = CIMultiDict(as_text(request_headers(out.headers, backend.headers)))
        whole = client.whole
        content: bytes | AsyncIterator[bytes] = client.rest() if whole is None else whole
        if out.length is not None:
            if whole is not None and len(whole) != out.length:
                raise NodeRefusal(400, "the body is not as long as it says", headers=CLOSE)
            headers["Content-Length"] = str(out.length)
        if content and "Content-Type" not in headers:
            # Some clients name none, and vLLM refuses JSON without one.
            headers["Content-Type"] = "application/json"
        answer = await self._http.request(
            out.method,
            URL(backend.base_url + out.target.decode("ascii"), encoded=True),
            headers=headers,
            # Bytes go with their length, an iterator without one is sent in chunks. Without a body
            # aiohttp says "Content-Length: 0" where the method lets a server expect one.
            data=content or None,
            allow_redirects=False,
        )
        try:
            await self._pass_back(answer, send)
        finally:
            # Not read to its end, this closes the connection; otherwise it is back in the pool.
            answer.close()

    async def _pass_back(self, answer: aiohttp.ClientResponse, send: Send) -> None:
        if not has_an_end(self._outgoing.method, answer.status, answer.raw_headers):
            raise BackendAnswerError("an answer whose end cannot be told from a broken connection")
        headers = answer_headers(answer.raw_headers, answer.status)
        if self._outgoing.last:
            headers.append((b"connection", b"close"))
        events = answer.headers.get("Content-Type", "").startswith("text/event-stream")
        readable = self._bare_ids and "Content-Encoding" not in answer.headers
        if readable and not events and self._outgoing.method != "HEAD":
            body = bare_json(await answer.content.read())
            headers = [header for header in headers if header[0] != b"content-length"]
            headers.append((b"content-length", str(len(body)).encode()))
            await self._start(answer.status, headers, send)
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        await self._start(answer.status, headers, send)
        rewriting = BareEvents() if readable else None
        async for piece in answer.content.iter_any():
            out = piece if rewriting is None else rewriting.feed(piece)
            if out:
                await send({"type": "http.response.body", "body": out, "more_body": True})
        rest = b"" if rewriting is None else rewriting.rest()
        await send({"type": "http.response.body", "body": rest, "more_body": False})

    async def _start(self, status: int, headers: Headers, send: Send) -> None:
        self._begun = True
        await send({"type": "http.response.start", "status": status, "headers": headers})
