"""A node over real ``assay serve`` backends: a model up, used, judged, crashed, taken down.

The file's name puts it last in its folder: its last tests end the shared node.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.node.conftest import READY_WITHIN, up_body
from tests.node.helpers import runs
from tests.node.process import NodeProcess, dead, wait

from assay.node.guard import descendants
from assay.replay.client import HttpEngineClient
from assay.replay.identity import identify
from assay.replay.prompts import PromptLine
from assay.replay.record import RecordOptions, collect
from assay.settings import ClientSettings

pytestmark = pytest.mark.engine

CHAT = {
    "model": "model",
    "messages": [{"role": "user", "content": "What is a claim?"}],
    "max_tokens": 8,
    "temperature": 0,
}


def chat(node: NodeProcess) -> str:
    answer = node.http.post("/v1/chat/completions", json=CHAT)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def backend(node: NodeProcess, index: int = 0) -> dict[str, Any]:
    return dict(node.status()["backends"][index])


def test_up_state_and_versions(real_node: NodeProcess, tiny_path: Path) -> None:
    status = real_node.status()
    assert (status["is_running"], status["status"], status["error"]) == (True, "running", None)
    assert [b["port"] for b in status["backends"]] == [real_node.port + 1, real_node.port + 2]
    assert {b["model"] for b in status["backends"]} == {"model"}
    state = real_node.http.get("/api/v1/state").json()
    assert state["state"] == "INFERENCE"
    assert state["poc_status"] == "IDLE"
    assert state["inference_healthy"] is True
    assert state["loaded_model"] == str(tiny_path)
    assert state["poc_validation_inference"] is True
    versions = real_node.http.get("/api/v1/versions").json()
    assert versions["vllm_version"].startswith("0.3")


def test_chat_goes_to_both_and_both_answer_alike(real_node: NodeProcess) -> None:
    assert len({chat(real_node) for _ in range(4)}) == 1
    assert real_node.http.get("/v1/models").json()["data"][0]["id"] == "model"


def test_claims_made_through_the_node_pass_on_it_and_edited_ones_fail(
    real_node: NodeProcess,
) -> None:
    async def recorded() -> list[dict[str, Any]]:
        address = f"http://127.0.0.1:{real_node.port}"
        prompt = PromptLine(1, "chat", {"messages": CHAT["messages"]})
        async with HttpEngineClient(address, ClientSettings()) as client:
            server = await identify(client)
            claims = await collect(client, server, [prompt], RecordOptions(max_tokens=48))
        return [json.loads(claim.model_dump_json()) for claim in claims]

    claims = asyncio.run(recorded())
    answer = real_node.http.post("/api/v1/inference/verify", json={"claims": claims})
    assert answer.status_code == 200, answer.text
    assert answer.json()["verdict"] == "pass", answer.text
    for position in claims[0]["positions"]:
        for entry in position["top"]:
            entry["logprob"] = 5 * entry["logprob"] - 5
        position["logprob"] = 5 * position["logprob"] - 5
    answer = real_node.http.post("/api/v1/inference/verify", json={"claims": claims})
    assert answer.json()["verdict"] == "fail", answer.text


def test_a_killed_backend_comes_back_while_the_other_serves(real_node: NodeProcess) -> None:
    """The engine core of a killed API server must be gone before the next one starts."""
    before = backend(real_node)
    tree = [before["pid"], *descendants(before["pid"])]
    assert len(tree) >= 2
    expected = chat(real_node)
    with dead(tree, "server and engine core end"):
        os.kill(before["pid"], signal.SIGKILL)
    wait(lambda: backend(real_node)["state"] != "ready", "the node sees it")
    assert chat(real_node) == expected
    assert real_node.http.get("/health").status_code == 200
    wait(lambda: backend(real_node)["state"] == "ready", "it is back", READY_WITHIN)
    after = backend(real_node)
    assert after["generation"] == before["generation"] + 1
    assert backend(real_node, 1)["generation"] == 1
    assert {chat(real_node) for _ in range(4)} == {expected}


def test_down_leaves_nothing_and_a_node_killed_during_a_start_neither(
    real_node: NodeProcess, tiny_path: Path
) -> None:
    tree = real_node.tree()
    assert len(tree) >= 6  # guard, server and engine core, twice
    assert real_node.http.post("/api/v1/inference/down").json() == {"status": "OK"}
    assert not any(runs(pid) for pid in tree)
    assert real_node.http.post("/v1/chat/completions", json=CHAT).status_code == 503

    begun = real_node.http.post("/api/v1/inference/up/async", json=up_body(tiny_path))
    assert begun.status_code == 200
    wait(lambda: len(real_node.tree()) >= 6, "both engine cores are there", READY_WITHIN)
    with dead(real_node.tree(), "the whole tree ends with the node"):
        real_node.signal(signal.SIGKILL)
        real_node.wait_for_end()
