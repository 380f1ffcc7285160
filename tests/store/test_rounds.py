"""A node's rounds on SQLite and on a real PostgreSQL: who mines what, what is kept, and once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import select

from assay.errors import StoreError
from assay.store import rounds as rounds_module
from assay.store.outbox import Outbox
from assay.store.outbox_tables import CAMPAIGNS
from assay.store.rounds import Artifact, Rounds
from assay.store.rounds_tables import META, ROUNDS, SHARES, WORKERS, Kept, RoundSpec, Share, Worker

URL = "http://receiver"
SPEC = RoundSpec("work", URL, "10.0.0.1", {"block_hash": "b"}, node_id=1, node_count=4)
GROUPS = 2


@pytest.fixture
def outbox(database: str) -> Iterator[Outbox]:
    opened = Outbox(database)
    yield opened
    opened.close()


@pytest.fixture
def rounds(outbox: Outbox) -> Rounds:
    return Rounds(outbox)


def artifacts(group_id: int, *positions: int, n_groups: int = GROUPS) -> list[Artifact]:
    nonces = [1 + (group_id + position * n_groups) * 4 for position in positions]
    return [(nonce, f"v{nonce}") for nonce in nonces]


def at_work(rounds: Rounds, spec: RoundSpec = SPEC) -> Worker:
    """A worker with every class of a round."""
    begun = rounds.begin(spec, GROUPS)
    worker = rounds.hire(begun.id, 5001, 1)
    rounds.give(rounds.shares(begun.id), worker)
    return worker


def waiting(outbox: Outbox, url: str = URL) -> list[int]:
    """Takes all that waits for the receiver; the nonces in the order they are sent."""
    nonces = []
    while (post := outbox.next_post(url, 1000)) is not None:
        body = json.loads(f"[{','.join(post.pieces)}]")
        assert len(body) == post.count
        nonces += [artifact["nonce"] for artifact in body]
        outbox.accepted(post.id)
    return nonces


def ranges(rounds: Rounds, round_id: int) -> list[tuple[int, int, int | None, int, bool]]:
    return [
        (share.group_id, share.start, share.stop, share.reached, share.worker_id is not None)
        for share in rounds.shares(round_id)
    ]


def rows(outbox: Outbox) -> dict[str, int]:
    with outbox.read() as connection:
        return {
            table.name: len(connection.execute(select(table)).all())
            for table in (ROUNDS, WORKERS, SHARES, CAMPAIGNS)
        }


def test_a_round_begins_with_every_class_nobodys(rounds: Rounds) -> None:
    begun = rounds.begin(SPEC, 3)
    assert (begun.n_groups, begun.kept, begun.resumed) == (3, 0, False)
    assert ranges(rounds, begun.id) == [(g, 0, None, 0, False) for g in range(3)]


def test_what_a_worker_sends_waits_for_the_receiver(outbox: Outbox, rounds: Rounds) -> None:
    worker = at_work(rounds)
    sent = artifacts(0, 0, 1) + artifacts(1, 0)
    assert rounds.keep(worker.token, sent) == Kept(3, 0, 0, URL)
    post = outbox.next_post(URL, 100)
    assert post is not None
    assert (json.loads(post.head), post.caller) == ({"block_hash": "b"}, "10.0.0.1")
    body = json.loads(f"[{','.join(post.pieces)}]")
    assert body == [{"nonce": nonce, "vector_b64": vector} for nonce, vector in sent]
    assert ranges(rounds, worker.round_id) == [(0, 0, None, 2, True), (1, 0, None, 1, True)]
    assert rounds.kept(worker.round_id) == 3


def test_a_post_that_comes_again_is_kept_once(outbox: Outbox, rounds: Rounds) -> None:
    worker = at_work(rounds)
    sent = artifacts(0, 0, 1, 3)  # 2 was not finite
    assert rounds.keep(worker.token, sent) == Kept(3, 0, 0, URL)
    assert rounds.keep(worker.token, sent) == Kept(0, 3, 0, URL)
    again = sent + artifacts(0, 2, 4)
    assert rounds.keep(worker.token, again) == Kept(1, 4, 0, URL)
    assert rounds.kept(worker.round_id) == 4
    assert waiting(outbox) == [nonce for nonce, _ in artifacts(0, 0, 1, 3, 4)]


def test_the_same_nonce_twice_in_one_post_is_kept_once(outbox: Outbox, rounds: Rounds) -> None:
    worker = at_work(rounds)
    assert rounds.keep(worker.token, artifacts(0, 0, 0, 1)) == Kept(2, 1, 0, URL)
    assert len(waiting(outbox)) == 2


def test_nonces_of_another_node_and_of_another_worker_are_not_kept(
    outbox: Outbox, rounds: Rounds
) -> None:
    begun = rounds.begin(SPEC, GROUPS)
    worker, other = rounds.hire(begun.id, 5001, 1), rounds.hire(begun.id, 5002, 1)
    mine, its = rounds.shares(begun.id)
    rounds.give([mine], worker)
    rounds.give([its], other)
    sent = [(2, "x"), *artifacts(1, 0), *artifacts(0, 0), (-3, "x")]
    assert rounds.keep(worker.token, sent) == Kept(1, 1, 2, URL)
    assert rounds.keep(other.token, artifacts(1, 0)) == Kept(1, 0, 0, URL)
    assert waiting(outbox) == [1, 5]


def test_a_share_that_somebody_has_is_given_to_nobody_else(rounds: Rounds) -> None:
    begun = rounds.begin(SPEC, GROUPS)
    first, second = rounds.hire(begun.id, 5001, 1), rounds.hire(begun.id, 5002, 1)
    shares = rounds.shares(begun.id)
    rounds.give(shares[:1], first)
    with pytest.raises(StoreError, match="1 of 2 shares"):
        rounds.give(shares, second)
    assert [share.worker_id for share in rounds.shares(begun.id)] == [first.id, None]


def test_a_cut_share_is_kept_from_both_sides(outbox: Outbox, rounds: Rounds) -> None:
    """The donor's last posts arrive after somebody else goes on behind its end."""
    donor = at_work(rounds)
    rounds.keep(donor.token, artifacts(0, 0))
    rounds.cut(rounds.shares(donor.round_id)[0], 3)
    assert ranges(rounds, donor.round_id)[:2] == [(0, 0, 3, 1, True), (0, 3, None, 3, False)]
    taker = rounds.hire(donor.round_id, 5002, 1)
    rounds.give([rounds.shares(donor.round_id)[1]], taker)
    assert rounds.keep(taker.token, artifacts(0, 3, 4)) == Kept(2, 0, 0, URL)
    assert rounds.keep(donor.token, artifacts(0, 1, 2, 3)) == Kept(2, 1, 0, URL)
    assert waiting(outbox) == [nonce for nonce, _ in artifacts(0, 0, 3, 4, 1, 2)]
    assert ranges(rounds, donor.round_id)[0] == (0, 3, None, 5, True)  # the donor's is complete
    assert rounds.keep(donor.token, artifacts(0, 1, 2)) == Kept(0, 2, 0, URL)


