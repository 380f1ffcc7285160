"""What of a client's request reaches a backend, and what of its answer comes back.

The two connections of a proxied request share nothing but the bytes of the two bodies. Framing
(``Content-Length``, ``Transfer-Encoding``) is made anew on either side, so that no two servers can
read one request as two (smuggling); hop-by-hop headers (RFC 9110, section 7.6.1) end here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import unquote_to_bytes

from assay.node.failures import NodeRefusal

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
OURS = frozenset({b"host", b"content-length", b"expect", b"http2-settings"})
"""Set anew for the backend, or meant for the node alone."""
MADE_HERE = frozenset({b"date"})
"""The node's own server adds it to every answer."""
CLOSE = {"Connection": "close"}
BODILESS = frozenset({204, 304})
FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"})
"""Anybody can write these; a backend that trusted them would be told lies."""


def request_headers(given: Iterable[tuple[bytes, bytes]], own: Mapping[str, str]) -> Headers:
    """Headers for the backend, names in lower case; ``own`` are the node's for that backend and
    replace the client's (its key)."""
    given = list(given)
    mine = {name.lower().encode(): value.encode() for name, value in own.items()}
    dropped = HOP_BY_HOP | OURS | FORWARDED | named_by_connection(given) | mine.keys()
    kept = [(name.lower(), value) for name, value in given if name.lower() not in dropped]
    return [*kept, *mine.items()]


def answer_headers(given: Iterable[tuple[bytes, bytes]], status: int = 200) -> Headers:
    """Headers for the client. ``Content-Length`` stays, since the body is passed on byte for byte,
    unless the backend's framing overrides it or there is no body it could be the length of."""
    given = list(given)
    dropped = HOP_BY_HOP | MADE_HERE | named_by_connection(given)
    if status in BODILESS or any(name.lower() == b"transfer-encoding" for name, _ in given):
        dropped |= {b"content-length"}
    return [(name.lower(), value) for name, value in given if name.lower() not in dropped]


def has_an_end(method: str, status: int, given: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether an answer says where it ends. One that ends with its connection looks the same when
    the backend dies in the middle of it; vLLM sends none, and the node passes none on.

    An upgrade (101), never asked for, has no end either.
    """
    if status < 200:
        return False
    if method == "HEAD" or status in BODILESS:
        return True
    given = list(given)
    encodings = [value for name, value in given if name.lower() == b"transfer-encoding"]
    if encodings:
        return [value.strip().lower() for value in encodings] == [b"chunked"]
    return any(name.lower() == b"content-length" for name, _ in given)


def as_text(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    """Headers as aiohttp takes and writes them, in UTF-8. NodeRefusal 400 for other bytes."""
    try:
        return [(name.decode("ascii"), value.decode()) for name, value in headers]
    except UnicodeDecodeError as error:
        raise NodeRefusal(400, "a header holds bytes that are not UTF-8") from error


def named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The headers a ``Connection`` header declares to be about this hop only. ``Authorization`` and
    the body's description are not taken away by it: that is an attack, not a wish."""
    return connection_options(headers) - {b"authorization", b"content-type", b"content-encoding"}


def connection_options(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """What ``Connection`` lists, in lower case."""
    named = {
        part.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for part in value.split(b",")
    }
    return frozenset(named - {b""})


def body_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """Declared length of the request's body; ``None`` when it is chunked or there is none.

    NodeRefusal 400 for a request that two servers could read differently: several lengths, a length
    beside a transfer encoding, several hosts. Its connection is closed after the answer.
    """
    headers = list(headers)
    lengths = [value for name, value in headers if name.lower() == b"content-length"]
    encodings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if len(lengths) > 1 or (lengths and encodings):
        raise _ambiguous("ambiguous request: more than one of Content-Length and its kind")
    if any(value.strip().lower() != b"chunked" for value in encodings) or len(encodings) > 1:
        raise _ambiguous("Transfer-Encoding: only chunked is understood")
    if sum(name.lower() == b"host" for name, _ in headers) > 1:
        raise _ambiguous("ambiguous request: more than one Host")
    if not lengths:
        return None
    if not lengths[0].isdigit():
        raise _ambiguous("Content-Length: expected a number of bytes")
    return int(lengths[0])


def asks_upgrade(headers: Iterable[tuple[bytes, bytes]], has_body: bool) -> bool:
    """Whether a request wants another protocol on its connection. The wish may be ignored, but
    nothing more can be read from that connection, so it is to be closed after the answer.

    NodeRefusal 501 for a websocket, and where a body would be lost with the wish (``h2c``).
    """
    headers = list(headers)
    wishes = [value.strip().lower() for name, value in headers if name.lower() == b"upgrade"]
    if not wishes or b"upgrade" not in connection_options(headers):
        return False
    if has_body or any(b"websocket" in wish for wish in wishes):
        raise NodeRefusal(
            501,
            "Upgrade: the node passes on HTTP/1.1 alone, no websockets; send the request without",
            headers=CLOSE,
        )
    return True


def _ambiguous(why: str) -> NodeRefusal:
    return NodeRefusal(400, why, headers=CLOSE)


def target(raw_path: bytes, query: bytes) -> bytes:
    """The request target for the backend, exactly as the client spelled it.

    NodeRefusal 400 for a path that could mean another one after the backend has read it: dot
    segments, however encoded, empty segments, backslashes, control characters.
    """
    if not raw_path.startswith(b"/v1/") and raw_path != b"/v1":
        raise NodeRefusal(404, "Not Found")
    plain = unquote_to_bytes(raw_path)
    segments = plain.split(b"/")[1:]
    unclear = (
        any(segment in (b".", b"..") for segment in segments)
        or any(not segment for segment in segments[:-1])
        or b"\\" in plain
        or any(byte < 0x21 or byte == 0x7F for byte in plain)
        or any(byte > 0x7E for byte in raw_path)
    )
    if unclear or any(byte < 0x21 or byte > 0x7E for byte in query) or b"#" in query:
        raise NodeRefusal(400, "the path or query holds characters no route of /v1 has")
    return raw_path + (b"?" + query if query else b"")
