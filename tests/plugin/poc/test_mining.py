"""The miner: gate before task, gate open again whatever happens, counts, errors, backpressure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tests.plugin.poc.fake import (
    CHAT,
    FakeEngine,
    Receiver,
    init_body,
    running,
    until,
)
from tests.plugin.poc.fake import settings as poc_settings

from assay.plugin.poc.device import Device
from assay.plugin.poc.engine import Vectors
from assay.plugin.poc.failures import RefusedError
from assay.plugin.poc.gate import Gate
from assay.plugin.poc.metrics import PocMetrics
from assay.plugin.poc.mining import Miner
from assay.plugin.poc.run import Run
from assay.poc.artifact_file import Challenge
from assay.poc.bodies import InitGenerate


def bare_miner(engine: FakeEngine, **changes: object) -> tuple[Miner, Gate]:
    metrics = PocMetrics(CollectorRegistry())
    gate = Gate(metrics)
    chosen = poc_settings(**changes)
    return Miner(engine, Device(engine, metrics, 60.0), gate, chosen), gate


def a_run() -> Run:
    return Run(InitGenerate.model_validate(init_body()), 4, "127.0.0.1")


async def test_f38_the_gate_is_closed_when_the_task_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    miner, gate = bare_miner(FakeEngine())
    seen = []
    create_task = asyncio.create_task

    def spy(coroutine: object, **options: object) -> object:
        seen.append(gate.closed)
        return create_task(coroutine, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("assay.plugin.poc.mining.asyncio.create_task", spy)
        miner.start(a_run(), None)
    assert seen == [True]
    await miner.stop(1.0)
    assert not gate.closed


async def test_f38_no_task_no_closed_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    miner, gate = bare_miner(FakeEngine())

    def refuse(coroutine: object, **_: object) -> object:
        coroutine.close()  # type: ignore[attr-defined]
        raise RuntimeError("no task")

    with monkeypatch.context() as patch:
        patch.setattr("assay.plugin.poc.mining.asyncio.create_task", refuse)
        with pytest.raises(RuntimeError):
            miner.start(a_run(), None)
    assert not gate.closed
    assert not miner.running


@pytest.mark.parametrize("fault", ["abort", "forward", "asleep", "nan", "dead"])
async def test_f39_the_gate_opens_on_every_failure(tmp_path: Path, fault: str) -> None:
    async with running(tmp_path / "o.db") as server:
        match fault:
            case "abort":
                server.engine.abort_failure = "no abort"
            case "forward":
                server.engine.failure = "worker raised"
            case "nan":
                server.engine.bad_nonces = lambda nonce: True
            case "dead":
                server.engine.hold.clear()
        assert (await server.post("/init/generate", init_body())).status_code == 200
        if fault == "asleep":
            server.engine.sleeping = True
        if fault == "dead":
            server.engine.errored = True
        await until(lambda: not server.service.miner.running)
        assert not server.gate.closed
        assert server.metric("assay_poc_gate_closed") == 0
        status = await server.status()
        assert status["status"] == "ERROR"
        assert status["error"]
        chat = server.chat()
        await until(lambda: server.engine.chats)
        server.engine.chats.pop().set()
        assert (await chat).status_code == 200
        server.engine.errored = False
        assert (await server.post("/stop")).status_code == 200
        assert await server.status() == {"status": "IDLE", "config": None, "stats": None}


async def test_three_whole_nan_batches_stop_mining_and_are_not_tried_forever(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "o.db") as server:
        server.engine.bad_nonces = lambda nonce: nonce >= 8
        await server.post("/init/generate", init_body(batch_size=4))
        await until(lambda: not server.service.miner.running)
        status = await server.status()
        assert status["status"] == "ERROR"
        assert "3 batches in a row" in status["error"]
        assert status["stats"]["total_processed"] == 8
        assert status["stats"]["total_failed"] == 12
        assert len(server.engine.mined()) == 20
        server.engine.bad_nonces = lambda nonce: False
        assert (await server.post("/init/generate", init_body())).status_code == 200


async def test_batches_of_nan_that_are_not_in_a_row_do_not_stop(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        server.engine.bad_nonces = lambda nonce: nonce // 4 % 3 != 2
        await server.post("/init/generate", init_body(batch_size=4))
        await until(lambda: len(server.engine.mined()) > 100)
        assert server.service.miner.running


async def test_counts_are_of_vectors_delivered_not_of_attempts(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, running(tmp_path / "o.db") as server:
        server.engine.bad_nonces = lambda nonce: nonce % 4 == 3
        await server.post("/init/generate", init_body(url=receiver.url))
        await until(lambda: len(server.engine.mined()) >= 320)
        stats = (await server.status())["stats"]
        assert stats["total_failed"] == stats["total_processed"] / 3
        await server.post("/stop")
        await until(lambda: server.metric("assay_poc_artifacts_waiting") == 0)
        mined = server.engine.mined()
        assert sorted(receiver.nonces()) == sorted(n for n in mined if n % 4 != 3)
        assert server.metric("assay_poc_vectors_delivered_total") == len(receiver.nonces())
        assert server.metric("assay_poc_forward_seconds_total", part="forward") > 0


async def test_f51_the_batch_on_the_device_is_waited_for_and_kept(tmp_path: Path) -> None:
    async with Receiver().serving() as receiver, running(tmp_path / "o.db") as server:
        server.engine.hold.clear()
        await server.post("/init/generate", init_body(url=receiver.url))
        await until(lambda: len(server.engine.mined()) == 32)
        stop = asyncio.create_task(server.post("/stop"))
        await until(lambda: not server.gate.closed)  # open at once
        await asyncio.sleep(0.05)
        assert not stop.done()
        server.engine.hold.set()
        assert (await stop).status_code == 200
        await until(lambda: len(receiver.nonces()) == 32)


async def test_f35_f37_running_requests_are_aborted_in_one_call(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        chats = [server.chat() for _ in range(5)]
        await until(lambda: server.gate.running == 5)
        await server.post("/init/generate", init_body())
        answers = await asyncio.gather(*chats)
        assert {answer.json()["finish_reason"] for answer in answers} == {"abort"}
        assert server.engine.aborts <= 2  # one, and one more where an answer was still on its way
        assert server.gate.running == 0


async def test_requests_that_had_passed_the_gate_are_aborted_too(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        server.gate.enter()  # being tokenised: the engine does not know it yet
        await server.post("/init/generate", init_body())
        await until(lambda: server.engine.aborts >= 2)
        server.gate.leave()
        await until(lambda: len(server.engine.mined()) > 0)


async def test_the_gate_answers_as_specified_while_mining(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        await server.post("/init/generate", init_body())
        chat = await server.client.post(CHAT, json={})
        assert chat.status_code == 503
        assert chat.headers["Retry-After"] == "1"  # F48: seconds, not tenths
        assert set(chat.json()) == {"error"}
        assert set(chat.json()["error"]) == {"message", "type", "code"}
        assert chat.json()["error"]["type"] == "service_unavailable"
        assert chat.json()["error"]["code"] == 503
        assert server.metric("assay_poc_gate_closed") == 1
        slept = await server.client.post("/sleep")
        assert slept.status_code == 409
        await server.post("/stop")
        assert (await server.client.post("/sleep")).status_code == 404  # this app has none


async def test_generate_never_aborts_or_refuses_chat(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        chat = server.chat()
        await until(lambda: server.gate.running == 1)
        await server.post("/generate", {**init_body(), "nonces": [1, 2], "wait": True})
        assert server.engine.aborts == 0
        assert not chat.done()
        assert not server.gate.closed


@pytest.mark.parametrize(("share", "pause"), [(0.5, 2.0), (0.25, 6.0), (0.8, 0.5), (1.0, 0.0)])
async def test_share_is_a_share_of_the_devices_time(
    monkeypatch: pytest.MonkeyPatch, share: float, pause: float
) -> None:
    """A batch of t seconds, then t (1/share - 1) for chat: PoC has ``share`` of the sum."""
    gate = Gate(PocMetrics(CollectorRegistry()))
    asked = []

    def at_once(seconds: float) -> asyncio.Timeout:
        asked.append(seconds)
        return asyncio.timeout_at(0)

    with monkeypatch.context() as patch:
        patch.setattr("assay.plugin.poc.gate.asyncio.timeout", at_once)
        await gate.yield_to_chat(2.0, share)
        assert asked == []  # nobody is chatting: no pause
        gate.enter()
        await gate.yield_to_chat(2.0, share)
    assert asked == [pytest.approx(pause)]
    gate.leave()


async def test_share_aborts_and_refuses_nobody(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db", policy="share") as server:
        before = server.chat()
        await until(lambda: server.gate.running == 1)
        await server.post("/init/generate", init_body())
        await until(lambda: len(server.engine.mined()) > 64)
        during = server.chat()
        await until(lambda: server.gate.running == 2)
        assert server.engine.aborts == 0
        for ended in list(server.engine.chats):
            ended.set()
        assert {(await chat).status_code for chat in (before, during)} == {200}
        assert server.service.miner.running


async def test_a_stop_that_meets_the_end_of_chat_is_not_lost() -> None:
    """Python 3.11's ``wait_for`` drops a cancellation that arrives together with its event."""
    engine = FakeEngine(seconds=5.0)
    engine_seconds = engine.seconds
    engine.seconds = 0.0

    async def forward(challenge: Challenge, nonces: Sequence[int]) -> Vectors:
        vectors = await FakeEngine.forward(engine, challenge, nonces)
        return replace(vectors, seconds={"forward": engine_seconds})

    engine.forward = forward  # type: ignore[method-assign]
    miner, gate = bare_miner(engine, policy="share")
    gate.enter()
    miner.start(a_run(), None)
    await until(lambda: len(engine.batches) == 1)
    await asyncio.sleep(0.05)  # it waits for chat now
    assert len(engine.batches) == 1
    gate.leave()
    await asyncio.wait_for(miner.stop(5.0), 5.0)
    assert not miner.running


