"""Layer reflections, and how a final hidden state becomes a vector (numpy reference)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from assay.poc.constants import K_DIM, STATE_NORM_EPSILON
from assay.poc.normals import FloatArray, normals
from assay.poc.pick import pick_indices
from assay.poc.rotation import Floating, haar_rotate
from assay.poc.seeds import layer_text, seed


def layer_vector(block_hash: str, layer: int, hidden_size: int) -> FloatArray:
    """Unit vector float32 ``[hidden_size]`` that the output of decoder ``layer`` is reflected on.

    It depends on the block only, not on the node or the nonce.
    """
    v = normals(seed(layer_text(block_hash, layer)), hidden_size)
    unit: FloatArray = v / np.linalg.norm(v)
    return unit


def reflect(x: Floating, v: Floating) -> Floating:
    """x - 2 (x.v) v over the last dimension, in x's dtype."""
    v = v.astype(x.dtype, copy=False)
    reflected: Floating = x - 2 * (x @ v)[..., None] * v
    return reflected


def vector_from_state(
    state: npt.ArrayLike, block_hash: str, public_key: str, nonce: int, k: int = K_DIM
) -> FloatArray:
    """The vector float32 ``[k]`` of a nonce from its last hidden state ``[hidden_size]``.

    ``state`` is the output of the final norm at the last position. Not finite in, not finite out
    or a misleading vector: the caller checks ``state`` first (F27, F28).
    """
    h = np.asarray(state, dtype=np.float32)
    h = h / (np.linalg.norm(h) + np.float32(STATE_NORM_EPSILON))
    picked = h[pick_indices(block_hash, public_key, nonce, h.size, k)]
    return haar_rotate(block_hash, public_key, nonce, picked)
