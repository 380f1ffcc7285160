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

# --- verdict by a profile ----------------------------------------------------------------------
# "Measured on the labelled sets" below: 78 sets of three model families, `python -m
# assay.poc.detection`, docs/poc-detection.md. The nulls themselves are in no constant: they come
# from the profile's own pairs.
PROFILE_ALPHA: Final = 0.005
"""Chance to convict an honest node, all statistics of one verdict together (Bonferroni). The aim
set for this project: at most 0.5 % of honest pairs."""
MIN_NONCES: Final = 30
"""Fewer compared nonces and a profile gives no verdict: the lower half is then below 15 numbers
and its mean no longer near normal."""
MIN_CALIBRATION_NONCES: Final = 100
"""Fewer common nonces and a pair is no calibration: its own sampling error (5 % of the distance)
would exceed what repeats of a pair differ by."""
DISTANCE_FLOOR: Final = 2.0**-11
"""Distances below it count as this much, so that logarithms exist: half a float16 step at 1."""
INVALID_DISTANCE: Final = 2.0
"""What a claimed vector that is no unit vector counts: the farthest two unit vectors can be."""
UNIT_TOLERANCE: Final = 0.01
"""Largest deviation of a vector's norm from 1. Rounding twelve numbers to float16 gives below
5e-4; a shorter vector lies nearer to everything (the best guess without a model is short)."""
INVALID_RATE: Final = 0.01
"""Tolerated rate of vectors that are none. An honest node sends none at all; this allows for
damage on the way."""
PRIOR_DOF: Final = {"bulk": 10.0, "tail": 3.0, "own": 10.0}
"""Weight, in degrees of freedom, of the spread pooled over all configurations of a profile against
the spread seen in one (moderated variance: Smyth 2004, doi:10.2202/1544-6115.1027). His moment
estimate over the eight configurations of the labelled sets that have one: no limit for bulk and own
(their spreads are alike), 2.7 for tail (MiniMax 2026-04 has far honest nonces, the others none).
Eight configurations cannot show that all are alike, hence not more than 10."""
PAIR_SPREAD: Final = 0.25
"""Standard deviation of a statistic (natural logarithm) between hardware pairs when a profile
holds too few pairs to tell. Above all those measured on the labelled sets (0.03 to 0.2)."""
CONFIGURATION_SPREAD: Final = 0.25
"""The same between configurations of one model (engine version, seq_len)."""
SESSION_SPREAD: Final = 0.03
"""The same between recordings of one hardware pair. Measured: three challenges of B200 and H200
with Qwen3-235B differ by 0.01, recordings of one pair of kinds on Kimi-K2.6 by 0.03."""
WEIGHTS: Final = {"bulk": 3.0, "tail": 1.0, "own": 1.0, "mixture": 5.0}
"""How the error rate is divided between the statistics that could be measured (weighted
Bonferroni, Genovese et al. 2006): most to the one that a whole cheat moves, and, where the pair's
own distances are known, to the one that a partial cheat moves."""
MIXTURE_SHARE: Final = 0.25
MIXTURE_FACTORS: Final = (2.0, 4.0)
"""The alternative that the mixture statistic is sharpest for: a quarter of the nonces from another
model, whose distances are those of the nearer honest half times a factor (the nearer half of a
cheating copy of the labelled sets is 2.1 to 4 times as far as the honest one). It shapes the score
only; the p-value holds for whatever it is."""
MIXTURE_BINS: Final = 20
"""Equally likely bins of a pair's distances. 100 nonces still put five in each."""
OWN_COVERAGE: Final = 1.0
"""Times a dimension must be shown on average, over all claimed nonces, before the shared mean is
known well enough to be removed."""
P_FLOOR: Final = 1e-12
"""No p-value is smaller: no tail is known that far."""
