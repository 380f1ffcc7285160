"""The published rule as the networks run it, next to our own verdict.

It is here to agree with them to the last digit, faults included: short claims borrow similarity
(``MIN_POSITIONS``), one free generation judged as if it were an enforced replay fails an honest
node (``different_tokens``), and padding counts as agreement. Use ``assay.scoring.verdict.judge`` to
decide anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from assay.claims.account import INFLATION_TOLERANCE
from assay.claims.claim import Claim, Replay
from assay.scoring.arrays import build_arrays
from assay.scoring.constants import DEFAULT_THRESHOLD
from assay.scoring.signals import first_disagreement
from assay.scoring.value import published_distances, similarity_first, similarity_second

Stage = Literal[
    "similarity", "different_tokens", "different_length", "inflated", "invalid", "nothing_to_verify"
]
"""Where the published rule stops; only ``similarity`` has a number to compare with a threshold."""


@dataclass(frozen=True)
class PublishedVerdict:
    """``stage`` is what the chain calls the verdict's kind; ``valid`` whether the claim is accepted.

    ``similarity`` is that of the positions before the tokens part, ``None`` without any; it only
    decides at stage ``similarity``. ``positions`` is their number.
    """

    stage: Stage
    valid: bool
    similarity: float | None
    positions: int


def published_verdict(
    claim: Claim,
    replay: Replay,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    generation: Literal[1, 2] = 2,
) -> PublishedVerdict:
    """The published rule (spec replay, section 4), in its order.

    No log probabilities on both sides: nothing to verify; on exactly one: invalid. Fewer
    validator positions than claimed: different_length; any id differs: different_tokens; claimed
    usage above the replayed by more than 3: inflated. Else valid iff similarity > threshold.
    """
    ours, theirs = claim.positions or (), replay.positions or ()
    if not ours or not theirs:
        nothing = not ours and not theirs
        return PublishedVerdict("nothing_to_verify" if nothing else "invalid", False, None, 0)
    parted = first_disagreement(ours, theirs)
    shared = min(len(ours), len(theirs)) if parted is None else parted
    arrays = build_arrays(ours[:shared], theirs[:shared])
    if shared and not arrays.comparable.all():
        # An empty list of alternatives is an error on the chain, and an error is similarity 0.
        similarity: float | None = 0.0
    elif shared:
        distances = published_distances(arrays)
        similarity = (
            similarity_first(arrays, distances) if generation == 1 else similarity_second(distances)
        )
    else:
        similarity = None
    stage = _stage(claim, replay, parted)
    valid = stage == "similarity" and similarity is not None and similarity > threshold
    return PublishedVerdict(stage, valid, similarity, shared)


def _stage(claim: Claim, replay: Replay, parted: int | None) -> Stage:
    ours, theirs = claim.positions or (), replay.positions or ()
    if len(theirs) < len(ours):
        return "different_length"
    if parted is not None:
        return "different_tokens"
    claimed, replayed = claim.usage.completion_tokens, replay.usage.completion_tokens
    if claimed is not None and replayed is not None and claimed > replayed + INFLATION_TOLERANCE:
        return "inflated"
    return "similarity"
