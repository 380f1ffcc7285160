"""Where the backends' callbacks arrive: checked, kept, and passed on to the real receiver.

The address holds a secret of the worker or job it is about; no key, since backends send none.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.delivery.couriers import Deliveries
from assay.node.bodies import parse, read_body
from assay.node.failures import NodeRefusal
from assay.node.pow.jobs import Jobs
from assay.node.pow.secrecy import Addresses
from assay.poc.bodies import Artifact
from assay.store.outbox_tables import Kind
from assay.store.rounds import Rounds

logger = logging.getLogger("assay.node")


class _Generated(BaseModel):
    model_config = ConfigDict(extra="allow")

    artifacts: tuple[Artifact, ...]


class _Validated(BaseModel):
    model_config = ConfigDict(extra="allow")

    request_id: str


class Inbox:
    """Answers 2xx when what came is committed, or never will be wanted again."""

    def __init__(
        self,
        rounds: Rounds,
        jobs: Jobs,
        deliveries: Deliveries,
        addresses: Addresses,
        body_limit: int,
    ) -> None:
        self._rounds = rounds
        self._jobs = jobs
        self._deliveries = deliveries
        self._addresses = addresses
        self._limit = body_limit

    async def generated(self, request: Request) -> Response:
        """Artifacts of a round or of a job."""
        token, raw = await self._read(request)
        body = await asyncio.to_thread(parse, _Generated, raw)
        extra = dict(body.model_extra or {})
        if extra.get("request_id") is not None:
            text = await asyncio.to_thread(_text, body.artifacts)
            return await self._job(token, "generated", extra, len(body.artifacts), text)
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
        token, raw = await self._read(request)
        body = parse(_Validated, raw)
        return await self._job(token, "validated", body.model_dump(mode="json"), 0, "")

    async def _read(self, request: Request) -> tuple[str, bytes]:
        """Token and body; of a stranger's request not even the body is read."""
        token = str(request.path_params["token"])
        if not self._addresses.knows(token):
            raise NodeRefusal(404, "Not Found")
        return token, await read_body(request, self._limit)

    async def _job(
        self, token: str, kind: Kind, head: dict[str, Any], count: int, text: str
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
