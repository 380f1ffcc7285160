"""The route that scores a claim in one forward pass: ``POST /v1/assay/prefill``.

A plain server can do the same through ``prompt_logprobs`` of /v1/completions, at a price: its
answer lists the prompt's positions too and spells every token. This route answers for the claimed
positions only, in columns, and on runner V2 for the ids the claim lists as well, whatever their
rank. It uses vLLM's public names alone.
"""

from __future__ import annotations

import math
import uuid
from typing import Annotated, Any, Final

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError
from vllm import SamplingParams
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.inputs import TokensPrompt
from vllm.logprobs import FlatLogprobs
from vllm.outputs import RequestOutput

from assay.errors import RequestError
from assay.plugin.constants import MAX_TOP_TOKENS, MAX_TRACE_POSITIONS
from assay.plugin.ingest import EngineLimits

PREFILL_ROUTE: Final = "/v1/assay/prefill"
"""Under /v1, so that ``vllm serve --api-key`` guards it. The proof-of-compute gate closes it with
the other routes that generate."""

PREFILL_VERSION: Final = 1
"""Version of the answer's layout."""

Row = Annotated[list[StrictInt], Field(max_length=MAX_TOP_TOKENS)]


class PrefillBody(BaseModel):
    """What to score: ``output_token_ids`` as the continuation of ``prompt_token_ids``.

    ``top``: likeliest ids to list at each output position. ``claimed_token_ids``: for each output
    position the ids whose log probabilities are wanted too; ids outside the vocabulary are passed
    over, since an executor may have written anything there.
    """

    model_config = ConfigDict(extra="forbid")

    prompt_token_ids: list[StrictInt] = Field(min_length=1)
    output_token_ids: list[StrictInt] = Field(min_length=1, max_length=MAX_TRACE_POSITIONS)
    claimed_token_ids: list[Row] | None = None
    top: StrictInt = Field(ge=0)


class PrefillRoute:
    """Attached to the app before it is built, started with the engine."""

    def __init__(self) -> None:
        self._engine: EngineClient | None = None
        self._limits: EngineLimits | None = None
        self._max_logprobs = 0
        self._runner = "unknown"

    def attach(self, app: FastAPI) -> None:
        app.add_api_route(PREFILL_ROUTE, self.score, methods=["POST"])

    def start(
        self, engine: EngineClient, limits: EngineLimits, runner: str, max_logprobs: int
    ) -> None:
        """``max_logprobs`` below 0 is no limit but the vocabulary, as vLLM means it."""
        self._engine, self._limits, self._runner = engine, limits, runner
        self._max_logprobs = limits.vocab_size if max_logprobs < 0 else max_logprobs

    async def score(self, raw_request: Request) -> JSONResponse:
        """One forward pass. Answers ``token_ids`` and ``logprobs`` [positions][1 + top], the
        claimed id first and the likeliest behind it by rank (null = impossible), and
        ``claimed_logprobs`` as the ids were given, null where the runner cannot say."""
        assert self._engine is not None
        assert self._limits is not None
        try:
            body = read_prefill(await raw_request.body(), self._limits, self._max_logprobs)
        except RequestError as error:
            refusal = create_error_response(str(error), param=error.param)
            return JSONResponse(refusal.model_dump(), status_code=400)
        rows = self._claimed(body)
        output = await self._run(body, rows)
        try:
            return JSONResponse(
                {
                    "version": PREFILL_VERSION,
                    "runner": self._runner,
                    **columns(output, len(body.prompt_token_ids)),
                    "claimed_logprobs": None if rows is None else listed(output, body, rows),
                }
            )
        except ArithmeticError as error:
            failure = create_error_response(str(error))
            return JSONResponse(failure.model_dump(), status_code=500)

    def _claimed(self, body: PrefillBody) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        """Ids to score [positions, widest row], -1 where there are none; V2 only."""
        assert self._limits is not None
        if self._runner != "v2" or not body.claimed_token_ids:
            return None
        width = min(max(map(len, body.claimed_token_ids)), self._max_logprobs)
        if width < 1:
            return None
        rows = np.full((len(body.output_token_ids), width), -1, dtype=np.int64)
        for row, ids in zip(rows, body.claimed_token_ids, strict=True):
            kept = [i if 0 <= i < self._limits.vocab_size else -1 for i in ids[:width]]
            row[: len(kept)] = kept
        return rows

    async def _run(
        self, body: PrefillBody, rows: np.ndarray[Any, np.dtype[np.int64]] | None
    ) -> RequestOutput:
        assert self._engine is not None
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            flat_logprobs=True,
            prompt_logprobs=body.top,
            prompt_logprob_token_ids=rows,
            # Row i scores the ids as predictions of token start + i + 1.
            prompt_logprob_start=None if rows is None else len(body.prompt_token_ids) - 1,
        )
        tokens = [*body.prompt_token_ids, *body.output_token_ids]
        [prompt] = await self._engine.renderer.render_cmpl_async(
            [TokensPrompt(prompt_token_ids=tokens)]
        )
        final: RequestOutput | None = None
        async for output in self._engine.generate(prompt, params, f"assay-{uuid.uuid4().hex}"):
            final = output
        assert final is not None
        return final


