"""Evidence accumulated over the claims of one executor, valid at any time one stops.

Each claim is ranked among the honest claims of the profile *and the executor's claims before it*.
If the executor is honest all of them are exchangeable, so that the ranks' p-values are independent
and uniform (conformal test martingales: Vovk, Nouretdinov and Gammerman 2003); a fixed calibration
sample would not do, since its luck repeats in every claim. Each p-value becomes a bet with mean at
most 1 (p-to-e calibrator ``a p^(a-1)``; Shafer 2021) of which a share of the stake is risked. Wealth
multiplies over claims; the mean wealth over all exponents, shares and statistics is again a fair
game. By Ville's inequality it reaches 1/rate with probability at most ``rate``, whenever one looks:
so claims may be judged one after another until the evidence is enough. Ties count in favour.

Pollution by the executor's own earlier claims costs power, never validity, and no tail model is
used. Ranks are coarse, so that a few blatant claims among a small profile would not add up: half of
the rate therefore goes to the claims by themselves, the n-th of which convicts at ``1/(n (n + 1))``
of it (the shares add up to 1, whatever the dependence).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from assay.scoring.arrays import Floats
from assay.scoring.combine import check_fpr
from assay.scoring.constants import (
    BET_SHARES,
    CALIBRATOR_POWERS,
    DEFAULT_FPR,
    LADDER,
)
from assay.scoring.measure import MAXIMA, Measurement
from assay.scoring.nulls import LOWER_TAILED, Null, Sample
from assay.scoring.profile import Group, Profile
from assay.scoring.profile_key import ProfileKey
from assay.scoring.samples import ClaimRecord, Prefixes, record_of, step_below
from assay.scoring.share import Share, claim_p, estimate_share

LOG_LIMIT: Final = 690.0
"""Natural logarithm above which an e-value is printed as e^690 (about 1e299)."""

TOO_CLOSE: Final = " (too close)"
"""Marks the lower tail of a statistic."""


class Accumulated(BaseModel):
    """What the claims of one executor say together.

    ``e_value`` is the evidence now, ``e_peak`` the most it has been; ``convicted`` when it reached
    ``2 / fpr``, or when a single claim was too unlikely for the number of claims so far, at claim
    number ``convicted_at`` (from 1), and ``convicted_by`` says which. ``by_statistic`` are the e-values
    of each statistic (``value_distance (too close)`` is the lower tail). ``claims`` were used,
    ``skipped`` had no fitting profile or no usable series. ``share`` is the estimated share of
    cheating claims.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: Literal["convicted", "not_shown", "not_available"]
    reason: str
    fpr: float
    claims: int = 0
    skipped: int = 0
    e_value: float | None = None
    e_peak: float | None = None
    convicted_at: int | None = None
    convicted_by: Literal["accumulated", "single_claim"] | None = None
    by_statistic: dict[str, float] = Field(default_factory=dict)
    share: Share | None = None


class Wealth:
    """The game on one stream of p-values: one stake for each exponent and share."""

    def __init__(self) -> None:
        self._powers = np.repeat(CALIBRATOR_POWERS, len(BET_SHARES))
        self._shares = np.tile(BET_SHARES, len(CALIBRATOR_POWERS))
        self._logs: Floats = np.zeros(len(self._powers))

    def bet(self, p_value: float) -> None:
        """Play one claim. Raises ValueError for what is no p-value."""
        if not 0 < p_value <= 1:
            raise ValueError(f"p-value {p_value}: expected a number above 0 and at most 1")
        paid = self._powers * p_value ** (self._powers - 1)
        self._logs += np.log1p(self._shares * (paid - 1))

    @property
    def log_e(self) -> float:
        """Natural logarithm of the mean wealth."""
        return _log_mean(self._logs)


class _Pool:
    """Honest claims of one condition and, growing, the executor's own (one statistic)."""

    def __init__(self, sample: Sample) -> None:
        self._size = len(sample)
        self._rows = np.vstack([sample.scores, np.empty((64, len(LADDER)))])

    def p(self, step: int, value: float, *, lower: bool) -> float:
        scores = self._rows[: self._size, step]
        beyond = (scores <= value) if lower else (scores >= value)
        return (1 + int(beyond.sum())) / (self._size + 1)

    def add(self, row: list[float]) -> None:
        if self._size == len(self._rows):
            self._rows = np.vstack([self._rows, np.empty_like(self._rows)])
        self._rows[self._size] = row
        self._size += 1


