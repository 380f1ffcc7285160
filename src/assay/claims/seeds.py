"""A request's seed from a public beacon, so that nobody could try several.

Who picks the seed can *grind*: try seeds until a cheap model's draws happen to be the real
model's, or until an answer suits him. A seed that follows from a beacon (a block hash, a drand
round) published after the request was fixed, and from the request itself, leaves nothing to pick.

Formula (all lengths and numbers little-endian unsigned 64-bit, text in UTF-8)::

    request_digest = SHA-256("vllm-assay/request/v1\\0" || canonical request)
    seed = first 8 bytes, big-endian, of
           SHA-256("vllm-assay/seed/v1\\0" || length(beacon) || beacon || request_digest || index)
           shifted right by 11 bits

The result is in [0, 2^53), which every JSON library carries exactly. vLLM takes any signed 64-bit
integer and reads -1 as "none"; torch's generators take the range whole (a CPU's uses its low 32
bits).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from typing import Any, Final

from assay.claims.claim import Claim
from assay.errors import ClaimError

_REQUEST_DOMAIN: Final = b"vllm-assay/request/v1\0"
_SEED_DOMAIN: Final = b"vllm-assay/seed/v1\0"

NOT_DIGESTED: Final = frozenset(
    {
        "seed",
        # how the answer travels
        "stream",
        "stream_options",
        "request_id",
        "priority",
        # whom it is billed to
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "cache_salt",
        "kv_transfer_params",
        # what is returned beside the tokens
        "logprobs",
        "top_logprobs",
        "logprobs_mode",
        "prompt_logprobs",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "enforced_tokens",
        "enforced_str",
    }
)
"""Request fields outside the digest: the seed itself, and what may change on the way without
changing what the model is asked. Everything else counts, fields unknown here too."""


@dataclass(frozen=True)
class SeedCheck:
    """Whether a claim's seed is the beacon's. ``reason`` says why not, or that it is."""

    ok: bool
    reason: str


def canonical_request(request: dict[str, Any]) -> bytes:
    """The request as UTF-8 JSON that equal requests share.

    Keys sorted by code point, no white space, fields of :data:`NOT_DIGESTED` and top-level nulls
    left out, whole floats below 2^53 written as integers and other floats with the fewest digits
    that read back equal. Raises ClaimError for what JSON cannot hold (NaN, infinities, lone
    surrogates).
    """
    kept = {
        name: _plain(value)
        for name, value in request.items()
        if name not in NOT_DIGESTED and value is not None
    }
    try:
        text = json.dumps(
            kept, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()
    except (TypeError, ValueError) as error:
        raise ClaimError(f"has no canonical JSON form: {error}", field="request") from error


def request_digest(request: dict[str, Any]) -> bytes:
    """32 bytes: SHA-256 of the canonical request under its own domain."""
    return hashlib.sha256(_REQUEST_DOMAIN + canonical_request(request)).digest()


def derive_seed(beacon: str, request: dict[str, Any], index: int = 0) -> int:
    """The seed of ``request`` under ``beacon``, in [0, 2^53).

    ``index`` tells requests apart that are equal and must not draw alike (samples of one prompt);
    whoever checks must know it from elsewhere, or it could be ground. Raises ClaimError for an
    empty beacon or an index outside [0, 2^64).
    """
    if not beacon:
        raise ClaimError("is empty, and everybody knows that in advance", field="beacon")
    if not 0 <= index < 1 << 64:
        raise ClaimError(f"{index} is not in [0, 2^64)", field="index")
    spoken = _utf8(beacon)
    text = b"".join(
        (
            _SEED_DOMAIN,
            struct.pack("<Q", len(spoken)),
            spoken,
            request_digest(request),
            struct.pack("<Q", index),
        )
    )
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 11


def verify_seed(claim: Claim, beacon: str, index: int = 0) -> SeedCheck:
    """Whether the claim's request carries the seed that ``beacon`` gives it."""
    seed = claim.request.get("seed")
    if not isinstance(seed, int) or isinstance(seed, bool):
        return SeedCheck(False, "the claim's request has no seed")
    expected = derive_seed(beacon, claim.request, index)
    if seed != expected:
        return SeedCheck(
            False,
            f"the claim's seed is {seed} and the beacon gives {expected}: somebody chose it, or the"
            " request is not the one that was asked",
        )
    return SeedCheck(True, "the claim's seed follows from the beacon and the request")


def _utf8(beacon: str) -> bytes:
    try:
        return beacon.encode()
    except UnicodeEncodeError as error:
        raise ClaimError(
            f"is no text that UTF-8 can hold: {error.reason}", field="beacon"
        ) from error


def _plain(value: Any) -> Any:
    """Whole floats as integers, at any depth: 1.0 and 1 are the same temperature."""
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value) if abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
