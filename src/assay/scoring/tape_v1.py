"""The noise that turns a seed into draws on runner V1 of a CPU, in numpy (tape ``("v1", 2)``).

Every seeded request has a torch generator (mt19937, seeded with the seed's low 32 bits) and each
step takes one number of it below 2^31, the row seed. A token's noise is a hash of the row seed and
its id, so the tape is a pure function of (seed, output index, token id) here too, and any machine
can draw it again. Other V1 tapes cannot be repeated in numpy: they draw one exponential number a
token from the generator, in an order that belongs to the device.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from assay.scoring.tape import Floats, Ids

UInt64s = NDArray[np.uint64]

GENERATION: Final = 2
"""Number of this noise function for runner V1 (vLLM 0.32 and 0.33 on a CPU)."""

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXERS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_WORD: Final = 0xFFFFFFFF


def row_seeds(seed: int, outputs: int) -> NDArray[np.int64]:
    """What the request's generator gives for its first ``outputs`` steps, [outputs] in [0, 2^31).

    A step without a sampled token (greedy request) takes none.
    """
    words = np.random.RandomState(seed & _WORD).randint(0, 2**32, 2 * outputs, dtype=np.uint32)
    # torch joins two words, high one first, and takes the remainder by 2^31: the second word's.
    return (words[1::2] & np.uint32(0x7FFFFFFF)).astype(np.int64)


def splitmix_gumbel(row_seed: Ids, token_ids: Ids) -> Floats:
    """Gumbel noise (nats) of token ids under row seeds, float64 in their broadcast shape."""
    ids = np.asarray(token_ids, dtype=np.int64).astype(np.uint64)
    start = _mix64(np.asarray(row_seed, dtype=np.int64).astype(np.uint64))
    with np.errstate(over="ignore"):  # the arithmetic is modulo 2^64
        bits = _mix64(start + (ids + np.uint64(1)) * _GAMMA) >> np.uint64(11)
    u = (bits.astype(np.float64) + 0.5) * 2.0**-53
    return np.asarray(-np.log(-np.log(u)))


def v1_cpu_noise(seed: int, output_index: int, token_ids: Ids) -> Floats:
    """Noise of ``token_ids`` at output ``output_index`` (from 0) of a request with ``seed``."""
    return splitmix_gumbel(int(row_seeds(seed, output_index + 1)[-1]), token_ids)


def _mix64(value: UInt64s) -> UInt64s:
    with np.errstate(over="ignore"):
        for bits, factor in _MIXERS:
            value = (value ^ (value >> np.uint64(bits))) * np.uint64(factor)
    return value ^ (value >> np.uint64(31))
