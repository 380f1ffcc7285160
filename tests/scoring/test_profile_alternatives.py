"""A profile of five alternatives a position does not judge claims of one (kind nondeterminism)."""

from __future__ import annotations

from tests.scoring.draw_sides import World, claim_by, prefill_replay

from assay.claims.claim import Claim, Replay
from assay.scoring.measure import measure
from assay.scoring.profile import Group, Profile
from assay.scoring.profile_key import ProfileKey
from assay.scoring.samples import record_of
from assay.scoring.verdict import judge


def honest(number: int, k: int) -> tuple[Claim, Replay]:
    world = World(number=number, extra={"logprobs": k})
    claim = claim_by(world, world.engine(0.05, 1), k=k)
    return claim, prefill_replay(world, claim, world.engine(0.05, 2), k=k)


def test_honest_claims_of_another_number_of_alternatives_do_not_meet_a_profile() -> None:
    """They failed: of 12 honest claims of one alternative 4 were convicted by a profile of five."""
    pairs = [honest(number, 5) for number in range(24)]
    profile = Profile(
        name="five",
        path="prefill",
        mode="raw_logprobs",
        groups=(
            Group(
                key=ProfileKey.of(*pairs[0]),
                records=tuple(record_of(measure(*pair), str(i)) for i, pair in enumerate(pairs)),
            ),
        ),
    )
    same = judge(*honest(500, 5), profile=profile, allow_unknown=True)
    assert same.profile == profile.id
    for number in range(500, 506):
        other = judge(*honest(number, 1), profile=profile, allow_unknown=True)
        assert other.profile is None
        assert "number of alternatives a position is 1, the profile's 5" in (
            other.calibration or ""
        )
        assert other.verdict != "fail"
