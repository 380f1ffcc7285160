"""The node as a process: its ports, keys, logs, and how it ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.node.helpers import HOST, SOON, runs
from tests.node.process import ASSAY_NODE, NodeProcess, wait
from tests.support.server import clean_environment

CONTROL, INFERENCE = "control-key-of-the-test", "inference-key-of-the-test"


def run(*flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ASSAY_NODE, *flags],
        capture_output=True,
        text=True,
        timeout=SOON,
        env=clean_environment(variables),
        check=False,
    )


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def test_a_public_address_without_a_key_refuses_to_start() -> None:
    ended = run("--host", "0.0.0.0")
    assert ended.returncode == 1
    assert "ASSAY_NODE_CONTROL_KEY" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        ended = run("--port", str(port), "--store", str(tmp_path / "store.db"))
    assert ended.returncode == 1
    assert f"cannot listen on {HOST} port {port}" in ended.stderr


def test_print_config_is_toml_that_starts_the_same_node_and_hides_keys(tmp_path: Path) -> None:
    shown = run("--print-config", "--backends", "3", ASSAY_NODE_CONTROL_KEY=CONTROL)
    assert shown.returncode == 0
    assert CONTROL not in shown.stdout
    file = tmp_path / "node.toml"
    file.write_text(shown.stdout)
    again = run("--config", str(file), "--print-config", ASSAY_NODE_CONTROL_KEY=CONTROL)
    assert again.stdout == shown.stdout
    assert "count = 3\n" in shown.stdout


def test_each_key_opens_its_own_routes_and_none_is_logged(tmp_path: Path) -> None:
    keys = {"ASSAY_NODE_CONTROL_KEY": CONTROL, "ASSAY_NODE_INFERENCE_KEY": INFERENCE}
    with NodeProcess(tmp_path, **keys) as node:
        control = {"Authorization": f"Bearer {CONTROL}"}
        inference = {"Authorization": f"Bearer {INFERENCE}"}
        for path in ("/api/v1/state", "/api/v1/versions", "/api/v1/gpu/devices", "/metrics"):
            bare = node.http.get(path)
            assert bare.status_code == 401, path
            assert bare.headers["www-authenticate"] == "Bearer"
            assert node.http.get(path, headers=inference).status_code == 401, path
            assert node.http.get(path, headers=control).status_code == 200, path
        for path in ("/api/v1/inference/up", "/api/v1/inference/down", "/api/v1/stop"):
            assert node.http.post(path, content=b"{}").status_code == 401, path
        for path in ("/health", "/livez", "/readyz"):
            assert node.http.get(path).status_code == 200, path
        assert node.up("model?exit=1", **control).status_code == 500
        assert node.up(**control).status_code == 200
        log = node.log_text()
        for secret in (CONTROL, INFERENCE):
            assert secret not in log
            assert secret not in node.http.get("/openapi.json").text
        # Backends run the model's code; they have no business with the node's keys.
        environment = Path(f"/proc/{node.status(**control)['backends'][0]['pid']}/environ")
        assert b"ASSAY_NODE_" not in environment.read_bytes()


def test_logs_are_one_json_object_a_line(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        node.up()
        node.signal(signal.SIGTERM)
        node.wait_for_end()
        lines = [json.loads(line) for line in node.log_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    messages = [line["message"] for line in lines]
    assert any("is ready" in message for message in messages)
    assert messages[-1] != ""


def test_the_second_port_is_open_while_a_backend_is_healthy(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        assert not listens(node.second_port)
        node.up()
        wait(lambda: listens(node.second_port), "the second port opens")
        second = f"http://{HOST}:{node.second_port}"
        with httpx.Client(base_url=second, trust_env=False, timeout=SOON) as http:
            assert http.get("/health").status_code == 200
            # The control plane is not to be had there.
            assert http.get("/api/v1/state").status_code == 404
            assert http.post("/api/v1/stop").status_code == 404
            assert http.get("/v1/../api/v1/state").status_code == 404
        node.http.post("/api/v1/inference/down")
        wait(lambda: not listens(node.second_port), "the second port closes")


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """An ``up`` that waits for a cold start would hold the end up for the graceful limit."""
    with NodeProcess(tmp_path) as node:
        toml = node.config.read_text()
        assert "graceful_s = 30" in toml
        with httpx.Client(base_url=node.http.base_url, timeout=SOON, trust_env=False) as other:
            body = {"model": "m?health=503", "dtype": "auto", "additional_args": []}
            request = other.build_request("POST", "/api/v1/inference/up/async", json=body)
            assert other.send(request).status_code == 200
        wait(lambda: len(node.tree()) >= 4, "servers run")
        node.signal(signal.SIGTERM)
        node.signal(signal.SIGTERM)
        assert node.wait_for_end() == 0


@pytest.mark.parametrize("flags", [("--port", "0"), ("--gpus", "0", "--backends", "0")])
def test_flags_are_checked_as_the_file_is(flags: tuple[str, ...]) -> None:
    ended = run(*flags, "--print-config")
    assert ended.returncode == 1
    assert "Input should be greater than" in ended.stderr


EVENTS = 30


def streamed(node: NodeProcess, pause: float, after: Callable[[int], None]) -> list[bytes]:
    """Events of a stream of ``EVENTS``; ``after`` is called with the number that came so far."""
    body = {"stream": True, "max_tokens": EVENTS, "pause": pause}
    events: list[bytes] = []
    with node.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.status_code == 200
        try:
            for piece in answer.iter_raw():
                events += [part for part in piece.split(b"\n\n") if part]
                after(len(events))
        except httpx.RemoteProtocolError:
            events.append(b"cut off")
    return events


def test_a_stream_is_finished_before_the_node_ends(tmp_path: Path) -> None:
    with NodeProcess(tmp_path) as node:
        node.up()
        tree = node.tree()
        told = []

        def end_the_node(count: int) -> None:
            if not told:
                told.append(count)
                node.signal(signal.SIGTERM)
                wait(lambda: not listens(node.port), "no new connections are taken")

        events = streamed(node, 0.05, end_the_node)
        assert told[0] < EVENTS  # it was told in the middle
        assert events[-1] == b"data: [DONE]"
        assert len(events) == EVENTS + 1
        assert node.wait_for_end() == 0
        assert not any(runs(pid) for pid in tree)


def test_a_stream_that_goes_on_beyond_the_limit_is_cut(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path)
    node.config.write_text(node.config.read_text().replace("graceful_s = 30", "graceful_s = 1"))
    with node:
        node.up()
        told: list[int] = []

        def end_the_node(count: int) -> None:
            if not told:
                told.append(count)
                node.signal(signal.SIGTERM)

        # An event every minute: it would take half an hour.
        events = streamed(node, 60, end_the_node)
        assert events[-1] == b"cut off"
        assert node.wait_for_end() == 0
