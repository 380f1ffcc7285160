"""A real backend loads a model of the hub from the node's cache, off line, as the pinned commit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.node.conftest import READY_WITHIN, up_body
from tests.node.process import NodeProcess, wait
from tests.support import specs

from assay.replay.weights import weights_digest

pytestmark = pytest.mark.engine

REPO = "someone/tiny-model"
PINNED = "1" * 40
POW = "/api/v1/inference/pow"


def hub_cache(folder: Path, model: Path) -> Path:
    """The model as a download leaves it, beside a commit whose files no engine can load."""
    root = folder / "models--someone--tiny-model"
    snapshot = root / "snapshots" / PINNED
    shutil.copytree(model, snapshot)
    other = root / "snapshots" / ("2" * 40)
    other.mkdir()
    (other / "config.json").write_text("not a model")
    (other / "model.safetensors").write_bytes(b"no weights")
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(PINNED)
    return snapshot


def toml(node: NodeProcess, folder: Path) -> str:
    environment = {**specs.COMMON_ENV, "VLLM_USE_V2_MODEL_RUNNER": "0"}
    del environment["HF_HUB_OFFLINE"]  # models.offline is to say it
    lines = "\n".join(f"{name} = '{value}'" for name, value in environment.items())
    return (
        f"port = {node.port}\n[proxy]\nport = 0\n"
        f"[store]\nfolder = '{folder / 'state'}'\n"
        f"[models]\ncache_dir = '{folder / 'hub'}'\noffline = true\n"
        f"[backends]\ncount = 1\ngpus = []\nfirst_port = {node.port + 1}\n"
        f"check_timeout_s = 60\ncold_start_s = {READY_WITHIN}\nlog_folder = '{folder / 'logs'}'\n"
        f"[backends.environment]\n{lines}\n"
    )


def test_what_was_downloaded_is_what_a_real_engine_serves(tmp_path: Path, tiny_path: Path) -> None:
    snapshot = hub_cache(tmp_path / "hub", tiny_path)
    node = NodeProcess(tmp_path)
    node.config.write_text(toml(node, tmp_path))
    with node:
        body = {**up_body(tiny_path), "model": REPO}
        answer = node.http.post("/api/v1/inference/up", json=body, timeout=READY_WITHIN)
        node.tree()
        assert answer.status_code == 200, answer.text
        wait(lambda: served(node)["digests"] == "known", "the digests are computed")
        shown = served(node)
        assert (shown["model"], shown["commit"]) == (REPO, PINNED)
        assert shown["folder"] == str(snapshot)
        assert shown["weights_digest"] == weights_digest(snapshot) == weights_digest(tiny_path)
        identity = {
            "block_hash": "b",
            "block_height": 1,
            "public_key": "key",
            "node_id": 0,
            "node_count": 1,
            "params": {"model": "model", "seq_len": 16},
            "wait": True,
        }
        made = node.http.post(f"{POW}/generate", json={**identity, "nonces": [1, 2, 3]})
        assert made.status_code == 200, made.text
        judged = node.http.post(
            f"{POW}/generate",
            json={
                **identity,
                "nonces": [1, 2, 3],
                "validation": {"artifacts": made.json()["artifacts"]},
            },
        )
        assert judged.status_code == 200, judged.text
        profile = judged.json()["profile"]
        assert profile["model_commit"] == PINNED
        assert profile["model_digest"].startswith("sampled-sha256:")
        assert judged.json()["fraud_detected"] is False


def served(node: NodeProcess) -> dict[str, object]:
    found = node.http.get("/api/v1/models/served").json()["served"]
    assert isinstance(found, dict)
    return found
