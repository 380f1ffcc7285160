"""Which honest claims a profile is made from, and which it is tested on."""

from __future__ import annotations

from collections.abc import Sequence

from assay.attacks.pairs import Pair
from assay.attacks.prompts import QUESTIONS
from assay.claims.account import Known
from assay.scoring.calibrate import HonestRun, make_profile
from assay.scoring.constants import TAIL_MIN_CLAIMS
from assay.scoring.profile import Profile
from assay.scoring.profile_key import ProfileKey
from assay.scoring.verdict import judge


def index_of(pair: Pair) -> int:
    """Number of the claim in its run, from its id."""
    return int(pair.claim.id.rsplit("-", 1)[1])


def calibrates(pair: Pair) -> bool:
    """Whether the claim goes into the profile; the others test it.

    By question, two and two in turn: no question is on both sides, and both sides have English
    and other languages in equal parts.
    """
    return index_of(pair) % len(QUESTIONS) // 2 % 2 == 0


def large_enough(honest: Sequence[Pair]) -> list[Pair]:
    """The pairs whose conditions have enough claims for a fitted tail.

    With fewer, a p-value is a rank and never below 1/(claims + 1), which convicts nobody at a small
    rate. Claims under conditions left out here are judged by the published thresholds and fixed
    rules, and their verdicts say so.
    """
    groups: dict[ProfileKey, list[Pair]] = {}
    for pair in honest:
        groups.setdefault(ProfileKey.of(pair.claim, pair.replay), []).append(pair)
    kept = (group for group in groups.values() if len(group) >= TAIL_MIN_CLAIMS)
    return [pair for group in kept for pair in group]


def profile_of(name: str, honest: Sequence[Pair], known: Known) -> Profile:
    """A profile of one path and mode, as ``assay calibrate`` makes it from verified claims.

    Raises ProfileError without enough pairs of every condition.
    """
    return make_profile(
        name,
        [
            HonestRun(
                pair.claim.id,
                pair.claim,
                pair.replay,
                judge(pair.claim, pair.replay, kind="enforced", known=known),
            )
            for pair in honest
        ],
    )
