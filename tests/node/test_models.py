"""Model files, through the real huggingface_hub and a small hub of the test's own."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.node.helpers import SOON, Driver, driven, stand_in_config, until
from tests.support.hub import COMMIT, FILES, REPO, Hub, running_hub

from assay.node.config import Models, NodeConfig
from assay.node.model_cache import ModelCache, cache_folder, is_offline

pytest.importorskip("huggingface_hub", reason="huggingface_hub comes with vLLM")

TOTAL = sum(map(len, FILES.values()))
TOKEN = "hf_a-token-for-tests"
OTHER = "2" * 40


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


def config(folder: Path, url: str = "http://127.0.0.1:1", **flags: Any) -> NodeConfig:
    environment = {
        "HF_ENDPOINT": url,
        "HF_HUB_CACHE": str(folder / "cache"),
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_TOKEN": TOKEN,
        "NO_PROXY": "127.0.0.1",
    }
    return stand_in_config(folder, backends__environment=environment, **flags)


async def post(driver: Driver, what: str, commit: str | None = None, repo: str = REPO) -> Any:
    body = {"hf_repo": repo, "hf_commit": commit}
    return await driver.http.post(f"/api/v1/models/{what}", content=json.dumps(body))


async def delete(driver: Driver, commit: str | None = None, repo: str = REPO) -> httpx.Response:
    body = {"hf_repo": repo, "hf_commit": commit}
    return await driver.http.request("DELETE", "/api/v1/models", content=json.dumps(body))


async def settled(driver: Driver, commit: str | None = None, repo: str = REPO) -> Any:
    for _ in range(int(SOON / 0.1)):
        status = (await post(driver, "status", commit, repo)).json()
        if status["status"] != "DOWNLOADING":
            return status
        await asyncio.sleep(0.1)
    raise AssertionError(f"still downloading: {status}")


async def test_a_model_comes_is_listed_and_goes(tmp_path: Path, hub: Hub) -> None:
    async with driven(config(tmp_path, hub.url)) as driver:
        assert (await post(driver, "status", COMMIT)).json()["status"] == "NOT_FOUND"
        assert (await driver.get("/api/v1/models/list")) == {"models": []}
        hub.released.clear()
        started = await post(driver, "download")
        assert started.status_code == 202
        assert started.json() == {
            "task_id": f"{REPO}@main",
            "status": "DOWNLOADING",
            "model": {"hf_repo": REPO, "hf_commit": None},
        }
        await until(hub.halfway.is_set, "the hub sends half of the weights")
        assert (await post(driver, "download")).status_code == 409
        status = (await post(driver, "status", COMMIT)).json()
        assert (status["status"], status["commit"]) == ("DOWNLOADING", COMMIT)
        progress = status["progress"]
        assert (progress["total_bytes"], progress["files"]) == (TOTAL, len(FILES))
        assert progress["downloaded_bytes"] < TOTAL
        [listed] = (await driver.get("/api/v1/models/list"))["models"]
        assert listed["status"] == "DOWNLOADING"
        hub.released.set()

        status = await settled(driver)
        assert (status["status"], status["commit"]) == ("DOWNLOADED", COMMIT)
        assert (status["size_bytes"], status["error_message"]) == (TOTAL, None)
        assert f"Bearer {TOKEN}" in hub.tokens
        snapshot = tmp_path / "cache" / "models--someone--tiny-model" / "snapshots" / COMMIT
        assert {p.name: p.read_bytes() for p in snapshot.iterdir()} == dict(FILES)
        again = await post(driver, "download", COMMIT)
        assert (again.status_code, again.json()["status"]) == (200, "DOWNLOADED")

        [listed] = (await driver.get("/api/v1/models/list"))["models"]
        assert listed["model"] == {"hf_repo": REPO, "hf_commit": COMMIT}
        space = await driver.get("/api/v1/models/space")
        assert space["cache_size_bytes"] >= TOTAL
        assert space["available_bytes"] > 0
        assert space["cache_path"] == str(tmp_path / "cache")

        gone = (await delete(driver, COMMIT)).json()
        assert gone["status"] == "deleted"
        assert gone["freed_bytes"] >= TOTAL
        assert (await post(driver, "status", COMMIT)).json()["status"] == "NOT_FOUND"
        assert (await delete(driver)).status_code == 404


async def test_a_download_that_is_deleted_stops(tmp_path: Path, hub: Hub) -> None:
    async with driven(config(tmp_path, hub.url)) as driver:
        hub.released.clear()
        await post(driver, "download", COMMIT)
        await until(hub.halfway.is_set, "the hub sends half of the weights")
        gone = (await delete(driver, COMMIT)).json()
        assert gone["status"] == "cancelled"
        status = (await post(driver, "status", COMMIT)).json()
        assert (status["status"], status["error_message"]) == ("NOT_FOUND", None)


async def test_a_model_the_hub_does_not_have_is_said_so(tmp_path: Path, hub: Hub) -> None:
    async with driven(config(tmp_path, hub.url)) as driver:
        assert (await post(driver, "download", repo="no/such")).status_code == 202
        status = await settled(driver, repo="no/such")
        assert status["status"] == "NOT_FOUND"
        assert "404" in status["error_message"]
        assert TOKEN not in json.dumps(status)


async def test_offline_nothing_is_asked(tmp_path: Path, hub: Hub) -> None:
    async with driven(config(tmp_path, hub.url, models__offline=True)) as driver:
        assert (await post(driver, "status")).json()["status"] == "IGNORED"
        answer = await post(driver, "download")
        assert answer.status_code == 409
        assert "offline" in answer.json()["detail"]
        assert (await driver.get("/api/v1/models/list")) == {"models": []}
    assert hub.tokens == []


async def test_without_huggingface_hub_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "huggingface_hub" else find(name)
    )
    async with driven(config(tmp_path)) as driver:
        for answer in (await post(driver, "download"), await delete(driver)):
            assert answer.status_code == 503
            assert "pip install huggingface_hub" in answer.json()["detail"]
        assert (await post(driver, "status")).json()["status"] == "NOT_FOUND"


async def test_a_model_in_use_stays(tmp_path: Path) -> None:
    made(tmp_path / "cache", "model", COMMIT, FILES)
    async with driven(config(tmp_path)) as driver:
        assert (await driver.up("model")).status_code == 200
        answer = await delete(driver, repo="model")
        assert answer.status_code == 409
        assert "in use" in answer.json()["detail"]
        await driver.http.post("/api/v1/inference/down")
        assert (await delete(driver, repo="model")).json()["status"] == "deleted"


@pytest.mark.parametrize(
    "body",
    [
        {"hf_repo": "../../etc"},
        {"hf_repo": "a/../b"},
        {"hf_repo": "a/b/c"},
        {"hf_repo": "someone--tiny-model"},
        {"hf_repo": "a/b\n"},
        {"hf_repo": ""},
        {"hf_repo": REPO, "hf_commit": "main"},
        {"hf_repo": REPO, "hf_commit": "../x"},
        {},
    ],
)
async def test_names_that_are_none_are_400(tmp_path: Path, body: dict[str, Any]) -> None:
    async with driven(config(tmp_path)) as driver:
        for method, path in (("DELETE", ""), ("POST", "/status"), ("POST", "/download")):
            answer = await driver.http.request(method, f"/api/v1/models{path}", json=body)
            assert answer.status_code == 400
            assert answer.json()["detail"].startswith("hf_")


def test_a_download_ends_with_the_node(tmp_path: Path, hub: Hub) -> None:
    """The pipe closes however the node dies."""
    hub.released.clear()
    child = subprocess.Popen(
        [sys.executable, "-m", "assay.node.model_fetch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path),
            "HF_HUB_OFFLINE": "0",
            "NO_PROXY": "127.0.0.1",
        },
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdout:
        request = {"repo": REPO, "commit": COMMIT, "cache_dir": str(tmp_path / "cache")}
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["total_bytes"] == TOTAL
        assert hub.halfway.wait(SOON)
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(SOON) == 1


# --- the cache alone, as others left it ---------------------------------------------------------


def made(folder: Path, repo: str, commit: str, files: Any, *, main: bool = True) -> Path:
    """A hub cache by hand: blobs, a snapshot of links, the branch's file."""
    root = folder / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    for path in (snapshot, root / "blobs", root / "refs"):
        path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        blob = root / "blobs" / f"{hash((name, content)):x}"
        blob.write_bytes(content)
        (snapshot / name).symlink_to(os.path.relpath(blob, snapshot))
    if main:
        (root / "refs" / "main").write_text(commit)
    return root


