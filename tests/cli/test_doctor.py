"""``assay doctor``: each check, and the exit code."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from tests.support.fake_engine import FakeEngine

from assay.cli import checks, machine
from assay.cli.checks import companion_check, local_checks, plugins_setting_check, ring_check
from assay.cli.main import run
from assay.cli.server_checks import server_checks
from assay.replay.identity import ServerIdentity

GOOD = ServerIdentity(
    plugin_version="0.1.0",
    vllm_version="0.32.0",
    runner="v1",
    model="m",
    dtype="bfloat16",
    kv_cache_dtype="auto",
    logprobs_mode="raw_logprobs",
    max_logprobs=20,
    speculative=False,
    prefix_caching=True,
    chunked_prefill=True,
)


def states(found: list[checks.Check]) -> dict[str, str]:
    return {check.name: check.state for check in found}


def without_engine(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """An environment that has just ``versions`` of the packages the checks look for."""

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(machine.metadata, "version", version)


def test_works_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    without_engine(monkeypatch)
    found = states(local_checks({}))
    assert found["engine"] == "warn"
    assert found["torch"] == "pass"
    assert "fail" not in found.values()


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("0.31.0", "pass"),
        ("0.32.0", "pass"),
        ("0.33.1", "pass"),
        ("0.33", "pass"),
        ("0.34.0", "fail"),
        ("0.3.1", "fail"),
        ("0.330.0", "fail"),
        ("1.32.0", "fail"),
        ("dev", "fail"),
    ],
)
def test_case_41_and_f47_an_engine_outside_the_range_is_named_early(
    monkeypatch: pytest.MonkeyPatch, version: str, state: str
) -> None:
    without_engine(monkeypatch, vllm=version)
    check = checks.engine_check()
    assert check.state == state
    assert version in check.message
    assert "0.31.x, 0.32.x, 0.33.x" in check.message


@pytest.mark.parametrize(
    ("torchvision", "torch", "wanted", "state"),
    [
        ("0.28.0", "2.13.0+cpu", "2.13.0", "fail"),  # the index's build beside a CPU torch
        ("0.28.0+cpu", "2.13.0+cpu", "2.13.0", "pass"),
        ("0.27.0", "2.13.0", "2.12.0", "fail"),
        ("0.28.0", "2.13.0", "2.13.0", "pass"),
        ("0.28.0", "2.13.0", None, "pass"),
    ],
)
def test_the_torchvision_trap(torchvision: str, torch: str, wanted: str | None, state: str) -> None:
    check = companion_check("torchvision", torchvision, torch, wanted)
    assert check.state == state
    assert bool(check.action) == (state == "fail")


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (None, "warn"),
        ("", "fail"),
        ("assay", "fail"),
        ("other,assay_endpoints", "fail"),
        ("assay,assay_endpoints", "pass"),
        ("x, assay ,assay_endpoints", "pass"),
    ],
)
def test_vllm_plugins_is_an_allow_list(value: str | None, state: str) -> None:
    assert plugins_setting_check(value).state == state


def test_shm_is_compared_with_what_the_rings_need(tmp_path: Path) -> None:
    assert ring_check({}, tmp_path).state == "pass"
    huge = ring_check({"VLLM_MQ_MAX_CHUNKS": "4096"}, tmp_path, workers=1000)
    assert huge.state == "fail"
    assert "--shm-size" in huge.action
    assert ring_check({"VLLM_MQ_MAX_CHUNKS": "many"}, tmp_path).state == "fail"
    assert ring_check({}, tmp_path / "none").state == "warn"


def test_missing_entry_points_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.metadata, "entry_points", lambda group: metadata.EntryPoints())
    check = checks.entry_points_check()
    assert check.state == "fail"
    assert "vllm.general_plugins" in check.message


def test_the_runner_follows_vllms_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    without_engine(monkeypatch, vllm="0.32.0", triton="3.5")
    monkeypatch.setattr(machine, "hardware", lambda: "nvidia")
    assert checks.runner_check({}).message.startswith("V2")
    assert checks.runner_check({"VLLM_USE_V2_MODEL_RUNNER": "0"}).message.startswith("V1")
    monkeypatch.setattr(machine, "hardware", lambda: "cpu")
    monkeypatch.setattr(checks.metadata, "entry_points", lambda group: metadata.EntryPoints())
    assert checks.runner_check({}).message.startswith("V1")


def test_a_good_server_has_nothing_to_report() -> None:
    assert set(states(server_checks(GOOD)).values()) == {"pass"}


@pytest.mark.parametrize(
    ("change", "name", "state"),
    [
        ({"logprobs_mode": "processed_logits"}, "server logprobs mode", "fail"),
        ({"speculative": True}, "server speculative decoding", "fail"),
        ({"max_logprobs": 2}, "server top-k limit", "fail"),
        ({"kv_cache_dtype": "fp8"}, "server KV cache", "warn"),
        ({"plugin_version": None}, "server plugin", "fail"),
    ],
)
def test_what_would_make_an_honest_node_fail(
    change: dict[str, object], name: str, state: str
) -> None:
    found = server_checks(GOOD.model_copy(update=change))
    assert states(found)[name] == state
    assert next(check.action for check in found if check.name == name)


def test_json_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeEngine(speculative=True).serving() as url:
        assert run(["doctor", "--server", url, "--json"]) == 2
    bad = json.loads(capsys.readouterr().out)
    assert bad["verdict"] == "fail"
    assert {"name", "state", "message", "action"} <= bad["checks"][0].keys()


def test_a_server_that_is_not_there_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--server", "http://127.0.0.1:9"]) == 2
    assert "could not be reached" in capsys.readouterr().out
