"""The request that makes an engine say the claimed tokens again.

The origin's body is kept whole except for what is listed here: every sampling parameter shapes
the distribution (case 2), in processed mode directly and, where a grammar or a bias is involved,
in raw mode as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from assay.claims.claim import Claim, LogprobsMode
from assay.errors import ReplayError
from assay.replay.prefill_sampling import DEFAULTS

MAX_POSITIONS = 32_768
"""Longest trace the plugin takes (spec replay, section 1)."""
MAX_TOP_TOKENS = 64
"""Most top tokens at one position the plugin takes (same place)."""

DEFAULT_PREFILL_TOP = 20
"""vLLM's own default of ``--max-logprobs``: more than that a plain server refuses."""

PathChoice = Literal["decode", "prefill", "auto"]

NOT_SAMPLING = frozenset(
    {
        "stream",
        "stream_options",
        "request_id",
        "user",
        "metadata",
        "store",
        "service_tier",
        "session_id",
        "priority",
        "kv_transfer_params",
        "safety_identifier",
        "prompt_cache_key",
        "enforced_tokens",
        "enforced_str",
    }
)
"""How the origin was called, not what it computed. ``priority`` is refused by servers without
priority scheduling; enforced fields of the origin would be another replay's."""

OUTPUT_SHAPE = frozenset({"n", "best_of", "echo", "prompt_logprobs", "use_beam_search"})
"""Refused with enforced tokens. One choice's distributions do not depend on how many were drawn
beside it, so these are dropped with a note; beam search is not, see below."""

SERVER_FILLS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a server takes from the model's generation config where a request names none of them."""

CHAT_ONLY = frozenset(
    {
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "documents",
        "reasoning_effort",
        "include_reasoning",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "top_logprobs",
        "max_completion_tokens",
    }
)
"""Fields that only render or parse a chat; meaningless once the prompt is a list of ids."""


@dataclass(frozen=True)
class Note:
    """Something the replay had to do that a reader of the verdict should know."""

    code: str
    message: str


@dataclass(frozen=True)
class ReplayRequest:
    """``body`` to POST to ``path``; ``positions`` is the number of enforced tokens, if known."""

    path: str
    body: dict[str, Any]
    positions: int | None
    k: int
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class ReplayOptions:
    """Choices of the validator's operator.

    ``strict`` refuses what can only be replayed after a guess (case 23); ``allow_text`` lets a
    claim without token ids be tokenised again (case 56); ``logprobs_mode`` is used where the
    claim names none; ``as_model`` is the served name to use whatever the claim says.

    ``path`` chooses how to replay (``replay/paths.py``); on the prefill path ``prefill_top``
    alternatives a position are asked for where the claim has fewer: the choice channel sees no
    further, while distances always compare as many as the claim lists.
    """

    strict: bool = False
    allow_text: bool = False
    logprobs_mode: LogprobsMode | None = None
    as_model: str | None = None
    path: PathChoice = "decode"
    prefill_top: int = DEFAULT_PREFILL_TOP


DEFAULT_OPTIONS = ReplayOptions()


def build_replay_request(claim: Claim, options: ReplayOptions = DEFAULT_OPTIONS) -> ReplayRequest:
    """The replay request of ``claim``.

    Raises ReplayError with blame ``claim`` for claims no engine could run, and with blame
    ``validator`` where the options, or the limits of this software, forbid it.
    """
    notes: list[Note] = []
    body = {key: value for key, value in claim.request.items() if key not in NOT_SAMPLING}
    _defaults(claim, body)
    _one_choice(body, notes)
    path = _prompt(claim, body, options, notes)
    enforced, positions = _enforced(claim, options, notes)
    body.update(enforced)
    k = _k(claim)
    _evidence_fields(path, body, k)
    _length(body, positions, notes)
    mode = claim.logprobs_mode or options.logprobs_mode
    if mode is not None:
        body["logprobs_mode"] = _replayable_mode(mode)
    else:
        body.pop("logprobs_mode", None)
        notes.append(
            Note(
                "mode_not_named",
                "the claim does not say in which log probability mode it was made; the server"
                " infers it, which misjudges tool and JSON answers (case 53);"
                " give --logprobs-mode when you know it",
            )
        )
    return ReplayRequest(path, body, positions, k, tuple(notes))


def _defaults(claim: Claim, body: dict[str, Any]) -> None:
    """Name what the request left to the executor's server, where that says what it filled in: the
    validator's would fill in values of its own, and cut what the executor honestly drew."""
    filled_in = claim.engine.default_sampling_params
    if filled_in is None:
        return
    for name in SERVER_FILLS:
        if body.get(name) is None:
            body[name] = filled_in.get(name, DEFAULTS[name])
    body["top_k"] = int(body["top_k"]) if isinstance(body["top_k"], float) else body["top_k"]


def _one_choice(body: dict[str, Any], notes: list[Note]) -> None:
    if body.get("use_beam_search"):
        raise ReplayError(
            "the claim was made with beam search, whose tokens were not sampled;"
            " there is nothing a replay could compare",
            blame="validator",
            code="not_replayable",
        )
    dropped = sorted(name for name in OUTPUT_SHAPE if _asks(name, body.pop(name, None)))
    if dropped:
        notes.append(
            Note("dropped_fields", f"not sent again, no part of a replay: {', '.join(dropped)}")
        )


