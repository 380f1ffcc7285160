"""What a client may write on the wire, over both readers of HTTP that uvicorn has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.node.helpers import HOST, SOON
from tests.node.served import Served, served

HEAD = b"Host: a\r\n"
POST = b"POST /v1/echo HTTP/1.1\r\n" + HEAD
GET = b"GET /v1/echo HTTP/1.1\r\n" + HEAD
STOLEN = b"GET /v1/stolen HTTP/1.1\r\n" + HEAD + b"\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(
    params=["", "h11"], ids=["httptools", "h11"], scope="module", loop_scope="module"
)
async def one_node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    async with served(tmp_path_factory.mktemp("node"), http=request.param) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def at(one_node: Served) -> Served:
    """The node, whose backend has seen nothing."""
    one_node.up.requests.clear()
    return one_node


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (POST + b"Content-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + STOLEN, 400),
        (POST + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + STOLEN, 400),
        (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef", 400),
        (POST + b"Content-Length: 5, 6\r\n\r\nabcdef", 400),
        (POST + b"Content-Length: +5\r\n\r\nabcde", 400),
        (POST + b"Content-Length : 5\r\n\r\nabcde", 400),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
        (POST + CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400),
        (GET + b"X: a\0b\r\n\r\n", 400),
        (GET + b"X: a\rContent-Length: 5\r\n\r\n", 400),
        (GET + b"Host: b\r\n\r\n", 400),
        (b"GET /v1/x\0y HTTP/1.1\r\n" + HEAD + b"\r\n", 400),
        (b"GET /v1/../api/v1/state HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n", 400),
        (b"GET /v1/%2e%2e/health HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n", 400),
        (b"GET /v1/..%2Fhealth HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n", 400),
        (b"GET //v1/echo HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n", 404),
        (b"GET /%76%31/echo HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n", 404),
        (b"GET http://a/api/../v1/echo HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n", 404),
        (b"TRACE /v1/echo HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n", 405),
        (b"OPTIONS * HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n", 404),
    ],
)
async def test_nothing_is_smuggled(at: Served, request_bytes: bytes, status: int) -> None:
    """Each is refused, the connection is closed, and the backend sees nothing of what it held."""
    answer = await at.last(request_bytes)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert at.up.requests == []


async def test_connect_reaches_no_backend(at: Served) -> None:
    before = at.up.connections
    for aim in (b"127.0.0.1:%d" % at.up.port, b"/v1/echo"):
        async with at.raw(b"CONNECT " + aim + b" HTTP/1.1\r\n" + HEAD + b"\r\n") as (reader, _):
            answer = await asyncio.wait_for(reader.readline(), SOON)
        assert answer.split()[1] in (b"400", b"404", b"405")
    assert at.up.requests == []
    assert at.up.connections == before


async def test_an_absolute_target_leads_to_the_backend_or_nowhere(at: Served) -> None:
    """Whatever host it names; h11 does not take it apart, which is 404."""
    answer = await at.last(
        b"GET http://evil.example/v1/echo HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n"
    )
    if answer.startswith(b"HTTP/1.1 404 "):
        assert at.up.requests == []
    else:
        ((first, headers, _),) = at.up.requests
        assert first == "GET /v1/echo HTTP/1.1"
        assert dict(headers)["host"] == f"{HOST}:{at.up.port}"


async def test_a_folded_header_never_reaches_a_backend_folded(at: Served) -> None:
    """httptools refuses it, h11 makes one line of it."""
    await at.last(GET + b"X-A: b\r\n Content-Length: 5\r\nConnection: close\r\n\r\n")
    for _, headers, body in at.up.requests:
        assert dict(headers)["x-a"] == "b Content-Length: 5"
        assert "content-length" not in dict(headers)
        assert body == b""


async def test_trailers_and_chunk_extensions_end_at_the_node(at: Served) -> None:
    answer = await at.last(
        POST + CHUNKED + b"Connection: close\r\n\r\n5;ext=1\r\nabcde\r\n0\r\n"
        b"X-Late: 1\r\nAuthorization: Bearer late\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 200 ")
    ((_, headers, body),) = at.up.requests
    assert body == b"abcde"
    assert not {"x-late", "authorization", "trailer"} & dict(headers).keys()


async def test_what_connection_names_ends_at_the_node(at: Served) -> None:
    await at.last(
        GET + b"Connection: X-Hop, close\r\nX-Hop: 1\r\nX-End: 2\r\nKeep-Alive: 5\r\n"
        b"TE: trailers\r\nProxy-Connection: x\r\nProxy-Authorization: Basic eDp5\r\n\r\n"
    )
    ((_, headers, _),) = at.up.requests
    assert dict(headers) == {"host": f"{HOST}:{at.up.port}", "x-end": "2"}


async def test_websockets_are_refused(at: Served) -> None:
    answer = await at.last(
        b"GET /v1/realtime HTTP/1.1\r\n" + HEAD + b"Connection: keep-alive, Upgrade\r\n"
        b"Upgrade: WebSocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Sec-WebSocket-Version: 13\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 501 ")
    assert at.up.requests == []


async def test_an_offer_of_http2_is_not_taken_and_loses_no_body(at: Served) -> None:
    """As Java's client makes it. httptools reads nothing after such a head: without a body the
    answer is the connection's last, with one the request is refused."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n"
    answer = await at.last(GET + offer + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    ((_, headers, _),) = at.up.requests
    assert not {"upgrade", "http2-settings"} & dict(headers).keys()
    assert (await at.last(POST + offer + b"Content-Length: 2\r\n\r\n{}")).split()[1] == b"501"
    assert (await at.last(POST + offer + CHUNKED + b"\r\n0\r\n\r\n")).split()[1] == b"501"
    assert len(at.up.requests) == 1


async def test_a_client_that_waits_for_100_gets_it_when_the_body_is_wanted(at: Served) -> None:
    head = POST + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
    async with at.raw(head) as (reader, writer):
        line = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), SOON)
        assert line.startswith(b"HTTP/1.1 100 ")
        writer.write(b"{}")
        answer = await asyncio.wait_for(reader.read(), SOON)
    assert answer.startswith(b"HTTP/1.1 200 ")
    ((_, headers, body),) = at.up.requests
    assert body == b"{}"
    assert "expect" not in dict(headers)


