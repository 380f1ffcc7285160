"""The digest of local weights: what it depends on, and that it is computed once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from assay.errors import SettingsError
from assay.replay.tapes import named_tape
from assay.replay.weights import weights_digest


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model-2.safetensors").write_bytes(b"second" * 1000)
    (folder / "model-1.safetensors").write_bytes(b"first")
    (folder / "pytorch_model.bin").write_bytes(b"an older copy")
    (folder / "config.json").write_text("{}")
    return folder


def test_it_is_what_sha256sum_would_say_of_its_own_list(model: Path) -> None:
    lines = "".join(
        f"{hashlib.sha256((model / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("model-1.safetensors", "model-2.safetensors")
    )
    assert weights_digest(model) == "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def test_it_follows_the_weights_and_nothing_else(model: Path, tmp_path: Path) -> None:
    before = weights_digest(model)
    (model / "config.json").write_text('{"rope_theta": 1}')
    (model / "pytorch_model.bin").write_bytes(b"vLLM does not load it")
    assert weights_digest(model) == before
    moved = model.rename(tmp_path / "elsewhere")
    assert weights_digest(moved) == before
    (moved / "model-1.safetensors").write_bytes(b"fIrst")
    assert weights_digest(moved) != before


def test_a_file_is_read_once_until_it_changes(model: Path, tmp_path: Path) -> None:
    cache, file = tmp_path / "cache", model / "model-1.safetensors"
    first = weights_digest(model, cache)
    assert first == weights_digest(model)
    (known,) = (f for f in (cache / "weights").iterdir() if f.read_text() == digest_of(b"first"))
    known.write_text("0" * 64)
    assert weights_digest(model, cache) != first, "the remembered digest was not used"
    file.write_bytes(b"fIrst")
    os.utime(file, ns=(1, 1))
    assert weights_digest(model, cache) == weights_digest(model)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_single_file_is_a_model_too(model: Path) -> None:
    assert weights_digest(model / "pytorch_model.bin").startswith("sha256:")


def test_what_is_no_local_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such folder"):
        weights_digest(tmp_path / "org" / "name-on-the-hub")
    with pytest.raises(SettingsError, match="holds no weights"):
        weights_digest(tmp_path)


def test_tapes_by_name() -> None:
    assert named_tape("v2", None).model_dump() == {
        "runner": "v2", "generation": 1, "fp64": False, "device": None,
    }  # fmt: skip
    assert (named_tape("v1", "0.33.0").generation, named_tape("v1", None).device) == (1, "cuda")
    cpu = [named_tape("v1-cpu", version) for version in ("0.31.2", "0.32.0", "0.33.0", None)]
    assert [tape.generation for tape in cpu] == [1, 2, 2, 2]
    assert {tape.device for tape in cpu} == {"cpu"}
    with pytest.raises(SettingsError, match="v3"):
        named_tape("v3", None)
