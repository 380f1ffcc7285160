"""Claims with their replays, and what is measured of each pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from assay.attacks.traces import Traces
from assay.claims.claim import Claim, Replay
from assay.scoring.measure import MAXIMA, Measurement, measure


@dataclass(frozen=True)
class Pair:
    """A claim of a run or attack, with the validator's replay of it."""

    claim: Claim
    replay: Replay

    @cached_property
    def measured(self) -> Measurement:
        return measure(self.claim, self.replay, kind="enforced")

    def statistic(self, name: str, first: int | None = None) -> float | None:
        """The claim's statistic ``name`` over its ``first`` values (None: all of them)."""
        series = self.measured.series.get(name, ())[:first]
        if not series:
            return None
        return float(np.max(series) if name in MAXIMA else np.mean(series))


def pairs(traces: Traces, name: str, path: str, claims: Iterable[Claim]) -> list[Pair]:
    """The claims that have a replay by ``path``, in order."""
    replays = traces.replays(name, path)
    return [Pair(claim, replays[claim.id]) for claim in claims if claim.id in replays]


def column(found: Sequence[Pair], name: str, first: int | None = None) -> list[float]:
    """The statistic of every pair in which it could be measured."""
    values = (pair.statistic(name, first) for pair in found)
    return [value for value in values if value is not None]
