"""How the answer ended: the finish reason, the end token and its probability."""

from __future__ import annotations

import math

from assay.claims.account.asked import (
    is_set,
    is_shaped,
    least_tokens,
    stop_ids,
    stop_strings,
    temperature,
    token_limit,
)
from assay.claims.account.check import Check, Subject
from assay.claims.account.constants import (
    CUT_STOP_LOGPROB,
    FALSE_STOP_LOGPROB,
    GREEDY_STOP_GAP,
)
from assay.claims.account.counts import tokens_shown
from assay.claims.account.known import End, Known
from assay.claims.account.spelled import UNDECODABLE
from assay.claims.claim import Claim
from assay.claims.positions import IMPOSSIBLE

REASON = Subject("finish_reason", "false_finish_reason")
NO_EOS = "the end ids of the model are not known"
CALLED = ("tool_calls", "function_call")
"""What servers write in place of ``stop`` (or ``length``) when a tool parser found a call."""


def end_ids(claim: Claim, eos_ids: tuple[int, ...] | None) -> frozenset[int]:
    """Ids that end this request, as far as they are known."""
    eos = () if is_set(claim, "ignore_eos") else eos_ids or ()
    return frozenset((*eos, *stop_ids(claim)))


def finish_reason(claim: Claim, known: Known) -> Check:
    """``length`` needs max_tokens or a full context, ``stop`` something that stops."""
    tokens = tokens_shown(claim)
    if tokens is None:
        return REASON.unknown("the number of output tokens is not known")
    if claim.finish_reason == "length":
        return _length(claim, known, tokens)
    if claim.finish_reason == "stop":
        return _stop(claim, known)
    if claim.finish_reason in CALLED:
        return _called(claim, known, tokens)
    return REASON.unknown(f"nothing to check for the finish reason {claim.finish_reason or 'none'}")


def _called(claim: Claim, known: Known, tokens: int) -> Check:
    """A call found by a parser replaces either reason; it is false only when both would be."""
    cut, stopped = _length(claim, known, tokens), _stop(claim, known)
    if cut.outcome == "pass" or (cut.outcome == "not_available" and stopped.outcome == "fail"):
        return cut
    return stopped


def _length(claim: Claim, known: Known, tokens: int) -> Check:
    limit = token_limit(claim)
    if limit is not None and tokens >= limit:
        return REASON.holds(f"stopped at max_tokens {limit}")
    prompt = claim.usage.prompt_tokens
    if claim.prompt.token_ids is not None:
        prompt = len(claim.prompt.token_ids)
    # The executor's own context, which may be larger or smaller than the validator's.
    context = claim.engine.max_model_len or known.max_model_len
    if prompt is not None and context is not None and prompt + tokens >= context:
        return REASON.holds(f"stopped at the context length {context}")
    if limit is None or prompt is None or context is None:
        return REASON.unknown(
            "length: needs max_tokens, the prompt length and the context length of the executor"
        )
    return REASON.fails(
        f"finish reason length after {tokens} tokens, below max_tokens {limit} and the context"
        f" {context}: the answer was truncated"
    )


def _stop(claim: Claim, known: Known) -> Check:
    if not claim.output_ids:
        return REASON.unknown("stop: needs output ids")
    last = claim.output_ids[-1]
    if last in end_ids(claim, known.eos_ids):
        return REASON.holds(f"stopped at id {last}")
    by_string = _stop_string(claim, known)
    if by_string is not None:
        return by_string
    if known.eos_ids is None:
        return REASON.unknown(f"stop: {known.why_not('eos_ids', NO_EOS)}")
    if claim.usage.completion_tokens == len(claim.output_ids) + 1:
        return REASON.unknown("the position of the end token is not in the claim")
    return REASON.fails(
        f"finish reason {claim.finish_reason}, but the last id {last} ends nothing: the answer was"
        " truncated",
        len(claim.output_ids) - 1,
    )


def _stop_string(claim: Claim, known: Known) -> Check | None:
    """``None`` where no stop string ended the answer."""
    strings, decoded = stop_strings(claim), known.decoded_output
    if not strings:
        return None
    if decoded is None:
        why = known.why_not("decoded_output", "the ids were not decoded")
        return REASON.unknown(f"the request has stop strings: {why}")
    found = next((text for text in strings if text in decoded), None)
    if found is not None:
        return REASON.holds(f"stopped at the stop string {found!r}")
    if UNDECODABLE in decoded:
        return REASON.unknown("the output holds bytes that are no text; a stop string may too")
    return None


