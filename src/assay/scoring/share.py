"""How large a part of an executor's claims is dishonest."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from scipy import special  # type: ignore[import-untyped]

from assay.scoring.combine import holm
from assay.scoring.constants import SHARE_LEVEL
from assay.scoring.profile import Profile
from assay.scoring.samples import ClaimRecord

LEVEL = 0.95
ERROR = (1 - LEVEL) / 8
"""Chance of each of the four errors that make the lower end too high."""


class Share(BaseModel):
    """``share`` of the claims is estimated to be dishonest, within [low, high] at confidence
    ``level``; ``flagged`` of ``claims`` have a p-value of at most ``cut``. Claims that cheat below
    what the profile can see are not counted: the share is one of visible cheating."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    share: float
    low: float
    high: float
    level: float = LEVEL
    cut: float
    flagged: int
    claims: int


def claim_p(profile: Profile, record: ClaimRecord) -> float | None:
    """One p-value of a claim over all its statistics and tails (Bonferroni); ``None`` without."""
    found = []
    for name, null in profile.nulls.items():
        kept = record.series.get(name)
        if kept is None or not null.large_enough:
            continue
        found.append(null.p_summary(kept.values[-1], kept.length))
        if null.why_silent_below(kept.length) is None:
            found.append(null.p_low_summary(kept.values[-1], kept.length))
    return min(1.0, len(found) * min(found)) if found else None


def estimate_share(p_values: Sequence[float], honest_claims: int) -> Share | None:
    """The share of claims beyond what chance flags (Storey 2002), ``None`` without p-values.

    ``p_values`` [claims] come from profiles of at least ``honest_claims`` honest claims. With
    ``flagged`` of n claims at p <= t and honest claims there with probability at most t, the
    share is at least ``(flagged/n - t) / (1 - t)``: the estimate. ``low`` takes the lower end of
    the binomial interval (Clopper and Pearson 1934) for flagged/n and, for t, the upper end of
    what the profile's own size leaves open (a beta law: honest claims of a profile of N exceed its
    rank t with a probability that is known to about sqrt(t/N)). Claims that fail by themselves,
    by Holm's procedure over all, give a second lower end of the same kind with no honest claim among
    them; the larger counts. ``high`` takes the upper end and no honest claim among the flagged. The
    level is shared out: 2.5 % for ``high``, four errors of 0.625 % for ``low``.
    """
    if not p_values:
        return None
    n = len(p_values)
    cut = SHARE_LEVEL
    flagged = sum(p <= cut for p in p_values)
    below = max(1, int(cut * (honest_claims + 1)))
    honest = float(special.betaincinv(below, honest_claims + 1 - below, 1 - ERROR))
    certain = sum(p <= ERROR for p in holm(p_values))
    most = float(special.betaincinv(flagged + 1, n - flagged, 0.975)) if flagged < n else 1.0
    return Share(
        share=max(0.0, (flagged / n - cut) / (1 - cut), certain / n),
        low=max(0.0, (_least(flagged, n) - honest) / (1 - honest), _least(certain, n)),
        high=most,
        cut=cut,
        flagged=flagged,
        claims=n,
    )


def _least(count: int, total: int) -> float:
    return float(special.betaincinv(count, total - count + 1, ERROR)) if count else 0.0
