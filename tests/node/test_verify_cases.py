"""Public reports that a verify request could bring about again: claims that no one may let pass, torn
replays, clients that leave."""

from __future__ import annotations

import asyncio
import json
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tests.node.helpers import HOST, SOON, Driver, until
from tests.node.test_verify_route import VERIFY, claims_of, judging
from tests.support.fake_engine import FakeEngine


async def test_case_32_a_torn_replay_decides_nothing(tmp_path: Path) -> None:
    claims = await claims_of(FakeEngine(), 1)
    torn = b'{"id": "x", "choices": [{"index": 0, "logprobs": {"content": [{"tok'
    engine = FakeEngine(fail_with=[(200, {"Content-Type": "application/json"}, torn)] * 8)
    async with judging(tmp_path, engine) as driver:
        answer = await driver.http.post(VERIFY, json={"claims": claims})
        assert answer.status_code == 200
        [result] = answer.json()["results"]
        assert (result["verdict"], result["blame"]) == ("inconclusive", "validator")
        assert "cannot be read" in result["reasons"][0]["message"]
        assert engine.requests, "it was asked"


async def test_case_42_a_verify_whose_client_leaves_replays_no_further_claim(
    tmp_path: Path,
) -> None:
    claims = await claims_of(FakeEngine(), 6)
    engine = Holding()
    async with judging(tmp_path, engine, limits__verify_concurrency=1) as driver:
        backend = driver.backends[0]
        left = asyncio.Event()
        asking = asyncio.create_task(ask_until(driver, {"claims": claims}, left))
        await until(lambda: engine.held, "the first replay is on the backend")
        assert backend.in_flight == 1
        left.set()
        assert await asking == 499
        assert backend.in_flight == 0
        engine.go_on = True
        assert engine.held == 1
        assert driver.node.store.results("") == []


class Holding(FakeEngine):
    """Keeps a replay until ``go_on``."""

    held = 0
    go_on = False

    def _complete(self, body: dict[str, Any], chat: bool) -> Any:
        self.held += 1
        for _ in range(int(SOON / 0.01)):
            if self.go_on:
                break
            time.sleep(0.01)
        return super()._complete(body, chat)


async def ask_until(driver: Driver, body: dict[str, Any], left: asyncio.Event) -> int:
    """POST to the verify route as a server would pass it on; the client is gone once ``left``."""
    transport: Any = driver.http._transport
    content = json.dumps(body).encode()
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": VERIFY,
        "raw_path": VERIFY.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-length", str(len(content)).encode())],
        "client": (HOST, 1),
        "server": (HOST, 2),
    }
    parts = [{"type": "http.request", "body": content, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if parts:
            return parts.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await transport.app(scope, receive, send)
    return int(sent[0]["status"])


def claimed(index: int, token: object) -> Any:
    def change(claim: dict[str, Any]) -> None:
        claim["output_ids"][index] = token
        claim["positions"][index]["token"] = token

    return change


def among_the_top(index: int, key: object) -> Any:
    def change(claim: dict[str, Any]) -> None:
        claim["positions"][index]["top"][1]["key"] = key

    return change


def every_position(**fields: object) -> Any:
    def change(claim: dict[str, Any]) -> None:
        for position in claim["positions"]:
            position.update(deepcopy(fields))

    return change


def emptied(*fields: str) -> Any:
    return lambda claim: claim.update({name: [] for name in fields})


@pytest.mark.parametrize(
    ("change", "verdict", "says"),
    [
        # Case 46: (a) no log probabilities, (b) empty lists, (c) outside the vocabulary,
        # (d) negative, (e) floats.
        (lambda claim: claim.update(positions=None), "fail", "no log probabilities"),
        (emptied("positions"), "fail", "no log probabilities"),
        (every_position(logprob=None, top=[]), "inconclusive", "no top-k evidence"),
        (every_position(top=[]), "inconclusive", "no top-k evidence"),
        (emptied("positions", "output_ids"), "inconclusive", "no output tokens"),
        (claimed(3, 99_999_999), "fail", "output token 3 is id 99999999, outside the vocabulary"),
        (claimed(3, 512), "fail", "output token 3 is id 512, outside the vocabulary"),
        (claimed(3, -1), "fail", "output token 3 is id -1, outside the vocabulary"),
        (among_the_top(3, 99_999_999), "fail", "id 99999999 is not in [0, 512)"),
        (among_the_top(3, -1), "fail", "id -1 is not in [0, 512)"),
        (claimed(3, 1.5), None, "claims[0].output_ids[3]"),
        (claimed(3, 17.0), None, "claims[0].output_ids[3]"),
        # Case 47: decoded text in the place of ids.
        (claimed(3, "hello"), None, "claims[0].output_ids[3]"),
        (claimed(3, "-1"), None, "claims[0].output_ids[3]"),
        (among_the_top(3, "x"), None, "claims[0].positions[3].top[1].key"),
    ],
)
async def test_case_46_and_47_none_of_these_claims_passes_and_each_names_why(
    tmp_path: Path, change: Any, verdict: str | None, says: str
) -> None:
    """``verdict`` None: no claim at all, refused with 400 before anything is replayed."""
    [claim] = await claims_of(FakeEngine(), 1)
    change(claim)
    engine = FakeEngine()
    async with judging(tmp_path, engine) as driver:
        answer = await driver.http.post(VERIFY, json={"claims": [claim]})
        body = answer.json()
        if verdict is None:
            assert answer.status_code == 400, answer.text
            assert says in body["detail"]
            assert engine.requests == []
            return
        assert answer.status_code == 200, answer.text
        assert body["verdict"] == verdict
        [result] = body["results"]
        assert any(says in reason["message"] for reason in result["reasons"]), result["reasons"]
        assert driver.node.store.results("")[0].verdict.verdict == verdict


async def test_case_53_a_mode_that_nobody_names_changes_no_verdict_and_is_named(
    tmp_path: Path,
) -> None:
    [claim] = await claims_of(FakeEngine(), 1)
    unnamed = deepcopy(claim)
    unnamed["logprobs_mode"] = unnamed["engine"]["logprobs_mode"] = None
    unnamed["request"].pop("logprobs_mode", None)
    results = []
    async with judging(tmp_path, FakeEngine()) as driver:
        for sent, asked in (
            (claim, {}),
            (unnamed, {}),
            (unnamed, {"logprobs_mode": "raw_logprobs"}),
        ):
            answer = await driver.http.post(VERIFY, json={"claims": [sent], **asked})
            results += answer.json()["results"]
    assert [result["verdict"] for result in results] == ["pass"] * 3
    distances = [result["distances"] for result in results]
    assert distances[0]
    assert distances[1:] == distances[:1] * 2
    codes = [[note["code"] for note in result["notes"]] for result in results]
    assert codes == [[], ["mode_not_named"], []]
