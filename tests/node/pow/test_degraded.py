"""Rounds in which backends fail, each in its own way: no class is left out, no nonce doubled."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.node.pow.nodes import (
    QUICK,
    PowNode,
    Receiver,
    artifacts_of,
    ask_for,
    check,
    classes_grown,
    grown,
    pow_node,
    reached,
    stopped,
    until,
    until_it,
)


async def shared_out(node: PowNode, *classes: list[int]) -> Any:
    """Return once the classes are mined like this, by port, and by nobody else."""
    wanted = {str(port): mine for port, mine in zip(node.ports, classes, strict=True) if mine}
    return await until_it(
        node.round,
        lambda r: r is not None and r["classes"] == wanted and not r["unassigned"],
        f"classes {wanted}",
    )


async def test_a_class_whose_backend_refuses_goes_to_another_and_back(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, pow_node(tmp_path) as node:
        await node.tell(1, refuse={"init": [503, "not now"]})
        body = ask_for(receiver)
        answer = (await node.post("/init/generate", body)).json()
        assert answer["status"] == "OK"
        assert (answer["backends"], answer["n_groups"]) == (2, 2)
        assert [(one["port"], one["group_id"]) for one in answer["results"]] == [(node.ports[0], 0)]
        assert answer["errors"] == [{"port": node.ports[1], "status_code": 503, "error": "not now"}]
        assert answer["degraded"] is True
        assert "backends that mine: 1" in answer["reason"]
        await classes_grown(receiver, body, 2)
        await shared_out(node, [0, 1], [])

        await node.tell(1, refuse={})
        shown = await shared_out(node, [0], [1])
        assert shown["degraded"] is False
        await classes_grown(receiver, body, 2)
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2)


async def test_a_backend_that_refuses_shares_begins_anew_with_them(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, pow_node(tmp_path) as node:
        await node.tell(0, refuse={"shares": [404, "Not Found"]})
        await node.tell(1, refuse={"init": [503, "not now"]})
        body = ask_for(receiver)
        assert (await node.post("/init/generate", body)).json()["degraded"] is True
        await shared_out(node, [0, 1], [])
        await classes_grown(receiver, body, 2)
        await node.tell(1, refuse={})
        await shared_out(node, [0], [1])
        await classes_grown(receiver, body, 2)
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2)


async def test_shares_that_are_changed_without_an_answer(tmp_path: Path) -> None:
    """It has released or taken the class, and nobody knows: what it mines then is left aside."""
    async with (
        Receiver().serving() as receiver,
        pow_node(tmp_path, patience=replace(QUICK, change=5)) as node,
    ):
        body = ask_for(receiver)
        assert (await node.post("/init/generate", body)).json()["degraded"] is False
        await classes_grown(receiver, body, 2)
        await node.tell(0, mute=["shares"])
        await node.tell(1, failure="the device is broken", refuse={"init": [503, "broken"]})
        await shared_out(node, [0, 1], [])  # by a new run: the first was not sure
        await classes_grown(receiver, body, 2)
        await node.tell(1, failure=None, refuse={})
        await shared_out(node, [0], [1])
        await classes_grown(receiver, body, 2)
        await node.tell(0, mute=[])
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2)


async def test_a_backend_that_stops_by_itself_is_asked_again_later(tmp_path: Path) -> None:
    """Its engine fails; every seventh vector is not finite, and that is no gap."""
    async with Receiver().serving() as receiver, pow_node(tmp_path) as node:
        for index in (0, 1):
            await node.tell(index, bad_every=7)
        body = ask_for(receiver)
        await node.post("/init/generate", body)
        await classes_grown(receiver, body, 2)
        await node.tell(1, failure="NaN everywhere")
        await shared_out(node, [0, 1], [])
        await classes_grown(receiver, body, 2)
        await node.tell(1, failure=None)
        await shared_out(node, [0], [1])
        await classes_grown(receiver, body, 2)
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2, holes=lambda nonce: nonce % 7 == 0)


async def test_a_backend_that_says_nothing_loses_its_class(tmp_path: Path) -> None:
    """It mines on, for nobody; once it speaks it is stopped, and begins again."""
    async with (
        Receiver().serving() as receiver,
        pow_node(tmp_path, patience=replace(QUICK, silent=6, tell=3)) as node,
    ):
        body = ask_for(receiver)
        await node.post("/init/generate", body)
        await classes_grown(receiver, body, 2)
        await node.tell(1, hang=["status", "init"])
        await until_it(node.round, lambda r: r["degraded"], "its class is taken away")
        await classes_grown(receiver, body, 2)
        await node.tell(1, hang=[])
        await shared_out(node, [0], [1])
        await classes_grown(receiver, body, 2)
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2)


async def test_vectors_that_come_before_the_answer_to_init_are_kept(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, pow_node(tmp_path) as node:
        await node.tell(1, mute=["init"])
        body = ask_for(receiver)
        beginning = asyncio.create_task(node.post("/init/generate", body))
        await until(lambda: all(reached(receiver.nonces(), body, 2)), "both classes are mined")
        assert not beginning.done()
        await node.tell(1, mute=[])
        answer = (await beginning).json()
        assert (answer["degraded"], len(answer["results"])) == (False, 2)
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2)


async def test_an_init_that_is_never_answered(tmp_path: Path) -> None:
    """The backend mines and does not say so: its class goes to the other; it is found and stopped."""
    async with (
        Receiver().serving() as receiver,
        pow_node(tmp_path, patience=replace(QUICK, begin=6)) as node,
    ):
        await node.tell(1, mute=["init"])
        body = ask_for(receiver)
        answer = (await node.post("/init/generate", body)).json()
        assert answer["degraded"] is True
        assert [(e["port"], e["status_code"]) for e in answer["errors"]] == [(node.ports[1], None)]
        await classes_grown(receiver, body, 2)
        await node.tell(1, mute=[])
        await shared_out(node, [0], [1])
        await classes_grown(receiver, body, 2)
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2)


async def test_a_stop_that_one_backend_does_not_answer(tmp_path: Path) -> None:
    """F51, case 30: the answer says which, comes soon, and the backend is stopped when it can be."""
    async with pow_node(tmp_path, patience=replace(QUICK, stop=4)) as node:
        await node.post("/init/generate", ask_for(None))
        await node.tell(1, hang=["stop"])
        answer = await node.post("/stop")
        assert answer.status_code == 200
        assert [one["port"] for one in answer.json()["results"]] == [node.ports[0]]
        assert [one["port"] for one in answer.json()["errors"]] == [node.ports[1]]
        assert (await node.status())["status"] == "MIXED"
        await node.tell(1, hang=[])
        await until_it(node.status, lambda s: s["status"] == "IDLE", "the other stopped, too")


async def test_down_interrupts_a_round_and_the_same_work_goes_on(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, pow_node(tmp_path) as node:
        body = ask_for(receiver)
        await node.post("/init/generate", body)
        await classes_grown(receiver, body, 2)
        assert (await node.http.post("/api/v1/inference/down")).status_code == 200
        await until_it(node.status, lambda s: s["round"] is None, "the round is interrupted")
        assert (await node.status())["status"] == "NO_BACKENDS"
        await node.up()
        # Nobody mines because of a model that is up again.
        assert (await node.status())["status"] == "IDLE"
        assert (await node.post("/init/generate", body)).json()["n_groups"] == 2
        await classes_grown(receiver, body, 2)
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2)


async def test_mining_waits_for_a_receiver_that_takes_nothing(tmp_path: Path) -> None:
    """F41: nothing is dropped, and nobody mines what cannot be kept."""
    refusing = True
    receiver = Receiver(answer=lambda number: 503 if refusing else 200)
    async with (
        receiver.serving(),
        pow_node(tmp_path, callbacks__max_artifacts=300) as node,
    ):
        body = ask_for(receiver)
        await node.post("/init/generate", body)
        shown = await until_it(
            node.status,
            lambda s: s["status"] == "IDLE" and "too many" in str(s["round"]["reason"]),
            "mining pauses",
        )
        assert shown["round"]["degraded"] is True
        refusing = False
        await grown(receiver, 1000)
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 2)
