"""What a node's rounds keep reaches its receiver: in order, once, and after a restart as well."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from tests.plugin.poc.fake import Receiver, until

from assay.delivery import couriers
from assay.delivery.couriers import Deliveries
from assay.delivery.settings import DeliverySettings
from assay.delivery.targets import CallbackTargets
from assay.store.outbox import Campaign, Outbox
from assay.store.rounds import Rounds
from assay.store.rounds_tables import RoundSpec, Worker

WITHIN = 120.0


@dataclass
class Metrics:
    waiting: Gauge
    delivered: Counter
    callbacks: Counter


def deliveries(outbox: Outbox) -> tuple[Deliveries, CollectorRegistry]:
    registry = CollectorRegistry()
    metrics = Metrics(
        Gauge("waiting", "", registry=registry),
        Counter("delivered", "", registry=registry),
        Counter("callbacks", "", ["outcome"], registry=registry),
    )
    settings = DeliverySettings(interval_s=0.01)
    targets = CallbackTargets((), "the list")
    made = Deliveries(outbox, settings, targets, metrics, logging.getLogger("delivery"))
    return made, registry


def at_work(rounds: Rounds, url: str, identity: str = "work") -> Worker:
    head = {"block_hash": identity, "node_id": 0}
    begun = rounds.begin(RoundSpec(identity, url, None, head, 0, 1), 1)
    worker = rounds.hire(begun.id, 5001, 1)
    rounds.give(rounds.shares(begun.id), worker)
    return worker


def keep(rounds: Rounds, worker: Worker, nonces: range) -> int:
    answer = rounds.keep(worker.token, [(nonce, "AAAA") for nonce in nonces])
    assert answer is not None
    return answer.kept


async def test_what_is_kept_arrives_once_and_in_order(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver:
        outbox = Outbox(tmp_path / "node.db")
        rounds = Rounds(outbox)
        made, registry = deliveries(outbox)
        worker = at_work(rounds, receiver.url)
        for post in (range(3), range(3), range(2, 7), range(7, 9)):
            if kept := keep(rounds, worker, post):
                made.arrived(receiver.url, kept, 0)
        await until(lambda: not made.waiting().artifacts, WITHIN)
        await made.close()
    assert receiver.nonces() == list(range(9))
    assert registry.get_sample_value("delivered_total") == 9
    assert registry.get_sample_value("waiting") == 0


async def test_what_a_dead_node_had_kept_is_sent_by_the_next(tmp_path: Path) -> None:
    """Kept, but its couriers were never told: the node died in between."""
    async with Receiver().serving() as receiver:
        before = Outbox(tmp_path / "node.db")
        rounds = Rounds(before)
        keep(rounds, at_work(rounds, receiver.url), range(5))
        before.close()

        outbox = Outbox(tmp_path / "node.db")
        rounds = Rounds(outbox)
        made, _ = deliveries(outbox)
        await made.resume()
        worker = at_work(rounds, receiver.url)
        made.arrived(receiver.url, keep(rounds, worker, range(3, 8)), 0)
        await until(lambda: not made.waiting().artifacts, WITHIN)
        await made.close()
    assert receiver.nonces() == list(range(8))


async def test_a_round_after_the_last_waits_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that is down gets what it missed before anything newer."""
    monkeypatch.setattr(couriers, "FIRST_BACKOFF", 0.01)
    monkeypatch.setattr(couriers, "LONGEST_BACKOFF", 0.05)
    async with Receiver(lambda number: 503 if number < 4 else 200).serving() as receiver:
        outbox = Outbox(tmp_path / "node.db")
        rounds = Rounds(outbox)
        made, _ = deliveries(outbox)
        first = at_work(rounds, receiver.url, "first")
        made.arrived(receiver.url, keep(rounds, first, range(4)), 0)
        await until(lambda: len(receiver.seen) >= 2, WITHIN)
        second = at_work(rounds, receiver.url, "second")
        made.arrived(receiver.url, keep(rounds, second, range(2)), 0)
        await until(lambda: not made.waiting().artifacts, WITHIN)
        await made.close()
    blocks = [body["block_hash"] for _, _, body in receiver.seen]
    assert blocks == sorted(blocks)
    assert set(blocks) == {"first", "second"}
    assert receiver.nonces() == [*range(4), *range(2)]


async def test_an_address_that_cannot_be_used_holds_up_nobody_else(tmp_path: Path) -> None:
    """It gets too long with the route at its end; its courier goes on, and says why."""
    too_long = "http://127.0.0.1:1/" + "a" * (65_530 - 19)
    async with Receiver().serving() as receiver:
        outbox = Outbox(tmp_path / "node.db")
        made, registry = deliveries(outbox)
        await made.add(Campaign(too_long, None, "generated", {}), 1, '{"nonce":1}')
        await until(
            lambda: registry.get_sample_value("callbacks_total", {"outcome": "failed"}), WITHIN
        )
        await made.add(Campaign(receiver.url, None, "generated", {}), 1, '{"nonce":2}')
        await until(lambda: receiver.nonces() == [2], WITHIN)
        assert made.waiting(too_long).artifacts == 1
        await made.close()
