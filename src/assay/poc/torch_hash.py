"""Hashed uniforms and normals for many seeds at once, on any torch device.

torch has no uint32 arithmetic, so the hash runs in int32, which wraps as uint32 does; only right
shifts differ, and a mask after the (arithmetic) shift makes them logical. Against int64 with a
mask after every step this halves the bytes and needs 16 instead of 24 operations a hash; the part
of the hash that does not know the seed is done once a chunk for all rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from assay.poc.constants import (
    FINAL_SHIFTS,
    KEY_ROTATION,
    MURMUR_C1,
    MURMUR_C2,
    MURMUR_F1,
    MURMUR_F2,
    MURMUR_M,
    MURMUR_N,
    STATE_ROTATION,
    UINT32_RANGE,
    UNIFORM_FLOOR,
)

CHUNK_ELEMENTS = 1 << 20
"""Box-Muller pairs worked on at a time. Larger is no faster (measured on a CPU: 2^18 to 2^20 are
level, 2^16 takes 1.7 times as long); it changes no value."""


def as_int32(value: int) -> int:
    """The int32 with the bits of the uint32 ``value``."""
    return value - UINT32_RANGE if value >= UINT32_RANGE // 2 else value


def seed_tensor(seeds: Sequence[int], device: torch.device | str) -> torch.Tensor:
    """uint32 seeds as an int32 tensor ``[len(seeds)]`` of the same bits."""
    return torch.tensor([as_int32(s) for s in seeds], dtype=torch.int32).to(device)


class Scratch:
    """The temporaries of ``fill_normals_``: 16 bytes a chunk element.

    The hash keys of a chunk add 12 bytes a column, so a call holds at most 28 bytes a chunk
    element. Kept for one batch, so that the eight words of a stronger seed share it.
    """

    def __init__(self, device: torch.device, chunk: int) -> None:
        self.chunk = chunk
        self.device = device
        self.hash = torch.empty(chunk, dtype=torch.int32, device=device)
        self.spare = torch.empty(chunk, dtype=torch.int32, device=device)
        self.first = torch.empty(chunk, dtype=torch.float32, device=device)
        self.second = torch.empty(chunk, dtype=torch.float32, device=device)
        self.addend = _addend(device)


def hash_keys(seeds: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """int32 bits ``[rows, count]`` of murmur3_32(start .. start+count-1) under ``seeds [rows]``."""
    keys = _premixed_keys(start, count, seeds.device)
    hashed = torch.bitwise_xor(seeds[:, None], keys)
    return _mix_(hashed, torch.empty_like(hashed), _addend(seeds.device))


def unsigned(bits: torch.Tensor) -> torch.Tensor:
    """int32 bits as the int64 value of the uint32."""
    return bits.to(torch.int64) & (UINT32_RANGE - 1)


def fill_normals_(out: torch.Tensor, seeds: torch.Tensor, scratch: Scratch) -> None:
    """Write ``normals(seed, n)`` of every row's seed into ``out [rows, n]``, in out's dtype.

    ``out`` may be a strided view. Temporaries stay within ``scratch`` whatever rows and n are.
    """
    n = out.shape[1]
    pairs = (n + 1) // 2
    rows_at_once = min(out.shape[0], scratch.chunk)
    columns = min(pairs, max(1, scratch.chunk // max(1, rows_at_once)))
    for start in range(0, pairs, columns):
        width = min(columns, pairs - start)
        first_keys = _premixed_keys(start, width, scratch.device)
        second_keys = _premixed_keys(pairs + start, width, scratch.device)
        for top in range(0, out.shape[0], rows_at_once):
            rows = seeds[top : top + rows_at_once, None]
            target = out[top : top + rows_at_once]
            _fill_block_(target, rows, (first_keys, second_keys), start, scratch)


def _fill_block_(
    out: torch.Tensor,
    seeds: torch.Tensor,
    keys: tuple[torch.Tensor, torch.Tensor],
    start: int,
    scratch: Scratch,
) -> None:
    rows, width = seeds.shape[0], keys[0].shape[0]
    n = out.shape[1]
    pairs = (n + 1) // 2
    used = rows * width
    bits = scratch.hash[:used].view(rows, width)
    spare = scratch.spare[:used].view(rows, width)
    radius = scratch.first[:used].view(rows, width)
    angle = scratch.second[:used].view(rows, width)
    for half, uniform in zip(keys, (radius, angle), strict=True):
        torch.bitwise_xor(seeds, half, out=bits)
        _mix_(bits, spare, scratch.addend)
        uniform.copy_(bits.view(torch.uint32)).mul_(1.0 / UINT32_RANGE)
    radius.clamp_(min=UNIFORM_FLOOR).log_().mul_(-2.0).sqrt_()
    angle.mul_(2 * math.pi)
    wave = spare.view(torch.float32)
    torch.cos(angle, out=wave)
    _store_product_(out[:, start : start + width], radius, wave)
    torch.sin(angle, out=wave)
    # With n odd the last sine of the last chunk is not wanted.
    wanted = min(width, n - pairs - start)
    if wanted > 0:
        sines = out[:, pairs + start : pairs + start + wanted]
        _store_product_(sines, radius[:, :wanted], wave[:, :wanted])


def _store_product_(out: torch.Tensor, radius: torch.Tensor, wave: torch.Tensor) -> None:
    if out.dtype == torch.float32:
        torch.mul(radius, wave, out=out)
    else:
        out.copy_(wave.mul_(radius))


def _addend(device: torch.device) -> torch.Tensor:
    return torch.tensor(as_int32(MURMUR_N), dtype=torch.int32, device=device)


def _premixed_keys(start: int, count: int, device: torch.device) -> torch.Tensor:
    k = torch.arange(start, start + count, dtype=torch.int32, device=device)
    k.mul_(as_int32(MURMUR_C1))
    low = torch.bitwise_right_shift(k, 32 - KEY_ROTATION).bitwise_and_((1 << KEY_ROTATION) - 1)
    k.mul_(1 << KEY_ROTATION).bitwise_or_(low)
    return k.mul_(as_int32(MURMUR_C2))


def _mix_(h: torch.Tensor, spare: torch.Tensor, addend: torch.Tensor) -> torch.Tensor:
    """Everything of the hash after ``seed ^ key``, in place."""
    # rotl(h) * 5 + N, the two halves of the rotation as sums because their bits do not overlap.
    _shift_right(h, 32 - STATE_ROTATION, spare)
    torch.add(addend, h, alpha=MURMUR_M << STATE_ROTATION, out=h)
    h.add_(spare, alpha=MURMUR_M)
    for shift, factor in zip(FINAL_SHIFTS, (MURMUR_F1, MURMUR_F2, None), strict=True):
        h.bitwise_xor_(_shift_right(h, shift, spare))
        if factor is not None:
            h.mul_(as_int32(factor))
    return h


def _shift_right(x: torch.Tensor, bits: int, out: torch.Tensor) -> torch.Tensor:
    torch.bitwise_right_shift(x, bits, out=out)
    return out.bitwise_and_((1 << (32 - bits)) - 1)