def test_a_range_ends_whether_or_not_its_last_vectors_are_finite(
    outbox: Outbox, rounds: Rounds
) -> None:
    """A nonce without a vector moves its share and is sent to nobody."""
    donor = at_work(rounds)
    rounds.cut(rounds.shares(donor.round_id)[0], 4)
    bad = [(nonce, "") for nonce, _ in artifacts(0, 1, 2, 3)]
    assert rounds.keep(donor.token, [*artifacts(0, 0), bad[0]]) == Kept(1, 0, 0, URL)
    assert ranges(rounds, donor.round_id)[0] == (0, 0, 4, 2, True)
    assert rounds.keep(donor.token, bad) == Kept(0, 1, 0, URL)
    assert ranges(rounds, donor.round_id) == [(0, 4, None, 4, False), (1, 0, None, 0, True)]
    assert rounds.kept(donor.round_id) == 1
    assert waiting(outbox) == [nonce for nonce, _ in artifacts(0, 0)]


def test_a_cut_of_nothing_leaves_no_empty_share(rounds: Rounds) -> None:
    donor = at_work(rounds)
    rounds.cut(rounds.shares(donor.round_id)[0], 0)
    assert ranges(rounds, donor.round_id) == [(0, 0, None, 0, False), (1, 0, None, 0, True)]