def read_prefill(content: bytes, limits: EngineLimits, max_logprobs: int) -> PrefillBody:
    """The body of one request; RequestError naming the field that cannot be served."""
    try:
        body = PrefillBody.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"])
        raise RequestError(f"{where[1:] or 'body'}: {first['msg']}", param=where[1:]) from error
    for name in ("prompt_token_ids", "output_token_ids"):
        for index, token in enumerate(getattr(body, name)):
            if not 0 <= token < limits.vocab_size:
                raise RequestError(
                    f"{name}[{index}] is {token}, outside the vocabulary of {limits.vocab_size}",
                    param=f"{name}[{index}]",
                )
    tokens = len(body.prompt_token_ids) + len(body.output_token_ids)
    if tokens >= limits.max_model_len:
        raise RequestError(
            f"prompt and output are {tokens} tokens; a prefill needs room for one more than this"
            f" server's {limits.max_model_len}",
            param="output_token_ids",
        )
    if body.top > max_logprobs:
        raise RequestError(
            f"top is {body.top} and this server returns at most {max_logprobs}; start it with"
            f" --max-logprobs {body.top}",
            param="top",
        )
    rows = body.claimed_token_ids
    if rows is not None and len(rows) != len(body.output_token_ids):
        raise RequestError(
            f"claimed_token_ids has {len(rows)} rows for {len(body.output_token_ids)} positions",
            param="claimed_token_ids",
        )
    return body


def columns(output: RequestOutput, prompt_length: int) -> dict[str, list[list[Any]]]:
    """``token_ids`` and ``logprobs`` of the positions behind the prompt."""
    flat = output.prompt_logprobs
    assert isinstance(flat, FlatLogprobs)
    spans = list(zip(flat.start_indices, flat.end_indices, strict=True))[prompt_length:]
    return {
        "token_ids": [flat.token_ids[start:end] for start, end in spans],
        "logprobs": [[number(v) for v in flat.logprobs[start:end]] for start, end in spans],
    }


def listed(
    output: RequestOutput, body: PrefillBody, rows: np.ndarray[Any, np.dtype[np.int64]]
) -> list[list[float | None]]:
    """The claimed ids' log probabilities, each row as long as it was given at most."""
    scores = output.prompt_token_id_logprobs
    assert scores is not None
    assert body.claimed_token_ids is not None
    return [
        [number(float(value)) for value in row[: len(ids)]]
        for row, ids in zip(scores, body.claimed_token_ids, strict=True)
    ]


def number(value: float) -> float | None:
    """``value`` for JSON: impossible is null. ArithmeticError for what no model may say."""
    if math.isfinite(value):
        return value
    if value == -math.inf:
        return None
    raise ArithmeticError(f"the model gave the log probability {value}")
