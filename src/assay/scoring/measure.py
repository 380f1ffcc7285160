"""The statistics of one claim: what a profile is made of and what a verdict holds against it."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from assay.claims.claim import Claim, LogprobsMode, Replay
from assay.scoring.arrays import Bools, Floats
from assay.scoring.choice import Choice, NoChoice, choose, contradictions
from assay.scoring.constants import MARGIN_CLIP
from assay.scoring.decision import informative_positions
from assay.scoring.pairing import KindChoice, Pairing, pair_up
from assay.scoring.value import distances

Path = Literal["decode", "prefill", "file"]

MAXIMA: Final = frozenset({"value_peak", "choice_peak"})
"""Statistics whose value for a claim is the largest of its series; every other is the mean."""

STATISTICS: Final = (
    "value_distance",
    "value_peak",
    "choice_mismatch",
    "choice_surprise",
    "choice_margin",
    "choice_peak",
    "choice_contradiction",
)
"""Every statistic there is. All of them grow with dishonesty.

- ``value_distance``: distance [0, 0.5] of each informative position (``scoring/value.py``);
  ``value_peak``: the same series, of which the largest counts (one tampered position).
- ``choice_mismatch``: 1 where the validator's engine draws another id than the claimed one, else 0.
- ``choice_surprise``: the same weighted by the entropy of the position (mean weight 1), so that
  positions with one possible outcome, which agree for free, do not dilute it.
- ``choice_margin``: by how many nats the drawn id beat the claimed one, 0 where they are equal,
  clipped at ``constants.MARGIN_CLIP``; ``choice_peak``: unclipped, of which the largest counts.
- ``choice_contradiction``: 1 where the claim's own numbers and the seed draw another id than the
  claimed one, else 0. Honest claims have none on any hardware.
"""


class Measurement(BaseModel):
    """``series``: the values of each statistic at the positions where it could be measured, in
    order. ``statistics``: the claim's one value of each. ``missing``: why a statistic of
    ``STATISTICS`` is in neither. ``positions`` were compared. ``assumed``: what the choice
    statistics take for granted because nobody states it; where it is wrong, large values say
    nothing. No number is ever NaN or infinite.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    claim_id: str
    path: Path
    mode: LogprobsMode | None = None
    positions: int = 0
    series: dict[str, tuple[float, ...]] = Field(default_factory=dict)
    statistics: dict[str, float] = Field(default_factory=dict)
    missing: dict[str, str] = Field(default_factory=dict)
    assumed: tuple[str, ...] = ()


def measure(claim: Claim, replay: Replay, *, kind: KindChoice = "auto") -> Measurement:
    """Measure ``claim`` by ``replay``; ``kind`` as in ``verdict.judge``."""
    return measured(claim, replay, pair_up(claim, replay, kind), choose(claim, replay))


def measured(
    claim: Claim, replay: Replay, pairing: Pairing, choice: Choice | NoChoice
) -> Measurement:
    """The same from what was made of the two before."""
    series: dict[str, Floats] = {}
    missing: dict[str, str] = {}
    _value(pairing, series, missing)
    _choice(choice, series, missing)
    return Measurement(
        claim_id=claim.id,
        path=replay.path,
        mode=replay.logprobs_mode or claim.logprobs_mode,
        positions=int(pairing.arrays.comparable.sum()) if pairing.usable else 0,
        series={name: tuple(map(float, values)) for name, values in series.items()},
        statistics={name: summarise(name, values) for name, values in series.items()},
        missing=missing,
        assumed=() if isinstance(choice, NoChoice) else choice.assumed,
    )


def summarise(name: str, values: Floats) -> float:
    """The claim's value of the statistic ``name`` from its series, which must not be empty."""
    return float(values.max() if name in MAXIMA else values.mean())


def _value(pairing: Pairing, series: dict[str, Floats], missing: dict[str, str]) -> None:
    blocked = pairing.blocked
    if blocked is not None or not pairing.usable:
        reason = "no position can be compared" if blocked is None else blocked.reason.message
    else:
        ours = distances(pairing.arrays)
        chosen = ours[informative_positions(pairing.arrays, ours)]
        if len(chosen):
            series["value_distance"] = series["value_peak"] = np.asarray(chosen)
            return
        reason = "no position has more than one possible alternative"
    missing["value_distance"] = missing["value_peak"] = reason


def _choice(choice: Choice | NoChoice, series: dict[str, Floats], missing: dict[str, str]) -> None:
    names = [name for name in STATISTICS if name.startswith("choice_")]
    if isinstance(choice, NoChoice):
        missing.update(dict.fromkeys(names, choice.reason))
        return
    mismatch = choice.mismatch.astype(np.float64)
    series["choice_mismatch"] = mismatch
    weights = choice.entropy
    known = np.isfinite(weights)
    if known.any() and weights[known].mean() > 0:
        series["choice_surprise"] = mismatch[known] * weights[known] / weights[known].mean()
    else:
        missing["choice_surprise"] = "no position could have come out otherwise, or none is listed"
    known = np.isfinite(choice.margin)
    # Where the two ids are equal the margin is 0 whether or not anybody sent noise.
    if known.any() and (choice.noise or not choice.mismatch.any()):
        series["choice_peak"] = choice.margin[known]
        series["choice_margin"] = np.minimum(choice.margin[known], MARGIN_CLIP)
    else:
        reason = "the server sent no noise, so nobody knows by how much a draw was missed"
        missing["choice_margin"] = missing["choice_peak"] = reason
    own: Bools = np.isfinite(choice.own) | choice.own_cut
    if own.any():
        series["choice_contradiction"] = contradictions(choice)[own].astype(np.float64)
    else:
        missing["choice_contradiction"] = "the claim's own numbers do not say what they draw"
