"""The load of ``bench/node_load.py`` in its short form, and that each of its judges can find fault."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest
from tests.node.load.chats import Chats
from tests.node.load.flat import Sample, Watch, growth, resident, zombies
from tests.node.load.known import MARGIN, Known, KnownChat, tampered
from tests.node.load.ledger import Ledger, Window
from tests.node.load.receiver import Receiver
from tests.node.load.run import LoadOptions, prepared
from tests.node.load.verdicts import Verdicts
from tests.node.process import NodeProcess, wait

from assay.poc.artifacts import encode_vector

IDS = (5, 6, 7)
CHAT = KnownChat({"messages": []}, IDS, (-0.1, -0.2, -0.3), "abc")
LIMIT = 900.0
"""Seconds the short form may take on a machine busy with other things; a quiet one needs about 90."""


@pytest.mark.engine
@pytest.mark.timeout(2400)
async def test_a_killed_backend_under_mixed_load_costs_no_answer_but_its_own(
    real_node: NodeProcess,
) -> None:
    """Ends when enough was seen, however long that takes; rounds close the gate (exclusive)."""
    options = LoadOptions(
        seed=5,
        kill_every_s=15,
        prompts=6,
        claims=4,
        nonces=64,
        closes_gate=True,
        round_s=(2, 4),
        pause_s=(6, 9),
    )
    wanted = {
        "chat: right": 10,
        "stream: right": 10,
        "replay of honest claims: pass": 3,
        "replay of a tampered claim: fail": 1,
        "rounds": 2,
        "vectors compared": 64,
        "kills mended": 1,
    }
    async with prepared(f"http://127.0.0.1:{real_node.port}", real_node.pid, options) as load:
        end = time.monotonic() + LIMIT

        def over() -> bool:
            counts = load.ledger.counts
            enough = all(counts[name] >= number for name, number in wanted.items())
            return enough or bool(load.ledger.violations) or time.monotonic() > end

        await load.run(over, print, 20)
        seen = "\n".join(load.figures())
    assert not load.ledger.violations, "\n".join([*load.ledger.violations, seen])
    missing = {name: number for name, number in wanted.items() if load.ledger.counts[name] < number}
    assert not missing, seen
    real_node.tree()


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_only_what_meets_a_kill_is_excused() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    ledger.outages = {1: [], 2: []}
    ledger.refused("chat", 99, 502, "")
    ledger.broken("chat", 99, "")
    assert len(ledger.violations) == 2
    ledger.hits.append(Window(110, 112))
    ledger.outages[1].append(Window(110, 150))
    clock.now = 109
    ledger.broken("chat", 100, "ended before the kill")
    assert len(ledger.violations) == 3
    clock.now = 130
    ledger.broken("chat", 105, "was there at the kill")
    ledger.refused("chat", 111, 502, "the node did not know yet")
    assert len(ledger.violations) == 3
    ledger.refused("chat", 113, 502, "the node knew")
    ledger.refused("chat", 105, 500, "never the right word")
    assert len(ledger.violations) == 5


def test_503_needs_a_moment_without_any_backend_or_a_closed_gate() -> None:
    clock = Clock()
    ledger = Ledger(clock)
    ledger.outages = {1: [Window(110, 150)], 2: [Window(160, 200)]}
    clock.now = 210
    ledger.refused("chat", 100, 503, "one was always there")
    assert len(ledger.violations) == 1
    ledger.outages[2].append(Window(140, 155))
    ledger.refused("chat", 100, 503, "")
    ledger.refused("chat", 145, 503, "")
    assert len(ledger.violations) == 1
    ledger.refused("chat", 151, 503, "after it")
    assert len(ledger.violations) == 2
    ledger.gates.append(Window(205, 206))
    ledger.refused("chat", 201, 503, "")
    assert len(ledger.violations) == 2


def served(answer: dict[str, Any] | Sequence[str], status: int = 200) -> httpx.AsyncClient:
    """A client whose every request gets this JSON, or these events of a stream."""

    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, dict):
            return httpx.Response(status, json=answer)
        return httpx.Response(status, text="".join(f"data: {event}\n\n" for event in answer))

    return httpx.AsyncClient(transport=httpx.MockTransport(handle), base_url="http://node")


def choice(ids: Sequence[int], *, text: str = "abc", finish: str = "length") -> dict[str, Any]:
    logprobs = {"content": [{"logprob": logprob} for logprob in CHAT.logprobs[: len(ids)]]}
    return {
        "token_ids": list(ids),
        "message": {"content": text},
        "delta": {"content": text},
        "finish_reason": finish,
        "logprobs": logprobs,
    }


async def judged(answer: dict[str, Any] | Sequence[str], *, streamed: bool) -> Ledger:
    ledger = Ledger()
    async with served(answer) as http:
        chats = Chats(http, Known([CHAT], [], []), ledger, random.Random(2), 30)
        await chats.one(streamed=streamed)
    return ledger


async def test_a_wrong_missing_or_odd_answer_is_found() -> None:
    right = choice(IDS)
    ledger = await judged({"choices": [right]}, streamed=False)
    assert (ledger.violations, ledger.counts["chat: right"]) == ([], 1)
    off = choice(IDS)
    off["logprobs"]["content"][1]["logprob"] += MARGIN
    for wrong in (
        choice((5, 6, 8)),
        choice((5, 6)),
        choice(IDS, text="abd"),
        choice(IDS, finish="stop"),
        choice(IDS, finish="abort"),
        off,
    ):
        assert len((await judged({"choices": [wrong]}, streamed=False)).violations) == 1, wrong


async def test_a_stream_that_ends_as_if_whole_is_found() -> None:
    event = json.dumps({"choices": [choice(IDS)]})
    ledger = await judged([event, "[DONE]"], streamed=True)
    assert (ledger.violations, ledger.counts["stream: right"]) == ([], 1)
    short = json.dumps({"choices": [choice((5, 6))]})
    for events in ([event], [short, "[DONE]"], [short]):
        assert len((await judged(events, streamed=True)).violations) == 1, events


async def test_an_answer_that_never_comes_is_stuck() -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        raise TimeoutError

    ledger = Ledger()
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(never), base_url="http://node"
    ) as http:
        await Chats(http, Known([CHAT], [], []), ledger, random.Random(2), 30).one(streamed=False)
    assert "no end after" in ledger.violations[0]


async def test_a_verdict_the_wrong_way_is_found_even_beside_an_outage() -> None:
    claim = {"positions": [{"logprob": -1.0, "top": [{"logprob": -1.0}]}]}
    known = Known([], [claim, claim], [tampered(claim)])
    assert known.tampered[0]["positions"][0]["top"][0]["logprob"] == -10.0

    async def ask(verdict: str, status: int, *, honest: bool, killed: bool = False) -> Ledger:
        ledger = Ledger()
        if killed:
            ledger.hits.append(Window(ledger.clock()))
        code = "replay_unavailable" if verdict == "inconclusive" else "distance"
        results = [{"verdict": verdict, "reasons": [{"code": code}]}]
        body: dict[str, Any] = {"verdict": verdict, "results": results}
        async with served(body if status == 200 else {"detail": body}, status) as http:
            await Verdicts(http, known, ledger, random.Random(1), 30).one(honest=honest)
        return ledger

    assert not (await ask("pass", 200, honest=True)).violations
    assert not (await ask("fail", 200, honest=False)).violations
    assert (await ask("fail", 200, honest=True, killed=True)).violations
    assert (await ask("inconclusive", 200, honest=True)).violations
    assert (await ask("pass", 200, honest=False)).violations
    assert not (await ask("pass", 502, honest=True, killed=True)).violations
    assert (await ask("fail", 502, honest=True, killed=True)).violations
    assert (await ask("pass", 502, honest=True)).violations
    assert not (await ask("inconclusive", 502, honest=True, killed=True)).violations
    assert not (await ask("inconclusive", 200, honest=False, killed=True)).violations


def test_a_wrong_vector_and_a_nonce_that_comes_twice_are_found() -> None:
    vector = np.linspace(-0.5, 0.5, 12)
    ledger = Ledger()
    receiver = Receiver(Known([], [], [], {1: vector.astype("<f2").astype(float)}), ledger)

    def post(number: int, nonce: int, values: np.ndarray, key: str) -> None:
        artifact = {"nonce": nonce, "vector_b64": encode_vector(values)}
        receiver.take(number, key, json.dumps({"artifacts": [artifact]}).encode())

    post(1, 1, vector, "a")
    post(1, 1, vector, "a")  # the same post again
    post(2, 1, vector, "b")  # another round
    post(2, 4, vector, "c")  # seen first: known from now on
    assert ledger.violations == []
    assert ledger.counts["vectors compared"] == 2
    post(2, 1, vector, "d")
    assert "came twice" in ledger.violations[-1]
    post(3, 1, vector + 0.01, "e")
    assert "wrong vector of nonce 1" in ledger.violations[-1]
    post(3, 4, vector[::-1], "f")
    assert "wrong vector of nonce 4" in ledger.violations[-1]
    post(3, 5, vector, "g")
    assert "another node's" in ledger.violations[-1]
    post(3, 7, vector, "g")
    assert "two bodies" in ledger.violations[-1]
    assert len(ledger.violations) == 5


def test_a_nonce_that_is_left_out_is_found() -> None:
    receiver = Receiver(Known([], [], []), Ledger())
    # Node 1 of 3, two classes: 1, 7, 13, ... and 4, 10, 16, ...
    receiver.nonces = {1: {1, 7, 13, 4}, 2: {1, 13, 4}, 3: {1, 4, 16}}
    receiver.whole(1, 2)
    assert receiver.ledger.violations == []
    for number, words in ((2, "class 0 of 2 lacks 1"), (3, "class 1 of 2 lacks 1")):
        receiver.whole(number, 2)
        assert words in receiver.ledger.violations[-1]


def test_growth_is_told_from_noise() -> None:
    rng = random.Random(3)
    at = [2.0 * n for n in range(900)]
    noise = [40 + rng.uniform(-10, 10) for _ in at]
    assert abs(growth(at, noise)) < 3
    assert growth(at, [n + t / 90 for n, t in zip(noise, at, strict=True)]) > 15
    for memory, files, found in ((0.0, 0.0, 0), (20e6, 0.0, 1), (0.0, 20.0, 1)):
        watch = Watch(os.getpid(), Ledger())
        for moment, files_then in zip(at, noise, strict=True):
            part = moment / at[-1]
            watch.samples.append(Sample(moment, 1e8 + part * memory, files_then + part * files))
        watch.judge_growth()
        assert len(watch.ledger.violations) == found, watch.ledger.violations


def test_orphans_zombies_and_left_memory_are_found(tmp_path: Any) -> None:
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True);"
    parent = subprocess.Popen(
        [sys.executable, "-c", script + "input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        ledger = Ledger()
        watch = Watch(parent.pid, ledger)
        watch.begin()
        watch.sample()
        assert child in watch.ever
        assert resident(parent.pid) > 1e6
        watch.judge_processes()
        assert ledger.violations == []
        left = tmp_path / "psm_left"
        left.write_bytes(b"")
        watch.shared = {str(left): {child}}
        watch.judge_processes()
        assert ledger.violations == []
        parent.kill()
        wait(lambda: parent.pid in zombies({os.getpid()}), "the parent is a zombie")
        watch.judge_processes()
        assert len(ledger.violations) == 1
        assert f"process {child} runs on" in ledger.violations[0]
    finally:
        os.kill(child, signal.SIGKILL)
        parent.communicate()
    wait(lambda: not _runs_as(child, watch), "the child ends")
    watch.judge_processes()
    assert f"{left} is left" in ledger.violations[-1]


def _runs_as(pid: int, watch: Watch) -> bool:
    from tests.node.load.flat import start_time

    return start_time(pid) == watch.ever[pid]
