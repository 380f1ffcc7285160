"""The evidence of a replay on its way back: one field of the response, one extra stream chunk."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from assay.plugin.constants import RESPONSE_FIELD, RESPONSE_VERSION
from assay.plugin.evidence import FLOAT_COLUMNS, INT_COLUMNS, NOISE_COLUMNS
from assay.plugin.ingest import Job

Fetch = Callable[[], Awaitable[dict[str, Any]]]
DONE = b"data: [DONE]"


def evidence_field(job: Job, parts: list[dict[str, Any] | None]) -> dict[str, Any]:
    """Merge what the workers saw into the response field ``assay``.

    Tensor-parallel ranks all hold the same positions, sharded samplers hold some each: the first
    worker that measured a position speaks for it. ``complete`` is false when a position is missing
    (the replay was cut, or the store was full); arrays then end before the first missing one.
    """
    seen: dict[int, tuple[dict[str, Any], int]] = {}
    runner, tape = "v1", None
    for part in parts:
        if part is None:
            continue
        runner, tape = part["runner"], part["tape"]
        for index, position in enumerate(part["at"]):
            seen.setdefault(position, (part, index))
    length = 0
    while length in seen:
        length += 1

    def column(name: str) -> list[Any]:
        return [seen[position][0][name][seen[position][1]] for position in range(length)]

    raw = column("logprob_raw")
    numbers = {
        name: [_noise(v) if name in NOISE_COLUMNS else _number(v) for v in column(name)]
        for name in FLOAT_COLUMNS
    }
    return {
        "version": RESPONSE_VERSION,
        "runner": runner,
        "tape": tape,
        "logprobs_mode": job.mode,
        "mode_source": job.mode_source,
        "inferred": job.inferred,
        "positions": length,
        **{name: column(name) for name in INT_COLUMNS},
        **numbers,
        # The grammar's mask is applied before the sampler: the only way a forced id can be
        # impossible in the raw distribution. Position of the first such id.
        "grammar_conflict": next((i for i, v in enumerate(raw) if v == -math.inf), None),
        "complete": length == job.positions,
    }


def with_field(body: bytes, field: dict[str, Any]) -> dict[str, Any]:
    """A JSON response body as an object with the field added."""
    content: dict[str, Any] = json.loads(body)
    content[RESPONSE_FIELD] = field
    return content


async def with_chunk(stream: AsyncIterator[Any], fetch: Fetch) -> AsyncIterator[Any]:
    """An SSE stream with one more chunk before ``[DONE]``; nothing else is touched.

    The chunk repeats the identity of the stream's own chunks and has no choices. A stream that
    ends in an error object gets none: it is no replay.
    """
    head: dict[str, Any] | None = None
    failed = False
    async for chunk in stream:
        data = chunk.encode() if isinstance(chunk, str) else bytes(chunk)
        at, end = 0, None
        # Usually one event an item, but nothing promises it: an item is cut only before its DONE.
        for event in data.split(b"\n\n"):
            if event.startswith(DONE):
                end = at
                break
            if event.startswith(b'data: {"error"'):
                failed = True
            elif head is None and event.startswith(b"data: {"):
                content = json.loads(event[len(b"data: ") :].split(b"\n", 1)[0])
                head = {name: content.get(name) for name in ("id", "object", "created", "model")}
            at += len(event) + 2
        if end is None or head is None or failed:
            yield chunk
            continue
        if end:
            yield data[:end]
        yield f"data: {json.dumps({**head, 'choices': [], RESPONSE_FIELD: await fetch()})}\n\n"
        yield data[end:] if end else chunk


def _number(value: float) -> float | None:
    """JSON has no infinities: -inf (impossible) becomes null."""
    return None if value == -math.inf else value


def _noise(value: float) -> float | None:
    """Noise that cannot be repeated is NaN in the store and null in JSON."""
    return value if math.isfinite(value) else None
