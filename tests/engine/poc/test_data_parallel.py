"""Two data-parallel engines behind one server: each computes its own part of the nonces."""

from __future__ import annotations

import base64
import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.engine.poc.architectures import reference
from tests.engine.poc.test_forward import CHALLENGE, SEQ_LEN, WITHIN, apart
from tests.engine.talk import SETTLES_WITHIN, Talk, text
from tests.support import specs
from tests.support.server import Server

NONCES = list(range(11))  # an odd number: the parts differ by one


def test_f31_two_engines_share_the_nonces(tiny_path: Path, tmp_path: Path) -> None:
    """F31: no rank waits for one that never comes; TP 1's vectors, in order; chat goes on.

    Mining splits every batch in the same way, shares and all.
    """
    flags = ("--data-parallel-size", "2", "--api-server-count", "1")
    spec = specs.v1(tiny_path, plugin=True, max_model_len=512, flags=flags)
    env = {**spec.env, "POC_STORE": str(tmp_path / "store.sqlite3")}
    body = {
        "block_hash": CHALLENGE[0],
        "block_height": 1,
        "public_key": CHALLENGE[1],
        "node_id": 0,
        "node_count": 1,
        "nonces": NONCES,
        "wait": True,
        "params": {"model": "model", "seq_len": SEQ_LEN},
    }
    chats = [text([5 + row, 6, 7, 8], temperature=0, max_tokens=32) for row in range(6)]
    with Server(dataclasses.replace(spec, env=env), tmp_path / "dp.log") as server:
        talk = Talk(server)
        before = talk.together(chats)
        during: list[Any] = []
        chatting = threading.Thread(target=lambda: during.extend(talk.together(chats)))
        chatting.start()
        answers = [talk.post(body, "/api/v1/pow/generate") for _ in range(4)]
        chatting.join()
        mined = mine_shares(talk, body)
        talk.close()
    expected = reference(tiny_path, NONCES, SEQ_LEN, CHALLENGE)
    for answer in answers:
        assert answer.status_code == 200, answer.text
        artifacts = answer.json()["artifacts"]
        assert [artifact["nonce"] for artifact in artifacts] == NONCES
        raw = [base64.b64decode(artifact["vector_b64"]) for artifact in artifacts]
        vectors = np.array([np.frombuffer(row, "<f2") for row in raw], dtype=float)
        assert apart(vectors, expected) <= WITHIN
    assert [answer.ids for answer in during] == [answer.ids for answer in before]
    assert mined["stats"]["total_processed"] == 14
    assert mined["config"]["shares"] == []


def mine_shares(talk: Talk, body: dict[str, Any]) -> dict[str, Any]:
    """Mine 11 positions of one class, then 3 more of another; the last status before the stop."""
    first, second = {"group_id": 1, "stop": 11}, {"group_id": 0, "start": 4, "stop": 7}
    work = {**body, "n_groups": 2, "batch_size": 4, "shares": [first]}
    status: dict[str, Any] = {}
    for path, asked, total in (
        ("init/generate", work, 11),
        ("shares", {"add": [second]}, 14),
    ):
        answer = talk.post(asked, f"/api/v1/pow/{path}")
        assert answer.status_code == 200, answer.text
        until = time.monotonic() + SETTLES_WITHIN
        while not status or status["stats"]["total_processed"] < total:
            assert time.monotonic() < until, status
            time.sleep(0.05)
            status = talk.http.get("/api/v1/pow/status").json()
            assert status["status"] == "GENERATING", status
    assert talk.post({}, "/api/v1/pow/stop").status_code == 200
    return status
