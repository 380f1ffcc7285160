"""The page: what it shows in a real browser, and what it keeps to itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from tests.node.helpers import HOST, SOON, Driver, driven, stand_in_config, until
from tests.support.chromium import chromium, dump_dom_of, screenshot_of
from tests.support.results import make_result

from assay.node.app import create_app
from assay.node.node import Node
from assay.node.overview import Overviews
from assay.node.run import listen
from assay.replay.weights import weights_digest

needs_browser = pytest.mark.skipif(
    chromium() is None, reason="no Chromium here; scripts/browser.sh installs Debian's"
)
HOSTILE = "<img src=x onerror=document.title='owned'>"


@asynccontextmanager
async def served(folder: Path, **flags: Any) -> AsyncIterator[tuple[Node, str]]:
    """A node on a port of its own, with two stand-ins ready."""
    config = stand_in_config(folder, **flags)
    app = create_app(config)
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, ws="none")
    )
    with contextlib.closing(listen(HOST, config.port)) as listener:
        async with app.router.lifespan_context(app):
            running = asyncio.create_task(server.serve(sockets=[listener]))
            await until(lambda: server.started, "the node listens")
            try:
                yield app.state.node, f"http://{HOST}:{config.port}"
            finally:
                server.should_exit = True
                await running


@needs_browser
async def test_backends_and_verdicts_are_shown_and_hostile_text_stays_text(tmp_path: Path) -> None:
    """Case: a claim's id is the executor's text; as markup it would run in the operator's browser."""
    async with served(tmp_path) as (node, url):
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http:
            body = {"model": "model", "dtype": "auto", "additional_args": []}
            assert (await http.post("/api/v1/inference/up", json=body)).status_code == 200
        node.store.add(make_result(HOSTILE, verdict="fail", label="executor-7"))
        dom = await asyncio.to_thread(dump_dom_of, url, tmp_path / "profile")
        if picture := os.environ.get("ASSAY_PAGE_PICTURE"):  # to look at it
            await asyncio.to_thread(screenshot_of, url, tmp_path / "shot.png", tmp_path / "p2")
            shutil.copy(tmp_path / "shot.png", picture)
    for backend in node.pool.backends:
        assert f"<td>{backend.port}</td>" in dom
    assert dom.count('<td class="good">ready') == 2
    assert '<td class="bad">fail</td>' in dom
    assert "<td>executor-7</td>" in dom
    assert "&lt;img src=x" in dom
    assert "<img" not in dom
    assert "owned" not in dom.partition("</title>")[0]


@needs_browser
async def test_with_a_control_key_the_page_asks_for_it_and_shows_nothing(tmp_path: Path) -> None:
    async with served(tmp_path, keys__control="sesame") as (node, url):
        node.store.add(make_result("secret-claim"))
        dom = await asyncio.to_thread(dump_dom_of, url, tmp_path / "profile")
    assert "asks for its control key" in dom
    assert "secret-claim" not in dom
    assert "sesame" not in dom


async def test_the_overview_needs_the_key_and_the_page_does_not(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path, keys__control="sesame")) as driver:
        page = await driver.http.get("/")
        assert page.status_code == 200
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert (await driver.http.get("/api/v1/overview")).status_code == 401
        key = {"Authorization": "Bearer sesame"}
        assert (await driver.http.get("/api/v1/overview", headers=key)).status_code == 200


