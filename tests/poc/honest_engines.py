"""Made-up engines of one model: what a profile is calibrated on, and claims to judge."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from tests.poc.challenges import HIDDEN, noisy, states, vectors

from assay.poc.artifact_file import ArtifactSet, Challenge
from assay.poc.calibrate import calibrate
from assay.poc.profile import Profile, VectorKey, key_of

N = 400
CLEAN = states(N, shared=0.3)
GPUS = ("A100", "H100", "H200", "B200")
ENGINE = {"engine_version": "0.32.0", "dtype": "bfloat16", "kv_cache_dtype": "auto"}
NOISE = 0.05
CHEAT = 0.2
NEXT = Challenge("next block", "key", seq_len=16, model="made-up")


@lru_cache(maxsize=128)
def engine(
    gpu: str, *, scale: float = NOISE, seed: int | None = None, challenge: Challenge | None = None
) -> ArtifactSet:
    """An honest engine on ``gpu``; a cheating one with a larger ``scale``."""
    seed = GPUS.index(gpu) + 10 if seed is None else seed
    kwargs = {} if challenge is None else {"challenge": challenge}
    clean = CLEAN if challenge is None else states(N, shared=0.3, seed=99)
    return vectors(
        noisy(clean, scale, seed), f"{gpu}.json", profile={**ENGINE, "gpu": gpu}, **kwargs
    )


@lru_cache(maxsize=16)
def profile_of(*gpus: str, hidden_size: int | None = HIDDEN) -> Profile:
    sets = [engine(gpu) for gpu in gpus]
    return calibrate(sets, [key_of(one) for one in sets], list(gpus), hidden_size)


def only(one: ArtifactSet, n: int, first: int = 0) -> ArtifactSet:
    kept = {nonce: one.vectors[nonce] for nonce in range(first, first + n)}
    return replace(one, vectors=kept)


def mixed(honest: ArtifactSet, other: ArtifactSet, share: float) -> ArtifactSet:
    """``share`` of the nonces from ``other``."""
    chosen = np.random.default_rng(5).random(len(honest.vectors)) < share
    rows = {
        nonce: (other if cheat else honest).vectors[nonce]
        for nonce, cheat in zip(honest.vectors, chosen, strict=True)
    }
    return replace(honest, vectors=rows)


KEY: VectorKey = key_of(engine("A100"))
