"""What the labels of the published sets say of a configuration and of hardware.

Their files name neither engine version nor GPU; paths and groups do. Used by the evaluation only.
"""

from __future__ import annotations

import re

from assay.poc.profile import VectorKey
from assay.poc.table import LabelledSet

_KINDS = re.compile(r"rtx ?(?:pro)? ?\d+|[abh]\d{3}", re.I)
_VERSION = re.compile(r"vllm(\d{3})")
_KERNELS = re.compile(r"triton|trtllm|marlin|nofloat16", re.I)
_MONTH = re.compile(r"\d{4}-\d{2}(?=__)")
# Models of one architecture begin alike: Qwen3-235B-A22B and its 2507 version, Kimi-K2.5 and K2.6.
_ARCHITECTURES = ("Qwen3-235B-A22B", "Kimi-K2", "MiniMax-M2")


def hardware_kind(one: LabelledSet) -> str | None:
    """The kind of GPU, without count or form: "4xh100" and "H100" are one kind. None: unknown."""
    found = _KINDS.search(one.labels["gpu"])
    return found.group().lower().replace(" ", "") if found else None


def deployment(one: LabelledSet) -> str | None:
    """Kind of GPU and, where the file names them, kernels or a forced dtype."""
    kind = hardware_kind(one)
    kernels = _KERNELS.search(one.labels["path"].rsplit("/", 1)[-1])
    return kind if kind is None or kernels is None else f"{kind} {kernels.group().lower()}"


def model_name(one: LabelledSet) -> str:
    return one.labels["model"].rsplit("/", 1)[-1].removesuffix("-FP8")


def labelled_key(one: LabelledSet) -> VectorKey:
    """The configuration as far as the labels tell.

    Engine version: the one a path names, else the month of the recording (two months of one model
    are two images), else the group, which is one deployment whatever the challenge. FlashInfer in
    a file name is an attention backend of its own.
    """
    path, group = one.labels["path"], one.labels["group"]
    file = path.rsplit("/", 1)[-1]
    named, month = _VERSION.search(file), _MONTH.search(file)
    if named or month:
        version = " ".join(match.group() for match in (month, named) if match)
    else:
        version = _deployment(group)
    return VectorKey(
        model=model_name(one),
        seq_len=int(one.labels["seq_len"]),
        k_dim=one.vectors.challenge.k,
        engine_version=version,
        architecture=next((a for a in _ARCHITECTURES if model_name(one).startswith(a)), None),
        attention_backend="flashinfer" if file.endswith("_FLASHINFER.json") else None,
    )


def _deployment(group: str) -> str:
    """The three early folders are one deployment (servers 134 and 228) under several challenges."""
    return "early, without layer reflections" if "_nolayer_" in group else group
