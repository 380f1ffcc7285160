"""``real_node``: one node with two real tiny backends, shared by every test of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.node.process import NodeProcess, wait
from tests.support import specs

HERE = Path(__file__).parent
RUNNING = pytest.StashKey[ExitStack]()
MODEL_LENGTH = 512
FLAGS = (
    *specs.COMMON_FLAGS,
    *("--max-model-len", str(MODEL_LENGTH)),
    *("--max-num-seqs", "8"),
    *("--max-num-batched-tokens", "256"),
    *("--block-size", "32", "--num-gpu-blocks-override", "80"),
)
READY_WITHIN = 420.0


def real_toml(node: NodeProcess, folder: Path) -> str:
    """Two ``assay serve`` on V1; many restarts are allowed, since tests kill backends."""
    environment = {**specs.COMMON_ENV, "VLLM_USE_V2_MODEL_RUNNER": "0"}
    lines = "\n".join(f"{name} = '{value}'" for name, value in environment.items())
    return (
        f"port = {node.port}\n"
        f"[proxy]\nport = {node.second_port}\n"
        f"[store]\nfolder = '{folder / 'state'}'\n"
        "[backends]\ncount = 2\ngpus = []\n"
        f"first_port = {node.port + 1}\nstagger_s = 1\ncheck_every_s = 0.5\ncheck_timeout_s = 60\n"
        f"cold_start_s = {READY_WITHIN}\nrestart_backoff_s = 0.1\nrestart_backoff_max_s = 0.1\n"
        f"restart_limit = 50\nlog_folder = '{folder / 'logs'}'\n"
        f"[backends.environment]\n{lines}\n"
    )


def up_body(model: Path) -> dict[str, object]:
    """Body of ``/inference/up`` for ``model``, served under the name ``model``."""
    return {"model": str(model), "dtype": "float32", "additional_args": list(FLAGS)}


@pytest.fixture(scope="session")
def shared_real_node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_path: Path
) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("real-node")
    node = NodeProcess(folder)
    node.config.write_text(real_toml(node, folder))
    with ExitStack() as running:
        request.session.stash[RUNNING] = running
        running.enter_context(node)
        answer = node.http.post(
            "/api/v1/inference/up", json=up_body(tiny_path), timeout=READY_WITHIN
        )
        node.tree()
        assert answer.status_code == 200, answer.text
        yield node


@pytest.fixture
def real_node(shared_real_node: NodeProcess) -> NodeProcess:
    """The shared node with both backends ready, whatever the test before did to them."""
    wait(
        lambda: [b["state"] for b in shared_real_node.status()["backends"]] == ["ready"] * 2,
        "both backends are ready",
        READY_WITHIN,
    )
    shared_real_node.tree()
    return shared_real_node


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the shared node with the last test here: the next folder needs its memory."""
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        running = item.session.stash.get(RUNNING, None)
        if running is not None:
            running.close()