def _asks(name: str, value: object) -> bool:
    """True when ``value`` asked for more than one plain choice."""
    if name in ("n", "best_of"):
        return value is not None and value != 1
    return value is not None and value is not False


def _prompt(claim: Claim, body: dict[str, Any], options: ReplayOptions, notes: list[Note]) -> str:
    """Put the prompt into ``body`` and return the route."""
    prompt = claim.prompt
    if prompt.token_ids is None:
        why = "the claim carries no prompt token ids"
        if options.strict:
            raise ReplayError(
                f"{why}; strict mode does not replay a prompt it had to render again (case 23)",
                blame="validator",
                code="no_prompt_ids",
            )
        notes.append(
            Note(
                "prompt_rerendered",
                f"{why}: the validator rendered the prompt again with its own template and"
                " cannot tell whether the executor saw the same one",
            )
        )
    if claim.endpoint == "chat":
        if "messages" not in body and prompt.messages is not None:
            body["messages"] = list(prompt.messages)
        if "messages" in body:
            return "/v1/chat/completions"
    else:
        if "prompt" not in body and prompt.token_ids is None and prompt.text is not None:
            body["prompt"] = prompt.text
        if "prompt" in body:
            return "/v1/completions"
    if prompt.token_ids is None:
        raise ReplayError(
            "the claim has neither a prompt nor prompt token ids; record it with its request",
            blame="validator",
            code="no_prompt",
        )
    for name in CHAT_ONLY:
        body.pop(name, None)
    body["prompt"] = list(prompt.token_ids)
    notes.append(
        Note(
            "prompt_from_ids",
            "the claim has no messages or text: its own prompt ids were run as they are, so the"
            " prompt itself is not checked",
        )
    )
    return "/v1/completions"


def _enforced(
    claim: Claim, options: ReplayOptions, notes: list[Note]
) -> tuple[dict[str, Any], int | None]:
    """The enforcing field of the body, and the number of positions where it is known."""
    if claim.output_ids is not None:
        if not claim.output_ids:
            raise ReplayError(
                "the claim has no output tokens: nothing to force and nothing to compare",
                blame="validator",
                code="no_evidence",
            )
        if len(claim.output_ids) > MAX_POSITIONS:
            raise ReplayError(
                f"the claim has {len(claim.output_ids)} output tokens, more than the"
                f" {MAX_POSITIONS} that one replay can force",
                blame="validator",
                code="trace_too_long",
            )
        tokens = [_token(claim, index, token) for index, token in enumerate(claim.output_ids)]
        return {"enforced_tokens": {"tokens": tokens}}, len(tokens)
    if claim.output_text and options.allow_text and not options.strict:
        notes.append(
            Note(
                "retokenised",
                "the claim has no token ids: its text was tokenised again, and honest servers"
                " lose about 3 % of the positions that way (case 56)",
            )
        )
        return {"enforced_str": claim.output_text}, None
    raise ReplayError(
        "the claim spells its tokens as text and gives no ids; record it with"
        " return_token_ids, or allow tokenising it again with --allow-text",
        blame="validator",
        code="no_token_ids",
    )


def _token(claim: Claim, index: int, token: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"token": f"token_id:{token}"}
    if claim.positions is not None and index < len(claim.positions):
        top = [e.key for e in claim.positions[index].top if isinstance(e.key, int)]
        if top:
            entry["top_tokens"] = [f"token_id:{key}" for key in top[:MAX_TOP_TOKENS]]
    return entry


def _k(claim: Claim) -> int:
    """How many alternatives the claim was asked for; the most it shows where nobody says."""
    asked = claim.request.get("top_logprobs" if claim.endpoint == "chat" else "logprobs")
    if isinstance(asked, int) and not isinstance(asked, bool) and asked >= 0:
        return asked
    return max((len(position.top) for position in claim.positions or ()), default=0)


def _evidence_fields(path: str, body: dict[str, Any], k: int) -> None:
    body["stream"] = False
    body["return_token_ids"] = True
    body["return_tokens_as_token_ids"] = True
    if path.endswith("chat/completions"):
        body["logprobs"] = True
        body["top_logprobs"] = k
    else:
        body["logprobs"] = k


def _length(body: dict[str, Any], positions: int | None, notes: list[Note]) -> None:
    """Stop at the end of the trace. ``min_tokens`` stays, it masks EOS in processed mode; a trace
    shorter than it (a truncated claim) needs a longer replay or the engine refuses the pair."""
    body.pop("max_completion_tokens", None)
    if positions is None:
        return
    least = body.get("min_tokens")
    floor = least if isinstance(least, int) and not isinstance(least, bool) else 0
    body["max_tokens"] = max(positions, floor)
    if floor > positions:
        notes.append(
            Note(
                "shorter_than_min_tokens",
                f"the claim has {positions} tokens although min_tokens was {floor}",
            )
        )


def _replayable_mode(mode: LogprobsMode) -> str:
    if mode in ("raw_logprobs", "processed_logprobs"):
        return mode
    raise ReplayError(
        f"the claim holds {mode}, which are logits and no log probabilities (case 1);"
        " record it in raw_logprobs or processed_logprobs",
        blame="validator",
        code="mode_mismatch",
    )
