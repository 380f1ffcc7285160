"""What a verdict by a profile says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from assay.poc.nulls import Basis
from assay.poc.verdict import Outcome, Reason


@dataclass(frozen=True)
class StatisticResult:
    """``null`` says in words what the p-value was taken from."""

    name: str
    value: float
    p_value: float
    null: str


@dataclass(frozen=True)
class CalibratedVerdict:
    """``n_compared`` + ``n_excluded`` = ``n_total``; ``n_invalid`` of the compared are no vectors.

    ``p_value`` is None where no verdict was reached; ``missing`` says for each statistic that was
    not measured why. ``cheating_share`` is the least share of nonces from elsewhere, known only
    where the profile has this very pair of hardware.
    """

    verdict: Outcome
    reasons: tuple[Reason, ...]
    basis: Basis
    profile: str
    alpha: float
    n_total: int
    n_compared: int
    n_excluded: int
    n_invalid: int
    p_value: float | None = None
    mean_distance: float | None = None
    cheating_share: float | None = None
    statistics: tuple[StatisticResult, ...] = ()
    missing: dict[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain data for JSON; no NaN, no Infinity."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain["reasons"] = [vars(reason) for reason in self.reasons]
        plain["statistics"] = [vars(result) for result in self.statistics]
        return plain
