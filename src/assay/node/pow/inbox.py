"""Where the backends' callbacks arrive: checked, kept, and passed on to the real receiver.

The address holds a secret of the worker or job it is about; no key, since backends send none.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.delivery.couriers import Deliveries
from assay.node.bodies import parse, read_body
from assay.node.failures import NodeRefusal
from assay.node.pow.jobs import Jobs
from assay.poc.bodies import Artifact
from assay.store.rounds import Rounds

logger = logging.getLogger("assay.node")

PATH = "/api/v1/inference/pow/callbacks"


class _Generated(BaseModel):
    model_config = ConfigDict(extra="allow")

    artifacts: tuple[Artifact, ...]


class _Validated(BaseModel):
    model_config = ConfigDict(extra="allow")

    request_id: str


class Inbox:
    """``receiver``: URL of whoever a round's artifacts are for; None: nobody is told."""

    def __init__(
        self,
        rounds: Rounds,
        jobs: Jobs,
        deliveries: Deliveries,
        receiver: Callable[[], str | None],
        body_limit: int,
    ) -> None:
        self._rounds = rounds
        self._jobs = jobs
        self._deliveries = deliveries
        self._receiver = receiver
        self._limit = body_limit

    async def generated(self, request: Request) -> Response:
        """Artifacts of a round or of a job; 503 while too many wait for their receiver."""
        token = request.path_params["token"]
        raw = await read_body(request, self._limit)
        body = await asyncio.to_thread(parse, _Generated, raw)
        extra = dict(body.model_extra or {})
        if extra.get("request_id") is not None:
            text = await asyncio.to_thread(_text, body.artifacts)
            return await self._job(token, "generated", extra, len(body.artifacts), text)
        url = self._receiver()
        if url is not None and self._deliveries.is_full(url):
            raise NodeRefusal(
                503, f"too many artifacts wait for {url}", headers={"Retry-After": "5"}
            )
        pairs = [(artifact.nonce, artifact.vector_b64) for artifact in body.artifacts]
        kept = await asyncio.to_thread(self._rounds.keep, token, pairs)
        if kept is None:
            # Mined by a worker that was given up; somebody else mines the same again.
            logger.info("poc: %d artifacts of a former worker are left aside", len(pairs))
            return JSONResponse({"kept": 0})
        if kept.kept and kept.url is not None:
            self._deliveries.arrived(kept.url, kept.kept, 0)
        if kept.foreign:
            logger.error("poc: a backend sent %d nonces that are not this node's", kept.foreign)
        return JSONResponse({"kept": kept.kept, "repeated": kept.repeated})

    async def validated(self, request: Request) -> Response:
        """The verdict of a job."""
        body = parse(_Validated, await read_body(request, self._limit))
        return await self._job(
            request.path_params["token"], "validated", body.model_dump(mode="json"), 0, ""
        )

    async def _job(
        self, token: str, kind: str, head: dict[str, Any], count: int, text: str
    ) -> Response:
        job = await self._jobs.arrived(token, kind, head, count, text)
        if job is not None:
            self._deliveries.arrived(job.url, count, int(kind == "validated"), urgent=True)
        return JSONResponse({"kept": count if job is not None else 0})


def _text(artifacts: tuple[Artifact, ...]) -> str:
    return ",".join(
        f'{{"nonce":{artifact.nonce},"vector_b64":{json.dumps(artifact.vector_b64)}}}'
        for artifact in artifacts
    )
