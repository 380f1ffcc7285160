"""How the validator talks to an engine: one small protocol, and its HTTP implementation."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import httpx

from assay.connections import IDLE_S
from assay.errors import ReplayError
from assay.settings import ClientSettings


@dataclass(frozen=True)
class EngineReply:
    """What an engine answered: status, raw body and lower-case headers.

    The body stays bytes because the readers must see what the server wrote, NaN literals
    included, before any JSON library makes something of it.
    """

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class EngineClient(Protocol):
    """An engine that speaks the OpenAI routes. Implementations: HTTP, ASGI in-process, fakes.

    Both methods raise ``ReplayError(blame="validator")`` when no answer came at all; an answer
    with an error status is returned, not raised, so that the caller can say whose fault it is.
    """

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> EngineReply:
        """One request, one whole answer."""
        ...

    async def send_stream(
        self, path: str, body: Mapping[str, Any]
    ) -> tuple[EngineReply, list[str]]:
        """One POST whose answer is server-sent events: the reply (empty body on 200) and lines."""
        ...


class HttpEngineClient:
    """``EngineClient`` over HTTP.

    ``transport`` replaces the network, for instance ``httpx.ASGITransport(app)``: the in-process
    client of tests and of a node that holds its engine in the same process.
    """

    def __init__(
        self,
        server: str,
        settings: ClientSettings,
        *,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        key = api_key if api_key is not None else _secret(settings)
        self.server = normal_server(server)
        self._http = httpx.AsyncClient(
            base_url=self.server,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(settings.timeout_s, connect=settings.connect_timeout_s),
            # One socket per request in flight; the caller's semaphore is the real limit.
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=32, keepalive_expiry=IDLE_S
            ),
            transport=transport,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> EngineReply:
        try:
            answer = await self._http.request(
                method, path, content=_encode(body), headers=_JSON if body is not None else None
            )
        except httpx.HTTPError as error:
            raise self._unanswered(error, path) from error
        return EngineReply(answer.status_code, answer.content, _lower(answer.headers))

    async def send_stream(
        self, path: str, body: Mapping[str, Any]
    ) -> tuple[EngineReply, list[str]]:
        try:
            async with self._http.stream(
                "POST", path, content=_encode(body), headers=_JSON
            ) as answer:
                headers = _lower(answer.headers)
                if answer.status_code != httpx.codes.OK:
                    return EngineReply(answer.status_code, await answer.aread(), headers), []
                lines = [line async for line in _lines(answer)]
        except httpx.HTTPError as error:
            raise self._unanswered(error, path) from error
        return EngineReply(httpx.codes.OK, b"", headers), lines

    def _unanswered(self, error: httpx.HTTPError, path: str) -> ReplayError:
        if isinstance(error, httpx.TimeoutException):
            code, what = "validator_timeout", "gave no answer in time"
            advice = "raise ASSAY_TIMEOUT_S or lower --concurrency"
        else:
            code, what = "validator_unreachable", "could not be reached"
            advice = "check that it runs and that the address is right"
        detail = str(error) or type(error).__name__
        return ReplayError(
            f"{self.server}{path} {what} ({detail}); {advice}", blame="validator", code=code
        )


_JSON = {"Content-Type": "application/json"}


def normal_server(server: str) -> str:
    """``http://host:port`` from what people type: no scheme, a trailing slash, a ``/v1``."""
    text = server.strip().rstrip("/")
    if "://" not in text:
        text = f"http://{text}"
    return text.removesuffix("/v1")


def _secret(settings: ClientSettings) -> str | None:
    return None if settings.api_key is None else settings.api_key.get_secret_value()


def _encode(body: Mapping[str, Any] | None) -> bytes | None:
    """JSON of ``body``. A claim's request with NaN in it is the claim's fault, not the engine's."""
    if body is None:
        return None
    try:
        return json.dumps(body, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (ValueError, UnicodeEncodeError) as error:
        raise ReplayError(
            f"the claim's request cannot be written as JSON: {error}",
            blame="claim",
            code="malformed",
        ) from error


def _lower(headers: httpx.Headers) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    """Lines split at newlines only. httpx's own ``aiter_lines`` also splits at U+2028 and other
    separators that may stand inside a JSON string of an event."""
    rest = b""
    async for chunk in answer.aiter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.rstrip(b"\r").decode("utf-8", errors="replace")
    if rest:
        yield rest.rstrip(b"\r").decode("utf-8", errors="replace")
