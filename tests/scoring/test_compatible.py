"""The published rule, as the networks run it."""

from __future__ import annotations

from typing import Literal

import pytest
from tests.scoring.sides import (
    claim_of,
    needs_data,
    positions,
    recorded_pair,
    recorded_pairs,
    replay_of,
)

from assay.claims.claim import Usage
from assay.claims.positions import Position
from assay.scoring.compatible import published_verdict


@needs_data
@pytest.mark.parametrize("generation", [1, 2])
def test_recorded_verdicts_of_all_rows(generation: Literal[1, 2]) -> None:
    rows = 0
    for pair in recorded_pairs():
        found = published_verdict(pair.claim, pair.replay, threshold=0.90, generation=generation)
        assert found.stage == pair.row["full_chain_verdict"], pair.name
        assert ("pass" if found.valid else "fail") == pair.row["verdict_at_0.90"], pair.name
        rows += 1
    assert rows == 62


@needs_data
def test_case_35_the_prefix_of_honest_natural_pairs_passes_the_published_threshold() -> None:
    seen = 0
    for pair in recorded_pairs():
        if pair.row["full_chain_verdict"] == "different_tokens":
            found = published_verdict(pair.claim, pair.replay, threshold=0.922)
            assert found.similarity is not None
            assert found.similarity > 0.922
            assert not found.valid
            seen += 1
    assert seen > 20


@needs_data
def test_ten_positions_of_a_fraud_pass_the_published_rule() -> None:
    pair = recorded_pair("awq_int4_vs_fp8")
    assert pair.claim.positions is not None
    short = pair.claim.model_copy(
        update={"positions": pair.claim.positions[:10], "usage": Usage(completion_tokens=10)}
    )
    found = published_verdict(short, pair.replay, threshold=0.99)
    assert found.valid
    assert found.positions == 10


def test_evidence_on_one_side_is_invalid_and_on_none_nothing_to_verify() -> None:
    some = positions(3)
    assert published_verdict(claim_of(None), replay_of(some)).stage == "invalid"
    assert published_verdict(claim_of(some), replay_of(())).stage == "invalid"
    nothing = published_verdict(claim_of(()), replay_of(None))
    assert nothing.stage == "nothing_to_verify"
    assert not nothing.valid


@pytest.mark.parametrize(("claimed", "stage"), [(6, "similarity"), (7, "inflated")])
def test_usage_may_exceed_the_replay_by_three(claimed: int, stage: str) -> None:
    some = positions(3)
    found = published_verdict(
        claim_of(some, usage=Usage(completion_tokens=claimed)),
        replay_of(some, usage=Usage(completion_tokens=3)),
    )
    assert found.stage == stage


def test_more_validator_positions_than_claimed_are_accepted() -> None:
    assert published_verdict(claim_of(positions(3)), replay_of(positions(5))).valid
    shorter = published_verdict(claim_of(positions(5)), replay_of(positions(3)))
    assert shorter.stage == "different_length"


def test_the_threshold_is_strict() -> None:
    some = positions(3)
    assert not published_verdict(claim_of(some), replay_of(some), threshold=1.0).valid


def test_an_empty_list_of_alternatives_is_an_error_and_similarity_zero() -> None:
    bare = (Position(token=1000, logprob=-1.0),)
    found = published_verdict(claim_of(bare), replay_of(positions(1)))
    assert found.similarity == 0
    assert not found.valid


def test_nothing_in_common() -> None:
    found = published_verdict(
        claim_of(positions(2)), replay_of((Position(token=5, logprob=-1.0),) * 2)
    )
    assert (found.stage, found.similarity, found.positions) == ("different_tokens", None, 0)
