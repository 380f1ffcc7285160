"""Vectors without the model: what a forger makes of what others published for the same block.

A vector is twelve dimensions of the final state, rotated. Undo the rotation of published vectors
and average every dimension over the nonces that show it: the mean is the part all states of a
block share. It is then sent for nonces nobody computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.errors import SettingsError
from assay.poc.artifact_file import ArtifactSet, Challenge
from assay.poc.constants import STATE_NORM_EPSILON
from assay.poc.pick import pick_rows
from assay.poc.rotation import rotate_rows, unrotate_rows
from assay.poc.statistics import nonce_frame, usable_rows

Rows = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Knowledge:
    """What published vectors tell about the dimensions of a block's states.

    ``mean`` float64 [hidden_size], 0 for a dimension nobody showed; ``share`` [hidden_size] the
    part of the dimension's second moment that its mean explains, in [0, 1].
    """

    challenge: Challenge
    mean: Rows
    share: Rows


def learn(published: ArtifactSet, hidden_size: int) -> Knowledge:
    """What ``published`` tells. Raises SettingsError without two usable vectors."""
    nonces, rows = usable_rows(published)
    if len(nonces) < 2:
        raise SettingsError(f"{published.name}: {len(nonces)} usable vectors; two are needed")
    frame = nonce_frame(published.challenge, nonces, hidden_size)
    shown = unrotate_rows(rows, frame.steps)
    flat = frame.picked.ravel()
    count = np.maximum(np.bincount(flat, minlength=hidden_size), 1)
    mean = np.bincount(flat, weights=shown.ravel(), minlength=hidden_size) / count
    square = np.bincount(flat, weights=shown.ravel() ** 2, minlength=hidden_size) / count
    share = np.divide(mean**2, square, out=np.zeros(hidden_size), where=square > 0)
    # A mean of few values explains them by luck.
    share = np.where(count > 2, share, 0.0)
    return Knowledge(published.challenge, mean, share)


def forged(knowledge: Knowledge, nonces: Sequence[int]) -> ArtifactSet:
    """The mean sent for ``nonces``: unit vectors, no model run."""
    hidden_size = len(knowledge.mean)
    frame = nonce_frame(knowledge.challenge, nonces, hidden_size)
    guess = knowledge.mean[frame.picked]
    guess = guess / (np.linalg.norm(guess, axis=1, keepdims=True) + STATE_NORM_EPSILON)
    vectors = rotate_rows(guess, frame.steps)
    return ArtifactSet(
        knowledge.challenge,
        dict(zip(nonces, vectors, strict=True)),
        name="forged",
        hidden_size=hidden_size,
    )


def search(knowledge: Knowledge, count: int, candidates: Sequence[int]) -> list[int]:
    """The ``count`` nonces of ``candidates`` whose forgery is likely best, in ascending order.

    Best: the picked dimensions' second moments are explained by their means. Hashing a nonce
    costs next to nothing beside a forward, so a forger can look at very many and send the
    sparse few that suit it.
    """
    if len(candidates) < count:
        raise SettingsError(f"{count} nonces asked of {len(candidates)} candidates")
    challenge, hidden_size = knowledge.challenge, len(knowledge.mean)
    picked = pick_rows(
        challenge.block_hash, challenge.public_key, candidates, hidden_size, challenge.k
    )
    promise = knowledge.share[picked].mean(axis=1)
    best = np.argsort(-promise, kind="stable")[:count]
    return sorted(int(candidates[i]) for i in best)


def porosity(nonces: Sequence[int], step: int = 1) -> float | None:
    """Largest nonce over what an honest miner's would be: ``max / ((count - 1) * step)``.

    A miner takes its nonces in order, ``step`` apart, so the figure is near 1, a little more where
    some failed; a search leaves gaps. ``None`` for fewer than two nonces.
    """
    if len(nonces) < 2:
        return None
    return max(nonces) / ((len(nonces) - 1) * step)
