"""``scripts/network_client.py``: the whole way over two real backends, and that it can say no."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from scripts.network import artifacts
from tests.node.conftest import FLAGS, READY_WITHIN
from tests.node.helpers import HOST, free_ports
from tests.node.process import NodeProcess, wait
from tests.support.server import clean_environment

from assay.store.received import ReceivedStore
from assay.store.received_tables import Arrival, Result, Sender, Vectors

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 2400
"""Seconds for a run of the script: up to two starts of the backends on a busy machine."""
SERVED = ["up", "state", "versions", "gpu devices", "chat", "chat streamed"]
MINED = [
    *("pow init", "gate", "pow status", "callbacks", "pow stop", "chat again"),
    *("nonces", "vectors", "validation", "validated"),
]
KILLED = ["degraded", "rejoin", "none twice, none missing"]
KEY = "control-key-of-the-script"
ME = artifacts.Identity("block", 7, "key", 1, 3)
SENDER = Sender("block", "key", 1, 7)


def client(
    node: str, model: str, *flags: str, additional_args: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    address = f"{HOST}:{free_ports(1)}"
    return subprocess.run(
        [
            *(sys.executable, str(ROOT / "scripts" / "network_client.py")),
            *("--node", node, "--model", model, "--receiver", address),
            *("--backends", "2", "--seq-len", "64", "--within", str(LIMIT / 2)),
            *(*flags, "--", *additional_args),
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=clean_environment(variables),
        check=False,
    )


def passed(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Names of the steps that passed."""
    lines = [line for line in ended.stdout.splitlines() if line.startswith("ok ")]
    return [line.removeprefix("ok").strip().partition(":")[0] for line in lines]


def at(node: NodeProcess) -> str:
    return f"http://{HOST}:{node.port}"


@pytest.mark.engine
@pytest.mark.timeout(LIMIT)
def test_a_network_drives_a_node_from_up_to_down(real_node: NodeProcess, tiny_path: Path) -> None:
    """Issue 5, "Done when", with a backend killed in the middle of a round (fault 48)."""
    args = ("--dtype", "float32", "--kill-backend")
    ended = client(at(real_node), str(tiny_path), *args, additional_args=FLAGS)
    assert passed(ended) == [*SERVED, *MINED, *KILLED, "down"], ended.stdout + ended.stderr
    assert ended.returncode == 0, ended.stdout
    assert ended.stderr == ""


@pytest.mark.engine
@pytest.mark.timeout(LIMIT)
def test_up_async_and_polling_bring_the_model_up(
    shared_real_node: NodeProcess, tiny_path: Path
) -> None:
    """Also leaves the shared node as the tests after this one expect it."""
    args = ("--dtype", "float32", "--start", "async", "--start-only")
    ended = client(at(shared_real_node), str(tiny_path), *args, additional_args=FLAGS)
    assert passed(ended) == SERVED, ended.stdout + ended.stderr
    assert ended.returncode == 0, ended.stdout
    wait(lambda: len(shared_real_node.tree()) >= 6, "its processes are known", READY_WITHIN)


def test_the_first_step_that_fails_is_named_and_is_the_last(tmp_path: Path) -> None:
    """Without its key 401; the stand-ins chat, but not as OpenAI's wire has it."""
    with NodeProcess(tmp_path, ASSAY_NODE_CONTROL_KEY=KEY) as node:
        ended = client(at(node), "model")
        assert (ended.returncode, passed(ended)) == (1, []), ended.stdout + ended.stderr
        assert ended.stdout == "FAIL  up: POST /api/v1/inference/up: HTTP 401\n"

        ended = client(at(node), "model", ASSAY_NODE_CONTROL_KEY=KEY)
        assert (ended.returncode, passed(ended)) == (1, SERVED[:4]), ended.stdout + ended.stderr
        assert ended.stdout.splitlines()[-1] == "FAIL  chat: KeyError: 'usage'"
        assert KEY not in ended.stdout + ended.stderr


def vectors(*nonces: int, k: int = 12) -> artifacts.Vectors:
    """A unit vector for each, and no two alike, as float16 holds them."""
    return {
        nonce: artifacts.floats(
            artifacts.packed([math.cos(nonce), math.sin(nonce), *[0.0] * (k - 2)])
        )
        for nonce in nonces
    }