INDEX = json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode()


@pytest.mark.parametrize(
    ("files", "state", "missing"),
    [
        ({"model.safetensors": b"w"}, "DOWNLOADED", ()),
        ({"config.json": b"{}"}, "PARTIAL", ()),
        ({"m.index.json": INDEX, "m-1.safetensors": b"1"}, "PARTIAL", ("m-2.safetensors",)),
        (
            {"m.index.json": INDEX, "m-1.safetensors": b"1", "m-2.safetensors": b"2"},
            "DOWNLOADED",
            (),
        ),
        ({"m.index.json": b"{", "m-1.safetensors": b"1"}, "PARTIAL", ("m.index.json",)),
    ],
)
def test_without_the_hubs_list_the_weights_index_tells(
    tmp_path: Path, files: Any, state: str, missing: tuple[str, ...]
) -> None:
    made(tmp_path, REPO, COMMIT, files)
    for commit in (None, COMMIT):
        found = ModelCache(tmp_path).look(REPO, commit)
        assert (found.state, found.missing, found.commit) == (state, missing, COMMIT)
        assert found.size_bytes == sum(map(len, files.values()))
    assert ModelCache(tmp_path).look(REPO, OTHER).state == "NOT_FOUND"


def test_links_to_nothing_and_what_has_only_begun_are_partial(tmp_path: Path) -> None:
    root = made(tmp_path, REPO, COMMIT, {"model.safetensors": b"w", "config.json": b"{}"})
    (root / "snapshots" / COMMIT / "config.json").resolve().unlink()
    found = ModelCache(tmp_path).look(REPO, None)
    assert (found.state, found.missing) == ("PARTIAL", ("config.json",))
    begun = tmp_path / "models--begun" / "blobs"
    begun.mkdir(parents=True)
    (begun / "x.incomplete").write_bytes(b"abc")
    found = ModelCache(tmp_path).look("begun", None)
    assert (found.state, found.size_bytes) == ("PARTIAL", 3)
    assert [repo for repo, _ in ModelCache(tmp_path).models()] == ["begun", REPO]
    assert ModelCache(tmp_path).delete("begun", None) == 3


