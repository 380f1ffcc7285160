"""Which claims one forward pass over prompt and answer can replay, and in which mode.

Prompt log probabilities are the raw distributions of the model: no grammar, no sampler. Where
those shaped the claim's numbers, the prefill path has no right answer and says so, and
``--path auto`` decodes instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from assay.claims.claim import Claim, LogprobsMode
from assay.claims.mode_inference import infer_mode, top_ids
from assay.errors import ReplayError
from assay.replay.identity import ServerIdentity
from assay.replay.prefill_sampling import Cuts, Sampling, cuts_of, read_sampling
from assay.replay.request import Note, ReplayOptions

NOT_AVAILABLE = "prefill_not_available"
"""Code of the ReplayError for a claim that only the decode path can replay."""

GRAMMAR_FIELDS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding",
)
"""Request fields that make a grammar, whose mask the engine applies before it takes even the raw
log probabilities (spec replay, section 2)."""

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
"""Content parts of a message that become tokens and nothing else."""


@dataclass(frozen=True)
class PrefillMode:
    """What the numbers of the replay are called, how sure that is, and what has to be done to the
    raw numbers of the prefill for them to be that."""

    mode: LogprobsMode
    source: Literal["explicit", "inferred"]
    cuts: Cuts | None = None
    notes: tuple[Note, ...] = ()


def not_available(why: str) -> ReplayError:
    return ReplayError(
        f"the prefill path cannot replay this claim: {why}; use --path decode (or auto) with a"
        " server that has the plugin",
        blame="validator",
        code=NOT_AVAILABLE,
    )


def check_fits(claim: Claim, body: Mapping[str, Any]) -> None:
    """Raise ReplayError ``prefill_not_available`` for what no prefill can reproduce.

    ``body`` is the claim's request, without what only says how it was called.
    """
    if claim.output_ids is None:
        raise not_available("it spells its tokens as text, and only ids can be prefilled")
    why = _grammar(body) or _prompt(body)
    if why is None and body.get("logprob_token_ids"):
        why = "it lists the ids of logprob_token_ids instead of the likeliest"
    if why is not None:
        raise not_available(why)


def _grammar(body: Mapping[str, Any]) -> str | None:
    what = "a grammar's mask shaped its distributions, also the raw ones"
    for name in GRAMMAR_FIELDS:
        if body.get(name):
            return f"{name}: {what}"
    form = body.get("response_format")
    if form and not (isinstance(form, Mapping) and form.get("type") == "text"):
        return f"response_format: {what}"
    tools, choice = body.get("tools"), body.get("tool_choice")
    if tools and choice is not None and choice not in ("auto", "none"):
        return f"tool_choice: {what}"
    if tools and choice != "none" and any(_is_strict(tool) for tool in tools):
        return f"tools with strict: {what}"
    return None


def _is_strict(tool: object) -> bool:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    return bool(isinstance(function, Mapping) and function.get("strict"))


def _prompt(body: Mapping[str, Any]) -> str | None:
    if body.get("prompt_embeds"):
        return "its prompt is made of embeddings, which have no token ids"
    for message in body.get("messages") or ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, Mapping) else "text"
            if kind not in TEXT_PARTS:
                return f"its prompt has a part of type {kind!r}, and only text can be prefilled"
    return None


def settle_mode(claim: Claim, options: ReplayOptions, server: ServerIdentity) -> PrefillMode:
    """The mode to compare in.

    A claim in processed mode fits where its parameters change nothing, so that processed and raw
    are the same numbers, and where its top-k leaves so few ids that they can all be listed. Raises
    ReplayError ``prefill_not_available`` for other processed claims, and ``validator_unusable`` for
    a server that sends logits.
    """
    if server.mode in ("raw_logits", "processed_logits"):
        raise ReplayError(
            f"the server runs with --logprobs-mode {server.mode} and sends logits for a prompt;"
            " start the validator in raw_logprobs",
            blame="validator",
            code="validator_unusable",
        )
    named = claim.logprobs_mode or options.logprobs_mode
    defaults = claim.engine.default_sampling_params
    if defaults is None:
        defaults = server.default_sampling_params
    sampling = read_sampling(claim.request, defaults)
    shaping = sampling.shaping
    if named == "processed_logprobs":
        return _processed_mode(sampling)
    if named is not None or not shaping:
        return PrefillMode("raw_logprobs", "explicit")
    if infer_mode(top_ids(claim.positions or ())).mode == "processed_logprobs":
        raise not_available(f"it names no mode and looks processed; {_processed(shaping)}")
    return PrefillMode("raw_logprobs", "inferred")


def _processed_mode(sampling: Sampling) -> PrefillMode:
    if not sampling.shaping:
        note = Note(
            "processed_is_raw",
            "the claim is in processed mode and its sampling parameters change no distribution, so"
            " the raw numbers of the prefill are the processed ones",
        )
        return PrefillMode("processed_logprobs", "explicit", notes=(note,))
    cuts = cuts_of(sampling)
    if cuts is None:
        raise not_available(_processed(sampling.shaping))
    note = Note(
        "processed_here",
        "the claim is in processed mode: its temperature, top-k, top-p and min-p were applied to"
        " the raw numbers of the prefill",
    )
    return PrefillMode("processed_logprobs", "explicit", cuts, (note,))


def _processed(shaping: tuple[str, ...]) -> str:
    return (
        "it is in processed mode, and the sampling parameters that shaped it"
        f" ({', '.join(shaping)}) act on more than a prefill returns, unless top_k leaves few ids"
    )
