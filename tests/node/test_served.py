"""What is served: the commit that was downloaded, from the node's cache, with digests to show for it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.node.helpers import SOON, STAND_IN, Driver, driven, stand_in_config, until
from tests.node.test_verify_route import VERIFY, claims_of
from tests.support.fake_engine import FakeEngine

from assay.node import model_digests
from assay.node.backend import Backend, BackendState
from assay.node.config import Backends, Models
from assay.node.model_digests import Digests
from assay.node.model_source import ModelSource, commit_to_pin, source_of
from assay.node.plan import Planned, UpRequest, model_variables, plan
from assay.replay.weights import weights_digest

REPO = "someone/tiny-model"
OLD, NEW = "1" * 40, "2" * 40


def hub_cache(folder: Path, main: str = OLD) -> Path:
    """A hub cache with two commits of one model."""
    root = folder / "models--someone--tiny-model"
    for commit in (OLD, NEW):
        snapshot = root / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps({"commit": commit}))
        (snapshot / "model.safetensors").write_bytes(commit.encode() * 1000)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text(main)
    return root


async def planned(folder: Path, *flags: str, model: str = REPO, **models: Any) -> Planned:
    settings = Backends.model_validate(
        {"command": [sys.executable, str(STAND_IN)], "gpus": [], "environment": {"HF_TOKEN": "t"}}
    )
    variables = model_variables(Models(cache_dir=folder, **models))
    [one] = await plan(UpRequest(model=model, additional_args=flags), settings, variables)
    return one


def environment_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def revision(one: Planned) -> str | None:
    command = one.launch.command
    return command[command.index("--revision") + 1] if "--revision" in command else None


async def test_backends_load_from_the_nodes_cache_and_stay_off_line_with_it(tmp_path: Path) -> None:
    """models.cache_dir is where downloads go; a backend that looked elsewhere would load again."""
    environment = (await planned(tmp_path, offline=True)).launch.environment
    assert environment["HF_HUB_CACHE"] == str(tmp_path)
    assert environment["HF_HUB_OFFLINE"] == "1"
    assert environment["HF_TOKEN"] == "t"
    assert "HF_HUB_OFFLINE" not in model_variables(Models(cache_dir=tmp_path))
    assert model_variables(Models()) == {}


async def test_every_backend_of_a_node_gets_them(tmp_path: Path) -> None:
    config = stand_in_config(tmp_path, models__cache_dir=str(tmp_path), models__offline=True)
    async with driven(config) as driver:
        assert (await driver.up()).status_code == 200
        for backend in driver.backends:
            assert backend.pid is not None
            seen = environment_of(backend.pid)
            assert f"HF_HUB_CACHE={tmp_path}".encode() in seen
            assert b"HF_HUB_OFFLINE=1" in seen


async def test_the_commit_that_was_downloaded_is_what_is_started(tmp_path: Path) -> None:
    root = hub_cache(tmp_path)
    one = await planned(tmp_path)
    assert revision(one) == OLD
    assert one.backend.source == ModelSource(REPO, OLD, tmp_path)
    # A newer download moves the next start, not what was planned before.
    (root / "refs" / "main").write_text(NEW)
    assert revision(await planned(tmp_path)) == NEW
    assert one.backend.source.locate().commit == OLD


@pytest.mark.parametrize(
    "flags",
    [
        ("--revision", NEW),
        (f"--revision={NEW}",),
        ("--tokenizer", "someone/else"),
        ("--hf-config-path", "someone/else"),
        ("--download-dir", "elsewhere"),
    ],
)
async def test_nothing_is_pinned_where_a_revision_is_given_or_files_come_from_two_places(
    tmp_path: Path, flags: tuple[str, ...]
) -> None:
    hub_cache(tmp_path)
    command = (await planned(tmp_path, *flags)).launch.command
    assert OLD not in command
    assert list(command).count("--revision") == flags.count("--revision")


async def test_a_folder_and_a_model_nobody_downloaded_are_not_pinned(tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    (local / "model.safetensors").write_bytes(b"w")
    assert revision(await planned(tmp_path, model=str(local))) is None
    assert revision(await planned(tmp_path, model="someone/absent")) is None
    root = hub_cache(tmp_path)
    (root / "snapshots" / OLD / "model.safetensors").unlink()
    assert revision(await planned(tmp_path)) is None, "only begun: no weights yet"


def test_where_a_model_is(tmp_path: Path) -> None:
    root = hub_cache(tmp_path)
    (root / "refs" / "v1.0").write_text(NEW)
    (tmp_path / "secret").write_text(OLD)
    found = ModelSource(REPO, "v1.0", tmp_path).locate()
    assert (found.folder, found.commit) == (root / "snapshots" / NEW, NEW)
    snapshot = str(root / "snapshots" / OLD)
    assert ModelSource(snapshot, None, tmp_path).locate().commit == OLD
    for model, named, says in (
        (REPO, "v2", "v2 is not in the cache"),
        (REPO, "3" * 40, "is not in the cache"),
        (REPO, "../../secret", "is not in the cache"),
        ("s3://bucket/x", None, "neither a folder here nor a name of the hub"),
    ):
        found = ModelSource(model, named, tmp_path).locate()
        assert (found.folder, found.commit) == (None, None)
        assert says in found.why
    elsewhere = source_of(REPO, ["--download-dir", str(tmp_path)], {"HF_HUB_CACHE": "/x"}, Models())
    assert elsewhere.cache == tmp_path
    assert commit_to_pin(elsewhere, ["--download-dir", str(tmp_path)]) is None


# --- digests --------------------------------------------------------------------------------------


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


async def known(digests: Digests, folder: Path) -> Any:
    for _ in range(int(SOON / 0.02)):
        found = await digests.look(folder)
        if found.state != "computing":
            return found
        await asyncio.sleep(0.02)
    raise AssertionError("never computed")


async def test_digests_of_a_real_model(tiny_path: Path, tmp_path: Path) -> None:
    digests = Digests(tmp_path / "cache")
    found = await known(digests, tiny_path)
    assert found.state == "known"
    assert found.weights == weights_digest(tiny_path)
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= set(found.files)
    assert all(found.files[name] == sha256(tiny_path / name) for name in found.files)


async def test_digests_follow_the_files_and_are_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    real = model_digests.file_digest

    def counted(file: Path, *rest: Any) -> str:
        hashed.append(file.name)
        return real(file, *rest)

    monkeypatch.setattr(model_digests, "file_digest", counted)
    folder = hub_cache(tmp_path) / "snapshots" / OLD
    digests = Digests(tmp_path / "cache")
    first = await known(digests, folder)
    assert await known(digests, folder) == first
    assert sorted(hashed) == ["config.json", "model.safetensors"]
    weights = folder / "model.safetensors"
    weights.write_bytes(b"other")
    os.utime(weights, ns=(1, 1))
    second = await known(digests, folder)
    assert second.files["model.safetensors"] == hashlib.sha256(b"other").hexdigest()
    assert second.files["config.json"] == first.files["config.json"]
    assert second.weights != first.weights
    weights.unlink()
    gone = await digests.look(folder)
    assert gone.state == "unknown"
    assert "holds no weights" in gone.why


async def test_another_node_on_the_same_state_reads_no_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hub_cache(tmp_path) / "snapshots" / OLD
    first = await known(Digests(tmp_path / "cache"), folder)

    def refuse(*_: Any) -> str:
        raise AssertionError("a file was read again")

    monkeypatch.setattr("assay.replay.weights._hashed", refuse)
    assert await known(Digests(tmp_path / "cache"), folder) == first


async def test_a_node_that_ends_does_not_wait_for_a_huge_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("assay.replay.weights.BLOCK", 1)
    begun, go_on = threading.Event(), threading.Event()
    real = model_digests.file_digest

    def watched(file: Path, cache: Path, between: Any) -> str:
        def look() -> None:
            begun.set()
            assert go_on.wait(SOON)
            between()

        return real(file, cache, look)

    monkeypatch.setattr(model_digests, "file_digest", watched)
    folder = hub_cache(tmp_path) / "snapshots" / OLD
    digests = Digests(tmp_path / "cache")
    assert (await digests.look(folder)).state == "computing"
    assert await asyncio.to_thread(begun.wait, SOON)
    closing = asyncio.create_task(digests.close())
    await asyncio.sleep(0)  # close has said stop before the next block is looked at
    go_on.set()
    await closing
    assert not (tmp_path / "cache" / "weights").exists()
    assert (await digests.look(folder)).state == "computing", "nothing half done is believed"


# --- what a reader is shown -----------------------------------------------------------------------


async def served(driver: Driver) -> Any:
    for _ in range(int(SOON / 0.02)):
        found = (await driver.get("/api/v1/models/served"))["served"]
        if found is None or found["digests"] != "computing":
            return found
        await asyncio.sleep(0.02)
    raise AssertionError("never computed")


async def test_commit_and_digests_of_what_is_up(tmp_path: Path) -> None:
    root = hub_cache(tmp_path)
    async with driven(stand_in_config(tmp_path, models__cache_dir=str(tmp_path))) as driver:
        assert await served(driver) is None
        assert (await driver.up(REPO)).status_code == 200
        snapshot = root / "snapshots" / OLD
        shown = await served(driver)
        assert shown == {
            "model": REPO,
            "commit": OLD,
            "folder": str(snapshot),
            "digests": "known",
            "weights_digest": weights_digest(snapshot),
            "files": {file.name: sha256(file) for file in snapshot.iterdir()},
            "reason": "",
        }
        status = (await driver.http.post("/api/v1/models/status", json={"hf_repo": REPO})).json()
        assert (status["status"], status["commit"]) == ("DOWNLOADED", OLD)
        assert (status["weights_digest"], status["files"]) == (
            shown["weights_digest"],
            shown["files"],
        )


async def test_files_changed_under_a_running_backend_are_not_passed_off_as_what_it_serves(
    tmp_path: Path,
) -> None:
    root = hub_cache(tmp_path)
    async with driven(stand_in_config(tmp_path, models__cache_dir=str(tmp_path))) as driver:
        assert (await driver.up(REPO)).status_code == 200
        assert (await served(driver))["digests"] == "known"
        weights = root / "snapshots" / OLD / "model.safetensors"
        weights.write_bytes(b"another model")
        shown = await served(driver)
        assert (shown["digests"], shown["weights_digest"], shown["files"]) == ("unknown", None, {})
        assert "changed since port" in shown["reason"]
        await driver.up(REPO)
        assert (await served(driver))["weights_digest"] == weights_digest(weights.parent)


async def test_a_model_that_is_nowhere_here_says_so(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path, models__cache_dir=str(tmp_path))) as driver:
        assert (await driver.up("s3://bucket/model")).status_code == 200
        shown = await served(driver)
        assert (shown["digests"], shown["commit"]) == ("unknown", None)
        assert "neither a folder here nor a name of the hub" in shown["reason"]


async def test_verdicts_carry_the_digest_of_the_weights_they_were_made_with(tmp_path: Path) -> None:
    hub_cache(tmp_path)
    claims = await claims_of(FakeEngine(), 1)
    engine = FakeEngine()
    with engine.serving() as address:
        async with driven(stand_in_config(tmp_path)) as driver:
            source = ModelSource(REPO, OLD, tmp_path)
            backend = Backend(int(address.rpartition(":")[2]), source=source)
            driver.node.pool.replace([backend])
            driver.node.pool.move(backend, BackendState.READY)
            shown = await served(driver)
            answer = (await driver.http.post(VERIFY, json={"claims": claims, "label": "a"})).json()
            assert answer["served"] == shown
            assert (shown["commit"], answer["verdict"]) == (OLD, "pass")
            [kept] = driver.node.store.results("a")
            assert kept.replay is not None
            assert kept.replay.engine.model_digest == shown["weights_digest"] is not None


async def test_the_first_look_begins_when_a_backend_is_ready(tmp_path: Path) -> None:
    root = hub_cache(tmp_path)
    async with driven(stand_in_config(tmp_path, models__cache_dir=str(tmp_path))) as driver:
        assert (await driver.up(REPO)).status_code == 200
        digests = driver.node.digests
        await until(
            lambda: root / "snapshots" / OLD in digests._known, "computed without being asked"
        )