def end_inside(claim: Claim, known: Known) -> Check:
    """Tokens after an end id were never sampled by this request: padding."""
    check = Subject("end_inside", "tokens_after_end")
    if not claim.output_ids or known.eos_ids is None:
        why = (
            known.why_not("eos_ids", NO_EOS) if claim.output_ids else "the claim has no output ids"
        )
        return check.unknown(why)
    if is_set(claim, "ignore_eos"):
        return check.unknown("the request has ignore_eos")
    start = least_tokens(claim)
    doubtful = None
    for index, token in enumerate(claim.output_ids[:-1]):
        if index < start or token not in known.eos_ids:
            continue
        if token == known.eos_ids[0] or token in stop_ids(claim):
            after = len(claim.output_ids) - 1 - index
            return check.fails(f"{after} tokens follow the end id {token}", index)
        doubtful = token
    if doubtful is not None:
        return check.unknown(
            f"tokens follow id {doubtful}, an end only for servers that use the model's generation"
            " config"
        )
    return check.holds("no end id before the last token")


def end_probability(claim: Claim, known: Known) -> Check:
    """An end token that the validator finds next to impossible was put there, not drawn.

    An executor that cuts an answer short and writes an end behind it shows here. The limits and
    what an honest server risks: ``constants.py``.
    """
    check = Subject("end_probability", "false_stop")
    if claim.finish_reason not in ("stop", *CALLED) or not claim.output_ids:
        return check.unknown("the answer does not claim to have ended by itself")
    last = len(claim.output_ids) - 1
    if claim.output_ids[last] not in end_ids(claim, known.eos_ids):
        why = "" if known.eos_ids else f": {known.why_not('eos_ids', NO_EOS)}"
        return check.unknown(f"the last id is no end id that is known{why}")
    end = known.end
    if end is None:
        return check.unknown("needs a replay that shows the end token's probability")
    values = (end.raw, end.best_raw, end.processed, end.best_processed)
    if any(value is not None and (math.isnan(value) or value == math.inf) for value in values):
        return check.unknown("the replay's log probabilities of the end token are not finite")
    if temperature(claim) == 0:
        return _greedy(check, claim, end, last)
    return _drawn(check, claim, end, last)


def _greedy(check: Subject, claim: Claim, end: End, last: int) -> Check:
    value, best = end.processed, end.best_processed
    if (value is None or best is None) and not is_shaped(claim):
        value, best = end.raw, end.best_raw
    if value is None or best is None:
        return check.unknown("the replay does not show by how much another token was likelier")
    gap = best - value if value != IMPOSSIBLE else math.inf
    if gap > GREEDY_STOP_GAP:
        return check.fails(
            f"a greedy answer ends here only at the likeliest token, and another beats the end"
            f" token by {gap:.1f} nats (more than {GREEDY_STOP_GAP}): the answer was truncated",
            last,
        )
    return check.holds(f"the end token is within {max(gap, 0):.2f} nats of the likeliest")


def _drawn(check: Subject, claim: Claim, end: End, last: int) -> Check:
    """Sampled: the probability after the sampler, or what the raw numbers bound it by."""
    if end.processed is not None and end.processed != IMPOSSIBLE:
        return _likely(check, end.processed, FALSE_STOP_LOGPROB, last)
    bound = _bound(claim, end)
    if bound is None:
        return check.unknown("the replay does not bound the probability of the end token")
    if end.processed is None:
        return _likely(check, bound, FALSE_STOP_LOGPROB, last)
    if bound < CUT_STOP_LOGPROB:
        return _likely(check, bound, CUT_STOP_LOGPROB, last)
    return check.unknown(
        "the validator's sampler cuts the end token off here, at the edge of what honest engines"
        " agree about"
    )


def _bound(claim: Claim, end: End) -> float | None:
    """Upper bound of the end token's log probability at temperature T, whatever is cut off.

    The likeliest token is never cut, so p(end) <= p(end)/p(best) = exp((raw - best_raw) / T).
    """
    heat = temperature(claim)
    if end.raw is None or end.best_raw is None or not heat or is_shaped(claim):
        return None
    return (end.raw - end.best_raw) / heat if end.raw != IMPOSSIBLE else IMPOSSIBLE


def _likely(check: Subject, logprob: float, limit: float, last: int) -> Check:
    if logprob < limit:
        return check.fails(
            f"the end token has a probability of {math.exp(logprob):.1e} here (below"
            f" {math.exp(limit):.0e}): nothing drew it, the answer was truncated",
            last,
        )
    return check.holds(f"the end token's probability is {math.exp(min(logprob, 0.0)):.2g}")
