"""Random histories of a node's rounds against a reference model, crashes anywhere among them.

A crash is one between two operations, or in the middle of one: at a random statement of it. What the
outbox holds and what was delivered must be what the model says; every position of every class arrives
at most once, and lies either among what arrived or in exactly one share. Some vectors are not finite:
their nonces arrive without one, and no receiver hears of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import create_engine, event

from assay.poc.nonces import place
from assay.store import one_server
from assay.store.outbox import Outbox
from assay.store.rounds import Artifact, Rounds
from assay.store.rounds_tables import RoundSpec, Worker

NODE_ID, NODE_COUNT, GROUPS = 1, 3, 2
URLS = ("http://receiver", "http://another", None)
ENDLESS = 10**6
Place = tuple[int, int, int]
"""Round, class, position."""


class CrashError(Exception):
    """The node dies here."""


def finite(position: int) -> bool:
    return position % 4 != 2


@dataclass(eq=False)
class Backend:
    """What a process knows: the ranges it mines ``[class, next, end]`` and posts without an answer."""

    worker: Worker
    ranges: list[list[int]] = field(default_factory=list)
    posts: list[list[Place]] = field(default_factory=list)


class NodeMachine(RuleBasedStateMachine):
    """``seen``: everything a backend sent and the node must have taken, in any order."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self.crash_in: int | None = None
        self._open()
        self.number = 0
        self.round_id: int | None = None
        self.open: dict[int, tuple[str, str | None]] = {}
        self.works: dict[int, str | None] = {}
        self.backends: list[Backend] = []
        self.former: list[Backend] = []
        self.seen: set[Place] = set()
        self.delivered: list[Place] = []

    @property
    def kept(self) -> set[Place]:
        return {where for where in self.seen if finite(where[2])}

    def _open(self) -> None:
        self.outbox = Outbox(self.url)
        if "://" not in self.url:
            # No power is cut here; waiting for the disk would be most of the test.
            connection = self.outbox._engine.raw_connection()
            connection.cursor().execute("PRAGMA synchronous=OFF")
            connection.close()
        self.rounds = Rounds(self.outbox)
        event.listen(self.outbox._engine, "before_cursor_execute", self._maybe_crash)

    def teardown(self) -> None:
        try:
            self._finish()
        finally:
            self.outbox.close()

    @initialize(url=st.sampled_from(URLS))
    def first(self, url: str | None) -> None:
        self._begin("work 0", url)
        self._hire(GROUPS)

    @rule(fresh=st.booleans(), url=st.sampled_from(URLS))
    def begin(self, fresh: bool, url: str | None) -> None:
        self.number += int(fresh)
        self._begin(f"work {self.number}", url)
        self._hire(GROUPS)

    def _begin(self, identity: str, url: str | None) -> None:
        head = {"identity": identity}
        begun = self.rounds.begin(RoundSpec(identity, url, None, head, NODE_ID, NODE_COUNT), GROUPS)
        known = [one for one, spec in self.open.items() if spec == (identity, url)]
        assert begun.resumed == bool(known)
        if known:
            assert begun.id == known[0]
            assert begun.kept == sum(where[0] == begun.id for where in self.kept)
            self._lose([one for one in self.backends if one.worker.round_id == begun.id])
        self.round_id, self.open = begun.id, {begun.id: (identity, url)}
        self.works[begun.id] = url

    @precondition(lambda self: self.round_id is not None)
    @rule(really=st.sampled_from([False, False, True]))
    def end(self, really: bool) -> None:
        if really:
            assert self.round_id is not None
            self.rounds.end(self.round_id)
            self.round_id, self.open = None, {}

    @precondition(lambda self: self.round_id is not None)
    @rule(most=st.integers(1, 3))
    def hire(self, most: int) -> None:
        self._hire(most)

    def _hire(self, most: int) -> None:
        """A backend with some of what nobody has."""
        assert self.round_id is not None
        free = [one for one in self.rounds.shares(self.round_id) if one.worker_id is None][:most]
        backend = Backend(self.rounds.hire(self.round_id, 5001, 1))
        self.backends.append(backend)
        self.rounds.give(free, backend.worker)
        backend.ranges += [
            [one.group_id, one.reached, ENDLESS if one.stop is None else one.stop] for one in free
        ]

    @precondition(lambda self: self.backends)
    @rule(data=st.data())
    def mine(self, data: st.DataObject) -> None:
        self._mine(data.draw(st.sampled_from(self.backends)), data.draw(st.integers(1, 4)))

    def _mine(self, backend: Backend, count: int) -> None:
        post = []
        for one in backend.ranges:
            for position in range(one[1], min(one[1] + count, one[2])):
                one[1] = position + 1
                post.append((backend.worker.round_id, one[0], position))
        if post:
            backend.posts.append(post)

    @precondition(lambda self: self.backends)
    @rule(
        data=st.data(),
        sent=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=5),
        crash=st.none() | st.integers(4, 9),
    )
    def mine_and_send(
        self, data: st.DataObject, sent: list[tuple[int, bool]], crash: int | None
    ) -> None:
        """Posts in order; one whose answer gets lost comes again. The last may meet a crash."""
        backend = data.draw(st.sampled_from(self.backends))
        for number, (count, answered) in enumerate(sent, start=1):
            self._mine(backend, count)
            if backend.posts and not self._send(backend, crash if number == len(sent) else None):
                return
            if answered:
                backend.posts = backend.posts[1:]

    def _send(self, backend: Backend, crash: int | None) -> bool:
        """False when the node died of it."""
        post = backend.posts[0]
        new = [where for where in post if where not in self.seen]
        with self._crashing(crash) as died:
            answer = self.rounds.keep(backend.worker.token, _artifacts(post))
        if died():
            return False
        assert answer is not None
        repeated = len(post) - len(new)
        kept = sum(finite(where[2]) for where in new)
        assert (answer.kept, answer.repeated, answer.foreign) == (kept, repeated, 0)
        assert answer.url == self.works[backend.worker.round_id]
        self.seen.update(new)
        return True

    @precondition(lambda self: any(one.posts for one in self.former))
    @rule(data=st.data())
    def send_of_a_former_worker(self, data: st.DataObject) -> None:
        backend = data.draw(st.sampled_from([one for one in self.former if one.posts]))
        assert self.rounds.keep(backend.worker.token, _artifacts(backend.posts.pop(0))) is None

    @precondition(lambda self: self.backends)
    @rule(data=st.data(), crash=st.none() | st.integers(1, 4))
    def dismiss(self, data: st.DataObject, crash: int | None) -> None:
        backend = data.draw(st.sampled_from(self.backends))
        with self._crashing(crash) as died:
            self.rounds.dismiss(backend.worker)
        if not died():
            self._lose([backend])

    @precondition(lambda self: self.backends)
    @rule(data=st.data(), crash=st.none() | st.integers(1, 6))
    def release(self, data: st.DataObject, crash: int | None) -> None:
        """A backend lets a class go that it mines to the end; what it mined before is on its way."""
        backend = data.draw(st.sampled_from(self.backends))
        endless = [one for one in backend.ranges if one[2] == ENDLESS]
        if not endless:
            return
        chosen = data.draw(st.sampled_from(endless))
        [share] = [
            one
            for one in self.rounds.shares(backend.worker.round_id)
            if one.worker_id == backend.worker.id
            if (one.group_id, one.stop) == (chosen[0], None)
        ]
        with self._crashing(crash) as died:
            self.rounds.cut(share, chosen[1])
        if not died():
            chosen[2] = chosen[1]

    @rule(most=st.integers(1, 20), answered=st.booleans(), crash=st.none() | st.integers(1, 5))
    def deliver(self, most: int, answered: bool, crash: int | None) -> None:
        for url in filter(None, URLS):
            with self._crashing(crash) as died:
                post = self.outbox.next_post(url, most)
            if died():
                return
            if post is not None and answered:
                self.delivered += self._places(post.pieces, url)
                self.outbox.accepted(post.id)

    @rule()
    def crash_between(self) -> None:
        self.crash()
        if self.round_id is not None:
            self._hire(GROUPS)

    def crash(self) -> None:
        """Between two operations; the next run of the node opens the store again."""
        self.outbox.close()
        self._open()
        self._lose(list(self.backends))

    @invariant()
    def nothing_lost_nothing_doubled(self) -> None:
        waits = [
            where for url in filter(None, URLS) for where in self._places(self._pieces(url), url)
        ]
        have = [*waits, *self.delivered]
        assert len(have) == len(set(have))
        assert set(have) == {where for where in self.kept if self.works[where[0]] is not None}

    @invariant()
    def every_position_has_come_or_is_in_one_share(self) -> None:
        if self.round_id is None:
            return
        seen = {(group, position) for one, group, position in self.seen if one == self.round_id}
        end = max((position for _, position in seen), default=0) + 5
        covered: list[tuple[int, int]] = []
        for share in self.rounds.shares(self.round_id):
            stop = end if share.stop is None else min(share.stop, end)
            assert share.reached < stop, "a complete share is still there"
            covered += [(share.group_id, p) for p in range(share.reached, stop)]
        assert len(covered) == len(set(covered))
        everything = {(g, p) for g in range(GROUPS) for p in range(end)}
        assert everything - set(covered) == seen
        assert not seen & set(covered)

    def _finish(self) -> None:
        """One backend mines all that is left of the open round: every position is kept, once."""
        if self.round_id is None:
            return
        self.crash()
        assert self.round_id is not None
        worker = self.rounds.hire(self.round_id, 5001, 2)
        shares = self.rounds.shares(self.round_id)
        self.rounds.give(shares, worker)
        mine = {(g, p) for one, g, p in self.seen if one == self.round_id}
        end = max((p for _, p in mine), default=0) + 4
        for share in shares:
            stop = end if share.stop is None else min(share.stop, end)
            post = [(self.round_id, share.group_id, p) for p in range(share.reached, stop)]
            answer = self.rounds.keep(worker.token, _artifacts(post))
            assert answer is not None
            assert answer.kept == sum(finite(p) for _, _, p in post)
            self.seen.update(post)
        self.nothing_lost_nothing_doubled()
        mine = {(g, p) for one, g, p in self.seen if one == self.round_id}
        assert mine == {(g, p) for g in range(GROUPS) for p in range(end)}

    def _lose(self, backends: list[Backend]) -> None:
        """Their workers are no more; what they still send is heard by nobody."""
        self.backends = [one for one in self.backends if one not in backends]
        self.former = [*self.former, *backends][-5:]

    @contextmanager
    def _crashing(self, statements: int | None) -> Iterator[Callable[[], bool]]:
        """Die before the ``statements``-th statement in here, if there are so many."""
        dead = False
        self.crash_in = statements
        try:
            yield lambda: dead
        except CrashError:
            dead = True
        finally:
            self.crash_in = None
        if dead:
            self.crash()

    def _maybe_crash(self, *_: Any) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                raise CrashError

    def _pieces(self, url: str) -> list[str]:
        query = (
            "select p.body from assay_outbox_pieces p join assay_outbox_campaigns c"
            f" on p.campaign_id = c.id where c.url = '{url}'"
        )
        with self.outbox.read() as connection:
            return list(connection.exec_driver_sql(query).scalars())

    def _places(self, pieces: Any, url: str) -> list[Place]:
        """The vector tells the round it was mined for."""
        found = []
        for artifact in json.loads(f"[{','.join(pieces)}]"):
            where = place(artifact["nonce"], NODE_ID, NODE_COUNT, GROUPS)
            assert where is not None
            round_id = int(artifact["vector_b64"])
            assert self.works[round_id] == url
            found.append((round_id, *where))
        return found


def _artifacts(places: list[Place]) -> list[Artifact]:
    return [
        (
            NODE_ID + (group_id + position * GROUPS) * NODE_COUNT,
            str(round_id) if finite(position) else "",
        )
        for round_id, group_id, position in places
    ]


def _run(fresh: Callable[[], str], examples: int) -> None:
    class Machine(NodeMachine):
        def __init__(self) -> None:
            self.url = fresh()
            super().__init__()

    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            phases=[phase for phase in Phase if phase is not Phase.explain],
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_sqlite_agrees_with_the_model() -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = iter(range(10**6))
        _run(lambda: str(Path(folder) / f"{next(made)}.db"), 40)


def test_postgresql_agrees_with_the_model(
    postgres_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long a busy server takes to see that the one before is gone.
    monkeypatch.setattr(one_server, "OWNER_GONE_WITHIN", 120.0)
    engine = create_engine(postgres_database)

    def fresh() -> str:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        return postgres_database

    _run(fresh, 8)
    engine.dispose()
