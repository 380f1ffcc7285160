"""Every number that decides a vector or a verdict. Source constants: no environment reads (F77).

The first two blocks are consensus: change one and every vector of this software is unrelated to
those of any other node. Their values come from the published definition of PoC v2 and are held by
tests on published vectors.
"""

from __future__ import annotations

from typing import Final

# --- seeds and hashing -------------------------------------------------------------------------
# MurmurHash3 x86 32-bit, one 4-byte block (Austin Appleby, public domain), WITHOUT the xor of the
# length before the final mix.
MURMUR_C1: Final = 0xCC9E2D51
MURMUR_C2: Final = 0x1B873593
MURMUR_M: Final = 5
MURMUR_N: Final = 0xE6546B64
MURMUR_F1: Final = 0x85EBCA6B
MURMUR_F2: Final = 0xC2B2AE35
KEY_ROTATION: Final = 15
STATE_ROTATION: Final = 13
FINAL_SHIFTS: Final = (16, 13, 16)

UINT32_RANGE: Final = 2**32
STRONG_SEED_WORDS: Final = 8
"""A SHA-256 digest is 8 big-endian words; the stronger seed uses all, the plain one the first."""

# --- vectors -----------------------------------------------------------------------------------
UNIFORM_FLOOR: Final = 1e-10
"""Smallest first uniform of a Box-Muller pair, so that the largest radius is 6.79."""
STATE_NORM_EPSILON: Final = 1e-8
"""Added to the norm of the last hidden state, and to the norm of the rotated vector."""
ROTATION_NORM_EPSILON: Final = 1e-30
"""Added to the norm of a rotation reflection."""
K_DIM: Final = 12
"""Numbers in a vector when nobody says otherwise. Part of the pick and rotation strings."""
MAX_ELEMENTS: Final = 2**31 - 2
"""seq_len * hidden_size of one nonce: the hash keys are counted in int32 on a device, and an odd
number needs one key more."""

# --- verdict -----------------------------------------------------------------------------------
MAX_EXCLUDED_FRACTION: Final = 0.10
"""More of the nonces than this without a comparison and there is no verdict."""

REFERENCE_DIST_THRESHOLD: Final = 0.02
REFERENCE_P_MISMATCH: Final = 0.001
REFERENCE_ALPHA: Final = 0.01
"""Defaults of the HTTP body ``stat_test`` in the reference server. They convict honest hardware
(two GPU kinds differ by 0.05 to 0.5); kept for the wire only, never a default of a command."""

NETWORK_DIST_THRESHOLD: Final = 0.4
NETWORK_P_MISMATCH: Final = 0.1
NETWORK_ALPHA: Final = 0.05
"""What networks set. At n = 200 this convicts from 28 mismatches on. Not calibrated for your
engine: MiniMax runs at 0.75, DeepSeek at 0.41, GLM at 0.44, Qwen3-235B at 0.2."""

PROFILE_IDENTITY: Final = ("engine_version", "dtype", "kv_cache_dtype", "attention_backend")
"""Profile fields a threshold is calibrated for; a difference is configuration, not fraud (case 50:
8.3 % mismatches with a bf16 KV cache against 1.3 % with fp8, same model, same GPUs)."""

HIDDEN_SIZES: Final = {
    "Qwen3-235B-A22B": 4096,
    "Qwen3-0.6B": 1024,
    "MiniMax-M2.7": 3072,
    "Kimi-K2.5": 7168,
    "Kimi-K2.6": 7168,
}
"""hidden_size of the models of the labelled sets, from their public config.json, matched by the
start of the name. Needed to undo the pick (the zero-knowledge baseline); decides no verdict."""
