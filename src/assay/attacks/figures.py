"""The arithmetic of a detection table: AUC, rates with intervals, and how many tokens would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special  # type: ignore[import-untyped, unused-ignore]

from assay.errors import SettingsError

INTERVAL: float = 0.95
"""Coverage of every interval in the tables."""
POOL_DRAWS = 2_000
"""Random groups of claims when several are judged together; the standard error of an AUC from
them is below 0.011."""


def auc(honest: Sequence[float], cheating: Sequence[float]) -> float | None:
    """Chance that a cheating claim's statistic is above an honest one's; a tie counts half.

    The area under the ROC curve (Mann-Whitney). ``None`` when a side has no finite value: nothing
    compared is no figure.
    """
    ours, theirs = _finite(honest), _finite(cheating)
    if not len(ours) or not len(theirs):
        return None
    ordered = np.sort(ours)
    below = np.searchsorted(ordered, theirs, side="left")
    equal = np.searchsorted(ordered, theirs, side="right") - below
    return float((below + equal / 2).mean() / len(ours))


@dataclass(frozen=True)
class Rate:
    """``count`` of ``of``, with a Clopper-Pearson interval (exact, never too narrow)."""

    count: int
    of: int

    @property
    def share(self) -> float | None:
        return self.count / self.of if self.of else None

    @property
    def interval(self) -> tuple[float, float]:
        """Bounds at ``INTERVAL`` coverage; (0, 1) when nothing was counted."""
        return clopper_pearson(self.count, self.of)

    def text(self) -> str:
        """``31/32 (0.84-1.00)``; ``-`` when nothing was counted."""
        if not self.of:
            return "-"
        low, high = self.interval
        return f"{self.count}/{self.of} ({low:.2f}-{high:.2f})"


def clopper_pearson(count: int, of: int, coverage: float = INTERVAL) -> tuple[float, float]:
    """Exact binomial interval of a rate (Clopper and Pearson 1934).

    Raises SettingsError for counts that are none or a coverage outside (0, 1).
    """
    if not 0 <= count <= of:
        raise SettingsError(f"{count} of {of} is no rate")
    if not 0 < coverage < 1:
        raise SettingsError(f"coverage {coverage}: expected a number in (0, 1)")
    if not of:
        return 0.0, 1.0
    tail = (1 - coverage) / 2
    low = 0.0 if count == 0 else float(special.betaincinv(count, of - count + 1, tail))
    high = 1.0 if count == of else float(special.betaincinv(count + 1, of - count, 1 - tail))
    return low, high


def claims_needed(
    honest: Sequence[float],
    cheating: Sequence[float],
    target: float,
    *,
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32),
    seed: int = 0,
) -> tuple[int, float] | None:
    """How many claims of one executor, judged together, reach an AUC of ``target``.

    Groups of that many claims are drawn with replacement from each side and their statistics
    averaged. Returns the first of ``sizes`` that reaches it with its AUC, ``None`` if none does
    or a side is empty. Claims are independent; this is no extrapolation of a formula, but groups
    larger than the sample repeat its claims.
    """
    ours, theirs = _finite(honest), _finite(cheating)
    if not len(ours) or not len(theirs):
        return None
    draws = np.random.default_rng(seed)
    for size in sizes:
        if size == 1:
            reached = auc(honest, cheating)
        else:
            reached = auc(
                draws.choice(ours, (POOL_DRAWS, size)).mean(axis=1).tolist(),
                draws.choice(theirs, (POOL_DRAWS, size)).mean(axis=1).tolist(),
            )
        if reached is not None and reached >= target:
            return size, reached
    return None


def _finite(values: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    array = np.asarray(values, dtype=np.float64)
    return np.asarray(array[np.isfinite(array)], dtype=np.float64)