async def test_a_client_that_waits_for_100_does_not_get_it_for_a_body_too_long(at: Served) -> None:
    limit = at.node.config.limits.inference_body_bytes
    head = POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (limit + 1)
    async with at.raw(head) as (reader, _):
        line = await asyncio.wait_for(reader.readline(), SOON)
    assert line.startswith(b"HTTP/1.1 413 ")


async def test_head_has_the_length_and_no_body(at: Served) -> None:
    answer = await at.last(b"HEAD /v1/echo HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"\r\ncontent-length: " in head.lower()
    assert body == b""


async def test_requests_in_a_row_get_their_answers_in_order(at: Served) -> None:
    """Two POSTs and a GET, sent at once, the last of them ending the connection."""
    answer = await at.last(
        POST + b"Content-Length: 3\r\n\r\none" + POST + CHUNKED + b"\r\n3\r\ntwo\r\n0\r\n\r\n"
        b"GET /v1/three HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"
    )
    assert answer.count(b"HTTP/1.1 200 ") == 3
    assert [body for _, _, body in at.up.requests] == [b"one", b"two", b""]
    places = [answer.index(mark) for mark in (b'"body": "one"', b'"body": "two"', b"/v1/three")]
    assert places == sorted(places)


async def test_headers_that_never_end_are_refused(at: Served) -> None:
    """One endless header; the node keeps none of it beyond its limit."""
    sent = 0
    async with at.raw(GET + b"X-Long: ") as (reader, writer):
        answer = asyncio.ensure_future(reader.read())
        while not answer.done() and sent < 64 * 2**20:
            writer.write(b"x" * 65_536)
            sent += 65_536
            try:
                await asyncio.wait_for(writer.drain(), SOON)
            except ConnectionError:
                break
        assert sent < 64 * 2**20
        await asyncio.wait({answer}, timeout=SOON)
        assert answer.done()
        if answer.exception() is None:  # a reset may overtake the answer
            assert answer.result()[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 431 ", b"")
    assert at.up.requests == []
