"""Entry point ``vllm.endpoint_plugins``: the HTTP side, in the API server only.

Takes the place of the two stock routes and hands every request on to the stock handler. A request
without fields of ours passes through unchanged; one with them is checked, rewritten, and gets its
evidence attached on the way back.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import vllm
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response

from assay import __version__
from assay.errors import RequestError, SurfaceError
from assay.plugin.ends import end_token_ids
from assay.plugin.ingest import EngineLimits, Job, given_fields, ingest, our_fields
from assay.plugin.poc.endpoints import PocEndpoints
from assay.plugin.prefill import PrefillRoute
from assay.plugin.respond import evidence_field, with_chunk, with_field
from assay.plugin.rpc import ask_workers

logger = logging.getLogger("vllm.assay")

ROUTES = ("/v1/chat/completions", "/v1/completions")
STATUS_ROUTE = "/v1/assay/status"
"""Under /v1, so that ``vllm serve --api-key`` guards it."""

Handler = Callable[..., Awaitable[Response | None]]


class AssayEndpoints:
    """vLLM's ``EndpointPlugin`` protocol. Holds the engine's limits and the drops under way."""

    name = "assay_endpoints"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._engine: EngineClient | None = None
        self._limits: EngineLimits | None = None
        self._encode: Callable[[str], list[int]] | None = None
        self._status: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._prefill = PrefillRoute()
        self._poc = PocEndpoints()

    def attach_router(self, app: FastAPI) -> None:
        """Wrap the stock handlers of :data:`ROUTES`, keeping their path, checks and schema."""
        stock = {
            route.path: route
            for route in app.routes
            if isinstance(route, APIRoute) and "POST" in route.methods and route.path in ROUTES
        }
        if len(stock) != len(ROUTES):
            missing = ", ".join(sorted(set(ROUTES) - set(stock)))
            raise SurfaceError(f"this vLLM serves no {missing}; the assay plugin cannot start")
        for path, route in stock.items():
            app.add_api_route(
                path,
                self._wrap(route.endpoint),
                methods=["POST"],
                dependencies=route.dependencies,
                responses=route.responses,
                name=route.name,
            )
        app.add_api_route(STATUS_ROUTE, self.status, methods=["GET"])
        self._prefill.attach(app)
        self._poc.attach(app)

    async def init_state(
        self, engine_client: EngineClient | None, state: Any, args: Namespace
    ) -> None:
        """Ask every worker whether our sampler is in place; refuse to start when one says no."""
        if engine_client is None:
            raise SurfaceError(
                "this server has no engine (render only); take assay_endpoints out of VLLM_PLUGINS"
            )
        self._engine = engine_client
        try:
            workers = await ask_workers(engine_client, "assay_status")
        except Exception as error:
            raise SurfaceError(
                "the workers do not know the assay plugin: start the server with "
                "--worker-extension-cls assay.plugin.worker.AssayWorker and with both assay and "
                f"assay_endpoints in VLLM_PLUGINS ({error})"
            ) from error
        check_workers(workers)
        config = engine_client.vllm_config
        tokenizer = engine_client.get_tokenizer()
        self._encode = functools.partial(tokenizer.encode, add_special_tokens=False)
        self._limits = engine_limits(config, len(tokenizer), state)
        defaults = getattr(state.openai_serving_chat, "default_sampling_params", None)
        ends = end_token_ids(config, tokenizer, defaults)
        self._status = describe(config, workers, args) | {"eos_token_ids": ends}
        self._prefill.start(
            engine_client,
            self._limits,
            self._status["runner"],
            config.model_config.max_logprobs,
        )
        await self._poc.start(engine_client, state, args)
        logger.info("assay %s: enforced tokens on runner %s", __version__, self._status["runner"])

    async def status(self) -> JSONResponse:
        """What this server runs and how many replays are open right now."""
        assert self._engine is not None
        workers = await ask_workers(self._engine, "assay_status")
        return JSONResponse(
            {
                **self._status,
                "workers": workers,
                "replays_open": max(worker["open_replays"] for worker in workers),
            }
        )

    def _wrap(self, stock: Handler) -> Handler:
        @functools.wraps(stock)
        async def handle(request: Any, raw_request: Request) -> Response | None:
            try:
                fields = our_fields(request)
                if not fields:
                    return await stock(request=request, raw_request=raw_request)
                assert self._limits is not None
                assert self._encode is not None
                # The model has parsed the body already; Starlette keeps its bytes.
                given = given_fields(await raw_request.json())
                job = ingest(request, fields, given, self._limits, self._encode)
            except RequestError as error:
                return bad_request(str(error), error.param)
            if job.key is None:
                return await stock(request=request, raw_request=raw_request)
            return await self._replay(stock, request, raw_request, job)

        return handle

    async def _replay(
        self, stock: Handler, request: Any, raw_request: Request, job: Job
    ) -> Response | None:
        streaming = False
        try:
            response = await stock(request=request, raw_request=raw_request)
            if isinstance(response, StreamingResponse):
                streaming = True
                response.body_iterator = self._stream(response.body_iterator, job)
                return response
            if not isinstance(response, JSONResponse) or response.status_code != 200:
                return response
            return JSONResponse(
                with_field(bytes(response.body), await self._take(job)),
                headers=_kept_headers(response),
            )
        finally:
            if not streaming:
                self._drop_later(job)

    async def _stream(self, body: AsyncIterator[Any], job: Job) -> AsyncIterator[Any]:
        try:
            async for chunk in with_chunk(body, functools.partial(self._take, job)):
                yield chunk
        finally:
            self._drop_later(job)

    async def _take(self, job: Job) -> dict[str, Any]:
        assert self._engine is not None
        return evidence_field(job, await ask_workers(self._engine, "assay_take_evidence", job.key))

    def _drop_later(self, job: Job) -> None:
        """Free the workers' copy, however the request ended. Runs apart from a cancelled request."""
        task = asyncio.get_running_loop().create_task(self._drop(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drop(self, job: Job) -> None:
        assert self._engine is not None
        if not self._engine.errored:
            await ask_workers(self._engine, "assay_drop_evidence", job.key)


def bad_request(message: str, param: str) -> JSONResponse:
    """HTTP 400 in OpenAI's shape, as the engine's own refusals look."""
    error = create_error_response(message, param=param)
    return JSONResponse(error.model_dump(), status_code=400)


def check_workers(workers: list[dict[str, Any]]) -> None:
    """Every worker that samples must sample through us; otherwise the server must not start (F20)."""
    for worker in workers:
        if worker["runner"] == "unknown" or worker["sampler"] not in ("assay", "none"):
            raise SurfaceError(
                f"worker {worker['rank']} samples with {worker['sampler']} on runner "
                f"{worker['runner']}, which the assay plugin does not steer (watermarking, a "
                "model's own sampler, or an unknown runner). Start without the plugin."
            )
    if not any(worker["sampler"] == "assay" for worker in workers):
        raise SurfaceError("no worker has a sampler; is this a pooling model?")


def engine_limits(config: Any, tokenizer_size: int, state: Any) -> EngineLimits:
    """Read what :func:`ingest` needs from vLLM's configuration."""
    model = config.model_config
    return EngineLimits(
        vocab_size=min(model.get_vocab_size(), tokenizer_size),
        max_model_len=model.max_model_len,
        deployment_mode=model.logprobs_mode,
        speculative=config.speculative_config is not None,
        sampling_mask=bool(getattr(model, "return_sampling_mask", False)),
        max_new_tokens=getattr(state.openai_serving_chat, "override_max_tokens", None),
    )


def describe(config: Any, workers: list[dict[str, Any]], args: Namespace) -> dict[str, Any]:
    """The static part of the status answer: the identity a verdict is calibrated for."""
    model, parallel = config.model_config, config.parallel_config
    backend = config.attention_config.backend
    names = args.served_model_name or [args.model]
    sampling = next(w for w in workers if w["sampler"] == "assay")
    return {
        "plugin_version": __version__,
        "vllm_version": vllm.__version__,
        "runner": sampling["runner"],
        # A rejection sampler does not draw by the noise of one token and position.
        "tape": None if config.speculative_config is not None else sampling["tape"],
        "hardware": sampling["hardware"],
        "model": names[0] if isinstance(names, list) else names,
        "model_path": model.model,
        "dtype": str(model.dtype).removeprefix("torch."),
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "attention_backend": None if backend is None else getattr(backend, "name", str(backend)),
        "logprobs_mode": model.logprobs_mode,
        "max_logprobs": model.max_logprobs,
        "max_model_len": model.max_model_len,
        "vocab_size": model.get_vocab_size(),
        "prefix_caching": bool(config.cache_config.enable_prefix_caching),
        "chunked_prefill": bool(config.scheduler_config.enable_chunked_prefill),
        "async_scheduling": bool(config.scheduler_config.async_scheduling),
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "data_parallel_size": parallel.data_parallel_size,
        "speculative": config.speculative_config is not None,
        "structured_outputs_backend": config.structured_outputs_config.backend,
        "default_sampling_params": {
            name: float(value)
            for name, value in model.get_diff_sampling_param().items()
            if isinstance(value, int | float)
        },
    }


def _kept_headers(response: Response) -> dict[str, str]:
    """Headers of the stock answer without those that describe its old body."""
    return {
        name: value
        for name, value in response.headers.items()
        if name.lower() not in ("content-length", "content-type")
    }
