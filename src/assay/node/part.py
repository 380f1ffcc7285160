"""A part of the node: routes, and whatever must run beside them."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.errors import AssayError
from assay.node.access import Access
from assay.node.failures import NodeRefusal

Handler = Callable[[Request], Awaitable[Response]]
Key = Literal["control", "inference", "none"]
_IN_COMPONENTS = "#/components/schemas/{model}"


@dataclass(frozen=True)
class Route:
    """``body`` and ``answer`` describe the route in OpenAPI; the handler reads the request itself.

    FastAPI would refuse JSON that arrives without a Content-Type, as network clients send it.
    """

    method: str
    path: str
    handler: Handler
    key: Key = "control"
    summary: str = ""
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | None = None
    hidden: bool = False


@asynccontextmanager
async def _nothing() -> AsyncIterator[None]:
    yield


@dataclass(frozen=True)
class Part:
    """``running`` is entered after the node has started and left before it ends."""

    routes: Sequence[Route] = ()
    running: Callable[[], AbstractAsyncContextManager[None]] = _nothing


def attach(app: FastAPI, access: Access, routes: Sequence[Route]) -> None:
    """Add routes one by one; refusals become answers, keys are checked before anything is read."""
    for route in routes:
        app.add_api_route(
            route.path,
            guarded(route.handler, access, route.key),
            methods=[route.method],
            summary=route.summary or None,
            include_in_schema=not route.hidden,
            response_model=None,
            responses=_responses(route),
            openapi_extra=_request_body(route),
            name=f"{route.method} {route.path}",
        )


def describe(app: FastAPI, routes: Sequence[Route]) -> None:
    """Put the models that request bodies refer to into the app's OpenAPI document."""
    stock = app.openapi

    def openapi() -> dict[str, Any]:
        document = stock()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for route in routes:
            if route.body is not None:
                schemas |= route.body.model_json_schema(ref_template=_IN_COMPONENTS).get(
                    "$defs", {}
                )
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def guarded(handler: Handler, access: Access, key: Key) -> Handler:
    """``handler`` behind its key, with errors as JSON: ``{"detail": ...}``."""

    @functools.wraps(handler)
    async def guarded_handler(request: Request) -> Response:
        try:
            if key == "control":
                access.control(request)
            elif key == "inference":
                access.inference(request)
            return await handler(request)
        except NodeRefusal as refusal:
            return JSONResponse(
                {"detail": refusal.detail}, status_code=refusal.status, headers=refusal.headers
            )
        except AssayError as error:
            return JSONResponse({"detail": str(error)}, status_code=500)

    # FastAPI reads the signature of what functools.wraps points at.
    del guarded_handler.__wrapped__
    guarded_handler.__annotations__ = {"request": Request, "return": Response}
    return guarded_handler


def _responses(route: Route) -> dict[int | str, dict[str, Any]]:
    return {} if route.answer is None else {200: {"model": route.answer}}


def _request_body(route: Route) -> dict[str, Any] | None:
    if route.body is None:
        return None
    schema = route.body.model_json_schema(ref_template=_IN_COMPONENTS)
    schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
