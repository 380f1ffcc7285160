"""Jobs of proof of compute from the asking side: nonces as typed, waiting, and how a job can end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.cli.poc_server import as_claimed, validation_body
from assay.errors import ClaimError, ReplayError, SettingsError
from assay.poc import decode_vector
from assay.poc.artifact_file import artifact_set
from assay.poc.settings import NETWORK
from assay.replay.client import EngineReply
from assay.replay.pow import ROUTE, parse_nonces, run_job, served_model


class Scripted:
    """An engine that gives its answers in order and remembers what it was asked."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Any]] = []

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> EngineReply:
        self.asked.append((method, path, body))
        status, answer = self.answers.pop(0)
        return EngineReply(status, json.dumps(answer).encode())

    async def send_stream(self, path: str, body: Mapping[str, Any]) -> Any:
        raise AssertionError("nothing here streams")


async def no_wait(_seconds: float) -> None:
    return None


QUEUED = (200, {"status": "queued", "request_id": "r1", "queued_count": 3})


async def test_a_job_is_queued_and_asked_for_until_it_is_done() -> None:
    engine = Scripted(
        QUEUED, (200, {"status": "running"}), (200, {"status": "completed", "artifacts": []})
    )
    answer = await run_job(engine, {"nonces": [1]}, sleep=no_wait)
    assert answer["artifacts"] == []
    assert engine.asked[0] == ("POST", ROUTE, {"nonces": [1], "wait": False})
    assert {path for _, path, _ in engine.asked[1:]} == {f"{ROUTE}/r1"}


@pytest.mark.parametrize("state", ["failed", "cancelled", "an odd state"])
async def test_a_job_that_ends_otherwise_is_an_error_with_the_servers_reason(state: str) -> None:
    engine = Scripted(QUEUED, (200, {"status": state, "error": "the device is gone"}))
    with pytest.raises(ReplayError, match="the device is gone") as caught:
        await run_job(engine, {}, sleep=no_wait)
    assert caught.value.blame == "validator"


@pytest.mark.parametrize("status", [400, 401, 404, 409, 429, 503])
async def test_a_refused_job_is_an_error_that_blames_no_claim(status: int) -> None:
    engine = Scripted((status, {"detail": "seq_len: too long"}))
    with pytest.raises(ReplayError, match="seq_len: too long") as caught:
        await run_job(engine, {}, sleep=no_wait)
    assert (caught.value.blame, caught.value.status) == ("validator", status)


async def test_a_server_without_a_model_is_said_so() -> None:
    assert await served_model(Scripted((200, {"data": [{"id": "m"}]}))) == "m"
    with pytest.raises(ReplayError, match="names no model"):
        await served_model(Scripted((200, {"data": []})))


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20, unique=True))
def test_nonces_survive_being_typed(nonces: list[int]) -> None:
    assert parse_nonces(",".join(str(nonce) for nonce in nonces)) == nonces


def test_ranges_include_both_ends_and_keep_their_order() -> None:
    assert parse_nonces("3-5, 0,9-9") == [3, 4, 5, 0, 9]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "-1",
        "1-",
        "5-3",
        "1,1",
        "0-3,2",
        str(2**32),
        "0-9999999",
        "1_0",
        "\u0663",
        "1-\u0663",
    ],
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError, match="--nonces"):
        parse_nonces(text)


def test_f27_a_claimed_nan_is_sent_as_it_is_claimed() -> None:
    """F27: the server must see it, and count a mismatch; it is not ours to leave out."""
    vector = np.array([0.5, np.nan, 70000.0])
    back = decode_vector(as_claimed(vector))
    assert back[0] == 0.5
    assert np.isnan(back[1])
    assert np.isinf(back[2])


def test_the_body_of_a_validation_carries_the_claim_and_the_test() -> None:
    text = as_claimed(np.full(12, 0.25))
    claim = artifact_set(
        {"block_hash": "b", "public_key": "k", "artifacts": [{"nonce": 7, "vector_b64": text}]}
    )
    body = validation_body(claim, NETWORK, "model", 64)
    assert body["nonces"] == [7]
    assert body["validation"]["artifacts"] == [{"nonce": 7, "vector_b64": text}]
    assert body["params"] == {"model": "model", "seq_len": 64, "k_dim": 12}
    assert body["stat_test"]["fraud_threshold"] == NETWORK.alpha
    with pytest.raises(ClaimError, match="--seq-len"):
        validation_body(claim, NETWORK, "model", None)