def accumulate(
    measured: Sequence[tuple[Profile | None, Measurement]], fpr: float = DEFAULT_FPR
) -> Accumulated:
    """The evidence of one executor's claims, in the order given, which must not depend on their
    content (that of arrival, say).

    Each claim comes with the profile that fits it (``profile.find_profile``), or ``None``. Maxima
    are left out: they add nothing over many claims. Raises SettingsError for a rate that is none.
    """
    check_fpr(fpr)
    profiles = [profile for profile, _ in measured if profile is not None]
    game = Game(profiles, fpr)
    for profile, measurement in measured:
        if profile is not None:
            game.play(profile, record_of(measurement))
    skipped = len(measured) - game.claims
    if not game.claims:
        reason = "no claim has a fitting profile and enough positions: nothing to accumulate"
        return Accumulated(outcome="not_available", reason=reason, fpr=fpr, skipped=skipped)
    return Accumulated(
        outcome="not_shown" if game.convicted_at is None else "convicted",
        reason=_reason(game),
        fpr=fpr,
        claims=game.claims,
        skipped=skipped,
        e_value=_exp(game.log_e),
        e_peak=_exp(game.peak),
        convicted_at=game.convicted_at,
        convicted_by=game.convicted_by,
        by_statistic={n: _exp(w.log_e) for n, w in game.wealth.items() if n in game.played},
        share=estimate_share(game.p_values, min(profile.claims for profile in profiles)),
    )


def _reason(game: Game) -> str:
    evidence = (
        f"evidence {_exp(game.peak):.3g} over {game.claims} claims, {2 / game.fpr:g} convicts"
    )
    if game.convicted_by == "single_claim":
        p = game.p_values[(game.convicted_at or 1) - 1]
        return f"claim {game.convicted_at} alone convicts (p {p:.2g}); {evidence}"
    if game.convicted_at is not None:
        strongest = max(game.wealth, key=lambda name: game.wealth[name].log_e)
        return f"{evidence}, reached at claim {game.convicted_at}; most of it from {strongest}"
    return evidence


class Game:
    """All games of one executor: a pool for each condition and statistic, a wealth for each
    statistic and tail."""

    def __init__(self, profiles: Iterable[Profile], fpr: float) -> None:
        self.fpr = fpr
        self.convicted_at: int | None = None
        self.convicted_by: Literal["accumulated", "single_claim"] | None = None
        self.p_values: list[float] = []
        # All games that the profiles know stand from the start: one that joined later would lift the
        # mean of stakes already lost.
        self.wealth = {name: Wealth() for profile in profiles for name in _games(profile)}
        self.played: set[str] = set()
        self.claims = 0
        self.peak = 0.0
        self._pools: dict[tuple[ProfileKey, str, str], _Pool] = {}

    @property
    def log_e(self) -> float:
        logs = [wealth.log_e for wealth in self.wealth.values()]
        return _log_mean(np.array(logs)) if logs else 0.0

    def play(self, profile: Profile, record: ClaimRecord, p_value: float | None = None) -> None:
        """Take one more claim; ``p_value`` is its ``share.claim_p`` where that is known."""
        found = claim_p(profile, record) if p_value is None else p_value
        if found is None:
            return
        for name, null in profile.nulls.items():
            kept = record.series.get(name)
            if kept is not None and name not in MAXIMA and null.large_enough:
                self._play(profile, null, kept)
        self.claims += 1
        self.p_values.append(found)
        self.peak = max(self.peak, self.log_e)
        if self.convicted_at is None:
            single = found <= self.fpr / 2 / (self.claims * (self.claims + 1))
            if single or self.log_e >= math.log(2 / self.fpr):
                self.convicted_at = self.claims
                self.convicted_by = "single_claim" if single else "accumulated"

    def _play(self, profile: Profile, null: Null, kept: Prefixes) -> None:
        name = null.statistic
        step, value = step_below(kept.length), max(kept.values[-1], null.negligible)
        pools = [self._pool(group, null, i) for i, group in enumerate(profile.groups)]
        self._bet(name, [pool.p(step, value, lower=False) for pool in pools])
        # Whether the lower tail speaks is decided by the profile alone, for all claims alike.
        if null.why_silent_below(kept.length) is None:
            self._bet(f"{name}{TOO_CLOSE}", [pool.p(step, value, lower=True) for pool in pools])
        for pool in pools:
            pool.add([max(score, null.negligible) for score in kept.row()])

    def _pool(self, group: Group, null: Null, index: int) -> _Pool:
        which = group.key, group.run, null.statistic
        if which not in self._pools:
            self._pools[which] = _Pool(null.samples[index])
        return self._pools[which]

    def _bet(self, name: str, p_values: list[float]) -> None:
        self.played.add(name)
        self.wealth[name].bet(max(p_values))


def _games(profile: Profile) -> Iterator[str]:
    for name, null in profile.nulls.items():
        if name not in MAXIMA and null.large_enough:
            yield name
            if name in LOWER_TAILED:
                yield f"{name}{TOO_CLOSE}"


def _log_mean(logs: Floats) -> float:
    largest = float(logs.max())
    return largest + math.log(float(np.exp(logs - largest).mean()))


def _exp(log: float) -> float:
    return math.exp(max(-LOG_LIMIT, min(LOG_LIMIT, log)))
