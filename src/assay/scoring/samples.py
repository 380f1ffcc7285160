"""What a profile keeps of one claim: each statistic at every length of the ladder."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence
from typing import Annotated, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from assay.scoring.arrays import Floats
from assay.scoring.constants import LADDER
from assay.scoring.measure import MAXIMA, STATISTICS, Measurement

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Prefixes(Frozen):
    """One statistic of one claim over its first 8, 12, 16, ... positions (``LADDER``).

    ``length`` positions were measured. ``values`` has one entry for each length of the ladder up to
    ``length``, and one for the whole series where that is not on the ladder.
    """

    length: int = Field(ge=LADDER[0])
    values: tuple[Finite, ...]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        expected = len(_steps(self.length))
        if len(self.values) != expected:
            raise ValueError(
                f"values: {len(self.values)} numbers for {self.length} positions, expected"
                f" {expected}"
            )
        return self

    def row(self) -> list[float]:
        """One value for each step of the whole ladder; beyond the length, the whole series'."""
        return [self.values[min(step, len(self.values) - 1)] for step in range(len(LADDER))]


class ClaimRecord(Frozen):
    """One claim: ``claim`` names it (a digest), ``series`` holds what could be measured of it."""

    claim: str
    positions: int = Field(ge=0)
    series: dict[str, Prefixes] = Field(default_factory=dict)


def _steps(length: int) -> list[int]:
    """The lengths at which a series of ``length`` positions is kept."""
    steps = [step for step in LADDER if step <= length]
    return steps if steps and steps[-1] == length else [*steps, length]


def rounded(value: float) -> float:
    """9 significant digits, so that a file holds what was compared."""
    return float(f"{value:.9g}")


def summary(statistic: str, values: Floats) -> float:
    """The claim's value of ``statistic`` from its series [positions], rounded."""
    return rounded(float(values.max() if statistic in MAXIMA else values.mean()))


def why_unusable(values: Sequence[float]) -> str | None:
    """Why a series gives no p-value; ``None`` when it does."""
    if len(values) < LADDER[0]:
        return f"{len(values)} positions could be measured, and {LADDER[0]} are needed"
    if not all(math.isfinite(value) for value in values):
        return "the series holds a number that is NaN or infinite"
    return None


def prefixes(statistic: str, values: Sequence[float]) -> Prefixes:
    """``values`` at the lengths of the ladder. Raises ValueError where ``why_unusable`` speaks."""
    reason = why_unusable(values)
    if reason is not None:
        raise ValueError(f"{statistic}: {reason}")
    series = np.asarray(values, dtype=np.float64)
    steps = _steps(len(series))
    return Prefixes(
        length=len(series), values=tuple(summary(statistic, series[:step]) for step in steps)
    )


def record_of(measurement: Measurement, claim: str | None = None) -> ClaimRecord:
    """The record of a measured claim. Statistics too short or missing are left out, and those of
    the choice where it rests on an assumption."""
    return ClaimRecord(
        claim=measurement.claim_id if claim is None else claim,
        positions=measurement.positions,
        series={
            name: prefixes(name, values)
            for name, values in measurement.series.items()
            if name in STATISTICS
            and why_unusable(values) is None
            and not (measurement.assumed and name.startswith("choice_"))
        },
    )


def step_below(length: int) -> int:
    """Index of the largest length of the ladder that is at most ``length`` (>= LADDER[0])."""
    return bisect.bisect_right(LADDER, length) - 1


def table(records: Iterable[ClaimRecord], statistic: str) -> tuple[Floats, Floats]:
    """Scores [claims, len(LADDER)] and lengths [claims] of the records that have ``statistic``."""
    kept = [record.series[statistic] for record in records if statistic in record.series]
    scores = np.array([prefix.row() for prefix in kept], dtype=np.float64)
    return (
        scores.reshape(len(kept), len(LADDER)),
        np.array([prefix.length for prefix in kept], dtype=np.float64),
    )
