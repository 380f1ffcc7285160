"""MurmurHash3 of one 4-byte block, as the challenge uses it, in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
)

UInt32Array = npt.NDArray[np.uint32]


def murmur3_32(
    keys: npt.ArrayLike, seed: int | np.integer | npt.NDArray[np.integer]
) -> UInt32Array:
    """Hash every key (0 .. 2^32-1) under ``seed``; arrays of seeds broadcast against the keys.

    MurmurHash3 x86 32-bit of a single 4-byte block, without the xor of the length before the
    final mix. All arithmetic is modulo 2^32. Returns uint32 in the broadcast shape.
    """
    shape = np.broadcast_shapes(np.shape(keys), np.shape(seed))
    k = _as_uint32(keys) * np.uint32(MURMUR_C1)
    k = _rotate_left(k, KEY_ROTATION) * np.uint32(MURMUR_C2)
    h = _as_uint32(seed) ^ k
    h = _rotate_left(h, STATE_ROTATION) * np.uint32(MURMUR_M) + np.uint32(MURMUR_N)
    first, second, third = (np.uint32(shift) for shift in FINAL_SHIFTS)
    h = (h ^ (h >> first)) * np.uint32(MURMUR_F1)
    h = (h ^ (h >> second)) * np.uint32(MURMUR_F2)
    mixed: UInt32Array = h ^ (h >> third)
    return mixed.reshape(shape)


def _as_uint32(values: npt.ArrayLike) -> UInt32Array:
    # At least one dimension: numpy warns about overflow on scalars, and wraps silently on arrays.
    return np.atleast_1d(np.asarray(values)).astype(np.uint32)


def _rotate_left(x: UInt32Array, bits: int) -> UInt32Array:
    rotated: UInt32Array = (x << np.uint32(bits)) | (x >> np.uint32(32 - bits))
    return rotated
