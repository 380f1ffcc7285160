"""Kill tests: backends, and the node itself, die at random moments of a round.

Whatever dies, the receiver ends with every nonce of every class from the first one on, once.
"""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
from pathlib import Path

import pytest
from tests.node.pow.nodes import (
    POW,
    Receiver,
    artifacts_of,
    ask_for,
    check,
    classes_grown,
    pow_config,
    pow_node,
    reached,
    stopped,
    until,
    until_it,
)
from tests.node.process import NodeProcess
from tests.plugin.poc.fake import serving

from assay.node.config_file import as_toml
from assay.node.receive import ReceiverConfig, create_receiver
from assay.store.received import ReceivedStore


@pytest.mark.parametrize("seed", [1, 2])
async def test_backends_killed_at_random_moments_of_a_round(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    async with Receiver().serving() as receiver, pow_node(tmp_path, count=3) as node:
        body = ask_for(receiver, batch_size=4)
        assert (await node.post("/init/generate", body)).json()["n_groups"] == 3
        await classes_grown(receiver, body, 3)
        for _ in range(8):
            victim = dice.randrange(3)
            # One that is not back yet gets no second blow.
            next_life = node.backend(victim).generation
            if node.backend(victim).healthy:
                node.kill(victim)
                next_life += 1
            # Sometimes the next one dies before this one is back, sometimes it has rejoined.
            if dice.random() < 0.5:
                await asyncio.sleep(dice.random() * 0.5)
            else:
                await node.well(victim, next_life)
                await asyncio.sleep(dice.random() * 0.3)
        # Until then one may still hold the rest of a range that it gave away or took over.
        await until_it(
            node.round,
            lambda r: not r["degraded"] and sorted(r["classes"].values()) == [[0], [1], [2]],
            "all are back and mine a class of their own, and nothing else",
        )
        assert max(backend.generation for backend in node.node.pool.backends) > 1
        await classes_grown(receiver, body, 3)
        await stopped(node, receiver)
        check(artifacts_of(receiver), body, 3)


async def test_the_node_killed_in_a_round_and_the_client_asking_again(tmp_path: Path) -> None:
    """F40 and more: SIGKILL to the node and to backends of it; the receiver is the real one, which
    refuses a nonce that it has, under whatever key it comes."""
    dice = random.Random(3)
    config = pow_config(tmp_path, backends__start_attempts=1000)
    process = NodeProcess(tmp_path, toml=as_toml(config))
    process.port = config.port
    receiver = create_receiver(ReceiverConfig(store=str(tmp_path / "received.db")))
    async with receiver.router.lifespan_context(receiver), serving(receiver) as url:
        store: ReceivedStore = receiver.state.store
        body = {**ask_for(None, batch_size=4), "url": f"{url}/v2/poc-batches/a%252Fb"}
        tokens = set()

        def ends() -> list[int]:
            _, senders = store.senders(1)
            nonces = store.vectors(senders[0].sender) if senders else {}
            return reached(nonces, body, 2)

        async def all_grown() -> None:
            before = ends()
            await until(
                lambda: all(now > then for now, then in zip(ends(), before, strict=True)),
                "every class is mined",
            )

        for life in range(3):
            await asyncio.to_thread(process.__enter__)
            try:
                assert (await asyncio.to_thread(process.up)).status_code == 200
                answer = await asyncio.to_thread(
                    process.http.post, f"{POW}/init/generate", json=body
                )
                assert (answer.status_code, answer.json()["n_groups"]) == (200, 2)
                await all_grown()
                pids = {b["port"]: b["pid"] for b in process.status()["backends"]}
                for port in pids:
                    told = await asyncio.to_thread(
                        process.http.get, f"http://127.0.0.1:{port}/api/v1/pow/status"
                    )
                    tokens.add(told.json()["config"]["url"].rpartition("/")[2])
                await asyncio.sleep(dice.random() * 0.5)
                if life < 2:
                    if life == 1:
                        os.kill(pids[dice.choice(sorted(pids))], signal.SIGKILL)
                        await asyncio.sleep(dice.random() * 0.3)
                    process.signal(signal.SIGKILL)
                    await asyncio.to_thread(process.wait_for_end)
                    continue
                assert (await asyncio.to_thread(process.http.post, f"{POW}/stop")).is_success
                quiet, last = 0, ends()
                while quiet < 30:
                    await asyncio.sleep(0.1)
                    quiet, last = (quiet + 1, last) if ends() == last else (0, ends())
            finally:
                await asyncio.to_thread(process.__exit__, None, None, None)
        _, senders = store.senders(1)
        assert senders[0].rejected == 0, senders[0].last_rejection
        vectors = store.vectors(senders[0].sender)
        found = [
            {"nonce": nonce, "vector_b64": base64.b64encode(raw).decode()}
            for nonce, raw in vectors.items()
        ]
        assert all(check(found, body, 2))
    # Six workers at least had a secret address; none is in a log.
    assert len(tokens) >= 6
    log = process.log_text()
    assert "taken up again" in log
    assert not [token for token in tokens if token in log]
