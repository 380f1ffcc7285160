"""The noise that turns a seed into draws on vLLM's Model Runner V2, in numpy.

The runner draws argmax over token ids of ``logit / T + g(seed, position, token id)`` with Gumbel
noise g, where *position is the index of the last input token*: ``prompt_len + i - 1`` for output i
(from 0). The noise is a pure function, so anybody can draw a claimed token again (spec replay,
section 6; checked against the engine's kernel by tests/plugin). V1 consumes a torch generator in
order instead; ``tape_v1.py`` has the one V1 tape that anybody can draw again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from assay.claims.claim import Tape

UInt32s = NDArray[np.uint32]
Floats = NDArray[np.float64]
Ids = int | Sequence[int] | NDArray[np.int64]

GENERATIONS: Final = {
    ("v1", 1): "one exponential number a token and step from the request's torch generator, in the"
    " order of the device",
    ("v1", 2): "one number a step from the request's torch generator, hashed with the token id"
    " (CPUs; scoring/tape_v1.py)",
    ("v2", 1): "murmur3-style hash of (seed, position, token id), Gumbel noise with the winning"
    " tail at u -> 0",
}
"""The noise functions known here, by (runner, ``Tape.generation``). A vLLM that changes its noise
gets the next number; claims of a generation nobody knows cannot be drawn again."""

REPEATABLE: Final = frozenset({("v1", 2), ("v2", 1)})
"""Tapes that are pure functions, so that any machine draws them again."""

DRAFT_SALT: Final = 1 << 30
"""Added to the position where a speculative draft draws, so that draft and target never share
noise."""

_WORD: Final = 0xFFFFFFFF
_FINAL: Final = 16  # bytes hashed: four words
_SECOND_DOMAIN: Final = 0x9E3779B9  # start of the second hash of double precision noise
_SMALLEST: Final = 2.0**-24  # 1 - u is at least this in single precision


def tape_name(tape: Tape) -> str:
    """The tape in words, for reasons."""
    fp64 = ", double precision noise" if tape.fp64 else ""
    device = f" on {tape.device}" if tape.device else ""
    return f"runner {tape.runner.upper()}{device}, noise generation {tape.generation}{fp64}"


def draw_position(prompt_tokens: int, output_index: int) -> int:
    """The position that output ``output_index`` (from 0) is drawn at."""
    return prompt_tokens + output_index - 1


def tape_hash(
    seed: int, position: Ids, token_ids: Ids, *, salt: int = 0, domain: int = 0
) -> UInt32s:
    """Hash of (seed, position, token id), uint32 in the broadcast shape of the last two.

    Murmur3's mix of four words (the seed's low and high 32 bits, the position's low 32 bits, the
    token id) from ``domain``, then its finaliser over 16 bytes. ``seed`` is a signed 64-bit number;
    its two's complement is hashed. ``salt`` is ``DRAFT_SALT`` for a speculative draft.
    """
    where = np.asarray(position, dtype=np.int64) + np.int64(salt)
    ids = np.asarray(token_ids, dtype=np.int64)
    h = np.uint32(domain)
    state = _mix(np.asarray(h), _low_word(seed))
    state = _mix(state, _low_word(seed >> 32))
    state = _mix(state, (where & _WORD).astype(np.uint32))
    state = _mix(state, (ids & _WORD).astype(np.uint32))
    state = state ^ np.uint32(_FINAL)
    state ^= state >> np.uint32(16)
    state = _times(state, 0x85EBCA6B)
    state ^= state >> np.uint32(13)
    state = _times(state, 0xC2B2AE35)
    return np.asarray(state ^ (state >> np.uint32(16)))


def uniform(
    seed: int, position: Ids, token_ids: Ids, *, fp64: bool = False, salt: int = 0
) -> Floats:
    """The uniform number in (0, 1) of each (position, token id), as the engine rounds it.

    Single precision: ``(h + 0.5) * 2^-32`` rounded to float32 (which may be 1.0); double: 53 bits
    of two hashes, never 1.0. Returned as float64.
    """
    low = tape_hash(seed, position, token_ids, salt=salt)
    if not fp64:
        exact = (low.astype(np.float64) + 0.5) * 2.0**-32
        return np.asarray(exact.astype(np.float32).astype(np.float64))
    high = tape_hash(seed, position, token_ids, salt=salt, domain=_SECOND_DOMAIN)
    bits = ((high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)) >> np.uint64(11)
    value = (bits.astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(np.where(value == 1.0, value - 2.0**-53, value))


def gumbel(
    seed: int, position: Ids, token_ids: Ids, *, fp64: bool = False, salt: int = 0
) -> Floats:
    """Gumbel noise (nats) of each (position, token id), float64 in their broadcast shape.

    Single precision: ``-log(-log1p(-u))``; double: ``-log(-log(u))``. The engine's own arithmetic
    in float32 differs from this by a few 1e-6 where the noise is large enough to win.
    """
    u = uniform(seed, position, token_ids, fp64=fp64, salt=salt)
    if fp64:
        return np.asarray(-np.log(-np.log(u)))
    return np.asarray(-np.log(-np.log1p(-np.minimum(u, 1.0 - _SMALLEST))))


def _low_word(value: int) -> UInt32s:
    return np.asarray(value & _WORD, dtype=np.uint32)


def _times(value: UInt32s, factor: int) -> UInt32s:
    """The product modulo 2^32; in 64 bits, since numpy warns when a 32-bit scalar overflows."""
    product = value.astype(np.uint64) * np.uint64(factor)
    return np.asarray((product & np.uint64(_WORD)).astype(np.uint32))


def _rotated(value: UInt32s, bits: int) -> UInt32s:
    return np.asarray((value << np.uint32(bits)) | (value >> np.uint32(32 - bits)))


def _mix(state: UInt32s, word: UInt32s) -> UInt32s:
    word = _times(_rotated(_times(word, 0xCC9E2D51), 15), 0x1B873593)
    state = _rotated(np.asarray(state ^ word), 13)
    product = state.astype(np.uint64) * np.uint64(5) + np.uint64(0xE6546B64)
    return np.asarray((product & np.uint64(_WORD)).astype(np.uint32))