def test_one_commit_of_two_goes_and_shared_files_stay(tmp_path: Path) -> None:
    shared = {"model.safetensors": b"w" * 100}
    made(tmp_path, REPO, COMMIT, shared)
    made(tmp_path, REPO, OTHER, {"new.bin": b"n" * 50}, main=False)
    root = tmp_path / "models--someone--tiny-model"
    blob = (root / "snapshots" / COMMIT / "model.safetensors").resolve()
    (root / "snapshots" / OTHER / "model.safetensors").symlink_to(
        os.path.relpath(blob, root / "snapshots" / OTHER)
    )
    cache = ModelCache(tmp_path)
    assert cache.delete(REPO, "3" * 40) is None
    assert cache.delete(REPO, OTHER) == 50
    assert cache.look(REPO, OTHER).state == "NOT_FOUND"
    assert cache.look(REPO, COMMIT).state == "DOWNLOADED"
    assert cache.delete(REPO, COMMIT) == 100 + len(COMMIT)  # the branch's file too
    assert cache.models() == []


def test_the_folder_is_the_setting_or_the_backends_own(tmp_path: Path) -> None:
    environment = {"HF_HOME": "/h", "HF_HUB_CACHE": "/c", "XDG_CACHE_HOME": "/x"}
    assert cache_folder(Models(cache_dir=tmp_path), environment) == tmp_path
    assert cache_folder(Models(), environment) == Path("/c")
    del environment["HF_HUB_CACHE"]
    assert cache_folder(Models(), environment) == Path("/h/hub")
    del environment["HF_HOME"]
    assert cache_folder(Models(), environment) == Path("/x/huggingface/hub")
    assert cache_folder(Models(), {}) == Path.home() / ".cache" / "huggingface" / "hub"
    assert not is_offline(Models(), {"HF_HUB_OFFLINE": "0"})
    assert is_offline(Models(), {"HF_HUB_OFFLINE": "true"})
    assert ModelCache(tmp_path / "not" / "there").free_bytes() > 0
