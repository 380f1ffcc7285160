"""Delivery: outages, slow receivers, redirects, repeats, restarts. Nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from tests.plugin.poc.fake import Receiver, init_body, running, settings, until

from assay.delivery import couriers
from assay.delivery.couriers import Deliveries
from assay.delivery.targets import CallbackTargets, TargetError
from assay.errors import StoreError
from assay.plugin.poc.metrics import PocMetrics
from assay.store.outbox import Campaign, Outbox

SETTING = "POC_CALLBACK_ALLOW on this server"


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(couriers, "FIRST_BACKOFF", 0.01)
    monkeypatch.setattr(couriers, "LONGEST_BACKOFF", 0.05)


def deliveries(store: Path, timeout_s: float = 10.0, **changes: Any) -> Deliveries:
    chosen = settings(**changes)
    return Deliveries(
        Outbox(store),
        dataclasses.replace(chosen.delivery, timeout_s=timeout_s),
        CallbackTargets(chosen.callback_allow, SETTING),
        PocMetrics(CollectorRegistry()),
        logging.getLogger("vllm.assay"),
    )


def campaign(url: str, **changes: Any) -> Campaign:
    return Campaign(url, "127.0.0.1", "generated", {"block_hash": "abc", **changes})


def text(nonces: range) -> str:
    return ",".join(f'{{"nonce":{nonce},"vector_b64":"AAAA"}}' for nonce in nonces)


async def send(made: Deliveries, url: str, count: int, size: int = 100) -> None:
    opened = await made.open_campaign(campaign(url))
    for start in range(0, count, size):
        piece = range(start, start + size)
        await made.append(opened.id, url, size, text(piece), start + size)
    await made.close_campaign(opened.id)


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize("status", [301, 307, 400, 404, 429, 500, 503])
async def test_f41_repeated_until_accepted_under_one_key(tmp_path: Path, status: int) -> None:
    async with Receiver(lambda number: 200 if number > 4 else status).serving() as receiver:
        made = deliveries(tmp_path / "o.db")
        await send(made, receiver.url, 300)
        await until(lambda: made.waiting().artifacts == 0)
        await made.close()
    assert {key for _, key, _ in receiver.seen[:5]} == {receiver.seen[0][1]}
    assert [body for _, _, body in receiver.seen[:4]] == [receiver.seen[4][2]] * 4
    assert sorted(receiver.nonces()) == list(range(300))


@pytest.mark.usefixtures("no_backoff")
async def test_redirects_are_refused(tmp_path: Path) -> None:
    async with Receiver(lambda number: 302).serving() as receiver:
        made = deliveries(tmp_path / "o.db")
        await send(made, receiver.url, 100)
        await until(lambda: len(receiver.seen) >= 3)
        assert set(receiver.paths) == {b"/callbacks/generated"}
        assert made.waiting(receiver.url).artifacts == 100
        await made.close()


@pytest.mark.usefixtures("no_backoff")
async def test_a_receiver_that_is_down_holds_up_nobody(tmp_path: Path) -> None:
    async with Receiver(lambda number: 503).serving() as down, Receiver().serving() as up:
        made = deliveries(tmp_path / "o.db", callback_max_retries=2, callback_max_concurrent=1)
        await send(made, down.url, 500)
        await until(lambda: len(down.seen) > 3)  # past its retries, and still kept
        await send(made, up.url, 500)
        await until(lambda: len(up.nonces()) == 500)
        assert made.waiting(down.url).artifacts == 500
        down.answer = lambda number: 200
        await until(lambda: len(down.nonces()) == 500)
        await made.close()


@pytest.mark.usefixtures("no_backoff")
async def test_a_receiver_too_slow_is_asked_again_with_the_same_key(tmp_path: Path) -> None:
    """The receiver took it, but its answer came too late: the key is how it can tell."""
    async with Receiver(delay=0.5).serving() as receiver:
        made = deliveries(tmp_path / "o.db", timeout_s=0.2)
        await send(made, receiver.url, 100)
        await until(lambda: len(receiver.seen) >= 2)
        receiver.delay = 0.0
        await until(lambda: made.waiting().artifacts == 0)
        await made.close()
    assert len({key for _, key, _ in receiver.taken}) == 1
    assert sorted(receiver.nonces()) == list(range(100))


async def test_backoff_doubles_from_one_second_to_thirty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        if seconds >= 1:  # the receiver and this test sleep for less
            slept.append(seconds)
            seconds = 0
        await sleep(seconds)

    monkeypatch.setattr(couriers.asyncio, "sleep", note)
    async with Receiver(lambda number: 503).serving() as receiver:
        made = deliveries(tmp_path / "o.db")
        await send(made, receiver.url, 100)
        await until(lambda: len(slept) >= 8)
        await made.close()
    assert slept[:8] == [1, 2, 4, 8, 16, 30, 30, 30]


async def test_f40_closing_ends_the_couriers_and_keeps_what_waits(tmp_path: Path) -> None:
    async with Receiver(lambda number: 503).serving() as receiver:
        made = deliveries(tmp_path / "o.db")
        await send(made, receiver.url, 100)
        await until(lambda: receiver.seen)
        await made.close()
        assert [t for t in asyncio.all_tasks() if "_carry" in repr(t)] == []
        receiver.answer = lambda number: 200
        again = deliveries(tmp_path / "o.db")
        await again.resume()
        await until(lambda: len(receiver.nonces()) == 100)
        assert len({key for _, key, _ in receiver.seen}) == 1  # sealed before the restart
        await again.close()


async def test_the_address_is_sent_as_it_was_given(tmp_path: Path) -> None:
    """Model ids are escaped twice in callback addresses."""
    path = "/v2/poc-batches/Qwen%252FQwen3-0.6B"
    async with Receiver().serving(path) as receiver, running(tmp_path / "o.db") as server:
        await server.post("/init/generate", init_body(url=receiver.url))
        await until(lambda: receiver.taken)
        await server.post("/stop")
    assert receiver.paths[0] == path.encode() + b"/generated"


async def test_mined_vectors_are_sent_every_interval_not_batch_by_batch(tmp_path: Path) -> None:
    async with (
        Receiver().serving() as receiver,
        running(tmp_path / "o.db", callback_interval_sec=0.5) as server,
    ):
        await server.post("/init/generate", init_body(url=receiver.url, batch_size=2))
        await until(lambda: len(receiver.taken) == 3)
        await server.post("/stop")
        assert len(server.engine.batches) > 3 * len(receiver.taken)


async def test_posts_are_bounded(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver:
        made = deliveries(tmp_path / "o.db")
        await send(made, receiver.url, 25_000, 1_000)
        await until(lambda: len(receiver.nonces()) == 25_000)
        await made.close()
    assert max(len(body["artifacts"]) for _, _, body in receiver.taken) <= couriers.POST_ARTIFACTS


# --- who may be called --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "caller", "allow", "allowed"),
    [
        ("http://127.0.0.1:1/x", "192.0.2.7", (), True),
        ("http://localhost:1/x", None, (), True),
        ("http://[::1]:1/x", "192.0.2.7", (), True),
        ("https://192.0.2.7/x", "192.0.2.7", (), True),
        ("https://192.0.2.7/x", "::ffff:192.0.2.7", (), True),
        ("http://[::ffff:127.0.0.1]/x", "192.0.2.7", (), True),
        ("https://192.0.2.8/x", "192.0.2.7", (), False),
        ("http://169.254.169.254/latest", "192.0.2.7", (), False),
        ("http://0.0.0.0/x", "192.0.2.7", (), False),
        ("http://2130706433/x", "192.0.2.7", (), True),  # a spelling of 127.0.0.1
        ("http://no-such-host.invalid/x", "192.0.2.7", (), False),
        ("http://192.0.2.8/x", "192.0.2.7", ("192.0.2.0/24",), True),
        ("http://192.0.2.8/x", "192.0.2.7", ("192.0.2.8",), True),
        ("http://api.example/x", "192.0.2.7", ("API.example",), True),
        ("http://api.example.other/x", "192.0.2.7", ("api.example",), False),
        ("http://anything.example/x", None, ("*",), True),
    ],
)
async def test_who_may_be_called(
    url: str, caller: str | None, allow: tuple[str, ...], allowed: bool
) -> None:
    targets = CallbackTargets(allow, SETTING)
    if allowed:
        assert await targets.connections(url, "/generated", caller)
    else:
        with pytest.raises(TargetError, match="POC_CALLBACK_ALLOW"):
            await targets.connections(url, "/generated", caller)


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "gopher://127.0.0.1/",
        "127.0.0.1:80",
        "http://",
        "",
        "http://[::1/",
        "//x/y",
    ],
)
def test_only_http_addresses(url: str) -> None:
    with pytest.raises(TargetError):
        CallbackTargets(("*",), SETTING).check_url(url)


async def test_a_name_is_connected_to_at_the_address_that_was_checked() -> None:
    ways = await CallbackTargets((), SETTING).connections(
        "https://localhost:8443/a%252Fb", "/generated", None
    )
    for way in ways:
        assert way.url.host in ("127.0.0.1", "::1")
        assert way.url.raw_path == b"/a%252Fb/generated"
        assert way.headers == {"Host": "localhost:8443"}
        assert way.extensions == {"sni_hostname": "localhost"}


# --- the store ----------------------------------------------------------------------------------


def test_one_outbox_one_server(tmp_path: Path) -> None:
    first = Outbox(tmp_path / "o.db")
    with pytest.raises(StoreError, match="POC_STORE"):
        Outbox(tmp_path / "o.db")
    first.close()
    Outbox(tmp_path / "o.db").close()


def test_a_newer_outbox_is_refused(tmp_path: Path) -> None:
    Outbox(tmp_path / "o.db").close()
    from sqlalchemy import create_engine, text

    engine = create_engine(f"sqlite:///{tmp_path / 'o.db'}")
    with engine.begin() as connection:
        connection.execute(text("update assay_outbox_meta set version = 99"))
    engine.dispose()
    with pytest.raises(StoreError, match="99"):
        Outbox(tmp_path / "o.db")


def test_finished_campaigns_leave_nothing_behind(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "o.db")
    opened = outbox.open_campaign(campaign("http://x"))
    outbox.append(opened.id, 3, text(range(3)), 3)
    outbox.close_campaign(opened.id)
    post = outbox.next_post("http://x", 10)
    assert post is not None
    outbox.accepted(post.id)
    outbox.add(campaign("http://x"), 1, text(range(1)))
    post = outbox.next_post("http://x", 10)
    assert post is not None
    outbox.accepted(post.id)
    assert outbox.next_post("http://x", 10) is None
    with outbox._engine.connect() as connection:
        for table in ("campaigns", "posts", "pieces"):
            rows = connection.exec_driver_sql(f"select count(*) from assay_outbox_{table}")
            assert rows.scalar() == 0
    outbox.close()


# --- kill -9 ------------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]
_VICTIM = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from tests.plugin.poc.fake import running, init_body, FakeEngine

async def main():
    async with running(Path(sys.argv[1]), FakeEngine(seconds=0.002)) as server:
        answer = await server.post("/init/generate", init_body(url=sys.argv[2], batch_size=8))
        assert answer.status_code == 200, answer.text
        print("mining", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_kill_9_loses_nothing_and_counts_nothing_twice(tmp_path: Path) -> None:
    """Three servers in a row on one store, each killed while it mines and sends."""
    async with Receiver(delay=0.02).serving() as receiver:
        for _ in range(3):
            before = len(receiver.taken)
            victim = await _mine(tmp_path / "o.db", receiver.url)
            await until(lambda seen=before: len(receiver.taken) >= seen + 3, 60)
            victim.send_signal(signal.SIGKILL)
            await victim.wait()
        made = deliveries(tmp_path / "o.db")
        await made.resume()
        await until(lambda: made.waiting().artifacts == 0)
        await made.close()
    nonces = receiver.nonces()
    assert len(nonces) == len(set(nonces))
    # Each server took up the partition where the last one's kept vectors ended: no gap.
    assert sorted(nonces) == list(range(len(nonces)))
    contents: dict[str, str] = {}
    for _, key, body in receiver.seen:
        content = json.dumps(body)
        assert contents.setdefault(key, content) == content


async def _mine(store: Path, url: str) -> asyncio.subprocess.Process:
    victim = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _VICTIM,
        str(store),
        url,
        str(ROOT),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    assert victim.stdout is not None
    async with asyncio.timeout(60):
        assert await victim.stdout.readline() == b"mining\n"
    return victim
