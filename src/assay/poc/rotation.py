"""The seeded rotation of a picked vector: k-1 Householder reflections, one after another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from assay.errors import SettingsError
from assay.poc.constants import ROTATION_NORM_EPSILON, STATE_NORM_EPSILON
from assay.poc.normals import FloatArray, normals_rows
from assay.poc.seeds import rotation_text, seed

Floating = npt.NDArray[np.floating]


def rotation_seeds(
    block_hash: str, public_key: str, nonces: Sequence[int], k: int
) -> npt.NDArray[np.uint32]:
    """Seeds of the reflections, uint32 ``[len(nonces), k-1]``."""
    rows = [
        [seed(rotation_text(block_hash, public_key, nonce, k, step)) for step in range(k - 1)]
        for nonce in nonces
    ]
    return np.asarray(rows, dtype=np.uint32).reshape(len(nonces), k - 1)


def rotation_vectors(block_hash: str, public_key: str, nonces: Sequence[int], k: int) -> FloatArray:
    """Unit vectors of the reflections, float32 ``[len(nonces), k-1, k]``."""
    seeds = rotation_seeds(block_hash, public_key, nonces, k)
    v = normals_rows(seeds.reshape(-1), k).reshape(len(nonces), k - 1, k)
    norms = np.linalg.norm(v, axis=-1, keepdims=True) + np.float32(ROTATION_NORM_EPSILON)
    unit: FloatArray = (v / norms).astype(np.float32, copy=False)
    return unit


def haar_rotate(block_hash: str, public_key: str, nonce: int, vector: npt.ArrayLike) -> FloatArray:
    """Rotate one picked ``vector [k]`` and scale it to norm 1; float32 ``[k]``.

    Raises SettingsError when ``vector`` is not one-dimensional.
    """
    y = np.asarray(vector, dtype=np.float32)
    if y.ndim != 1 or y.size == 0:
        raise SettingsError(f"vector: shape {y.shape} given; give one vector of shape (k,)")
    steps = rotation_vectors(block_hash, public_key, [nonce], y.size)
    rotated = rotate_rows(y[None, :], steps)[0]
    unit = rotated / (np.linalg.norm(rotated) + np.float32(STATE_NORM_EPSILON))
    as_float32: FloatArray = unit.astype(np.float32, copy=False)
    return as_float32


def rotate_rows(y: Floating, steps: Floating) -> Floating:
    """Apply ``steps [rows, k-1, k]`` in order to ``y [rows, k]``. Norms do not change."""
    for step in range(steps.shape[1]):
        v = steps[:, step, :]
        y = y - 2 * np.sum(y * v, axis=-1, keepdims=True) * v
    return y


def unrotate_rows(y: Floating, steps: Floating) -> Floating:
    """The inverse of ``rotate_rows``: a reflection undoes itself, so the steps run backwards."""
    return rotate_rows(y, steps[:, ::-1, :])