async def test_tokens_per_second_come_from_two_looks(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        assert (await driver.up()).status_code == 200
        clock = Clock()
        driver.node.clock = clock
        overviews = Overviews(driver.node)
        first = (await overviews.now()).backends
        assert [view.tokens_per_s for view in first] == [None, None]
        clock.at += 10.0
        for _ in range(5):
            await ask(driver)
        again = (await overviews.now()).backends
        assert sorted(view.tokens_per_s or 0.0 for view in again) == [0.2, 0.3]
        assert [view.state for view in again] == ["ready", "ready"]
        assert {(view.poc, view.gate) for view in again} == {("IDLE", "open")}


async def test_a_backend_that_is_down_says_why_and_has_no_rate(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        assert (await driver.up()).status_code == 200
        backend = driver.backends[0]
        await driver.tell(backend, health=500)
        await until(lambda: not backend.healthy, "unhealthy")
        view = (await Overviews(driver.node).now()).backends[0]
        assert (view.state, view.tokens_per_s, view.gate) == ("unhealthy", None, "unknown")
        assert "500" in view.reason


ROUND = {
    "block_hash": HOSTILE,
    "block_height": 1,
    "public_key": "key",
    "node_id": 0,
    "node_count": 1,
    "params": {"model": "model", "seq_len": 64},
    "url": "http://127.0.0.1:9/callback",
}
POW = "/api/v1/inference/pow"


async def test_a_backend_that_mines_and_lets_chat_go_on_has_an_open_gate(tmp_path: Path) -> None:
    """GENERATING closes the gate under the exclusive policy only; the backend says which it is."""
    async with driven(stand_in_config(tmp_path)) as driver:
        assert (await driver.up()).status_code == 200
        shares, exclusive = driver.backends
        await driver.tell(shares, mining=True)
        await driver.tell(exclusive, gate=True)
        views = (await Overviews(driver.node).now()).backends
        assert [(view.poc, view.gate) for view in views] == [
            ("GENERATING", "open"),
            ("GENERATING", "closed"),
        ]
        await driver.tell(shares, busy_seconds=70)  # an overdue batch closes it under every policy
        await driver.tell(exclusive, statistics=False)
        views = (await Overviews(driver.node).now()).backends
        assert [view.gate for view in views] == ["closed", "unknown"]


@needs_browser
async def test_the_page_says_which_files_are_served(tmp_path: Path) -> None:
    folder = tmp_path / "models--a--b" / "snapshots" / ("c0ffee" + "1" * 34)
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    async with served(tmp_path) as (_, url):
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=SOON) as http:
            body = {"model": str(folder), "dtype": "auto", "additional_args": []}
            assert (await http.post("/api/v1/inference/up", json=body)).status_code == 200
            shown: dict[str, Any] = {}
            while not shown.get("weights_digest"):
                shown = (await http.get("/api/v1/overview")).json()
        dom = await asyncio.to_thread(dump_dom_of, url, tmp_path / "profile")
    assert shown["commit"] == folder.name
    assert shown["weights_digest"] == weights_digest(folder)
    assert f"commit c0ffee111111, weights {weights_digest(folder)[:19]}…" in dom


async def test_a_backend_with_jobs_of_the_node_is_validating(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        assert (await driver.up()).status_code == 200
        answer = await driver.http.post(f"{POW}/generate", json={**ROUND, "nonces": [1, 2, 3]})
        assert answer.status_code == 200, answer.text
        port = int(answer.json()["request_id"].partition(":")[0])
        views = {view.port: view.poc for view in (await Overviews(driver.node).now()).backends}
        assert views.pop(port) == "VALIDATING"
        assert list(views.values()) == ["IDLE"]


@needs_browser
async def test_the_round_is_shown_with_its_classes_and_why_it_is_degraded(tmp_path: Path) -> None:
    async with served(tmp_path) as (node, url):
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=SOON) as http:
            body = {"model": "model", "dtype": "auto", "additional_args": []}
            assert (await http.post("/api/v1/inference/up", json=body)).status_code == 200
            assert (await http.get("/api/v1/overview")).json()["round"] is None
            _, second = node.pool.backends
            await http.post(f"{second.base_url}/control", json={"refuses_to_mine": True})
            begun = await http.post(f"{POW}/init/generate", json=ROUND)
            assert begun.status_code == 200, begun.text
            shown = (await http.get("/api/v1/overview")).json()
        dom = await asyncio.to_thread(dump_dom_of, url, tmp_path / "profile")
        if picture := os.environ.get("ASSAY_ROUND_PICTURE"):
            await asyncio.to_thread(screenshot_of, url, tmp_path / "shot.png", tmp_path / "p2")
            shutil.copy(tmp_path / "shot.png", picture)
    assert shown["round"]["degraded"] is True
    assert shown["round"]["n_groups"] == 2
    assert [backend["classes"] for backend in shown["backends"]] == [[0, 1], []]
    assert f'<span class="bad">degraded: {shown["round"]["reason"]}</span>' in dom
    assert "2 classes, 0 vectors received" in dom
    assert "<td>0, 1</td>" in dom
    assert "<td>generating</td>" in dom
    assert "&lt;img src=x" in dom
    assert "<img" not in dom


async def ask(driver: Driver) -> None:
    answer = await driver.http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    assert answer.status_code == 200


class Clock:
    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at
