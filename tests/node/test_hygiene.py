"""What passes the proxy and what does not: headers, framing, paths."""

from __future__ import annotations

import pytest

from assay.node.failures import NodeRefusal
from assay.node.hygiene import (
    answer_headers,
    as_text,
    body_length,
    has_an_end,
    request_headers,
    target,
)

CLIENT = [
    (b"Host", b"node:8080"),
    (b"Authorization", b"Bearer client"),
    (b"Content-Type", b"application/json"),
    (b"Content-Length", b"12"),
    (b"Connection", b"keep-alive, X-Only-Here"),
    (b"X-Only-Here", b"1"),
    (b"Keep-Alive", b"5"),
    (b"TE", b"trailers"),
    (b"Upgrade", b"websocket"),
    (b"X-Forwarded-For", b"10.0.0.1"),
    (b"X-Request-Id", b"abc"),
    (b"Accept-Encoding", b"identity"),
]


def test_hop_by_hop_headers_and_what_connection_names_end_at_the_node() -> None:
    assert request_headers(CLIENT, {}) == [
        (b"authorization", b"Bearer client"),
        (b"content-type", b"application/json"),
        (b"x-request-id", b"abc"),
        (b"accept-encoding", b"identity"),
    ]


def test_a_backends_own_key_replaces_the_clients() -> None:
    headers = request_headers(CLIENT, {"Authorization": "Bearer backend"})
    assert [value for name, value in headers if name == b"authorization"] == [b"Bearer backend"]


def test_connection_cannot_take_the_key_or_the_kind_of_body_away() -> None:
    given = [(b"connection", b"authorization, content-type"), *CLIENT]
    names = {name for name, _ in request_headers(given, {})}
    assert {b"authorization", b"content-type"} <= names


def test_answers_keep_their_length_and_lose_their_hop() -> None:
    given = [
        (b"Content-Length", b"3"),
        (b"Connection", b"close, X-Hop"),
        (b"X-Hop", b"1"),
        (b"Date", b"Thu, 01 Jan 1970 00:00:00 GMT"),
        (b"Content-Type", b"text/plain"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
    ]
    assert answer_headers(given) == [
        (b"content-length", b"3"),
        (b"content-type", b"text/plain"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
    ]


def test_a_length_that_the_framing_overrides_ends_at_the_node() -> None:
    """One that stayed would make the node's server break the answer off, or wait for more."""
    given = [(b"Content-Length", b"3"), (b"Transfer-Encoding", b"chunked")]
    assert answer_headers(given) == []
    assert answer_headers([(b"Content-Length", b"3")], 304) == []
    assert answer_headers([(b"Content-Length", b"3")], 200) == [(b"content-length", b"3")]


@pytest.mark.parametrize(
    ("method", "status", "headers", "ends"),
    [
        ("GET", 200, [(b"Content-Length", b"3")], True),
        ("GET", 200, [(b"Transfer-Encoding", b"Chunked")], True),
        ("GET", 200, [(b"Transfer-Encoding", b"gzip, chunked")], False),
        ("GET", 200, [(b"Transfer-Encoding", b"gzip"), (b"Content-Length", b"3")], False),
        ("GET", 200, [], False),
        ("POST", 500, [], False),
        ("HEAD", 200, [], True),
        ("GET", 204, [], True),
        ("GET", 304, [], True),
        ("GET", 101, [(b"Content-Length", b"3")], False),
    ],
)
def test_an_answer_must_say_where_it_ends(
    method: str, status: int, headers: list[tuple[bytes, bytes]], ends: bool
) -> None:
    assert has_an_end(method, status, headers) is ends


def test_header_bytes_that_are_no_utf8_are_refused() -> None:
    assert as_text([(b"x", "\u00e9".encode())]) == [("x", "\u00e9")]
    with pytest.raises(NodeRefusal, match="UTF-8"):
        as_text([(b"x", b"\xe9")])


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"3"), (b"content-length", b"3")],
        [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")],
        [(b"transfer-encoding", b"chunked"), (b"Transfer-Encoding", b"identity")],
        [(b"transfer-encoding", b"gzip, chunked")],
        [(b"content-length", b"+3")],
        [(b"content-length", b"0x3")],
        [(b"content-length", b"")],
    ],
)
def test_a_request_that_two_servers_could_frame_differently_is_refused(
    headers: list[tuple[bytes, bytes]],
) -> None:
    with pytest.raises(NodeRefusal) as refusal:
        body_length(headers)
    assert refusal.value.status == 400


def test_the_declared_length_is_read() -> None:
    assert body_length([(b"Content-Length", b"12")]) == 12
    assert body_length([(b"Transfer-Encoding", b"chunked")]) is None
    assert body_length([]) is None


@pytest.mark.parametrize(
    ("path", "query", "wanted"),
    [
        (b"/v1/chat/completions", b"", b"/v1/chat/completions"),
        (b"/v1/models/org%2Fname", b"", b"/v1/models/org%2Fname"),
        (b"/v1/x", b"a=%20b&c=..", b"/v1/x?a=%20b&c=.."),
        (b"/v1/files/", b"", b"/v1/files/"),
        (b"/v1", b"", b"/v1"),
    ],
)
def test_the_target_is_passed_as_it_was_spelled(path: bytes, query: bytes, wanted: bytes) -> None:
    assert target(path, query) == wanted


@pytest.mark.parametrize(
    "path",
    [
        b"/v1/../api/v1/pow/stop",
        b"/v1/%2e%2e/sleep",
        b"/v1/..%2fsleep",
        b"/v1/./x",
        b"/v1//x",
        b"/v1/a\\b",
        b"/v1/%5c..%5cx",
        b"/v1/x%00",
        b"/v1/x%0d%0aHost:%20a",
        b"/v1/\xff",
    ],
)
def test_a_path_that_could_become_another_one_is_refused(path: bytes) -> None:
    with pytest.raises(NodeRefusal) as refusal:
        target(path, b"")
    assert refusal.value.status == 400


@pytest.mark.parametrize("path", [b"/v2/x", b"/v1x", b"/api/v1/state", b""])
def test_only_v1_is_proxied(path: bytes) -> None:
    with pytest.raises(NodeRefusal) as refusal:
        target(path, b"")
    assert refusal.value.status == 404


def test_a_query_with_line_ends_is_refused() -> None:
    with pytest.raises(NodeRefusal):
        target(b"/v1/x", b"a=1\r\nX: y")