def test_nonces_of_two_classes_in_any_order_are_counted() -> None:
    """Node 1 of 3: class 0 has 1, 7, 13, ..., class 1 has 4, 10, ..."""
    assert artifacts.counts([10, 1, 4, 7, 13], ME, 2) == [3, 2]
    assert artifacts.counts([], ME, 2) == [0, 0]


@pytest.mark.parametrize(
    ("nonces", "words"),
    [
        ([1, 13], "class 0: 1 or more positions are missing below 2, the first is 1"),
        ([1, 7, 10], "class 1: 1 or more positions are missing below 1, the first is 0"),
        ([1, 2], "nonce 2 is node 2's, not 1's"),
    ],
)
def test_a_gap_and_a_foreign_nonce_are_seen(nonces: list[int], words: str) -> None:
    with pytest.raises(artifacts.CheckError) as failed:
        artifacts.counts(nonces, ME, 2)
    assert str(failed.value) == words


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (artifacts.Received(), "no artifact came"),
        (artifacts.Received(vectors(1), rejected=2, last_rejection="why"), "2 .* refused: why"),
        (artifacts.Received(vectors(1, k=4)), "nonce 1: 4 values, not 12"),
        (artifacts.Received({1: (math.nan,) * 12}), "nonce 1: a value is not finite"),
        (artifacts.Received({1: (0.0,) * 12}), "nonce 1: all values are zero"),
        (artifacts.Received(vectors(1, 200)), "porosity 100.0, must be below 100"),
    ],
)
def test_vectors_that_a_network_would_refuse_are_seen(got: artifacts.Received, words: str) -> None:
    assert artifacts.check_vectors(artifacts.Received(vectors(1, 199)), 12) == 99.5
    with pytest.raises(artifacts.CheckError, match=words):
        artifacts.check_vectors(got, 12)


def test_swapped_vectors_are_far_from_the_real_ones_and_the_wire_keeps_them_exactly() -> None:
    real = vectors(1, 4, 7)
    again = artifacts.read_artifacts([artifacts.written(*one) for one in real.items()])
    assert artifacts.farthest(real, again) == 0
    assert artifacts.farthest(real, artifacts.swapped(real)) > 1
    with pytest.raises(artifacts.CheckError, match="7 is in one only"):
        artifacts.farthest(real, vectors(1, 4))
    with pytest.raises(artifacts.CheckError, match="nothing to compare"):
        artifacts.farthest({}, {})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([artifacts.written(1, [0.5]), artifacts.written(1, [0.5])], "nonce 1 is given twice"),
        ([{"nonce": 1, "vector_b64": "no base64!"}], "nonce 1 is no base64"),
        ([{"nonce": 1, "vector_b64": "AAAA"}], "3 bytes are no vector"),
    ],
)
def test_artifacts_that_cannot_be_read_are_seen(given: list[dict[str, object]], words: str) -> None:
    with pytest.raises(artifacts.CheckError, match=words):
        artifacts.read_artifacts(given)


Keep = Callable[[Sender], None]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, Keep]:
    """A receiver's file, and what puts a vector and a result of a sender there."""
    path = tmp_path / "received.sqlite3"

    def keep(sender: Sender) -> None:
        store = ReceivedStore(path)
        raw = artifacts.packed([1.0, *[0.0] * 11])
        store.add_vectors(sender, Vectors(12, [4], [raw]), Arrival(None, "a"))
        store.add_result(sender, Result("5001:a", 3, 1, 0.5, True, "{}"), Arrival(None, "b"))
        store.close()

    return path, keep


def test_what_a_receiver_keeps_is_read(kept: tuple[Path, Keep]) -> None:
    path, keep = kept
    ReceivedStore(path).close()
    assert artifacts.received(path, ME) == artifacts.Received()
    assert artifacts.received_nonces(path, ME) == []
    keep(SENDER)
    got = artifacts.received(path, ME)
    assert got.vectors == {4: (1.0, *[0.0] * 11)}
    assert [(r["request_id"], r["fraud_detected"]) for r in got.results] == [("5001:a", 1)]
    assert artifacts.received_nonces(path, ME) == [4]


@pytest.mark.parametrize(
    "other",
    [Sender("block", "else", 1, 7), Sender("block", "key", 2, 7), Sender("block", "key", 1)],
)
def test_callbacks_in_another_name_are_seen(kept: tuple[Path, Keep], other: Sender) -> None:
    path, keep = kept
    keep(other)
    with pytest.raises(artifacts.CheckError, match="callbacks of this block have"):
        artifacts.received(path, ME)
