"""Shares without a server: order, exact positions, all or nothing, every position exactly once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugin.poc.fake import init_body

from assay.plugin.poc.failures import RefusedError
from assay.plugin.poc.shares import Released, Shares
from assay.poc.bodies import InitGenerate, ShareRange
from assay.poc.constants import UINT32_RANGE
from assay.poc.nonces import partition, place

N_GROUPS = 3
NODE_COUNT = UINT32_RANGE // (N_GROUPS * 12)
"""So that a class has 13 nonces at most and a test can mine them all."""
NODE_ID = 5
SMALL = InitGenerate.model_validate(
    init_body(node_id=NODE_ID, node_count=NODE_COUNT, n_groups=N_GROUPS)
)
GROUPS = range(N_GROUPS)
ALL = [nonce for group in GROUPS for nonce in partition(NODE_ID, NODE_COUNT, group, N_GROUPS)]
SIZE = {group: len(list(partition(NODE_ID, NODE_COUNT, group, N_GROUPS))) for group in GROUPS}


def shares(*ranges: tuple[int, int, int | None], identity: InitGenerate = SMALL) -> Shares:
    return Shares(identity, [of(*one) for one in ranges])


def of(group_id: int, start: int = 0, stop: int | None = None) -> ShareRange:
    return ShareRange(group_id=group_id, start=start, stop=stop)


def places(nonces: list[int]) -> list[tuple[int, int]]:
    """(position, class) of each nonce."""
    found = [place(nonce, NODE_ID, NODE_COUNT, N_GROUPS) for nonce in nonces]
    return [(position, group) for group, position in filter(None, found)]


def left(held: Shares) -> list[tuple[int, int]]:
    """(position, class) of all that is to come, in the order it must come in."""
    return sorted(
        (position, share["group_id"])
        for share in held.shown()
        for position in range(
            share["position"],
            min(SIZE[share["group_id"]], share["stop"] or SIZE[share["group_id"]]),
        )
    )


def test_the_share_furthest_behind_is_next() -> None:
    held = shares((2, 1, None), (0, 3, 6), (1, 2, 3))
    assert places(held.take(7)) == [(1, 2), (2, 1), (2, 2), (3, 0), (3, 2), (4, 0), (4, 2)]
    assert held.shown() == [
        {"group_id": 0, "position": 5, "stop": 6},
        {"group_id": 2, "position": 5, "stop": None},
    ]


def test_one_share_is_the_partition_as_it_was() -> None:
    request = InitGenerate.model_validate(init_body(node_id=1, node_count=3, n_groups=4))
    held = shares((2, 0, None), identity=request)
    taken = [held.take(7) for _ in range(30)]
    reference = partition(1, 3, 2, 4)
    assert taken == [[next(reference) for _ in range(7)] for _ in range(30)]


def test_what_is_released_is_never_taken_again() -> None:
    held = shares((0, 0, None), (1, 0, None))
    before = held.take(5)
    assert held.change([0], []) == [Released(0, 3)]
    after = held.take(100)
    assert [p for p, group in places(before + after) if group == 0] == [0, 1, 2]
    assert held.first_position == 3


def test_release_comes_before_add() -> None:
    held = shares((0, 0, None))
    held.take(4)
    assert held.change([0], [of(0, 9, 11), of(1, 2)]) == [Released(0, 4)]
    assert places(held.take(4)) == [(2, 1), (3, 1), (4, 1), (5, 1)]
    assert [p for p, group in places(held.take(100)) if group == 0] == [9, 10]


def test_an_endless_share_can_be_released_when_its_class_has_no_nonce_left() -> None:
    held = shares((0, 0, None))
    held.take(100)
    assert held.exhausted
    assert held.change([0], []) == [Released(0, SIZE[0])]


def test_a_range_beyond_the_last_nonce_gives_what_there_is() -> None:
    held = shares((0, SIZE[0] - 1, 1000), (1, 500, 600))
    assert places(held.take(100)) == [(SIZE[0] - 1, 0)]
    assert held.exhausted
    assert held.shown() == []


@pytest.mark.parametrize(
    ("release", "add", "status", "says"),
    [
        ([1], [], 409, "release[0]: class 1 is not mined here without an end"),
        ([2], [], 409, "release[0]: class 2"),
        ([7], [], 409, "release[0]: class 7"),
        ([0, 0], [], 400, "release[1]: class 0 is named twice"),
        ([0], [of(N_GROUPS)], 400, "add[0].group_id: 3 given for n_groups 3"),
        ([0], [of(2), of(2, 5, 6)], 400, "add[1]: overlaps add[0] in class 2 at position 5"),
        ([0], [of(2, 5, 6), of(2)], 400, "add[1]: overlaps add[0] in class 2 at position 5"),
        ([], [of(0, 9)], 400, "add[0]: overlaps one that is held in class 0 at position 9"),
        ([0], [of(1, 7, 9)], 400, "add[0]: overlaps one that is held in class 1 at position 7"),
        ([0], [of(1, 0, 9)], 400, "add[0]: overlaps one that is held in class 1 at position 4"),
        ([0], [of(2, n, n + 1) for n in range(1024)], 400, "add: a run may hold 1024"),
    ],
)
def test_a_wrong_change_changes_nothing(
    release: list[int], add: list[ShareRange], status: int, says: str
) -> None:
    held = shares((0, 0, None), (1, 4, 8))
    held.take(3)
    before = held.shown()
    with pytest.raises(RefusedError) as refused:
        held.change(release, add)
    assert refused.value.status == status
    assert says in str(refused.value.detail)
    assert held.shown() == before
    assert places(held.take(1)) == [(3, 0)]


def test_ranges_of_one_class_may_touch() -> None:
    held = shares((0, 0, 3), (0, 3, 5), (0, 5, None))
    assert [position for position, _ in places(held.take(8))] == list(range(8))


class Coordinator:
    """Moves shares between workers that take, die and come back; notes what was taken."""

    def __init__(self, workers: int) -> None:
        self.workers: list[Shares | None] = [None] * workers
        self.free = [of(group) for group in GROUPS]
        self.taken: Counter[int] = Counter()

    def give(self, worker: int, index: int) -> None:
        if not self.free:
            return
        share = self.free.pop(index % len(self.free))
        held = self.workers[worker]
        if held is None:
            self.workers[worker] = Shares(SMALL, [share])
        else:
            assert held.change([], [share]) == []

    def take(self, worker: int, count: int) -> None:
        held = self.workers[worker]
        if held is None:
            return
        expected = left(held)[:count]
        nonces = held.take(count)
        assert places(nonces) == expected
        self.taken.update(nonces)

    def release(self, worker: int, index: int) -> None:
        """An endless share, for one that is free; first with a wrong part, which does nothing."""
        held = self.workers[worker]
        endless = [] if held is None else [s for s in held.shown() if s["stop"] is None]
        if held is None or not endless:
            return
        share = endless[index % len(endless)]
        before = held.shown()
        with pytest.raises(RefusedError):
            held.change([share["group_id"]], [*self.free, of(N_GROUPS)])
        assert held.shown() == before
        add, self.free = self.free[:1], self.free[1:]
        (released,) = held.change([share["group_id"]], add)
        assert released == Released(share["group_id"], share["position"])
        self.free.append(of(released.group_id, released.position))

    def die(self, worker: int, _: int) -> None:
        held = self.workers[worker]
        self.workers[worker] = None
        for share in [] if held is None else held.shown():
            self.free.append(of(share["group_id"], share["position"], share["stop"]))

    def split(self, index: int, at: int) -> None:
        if not self.free:
            return
        share = self.free.pop(index % len(self.free))
        middle = share.start + 1 + at
        if share.stop is not None and middle >= share.stop:
            self.free.append(share)
            return
        self.free += [of(share.group_id, share.start, middle)]
        self.free += [of(share.group_id, middle, share.stop)]

    def finish(self) -> None:
        while self.free:
            self.give(0, 0)
        for index, held in enumerate(self.workers):
            while held is not None and not held.exhausted:
                self.take(index, 3)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["give", "take", "take", "release", "die", "split"]),
        st.integers(0, 2),
        st.integers(0, 7),
    ),
    max_size=60,
)


@given(STEPS)
def test_every_position_of_every_class_is_taken_exactly_once(
    steps: list[tuple[str, int, int]],
) -> None:
    coordinator = Coordinator(3)
    for name, first, second in steps:
        getattr(coordinator, name)(first, second)
    coordinator.finish()
    assert coordinator.taken == Counter(ALL)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9) | st.none())))
def test_overlaps_are_refused_and_nothing_else(
    ranges: list[tuple[int, int, int | None]],
) -> None:
    """Against the definition: no position of a class twice, no class beyond the last."""
    wanted = [
        of(g, start, None if length is None else start + length) for g, start, length in ranges
    ]
    cells = Counter((s.group_id, p) for s in wanted for p in range(s.start, s.stop or 100))
    right = bool(wanted) and max(cells.values()) == 1 and all(s.group_id < 3 for s in wanted)
    if not wanted:
        return
    try:
        Shares(SMALL, wanted)
    except RefusedError as refusal:
        assert not right
        assert refusal.status == 400
    else:
        assert right


def test_a_share_of_a_body() -> None:
    body: dict[str, Any] = init_body(n_groups=3, shares=[{"group_id": 1, "start": 2, "stop": 4}])
    request = InitGenerate.model_validate(body)
    assert request.shares == (of(1, 2, 4),)
    assert InitGenerate.model_validate(init_body(shares=None)).shares is None
