"""Fields of the request that the checks need. It is whatever the caller sent: types are checked."""

from __future__ import annotations

from assay.claims.account.constants import LEAST_TEMPERATURE
from assay.claims.claim import Claim


def whole_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def token_limit(claim: Claim) -> int | None:
    """``max_completion_tokens``, else ``max_tokens``."""
    for field in ("max_completion_tokens", "max_tokens"):
        value = whole_number(claim.request.get(field))
        if value is not None:
            return value
    return None


def least_tokens(claim: Claim) -> int:
    return max(whole_number(claim.request.get("min_tokens")) or 0, 0)


def stop_ids(claim: Claim) -> tuple[int, ...]:
    value = claim.request.get("stop_token_ids")
    found = map(whole_number, value) if isinstance(value, list) else ()
    return tuple(token for token in found if token is not None)


def stop_strings(claim: Claim) -> tuple[str, ...]:
    value = claim.request.get("stop")
    values = value if isinstance(value, list) else [value]
    return tuple(text for text in values if isinstance(text, str) and text)


def is_set(claim: Claim, field: str) -> bool:
    return claim.request.get(field) is True


def may_call_tools(claim: Claim) -> bool:
    """True where a tool parser may have taken something out of the text."""
    asked = bool(claim.request.get("tools") or claim.request.get("functions"))
    return asked and claim.request.get("tool_choice") != "none"


def temperature(claim: Claim) -> float | None:
    """What the engine divides by; 0 for greedy. ``None`` where the request does not say it: a
    server's default may be any."""
    value = claim.request.get("temperature")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        return None
    return max(float(value), LEAST_TEMPERATURE) if value else 0.0


SHAPES = (
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "structured_outputs",
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "logits_processors",
    "vllm_xargs",
)
"""Fields that move log probabilities in other ways than temperature and cut-offs do."""


def is_shaped(claim: Claim) -> bool:
    """True where raw log probabilities bound nothing about what the sampler drew from."""
    tools = claim.request.get("tool_choice") not in (None, "none", "auto")
    return tools or any(not _is_neutral(name, claim.request.get(name)) for name in SHAPES)


def _is_neutral(name: str, value: object) -> bool:
    if name == "repetition_penalty":
        return value is None or value == 1
    return value in (None, 0, {}, []) or value == {"type": "text"}
