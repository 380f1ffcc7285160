"""The statistic with the shared mean removed: how much of a nonce's own part is answered.

The common part of a block's states is known without a model to anyone who has seen answers. Here
it is taken from *all* vectors of the claim, so that few recomputed nonces are enough, and removed:

    own = ln( sum |claimed - computed| / sum (|computed - predicted| / sqrt(1 + 1/c)) )

``predicted`` is what the claim's other nonces say of a nonce, c how often a dimension is shown on
average: a mean of c numbers has 1/c of their own variance, and the division takes that out, so
that own does not depend on how many nonces the claim has. 0: no nearer than a forger who knows
the shared mean; more than 0: farther; strongly negative: a model answered. Distances are not
squared (unlike those of ``unexplained_share``): a few far honest nonces would rule the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from assay.poc.constants import OWN_COVERAGE
from assay.poc.statistics import Rows


@dataclass(frozen=True)
class OwnShare:
    """``value`` is a logarithm; ``variance_n`` is n times its sampling variance (delta method)."""

    value: float
    variance_n: float


def coverage(nonces: int, k: int, hidden_size: int) -> float:
    """How often a dimension is shown, on average, by the other nonces."""
    return max(0, nonces - 1) * k / hidden_size


def log_own_share(
    claimed: Mapping[int, Rows],
    computed: Mapping[int, Rows],
    nonces: Sequence[int],
    predicted: Mapping[int, Rows],
    hidden_size: int,
) -> OwnShare | None:
    """``own`` over ``nonces``. ``predicted`` is ``predicted_vectors`` of the whole claim.

    None when the claim shows too few dimensions (OWN_COVERAGE), or nothing is left to explain.
    """
    common = [nonce for nonce in nonces if nonce in predicted]
    if len(common) < 2:
        return None
    ours = np.array([computed[nonce] for nonce in common], dtype=np.float64)
    theirs = np.array([claimed[nonce] for nonce in common], dtype=np.float64)
    guess = np.array([predicted[nonce] for nonce in common])
    shown = coverage(len(predicted), ours.shape[1], hidden_size)
    if shown < OWN_COVERAGE:
        return None
    above, below = own_terms(theirs, ours, guess, shown)
    if not above.sum() > 0 or not below.sum() > 0:
        return None
    ratio = above.sum() / below.sum()
    error = np.var(above - ratio * below, ddof=1) / (below.mean() * ratio) ** 2
    return OwnShare(float(np.log(ratio)), float(error))


def own_terms(theirs: Rows, ours: Rows, guess: Rows, shown: float) -> tuple[Rows, Rows]:
    """Numerator and denominator of the ratio, a row each: ``[n]`` and ``[n]``."""
    above = np.linalg.norm(theirs - ours, axis=1)
    below = np.linalg.norm(ours - guess, axis=1) / np.sqrt(1 + 1 / shown)
    return above, below
