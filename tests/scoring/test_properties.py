"""What must hold for any two sides, however odd."""

from __future__ import annotations

import math
import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scoring.sides import claim_of, replay_of

from assay.claims.positions import IMPOSSIBLE, Position, TopEntry
from assay.scoring.arrays import build_arrays
from assay.scoring.signals import top1_agreement
from assay.scoring.value import distances, published_distances, similarity_first, similarity_second
from assay.scoring.verdict import Verdict, judge

some_logprobs = st.one_of(
    st.just(IMPOSSIBLE), st.just(0.0), st.floats(-60, 0), st.floats(-1e300, 1e3)
)
some_keys = st.one_of(st.integers(0, 12), st.integers(0, 2**40), st.just("text:61"))


@st.composite
def some_position(draw: st.DrawFn) -> Position:
    listed = draw(st.dictionaries(some_keys, some_logprobs, max_size=6))
    token = draw(st.sampled_from(sorted(listed, key=str)) if listed else some_keys)
    return Position(
        token=token,
        logprob=draw(some_logprobs),
        top=tuple(TopEntry(key=key, logprob=value) for key, value in listed.items()),
    )


sides = st.lists(some_position(), max_size=8).map(tuple)
real_side = st.lists(some_position().filter(lambda p: len(p.top) > 0), min_size=1, max_size=8).map(
    tuple
)
busy = settings(deadline=None)  # the machine may be busy


@busy
@given(sides, sides)
def test_distances_are_bounded_or_absent(
    claim: tuple[Position, ...], replay: tuple[Position, ...]
) -> None:
    arrays = build_arrays(claim, replay)
    for found in (distances(arrays), published_distances(arrays)):
        assert len(found) == min(len(claim), len(replay))
        assert np.array_equal(np.isnan(found), ~arrays.comparable)
        known = found[arrays.comparable]
        assert ((known >= 0) & (known <= 0.5 + 1e-12)).all()


@busy
@given(real_side)
def test_a_side_is_at_distance_zero_from_itself(side: tuple[Position, ...]) -> None:
    arrays = build_arrays(side, side)
    assert not distances(arrays).any()
    published = published_distances(arrays)
    assert not published.any()
    assert similarity_first(arrays, published) == similarity_second(published) == 1
    possible = [p for p in side if p.effective_k]
    if len(possible) == len(side):
        assert top1_agreement(arrays) == 1


@busy
@given(real_side, real_side, st.randoms(use_true_random=False))
def test_the_order_of_entries_does_not_matter(
    claim: tuple[Position, ...], replay: tuple[Position, ...], rng: random.Random
) -> None:
    def shuffled(side: tuple[Position, ...]) -> tuple[Position, ...]:
        return tuple(
            p.model_copy(update={"top": tuple(rng.sample(p.top, len(p.top)))}) for p in side
        )

    one, other = build_arrays(claim, replay), build_arrays(shuffled(claim), shuffled(replay))
    np.testing.assert_allclose(distances(one), distances(other), rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        published_distances(one), published_distances(other), rtol=0, atol=1e-12
    )


@busy
@given(sides, sides, st.sampled_from([None, 0.0, 0.5, 0.9, 0.99]))
def test_every_pair_gets_a_verdict_with_reasons_and_plain_json(
    claim: tuple[Position, ...], replay: tuple[Position, ...], threshold: float | None
) -> None:
    verdict = judge(claim_of(claim), replay_of(replay), threshold=threshold)
    assert (verdict.verdict == "pass") == (not verdict.reasons)
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


@busy
@given(sides, sides)
def test_no_comparison_is_no_pass_and_a_pass_has_enough_evidence(
    claim: tuple[Position, ...], replay: tuple[Position, ...]
) -> None:
    """At most 8 positions: too few to pass, whatever they say and however mild the threshold."""
    assert judge(claim_of(claim), replay_of(replay), threshold=0.0).verdict != "pass"


@busy
@given(st.integers(1, 200), st.sampled_from([0.0, -0.5, -3.0, IMPOSSIBLE]), st.integers(1, 6))
def test_constant_claims_never_pass(count: int, value: float, k: int) -> None:
    """All zeros, all padding, one number everywhere: even against a replay that says the same."""
    held = tuple(
        Position(
            token=index,
            logprob=value,
            top=tuple(TopEntry(key=index + rank, logprob=value) for rank in range(k)),
        )
        for index in range(count)
    )
    assert judge(claim_of(held), replay_of(held)).verdict != "pass"


@busy
@given(
    st.integers(0, 47),
    st.sampled_from([math.nan, math.inf]),
    st.booleans(),
)
def test_nan_never_passes(place: int, value: float, in_claim: bool) -> None:
    from tests.scoring.sides import positions

    good = positions(48)
    entry = TopEntry.model_construct(key=5, logprob=value)
    bad = tuple(
        p.model_copy(update={"top": (*p.top, entry)}) if index == place else p
        for index, p in enumerate(good)
    )
    claim, replay = (bad, good) if in_claim else (good, bad)
    assert judge(claim_of(claim), replay_of(replay)).verdict != "pass"
