"""The claim: one exchange as an executor reports it."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from assay.claims.positions import Position, TokenId, TopEntry

CLAIM_SCHEMA_VERSION: Final = 1
"""Raised when a field changes meaning; readers refuse versions they do not know."""

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]
Endpoint = Literal["chat", "completions"]
FinishReason = str


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Prompt(_Frozen):
    """What the model was asked.

    ``token_ids`` is ``None`` when nobody reported them, never an empty stand-in (case 23).
    ``source`` says how far they can be trusted: ``response`` (the server returned them),
    ``request`` (the caller sent ids), ``rerendered`` (only messages or text are known and the
    validator's template must make the ids again). ``digest`` is ``claims.digest.prompt_digest``
    of the ids; it binds a claim to its prompt where the ids themselves are kept back.
    """

    token_ids: tuple[TokenId, ...] | None = None
    digest: str | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None
    source: Literal["response", "request", "rerendered"] = "rerendered"


class Usage(_Frozen):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None


class ToolCall(_Frozen):
    """One function call of an answer. ``arguments`` is JSON text as the server wrote it."""

    name: str | None = None
    arguments: str = ""


class EngineIdentity(_Frozen):
    """What is known of the engine that answered; every field may be unknown."""

    model: str | None = None
    engine_version: str | None = None
    runner: Literal["v1", "v2"] | None = None
    dtype: str | None = None
    kv_cache_dtype: str | None = None
    attention_backend: str | None = None
    logprobs_mode: LogprobsMode | None = None
    plugin_version: str | None = None
    system_fingerprint: str | None = None
    model_digest: str | None = None
    """SHA-256 over the weights' files, where somebody computed it."""
    hardware: str | None = None
    """Device name as the engine reports it, such as ``NVIDIA H100`` or ``cpu``."""
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    max_model_len: int | None = None
    """Context in tokens: an answer may end there before max_tokens."""
    template_digest: str | None = None
    """``replay.tokens.template_digest``: how the server renders one fixed conversation. Two
    servers with equal digests have the same template, tokenizer and date."""
    default_sampling_params: dict[str, float] | None = None
    """What the server fills in where a request names none of these (the model's generation config);
    ``None`` where it does not say."""
    eos_token_ids: tuple[TokenId, ...] | None = None
    """The end tokens it stops at, which ``min_tokens`` masks."""


class Tape(_Frozen):
    """What turned a seed into draws: without it a seeded claim cannot be drawn again.

    ``runner``'s noise differs in kind: V2's is a pure function of (seed, position, token id), V1's
    a generator consumed in order, which only the same ``device`` kind repeats. ``generation`` is
    this software's number for the engine's noise function (``scoring/tape.py`` lists them);
    ``fp64`` is the engine's flag for double precision noise.
    """

    runner: Literal["v1", "v2"]
    generation: int = 1
    fp64: bool = False
    device: str | None = None


SeedSource = Literal["client", "executor", "validator", "beacon"]
"""Who chose the seed. ``beacon``: derived from a public beacon and the request's digest, so that
nobody could try several; an executor that picks its own seed can grind it."""


class Claim(_Frozen):
    """One exchange.

    ``request`` is the request body as the origin sent it, without ``stream``: sampling
    parameters, tools, response format and all, because every one of them may shape the
    distribution (spec replay, section 2). ``output_ids`` is ``None`` for claims spelled in text.
    ``output_text`` is the content alone; what a parser took out of it is in ``reasoning_text`` and
    ``tool_calls``.
    ``warnings`` holds what a reader noticed and did not refuse.
    """

    schema_version: Literal[1] = CLAIM_SCHEMA_VERSION
    id: str
    endpoint: Endpoint
    prompt: Prompt
    request: dict[str, Any] = Field(default_factory=dict)
    output_ids: tuple[TokenId, ...] | None = None
    output_text: str | None = None
    reasoning_text: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    positions: tuple[Position, ...] | None = None
    """``None``: the response carries no log probabilities at all; ``()``: an empty list."""
    finish_reason: FinishReason | None = None
    usage: Usage = Usage()
    logprobs_mode: LogprobsMode | None = None
    engine: EngineIdentity = EngineIdentity()
    tape: Tape | None = None
    seed_source: SeedSource | None = None
    warnings: tuple[str, ...] = ()


class Evidence(_Frozen):
    """What the plugin saw inside the engine during a replay, one entry per forced position.

    Returned by the server under the response field ``assay``. ``drawn`` is the id the sampler
    would have chosen; ranks start at 1; ``logprob_*`` belong to the forced id, ``drawn_*`` to the
    drawn one. ``noise_*`` is the Gumbel noise that the request's seed gives the two ids at the
    position: 0 for a greedy request, ``None`` where no seed was given or it cannot be repeated.
    The sampler drew argmax(processed log probability + noise), so the four numbers say by how much
    the drawn id beat the forced one over the full vocabulary. Older plugins send none of them.
    ``grammar_conflict`` is the first position whose forced id the grammar did not allow.
    """

    runner: Literal["v1", "v2"]
    drawn: tuple[int, ...] = ()
    rank_raw: tuple[int, ...] = ()
    rank_processed: tuple[int, ...] = ()
    logprob_raw: tuple[float | None, ...] = ()
    logprob_processed: tuple[float | None, ...] = ()
    drawn_raw: tuple[float | None, ...] = ()
    drawn_processed: tuple[float | None, ...] = ()
    noise_drawn: tuple[float | None, ...] = ()
    noise_forced: tuple[float | None, ...] = ()
    tape: Tape | None = None
    grammar_conflict: int | None = None
    complete: bool = True


class Replay(_Frozen):
    """What the validator's own engine said when the claimed tokens were forced.

    ``path`` names how it was made; a verdict never mixes paths. ``mode_source`` is ``inferred``
    when the server had to guess the log probability mode (case 53). ``alternatives`` are the
    likeliest ids of each position by rank, and the claimed one: on the prefill path more than the
    claim lists, for the choice channel; distances compare ``positions``. ``claimed_entries`` are
    the validator's own numbers for ids that the claim lists and ``alternatives`` does not.
    """

    id: str
    path: Literal["decode", "prefill", "file"] = "decode"
    prompt_token_ids: tuple[TokenId, ...] | None = None
    positions: tuple[Position, ...] | None = None
    alternatives: tuple[tuple[TopEntry, ...], ...] = ()
    claimed_entries: tuple[tuple[TopEntry, ...], ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage = Usage()
    logprobs_mode: LogprobsMode | None = None
    mode_source: Literal["explicit", "inferred", "deployment"] | None = None
    evidence: Evidence | None = None
    engine: EngineIdentity = EngineIdentity()
    warnings: tuple[str, ...] = ()
