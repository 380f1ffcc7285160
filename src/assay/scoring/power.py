"""How much evidence an attack needs before a profile catches it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict
from scipy import special  # type: ignore[import-untyped]

from assay.errors import ProfileError, SettingsError
from assay.scoring.combine import check_fpr
from assay.scoring.constants import DEFAULT_FPR, LADDER, POWER_WANTED
from assay.scoring.evalues import Game
from assay.scoring.measure import MAXIMA
from assay.scoring.nulls import Null, Sample
from assay.scoring.profile import Profile
from assay.scoring.samples import ClaimRecord, table
from assay.scoring.share import claim_p
from assay.scoring.tail import critical_value

ROUNDS = 40
"""Simulated executors: the share of them convicted is known to about 0.05."""
MOST_CLAIMS = 200
"""Claims after which a simulated executor is given up."""
MOST_TOKENS = 100_000
"""Tokens beyond which an estimate is not worth giving."""
SEED = 20_260


class Detection(BaseModel):
    """Of ``claims`` of the attack, cut to ``tokens`` positions, ``caught`` fail; ``low`` and
    ``high`` are the 95 % interval (Clopper and Pearson) of the rate."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: int
    claims: int
    caught: int
    rate: float
    low: float
    high: float
    by_statistic: dict[str, int]


class Power(BaseModel):
    """How much of ``attack`` is enough for ``profile`` at the false-positive rate ``fpr``.

    ``tokens``: the shortest measured length at which a share ``wanted`` of the attack's claims, each
    by itself, is caught; ``None`` where no measured length does. ``tokens_estimated`` is then what
    the spread within and between claims would need (normal approximation), ``None`` where claims
    differ too much for any length. ``executor_claims``: claims of the measured length after which
    ``wanted`` of simulated executors that cheat in a share ``mixture`` of their claims are
    convicted by the accumulated evidence; ``None`` beyond ``most_claims``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: str
    attack: str
    fpr: float
    wanted: float
    mixture: float
    tests: int
    tokens: int | None
    tokens_estimated: int | None
    executor_claims: int | None
    most_claims: int = MOST_CLAIMS
    claim_tokens: int
    detection: tuple[Detection, ...]
    reason: str


def power(
    profile: Profile,
    attack: str,
    fpr: float = DEFAULT_FPR,
    *,
    wanted: float = POWER_WANTED,
    mixture: float = 1.0,
) -> Power:
    """The evidence that ``attack``, measured in ``profile``, needs.

    A claim counts as caught when ``verdict.judge`` would fail it: Bonferroni over the statistics of
    a channel, and over the channels and tails. Raises ProfileError for an attack that the profile
    does not hold or that shares no statistic with its honest claims, SettingsError for rates
    outside (0, 1].
    """
    check_fpr(fpr)
    for name, value in (("power", wanted), ("mixture", mixture)):
        if not 0 < value <= 1:
            raise SettingsError(f"{name} {value}: expected a share above 0 and at most 1")
    records = profile.measured(attack)
    nulls = [
        null
        for name, null in profile.nulls.items()
        if null.large_enough and any(name in record.series for record in records)
    ]
    if not nulls:
        raise ProfileError(
            f"attack {attack} and the honest claims of profile {profile.name} have no statistic in"
            " common that enough honest claims measured"
        )
    tests = _tests(nulls)
    longest = max(r.series[n.statistic].length for n in nulls for r in records if _has(r, n))
    detection = tuple(
        found
        for step, length in enumerate(LADDER)
        if length <= longest and (found := _detect(nulls, records, step, fpr)) is not None
    )
    enough = [found.tokens for found in detection if found.rate >= wanted]
    estimated = None if enough else _estimate(nulls, records, fpr, wanted)
    claims = _claims_needed(profile, records, fpr, wanted, mixture)
    return Power(
        profile=profile.id,
        attack=attack,
        fpr=fpr,
        wanted=wanted,
        mixture=mixture,
        tests=sum(tests.values()),
        tokens=min(enough, default=None),
        tokens_estimated=estimated,
        executor_claims=claims,
        claim_tokens=int(np.median([record.positions for record in records])),
        detection=detection,
        reason=_reason(min(enough, default=None), estimated, detection),
    )


def _has(record: ClaimRecord, null: Null) -> bool:
    return null.statistic in record.series


def _tests(nulls: Sequence[Null]) -> dict[tuple[str, str], int]:
    """Statistics of each channel and tail that has any."""
    found = Counter((_channel(null), "upper") for null in nulls)
    found.update((_channel(null), "lower") for null in nulls if _speaks_below(null))
    return dict(found)


def _channel(null: Null) -> str:
    return null.statistic.partition("_")[0]


def _speaks_below(null: Null) -> bool:
    return null.why_silent_below(LADDER[0]) is None


def _detect(
    nulls: Sequence[Null], records: Sequence[ClaimRecord], step: int, fpr: float
) -> Detection | None:
    """Claims caught when cut to LADDER[step] positions, among those so long."""
    length = LADDER[step]
    claims = caught = 0
    tests = _tests(nulls)
    by_statistic = dict.fromkeys((null.statistic for null in nulls), 0)
    for record in records:
        held = [n for n in nulls if _has(record, n) and record.series[n.statistic].length >= length]
        if not held:
            continue
        claims += 1
        any_caught = False
        for null in held:
            value = record.series[null.statistic].values[step]
            hit = null.p_summary(value, length) * _price(tests, null, "upper") <= fpr
            if _speaks_below(null) and null.why_silent_below(length) is None:
                hit |= null.p_low_summary(value, length) * _price(tests, null, "lower") <= fpr
            by_statistic[null.statistic] += hit
            any_caught |= hit
        caught += any_caught
    if not claims:
        return None
    low, high = interval(caught, claims)
    return Detection(
        tokens=length,
        claims=claims,
        caught=caught,
        rate=caught / claims,
        low=low,
        high=high,
        by_statistic=by_statistic,
    )


def _price(tests: dict[tuple[str, str], int], null: Null, tail: str) -> int:
    """By how much a p-value is multiplied for what else was looked at."""
    return len(tests) * tests[_channel(null), tail]


def interval(count: int, total: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a rate of which ``count`` of ``total`` were seen (Clopper and Pearson 1934)."""
    side = (1 - level) / 2
    low = float(special.betaincinv(count, total - count + 1, side)) if count else 0.0
    high = float(special.betaincinv(count + 1, total - count, 1 - side)) if count < total else 1.0
    return low, high


