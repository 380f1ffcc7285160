"""Statistics of the distances of a claim: numbers whose null a profile can hold.

Two shapes matter. A node with other weights is far in every nonce: ``bulk``, the level of the
nearer half, sees that and is blind to the few nonces where honest hardware takes another expert.
A node that mixes answers of two models is far in some: ``tail``, the farther half relative to the
nearer one, sees that whatever the level. Both are logarithms, so that "twice as far" means the
same for a model with distances of 0.06 and one with 0.3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from assay.poc.constants import (
    DISTANCE_FLOOR,
    MIXTURE_BINS,
    MIXTURE_FACTORS,
    MIXTURE_SHARE,
)

Floats = npt.NDArray[np.float64]

BOOTSTRAPS = 400
_BOOTSTRAP_N = 50


def bulk_and_tail(distances: npt.ArrayLike) -> tuple[Floats, Floats]:
    """``bulk [...]`` and ``tail [...]`` of ``distances [..., n]``, n >= 2.

    bulk = ln(mean of the nearer half); tail = ln(mean of the farther half) - bulk. The odd nonce
    belongs to the farther half.
    """
    ordered = np.sort(np.maximum(np.asarray(distances, dtype=np.float64), DISTANCE_FLOOR), axis=-1)
    half = ordered.shape[-1] // 2
    near = np.log(ordered[..., :half].mean(axis=-1))
    return near, np.log(ordered[..., half:].mean(axis=-1)) - near


def sampling_variances(distances: Floats) -> tuple[float, float]:
    """n times the sampling variance of bulk and of tail over nonces, from ``distances [n]``.

    Bootstrap at 50 nonces (the size the targets name), with a fixed seed: a profile made twice
    from the same files is the same.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(distances), size=(BOOTSTRAPS, _BOOTSTRAP_N))
    near, far = bulk_and_tail(distances[drawn])
    return float(near.var(ddof=1) * _BOOTSTRAP_N), float(far.var(ddof=1) * _BOOTSTRAP_N)


def log_quantiles(distances: Floats) -> tuple[float, ...]:
    """MIXTURE_BINS + 1 quantiles of ln(distance), ends included."""
    logs = np.log(np.maximum(distances, DISTANCE_FLOOR))
    return tuple(float(q) for q in np.quantile(logs, np.linspace(0, 1, MIXTURE_BINS + 1)))


class MixtureScore:
    """Likelihood-ratio score of a nonce: honest distances of this pair against a contamination.

    ``quantiles`` are the ``log_quantiles`` of the pair's honest distances. A nonce in bin j scores
    ln(1 - e + e * g_j / f_j): e = MIXTURE_SHARE, f_j the honest share of the bin, g_j that of
    the nearer honest half times MIXTURE_FACTORS. The scores are bounded, so their mean over nonces is
    near normal from a few dozen on.
    """

    def __init__(self, quantiles: tuple[float, ...]) -> None:
        self._edges = np.asarray(quantiles, dtype=np.float64)
        # A thousand honest log distances, straight between the quantiles.
        levels = np.linspace(0, 1, 1001)[:-1] + 0.0005
        self._honest = np.interp(levels, np.linspace(0, 1, len(self._edges)), self._edges)
        honest = self._shares(self._honest)
        # The nearer half only: some pairs have far honest nonces, which multiplied would put the
        # alternative where no cheat is.
        near = self._honest[: len(self._honest) // 2]
        far = np.mean([self._shares(near + np.log(f)) for f in MIXTURE_FACTORS], axis=0)
        # Ties can empty a bin; half a count keeps the ratio finite.
        ratio = (far + 5e-4) / (honest + 5e-4)
        score = np.log(1 - MIXTURE_SHARE + MIXTURE_SHARE * ratio)
        self._score: Floats = np.maximum.accumulate(score)
        self.mean, self.variance = self._moments(0.0)

    def scores(self, distances: npt.ArrayLike) -> Floats:
        """Scores ``[...]`` of ``distances [...]``; farther never scores less."""
        logs = np.log(np.maximum(np.asarray(distances, dtype=np.float64), DISTANCE_FLOOR))
        found: Floats = self._score[self._bins(logs)]
        return found

    def shifted_mean(self, shift: float) -> float:
        """Mean score of honest distances times exp(``shift``)."""
        return self._moments(shift)[0]

    def cheating_share(self, distances: npt.ArrayLike) -> float:
        """Least share of nonces that do not come from the pair's honest distances.

        Half the honest nonces lie below the median; the share missing there came from elsewhere.
        """
        logs = np.log(np.maximum(np.asarray(distances, dtype=np.float64), DISTANCE_FLOOR))
        below = np.mean(logs <= self._edges[len(self._edges) // 2])
        return float(max(0.0, 1 - 2 * below))

    def _moments(self, shift: float) -> tuple[float, float]:
        scores = self._score[self._bins(self._honest + shift)]
        return float(scores.mean()), float(scores.var())

    def _bins(self, logs: Floats) -> npt.NDArray[np.intp]:
        return np.searchsorted(self._edges[1:-1], logs, side="right")

    def _shares(self, logs: Floats) -> Floats:
        counts = np.bincount(self._bins(logs), minlength=len(self._edges) - 1)
        return counts / len(logs)
