"""The receiver: what it takes, what it refuses and with which words."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.node.helpers import SOON, free_ports

from assay.errors import SettingsError
from assay.node.receive import ReceiverConfig, create_receiver
from assay.node.receive_run import receiver_config
from assay.poc.artifacts import encode_vector
from assay.store.received import ReceivedStore
from assay.store.received_tables import Sender

ROOT = Path(__file__).parents[2]
K = 4
KEY = "a-key-for-tests"


@asynccontextmanager
async def receiver(folder: Path, **flags: Any) -> AsyncIterator[httpx.AsyncClient]:
    app = create_receiver(ReceiverConfig(store=str(folder / "r.db"), **flags))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://receiver", timeout=SOON
        ) as http,
    ):
        yield http


def vector(nonce: int) -> str:
    return encode_vector(np.arange(K) + nonce)


def body(*nonces: int, **changes: Any) -> dict[str, Any]:
    return {
        "block_hash": "block",
        "block_height": 7,
        "public_key": "key",
        "node_id": 3,
        "artifacts": [{"nonce": nonce, "vector_b64": vector(nonce)} for nonce in nonces],
        "encoding": {"dtype": "f16", "k_dim": K, "endian": "le"},
        **changes,
    }


def result(**changes: Any) -> dict[str, Any]:
    return {
        "request_id": "r",
        "block_hash": "block",
        "block_height": 7,
        "public_key": "key",
        "node_id": 3,
        "n_total": 10,
        "n_mismatch": 1,
        "mismatch_nonces": [4],
        "p_value": 0.5,
        "fraud_detected": False,
        **changes,
    }


async def only(http: httpx.AsyncClient) -> dict[str, Any]:
    summary = (await http.get("/summary")).json()
    assert summary["count"] == 1
    [one] = summary["senders"]
    return dict(one)


@pytest.mark.parametrize(
    "base", ["", "/v2/poc-batches/Qwen%252FQwen3-0.6B", "/any/other/base", "/generated"]
)
async def test_what_comes_is_kept_under_any_base_and_without_a_content_type(
    tmp_path: Path, base: str
) -> None:
    async with receiver(tmp_path) as http:
        sent = json.dumps(body(1, 2, 5, extra="ignored")).encode()
        answer = await http.post(f"{base}/generated", content=sent)
        assert answer.status_code == 200, answer.text
        assert answer.json() == {
            "status": "OK",
            "stored": 3,
            "repeated": False,
            "artifacts": 3,
            "porosity": 5 / 3,
            "porous": False,
        }
        assert (await http.post(f"{base}/validated", json=result())).json()["stored"] == 1
        one = await only(http)
        assert (one["artifacts"], one["nonce_min"], one["nonce_max"]) == (3, 1, 5)
        assert (one["results"], one["rejected"], one["block_height"]) == (1, 0, 7)
    store = ReceivedStore(tmp_path / "r.db")
    kept = store.vectors(Sender("block", "key", 3))
    assert {n: base64.b64encode(raw).decode() for n, raw in kept.items()} == {
        nonce: vector(nonce) for nonce in (1, 2, 5)
    }
    store.close()


def _artifact(nonce: Any, text: Any) -> dict[str, Any]:
    return body(0) | {
        "artifacts": [
            {"nonce": 0, "vector_b64": vector(0)},
            {"nonce": nonce, "vector_b64": text},
        ]
    }


INFINITE = base64.b64encode(np.array([1, 2, np.inf, 3], "<f2").tobytes()).decode()


@pytest.mark.parametrize(
    ("sent", "status", "says"),
    [
        (_artifact(1, "!"), 422, "artifacts[1].vector_b64: not base64"),
        (_artifact(1, "AAA"), 422, "artifacts[1].vector_b64: not base64"),
        (_artifact(1, ""), 422, "artifacts[1].vector_b64: 0 bytes, expected 8"),
        (_artifact(1, encode_vector([1.0])), 422, "artifacts[1].vector_b64: 2 bytes"),
        (_artifact(1, INFINITE), 422, "artifacts[1].vector_b64: holds a value that is not finite"),
        (_artifact(0, vector(0)), 422, "artifacts[1].nonce: 0 is that of artifacts[0]"),
        (_artifact(-1, vector(0)), 422, "artifacts[1].nonce: -1 is not an integer of 0..2^32-1"),
        (_artifact(2**32, vector(0)), 422, "artifacts[1].nonce"),
        (_artifact(True, vector(0)), 400, "artifacts[1].nonce"),
        (_artifact("1", vector(0)), 400, "artifacts[1].nonce"),
        (_artifact(1, None), 400, "artifacts[1].vector_b64"),
        (body(1, encoding={"dtype": "f32"}), 400, "encoding.dtype"),
        (body(1, encoding={"endian": "be"}), 400, "encoding.endian"),
        (body(1, encoding={"k_dim": 0}), 400, "encoding.k_dim"),
        (body(1, node_id=None), 400, "node_id"),
        (body(1, block_hash=""), 400, "block_hash"),
        (body(1, public_key="a\0b"), 400, "public_key"),
        (body(1, artifacts={}), 400, "artifacts"),
    ],
)
async def test_f27_f28_a_bad_vector_is_refused_by_name_and_nothing_is_kept(
    tmp_path: Path, sent: dict[str, Any], status: int, says: str
) -> None:
    async with receiver(tmp_path) as http:
        answer = await http.post("/generated", json=sent)
        assert answer.status_code == status, answer.text
        assert says in answer.json()["detail"]
        summary = (await http.get("/summary")).json()
        if status == 422:
            assert summary["senders"][0]["rejected"] == 1
            assert says in summary["senders"][0]["last_rejection"]
        assert sum(sender["artifacts"] for sender in summary["senders"]) == 0


@pytest.mark.parametrize("sent", [b"", b"{", b"[]", b"\xff"])
async def test_what_is_no_object_is_400(tmp_path: Path, sent: bytes) -> None:
    async with receiver(tmp_path) as http:
        for path in ("/generated", "/validated"):
            assert (await http.post(path, content=sent)).status_code == 400


async def test_without_encoding_the_networks_twelve_values_are_meant(tmp_path: Path) -> None:
    async with receiver(tmp_path) as http:
        sent = body(1)
        del sent["encoding"]
        answer = await http.post("/generated", json=sent)
        assert "expected 24 (12 float16 values)" in answer.json()["detail"]
        sent["artifacts"][0]["vector_b64"] = encode_vector(np.ones(12))
        assert (await http.post("/generated", json=sent)).status_code == 200


async def test_a_nonce_counts_once_over_requests(tmp_path: Path) -> None:
    async with receiver(tmp_path) as http:
        await http.post("/generated", json=body(1, 2))
        answer = await http.post("/generated", json=body(7, 2))
        assert answer.status_code == 409
        assert answer.json()["detail"].startswith("artifacts[1].nonce: nonce 2 ")
        one = await only(http)
        assert (one["artifacts"], one["rejected"]) == (2, 1)
        assert (await http.post("/generated", json=body(2, node_id=4))).status_code == 200


async def test_f46_a_repeat_with_its_key_is_accepted_and_kept_once(tmp_path: Path) -> None:
    key = {"Idempotency-Key": "k"}
    async with receiver(tmp_path) as http:
        for repeated in (False, True):
            answer = await http.post("/generated", json=body(1, 2), headers=key)
            assert answer.status_code == 200
            assert (answer.json()["repeated"], answer.json()["artifacts"]) == (repeated, 2)
        answer = await http.post("/generated", json=body(1, 3), headers=key)
        assert answer.status_code == 409
        assert "Idempotency-Key" in answer.json()["detail"]
        # The other route with the same key is another body too.
        assert (await http.post("/validated", json=result(), headers=key)).status_code == 409
        other = {"Idempotency-Key": "other"}
        for stored in (1, 0):
            answer = await http.post("/validated", json=result(), headers=other)
            assert answer.json()["stored"] == stored
        assert (await only(http))["results"] == 1
        long = {"Idempotency-Key": "k" * 513}
        assert (await http.post("/generated", json=body(9), headers=long)).status_code == 400


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"n_mismatch": 11}, 422, "n_mismatch: 11 of 10"),
        ({"n_total": -1}, 400, "n_total"),
        ({"p_value": 1.5}, 400, "p_value"),
        ({"fraud_detected": "no"}, 400, "fraud_detected"),
    ],
)
async def test_a_result_that_contradicts_itself_is_refused(
    tmp_path: Path, changes: dict[str, Any], status: int, says: str
) -> None:
    async with receiver(tmp_path) as http:
        answer = await http.post("/validated", json=result(**changes))
        assert answer.status_code == status
        assert says in answer.json()["detail"]


async def test_porous_nonces_are_shown_and_refused_where_wanted(tmp_path: Path) -> None:
    async with receiver(tmp_path) as http:
        answer = await http.post("/generated", json=body(100))
        assert (answer.json()["porosity"], answer.json()["porous"]) == (100.0, True)
        answer = await http.post("/generated", json=body(101))
        assert answer.json()["porous"] is False
    async with receiver(tmp_path, refuse_porous=True) as http:
        answer = await http.post("/generated", json=body(5000))
        assert answer.status_code == 422
        assert "too porous" in answer.json()["detail"]
        assert (await only(http))["artifacts"] == 2


async def test_a_body_over_the_limit_is_413(tmp_path: Path) -> None:
    async with receiver(tmp_path, body_bytes=100) as http:
        assert (await http.post("/generated", json=body(1))).status_code == 413


async def test_the_key_comes_as_a_header_or_in_the_address(tmp_path: Path) -> None:
    async with receiver(tmp_path, key=KEY) as http:
        for path in ("/generated", "/key/another-key/generated", "/x/key/y/generated"):
            answer = await http.post(path, json=body(1))
            assert answer.status_code == 401
            assert KEY not in answer.text
        assert (await http.get("/summary")).status_code == 401
        assert (await http.get("/health")).status_code == 200
        bearer = {"Authorization": f"Bearer {KEY}"}
        assert (await http.post("/generated", json=body(1), headers=bearer)).status_code == 200
        for number, base in enumerate((f"/key/{KEY}", f"/key/{KEY}/v2/poc-batches/a%252Fb")):
            answer = await http.post(f"{base}/generated", json=body(2 + number))
            assert answer.status_code == 200, answer.text
        shown = await http.get("/summary", headers=bearer)
        assert shown.json()["senders"][0]["artifacts"] == 3


def test_a_public_address_needs_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {
        "host": "0.0.0.0",
        "port": 8090,
        "store": "r.db",
        "key_file": None,
        "refuse_porous": False,
    }
    monkeypatch.delenv("ASSAY_RECEIVE_KEY", raising=False)
    with pytest.raises(SettingsError, match="there is no key"):
        receiver_config(**given)
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    found = receiver_config(**given | {"key_file": file})
    assert found.key is not None
    assert found.key.get_secret_value() == KEY
    assert KEY not in repr(found)
    file.write_text("hunter 2\n")
    with pytest.raises(SettingsError, match="key: give 8 or more") as caught:
        receiver_config(**given | {"key_file": file})
    assert "hunter" not in str(caught.value)
    monkeypatch.setenv("ASSAY_RECEIVE_KEY", KEY)
    assert receiver_config(**given).key == found.key


def test_the_command_receives_and_ends_at_a_signal(tmp_path: Path) -> None:
    """kill -9 in between: what was answered is there after the next start."""
    port = free_ports(1)
    command = [
        *(sys.executable, "-m", "assay.cli.main", "node", "receive"),
        *("--port", str(port), "--store", str(tmp_path / "folder" / "r.db")),
    ]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ASSAY_")}
    variables["PYTHONPATH"] = str(ROOT / "src")
    address = f"http://127.0.0.1:{port}"
    for number, end in enumerate((signal.SIGKILL, signal.SIGINT)):
        process = subprocess.Popen(
            command, cwd=tmp_path, env=variables, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        try:
            _answers(address, process)
            key = {"Idempotency-Key": f"k{number}"}
            sent = httpx.post(f"{address}/generated", json=body(number), headers=key, timeout=SOON)
            assert sent.json()["artifacts"] == number + 1
            process.send_signal(end)
            code = process.wait(SOON)
        finally:
            process.kill()
            process.wait()
            printed = process.stderr.read()
            process.stderr.close()
        assert code == (-signal.SIGKILL if end is signal.SIGKILL else 0), printed
        assert json.loads(printed.splitlines()[0])["logger"] == "assay.receive"


def _answers(address: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SOON
    while True:
        try:
            if httpx.get(f"{address}/health", timeout=SOON).status_code == 200:
                return
        except httpx.TransportError:
            assert process.poll() is None, "the receiver ended"
            assert time.monotonic() < deadline, "the receiver does not answer"
            time.sleep(0.1)
