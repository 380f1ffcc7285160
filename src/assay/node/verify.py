"""``POST /api/v1/inference/verify``: claims in, verdicts out, replayed on a backend of this node."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from assay.claims.claim import Claim, LogprobsMode
from assay.claims.jsonl import load_claim
from assay.claims.strict_json import parse_json
from assay.errors import ClaimError, ReplayError
from assay.node.backend import Backend
from assay.node.bodies import read_body
from assay.node.failures import NodeRefusal
from assay.node.leaving import ThreadedWork
from assay.node.node import Node
from assay.node.part import Part, Route
from assay.node.served import ServedModel
from assay.replay.client import HttpEngineClient
from assay.replay.identity import identify
from assay.replay.request import PathChoice, ReplayOptions
from assay.replay.verify import VerifyOptions, require_validator, verify_all
from assay.settings import client_settings
from assay.store.result import VerifyResult


class VerifyRequest(BaseModel):
    """``claims`` as ``assay record`` writes them, one object each; the rest as in ``assay verify``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    claims: list[dict[str, Any]] = Field(min_length=1)
    label: str = Field("", max_length=256)
    threshold: float | None = Field(None, ge=0, le=1)
    strict: bool = False
    allow_text: bool = False
    as_model: str | None = None
    logprobs_mode: LogprobsMode | None = None
    path: PathChoice = ReplayOptions().path


class VerifyAnswer(BaseModel):
    """``verdict``: fail when one fails, pass when all pass, else inconclusive.

    ``served``: the model files the claims were replayed with.
    """

    verdict: str
    counts: dict[str, int]
    claims: int
    served: ServedModel | None
    results: list[dict[str, Any]]


@dataclass(frozen=True)
class _Work:
    claims: list[Claim]
    options: VerifyOptions


def part(node: Node) -> Part:
    return Part(
        [
            Route(
                "POST",
                "/api/v1/inference/verify",
                _Verify(node).verify,
                summary="Replay claims on a backend and judge them",
                body=VerifyRequest,
                answer=VerifyAnswer,
            )
        ]
    )


class _Verify:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def verify(self, request: Request) -> Response:
        node = self._node
        work = await self._read(request)
        results: list[VerifyResult] = []
        with node.pool.lease() as backend:
            served = await node.served.of(backend)
            try:
                replay = ThreadedWork(lambda: self._replay(backend, served, work, results))
                if not await replay.done_before_leaving(request):
                    raise NodeRefusal(499, "the client went away")
            except ReplayError as error:
                raise NodeRefusal(
                    502, {"error": str(error), "code": error.code, **_answer(results, served)}
                ) from error
        return JSONResponse(_answer(results, served))

    async def _read(self, request: Request) -> _Work:
        limits = self._node.config.limits
        body = await read_body(request, limits.verify_body_bytes)
        try:
            asked = VerifyRequest.model_validate(parse_json(body))
        except ClaimError as error:
            raise NodeRefusal(400, str(error)) from error
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise NodeRefusal(400, f"{field or 'body'}: {first['msg']}") from error
        if len(asked.claims) > limits.verify_claims:
            raise NodeRefusal(
                413, f"claims: {len(asked.claims)} are more than {limits.verify_claims}; send parts"
            )
        options = VerifyOptions(
            replay=ReplayOptions(
                strict=asked.strict,
                allow_text=asked.allow_text,
                logprobs_mode=asked.logprobs_mode,
                as_model=asked.as_model,
                path=asked.path,
            ),
            threshold=asked.threshold,
            label=asked.label,
            concurrency=limits.verify_concurrency,
        )
        claims = await asyncio.to_thread(_claims, asked.claims)
        return _Work(claims, options)

    async def _replay(
        self,
        backend: Backend,
        served: ServedModel | None,
        work: _Work,
        results: list[VerifyResult],
    ) -> None:
        key = backend.headers.get("Authorization", "").removeprefix("Bearer ") or None
        async with HttpEngineClient(
            backend.base_url,
            client_settings(),
            api_key=key,
            # A transport of our own: a proxy of the environment has no business on the loopback.
            transport=httpx.AsyncHTTPTransport(),
        ) as client:
            digest = None if served is None else served.weights_digest
            server = (await identify(client)).model_copy(update={"model_digest": digest})
            require_validator(server, backend.base_url, path=work.options.replay.path)

            def keep(result: VerifyResult) -> None:
                self._node.store.add(result)
                results.append(result)

            await verify_all(client, server, work.claims, work.options, keep)


def _claims(values: list[dict[str, Any]]) -> list[Claim]:
    """Every claim, each once; NodeRefusal 400 names the first that is none."""
    claims: dict[str, Claim] = {}
    for index, value in enumerate(values):
        try:
            claim = load_claim(json.dumps(value))
        except ClaimError as error:
            raise NodeRefusal(400, f"claims[{index}].{error}") from error
        if claims.setdefault(claim.id, claim) != claim:
            raise NodeRefusal(400, f"claims[{index}].id: {claim.id} is also that of another claim")
    return list(claims.values())


def _answer(results: list[VerifyResult], served: ServedModel | None) -> dict[str, Any]:
    counts = Counter(result.verdict.verdict for result in results)
    passed = bool(results) and counts["pass"] == len(results)
    return {
        "verdict": "fail" if counts["fail"] else "pass" if passed else "inconclusive",
        "counts": {name: counts[name] for name in ("pass", "fail", "inconclusive")},
        "claims": len(results),
        "served": None if served is None else served.model_dump(),
        "results": [_shown(result) for result in results],
    }


def _shown(result: VerifyResult) -> dict[str, Any]:
    return {
        "claim": result.claim.id,
        "label": result.label,
        **result.verdict.to_json(),
        "blame": result.blame,
        "failure": result.failure,
        "notes": [note.model_dump() for note in result.notes],
        "seconds": result.seconds,
    }
