"""Numbers that must agree: positions, ids, usage, and the limits of the request."""

from __future__ import annotations

from assay.claims.account.asked import least_tokens, token_limit
from assay.claims.account.check import Check, Subject
from assay.claims.account.constants import INFLATION_TOLERANCE
from assay.claims.account.known import Known
from assay.claims.claim import Claim


def tokens_shown(claim: Claim) -> int | None:
    """Output tokens of which the claim holds ids or positions; its own count without any."""
    if claim.output_ids is not None:
        return len(claim.output_ids)
    if claim.positions:
        return len(claim.positions)
    return claim.usage.completion_tokens


def output_count(claim: Claim, known: Known) -> Check:
    """Positions and ids against usage.completion_tokens."""
    check = Subject("output_count", "position_gap")
    counted, ids, positions = claim.usage.completion_tokens, claim.output_ids, claim.positions
    # One end token may lack its position (case 9); what else lacks one was kept from comparison.
    spare = 1 if claim.finish_reason == "stop" else 0
    if ids is not None and positions and abs(len(ids) - len(positions)) > spare:
        return check.fails(
            f"the claim has {len(ids)} token ids and log probabilities of {len(positions)}: evidence"
            " is missing"
        )
    if counted is None:
        return check.unknown("the claim has no usage.completion_tokens")
    if not claim.positions and claim.output_ids is None:
        return check.unknown("the claim has no token ids and no positions to count")
    held = len(claim.positions) if claim.positions else len(claim.output_ids or ())
    if held == counted or (counted == held + 1 and _may_lack_end(claim, known)):
        return check.holds(f"{held} positions, {counted} tokens counted")
    return check.fails(
        f"the claim counts {counted} output tokens and shows {held}: evidence is missing"
        if held < counted
        else f"the claim shows {held} output tokens and counts only {counted}"
    )


def _may_lack_end(claim: Claim, known: Known) -> bool:
    """A server may be unable to name the end token and leave its position out (case 9). Where the
    last id is an end, nothing was left out."""
    ends = known.eos_ids or ()
    shown = bool(claim.output_ids) and (claim.output_ids or ())[-1] in ends
    return claim.finish_reason == "stop" and not shown


def inflated(claim: Claim, known: Known) -> Check:
    """Claimed usage against the replay."""
    check = Subject("inflated", "inflated")
    counted = claim.usage.completion_tokens
    if counted is None or known.replayed_tokens is None:
        return check.unknown("needs usage.completion_tokens and a replay")
    if counted - known.replayed_tokens > INFLATION_TOLERANCE:
        return check.fails(
            f"the claim counts {counted} output tokens, the replay {known.replayed_tokens}: more"
            f" than the {INFLATION_TOLERANCE} that are tolerated"
        )
    return check.holds(f"{counted} tokens counted, {known.replayed_tokens} replayed")


def usage_total(claim: Claim, known: Known) -> Check:
    """usage.total_tokens is the sum of the two other counts."""
    check = Subject("usage_total", "usage_total")
    usage = claim.usage
    if usage.total_tokens is None or usage.prompt_tokens is None or usage.completion_tokens is None:
        return check.unknown("needs all three counts of usage")
    total = usage.prompt_tokens + usage.completion_tokens
    if usage.total_tokens == total:
        return check.holds(f"{total} tokens in all")
    return check.fails(
        f"usage.total_tokens is {usage.total_tokens}, which is not {usage.prompt_tokens} prompt and"
        f" {usage.completion_tokens} output tokens together"
    )


def ids_in_range(claim: Claim, known: Known) -> Check:
    """Chosen ids and alternatives; an id from -1 down is out of range in every vocabulary."""
    check = Subject("ids_in_range", "out_of_vocabulary")
    ids = list(enumerate(claim.output_ids or ()))
    for index, position in enumerate(claim.positions or ()):
        keys = [position.token, *(entry.key for entry in position.top)]
        ids.extend((index, key) for key in keys if isinstance(key, int))
    if not ids:
        return check.unknown("the claim has no token ids")
    size = known.vocab_size
    for index, token in ids:
        if token < 0 or (size is not None and token >= size):
            limit = "from 0" if size is None else f"in [0, {size})"
            return check.fails(f"id {token} is not {limit}: no engine can have sampled it", index)
    if size is None:
        return check.unknown("the size of the vocabulary is not known; no id is negative")
    return check.holds(f"all ids in [0, {size})")


def max_tokens(claim: Claim, known: Known) -> Check:
    check = Subject("max_tokens", "over_max_tokens")
    limit, tokens = token_limit(claim), tokens_shown(claim)
    if limit is None or tokens is None:
        return check.unknown("needs max_tokens of the request and a token count")
    if tokens > limit:
        return check.fails(f"{tokens} output tokens although max_tokens was {limit}")
    return check.holds(f"{tokens} output tokens, max_tokens {limit}")


def min_tokens(claim: Claim, known: Known) -> Check:
    """No engine may end an answer before min_tokens: it makes the end tokens impossible until
    then, and refuses a request whose limit or context leaves no room for them."""
    check = Subject("min_tokens", "under_min_tokens")
    least, limit, shown = least_tokens(claim), token_limit(claim), tokens_shown(claim)
    if least == 0:
        return check.unknown("the request has no min_tokens")
    if shown is None or claim.finish_reason not in ("stop", "length", "tool_calls"):
        return check.unknown("needs a token count and a finish reason of stop or length")
    if limit is not None and limit < least:
        return check.unknown(f"the request contradicts itself: max_tokens {limit}, min {least}")
    # An end token that could not be named counts too (case 9).
    tokens = max(shown, claim.usage.completion_tokens or 0)
    if tokens < least:
        return check.fails(
            f"finish reason {claim.finish_reason} after {tokens} tokens although min_tokens was"
            f" {least}: the answer was truncated"
        )
    return check.holds(f"{tokens} output tokens, min_tokens {least}")
