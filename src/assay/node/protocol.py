"""The node's reading of HTTP/1.1: uvicorn's, without two of its leniencies.

uvicorn over httptools adds the trailers of a chunked body to the request's headers, and lets a
head grow for ever. Here trailers end (RFC 9110, section 6.5.1: they are not to be merged), and a
head that does not end is answered 400. Over h11 neither happens.
"""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Literal

HEAD_BYTES = 65_536
"""Request line and headers; counted by what a socket gives at once, so up to 256 KiB more."""


def http_protocol() -> type[asyncio.Protocol] | Literal["h11"]:
    """For ``uvicorn.Config(http=...)``: over httptools, whose parser is compiled, where it is
    installed, as beside vLLM."""
    if importlib.util.find_spec("httptools") is None:
        return "h11"
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class NodeProtocol(HttpToolsProtocol):
        _in_head = False
        _head_bytes = 0

        def data_received(self, data: bytes) -> None:
            begun_before = self._in_head
            super().data_received(data)
            if not (begun_before and self._in_head):
                self._head_bytes = 0
                return
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("The request's headers are too long.")

        def on_message_begin(self) -> None:
            self._in_head = True
            super().on_message_begin()

        def on_header(self, name: bytes, value: bytes) -> None:
            if self._in_head:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

    return NodeProtocol
