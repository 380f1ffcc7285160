"""The models the tests and the demo stand on: rounding is what it claims, folders are whole."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from tests.support import tiny

from assay.demo.folders import made_once
from assay.demo.models import WEIGHTS, rounded_copy
from assay.demo.rounding import (
    FP8_MAX,
    INT4_GROUP,
    INT4_MAX,
    INT8_MAX,
    Bits,
    is_rounded_weight,
    round_fp8,
    round_int,
    rounded,
)
from assay.errors import SettingsError


def _weight(seed: int, rows: int = 6, columns: int = 4 * INT4_GROUP) -> torch.Tensor:
    """Random weights [rows, columns]; each row has its own size, as trained rows do."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-3, 1, rows).unsqueeze(1)
    return torch.randn((rows, columns), generator=generator) * scale


@given(seed=st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_int4_keeps_at_most_15_values_a_group_within_half_a_step(seed: int) -> None:
    weight = _weight(seed)
    blocks = weight.reshape(-1, INT4_GROUP)  # [groups, 32]
    cheat = rounded(weight, "int4").reshape(-1, INT4_GROUP)
    step = blocks.abs().amax(dim=1) / INT4_MAX
    for group in cheat:
        assert group.unique().numel() <= 2 * INT4_MAX + 1
    error = (cheat - blocks).abs().amax(dim=1)
    assert (error <= step / 2 * 1.0001).all()
    # The largest value of a group is on the grid, so the scale is that group's own.
    assert torch.allclose(cheat.abs().amax(dim=1), blocks.abs().amax(dim=1))


@given(seed=st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_int8_is_within_half_a_step_of_its_row_and_finer_than_int4(seed: int) -> None:
    weight = _weight(seed)
    cheat = rounded(weight, "int8")
    step = weight.abs().amax(dim=1, keepdim=True) / INT8_MAX
    assert ((cheat - weight).abs() <= step / 2 * 1.0001).all()
    assert (cheat - weight).norm() < (rounded(weight, "int4") - weight).norm() / 4
    assert not torch.equal(cheat, weight)


@given(seed=st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_fp8_is_within_half_a_step_of_three_mantissa_bits(seed: int) -> None:
    weight = _weight(seed)
    cheat = round_fp8(weight)
    scale = weight.abs().amax(dim=1, keepdim=True) / FP8_MAX
    # Three stored mantissa bits: half a step is 1/16 of the value; below 2**-6 (in units of the
    # scale) numbers are subnormal with a step of 2**-9.
    bound = torch.maximum(weight.abs() / 16, scale * 2**-10)
    assert ((cheat - weight).abs() <= bound * 1.001).all()
    assert not torch.equal(cheat, weight)


@pytest.mark.parametrize("bits", ["int4", "int8", "fp8"])
def test_rounding_twice_changes_nothing_more_and_zeros_stay(bits: Bits) -> None:
    weight = _weight(7)
    weight[2] = 0.0
    once = rounded(weight, bits)
    assert torch.isfinite(once).all()
    assert (once[2] == 0).all()
    assert torch.allclose(rounded(once, bits), once, rtol=1e-5, atol=0)


def test_a_group_that_does_not_divide_the_row_is_refused() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        round_int(torch.ones(2, INT4_GROUP + 1), levels=INT4_MAX, group=INT4_GROUP)


@pytest.mark.parametrize("bits", ["int4", "int8", "fp8"])
def test_a_rounded_copy_differs_in_decoder_matrices_only(
    tiny_path: Path, tmp_path: Path, bits: Bits
) -> None:
    copy = rounded_copy(tiny_path, bits, tmp_path)
    honest, cheat = load_file(tiny_path / WEIGHTS), load_file(copy / WEIGHTS)
    assert honest.keys() == cheat.keys()
    changed = {name for name in honest if not torch.equal(honest[name], cheat[name])}
    matrices = {name for name in honest if is_rounded_weight(name, tuple(honest[name].shape))}
    assert changed == matrices
    assert len(matrices) == 7 * tiny.LAYERS
    for name in matrices:
        assert torch.equal(cheat[name], rounded(honest[name], bits))
    for file in tiny_path.iterdir():
        if file.name != WEIGHTS:
            assert (copy / file.name).read_bytes() == file.read_bytes()


def test_a_folder_without_weights_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"model\.safetensors"):
        rounded_copy(tmp_path, "int4")


def test_smollm2_is_a_plain_bfloat16_llama_with_its_template(smollm2_path: Path) -> None:
    config = json.loads((smollm2_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_hidden_layers"], config["hidden_size"]) == (30, 576)
    # Left in, the engine would look for packed GGUF weights.
    assert "quantization_config" not in config
    assert "<|im_start|>" in (smollm2_path / "chat_template.jinja").read_text()
    with safe_open(smollm2_path / WEIGHTS, framework="pt") as weights:
        matrix = weights.get_tensor("model.layers.3.mlp.down_proj.weight")
    assert matrix.dtype is torch.bfloat16
    # It came from GGUF Q4_1: 16 values in each block of 32, so int4 rounding still moves it.
    for block in matrix[0].reshape(-1, 32):
        assert block.unique().numel() <= 16
    assert not torch.equal(rounded(matrix, "int4"), matrix)


def test_int4_copy_of_smollm2_has_few_values_a_group(int4_path: Path) -> None:
    with safe_open(int4_path / WEIGHTS, framework="pt") as weights:
        matrix = weights.get_tensor("model.layers.0.self_attn.q_proj.weight")
    for group in matrix[:16].reshape(-1, INT4_GROUP):
        assert group.unique().numel() <= 2 * INT4_MAX + 1


def test_the_model_maker_imports_no_engine_until_it_is_used() -> None:
    """`assay --help` and the validator side import this module; torch costs seconds."""
    code = (
        "import sys, assay.demo.models, assay.demo.rounding; "
        "print(sorted({'torch', 'transformers', 'vllm', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_two_callers_make_a_folder_once(tmp_path: Path) -> None:
    entered = threading.Barrier(2)
    makes: list[Path] = []

    def make(scratch: Path) -> None:
        makes.append(scratch)
        (scratch / "part").write_text("whole")

    def call() -> None:
        entered.wait()
        assert made_once(tmp_path / "made", make) == tmp_path / "made"

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(makes) == 1
    assert (tmp_path / "made" / "part").read_text() == "whole"


def test_a_failed_make_leaves_no_folder_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(scratch: Path) -> None:
        (scratch / "half").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        made_once(tmp_path / "made", fail)
    assert [entry.name for entry in tmp_path.iterdir()] == [".made.lock"]
    made_once(tmp_path / "made", lambda scratch: (scratch / "whole").touch())
    assert (tmp_path / "made" / "whole").exists()


def test_the_tiny_model_is_the_same_every_time(tiny_path: Path, tmp_path: Path) -> None:
    again = tiny.tiny_llama(tmp_path)
    for file in tiny_path.iterdir():
        assert (again / file.name).read_bytes() == file.read_bytes()


def test_the_tiny_model_is_neither_flat_nor_certain(tiny_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_path)
    assert len(tokenizer) == tiny.VOCAB
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Ответ 答案 {}"}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids) == text
    model = AutoModelForCausalLM.from_pretrained(tiny_path)
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]  # [seq, vocab]
    assert 1.5 < logits.std(dim=-1).mean() < 2.5
    assert logits.softmax(dim=-1).amax(dim=-1).max() < 0.95
    # The whole context counts: another first word, another distribution at the end.
    with torch.no_grad():
        other = model(torch.tensor([[ids[0], ids[1] + 1, *ids[2:]]])).logits[0]
    assert (other[-1] - logits[-1]).abs().max() > 0.05
