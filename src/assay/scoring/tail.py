"""p-values from a sample of honest claims: by rank, and beyond the largest by an extreme-value tail.

By rank (conformal prediction; Vovk, Gammerman and Shafer 2005): with n honest scores, the chance
that another one ranks so high is ``(1 + #{honest >= value}) / (n + 1)``. That is exact whatever the
law of the scores, and cannot go below 1/(n + 1).

Beyond the largest honest score (peaks over threshold; Pickands 1975): over the threshold u that k of
the n scores exceed, the excess follows a generalised Pareto law, here of scale m = mean excess and
shape xi = max(TAIL_SHAPE, 1/k). If excesses are exponential, ``(1 + y/(k m))^-k`` is the exact
chance that one more of them is above y when m is known from k of them only: the same law with shape
1/k. A larger fixed shape insures against tails heavier than exponential. The shape is not fitted:
fits from few excesses claim a bounded tail about half the time and then convict honest claims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from assay.scoring.arrays import Floats
from assay.scoring.constants import (
    TAIL_MAX_EXCESSES,
    TAIL_MIN_CLAIMS,
    TAIL_MIN_EXCESSES,
    TAIL_SHAPE,
    TAIL_SHARE,
)

RANK = "conformal"
RANK_AND_TAIL = "conformal, generalised Pareto tail beyond the largest"


def rank_p(scores: Floats, value: float) -> float:
    """Upper p-value of ``value`` by its rank among ``scores`` [claims]; ties count against it
    being extreme. Never 0."""
    return (1 + int((scores >= value).sum())) / (len(scores) + 1)


@dataclass(frozen=True)
class Least:
    """What is known of a statistic's scale without any claim.

    ``grain`` > 0: scores are counts divided by a length, one count being ``grain``; the scale is at
    least one count. ``scale``: what rounding may do; it counts where fewer than
    ``TAIL_MIN_EXCESSES`` honest claims stand out from the rest, so that they show no scale.
    """

    grain: float = 0.0
    scale: float = 0.0


NO_LEAST = Least()


@dataclass(frozen=True)
class Tail:
    """Generalised Pareto tail above ``threshold``, which a new honest score exceeds with
    probability at most ``chance``."""

    threshold: float
    chance: float
    scale: float
    shape: float

    def p(self, value: float) -> float:
        """Chance of a score of at least ``value`` (>= threshold); never 0."""
        excess = max(0.0, value - self.threshold) / self.scale
        # In logarithms, so that a far-off value ends at the smallest positive number.
        log_p = math.log(self.chance) - math.log1p(self.shape * excess) / self.shape
        return math.exp(max(log_p, -700.0))


def fit_tail(scores: Floats, least: Least = NO_LEAST) -> Tail | None:
    """The tail of ``scores`` [claims], or ``None`` where nothing tells its scale."""
    n = len(scores)
    if n < TAIL_MIN_CLAIMS:
        return None
    ordered = np.sort(scores)
    wanted = min(max(TAIL_MIN_EXCESSES, int(n * TAIL_SHARE)), TAIL_MAX_EXCESSES)
    threshold = float(ordered[n - wanted - 1])
    excesses = ordered[ordered > threshold] - threshold
    k = len(excesses)
    # The next possible score is one count above: the chance of reaching it is known.
    threshold += least.grain
    scale = max(least.grain, float(excesses.mean()) - least.grain) if k else least.grain
    if k < TAIL_MIN_EXCESSES:
        scale = max(scale, least.scale)
    if scale <= 0:
        return None
    return Tail(threshold, (k + 1) / (n + 1), scale, max(TAIL_SHAPE, 1 / max(k, 1)))


def upper_p(scores: Floats, value: float, least: Least = NO_LEAST) -> float:
    """Upper p-value of ``value``: by rank up to the largest of ``scores`` [claims], by the tail
    beyond. Never 0, and never above the p-value by rank."""
    by_rank = rank_p(scores, value)
    if len(scores) == 0 or value <= scores.max():
        return by_rank
    tail = fit_tail(scores, least)
    return by_rank if tail is None else min(by_rank, tail.p(value))


def critical_value(scores: Floats, p: float, least: Least = NO_LEAST) -> float:
    """The value from which ``upper_p`` is at most ``p``; infinite where the sample cannot go so
    low."""
    n = len(scores)
    allowed = math.floor(p * (n + 1) + 1e-9) - 1  # honest scores that may reach the value
    if allowed >= n:
        return -math.inf
    if allowed >= 0:
        return float(np.nextafter(np.sort(scores)[n - 1 - allowed], np.inf))
    tail = fit_tail(scores, least)
    if tail is None:
        return math.inf
    excess = (math.pow(tail.chance / p, tail.shape) - 1) / tail.shape
    return max(float(scores.max()), tail.threshold + tail.scale * max(0.0, excess))


def lower_p(scores: Floats, value: float) -> float:
    """Lower p-value by rank alone: nothing is concluded below the smallest honest score but that
    none of them was there."""
    return (1 + int((scores <= value).sum())) / (len(scores) + 1)
