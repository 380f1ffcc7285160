"""Everything under ``/v1``: passed on to the least busy healthy backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp
from prometheus_client import Counter, Gauge
from starlette.requests import Request
from starlette.responses import Response

from assay.connections import IDLE_S
from assay.node.failures import NoBackendError, NodeRefusal
from assay.node.forward import Forward, Outgoing
from assay.node.hygiene import asks_upgrade, body_length, target
from assay.node.node import Node
from assay.node.part import Part, Route

METHODS = ("POST", "GET", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers aiohttp would add of its own."""
HEADER_BYTES = 65_536
"""The longest header line of an answer."""


def part(node: Node) -> Part:
    """The proxied routes; connections to backends are kept while the node runs."""
    proxy = _Proxy(node)
    routes = [
        Route(method, path, proxy.forward, key="inference", hidden=True)
        for method in METHODS
        for path in ("/v1", "/v1/{rest:path}")
    ]
    return Part(routes, proxy.running)


class _Answer(aiohttp.ClientResponse):
    """Is never one that came before it was asked for: aiohttp would give bytes that a backend sent
    on an idle connection to the next client."""

    async def start(self, connection: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        # The request was written in this very step of the loop, so nothing can have answered it.
        if connection.protocol is None or connection.protocol.should_close:
            raise aiohttp.ClientConnectionError("the connection holds an answer to nothing")
        return await super().start(connection)


class _Proxy:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._http: aiohttp.ClientSession | None = None
        self._in_flight = 0
        registry = node.metrics.registry
        self._requests = Counter(
            "assay_node_proxied_requests", "Requests passed on to backends", registry=registry
        )
        self._refused = Counter(
            "assay_node_refused_requests", "Inference refused, by why", ["why"], registry=registry
        )
        self._failed = Counter(
            "assay_node_failed_requests", "Requests that a backend failed", registry=registry
        )
        gauge = Gauge("assay_node_proxied_in_flight", "Being passed on now", registry=registry)
        gauge.set_function(lambda: self._in_flight)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        # aiohttp, because its pool finds an idle connection without looking at all of them and its
        # parser is compiled: several times less processor time per request than httpx.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._node.config.limits.connect_timeout_s
        )
        async with aiohttp.ClientSession(
            connector=connector,
            timeout=timeout,
            response_class=_Answer,
            cookie_jar=aiohttp.DummyCookieJar(),  # cookies are between a client and a backend
            skip_auto_headers=AUTOMATIC,
            auto_decompress=False,
            max_line_size=HEADER_BYTES,
            max_field_size=HEADER_BYTES,
        ) as self._http:
            # What was sent is not sent again, not even a GET whose connection was lost.
            self._http._retry_connection = False
            yield

    async def forward(self, request: Request) -> Response:
        outgoing = self._checked(request)
        node, http = self._node, self._http
        if http is None or not node.pool.healthy():
            self._refused.labels(why="no backend").inc()
            raise NoBackendError
        if self._in_flight >= node.config.limits.inference_concurrency:
            self._refused.labels(why="busy").inc()
            raise NodeRefusal(
                429,
                f"{self._in_flight} requests are in flight, the most this node takes at once",
                headers={"Retry-After": "1"},
            )
        return Forward(
            http,
            node.pool,
            outgoing,
            bare_ids=node.config.proxy.bare_token_ids,
            slot=self._slot(),
            failed=self._failed.inc,
        )

    def _checked(self, request: Request) -> Outgoing:
        scope = request.scope
        limit = self._node.config.limits.inference_body_bytes
        path = target(scope.get("raw_path") or request.url.path.encode(), scope["query_string"])
        length = body_length(scope["headers"])
        if length is not None and length > limit:
            raise NodeRefusal(413, f"the body is longer than {limit} bytes")
        headers = scope["headers"]
        has_body = bool(length) or any(name == b"transfer-encoding" for name, _ in headers)
        last = asks_upgrade(headers, has_body)
        if self._node.config.keys.inference is not None:
            # It opened the node, and no backend needs to learn it.
            headers = [pair for pair in headers if pair[0].lower() != b"authorization"]
        return Outgoing(scope["method"], path, headers, length, limit, last)

    @contextmanager
    def _slot(self) -> Iterator[None]:
        self._requests.inc()
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
