"""Statistics beyond the mismatch count: what a vector proves that its neighbours do not.

The states of one block share a large part: they went through the same layer reflections and the
same final norm. Undo the rotation of a vector and its numbers are hidden dimensions again; the
mean of a dimension over other nonces then predicts it without any model. Two uses:

- the zero-knowledge baseline: how often that prediction passes a distance threshold. A threshold
  that lets it pass proves nothing.
- the unexplained share: squared distance of claimed to recomputed vectors, over squared distance
  of the recomputed ones to that prediction. The shared part cancels. 0 is equality; the forger
  who sends the prediction has exactly 1; honest hardware and cheats are told apart on a scale
  that does not depend on how much the model's states share.

Both need the model's ``hidden_size``. They describe; the verdict is the count's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.errors import SettingsError
from assay.poc.artifact_file import ArtifactSet, Challenge
from assay.poc.constants import STATE_NORM_EPSILON
from assay.poc.pick import pick_rows
from assay.poc.rotation import rotate_rows, rotation_vectors, unrotate_rows

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ZeroKnowledge:
    """The forger without a model, against the real vectors of ``n`` nonces."""

    n: int
    mean_distance: float
    distances: tuple[float, ...]

    def mismatches(self, dist_threshold: float) -> int:
        return sum(distance > dist_threshold for distance in self.distances)

    def pass_rate(self, dist_threshold: float) -> float:
        return 1 - self.mismatches(dist_threshold) / self.n


@dataclass(frozen=True)
class Unexplained:
    """``share`` with its standard error over ``n`` nonces (delta method on the ratio of sums)."""

    n: int
    share: float
    standard_error: float


@dataclass(frozen=True)
class NonceFrame:
    """What the challenge does to each of ``nonces``, whoever answers it: the dimensions it shows
    ``picked [n, k]`` and the reflections ``steps [n, k-1, k]`` it turns them with.
    """

    picked: npt.NDArray[np.int64]
    steps: Rows


def nonce_frame(challenge: Challenge, nonces: Sequence[int], hidden_size: int) -> NonceFrame:
    """The frame of ``nonces`` under ``challenge``; the slow part of a prediction."""
    names = (challenge.block_hash, challenge.public_key)
    return NonceFrame(
        picked=pick_rows(*names, nonces, hidden_size, challenge.k),
        steps=rotation_vectors(*names, nonces, challenge.k).astype(np.float64),
    )


def predicted_vectors(
    vectors: ArtifactSet, hidden_size: int, frame: NonceFrame | None = None
) -> dict[int, Rows]:
    """For every usable nonce, the vector ``[k]`` its neighbours predict (norm 1, or all 0).

    Each of the nonce's k dimensions is predicted by the mean of that dimension over the other
    nonces that show it; 0 where none does. Vectors of a wrong shape or with NaN are left out.
    ``frame`` is that of ``usable_rows(vectors)``, where it is known already.
    """
    nonces, rows = usable_rows(vectors)
    if len(nonces) < 2:
        raise SettingsError(
            f"{vectors.name}: {len(nonces)} usable vectors; a prediction by neighbours needs two"
        )
    frame = frame or nonce_frame(vectors.challenge, nonces, hidden_size)
    shown = unrotate_rows(rows, frame.steps)
    flat = frame.picked.ravel()
    total = np.bincount(flat, weights=shown.ravel(), minlength=hidden_size)
    count = np.bincount(flat, minlength=hidden_size)
    others = count[frame.picked] - 1
    mean = np.where(others > 0, (total[frame.picked] - shown) / np.maximum(others, 1), 0.0)
    mean /= np.linalg.norm(mean, axis=1, keepdims=True) + STATE_NORM_EPSILON
    predicted = rotate_rows(mean, frame.steps)
    return dict(zip(nonces, predicted, strict=True))


def zero_knowledge(
    vectors: ArtifactSet, hidden_size: int, predicted: Mapping[int, Rows] | None = None
) -> ZeroKnowledge:
    """How near the prediction by neighbours comes to each of ``vectors``.

    It uses the neighbours' true vectors, as a forger could who reads what others published for
    this block (the layer reflections depend on the block alone).
    """
    predicted = predicted_vectors(vectors, hidden_size) if predicted is None else predicted
    distances = tuple(
        float(np.linalg.norm(vectors.vectors[nonce] - vector))
        for nonce, vector in predicted.items()
    )
    return ZeroKnowledge(len(distances), float(np.mean(distances)), distances)


def unexplained_share(
    claimed: ArtifactSet, computed: ArtifactSet, predicted: Mapping[int, Rows]
) -> Unexplained | None:
    """Sum of |claimed - computed|^2 over sum of |computed - predicted|^2, over common nonces.

    ``predicted`` is ``predicted_vectors(computed, hidden_size)``. None when fewer than two
    nonces are usable on both sides, or when the prediction is exact.
    """
    mine = dict(zip(*usable_rows(claimed), strict=True))
    common = [nonce for nonce in predicted if nonce in mine]
    if len(common) < 2:
        return None
    ours = np.array([computed.vectors[nonce] for nonce in common], dtype=np.float64)
    theirs = np.array([mine[nonce] for nonce in common])
    guess = np.array([predicted[nonce] for nonce in common])
    above = np.sum((theirs - ours) ** 2, axis=1)
    below = np.sum((ours - guess) ** 2, axis=1)
    if not below.sum() > 0:
        return None
    share = above.sum() / below.sum()
    error = np.std(above - share * below, ddof=1) / np.sqrt(len(common)) / below.mean()
    return Unexplained(len(common), float(share), float(error))


def usable_rows(vectors: ArtifactSet) -> tuple[Sequence[int], Rows]:
    """Nonces and rows float64 ``[n, k]`` of the right shape with finite values only."""
    k = vectors.challenge.k
    usable = {
        nonce: vector
        for nonce, vector in vectors.vectors.items()
        if vector.shape == (k,) and np.isfinite(vector).all()
    }
    return list(usable), np.array(list(usable.values()), dtype=np.float64).reshape(len(usable), k)
