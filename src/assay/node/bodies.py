"""Request bodies: JSON whatever the Content-Type says, bounded, errors that name the field."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from assay.node.failures import NodeRefusal

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, limit: int) -> bytes:
    """All of the body; NodeRefusal 413 as soon as it is longer than ``limit`` bytes.

    NodeRefusal 499, which nobody reads, when the client goes away in the middle of it.
    """
    too_long = NodeRefusal(413, f"the body is longer than {limit} bytes")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise too_long
    chunks, length = [], 0
    try:
        async for chunk in request.stream():
            length += len(chunk)
            if length > limit:
                raise too_long
            chunks.append(chunk)
    except ClientDisconnect as error:
        raise NodeRefusal(499, "the client went away") from error
    return b"".join(chunks)


def parse(model: type[Model], body: bytes) -> Model:
    """The body as ``model``; NodeRefusal 400 with the path of the first field that is wrong."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]
        ).lstrip(".")
        raise NodeRefusal(400, f"{field}: {first['msg']}" if field else first["msg"]) from error


async def read_model(request: Request, model: type[Model], limit: int) -> Model:
    """Read and parse in one step."""
    return parse(model, await read_body(request, limit))
