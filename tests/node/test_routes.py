"""What the node's routes say about themselves and about a machine with nothing on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.node.helpers import driven, stand_in_config

SECTION_2 = {
    ("POST", "/api/v1/inference/up"),
    ("POST", "/api/v1/inference/up/async"),
    ("GET", "/api/v1/inference/up/status"),
    ("POST", "/api/v1/inference/down"),
    ("POST", "/api/v1/inference/verify"),
    ("POST", "/api/v1/stop"),
    ("GET", "/api/v1/state"),
    ("GET", "/api/v1/versions"),
    ("GET", "/api/v1/overview"),
    ("GET", "/health"),
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/api/v1/gpu/devices"),
    ("GET", "/api/v1/gpu/driver"),
    ("POST", "/api/v1/models/status"),
    ("POST", "/api/v1/models/download"),
    ("DELETE", "/api/v1/models"),
    ("GET", "/api/v1/models/list"),
    ("GET", "/api/v1/models/space"),
}


async def test_openapi_lists_the_routes_and_every_reference_leads_somewhere(
    tmp_path: Path,
) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        document = await driver.get("/openapi.json")
    listed = {(m.upper(), path) for path, item in document["paths"].items() for m in item}
    assert listed >= SECTION_2
    for reference in _references(document):
        target: Any = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
    up = document["paths"]["/api/v1/inference/up"]["post"]["requestBody"]
    schema = up["content"]["application/json"]["schema"]
    Draft202012Validator.check_schema(schema)
    assert set(schema["properties"]) == {"model", "dtype", "additional_args"}


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [r for child in value.values() for r in _references(child)]
    if isinstance(value, list):
        return [r for child in value for r in _references(child)]
    return []


async def test_a_node_without_a_model(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path, report_version="9.9")) as driver:
        assert await driver.get("/api/v1/state") == {
            "state": "STOPPED",
            "version": "9.9",
            "poc_status": "NO_BACKENDS",
            "inference_healthy": False,
            "loaded_model": None,
            "poc_validation_inference": False,
        }
        assert await driver.status() == {
            "is_running": False,
            "is_starting": False,
            "status": "stopped",
            "elapsed_seconds": None,
            "error": None,
            "backends": [],
        }
        for path in ("/health", "/livez", "/readyz"):
            assert (await driver.http.get(path)).status_code == 200
        assert (await driver.get("/readyz")) == {"ready": True}


async def test_a_machine_without_nvml_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as where the package is not installed
    async with driven(stand_in_config(tmp_path)) as driver:
        devices = await driver.get("/api/v1/gpu/devices")
        assert (devices["devices"], devices["count"]) == ([], 0)
        assert "NVML is not available here" in devices["reason"]
        driver_answer = await driver.http.get("/api/v1/gpu/driver")
        assert driver_answer.status_code == 503
        assert "NVML" in driver_answer.json()["detail"]


async def test_f52_versions_name_the_engine_and_what_it_can(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        await driver.up()
        found = await driver.get("/api/v1/versions")
        assert found["vllm_version"] == "0.0.0"
        assert found["poc_validation_inference"] is True
        assert [b["port"] for b in found["backends"]] == [b.port for b in driver.backends]


async def test_a_body_over_the_limit_is_413(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path, limits__control_body_bytes=100)) as driver:
        answer = await driver.http.post("/api/v1/inference/up", content=b"x" * 101)
        assert answer.status_code == 413


async def test_while_the_node_ends_nothing_new_is_started(tmp_path: Path) -> None:
    async with driven(stand_in_config(tmp_path)) as driver:
        driver.node.draining.set()
        assert (await driver.up()).status_code == 503
        assert (await driver.http.get("/readyz")).status_code == 503
