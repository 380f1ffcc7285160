"""How large a part of an executor's claims is dishonest."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict
from scipy import stats  # type: ignore[import-untyped]

from assay.scoring.constants import SHARE_LEVEL
from assay.scoring.measure import Measurement
from assay.scoring.profile import Profile
from assay.scoring.samples import record_of

LEVEL = 0.95


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


def claim_p(profile: Profile, measurement: Measurement) -> float | None:
    """One p-value of a claim over all its statistics and tails (Bonferroni); ``None`` without."""
    record, found = record_of(measurement), []
    for name, null in profile.nulls.items():
        kept = record.series.get(name)
        if kept is None or not null.large_enough:
            continue
        found.append(null.p_summary(kept.values[-1], kept.length))
        if null.why_silent_below(kept.length) is None:
            found.append(null.p_low_summary(kept.values[-1], kept.length))
    return min(1.0, len(found) * min(found)) if found else None


def estimate_share(measured: Sequence[tuple[Profile | None, Measurement]]) -> Share | None:
    """The share of claims beyond what chance flags (Storey 2002), ``None`` without p-values.

    With ``flagged`` of n claims at p <= t and honest claims there with probability at most t, the
    share is at least ``(flagged/n - t) / (1 - t)``: the estimate. ``low`` takes the lower end of
    the binomial interval (Clopper and Pearson 1934) for flagged/n and, for t, the upper end of
    what the profile's own size leaves open (a beta law: honest claims of a profile of N exceed its
    rank t with a probability that is known to about sqrt(t/N)). ``high`` takes the upper end and no
    honest claim among the flagged.
    """
    found = [
        (profile, p)
        for profile, measurement in measured
        if profile is not None and (p := claim_p(profile, measurement)) is not None
    ]
    if not found:
        return None
    n = len(found)
    smallest = min(profile.claims for profile, _ in found)
    cut = SHARE_LEVEL
    flagged = sum(p <= cut for _, p in found)
    tail = (1 - LEVEL) / 4
    below = max(1, int(cut * (smallest + 1)))
    honest = float(stats.beta.ppf(1 - tail, below, smallest + 1 - below))
    least = float(stats.beta.ppf(tail, flagged, n - flagged + 1)) if flagged else 0.0
    most = float(stats.beta.ppf(1 - 2 * tail, flagged + 1, n - flagged)) if flagged < n else 1.0
    return Share(
        share=max(0.0, (flagged / n - cut) / (1 - cut)),
        low=max(0.0, (least - honest) / (1 - honest)),
        high=most,
        cut=cut,
        flagged=flagged,
        claims=n,
    )