async def test_mining_stops_with_an_error_rather_than_drop_an_artifact(tmp_path: Path) -> None:
    down = Receiver(answer=lambda number: 503)
    async with (
        down.serving() as receiver,
        running(tmp_path / "o.db", callback_max_artifacts=100) as server,
    ):
        await server.post("/init/generate", init_body(url=receiver.url))
        await until(lambda: not server.service.miner.running)
        status = await server.status()
        assert "100 artifacts wait" in status["error"]
        receiver.answer = lambda number: 200
        await until(lambda: not server.metric("assay_poc_artifacts_waiting"), 30)
        kept = (await server.status())["stats"]["total_processed"]
        assert 100 <= kept <= 192  # batches over: one kept beside it, one on the device
        assert sorted(receiver.nonces()) == list(range(kept))


async def test_the_last_nonce_ends_the_run(tmp_path: Path) -> None:
    async with running(tmp_path / "o.db") as server:
        body = init_body(node_id=2**31 + 5, node_count=2**31 + 6)
        await server.post("/init/generate", body)
        await until(lambda: not server.service.miner.running)
        assert server.engine.mined() == [2**31 + 5]
        assert (await server.status())["status"] == "IDLE"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["start", "stop", "fail", "heal", "wait"]), max_size=12))
def test_the_gate_is_closed_exactly_while_mining(steps: list[str]) -> None:
    async def play() -> None:
        engine = FakeEngine(seconds=0.0)
        miner, gate = bare_miner(engine)
        for step in steps:
            match step:
                case "start":
                    was_running = miner.running
                    try:
                        miner.start(a_run(), None)
                    except RefusedError as error:
                        assert was_running
                        assert error.status == 409
                    else:
                        assert not was_running
                case "stop":
                    await miner.stop(5.0)
                    assert not miner.running
                case "fail":
                    engine.failure = "broken"
                case "heal":
                    engine.failure = None
                case _:
                    await asyncio.sleep(0.002)
            assert gate.closed == miner.running
        await miner.stop(5.0)
        assert not gate.closed

    asyncio.run(play())
