"""Shares on a server: what a coordinator above several servers moves between them while they mine."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.plugin.poc.fake import (
    CHAT,
    FakeEngine,
    Receiver,
    Running,
    init_body,
    running,
    until,
)

from assay.errors import StoreError
from assay.plugin.poc.failures import RefusedError
from assay.poc.bodies import ChangeShares
from assay.poc.nonces import place
from assay.store.outbox import Outbox

IDLE = {"status": "IDLE", "config": None, "stats": None}
OK = {"status": "OK", "pow_status": {"status": "GENERATING"}}


def share(group_id: int, start: int = 0, stop: int | None = None) -> dict[str, Any]:
    return {"group_id": group_id, "start": start, "stop": stop}


def of_class(nonces: list[int], group_id: int, n_groups: int) -> list[int]:
    """Positions of one class, in the order of the nonces; of node 0 of 1."""
    places = [place(nonce, 0, 1, n_groups) for nonce in nonces]
    return [found[1] for found in places if found is not None and found[0] == group_id]


async def change(server: Running, **body: Any) -> dict[str, Any]:
    answer = await server.post("/shares", body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def held(server: Running) -> list[dict[str, Any]]:
    return list(server.service.miner.status()["config"]["shares"])


async def test_without_shares_all_is_as_before(tmp_path: Path) -> None:
    store = tmp_path / "o.db"
    async with Receiver().serving() as receiver, running(store) as server:
        body = init_body(
            node_id=1, node_count=3, group_id=1, n_groups=2, batch_size=4, url=receiver.url
        )
        assert (await server.post("/init/generate", body)).json() == OK
        await until(lambda: len(server.engine.mined()) >= 40)
        status = await server.status()
        assert status["config"] == {
            "block_hash": "abc",
            "block_height": 7,
            "public_key": "node-key",
            "node_id": 1,
            "node_count": 3,
            "group_id": 1,
            "n_groups": 2,
            "url": receiver.url,
            "poc_stronger_rng": False,
            "model": "model",
            "seq_len": 16,
            "k_dim": 12,
            "batch_size": 4,
        }
        with sqlite3.connect(store) as database:
            query = "select identity from assay_outbox_campaigns"
            (identity,) = database.execute(query).fetchone()
        database.close()
        await server.post("/stop")
        assert server.engine.mined() == list(range(4, 4 + 6 * len(server.engine.mined()), 6))
        assert {len(batch) for batch in server.engine.batches[1:]} == {4}
    # What a crash left behind under an earlier version is taken up by this one.
    work = {
        "block_hash": "abc",
        "block_height": 7,
        "public_key": "node-key",
        "node_id": 1,
        "node_count": 3,
        "group_id": 1,
        "n_groups": 2,
        "params": {"model": "model", "seq_len": 16, "k_dim": 12},
        "poc_stronger_rng": False,
    }
    assert identity == hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()


async def test_a_run_of_shares_waits_at_its_end_and_stop_ends_it(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, running(tmp_path / "o.db") as server:
        # The body's own group_id is of no account.
        ranges = [share(2, 1, 3), share(0, 2, 5)]
        body = init_body(n_groups=3, group_id=1, batch_size=4, url=receiver.url, shares=ranges)
        assert (await server.post("/init/generate", body)).json() == OK
        await until(lambda: server.service.miner.status()["stats"]["total_processed"] == 5)
        await until(lambda: sorted(receiver.nonces()) == [5, 6, 8, 9, 12])
        assert server.engine.batches[1:] == [[5, 6, 8, 9], [12]]
        status = await server.status()
        assert status["status"] == "GENERATING"
        assert status["config"]["shares"] == []
        assert (await server.client.post(CHAT, json={})).status_code == 503  # the round goes on
        added = await change(server, url=receiver.url, add=[share(1, 0, 2)])
        shown = [{"group_id": 1, "position": 0, "stop": 2}]
        assert added == {"status": "OK", "released": [], "shares": shown}
        await until(lambda: server.engine.batches[3:] == [[1, 4]])
        await until(lambda: held(server) == [])
        assert (await server.post("/stop")).status_code == 200
        assert await server.status() == IDLE
        assert not server.gate.closed
        again = await server.post("/shares", {"url": receiver.url, "add": [share(1, 2, 3)]})
        assert (again.status_code, again.json()) == (409, {"detail": "nothing is mined"})


@pytest.mark.parametrize("marked", [False, True])
async def test_nonces_without_a_finite_vector_are_handed_over_when_asked(
    tmp_path: Path, marked: bool
) -> None:
    """A range that ends with one could else not be told from a range that is not done."""
    async with Receiver().serving() as receiver, running(tmp_path / "o.db") as server:
        server.engine.bad_nonces = lambda nonce: nonce in (5, 9)
        body = init_body(batch_size=2, url=receiver.url, shares=[share(0, 4, 10)])
        await server.post("/init/generate", body | ({"mark_failed": True} if marked else {}))
        wanted = [4, 5, 6, 7, 8, 9] if marked else [4, 6, 7, 8]
        await until(lambda: receiver.nonces() == wanted)
        await until(lambda: held(server) == [])
        sent = [one for _, _, post in receiver.taken for one in post["artifacts"]]
        assert [one["nonce"] for one in sent if not one["vector_b64"]] == ([5, 9] if marked else [])
        assert server.service.miner.status()["stats"]["total_failed"] == 2
        assert "mark_failed" not in (await server.status())["config"]


async def test_a_plain_run_that_was_changed_waits_too(tmp_path: Path) -> None:
    count = 2**31 + 1  # one nonce in class 0, and one in class 1
    async with running(tmp_path / "o.db") as server:
        server.engine.hold.clear()
        await server.post("/init/generate", init_body(node_count=count, n_groups=2))
        await until(lambda: server.engine.mined() == [0])
        assert "shares" not in (await server.status())["config"]
        before = await change(server)
        assert before["shares"] == [{"group_id": 0, "position": 1, "stop": None}]
        server.engine.hold.set()
        await until(lambda: server.service.miner.status()["stats"]["total_processed"] == 1)
        assert held(server) == before["shares"]
        moved = await change(server, release=[0], add=[share(1)])
        assert moved["released"] == [{"group_id": 0, "position": 1}]
        await until(lambda: server.engine.mined() == [0, count])
        assert server.service.miner.running


async def test_released_beside_a_batch_on_the_device(tmp_path: Path) -> None:
    """The batch that is out counts as mined; nothing after it is."""
    async with running(tmp_path / "o.db") as server:
        server.engine.hold.clear()
        body = init_body(n_groups=2, batch_size=5, shares=[share(0), share(1)])
        await server.post("/init/generate", body)
        await until(lambda: len(server.engine.mined()) == 5)
        answer = await change(server, release=[0], add=[share(0, 100, 102)])
        assert answer["released"] == [{"group_id": 0, "position": 3}]
        server.engine.hold.set()
        await until(lambda: len(server.engine.mined()) > 210)
        await server.post("/stop")
        mined = server.engine.mined()
        assert of_class(mined, 0, 2) == [0, 1, 2, 100, 101]
        ones = of_class(mined, 1, 2)
        assert ones == list(range(len(ones)))


async def test_released_while_a_batch_waits_for_the_device(tmp_path: Path) -> None:
    """Nonces chosen for a batch are mined, so they are below the position that is told."""
    async with running(tmp_path / "o.db") as server:
        server.engine.hold.clear()
        await server.post("/generate", {**init_body(), "nonces": [10**9]})
        await until(lambda: server.engine.mined() == [10**9])
        body = init_body(n_groups=2, batch_size=4, shares=[share(0), share(1)])
        await server.post("/init/generate", body)
        await until(lambda: held(server)[0]["position"] > 0)
        assert server.engine.mined() == [10**9]
        answer = await change(server, release=[0])
        assert answer["released"] == [{"group_id": 0, "position": 2}]
        server.engine.hold.set()
        await until(lambda: len(of_class(server.engine.mined(), 1, 2)) > 20)
        await server.post("/stop")
        assert of_class(server.engine.mined()[1:], 0, 2) == [0, 1]


async def test_classes_move_between_two_servers_and_none_is_lost(tmp_path: Path) -> None:
    """Sixty moves while both mine: the receiver has every nonce up to a point exactly once."""
    groups = 3
    async with (
        Receiver().serving() as receiver,
        running(tmp_path / "a.db", FakeEngine(seconds=0.0)) as first,
        running(tmp_path / "b.db", FakeEngine(seconds=0.0)) as second,
    ):
        for server, ranges in ((first, [share(0), share(1)]), (second, [share(2)])):
            body = init_body(n_groups=groups, batch_size=7, url=receiver.url, shares=ranges)
            assert (await server.post("/init/generate", body)).json() == OK
        owner = {0: first, 1: first, 2: second}
        for turn in range(60):
            group = turn % groups
            giver, taker = owner[group], second if owner[group] is first else first
            answer = await change(giver, url=receiver.url, release=[group])
            (released,) = answer["released"]
            assert released["group_id"] == group
            await change(taker, url=receiver.url, add=[share(group, released["position"])])
            owner[group] = taker
            seen = len(giver.engine.batches) + len(taker.engine.batches)
            await until(
                lambda a=giver, b=taker, n=seen: len(a.engine.batches) + len(b.engine.batches) > n
            )
        for server in (first, second):
            await server.post("/stop")
            await until(lambda s=server: not s.metric("assay_poc_artifacts_waiting"))
        nonces = receiver.nonces()
        assert sorted(nonces) == sorted(first.engine.mined() + second.engine.mined())
    for group in range(groups):
        positions = of_class(nonces, group, groups)
        assert len(positions) > 20
        assert sorted(positions) == list(range(len(positions)))


async def test_a_share_is_delivered_in_ascending_order(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, running(tmp_path / "o.db") as server:
        ranges = [share(0, 40), share(0, 3, 20), share(1)]
        await server.post(
            "/init/generate", init_body(n_groups=2, batch_size=5, url=receiver.url, shares=ranges)
        )
        await until(lambda: len(receiver.nonces()) > 200)
        await server.post("/stop")
        nonces = receiver.nonces()
        both = of_class(nonces, 0, 2)
        assert [p for p in both if p < 20] == list(range(3, 20))
        for positions in ([p for p in both if p >= 40], of_class(nonces, 1, 2)):
            assert positions == list(range(positions[0], positions[0] + len(positions)))


async def test_the_last_batch_waits_for_the_one_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop while a batch is being kept and another is out: kept in this order, or not in order."""
    append, calls, second = Outbox.append, [], threading.Event()

    def slow(outbox: Outbox, *arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 1:
            append(outbox, *arguments)
            second.set()
            return
        second.wait(1.0)  # what must not overtake it has this long to try
        append(outbox, *arguments)

    monkeypatch.setattr(Outbox, "append", slow)
    async with Receiver().serving() as receiver, running(tmp_path / "o.db") as server:
        body = init_body(batch_size=4, url=receiver.url, shares=[share(0)])
        server.engine.hold.clear()
        await server.post("/init/generate", body)
        await until(lambda: server.engine.mined() == list(range(4)))
        server.engine.hold.set()
        server.engine.hold = asyncio.Event()  # the next batch stays out
        await until(lambda: len(server.engine.mined()) == 8 and len(calls) == 1)
        stop = asyncio.create_task(server.post("/stop"))
        await until(lambda: not server.service.miner.running)
        server.engine.hold.set()
        assert (await stop).status_code == 200
        await until(lambda: len(receiver.nonces()) == 8)
        assert receiver.nonces() == list(range(8))


async def test_nothing_is_kept_after_a_batch_that_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The outbox refuses a batch while the next is out: that one is not kept above a hole."""
    append, calls = Outbox.append, []

    def full(outbox: Outbox, *arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise StoreError("the disk is full")
        append(outbox, *arguments)

    monkeypatch.setattr(Outbox, "append", full)
    async with Receiver().serving() as receiver, running(tmp_path / "o.db") as server:
        body = init_body(batch_size=4, url=receiver.url, shares=[share(0)])
        await server.post("/init/generate", body)
        await until(lambda: not server.service.miner.running)
        assert (await server.status())["error"] == "the disk is full"
        await server.post("/stop")
        await until(lambda: len(receiver.nonces()) == 4)
        assert len(calls) == 2
        assert receiver.nonces() == list(range(4))
    assert "were not kept: the disk is full" in caplog.text


BAD_SHARES = [
    ([], "shares: "),
    ("all", "shares: "),
    ([{}], "shares[0].group_id: "),
    ([{"group_id": 0, "end": 5}], "shares[0].end: "),
    ([{"group_id": -1}], "shares[0].group_id: "),
    ([{"group_id": 0, "start": -1}], "shares[0].start: "),
    ([{"group_id": 0, "start": "1"}], "shares[0].start: "),
    ([{"group_id": 0, "start": True}], "shares[0].start: "),
    ([{"group_id": 0, "start": 2**32}], "shares[0].start: "),
    ([{"group_id": 0, "stop": 2**32 + 1}], "shares[0].stop: "),
    ([share(0), share(1, 5, 5)], "shares[1].stop: 5 is not more than start, 5"),
    ([share(0), share(2)], "shares[1].group_id: 2 given for n_groups 2; ids start at 0"),
    ([share(0), share(0, 4, 9)], "shares[1]: overlaps shares[0] in class 0 at position 4"),
    ([share(0, n, n + 1) for n in range(1025)], "shares: "),
]


@pytest.mark.parametrize(("ranges", "says"), BAD_SHARES)
async def test_a_bad_share_names_its_field(tmp_path: Path, ranges: Any, says: str) -> None:
    async with running(tmp_path / "o.db") as server:
        answer = await server.post("/init/generate", init_body(n_groups=2, shares=ranges))
        assert answer.status_code == 400
        assert answer.json()["detail"].startswith(says), answer.text
        assert not server.service.miner.running
        assert (await server.post("/init/generate", init_body())).json() == OK
        server.engine.hold.clear()
        before = (await change(server))["shares"]
        if ranges:
            answer = await server.post("/shares", {"add": ranges})
            assert answer.status_code == 400
            assert answer.json()["detail"].startswith("add"), answer.text
            assert (await change(server))["shares"] == before


async def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, running(tmp_path / "o.db") as server:
        asked = {"url": receiver.url, "release": [0], "add": [share(1)]}
        assert (await server.post("/shares", asked)).status_code == 409
        body = init_body(n_groups=2, url=receiver.url, shares=[share(0), share(1, 5, 10**6)])
        server.engine.hold.clear()
        await server.post("/init/generate", body)
        await until(lambda: len(server.engine.mined()) == 32)
        before = held(server)
        for wrong, status, says in (
            ({**asked, "url": receiver.url + "/"}, 409, "url: "),
            ({**asked, "url": None}, 409, "url: "),
            ({**asked, "release": [1]}, 409, "release[0]: class 1"),
            ({**asked, "release": [0, 1]}, 409, "release[1]: class 1"),
            ({**asked, "release": [0, 0]}, 400, "release[1]: class 0"),
            ({**asked, "release": [-1]}, 400, "release[0]: "),
            ({**asked, "release": 0}, 400, "release: "),
            (asked, 400, "add[0]: overlaps one that is held in class 1 at position 5"),
            ({**asked, "add": [share(1, 3, 3)]}, 400, "add[0].stop: "),
        ):
            answer = await server.post("/shares", wrong)
            assert answer.status_code == status, answer.text
            detail = answer.json()["detail"]
            assert detail.startswith(says)
            assert receiver.url not in detail  # its path may hold a secret
            assert held(server) == before
        answer = await change(server, **{**asked, "add": [share(1, 0, 5)]})
        assert answer["released"] == [{"group_id": 0, "position": before[0]["position"]}]


def hold_the_abort(server: Running) -> asyncio.Event:
    """Runs that begin stay before their campaign until the event is set."""
    go = asyncio.Event()

    async def abort_all() -> None:
        await go.wait()

    server.engine.abort_all = abort_all  # type: ignore[method-assign]
    return go


async def test_a_change_right_after_init_waits_for_the_outbox(tmp_path: Path) -> None:
    """A plain run knows where it begins only when its campaign is open."""
    async with Receiver().serving() as receiver, running(tmp_path / "o.db") as server:
        go = hold_the_abort(server)
        await server.post("/init/generate", init_body(n_groups=2, url=receiver.url))
        wanted = ChangeShares.model_validate(
            {"url": receiver.url, "release": [0], "add": [share(1)]}
        )
        asked = asyncio.create_task(server.service.miner.change_shares(wanted))
        await asyncio.sleep(0)
        assert not asked.done()
        go.set()
        (released,), _ = await asked
        await until(lambda: len(of_class(server.engine.mined(), 1, 2)) > 0)
        await server.post("/stop")
        assert of_class(server.engine.mined(), 0, 2) == list(range(released.position))


async def test_a_change_that_waits_ends_with_the_run(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        hold_the_abort(server)
        await server.post("/init/generate", init_body())
        wanted = ChangeShares(release=(0,))
        asked = asyncio.create_task(server.service.miner.change_shares(wanted))
        await asyncio.sleep(0)
        assert not asked.done()
        await server.post("/stop")
        with pytest.raises(RefusedError, match="nothing is mined any more") as refused:
            await asyncio.wait_for(asked, 60)
        assert refused.value.status == 409


async def test_a_crash_of_a_changed_plain_run_goes_on_where_its_class_was_let_go(
    tmp_path: Path,
) -> None:
    store = tmp_path / "o.db"
    async with Receiver().serving() as receiver, running(store) as server:
        await server.post("/init/generate", init_body(n_groups=2, url=receiver.url))
        await until(lambda: len(server.engine.mined()) > 64)
        answer = await change(server, url=receiver.url, release=[0], add=[share(1)])
        await until(lambda: len(of_class(server.engine.mined(), 1, 2)) > 128)
        with sqlite3.connect(store) as database:  # what a server would find after kill -9
            query = "select position, state from assay_outbox_campaigns"
            rows = database.execute(query).fetchall()
        database.close()
    assert rows == [(answer["released"][0]["position"], "open")]


async def test_an_interrupted_run_of_shares_is_not_taken_up(tmp_path: Path) -> None:
    """Whoever gives shares knows what has arrived: they are mined as given."""
    body = init_body(n_groups=2, url="http://127.0.0.1:9/x", shares=[share(0), share(1)])
    store = tmp_path / "o.db"
    async with running(store) as server:
        assert (await server.post("/init/generate", body)).json() == OK
        await until(lambda: len(server.engine.mined()) > 64)
        with sqlite3.connect(store) as database:
            query = "select identity from assay_outbox_campaigns"
            assert database.execute(query).fetchall() == [("",)]
        database.close()


async def test_listed_among_the_routes_and_harmless_to_chat(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        paths = (await server.client.get("/openapi.json")).json()["paths"]
        assert set(paths["/api/v1/pow/shares"]) == {"post"}
        assert (await server.client.post("/api/v1/pow/shares", content=b"{")).status_code == 400
        assert (await server.client.get("/api/v1/pow/shares")).status_code == 405


# --- an outbox in memory ------------------------------------------------------------------------


async def test_an_outbox_in_memory_serves_one_server_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Two servers of one process, each with its own; one receiver is down for a while."""
    monkeypatch.chdir(tmp_path)
    down = Receiver(answer=lambda number: 503)
    async with (
        down.serving() as late,
        Receiver().serving() as prompt,
        running("sqlite://") as first,
        running("sqlite://") as second,
    ):
        for server, receiver in ((first, late), (second, prompt)):
            body = init_body(batch_size=8, url=receiver.url)
            assert (await server.post("/init/generate", body)).json() == OK
        await first.post("/generate", {**init_body(url=prompt.url), "nonces": [10**9]})
        await until(lambda: len(prompt.nonces()) > 200 and len(late.seen) > 0)
        assert first.metric("assay_poc_artifacts_waiting") > 0
        assert late.nonces() == []
        late.answer = lambda number: 200
        await until(lambda: len(late.nonces()) > 200)
        for server in (first, second):
            await server.post("/stop")
            await until(lambda s=server: not s.metric("assay_poc_artifacts_waiting"))
        for server, receiver in ((first, late), (second, prompt)):
            mined = [nonce for nonce in server.engine.mined() if nonce < 10**9]
            assert sorted(n for n in receiver.nonces() if n < 10**9) == sorted(mined)
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - no event loop has anything else to do
