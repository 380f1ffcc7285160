"""Jobs whose callback somebody waits for, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from assay.store.outbox import Outbox, Waiting
from assay.store.pow_jobs import PowJobs
from assay.store.rounds import Rounds

URL = "http://receiver"


@pytest.fixture
def outbox(database: str) -> Iterator[Outbox]:
    opened = Outbox(database)
    Rounds(opened)
    yield opened
    opened.close()


def test_a_callback_is_kept_once(outbox: Outbox) -> None:
    jobs = PowJobs(outbox)
    job = jobs.add(URL, "10.0.0.1", "{}")
    jobs.name(job.token, "5001:abc")
    done = jobs.finish(job.token, "generated", {"request_id": "5001:abc"}, 2, '"a","b"')
    assert done is not None
    assert (done.id, done.url, done.caller) == ("5001:abc", URL, "10.0.0.1")
    assert jobs.finish(job.token, "generated", {}, 2, '"a","b"') is None
    assert outbox.waiting() == {URL: Waiting(2, 0)}
    assert jobs.all() == []


def test_a_verdict_waits_as_a_result(outbox: Outbox) -> None:
    jobs = PowJobs(outbox)
    job = jobs.add(URL, None, "{}")
    assert jobs.finish(job.token, "validated", {"n_total": 3}, 0, "") is not None
    assert outbox.waiting() == {URL: Waiting(0, 1)}
    post = outbox.next_post(URL, 10)
    assert post is not None
    assert (post.kind, post.head) == ("validated", '{"n_total": 3}')


def test_a_callback_before_the_answer_to_the_request_is_kept_once(outbox: Outbox) -> None:
    jobs = PowJobs(outbox)
    job = jobs.add(URL, None, "{}")
    assert jobs.finish(job.token, "generated", {}, 1, '"a"') is not None
    jobs.name(job.token, "5001:abc")
    assert jobs.all() == []
    assert jobs.finish(job.token, "generated", {}, 1, '"a"') is None


def test_a_dropped_job_keeps_nothing(outbox: Outbox) -> None:
    jobs = PowJobs(outbox)
    job, other = jobs.add(URL, None, "{}"), jobs.add(URL, None, "{}")
    jobs.drop(job.token)
    assert jobs.finish(job.token, "generated", {}, 1, '"a"') is None
    assert outbox.waiting() == {}
    assert [one.token for one in jobs.all()] == [other.token]


def test_named_jobs_outlive_a_restart_and_unnamed_do_not(database: str) -> None:
    """A client that was never told an id asks again; its job would be done twice."""
    before = Outbox(database)
    Rounds(before)
    jobs = PowJobs(before)
    named, unnamed = jobs.add(URL, "10.0.0.1", '{"nonces": [1]}'), jobs.add(URL, None, "{}")
    jobs.name(named.token, "5001:abc")
    before.close()

    after = Outbox(database)
    Rounds(after)
    jobs = PowJobs(after)
    [left] = jobs.all()
    assert (left.token, left.id, left.body) == (named.token, "5001:abc", '{"nonces": [1]}')
    assert left.begun == named.begun
    assert jobs.finish(unnamed.token, "generated", {}, 1, '"a"') is None
    assert jobs.finish(named.token, "generated", {}, 1, '"a"') == left
    after.close()


def test_threads_finish_one_job_once(outbox: Outbox) -> None:
    jobs = PowJobs(outbox)
    job = jobs.add(URL, None, "{}")
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(jobs.finish, job.token, "generated", {}, 1, '"a"') for _ in range(8)]
        assert sum(one.result() is not None for one in done) == 1
    assert outbox.waiting() == {URL: Waiting(1, 0)}
