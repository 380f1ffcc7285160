"""Distances and similarities against a plain reading of the formulas and the recorded numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.scoring.sides import (
    Listed,
    distribution,
    needs_data,
    position,
    positions,
    recorded_pair,
    recorded_pairs,
)

from assay.claims.positions import IMPOSSIBLE, Position
from assay.scoring.arrays import build_arrays
from assay.scoring.signals import first_disagreement
from assay.scoring.value import (
    distances,
    published_distances,
    similarity_first,
    similarity_second,
)


def plain_distance(claim: Position, replay: Position) -> float:
    """Spec replay, section 4, word for word, on one position; impossible = -9999.0."""
    wire = {e.key: -9999.0 if e.logprob == IMPOSSIBLE else e.logprob for e in claim.top}
    ordered = sorted(wire.values())
    smallest = ordered[0]
    second = ordered[1] if len(ordered) > 1 else smallest - 100
    following = smallest - (second - smallest)
    total = 0.0
    for one in replay.top:
        v = -9999.0 if one.logprob == IMPOSSIBLE else one.logprob
        o = wire.get(one.key, following)
        term = abs(v - o) / (1e-6 + abs(v) + abs(o)) / 2
        total += term if math.isfinite(term) else 0.5
    return total / len(replay.top)


def published(claim: Listed, replay: Listed) -> float:
    return float(published_distances(build_arrays([position(claim)], [position(replay)]))[0])


def ours(claim: Listed, replay: Listed) -> float:
    return float(distances(build_arrays([position(claim)], [position(replay)]))[0])


PAIRS: list[tuple[Listed, Listed]] = [
    ([(1, -0.1), (2, -2.5)], [(1, -0.1), (2, -2.5)]),
    ([(1, -0.1), (2, -2.5)], [(2, -2.4), (1, -0.2)]),
    ([(1, -0.1), (2, -2.5)], [(3, -0.1), (4, -2.5)]),
    ([(1, 0.0), (2, -18.0), (3, -19.0)], [(1, 0.0), (3, -17.0), (9, -20.0)]),
    ([(1, 0.0)], [(1, 0.0), (2, IMPOSSIBLE), (3, IMPOSSIBLE)]),
    ([(1, -0.5)], [(1, -0.5), (2, -1.5)]),
    ([(1, 0.0), (0, IMPOSSIBLE)], [(1, -0.5), (2, -1.5)]),
    ([(1, -0.5), (2, -1.0), (3, IMPOSSIBLE)], [(1, -0.5)]),
    ([("text:61", -0.5), ("text:62", -1.0)], [("text:61", -0.4), ("text:c3", -1.0)]),
    ([(1, 2.0), (2, -1.0)], [(1, 1.5), (2, -1.0)]),
]


@pytest.mark.parametrize(("claim", "replay"), PAIRS)
def test_published_distance_is_the_formula(claim: Listed, replay: Listed) -> None:
    expected = plain_distance(position(claim), position(replay))
    assert published(claim, replay) == pytest.approx(expected, abs=1e-12)
    assert 0 <= expected <= 0.5


def test_published_distances_of_many_positions_in_any_mixture() -> None:
    """Aligned rows, swapped rows, ragged rows and padding side by side, over several chunks."""
    claim = [*positions(9000, k=5), *(position(c) for c, _ in PAIRS)]
    replay = [*positions(9000, k=5, noise=0.3), *(position(r) for _, r in PAIRS)]
    expected = [plain_distance(c, r) for c, r in zip(claim, replay, strict=True)]
    found = published_distances(build_arrays(claim, replay))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
    same = published_distances(build_arrays(claim[:9000], replay[:9000]))
    np.testing.assert_allclose(same, expected[:9000], rtol=0, atol=1e-12)


def test_the_quirk_of_a_single_entry_is_kept_in_the_published_score_only() -> None:
    """next = m1 + 100 = 99.9 for an alternative that the claim does not list."""
    claim, replay = [(1, -0.1)], [(2, -0.1)]
    assert published(claim, replay) == pytest.approx(100 / (99.9 + 0.1) / 2, abs=1e-6)
    assert ours(claim, replay) == pytest.approx(100 / (100.1 + 0.1) / 2, abs=1e-6)


def test_our_distance_is_the_published_one_without_padding() -> None:
    claim, replay = positions(200), positions(200, noise=0.3)
    arrays = build_arrays(claim, replay)
    np.testing.assert_allclose(distances(arrays), published_distances(arrays), atol=1e-15)


def test_case_8_padding_on_both_sides_does_not_shrink_our_distance() -> None:
    few_claim, few_replay = distribution(1), distribution(1, noise=0.5)
    padding = [(900 + i, IMPOSSIBLE) for i in range(15)]
    alone = ours(few_claim, few_replay)
    padded = ours([*few_claim, *padding], [*few_replay, *padding])
    diluted = published([*few_claim, *padding], [*few_replay, *padding])
    assert alone > 0.01
    # An alternative that the other side's padding rules out is a contradiction, not an estimate.
    assert padded >= alone
    assert diluted < alone / 2


def test_which_ids_pad_does_not_matter() -> None:
    real: Listed = [(7, 0.0)]
    first = [*real, (0, IMPOSSIBLE), (1, IMPOSSIBLE), (2, IMPOSSIBLE)]
    other = [*real, (3, IMPOSSIBLE), (2, IMPOSSIBLE), (1, IMPOSSIBLE)]
    assert ours(first, other) == 0


@pytest.mark.parametrize("swap", [False, True])
def test_an_alternative_that_only_one_side_thinks_possible_contradicts(swap: bool) -> None:
    narrow: Listed = [(1, 0.0), (0, IMPOSSIBLE)]
    wide: Listed = [(1, 0.0), (5, -12.0)]
    claim, replay = (wide, narrow) if swap else (narrow, wide)
    assert ours(claim, replay) == pytest.approx(0.25)


def test_two_certain_but_different_outcomes_are_as_far_as_can_be() -> None:
    claim: Listed = [(1, 0.0), (0, IMPOSSIBLE)]
    replay: Listed = [(2, 0.0), (0, IMPOSSIBLE)]
    assert ours(claim, replay) == pytest.approx(0.5)


def test_case_7_positions_without_alternatives_are_no_comparison() -> None:
    bare = Position(token=1, logprob=-0.5)
    full = position([(1, -0.5), (2, -1.5)])
    for claim, replay in ((bare, full), (full, bare), (bare, bare)):
        arrays = build_arrays([claim, full], [replay, full])
        assert math.isnan(distances(arrays)[0])
        assert math.isnan(published_distances(arrays)[0])
        assert distances(arrays)[1] == 0
    only = build_arrays([bare], [bare])
    assert math.isnan(distances(only)[0])


def test_similarities_of_a_short_claim() -> None:
    """Distance 0.036 at each of ten positions scores 0.996: divided by 100, not by ten."""
    claim = [position([(1, -0.1), (2, -2.0)]) for _ in range(10)]
    replay = [position([(1, -0.1), (2, -2.67)]) for _ in range(10)]
    arrays = build_arrays(claim, replay)
    found = published_distances(arrays)
    total = float(found.sum())
    assert 0.3 < total < 0.4
    assert similarity_first(arrays, found) == pytest.approx(1 - total / 100)
    second = 1 - max(total / 10 - 0.10 / math.sqrt(10), total / 100)
    assert similarity_second(found) == pytest.approx(second)
    assert second > 0.99


def test_first_generation_does_not_fall_below_zero() -> None:
    claim = [position([(1, -0.1)]) for _ in range(200)]
    replay = [position([(2, -0.1), (3, -9.0), (4, -9.5)]) for _ in range(200)]
    arrays = build_arrays(claim, replay)
    assert similarity_first(arrays, published_distances(arrays)) == 0


def test_nothing_compared_is_no_similarity() -> None:
    with pytest.raises(ValueError, match="no position"):
        similarity_second(np.zeros(0))


@needs_data
def test_all_recorded_similarities_to_1e_6() -> None:
    """``chain_similarity_comparable``: first generation over the positions before the tokens part."""
    rows = 0
    for pair in recorded_pairs():
        assert pair.claim.positions is not None
        assert pair.replay.positions is not None
        parted = first_disagreement(pair.claim.positions, pair.replay.positions)
        shared = min(len(pair.claim.positions), len(pair.replay.positions))
        count = shared if parted is None else parted
        assert count == int(pair.row["comparable_positions"]), pair.name
        arrays = build_arrays(pair.claim.positions[:count], pair.replay.positions[:count])
        found = similarity_first(arrays, published_distances(arrays))
        recorded = float(pair.row["chain_similarity_comparable"])
        assert found == pytest.approx(recorded, abs=1e-6), pair.name
        rows += 1
    assert rows == 62


@needs_data
@pytest.mark.parametrize(
    ("case", "similarity"), [("same_model", 1.0), ("awq_int4_vs_fp8", 0.966889)]
)
def test_known_similarities_of_qwq(case: str, similarity: float) -> None:
    pair = recorded_pair(case)
    assert pair.claim.positions is not None
    assert pair.replay.positions is not None
    arrays = build_arrays(pair.claim.positions, pair.replay.positions)
    found = published_distances(arrays)
    assert similarity_first(arrays, found) == pytest.approx(similarity, abs=1e-6)
    assert similarity_second(found) == pytest.approx(similarity, abs=1e-6)
