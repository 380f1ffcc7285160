"""Seeded standard normals: hashed uniforms through Box-Muller, float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from assay.errors import SettingsError
from assay.poc.constants import MAX_ELEMENTS, UINT32_RANGE, UNIFORM_FLOOR
from assay.poc.murmur import murmur3_32

FloatArray = npt.NDArray[np.float32]


def uniforms(seed: int, n: int) -> FloatArray:
    """float32(hash) / 2^32 for keys 0 .. n-1. Rounding to float32 can give exactly 1.0."""
    return _to_uniform(murmur3_32(np.arange(n, dtype=np.uint32), seed))


def normals(seed: int, n: int) -> FloatArray:
    """``n`` standard normals, float32: all cosines of the pairs first, then all sines.

    Box-Muller on ceil(n/2) pairs; the first uniform of a pair is clamped to >= 1e-10.
    """
    row: FloatArray = normals_rows(np.asarray([seed], dtype=np.uint32), n)[0]
    return row


def normals_rows(seeds: npt.NDArray[np.uint32], n: int) -> FloatArray:
    """One row of ``normals`` for each of ``seeds [rows]``: float32 ``[rows, n]``."""
    if not 0 < n <= MAX_ELEMENTS:
        raise SettingsError(f"n: {n} normals asked for; give 1 to {MAX_ELEMENTS}")
    pairs = (n + 1) // 2
    u = _to_uniform(murmur3_32(np.arange(2 * pairs, dtype=np.uint32), seeds[:, None]))
    radius = np.sqrt(np.float32(-2) * np.log(np.maximum(u[:, :pairs], np.float32(UNIFORM_FLOOR))))
    angle = np.float32(2 * np.pi) * u[:, pairs:]
    both = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    made: FloatArray = both[:, :n].astype(np.float32, copy=False)
    return made


def strong_lengths(n: int, words: int) -> list[int]:
    """How many of ``n`` normals each word gives: ceil(n/words), the last ones fewer."""
    each = -(-n // words)
    return [max(0, min(each, n - word * each)) for word in range(words)]


def strong_normals(words: Sequence[int], n: int) -> FloatArray:
    """``n`` normals of the stronger seed, float32 ``[n]``: each word's own, one after another."""
    parts = [
        normals(word, length)
        for word, length in zip(words, strong_lengths(n, len(words)), strict=True)
        if length
    ]
    return np.concatenate(parts)


def _to_uniform(hashed: npt.NDArray[np.uint32]) -> FloatArray:
    # The division by a power of two is exact, so the only rounding is uint32 -> float32.
    return hashed.astype(np.float32) / np.float32(UINT32_RANGE)
