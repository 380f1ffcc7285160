"""Which deployments proof of compute refuses, and the digest of a model's weights."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from assay.errors import SurfaceError
from assay.plugin.poc.digest import model_commit, model_digest
from assay.plugin.poc.forward import refuse_unsupported


def deployment(**changes: Any) -> SimpleNamespace:
    """A vLLM configuration as far as the refusals read it."""
    values: dict[str, Any] = {
        "is_encoder_decoder": False,
        "uses_mrope": False,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "is_moe_model": False,
        "lora_config": None,
        "kv_transfer_config": None,
        "speculative_config": None,
        "cache_dtype": "auto",
        **changes,
    }
    every = SimpleNamespace(**values)
    every.model_config = every.parallel_config = every.cache_config = every
    return every


@pytest.mark.parametrize(
    ("changes", "runner", "says"),
    [
        ({"pipeline_parallel_size": 2}, "v1", "pipeline parallelism needs Model Runner V2"),
        ({"is_encoder_decoder": True}, "v2", "encoder-decoder"),
        ({"uses_mrope": True}, "v2", "rotary"),
        ({"lora_config": object()}, "v2", "LoRA"),
        ({"kv_transfer_config": object()}, "v2", "KV connector"),
        ({"speculative_config": object()}, "v2", "speculative"),
        ({"data_parallel_size": 2, "is_moe_model": True}, "v2", "ranks that never enter"),
        ({"data_parallel_size": 2, "is_moe_model": None}, "v2", "ranks that never enter"),
        ({"cache_dtype": "int8_per_token_head"}, "v2", "KV scales"),
    ],
)
def test_f31_deployments_that_would_hang_or_be_wrong_are_refused(
    changes: dict[str, Any], runner: str, says: str
) -> None:
    """F31: said before anything is loaded; on ranks that would wait for each other for ever."""
    with pytest.raises(SurfaceError, match=says):
        refuse_unsupported(deployment(**changes), runner)


def test_usual_deployments_are_not_refused() -> None:
    refuse_unsupported(deployment(), "v1")
    refuse_unsupported(deployment(pipeline_parallel_size=2), "v2")
    refuse_unsupported(deployment(data_parallel_size=2), "v1")


def weights(folder: Path, values: bytes, name: str = "model.safetensors") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / name).write_bytes(values)
    return folder


def test_the_digest_tells_weights_apart_and_not_where_they_lie(tmp_path: Path) -> None:
    values = bytes(range(256)) * 4096
    same = [model_digest(str(weights(tmp_path / name, values))) for name in ("a", "b")]
    assert same[0] is not None
    assert same[0] == same[1]
    rounded = bytes(value & 0xF0 for value in values)
    assert model_digest(str(weights(tmp_path / "c", rounded))) != same[0]
    assert model_digest(str(weights(tmp_path / "d", values + b"0"))) != same[0]
    assert model_digest(str(weights(tmp_path / "e", values, "other.safetensors"))) != same[0]


def test_no_digest_without_weights_here(tmp_path: Path) -> None:
    assert model_digest(str(tmp_path / "absent")) is None
    assert model_digest(str(tmp_path)) is None


def test_a_model_of_the_hub_has_the_digest_of_its_snapshot_and_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name on the hub no folder is given, yet the profile says what was loaded."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    values = bytes(range(256)) * 4096
    local = model_digest(str(weights(tmp_path / "local", values)))
    root = tmp_path / "cache" / "models--a--model"
    (root / "snapshots").mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("2" * 40)
    first = weights(root / "snapshots" / ("1" * 40), values)
    weights(root / "snapshots" / ("2" * 40), values[::-1])
    model_digest.cache_clear()
    assert model_digest("a/model", "1" * 40) == local
    assert model_commit("a/model", "1" * 40) == "1" * 40
    assert model_commit("a/model") == "2" * 40
    assert model_digest("a/model") not in (None, local)
    assert model_commit(str(first)) == "1" * 40
    assert model_commit(str(tmp_path / "local")) is None
    assert (model_digest("a/model", "3" * 40), model_commit("a/model", "3" * 40)) == (None, None)