def test_a_cut_below_what_is_kept_takes_nothing_back(outbox: Outbox, rounds: Rounds) -> None:
    donor = at_work(rounds)
    before = rounds.shares(donor.round_id)[0]
    rounds.keep(donor.token, artifacts(0, 0, 1, 2))
    rounds.cut(before, 1)
    assert ranges(rounds, donor.round_id)[0] == (0, 3, None, 3, False)


def test_a_share_is_cut_once(rounds: Rounds) -> None:
    donor = at_work(rounds)
    share = rounds.shares(donor.round_id)[0]
    rounds.cut(share, 3)
    with pytest.raises(StoreError, match="read the shares again"):
        rounds.cut(share, 2)
    with pytest.raises(StoreError, match="read the shares again"):
        rounds.cut(Share(10_000, None, 0, 0, None, 0), 2)


def test_a_dismissed_worker_is_heard_no_more(outbox: Outbox, rounds: Rounds) -> None:
    worker = at_work(rounds)
    rounds.keep(worker.token, artifacts(0, 0, 1))
    rounds.dismiss(worker)
    assert ranges(rounds, worker.round_id) == [(0, 2, None, 2, False), (1, 0, None, 0, False)]
    assert rounds.keep(worker.token, artifacts(0, 2)) is None
    assert rounds.keep("no such token", artifacts(0, 2)) is None
    after = rounds.hire(worker.round_id, 5002, 1)
    assert after.token != worker.token
    rounds.give(rounds.shares(worker.round_id), after)
    assert rounds.keep(after.token, artifacts(0, 1, 2)) == Kept(1, 1, 0, URL)
    assert waiting(outbox) == [nonce for nonce, _ in artifacts(0, 0, 1, 2)]


def test_late_artifacts_of_an_ended_round_are_kept(outbox: Outbox, rounds: Rounds) -> None:
    """After everything before them was delivered and forgotten, too, and as one campaign."""
    worker = at_work(rounds)
    rounds.keep(worker.token, artifacts(0, 0))
    rounds.end(worker.round_id)
    assert waiting(outbox) == [1]
    assert rows(outbox)["assay_outbox_campaigns"] == 0
    for position in (1, 2):
        assert rounds.keep(worker.token, artifacts(0, position)) == Kept(1, 0, 0, URL)
    assert rows(outbox)["assay_outbox_campaigns"] == 1
    assert rounds.keep(worker.token, artifacts(0, 0, 1)) == Kept(0, 2, 0, URL)
    assert waiting(outbox) == [nonce for nonce, _ in artifacts(0, 1, 2)]


def test_a_round_that_tells_nobody_counts_only(outbox: Outbox, rounds: Rounds) -> None:
    worker = at_work(rounds, replace(SPEC, url=None))
    assert rounds.keep(worker.token, artifacts(0, 0, 1)) == Kept(2, 0, 0, None)
    assert rounds.keep(worker.token, artifacts(0, 1)) == Kept(0, 1, 0, None)
    assert rounds.kept(worker.round_id) == 2
    assert outbox.waiting() == {}
    rounds.end(worker.round_id)
    assert rounds.begin(replace(SPEC, url=None), GROUPS).id != worker.round_id


def test_an_interrupted_round_is_taken_up_where_it_was(database: str) -> None:
    before = Outbox(database)
    rounds = Rounds(before)
    worker = at_work(rounds)
    rounds.keep(worker.token, artifacts(0, 0, 1))
    before.close()  # the round is open, as after a crash

    after = Outbox(database)
    rounds = Rounds(after)
    assert rounds.keep(worker.token, artifacts(0, 2)) is None  # its process ended with the node
    begun = rounds.begin(SPEC, 5)
    assert (begun.id, begun.n_groups, begun.kept) == (worker.round_id, GROUPS, 2)
    assert begun.resumed
    assert ranges(rounds, begun.id) == [(0, 2, None, 2, False), (1, 0, None, 0, False)]
    again = rounds.hire(begun.id, 5001, 1)
    rounds.give(rounds.shares(begun.id), again)
    rounds.keep(again.token, artifacts(0, 2))
    post = after.next_post(URL, 1000)
    assert post is not None
    assert post.count == 3  # one campaign, before and after
    after.close()


