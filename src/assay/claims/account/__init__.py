"""The account channel: what a claim says about itself, checked without an engine.

It sees what the distributions cannot (spec replay, section 5): truncation, padded or inflated
counts, a false stop reason, another prompt, edited text. ``docs/account.md`` lists the checks.
"""

from __future__ import annotations

from assay.claims.account.check import Check, Outcome
from assay.claims.account.constants import INFLATION_TOLERANCE
from assay.claims.account.counts import (
    ids_in_range,
    inflated,
    max_tokens,
    min_tokens,
    output_count,
    usage_total,
)
from assay.claims.account.ending import end_inside, end_probability, finish_reason
from assay.claims.account.known import End, Known, with_replay
from assay.claims.account.prompt import prompt_count, prompt_digest_check, prompt_ids, prompt_render
from assay.claims.account.seed import beacon_seed
from assay.claims.account.text import text
from assay.claims.account.tools import tool_calls
from assay.claims.claim import Claim

__all__ = [
    "INFLATION_TOLERANCE",
    "Check",
    "End",
    "Known",
    "Outcome",
    "check_account",
    "with_replay",
]

_CHECKS = (
    output_count,
    inflated,
    usage_total,
    ids_in_range,
    max_tokens,
    min_tokens,
    finish_reason,
    end_inside,
    end_probability,
    prompt_ids,
    prompt_digest_check,
    prompt_render,
    prompt_count,
    text,
    tool_calls,
)


def check_account(claim: Claim, known: Known) -> tuple[Check, ...]:
    """Every account check, in a fixed order. Pure: what needs a server is in ``known``.

    The seed is held against a beacon only where the validator demands one.
    """
    demanded = () if known.beacon is None else (beacon_seed,)
    return tuple(check(claim, known) for check in (*_CHECKS, *demanded))
