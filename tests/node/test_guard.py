"""Child processes never outlive the node, whatever way it dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.node.helpers import runs
from tests.node.process import NodeProcess, dead, wait

TREE = 6
"""Two backends, each a guard, a server and a worker that ignores every signal."""


@pytest.fixture
def node(tmp_path: Path) -> NodeProcess:
    return NodeProcess(tmp_path)


def test_kill_9_of_the_node_ends_the_whole_tree(node: NodeProcess) -> None:
    with node:
        assert node.up("model?children=1").status_code == 200
        tree = node.tree()
        assert len(tree) == TREE
        with dead(tree, "the tree of a node that was killed ends"):
            node.signal(signal.SIGKILL)
            node.wait_for_end()


def test_kill_9_in_the_middle_of_a_start_ends_it_too(node: NodeProcess) -> None:
    with node:
        body = {"model": "model?health=503&deaf=true", "dtype": "auto", "additional_args": []}
        node.http.post("/api/v1/inference/up/async", json=body)
        wait(lambda: len(node.tree()) >= 4, "both servers run")
        with dead(node.tree(), "the tree ends"):
            node.signal(signal.SIGKILL)
            node.wait_for_end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_an_ordinary_end_leaves_nothing_and_exits_with_0(node: NodeProcess, number: int) -> None:
    with node:
        node.up("model?children=1")
        tree = node.tree()
        assert len(tree) == TREE
        node.signal(number)
        assert node.wait_for_end() == 0
        assert not any(runs(pid) for pid in tree)


def test_a_guard_that_is_killed_takes_its_backend_with_it_and_is_replaced(
    node: NodeProcess,
) -> None:
    """The worker is left to the machine's init then, unless it is found by its session."""
    with node:
        node.up()
        backend = node.status()["backends"][0]
        server = backend["pid"]
        guard = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        assert guard in node.tree()
        with dead([guard, server], "guard and server end"):
            os.kill(guard, signal.SIGKILL)
        wait(lambda: len(node.tree()) == TREE - 2, "it is replaced")
        wait(lambda: node.status()["backends"][0]["state"] == "ready", "it is ready again")
        assert node.status()["backends"][0]["generation"] == 2


def test_the_output_of_a_backend_is_kept_and_a_long_one_put_aside(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path)
    node.config.write_text(node.config.read_text() + "log_bytes = 10\n")
    with node:
        node.up("first")
        node.up("second")
        logs = tmp_path / "logs"
        port = node.status()["backends"][0]["port"]
        assert "stand-in: second" in (logs / f"backend-{port}.log").read_text()
        assert "stand-in: first" in (logs / f"backend-{port}.log.1").read_text()
