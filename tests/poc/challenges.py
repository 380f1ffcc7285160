"""Vectors of a made-up model whose states share a part, as real ones do."""

from __future__ import annotations

import numpy as np

from assay.poc import vector_from_state
from assay.poc.artifact_file import ArtifactSet, Challenge

CHALLENGE = Challenge("block", "key", seq_len=16, model="made-up")
HIDDEN = 64


def states(n: int, *, shared: float, seed: int = 0) -> np.ndarray:
    """States ``[n, HIDDEN]``: a common part of weight ``shared``, the rest each nonce's own."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=HIDDEN)
    own = rng.normal(size=(n, HIDDEN))
    return np.sqrt(shared) * common + np.sqrt(1 - shared) * own


def noisy(clean: np.ndarray, scale: float, seed: int = 1) -> np.ndarray:
    """The states of other hardware: ``scale`` times a standard normal added."""
    return clean + scale * np.random.default_rng(seed).normal(size=clean.shape)


def vectors(made: np.ndarray, name: str = "", **kwargs) -> ArtifactSet:
    challenge = kwargs.pop("challenge", CHALLENGE)
    rows = {
        nonce: vector_from_state(state, challenge.block_hash, challenge.public_key, nonce)
        for nonce, state in enumerate(made)
    }
    return ArtifactSet(challenge, rows, name, **kwargs)
