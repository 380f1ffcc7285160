"""Which requests make the engine generate, and which must not meet a PoC batch.

Deny by default: a route that is not listed as harmless is taken for one that generates, so a
route that a new vLLM adds is closed with the rest. Exact paths only: any other spelling of a
path is not on the list either.
"""

from __future__ import annotations

import re
from typing import Final

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""vLLM generates on POST and over WebSockets only."""

HARMLESS: Final = frozenset(
    {
        # Text to ids, ids to text, templates: no forward.
        "/tokenize",
        "/detokenize",
        "/v1/messages/count_tokens",
        "/v1/chat/completions/render",
        "/v1/messages/render",
        "/v1/completions/render",
        "/v1/responses/render",
        "/v1/chat/completions/derender",
        "/v1/completions/derender",
        # Health checks and reports.
        "/ping",
        "/is_scaling_elastic_ep",
        "/start_profile",
        "/stop_profile",
        # Ending requests, and emptying caches that PoC does not use.
        "/abort_requests",
        "/inference/v1/abort_requests",
        "/reset_prefix_cache",
        "/reset_mm_cache",
        "/reset_encoder_cache",
        # Waking up: mining never runs while asleep, so this is about a validator's wake-up call.
        "/wake_up",
        "/resume",
    }
)

HARMLESS_PATTERNS: Final = (
    re.compile(r"/v1/responses/[^/]+/cancel"),
    re.compile(r"/api/v1/pow(/[^/]+)+"),
)

TAKES_THE_DEVICE_AWAY: Final = frozenset(
    {
        "/sleep",
        "/pause",
        "/release_kv_cache_memory",
        "/scale_elastic_ep",
        "/fault_tolerance/apply",
        "/start_weight_update",
        "/start_draft_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/init_weight_transfer_engine",
        "/shutdown_weight_transfer_engine",
    }
)
"""Take weights or cache away, or change them. A PoC batch that is sent after such a call would read
freed memory (case 44), so they are refused with 409 while PoC is at work, under either policy."""


def generates(method: str, path: str) -> bool:
    """Whether a request may make the engine generate. ``method`` is ``WEBSOCKET`` for those."""
    if method in SAFE_METHODS or path in HARMLESS or path in TAKES_THE_DEVICE_AWAY:
        return False
    return not any(pattern.fullmatch(path) for pattern in HARMLESS_PATTERNS)


def takes_the_device_away(method: str, path: str) -> bool:
    return method not in SAFE_METHODS and path in TAKES_THE_DEVICE_AWAY
