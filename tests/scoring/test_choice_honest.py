"""What an honest claim may show and what a claim may not hide, found by reading the rules as an
adversary (kind audit)."""

from __future__ import annotations

import pytest
from tests.scoring.draw_sides import (
    PROMPT,
    World,
    claim_by,
    decode_replay,
    noise_of,
    prefill_replay,
    processed,
    tokens_of,
)

from assay.claims.claim import Claim, Prompt, Usage
from assay.claims.digest import prompt_digest
from assay.scoring.choice import Choice, choose, contradictions, first_outlier
from assay.scoring.verdict import judge

LONGER = (*PROMPT, 9)


def without_ids(claim: Claim, *, counted: int | None, digest: str | None = None) -> Claim:
    """What a server says that does not return the prompt's ids."""
    usage = Usage(prompt_tokens=counted, completion_tokens=claim.usage.completion_tokens)
    return claim.model_copy(update={"prompt": Prompt(digest=digest), "usage": usage})


@pytest.mark.parametrize(
    "claimed",
    [{"counted": len(PROMPT)}, {"counted": None, "digest": prompt_digest(PROMPT)}],
)
def test_a_prompt_known_to_be_another_is_never_held_against_the_tokens(
    claimed: dict[str, object],
) -> None:
    """A template with a date renders one token more on another day: every draw of runner V2 is then
    placed one further. Before, such a claim failed with ``choice_contradiction``."""
    world = World()
    claim = without_ids(claim_by(world, world.logits), **claimed)  # type: ignore[arg-type]
    for replay in (
        decode_replay(world, claim, world.logits),
        prefill_replay(world, claim, world.logits),
    ):
        verdict = judge(claim, replay.model_copy(update={"prompt_token_ids": LONGER}))
        assert verdict.verdict == "inconclusive"
        assert {reason.code for reason in verdict.reasons} == {"prompt_mismatch"}
        assert judge(claim, replay).verdict == "pass"


@pytest.mark.parametrize("usage", [Usage(), Usage(completion_tokens=20)])
def test_evidence_of_a_part_of_the_answer_is_no_evidence_of_it(usage: Usage) -> None:
    """64 token ids with log probabilities of the first 20 passed, whatever the other 44 are."""
    world = World()
    claim = claim_by(world, world.logits)
    part = claim.model_copy(update={"positions": (claim.positions or ())[:20], "usage": usage})
    verdict = judge(part, decode_replay(world, claim, world.logits))
    assert verdict.verdict == "fail"
    assert verdict.reasons[0].code == "position_gap"


def test_a_chosen_id_beside_the_list_cannot_claim_to_be_the_likeliest() -> None:
    """Laundered text hid its contradictions: the chosen id left out of the list, and its own log
    probability, which no distance compares, reported as 0."""
    world = World()
    cheap = tokens_of(world.engine(1.0), world)
    claim = claim_by(world, world.logits, tokens=cheap, k=20)
    hidden = tuple(
        position.model_copy(
            update={
                "logprob": 0.0,
                "top": tuple(e for e in position.top if e.key != position.token),
            }
        )
        for position in claim.positions or ()
    )
    forged = claim.model_copy(update={"positions": hidden})
    choice = choose(forged, prefill_replay(world, claim, world.logits))
    assert isinstance(choice, Choice)
    assert contradictions(choice).sum() >= 8


def test_near_ties_at_a_low_temperature_are_no_outlier() -> None:
    """Engines that differ by 0.3 nats differ by 15 at temperature 0.02. Without a mode the claim's
    own numbers say nothing, so that a single such token convicted an honest executor."""
    for number in range(20):
        world = World(temperature=0.02, number=number)
        claim = claim_by(world, world.engine(0.3, 1)).model_copy(update={"logprobs_mode": None})
        choice = choose(claim, decode_replay(world, claim, world.engine(0.3, 2)))
        assert isinstance(choice, Choice)
        assert first_outlier(choice) is None
    far = World(temperature=1.0)
    put = [int(i) for i in (processed(far.logits, far) + noise_of(far)).argmin(axis=1)]
    claim = claim_by(far, far.logits, tokens=put).model_copy(update={"logprobs_mode": None})
    choice = choose(claim, decode_replay(far, claim, far.logits))
    assert isinstance(choice, Choice)
    assert first_outlier(choice) == 0