def _estimate(
    nulls: Sequence[Null], records: Sequence[ClaimRecord], fpr: float, wanted: float
) -> int | None:
    """Fewest tokens at which some statistic's distance between attack and honest claims exceeds
    what both spread: ``d >= c s0(n) + z s1(n)``, s(n)^2 = between^2 + within^2 / n."""
    z = float(special.ndtri(min(wanted, 0.999)))
    needed, tests = [], _tests(nulls)
    for null in nulls:
        if null.statistic in MAXIMA:
            continue
        p = fpr / _price(tests, null, "upper")
        cheat = Sample(*table(records, null.statistic))
        found = [_crossing(null, honest, cheat, (p, z)) for honest in null.samples]
        if all(n is not None for n in found):
            needed.append(max(n for n in found if n is not None))
    return min(needed, default=None)


def _crossing(null: Null, honest: Sample, cheat: Sample, rates: tuple[float, float]) -> int | None:
    """Tokens at which one statistic separates, for the p-value and the z of ``rates``."""
    p, z = rates
    step = max(s for s, n in enumerate(LADDER) if n <= np.median(honest.lengths))
    at = honest.scores[:, step]
    spread = float(at.std(ddof=1))
    critical = critical_value(at, p, null.least(honest, LADDER[step]))
    distance = float(cheat.scores[:, -1].mean() - honest.scores[:, -1].mean())
    if not math.isfinite(critical) or spread == 0 or len(cheat) < 2 or distance <= 0:
        return None
    factor = (critical - float(at.mean())) / spread
    ours, theirs = _components(honest), _components(cheat)
    length = float(LADDER[0])
    while length <= MOST_TOKENS:
        if distance >= factor * _spread(ours, length) + z * _spread(theirs, length):
            return math.ceil(length)
        length *= 1.1
    return None


def _spread(components: tuple[float, float], length: float) -> float:
    between, within = components
    return math.sqrt(between + within / length)


def _components(sample: Sample) -> tuple[float, float]:
    """Variance between claims and within them (per position), from the spread at two lengths."""
    step = max(s for s, n in enumerate(LADDER) if n <= np.median(sample.lengths))
    first, last = (float(sample.scores[:, s].var(ddof=1)) for s in (0, step))
    if step == 0:
        return last, 0.0
    within = max(0.0, (first - last) / (1 / LADDER[0] - 1 / LADDER[step]))
    return max(0.0, last - within / LADDER[step]), within


def _claims_needed(
    profile: Profile, records: Sequence[ClaimRecord], fpr: float, wanted: float, mixture: float
) -> int | None:
    """Claims after which ``wanted`` of simulated executors are convicted. Cheating claims are drawn
    from ``records``, honest ones from the profile's own first group."""
    rng = np.random.default_rng(SEED)
    cheating, honest = (
        [(record, claim_p(profile, record)) for record in source]
        for source in (records, profile.groups[0].records)
    )
    times = []
    for round_ in range(ROUNDS):
        game = Game([profile], fpr)
        while game.convicted_at is None and game.claims < MOST_CLAIMS:
            source = cheating if rng.random() < mixture else honest
            record, p_value = source[int(rng.integers(len(source)))]
            if p_value is not None:
                game.play(profile, record, p_value)
        if game.convicted_at is not None:
            times.append(game.convicted_at)
        missed = round_ + 1 - len(times)
        if missed > ROUNDS * (1 - wanted):
            return None
    return sorted(times)[math.ceil(wanted * ROUNDS) - 1]


def _reason(tokens: int | None, estimated: int | None, detection: Sequence[Detection]) -> str:
    if tokens is not None:
        return f"a single claim of {tokens} tokens is enough"
    best = max(detection, key=lambda found: found.rate, default=None)
    seen = "" if best is None else f" (at best {best.rate:.0%}, at {best.tokens} tokens)"
    if estimated is not None:
        return f"no measured length is enough{seen}; estimated {estimated} tokens a claim"
    return f"no length of a single claim is enough{seen}; only many claims together can tell"
