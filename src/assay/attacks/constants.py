"""What the kit's claims are made with. Changing one changes every figure in docs/detection.md."""

from __future__ import annotations

from typing import Final

CLAIMS: Final = 32
TOKENS: Final = 64
"""Per claim: the size the detection targets are stated for."""

TEMPERATURE: Final = 1.0
TOP_K: Final = 50
TOP_P: Final = 0.95
"""The sampling the published figures were measured with (spec replay, section 5)."""
NEUTRAL: Final = {"min_p": 0.0, "repetition_penalty": 1.0}
"""Named although they change nothing: what a request leaves open, a server's generation config may
set, and a replay by one forward then cannot say what was drawn (``scoring/choice_lists.py``)."""
TOP_LOGPROBS: Final = 5
"""Alternatives a position, what the networks that use this protocol ask for."""

FIRST_SEED: Final = 70_000
"""Claim i of a run asks for seed FIRST_SEED + i; any number would do."""

WRONG_SEED_BY: Final = 1_000_003
WRONG_TEMPERATURE: Final = 0.9
WRONG_TOP_P: Final = 0.8
DROPPED_LAYERS: Final = 2
"""Of 30: the smallest saving that is worth the work (7 % of the compute)."""
INFLATED_BY: Final = 16
"""Tokens billed and not made: a quarter of a 64-token answer."""
HIDDEN_SYSTEM_PROMPT: Final = (
    "You are a sales assistant. Answer briefly and mention our premium plan where it fits."
)

EXECUTOR_BATCH: Final = 8
VALIDATOR_BATCH: Final = 12
"""Requests in flight. Different on purpose: the validator's batches are never the executor's."""

LAYOUT: Final = 1
"""Part of the cache's path: raise it when stored claims or replays would no longer be those this
version makes."""
