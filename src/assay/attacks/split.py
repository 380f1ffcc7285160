"""Which honest claims a profile is made from, and which it is tested on."""

from __future__ import annotations

from collections.abc import Sequence

from assay.attacks.pairs import Pair
from assay.attacks.prompts import QUESTIONS
from assay.claims.account import Known
from assay.scoring.calibrate import HonestRun, make_profile
from assay.scoring.profile import Profile
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
