"""A node's claims and verdicts lie in the same database as its rounds and outbox."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tests.support.results import make_result

from assay.store.database import Store
from assay.store.outbox import Campaign, Outbox, Waiting
from assay.store.rounds import Rounds
from assay.store.rounds_tables import RoundSpec

URL = "http://receiver"
EACH = 25


def test_verdicts_and_rounds_are_written_at_once(database: str) -> None:
    """None of them is told that the database is locked, and nothing of either is lost."""
    outbox = Outbox(database)
    rounds = Rounds(outbox)
    begun = rounds.begin(RoundSpec("work", URL, None, {}, 0, 1), 2)
    workers = [rounds.hire(begun.id, port, 1) for port in (5001, 5002)]
    for share, worker in zip(rounds.shares(begun.id), workers, strict=True):
        rounds.give([share], worker)
    together = threading.Barrier(5)

    def judge(thread: int) -> None:
        with Store(database) as store:
            together.wait()
            for number in range(EACH):
                store.add(make_result(f"claim {thread} {number}"))
                store.latest(3)

    def mine(group_id: int) -> None:
        together.wait()
        for position in range(EACH):
            answer = rounds.keep(workers[group_id].token, [(group_id + 2 * position, "AAAA")])
            assert answer is not None
            assert answer.kept == 1

    def send() -> int:
        together.wait()
        sent = 0
        while sent < 2 * EACH:
            post = outbox.next_post(URL, 7)
            if post is not None:
                outbox.accepted(post.id)
                sent += post.count
        return sent

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(judge, 0), pool.submit(judge, 1)]
        jobs += [pool.submit(mine, 0), pool.submit(mine, 1)]
        sent = pool.submit(send)
        for job in jobs:
            job.result()
        assert sent.result() == 2 * EACH
    assert rounds.kept(begun.id) == 2 * EACH
    assert outbox.waiting() == {}
    outbox.close()
    with Store(database) as store:
        assert len(store.results()) == 2 * EACH


def test_a_verdict_waits_for_a_long_transaction_of_the_outbox(database: str) -> None:
    """The moment of contention, held still: a write begins while another one is under way."""
    outbox = Outbox(database)
    opened = outbox.open_campaign(Campaign(URL, None, "generated", {}))
    with Store(database) as store, ThreadPoolExecutor(2) as pool:
        begun = threading.Event()

        def add() -> None:
            begun.set()
            store.add(make_result("claim"))

        with outbox.write() as connection:
            connection.exec_driver_sql("update assay_outbox_campaigns set position = 1")
            adding = pool.submit(add)
            begun.wait()
            assert store.results() == []  # reading waits for nobody
            assert not adding.done()
        adding.result()
        assert len(store.results()) == 1
    outbox.append(opened.id, 1, '"a"', 2)
    assert outbox.waiting() == {URL: Waiting(1, 0)}
    outbox.close()
