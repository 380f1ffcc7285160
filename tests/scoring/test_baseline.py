"""What an executor without the model scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.scoring.sides import claim_of, position, positions, replay_of
from tests.scoring.simulated import measurement

from assay.claims.claim import Claim, Prompt, Replay
from assay.claims.positions import IMPOSSIBLE
from assay.scoring.baseline import zero_knowledge
from assay.scoring.samples import record_of

HALVES = [(1, math.log(0.5)), (2, math.log(0.5))]


def pair(name: str, first: int, **request: Any) -> tuple[Claim, Replay]:
    held = positions(12, first=first)
    prompt = Prompt(token_ids=(first, first + 1))
    claim = claim_of(held, request=request).model_copy(update={"id": name, "prompt": prompt})
    return claim, replay_of(held)


def test_numbers_of_another_prompt_are_far_though_its_own_are_equal() -> None:
    found = zero_knowledge([pair("a", 0), pair("b", 100), pair("c", 200)])
    assert [m.claim_id for m in found] == ["a", "b", "c"]
    assert all(m.statistics["value_distance"] > 0.1 for m in found)
    assert all(m.series["value_peak"] == m.series["value_distance"] for m in found)


def test_one_prompt_has_no_other_to_copy_from() -> None:
    found = zero_knowledge([pair("a", 0), pair("a again", 0)])
    assert all("value_distance" not in m.series for m in found)


@pytest.mark.parametrize(
    ("mode", "temperature", "expected"),
    [
        ("raw_logprobs", 1.0, 0.5),
        ("processed_logprobs", 1.0, 0.5),
        ("processed_logprobs", 0.3, 0.5),
        ("raw_logprobs", 0.0, None),
    ],
)
def test_two_fair_outcomes_agree_half_the_time(
    mode: str, temperature: float, expected: float | None
) -> None:
    held = tuple(position(HALVES) for _ in range(10))
    claim = claim_of(held, logprobs_mode=mode, request={"temperature": temperature})
    found = zero_knowledge([(claim, replay_of(held, logprobs_mode=mode))])
    got = found[0].statistics["choice_mismatch"] if found else None
    assert got == (None if expected is None else pytest.approx(expected))


def test_a_low_temperature_makes_raw_outcomes_surer() -> None:
    """0.8 and 0.2 at temperature 0.5 are 16 to 1: 1 - (16^2 + 1)/17^2."""
    held = tuple(position([(1, math.log(0.8)), (2, math.log(0.2))]) for _ in range(10))
    claim = claim_of(held, request={"temperature": 0.5})
    found = zero_knowledge([(claim, replay_of(held))])
    assert found[0].statistics["choice_mismatch"] == pytest.approx(1 - 257 / 289)


def test_one_possible_outcome_agrees_for_free() -> None:
    held = tuple(position([(1, 0.0), (2, IMPOSSIBLE)]) for _ in range(10))
    found = zero_knowledge([(claim_of(held), replay_of(held))])
    assert found[0].statistics["choice_mismatch"] == 0.0


def test_a_choice_that_rests_on_an_assumption_enters_no_record() -> None:
    series = {"value_distance": [0.01] * 8, "choice_mismatch": [0.0] * 8}
    measured = measurement("c", {k: np.array(v) for k, v in series.items()})
    assert set(record_of(measured).series) == set(series)
    assumed = measured.model_copy(update={"assumed": ("min_p",)})
    assert set(record_of(assumed).series) == {"value_distance"}
