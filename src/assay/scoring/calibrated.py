"""A claim's statistics held against the honest claims of a profile: p-values of its channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from assay.claims.claim import Claim, Replay
from assay.scoring.combine import bonferroni
from assay.scoring.measure import STATISTICS, Measurement
from assay.scoring.nulls import Null
from assay.scoring.profile import Match, Profile, find_profile

TestedChannel = Literal["value", "choice"]
CHANNELS: Final[tuple[TestedChannel, ...]] = ("value", "choice")


@dataclass(frozen=True)
class Tested:
    """p-values of one channel: ``p_value`` (upper tail) and ``p_low`` (lower) over its statistics,
    each Bonferroni's; ``parts`` are the p-values of the single statistics."""

    p_value: float | None
    p_low: float | None
    parts: dict[str, float] = field(default_factory=dict)


def fitting_profile(
    profile: Profile | Sequence[Profile] | None,
    claim: Claim,
    replay: Replay,
    *,
    allow_unknown: bool,
) -> Match:
    """The part of ``profile`` (or of the best of several) that fits the pair, or why none does. A
    profile that was narrowed before is taken as it is."""
    if isinstance(profile, Profile):
        if profile.parent is not None:
            return Match(profile, f"profile {profile.name} fits")
        profile = (profile,)
    return find_profile(tuple(profile or ()), claim, replay, allow_unknown=allow_unknown)


def channel_tests(measurement: Measurement, profile: Profile) -> dict[TestedChannel, Tested]:
    """The channels that the profile can judge. A choice that rests on an assumption is left out:
    where the assumption is wrong, large values say nothing."""
    nulls = profile.nulls
    found: dict[TestedChannel, Tested] = {}
    for channel in CHANNELS:
        if channel == "choice" and measurement.assumed:
            continue
        names = [name for name in STATISTICS if name.startswith(f"{channel}_")]
        upper = _p_values(names, nulls, measurement, Null.p_upper)
        lower = _p_values(names, nulls, measurement, Null.p_lower)
        if upper or lower:
            found[channel] = Tested(
                bonferroni(list(upper.values())) if upper else None,
                bonferroni(list(lower.values())) if lower else None,
                {f"p_{name}": p for name, p in upper.items()}
                | {f"p_low_{name}": p for name, p in lower.items()},
            )
    return found


def _p_values(
    names: Sequence[str],
    nulls: Mapping[str, Null],
    measurement: Measurement,
    tail: Callable[[Null, Sequence[float]], float | None],
) -> dict[str, float]:
    found = {}
    for name in names:
        if name in nulls and name in measurement.series:
            p = tail(nulls[name], measurement.series[name])
            if p is not None:
                found[name] = p
    return found
