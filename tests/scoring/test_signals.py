"""The signals beside the distance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.scoring.sides import Listed, distribution, position, positions, replay_of

from assay.claims.claim import Evidence
from assay.claims.positions import IMPOSSIBLE, Position
from assay.scoring.arrays import ScoreArrays, build_arrays
from assay.scoring.signals import (
    above_ceiling,
    entropies,
    first_disagreement,
    near_best,
    one_sided_padding,
    scale_factor,
    top1_agreement,
    without_support,
)


def arrays_of(claim: list[Listed], replay: list[Listed]) -> ScoreArrays:
    return build_arrays([position(one) for one in claim], [position(one) for one in replay])


def test_first_disagreement() -> None:
    one, other = positions(5), list(positions(7))
    assert first_disagreement(one, other) is None
    other[3] = other[3].model_copy(update={"token": 1})
    assert first_disagreement(one, other) == 3
    assert first_disagreement((), one) is None


def test_top1_agreement_by_value_and_not_by_place() -> None:
    """Chat answers list the drawn token first, which need not be the most likely one."""
    a: Listed = [(2, -3.0), (1, -0.1)]
    b: Listed = [(1, -0.2), (3, -2.0)]
    c: Listed = [(3, -0.2), (1, -2.0)]
    assert top1_agreement(arrays_of([a, a], [b, c])) == 0.5


def test_a_tie_on_the_validators_side_agrees_with_any_of_the_tied() -> None:
    a: Listed = [(1, -0.7), (2, -0.8)]
    tie: Listed = [(2, -0.75), (1, -0.75)]
    assert top1_agreement(arrays_of([a], [tie])) == 1


def test_top1_agreement_without_a_comparison() -> None:
    bare = Position(token=1, logprob=-1.0)
    assert math.isnan(top1_agreement(build_arrays([bare], [bare])))


def test_entropy_of_listed_alternatives_and_the_rest() -> None:
    half, quarter = math.log(0.5), math.log(0.25)
    rows: list[Listed] = [
        [(1, 0.0), (2, IMPOSSIBLE)],
        [(1, half), (2, half)],
        [(1, half), (2, quarter)],
    ]
    arrays = arrays_of(rows, rows)
    found = entropies(arrays.replay_logprobs, arrays.replay_possible)
    assert found == pytest.approx([0.0, math.log(2), 1.5 * math.log(2)])


def test_alternatives_within_one_nat() -> None:
    rows: list[Listed] = [
        [(1, -0.1), (2, -1.0), (3, -1.2)],
        [(1, -1.6), (2, -1.6), (3, -2.5)],
        [(1, 0.0), (2, IMPOSSIBLE), (3, IMPOSSIBLE)],
    ]
    arrays = arrays_of(rows, rows)
    assert near_best(arrays.replay_logprobs, arrays.replay_possible).tolist() == [2, 3, 1]


@pytest.mark.parametrize(
    ("count", "over", "exceeded"),
    [(49, 0, False), (49, 1, True), (50, 1, False), (100, 2, False), (100, 3, True)],
)
def test_ceiling_allows_two_percent(count: int, over: int, exceeded: bool) -> None:
    values = np.zeros(count)
    values[:over] = 0.31
    found = above_ceiling(values)
    assert (found.count, found.exceeded) == (over, exceeded)
    assert found.first == (0 if over else None)


def test_exactly_the_ceiling_is_not_above_it() -> None:
    assert above_ceiling(np.array([0.30, math.nan])).count == 0


@pytest.mark.parametrize(
    ("count", "lost", "exceeded"),
    [(10, 1, False), (10, 2, True), (100, 3, False), (100, 4, True), (34, 2, False)],
)
def test_sampler_support_allows_three_percent_and_at_least_one(
    count: int, lost: int, exceeded: bool
) -> None:
    held = [
        p.model_copy(update={"logprob": IMPOSSIBLE}) if index < lost else p
        for index, p in enumerate(positions(count))
    ]
    found = without_support(replay_of(tuple(held), logprobs_mode="processed_logprobs"), count)
    assert found is not None
    assert (found.count, found.exceeded) == (lost, exceeded)


def test_raw_log_probabilities_say_nothing_about_the_sampler() -> None:
    assert without_support(replay_of(positions(5)), 5) is None


def test_one_replay_returns_both_so_a_raw_one_can_show_the_sampler_too() -> None:
    evidence = Evidence(
        runner="v1",
        drawn=(1, 2, 3),
        rank_raw=(1, 1, 1),
        rank_processed=(1, 1, 1),
        logprob_raw=(-1.0, -1.0, -1.0),
        logprob_processed=(-1.0, None, None),
    )
    found = without_support(replay_of(positions(3), evidence=evidence), 3)
    assert found is not None
    assert (found.count, found.allowed, found.first) == (2, 1, 1)


def test_padding_on_one_side_only() -> None:
    full = [distribution(i) for i in range(10)]
    cut: list[Listed] = [[*one[:3], (0, IMPOSSIBLE), (1, IMPOSSIBLE)] for one in full]
    assert one_sided_padding(arrays_of(full, cut))
    assert one_sided_padding(arrays_of(cut, full))
    assert not one_sided_padding(arrays_of(cut, cut))
    assert not one_sided_padding(arrays_of(full, full))


def scaled(listed: Listed, temperature: float) -> Listed:
    """What processed mode makes of a raw distribution, up to the constant of the listed part."""
    values = [(key, value / temperature) for key, value in listed]
    total = math.log(sum(math.exp(value) for _, value in values))
    return [(key, value - total) for key, value in values]


@pytest.mark.parametrize("temperature", [0.5, 0.7, 2.0])
def test_the_factor_between_raw_and_processed(temperature: float) -> None:
    raw = [distribution(i) for i in range(20)]
    processed = [scaled(one, temperature) for one in raw]
    assert scale_factor(arrays_of(raw, processed)) == pytest.approx(1 / temperature, rel=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.3, 1.0])
def test_equal_and_other_weights_have_no_factor(noise: float) -> None:
    raw = [distribution(i) for i in range(50)]
    other = [distribution(i, noise=noise) for i in range(50)]
    assert scale_factor(arrays_of(raw, other)) is None


def test_too_few_positions_have_no_factor() -> None:
    raw = [distribution(i) for i in range(5)]
    assert scale_factor(arrays_of(raw, [scaled(one, 0.5) for one in raw])) is None
