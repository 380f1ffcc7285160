"""How long an inconclusive claim would have to be."""

from __future__ import annotations

import math

from assay.scoring.choice import Choice, NoChoice
from assay.scoring.choice_rule import counts_of
from assay.scoring.constants import (
    DISTANCE_SHAPE,
    ERROR_RATE,
    FOREIGN_MISMATCH,
    LADDER,
    MIN_INFORMATIVE,
)
from assay.scoring.decision import gamma_below
from assay.scoring.result import Verdict
from assay.scoring.tails import binomial_at_most
from assay.scoring.value_rule import ValueLook

LONGEST = LADDER[-1]
"""Lengths beyond this are not promised."""
SHORT = "too_short_to_tell"


def tokens_needed(verdict: Verdict, look: ValueLook, choice: Choice | NoChoice) -> int | None:
    """Tokens in all after which an inconclusive claim would be decided if it goes on as it began.

    ``None`` for other verdicts, and where something else than length stands in the way.
    """
    if verdict.verdict != "inconclusive" or not verdict.positions:
        return None
    if any(f.effect == "block" for f in look.findings):
        return None
    needs = [
        _for_p(verdict),
        _for_distance(verdict, look) if verdict.p_value is None else None,
        _for_choice(verdict, choice),
    ]
    known = [need for need in needs if need is not None]
    longest = max(known, default=None)
    if longest is None or longest <= verdict.positions or longest > LONGEST:
        return None
    return longest


def _for_p(verdict: Verdict) -> int | None:
    """For a suspicious p-value to reach the rate: log p falls about in step with the length."""
    rate, needs = verdict.fpr, []
    for channel in verdict.channels:
        p = channel.p_value
        if rate is None or channel.outcome != "inconclusive":
            continue
        if channel.code == SHORT:
            share = verdict.informative_positions / verdict.positions
            needs.append(math.ceil(MIN_INFORMATIVE / share) if share else None)
        elif p is not None and 0 < p < 1:
            needs.append(math.ceil(verdict.positions * math.log(rate) / math.log(p)))
    return max((need for need in needs if need is not None), default=None)


def _for_distance(verdict: Verdict, look: ValueLook) -> int | None:
    """For distances that look honest to be no luck, by the rule of ``decision``."""
    decision, limits = look.decision, look.limits
    if decision is None or limits is None or decision.mean is None or not decision.informative:
        return None
    if not any(reason.code == SHORT for reason in verdict.reasons):
        return None
    ratio = decision.mean / limits.pass_limit
    if ratio >= 1:
        return None
    count = MIN_INFORMATIVE
    while count <= LONGEST:
        shape = DISTANCE_SHAPE * count
        if gamma_below(shape, shape * ratio) <= ERROR_RATE:
            return math.ceil(count * verdict.positions / decision.informative)
        count += max(1, count // 16)
    return None


def _for_choice(verdict: Verdict, choice: Choice | NoChoice) -> int | None:
    """For agreement with the seed to be no luck, by the fixed rule of the channel. Only where it
    is what keeps the claim from being decided: without a profile it never is."""
    channel = next((c for c in verdict.channels if c.name == "choice"), None)
    if isinstance(choice, NoChoice) or channel is None or channel.code != SHORT:
        return None
    if not any(reason.code == SHORT for reason in verdict.reasons):
        return None
    counts = counts_of(choice)
    if not counts.contested:
        return None
    share = counts.foreign / counts.contested
    count = max(counts.contested, 1)
    while count <= LONGEST:
        if binomial_at_most(math.ceil(share * count), count, FOREIGN_MISMATCH) <= ERROR_RATE:
            return math.ceil(count * len(choice) / counts.contested)
        count += max(1, count // 16)
    return None
