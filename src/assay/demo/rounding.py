"""Weights as a cheaper server would hold them: rounded to int4, int8 or fp8, kept as plain floats.

Storing the rounded values as floats makes the cheating copy load in any engine, on any device,
with the honest copy's config; only the numbers differ, which is what a validator must notice.
Formulas: symmetric round-to-nearest ("absmax") quantisation, as in LLM.int8() (Dettmers et al.
2022, section 2.1, row-wise) and in the group-wise variant of GPTQ/AWQ checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Bits = Literal["int8", "int4", "fp8"]

# 32 is the group of GGUF's Q4_0 and Q4_1; AWQ and GPTQ use 128, which rounds more coarsely. The
# finer one makes the cheat harder to see, so the demo proves more with it.
INT4_GROUP = 32
INT4_MAX = 7  # symmetric: -7..7, 15 levels
INT8_MAX = 127  # symmetric: -127..127, 255 levels
FP8_MAX = 448.0  # largest finite value of float8_e4m3fn (OCP 8-bit floating point, table 1)


def round_int(weight: torch.Tensor, *, levels: int, group: int | None) -> torch.Tensor:
    """``weight`` [rows, columns] rounded to ``2 * levels + 1`` values a group along the columns.

    ``group`` None means the whole row. The result has the shape and dtype of ``weight`` and lies
    within half a step, ``absmax / levels / 2``, of it. Raises ValueError when ``group`` does not
    divide the columns: a ragged tail would get a scale of its own and hide it.
    """
    import torch

    rows, columns = weight.shape
    size = columns if group is None else group
    if columns % size:
        raise ValueError(f"group {size} does not divide the {columns} columns of the weight")
    blocks = weight.to(torch.float32).reshape(rows, columns // size, size)
    step = blocks.abs().amax(dim=-1, keepdim=True) / levels  # [rows, groups, 1]
    # A group of zeros has step 0; dividing by 1 keeps it zero.
    safe = torch.where(step > 0, step, torch.ones_like(step))
    rounded = (blocks / safe).round().clamp(-levels, levels) * step
    return rounded.reshape(rows, columns).to(weight.dtype)


def round_fp8(weight: torch.Tensor) -> torch.Tensor:
    """``weight`` [rows, columns] through float8_e4m3fn with one scale a row, back in its dtype."""
    import torch

    values = weight.to(torch.float32)
    scale = values.abs().amax(dim=-1, keepdim=True) / FP8_MAX  # [rows, 1]
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    rounded = (values / safe).to(torch.float8_e4m3fn).to(torch.float32) * scale
    return rounded.to(weight.dtype)


def rounded(weight: torch.Tensor, bits: Bits) -> torch.Tensor:
    """``weight`` [rows, columns] rounded as ``bits`` says."""
    if bits == "int4":
        return round_int(weight, levels=INT4_MAX, group=INT4_GROUP)
    if bits == "int8":
        return round_int(weight, levels=INT8_MAX, group=None)
    return round_fp8(weight)


def is_rounded_weight(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is one that quantised checkpoints round.

    The matrices of the decoder layers are; embeddings, the output head and norms stay exact, as
    they do in GPTQ, AWQ and llm-compressor checkpoints.
    """
    return len(shape) == 2 and ".layers." in name and name.endswith(".weight")
