"""Deployment presets of ``assay serve``: flags that production taught, by model family.

A preset never decides a verdict; it decides how the engine is started. Each is printed before the
start and gives way to the caller's own flag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from assay.errors import SettingsError

Hardware = Literal["nvidia", "rocm", "cpu"]


@dataclass(frozen=True)
class Preset:
    """One flag of ``vllm serve`` without its dashes, its value, and why it is set."""

    flag: str
    value: str
    why: str

    @property
    def arguments(self) -> list[str]:
        return [f"--{self.flag}", self.value]


@dataclass(frozen=True)
class Family:
    """A model family. ``mla`` models have latent attention, which FLASHINFER has no kernel for."""

    name: str
    mla: bool = False
    extra: tuple[Preset, ...] = ()


_CUSTOM_OPS = [
    "+quant_fp8",
    "+rms_norm",
    "+silu_and_mul",
    "+fused_moe",
    "+rotary_embedding",
    "+apply_rotary_emb",
    "none",
]
_MOE_OPS = Preset(
    "compilation-config",
    json.dumps({"custom_ops": _CUSTOM_OPS}),
    "hand-written kernels for exactly these operations, as the fleets of this family run them",
)

GENERIC = Family("generic")
MLA = Family("mla", mla=True)
QWEN3_MOE = Family("qwen3-moe", extra=(_MOE_OPS,))
QWEN3_MOE_235B = Family(
    "qwen3-moe-235b",
    extra=(
        _MOE_OPS,
        Preset("tensor-parallel-size", "4", "235 B parameters in FP8 on 4 GPUs of 80 GB"),
        Preset("max-model-len", "240000", "what fits beside the weights at that size"),
    ),
)


def family_of(model: str) -> Family:
    """The family of a local folder by its ``config.json``, of a hub id by its name.

    Raises SettingsError when a local folder holds no readable ``config.json``.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _by_config(_config(folder), folder.name)
    return _by_name(model)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as a model's config.json: {error}") from error
    if not isinstance(config, dict):
        raise SettingsError(f"{path}: expected a JSON object")
    # Multimodal configs keep the language model's one level down.
    text = config.get("text_config")
    return config | text if isinstance(text, dict) else config


def _by_config(config: dict[str, Any], name: str) -> Family:
    if config.get("kv_lora_rank"):  # the rank of the latent cache: only MLA models have one
        return MLA
    if config.get("model_type") == "qwen3_moe":
        large = config.get("hidden_size") == 4096 and config.get("num_hidden_layers") == 94
        return QWEN3_MOE_235B if large or "235b" in name.lower() else QWEN3_MOE
    return GENERIC


_NAMES: tuple[tuple[str, Family], ...] = (
    (r"qwen3-235b-a22b", QWEN3_MOE_235B),
    (r"qwen3-(coder-)?\d+b-a\d+(\.\d+)?b", QWEN3_MOE),
    (r"deepseek-(v[2-9]|r1)|kimi-k2|glm-5", MLA),
)


def _by_name(model: str) -> Family:
    text = model.lower()
    return next((family for pattern, family in _NAMES if re.search(pattern, text)), GENERIC)


def presets_for(family: Family, hardware: Hardware) -> list[Preset]:
    """The presets of a family on a kind of hardware, in the order they are printed."""
    presets = [
        Preset("dtype", "auto", "the dtype the weights were published in"),
        Preset(
            "logprobs-mode",
            "raw_logprobs",
            "separates models better; give processed_logprobs where a network's older validators"
            " expect it",
        ),
    ]
    if hardware == "cpu":
        return presets
    if hardware == "nvidia" and not family.mla:
        presets.append(
            Preset(
                "attention-backend",
                "FLASHINFER",
                "one kernel on every NVIDIA card, so that executor and validator round alike",
            )
        )
    presets += [
        Preset(
            "max-num-batched-tokens",
            "32768",
            "a proof-of-compute batch of 32 nonces x 1024 tokens fits one step",
        ),
        Preset("gpu-memory-utilization", "0.925", "leaves the memory that replays need beside KV"),
    ]
    return presets + list(family.extra)


CPU_ALLOCATOR: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
"""glibc keeps freed blocks of up to 1 GiB, and up to 1 GiB of them, instead of giving them back.

The tensors of prompt log probabilities (tokens x vocabulary in float32, 57 MB for 290 tokens of
SmolLM2) are over what it keeps by itself, so each is asked for, and cleared by the kernel, again:
38,000 page faults and 8 % of the time of a prefill replay on a CPU. Blocks above 1 GiB go back as
before, which bounds what an idle server holds.
"""


def environment_for(hardware: Hardware, given: Collection[str]) -> dict[str, str]:
    """Variables an engine is started with on this hardware; names in ``given`` are left alone."""
    wanted = CPU_ALLOCATOR if hardware == "cpu" else {}
    return {name: value for name, value in wanted.items() if name not in given}


_SHORT = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "cc": "compilation-config",
    "O": "optimization-level",
    "ac": "attention-config",
    "q": "quantization",
    "sc": "speculative-config",
}
_SAME_SETTING = {"attention-config": "attention-backend"}
"""A flag that also sets what a preset sets under another name."""


def given_flags(arguments: list[str]) -> set[str]:
    """Long names, without dashes, of the flags in ``arguments``, whatever their spelling.

    ``--dtype auto``, ``--dtype=auto``, ``--max_model_len 8``, ``-tp 2``, ``-tp=2``, ``--no-x``,
    ``-cc.mode=3`` and ``--compilation-config.mode 3`` are all found.
    """
    names: set[str] = set()
    for argument in arguments:
        if re.match(r"-{1,2}[A-Za-z]", argument) is None:
            continue
        name = argument.lstrip("-").split("=", 1)[0].split(".", 1)[0]
        if argument.startswith("--"):
            name = name.replace("_", "-").removeprefix("no-")
        else:
            name = _SHORT.get(name, "optimization-level" if name.startswith("O") else name)
        names.add(name)
        if name in _SAME_SETTING:
            names.add(_SAME_SETTING[name])
    return names


def flag_value(arguments: list[str], flag: str) -> str | None:
    """The last value given for the long flag ``flag``; ``None`` when it is not there."""
    value: str | None = None
    for index, argument in enumerate(arguments):
        name, equals, inline = argument.partition("=")
        if name.startswith("--") and name.lstrip("-").replace("_", "-") == flag:
            if equals:
                value = inline
            elif index + 1 < len(arguments):
                value = arguments[index + 1]
    return value


@dataclass(frozen=True)
class Chosen:
    """Presets that apply, and those that gave way to a flag of the caller."""

    applied: tuple[Preset, ...]
    overridden: tuple[Preset, ...]


def choose(family: Family, hardware: Hardware, given: set[str]) -> Chosen:
    """Split the presets by whether the caller gave the same flag."""
    presets = presets_for(family, hardware)
    return Chosen(
        tuple(preset for preset in presets if preset.flag not in given),
        tuple(preset for preset in presets if preset.flag in given),
    )
