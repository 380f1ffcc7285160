"""The outbox on SQLite and on a real PostgreSQL: nothing lost, nothing doubled (F46)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from assay.errors import StoreError
from assay.store.outbox import Campaign, Outbox, Post, Waiting
from assay.store.outbox_tables import META

ROOT = Path(__file__).parents[2]
URL = "http://receiver"


@pytest.fixture
def outbox(database: str) -> Iterator[Outbox]:
    opened = Outbox(database)
    yield opened
    opened.close()


def campaign(identity: str = "", url: str = URL) -> Campaign:
    return Campaign(url, "10.0.0.1", "generated", {"block_hash": "b", "node_id": 1}, identity)


def posted(outbox: Outbox, most: int = 100) -> Post:
    post = outbox.next_post(URL, most)
    assert post is not None
    return post


def test_pieces_leave_in_order_under_a_key_that_stays(outbox: Outbox) -> None:
    opened = outbox.open_campaign(campaign("round"))
    for number in range(5):
        outbox.append(opened.id, 10, f'"piece {number}"', 10 * (number + 1))
    first = posted(outbox, 25)
    assert (first.pieces, first.count) == (('"piece 0"', '"piece 1"'), 20)
    outbox.failed(first.id, "no answer\0")
    again = posted(outbox, 100)
    assert (again.key, again.pieces, again.attempts) == (first.key, first.pieces, 1)
    outbox.accepted(first.id)
    rest = posted(outbox, 100)
    assert rest.key != first.key
    assert rest.count == 30
    assert outbox.waiting() == {URL: Waiting(30, 0)}


def test_what_a_crash_interrupted_is_taken_up(database: str) -> None:
    before = Outbox(database)
    opened = before.open_campaign(campaign("round"))
    before.append(opened.id, 2, '"a"', 7)
    sealed = posted(before)
    before.close()  # its campaign is still open, as after a crash

    after = Outbox(database)
    taken = after.open_campaign(campaign("round"))
    assert (taken.id, taken.position) == (opened.id, 7)
    post = posted(after)
    assert (post.key, post.pieces, post.head) == (sealed.key, sealed.pieces, sealed.head)
    after.close()


def test_another_round_begins_at_nought(outbox: Outbox) -> None:
    first = outbox.open_campaign(campaign("round"))
    outbox.append(first.id, 1, '"a"', 9)
    other = outbox.open_campaign(campaign("another round"))
    assert (other.id != first.id, other.position) == (True, 0)


def test_one_outbox_one_server(database: str) -> None:
    first = Outbox(database)
    with pytest.raises(StoreError, match="POC_STORE"):
        Outbox(database)
    first.close()
    Outbox(database).close()


def test_a_server_that_is_killed_frees_its_outbox(database: str) -> None:
    script = (
        "import sys\n"
        "from assay.store.outbox import Campaign, Outbox\n"
        "outbox = Outbox(sys.argv[1])\n"
        "campaign = Campaign('http://receiver', None, 'generated', {}, 'round')\n"
        "opened = outbox.open_campaign(campaign)\n"
        "outbox.append(opened.id, 3, '1,2,3', 3)\n"
        "print('kept', flush=True)\n"
        "sys.stdin.read()\n"
    )
    victim = subprocess.Popen(
        [sys.executable, "-c", script, database],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert victim.stdin is not None
    assert victim.stdout is not None
    with victim.stdin, victim.stdout:
        assert victim.stdout.readline() == b"kept\n"
        victim.kill()
        victim.wait()
    outbox = Outbox(database)
    assert posted(outbox).pieces == ("1,2,3",)
    outbox.close()


def test_a_newer_outbox_is_refused(database: str) -> None:
    outbox = Outbox(database)
    with outbox._engine.begin() as connection:
        connection.execute(META.update().values(version=99))
    outbox.close()
    with pytest.raises(StoreError, match="99"):
        Outbox(database)


def test_threads_append_and_send_at_once(outbox: Outbox) -> None:
    opened = outbox.open_campaign(campaign("round"))

    def append(number: int) -> None:
        outbox.append(opened.id, 1, str(number), number)

    sent: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        appended = [pool.submit(append, number) for number in range(60)]
        while len(sent) < 60:
            post = outbox.next_post(URL, 7)
            if post is not None:
                sent += post.pieces
                outbox.accepted(post.id)
    for one in appended:
        one.result()
    assert sorted(map(int, sent)) == list(range(60))


def test_finished_campaigns_leave_nothing_behind(outbox: Outbox) -> None:
    opened = outbox.open_campaign(campaign())
    outbox.append(opened.id, 3, "1,2,3", 3)
    outbox.close_campaign(opened.id)
    outbox.accepted(posted(outbox).id)
    outbox.add(Campaign(URL, None, "validated", {"n_total": 3}))
    assert outbox.waiting() == {URL: Waiting(0, 1)}
    outbox.accepted(posted(outbox).id)
    assert outbox.next_post(URL, 10) is None
    with outbox._engine.connect() as connection:
        for table in ("campaigns", "posts", "pieces"):
            rows = connection.exec_driver_sql(f"select count(*) from assay_outbox_{table}")
            assert rows.scalar() == 0


def test_a_database_that_is_not_there_is_named_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(StoreError) as caught:
        Outbox("postgresql+psycopg://assay:hunter2@127.0.0.1:1/none")
    assert "postgresql+psycopg://assay:***@127.0.0.1:1/none" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_an_outbox_in_memory_is_one_for_all_threads() -> None:
    """A backend of a node keeps its artifacts so; each thread had an empty database of its own."""
    outbox = Outbox("sqlite://")
    opened = outbox.open_campaign(campaign("round"))
    with ThreadPoolExecutor(4) as pool:
        appended = [pool.submit(outbox.append, opened.id, 1, str(n), n) for n in range(40)]
        seen = [pool.submit(outbox.waiting) for _ in range(40)]
        for one in (*appended, *seen):
            one.result()
    assert outbox.waiting() == {URL: Waiting(40, 0)}
    assert posted(outbox).count == 40
    outbox.close()
