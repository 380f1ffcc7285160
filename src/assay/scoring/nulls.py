"""The null of a statistic: what honest claims show, and how unlikely a claim is among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from assay.scoring.arrays import Floats
from assay.scoring.constants import (
    LADDER,
    LENGTH_KEPT,
    LOWER_TAIL_FLOOR,
    MIN_CALIBRATION_CLAIMS,
    NEGLIGIBLE,
    ROUNDING,
)
from assay.scoring.measure import MAXIMA
from assay.scoring.samples import step_below, summary, why_unusable
from assay.scoring.tail import RANK, RANK_AND_TAIL, Least, fit_tail, lower_p, upper_p

COUNTS: Final = frozenset({"choice_mismatch", "choice_surprise", "choice_contradiction"})
"""Statistics whose mean over n positions moves in steps of about 1/n."""
LOWER_TAILED: Final = frozenset({"value_distance"})
"""Statistics for which too little is suspicious; of the others 0 is simply the best."""


def rounding_of(statistic: str, *dtypes: str | None) -> float:
    """What rounding may do to ``statistic`` between engines that compute in ``dtypes`` (the
    coarsest counts, an unknown one as the coarsest); 0 for a statistic that counts."""
    known = [
        ROUNDING.get((dtype or "").removeprefix("torch."), ROUNDING["bfloat16"]) for dtype in dtypes
    ]
    return max((scales.get(statistic, 0.0) for scales in known), default=0.0)


@dataclass(frozen=True)
class Sample:
    """Honest claims of one condition: ``scores`` [claims, len(LADDER)], ``lengths`` [claims].
    ``rounding`` is the least scale of the statistic under that condition (``rounding_of``)."""

    scores: Floats
    lengths: Floats
    rounding: float = 0.0

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Null:
    """The null of ``statistic`` under each of the ``samples``, one a condition that may be the
    claim's; where several may, a p-value is the largest of theirs.

    The unit is the claim, not the position: claims differ in level (their prompts do), and with
    enough positions that difference is all that is left. A claim is held against honest claims cut
    to its own length or shorter. For a mean over positions that errs towards innocence, since the
    mean of a part spreads wider than that of the whole. For a maximum only honest claims at least as
    long count, or the claim is split and the union bound taken.
    """

    statistic: str
    samples: tuple[Sample, ...]

    @property
    def claims(self) -> int:
        return sum(len(sample) for sample in self.samples)

    @property
    def positions(self) -> int:
        return int(sum(sample.lengths.sum() for sample in self.samples))

    @property
    def large_enough(self) -> bool:
        """Whether every condition has the honest claims that a p-value needs."""
        sizes = [len(sample) for sample in self.samples]
        return min(sizes, default=0) >= MIN_CALIBRATION_CLAIMS

    @property
    def method(self) -> str:
        """How p-values are made, as a profile prints it."""
        fitted = [fit_tail(s.scores[:, 0], self.least(s, LADDER[0])) for s in self.samples]
        return RANK_AND_TAIL if fitted and all(tail is not None for tail in fitted) else RANK

    def why_not(self, values: Sequence[float]) -> str | None:
        """Why ``p_upper`` is ``None`` for these ``values``; ``None`` when it is not."""
        if not self.large_enough:
            short = min((len(sample) for sample in self.samples), default=0)
            return (
                f"the profile holds {short} honest claims with {self.statistic}, and"
                f" {MIN_CALIBRATION_CLAIMS} are needed"
            )
        return why_unusable(values)

    def p_upper(self, values: Sequence[float]) -> float | None:
        """Chance that an honest claim shows ``values`` [positions] so large, in (0, 1]."""
        if self.why_not(values) is not None:
            return None
        value = summary(self.statistic, np.asarray(values, dtype=np.float64))
        return self.p_summary(value, len(values))

    @property
    def negligible(self) -> float:
        """Below it, values are not told apart; the scores of the samples are at least this."""
        return NEGLIGIBLE.get(self.statistic, 0.0)

    def p_summary(self, value: float, length: int) -> float:
        """``p_upper`` of a claim of ``length`` positions whose statistic is ``value``; there must be
        enough honest claims."""
        value = max(value, self.negligible)
        test = self._maximum if self.statistic in MAXIMA else self._mean
        return max(test(sample, value, length) for sample in self.samples)

    def why_no_lower(self, values: Sequence[float]) -> str | None:
        """Why ``p_lower`` is ``None``; ``None`` when it is not."""
        if self.statistic not in LOWER_TAILED:
            return f"a small {self.statistic} is no evidence of anything"
        return self.why_not(values) or self.why_silent_below(len(values))

    def why_silent_below(self, length: int) -> str | None:
        """Why no claim of ``length`` positions can be too close, as far as the profile knows."""
        if self.statistic not in LOWER_TAILED:
            return f"a small {self.statistic} is no evidence of anything"
        step = step_below(length)
        for sample in self.samples:
            scores = sample.scores[:, step]
            middle = float(np.median(scores))
            if not scores.min() > max(self.negligible, LOWER_TAIL_FLOOR * middle):
                return (
                    f"honest claims of the profile come as near as {scores.min():.3g} (median"
                    f" {middle:.3g}): engines that compute alike agree to the last bit, so too"
                    " close cannot be told from honest"
                )
        return None

    def p_lower(self, values: Sequence[float]) -> float | None:
        """Chance that an honest claim shows ``values`` [positions] so small, in (0, 1]; by rank
        only, so never below 1/(claims + 1)."""
        if self.why_no_lower(values) is not None:
            return None
        value = summary(self.statistic, np.asarray(values, dtype=np.float64))
        return self.p_low_summary(value, len(values))

    def p_low_summary(self, value: float, length: int) -> float:
        """``p_lower`` of a claim of ``length`` positions whose statistic is ``value``, where the
        lower tail speaks."""
        step, value = step_below(length), max(value, self.negligible)
        return max(lower_p(sample.scores[:, step], value) for sample in self.samples)

    def least(self, sample: Sample, length: int) -> Least:
        """What is known of the scale of the statistic at ``length`` without any claim."""
        grain = 1 / length if self.statistic in COUNTS else 0.0
        return Least(grain, sample.rounding)

    def _mean(self, sample: Sample, value: float, length: int) -> float:
        step = step_below(length)
        return upper_p(sample.scores[:, step], value, self.least(sample, LADDER[step]))

    def _maximum(self, sample: Sample, value: float, length: int) -> float:
        """At the shortest length of the ladder that covers the claim and that enough honest claims
        reach; where none does, in pieces of the longest that they do reach."""
        enough = max(MIN_CALIBRATION_CLAIMS, LENGTH_KEPT * len(sample))
        reached = [s for s, n in enumerate(LADDER) if (sample.lengths >= n).sum() >= enough]
        # Every record reaches LADDER[0], so there is a step.
        step = next((s for s in reached if LADDER[s] >= length), reached[-1])
        pieces = -(-length // LADDER[step])
        scores = sample.scores[sample.lengths >= LADDER[step], step]
        return min(1.0, pieces * upper_p(scores, value, Least(scale=sample.rounding)))
