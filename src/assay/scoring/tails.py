"""Exact tails of the binomial law, for counts of positions."""

from __future__ import annotations

import math


def binomial_at_least(count: int, trials: int, share: float) -> float:
    """Chance of ``count`` or more hits in ``trials`` positions at the rate ``share`` in (0, 1)."""
    if count <= 0:
        return 1.0
    return min(1.0, math.fsum(_terms(range(count, trials + 1), trials, share)))


def binomial_at_most(count: int, trials: int, share: float) -> float:
    """Chance of ``count`` or fewer hits in ``trials`` positions at the rate ``share``."""
    if count >= trials:
        return 1.0
    return min(1.0, math.fsum(_terms(range(count + 1), trials, share)))


def _terms(hits: range, trials: int, share: float) -> list[float]:
    log_hit, log_miss = math.log(share), math.log1p(-share)
    start = math.lgamma(trials + 1)
    return [
        math.exp(
            start
            - math.lgamma(k + 1)
            - math.lgamma(trials - k + 1)
            + k * log_hit
            + (trials - k) * log_miss
        )
        for k in hits
    ]
