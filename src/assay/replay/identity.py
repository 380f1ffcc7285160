"""Which engine answers at an address, as far as it tells."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from assay.claims.claim import EngineIdentity, LogprobsMode, Tape
from assay.errors import ReplayError
from assay.replay.client import EngineClient, EngineReply
from assay.replay.failures import as_replay_error, with_retries
from assay.replay.tokens import template_digest

STATUS_PATH = "/v1/assay/status"


class ServerIdentity(BaseModel):
    """One engine server. ``plugin_version`` is ``None`` on a server without the assay plugin.

    Field names are those of the status route. A newer plugin may send more; they are ignored.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    plugin_version: str | None = None
    vllm_version: str | None = None
    runner: str | None = None
    tape: Tape | None = None
    """What turns a request's seed into draws there; ``None`` where it cannot be repeated."""
    hardware: str | None = None
    model: str | None = None
    model_path: str | None = None
    served_models: tuple[str, ...] = ()
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    attention_backend: str | None = None
    logprobs_mode: str | None = None
    max_logprobs: int | None = None
    max_model_len: int | None = None
    vocab_size: int | None = None
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    async_scheduling: bool | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    speculative: bool | None = None
    structured_outputs_backend: str | None = None
    default_sampling_params: dict[str, float] | None = None
    """What it fills in where a request names none of these; ``None`` where it does not say."""
    eos_token_ids: tuple[int, ...] | None = None
    template_digest: str | None = None
    """How it renders one fixed conversation (``replay.tokens``); the route does not tell."""
    model_digest: str | None = None
    """Digest of its weights where the caller computed it (``replay.weights``)."""

    @field_validator("tape", mode="before")
    @classmethod
    def _known_tape(cls, value: object) -> object:
        """A newer plugin may say more of its tape than this version knows."""
        if not isinstance(value, dict):
            return value
        return {name: value[name] for name in Tape.model_fields if name in value}

    @property
    def has_plugin(self) -> bool:
        return self.plugin_version is not None

    @property
    def mode(self) -> LogprobsMode | None:
        """The deployment's log probability mode, where it is one this version knows."""
        known: tuple[LogprobsMode, ...] = (
            "raw_logprobs",
            "processed_logprobs",
            "raw_logits",
            "processed_logits",
        )
        return next((mode for mode in known if mode == self.logprobs_mode), None)

    def engine(self) -> EngineIdentity:
        """The part of it that a claim carries."""
        return EngineIdentity(
            model=self.model,
            engine_version=self.vllm_version,
            runner="v1" if self.runner == "v1" else "v2" if self.runner == "v2" else None,
            dtype=self.dtype,
            kv_cache_dtype=self.kv_cache_dtype,
            attention_backend=self.attention_backend,
            logprobs_mode=self.mode,
            plugin_version=self.plugin_version,
            model_digest=self.model_digest,
            hardware=self.hardware,
            tensor_parallel_size=self.tensor_parallel_size,
            pipeline_parallel_size=self.pipeline_parallel_size,
            max_model_len=self.max_model_len,
            template_digest=self.template_digest,
            default_sampling_params=self.default_sampling_params,
            eos_token_ids=self.eos_token_ids,
        )

    def digest(self) -> str:
        """SHA-256 of everything that may change a replayed number; the address is no part of it,
        nor is a rendering that may hold today's date."""
        kept = self.model_dump(mode="json", exclude={"template_digest"})
        text = json.dumps(kept, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


async def identify(client: EngineClient, *, retries: int = 0) -> ServerIdentity:
    """Ask a server who it is: the plugin's status route, else ``/version`` and ``/v1/models``.

    ``/tokenize`` shows how it renders. Raises ReplayError(blame="validator") when the server
    cannot be reached or refuses the key.
    """
    models = await with_retries(lambda: client.send("GET", "/v1/models"), retries=retries)
    served, max_len = _served(models)
    server = await _by_status(client, served, max_len)
    return server.model_copy(update={"template_digest": await template_digest(client)})


async def _by_status(
    client: EngineClient, served: tuple[str, ...], max_len: int | None
) -> ServerIdentity:
    status = await client.send("GET", STATUS_PATH)
    if status.status == 404:
        return await _without_plugin(client, served, max_len)
    if status.status != 200:
        raise as_replay_error(status)
    body = _object(status, STATUS_PATH)
    try:
        known = ServerIdentity.model_validate(body)
    except ValidationError as error:
        raise ReplayError(
            f"{STATUS_PATH} answered something this version cannot read: "
            f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}",
            blame="validator",
            code="validator_unusable",
        ) from error
    return known.model_copy(
        update={
            "served_models": served,
            "model": known.model or (served[0] if served else None),
            "plugin_version": known.plugin_version or "unknown",
        }
    )


async def _without_plugin(
    client: EngineClient, served: tuple[str, ...], max_len: int | None
) -> ServerIdentity:
    reply = await client.send("GET", "/version")
    version = _object(reply, "/version").get("version") if reply.status == 200 else None
    return ServerIdentity(
        vllm_version=version if isinstance(version, str) else None,
        model=served[0] if served else None,
        served_models=served,
        max_model_len=max_len,
    )


def _served(reply: EngineReply) -> tuple[tuple[str, ...], int | None]:
    """Names in ``/v1/models`` and the context length of the first."""
    data = _object(reply, "/v1/models").get("data")
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    names = tuple(entry["id"] for entry in entries if isinstance(entry.get("id"), str))
    length = entries[0].get("max_model_len") if entries else None
    return names, length if isinstance(length, int) else None


def _object(reply: EngineReply, path: str) -> dict[str, Any]:
    try:
        body = json.loads(reply.body)
    except ValueError as error:
        raise ReplayError(
            f"{path} did not answer JSON; is this a vLLM server?",
            blame="validator",
            code="validator_unusable",
        ) from error
    if not isinstance(body, dict):
        raise ReplayError(
            f"{path} answered a {type(body).__name__}, expected an object",
            blame="validator",
            code="validator_unusable",
        )
    return body
