"""The detection table from claims and replays made by hand: counts, targets, the page."""

from __future__ import annotations

import random

import pytest
from tests.attacks.made import honest
from tests.scoring.sides import distribution, position

from assay.attacks.catalogue import attack
from assay.attacks.page import Page, render
from assay.attacks.pairs import Pair
from assay.attacks.prompts import QUESTIONS
from assay.attacks.split import calibrates
from assay.attacks.table import (
    Judging,
    Outcome,
    condition,
    edited_position,
    outcome,
    row,
)
from assay.attacks.targets import TARGETS, Target
from assay.claims.account import Known
from assay.claims.claim import Replay, Usage
from assay.claims.positions import Position
from assay.scoring.constants import MIN_CALIBRATION_CLAIMS

LENGTH = 32
JUDGING = Judging(None, known=Known(vocab_size=10_000, eos_ids=(2,)))


def positions(index: int, noise: float) -> tuple[Position, ...]:
    listed = [distribution(1000 * index + i, noise=noise) for i in range(LENGTH)]
    return tuple(
        position(one, token=distribution(1000 * index + i)[0][0]) for i, one in enumerate(listed)
    )


def pair(name: str, index: int, noise: float) -> Pair:
    """A claim whose weights are off by ``noise`` nats, with the real model's replay."""
    claimed, real = positions(index, noise), positions(index, 0.001 * random.Random(index).random())
    claim = honest(f"{name}-{index:04d}").model_copy(
        update={
            "positions": claimed,
            "output_ids": tuple(int(p.token) for p in claimed),
            "request": {"temperature": 1.0, "max_tokens": LENGTH},
            "usage": Usage(prompt_tokens=2, completion_tokens=LENGTH),
        }
    )
    replay = Replay(
        id=claim.id,
        path="decode",
        prompt_token_ids=claim.prompt.token_ids,
        positions=tuple(
            r.model_copy(update={"token": c.token}) for c, r in zip(claimed, real, strict=True)
        ),
        usage=Usage(prompt_tokens=2, completion_tokens=LENGTH),
        logprobs_mode="raw_logprobs",
        mode_source="explicit",
    )
    return Pair(claim, replay)


def group(name: str, noise: float, count: int = 8) -> list[Pair]:
    return [pair(name, index, noise) for index in range(count)]


GOOD, BAD = group("honest", 0.0), group("int4", 1.5)


def test_another_model_is_told_from_honest_by_every_figure() -> None:
    found = row(
        attack("int4"), "decode", cheating=BAD, honest=GOOD, other_honest=[], judging=JUDGING
    )
    assert found.claims == 8
    assert found.auc["value_distance"] == found.auc["value_peak"] == 1.0
    assert found.against["value_distance"] is None, "nothing to compare with is no figure"
    assert (found.convicted.count, found.convicted.of) == (8, 8)
    assert found.inconclusive == 0


def test_an_honest_executor_is_not_told_from_itself() -> None:
    found = row(
        attack("int4"), "decode", cheating=GOOD, honest=GOOD, other_honest=[], judging=JUDGING
    )
    assert found.auc["value_distance"] == 0.5
    assert found.convicted.count == 0
    told = condition("float32", "decode", GOOD, JUDGING)
    assert told.convicted.count == 0 and told.convicted.of == 8


def test_inflated_claims_fail_the_account_alone() -> None:
    inflated = [
        Pair(
            p.claim.model_copy(
                update={"usage": p.claim.usage.model_copy(update={"completion_tokens": 48})}
            ),
            p.replay,
        )
        for p in GOOD
    ]
    found = row(
        attack("inflated"),
        "decode",
        cheating=inflated,
        honest=GOOD,
        other_honest=[],
        judging=JUDGING,
    )
    assert found.failed["account"].count == 8 and found.failed["value"].count == 0
    target = Target("inflated", "account", 1.0)
    assert outcome(target, found, inflated, GOOD).met


def test_a_missed_target_says_how_many_claims_would_do() -> None:
    nearly = group("int4", 0.0012)
    target = Target("int4", "value_distance", 1.0)
    found = row(
        attack("int4"), "decode", cheating=nearly, honest=GOOD, other_honest=[], judging=JUDGING
    )
    missed = outcome(target, found, nearly, GOOD)
    assert not missed.met and 0.5 < missed.reached < 1.0
    assert missed.needed is None or missed.needed[0] > 1
    assert not Outcome(target, None).met, "nothing measured meets no target"


def test_the_edited_position_is_the_middle() -> None:
    assert edited_position(GOOD[0]) == LENGTH // 2


def test_calibration_and_test_share_no_question_and_no_side_lacks_a_language() -> None:
    def claim_at(index: int) -> Pair:
        return Pair(honest(f"honest-{index:04d}"), GOOD[0].replay)

    both = {True: set(), False: set()}
    for index in range(4 * len(QUESTIONS)):
        both[calibrates(claim_at(index))].add(index % len(QUESTIONS))
    assert not both[True] & both[False]
    for side in both.values():
        assert len(side) >= MIN_CALIBRATION_CLAIMS
        english = sum(QUESTIONS[number].language == "en" for number in side)
        assert english * 2 == len(side)


def test_the_page_says_what_was_met_missed_and_not_measured() -> None:
    found = row(
        attack("int4"), "decode", cheating=BAD, honest=GOOD, other_honest=[], judging=JUDGING
    )
    outcomes = [
        Outcome(Target("int4", "value_distance", 1.0), 1.0),
        Outcome(Target("temperature", "choice_margin", 0.99), 0.95, (2, 0.991)),
        Outcome(Target("laundered-int8", "choice_margin", 0.95), None),
    ]
    text = render(
        Page(
            fpr=1e-3,
            made=["made by hand"],
            rows=[found],
            outcomes=outcomes,
            conditions=[condition("float32", "decode", GOOD, JUDGING)],
        )
    )
    assert "| int4: value_distance >= 1 | 1.000 | met |" in text
    assert "missed by 0.040; 2 claims judged together reach 0.991 (128 tokens)" in text
    assert "| laundered-int8: choice_margin >= 0.95 | - | not measured |" in text
    assert "8/8 (0.63-1.00)" in text and "0/8 (0.00-0.37)" in text
    grids = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.count("|") >= 3 for line in grids)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.text)
def test_targets_are_rates(target: Target) -> None:
    assert 0.5 < target.least <= 1.0