def test_a_round_begun_without_an_end_is_taken_up_with_all_its_classes(rounds: Rounds) -> None:
    """A node that failed between two steps: nobody may keep a class that nobody mines."""
    lost = at_work(rounds)
    rounds.keep(lost.token, artifacts(1, 0))
    begun = rounds.begin(SPEC, GROUPS)
    assert (begun.id, begun.resumed) == (lost.round_id, True)
    assert ranges(rounds, begun.id) == [(0, 0, None, 0, False), (1, 1, None, 1, False)]
    assert rounds.keep(lost.token, artifacts(0, 0)) is None


@pytest.mark.parametrize(
    "other", [replace(SPEC, identity="other work"), replace(SPEC, url="http://another")]
)
def test_another_round_ends_those_before(database: str, other: RoundSpec) -> None:
    outbox = Outbox(database)
    rounds = Rounds(outbox)
    first = at_work(rounds)
    second = rounds.begin(other, GROUPS)
    assert (second.id != first.round_id, second.resumed) == (True, False)
    assert rounds.keep(first.token, artifacts(0, 0)) == Kept(1, 0, 0, URL)  # late
    assert rounds.begin(SPEC, GROUPS).resumed is False
    outbox.close()


def test_an_ended_round_begins_anew(rounds: Rounds) -> None:
    first = at_work(rounds)
    rounds.end(first.round_id)
    rounds.end(first.round_id)
    again = rounds.begin(SPEC, GROUPS)
    assert (again.id != first.round_id, again.resumed) == (True, False)


def test_rounds_long_past_leave_nothing_behind(
    outbox: Outbox, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = at_work(rounds)
    rounds.keep(first.token, artifacts(0, 0))
    second = at_work(rounds, replace(SPEC, identity="second"))
    assert rows(outbox)["assay_rounds"] == 2  # the first one's last artifacts may be on their way
    monkeypatch.setattr(rounds_module, "LATE_WITHIN", -1.0)
    third = rounds.begin(replace(SPEC, identity="third"), GROUPS)
    assert rounds.keep(first.token, artifacts(0, 1)) is None
    assert rounds.shares(first.round_id) == rounds.shares(second.round_id) == []
    assert len(rounds.shares(third.id)) == GROUPS
    assert waiting(outbox) == [1]
    assert rows(outbox) == {
        "assay_rounds": 1,
        "assay_round_workers": 0,
        "assay_round_shares": GROUPS,
        "assay_outbox_campaigns": 1,
    }


def test_ended_rounds_without_workers_are_forgotten_at_once(outbox: Outbox, rounds: Rounds) -> None:
    worker = at_work(rounds)
    rounds.dismiss(worker)
    rounds.end(worker.round_id)
    rounds.begin(replace(SPEC, identity="second"), GROUPS)
    assert rows(outbox)["assay_rounds"] == 1


def test_rounds_of_another_version_are_refused(outbox: Outbox, rounds: Rounds) -> None:
    with outbox.write() as connection:
        connection.execute(META.update().values(version=99))
    with pytest.raises(StoreError, match="version 99"):
        Rounds(outbox)
    with outbox.write() as connection:
        connection.execute(META.update().values(version=1))
    Rounds(outbox)


def test_threads_keep_the_same_posts_at_once(outbox: Outbox, rounds: Rounds) -> None:
    """Posts whose answer took too long: the repeat and the first arrive together."""
    worker = at_work(rounds)

    def send(group_id: int) -> list[int]:
        posts = [artifacts(group_id, *range(at, at + 5)) for at in range(0, 50, 5)]
        answers = [rounds.keep(worker.token, post) for post in posts]
        return [answer.kept for answer in answers if answer is not None]

    with ThreadPoolExecutor(4) as pool:
        kept = [sum(one) for one in pool.map(send, [0, 1, 0, 1])]
    assert sum(kept) == 100
    sent = waiting(outbox)
    assert len(sent) == len(set(sent)) == 100
