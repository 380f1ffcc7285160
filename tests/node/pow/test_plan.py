"""Who mines which shares, as pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.node.pow.plan import as_range, is_over, moves, shortage, split, spread
from assay.store.rounds_tables import Share

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)


def share(group: int, *, stop: int | None = None, reached: int = 0) -> Share:
    return Share(group * 1000 + (stop or 0), None, group, 0, stop, reached)


def groups(shares: Sequence[Share]) -> list[int]:
    return [one.group_id for one in shares]


def test_shares_go_home_and_the_rest_evenly() -> None:
    homes = {0: 1, 1: 2, 2: 3, 3: 1}
    parts = split([share(group) for group in range(4)], [1, 2], homes)
    assert {port: groups(part) for port, part in parts.items()} == {1: [0, 3], 2: [1, 2]}


def test_one_backend_takes_all() -> None:
    parts = split([share(0), share(1), share(1, stop=5)], [7], {0: 7, 1: 8})
    assert groups(parts[7]) == [0, 1, 1]


def test_shares_for_busy_backends_go_to_those_with_the_fewest() -> None:
    parts = spread([share(5), share(6), share(7)], {1: 3, 2: 1, 3: 2})
    assert {port: groups(part) for port, part in parts.items()} == {2: [5, 6], 3: [7]}
    assert spread([share(1)], {}) == {}


def test_a_backend_that_is_back_takes_its_own_class() -> None:
    held = {1: [share(0), share(1), share(2)]}
    found = moves(held, [2], {0: 1, 1: 2, 2: 1})
    assert [(m.donor, m.taker, m.share.group_id) for m in found] == [(1, 2, 1)]


def test_two_that_are_back_get_what_one_has_too_much() -> None:
    held = {1: [share(group) for group in range(4)]}
    found = moves(held, [2, 3], {0: 1, 1: 2, 2: 3, 3: 1})
    assert sorted((m.taker, m.share.group_id) for m in found) == [(2, 1), (3, 2)]


def test_a_class_of_its_own_and_a_range_are_not_taken_away() -> None:
    assert moves({1: [share(0), share(1, stop=9)]}, [2], {0: 1, 1: 2}) == []
    assert moves({}, [2], {}) == []


@PATIENT
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
    st.sets(st.integers(6, 9), min_size=1, max_size=4),
    st.dictionaries(st.integers(0, 20), st.integers(0, 9)),
)
def test_moves_even_out_and_nothing_is_moved_twice(
    owners: list[int], idle: set[int], homes: dict[int, int]
) -> None:
    held: dict[int, list[Share]] = {}
    for group, port in enumerate(owners):
        held.setdefault(port, []).append(share(group))
    found = moves(held, sorted(idle), homes)
    assert len({m.share.group_id for m in found}) == len(found)
    counts = {port: len(shares) for port, shares in held.items()} | dict.fromkeys(idle, 0)
    for move in found:
        assert owners[move.share.group_id] == move.donor
        counts[move.donor] -= 1
        counts[move.taker] += 1
    assert all(counts[port] >= 1 for port in held)
    least = min(counts[port] for port in idle)
    assert all(counts[port] - least < 2 for port in held)


@PATIENT
@given(st.lists(st.integers(0, 9), max_size=20), st.sets(st.integers(0, 9), min_size=1))
def test_split_gives_every_share_to_exactly_one(classes: list[int], ports: set[int]) -> None:
    shares = [share(group, stop=index + 1) for index, group in enumerate(classes)]
    parts = split(shares, sorted(ports), {group: group for group in range(10)})
    given_out = [one for part in parts.values() for one in part]
    assert sorted(given_out, key=lambda s: s.stop or 0) == shares
    assert parts.keys() == ports


@pytest.mark.parametrize(("reached", "over"), [(0, False), (1, False), (2, True)])
def test_a_class_ends_where_nonces_have_32_bits(reached: int, over: bool) -> None:
    """Node 1 of 2^30, two classes: class 1 has the nonces 1 + 2^30 and 1 + 3 * 2^30."""
    assert is_over(share(1, reached=reached), 1, 2**30, 2) is over


def test_what_is_missing_is_said_in_words() -> None:
    assert shortage(2, 2, []) is None
    assert shortage(2, 1, []) == "2 classes, and backends that mine: 1"
    assert shortage(3, 2, [share(2), share(1)]) == "no backend mines the classes [1, 2]"


def test_backends_are_told_what_is_left() -> None:
    assert as_range(Share(1, 2, 3, 4, 9, 6)) == {"group_id": 3, "start": 6, "stop": 9}
