"""The general plugin as vLLM loads it: in fresh processes, twice, under fork and spawn (case 37)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter, loading only what ``VLLM_PLUGINS`` names."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "ASSAY_"))}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**kept, "VLLM_PLUGINS": "assay,assay_endpoints", "HF_HUB_OFFLINE": "1", **env},
    )


@pytest.fixture(scope="module")
def reports(tiny_path: Path) -> dict[str, dict[str, object]]:
    """What a parent, a forked and a spawned child each found after loading vLLM's plugins."""
    done = run(str(HERE / "loading.py"), str(tiny_path))
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


PROCESSES = pytest.mark.parametrize("process", ["parent", "fork", "spawn"])


@PROCESSES
def test_case37_every_kind_of_process_has_our_classes(
    reports: dict[str, dict[str, object]], process: str
) -> None:
    """Case 37: API server, engine core and workers start by fork or by spawn."""
    report = reports[process]
    assert report["v1_sampler"] == "assay.plugin.sampler_v1.AssaySamplerV1"
    assert report["v2_sampler"] == "assay.plugin.sampler_v2.AssaySamplerV2"
    assert report["row_books"] == 1
    assert report["check_stop_wrapped"] == 1
    assert report["grammar_wrapped"] == 1
    assert report["ring_wrapped"] == 0, "stock rings while the setting is unset"


@PROCESSES
def test_registering_again_changes_nothing(
    reports: dict[str, dict[str, object]], process: str
) -> None:
    assert reports[process]["again_changed"] == []


def test_the_children_are_other_processes(reports: dict[str, dict[str, object]]) -> None:
    assert len({reports[process]["pid"] for process in ("parent", "fork", "spawn")}) == 3


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("unknown_version", "but 0.34.0 is installed"),
        ("missing_surface", "vllm.v1.core.sched.scheduler.check_stop cannot be imported"),
        ("bad_setting", "VLLM_MQ_MAX_CHUNKS must be a whole number"),
    ],
)
def test_f20_f47_case41_what_does_not_fit_ends_the_process_with_the_reason(
    reports: dict[str, dict[str, object]], change: str, reason: str
) -> None:
    """Through vLLM's own loader, as at a server's start: no server answers unforced."""
    assert reports[change]["exit"] == 1
    assert reason in str(reports[change]["errors"])


def test_the_same_process_without_a_change_starts(reports: dict[str, dict[str, object]]) -> None:
    assert reports["names"]["exit"] == 0


def test_the_validators_rooms_import_neither_torch_nor_vllm() -> None:
    """Every module of claims and scoring, in one interpreter that has both installed."""
    done = run(
        "-c",
        "import importlib, pkgutil, sys, assay.claims, assay.scoring\n"
        "names = [m.name for room in (assay.claims, assay.scoring)\n"
        "         for m in pkgutil.walk_packages(room.__path__, room.__name__ + '.')]\n"
        "for name in names: importlib.import_module(name)\n"
        "bad = {'torch', 'vllm', 'fastapi', 'transformers'} & set(sys.modules)\n"
        "print(len(names), sorted(bad))",
    )
    assert done.returncode == 0, done.stderr
    count, _, bad = done.stdout.strip().partition(" ")
    assert int(count) > 5
    assert bad == "[]"
