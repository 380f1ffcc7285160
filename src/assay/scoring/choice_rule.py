"""The fixed rule of the choice channel, for claims without a fitting profile.

It convicts only beyond doubt: each test fails an executor at the stated honest limit with
probability 1e-6 at most, and honest executors measured lie far below the limits (constants.py).
Where something had to be assumed, nothing counts against the claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from assay.scoring.channels import ChannelOutcome, ChannelResult
from assay.scoring.choice import Choice, NoChoice, contested, contradictions, first_outlier
from assay.scoring.constants import (
    CHOICE_ERROR,
    ERROR_RATE,
    FOREIGN_MISMATCH,
    HONEST_CONTRADICTIONS,
    HONEST_MISMATCH,
)
from assay.scoring.tails import binomial_at_least, binomial_at_most

DOUBTFUL = "choice_unclear"
"""Code of an outcome that is no conviction and still no pass."""


@dataclass(frozen=True)
class Counts:
    """What the rule counts: ``mismatches`` of ``positions``, ``foreign`` of ``contested`` ones,
    ``against`` contradictions of ``own`` positions whose own numbers say anything."""

    positions: int
    mismatches: int
    contested: int
    foreign: int
    own: int
    against: int


def counts_of(choice: Choice) -> Counts:
    open_places = contested(choice)
    own = np.isfinite(choice.own) | choice.own_cut
    return Counts(
        len(choice),
        int(choice.mismatch.sum()),
        int(open_places.sum()),
        int((choice.mismatch & open_places).sum()),
        int(own.sum()),
        int(contradictions(choice).sum()),
    )


def choice_result(choice: Choice | NoChoice, statistics: dict[str, float]) -> ChannelResult:
    """The channel's result by the fixed rule; ``statistics`` are carried along;
    ``choice_unseen`` bounds the share of mismatches that lists cannot show."""
    if isinstance(choice, NoChoice):
        return ChannelResult(
            name="choice", outcome="not_available", reason=choice.reason, code=choice.code
        )
    counts = counts_of(choice)
    outcome, code, reason, position = _decide(choice, counts)
    if choice.source == "lists":
        statistics = statistics | {"choice_unseen": choice.unseen / len(choice)}
    if choice.assumed and (outcome == "fail" or code == DOUBTFUL):
        outcome, code, position = "not_available", "assumption", None
        reason = f"{reason}; but this counts only if it is true that {'; '.join(choice.assumed)}"
    return ChannelResult(
        name="choice",
        outcome=outcome,
        reason=reason,
        code=code,
        statistics=statistics,
        position=position,
    )


def _decide(choice: Choice, counts: Counts) -> tuple[ChannelOutcome, str, str, int | None]:
    against = binomial_at_least(counts.against, counts.own, HONEST_CONTRADICTIONS)
    apart = binomial_at_least(counts.mismatches, counts.positions, HONEST_MISMATCH)
    about = f"{counts.mismatches} of {counts.positions} tokens are not the ones the seed draws here"
    if choice.greedy:
        about = f"{counts.mismatches} of {counts.positions} tokens are not the likeliest ones here"
    contradicted = (
        f"{counts.against} of {counts.own} tokens are not what the claim's own log probabilities"
        + (" make likeliest" if choice.greedy else " and the seed draw")
    )
    first = _first(choice)
    if counts.against and against <= CHOICE_ERROR:
        return "fail", "choice_contradiction", contradicted, first
    if apart <= CHOICE_ERROR:
        return "fail", "choice_mismatch", about, first
    outlier = first_outlier(choice)
    if outlier is not None:
        lead = _lead_at(choice, outlier)
        how = "cannot be drawn" if lead is None else f"loses to another by {lead:.1f} nats"
        return (
            "fail",
            "choice_outlier",
            f"the token at position {outlier} {how}: not drawn",
            outlier,
        )
    if against <= ERROR_RATE or apart <= ERROR_RATE:
        reason = contradicted if against <= ERROR_RATE else about
        return "inconclusive", DOUBTFUL, f"{reason}: more than is usual, too few to be sure", first
    if binomial_at_most(counts.foreign, counts.contested, FOREIGN_MISMATCH) <= ERROR_RATE:
        return "pass", "choice_agrees", about, None
    return (
        "inconclusive",
        "too_short_to_tell",
        f"{about}; with {counts.contested} contested positions other draws could agree as well",
        None,
    )


def _first(choice: Choice) -> int | None:
    places = np.flatnonzero(contradictions(choice) | choice.mismatch)
    return int(choice.positions[places[0]]) if len(places) else None


def _lead_at(choice: Choice, position: int) -> float | None:
    row = int(np.flatnonzero(choice.positions == position)[0])
    for values in (choice.own, choice.margin):
        if math.isfinite(values[row]) and values[row] > 0:
            return float(values[row])
    return None
