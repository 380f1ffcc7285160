"""What one channel of evidence says about one claim."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ChannelName = Literal["value", "choice", "account"]
ChannelOutcome = Literal["pass", "fail", "inconclusive", "not_available"]


class ChannelResult(BaseModel):
    """One channel of one claim.

    ``value``: the claimed distributions against the validator's. ``choice``: the claimed tokens
    against those the validator's engine draws with the claim's own seed. ``account``: what the
    claim says about itself. ``not_available`` means that the channel could not look, which is
    neither for nor against the claim; ``reason`` says why, ``code`` is its stable name.

    ``p_value`` is the chance that an honest claim looks this bad or worse (upper tail), ``p_low``
    that one looks this good or better (lower tail: too good to be another engine's numbers).
    ``None`` where no profile fits: the rule used is then a fixed one, not calibrated.
    ``statistics`` are the claim's numbers, by the names of ``scoring/measure.py``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: ChannelName
    outcome: ChannelOutcome
    reason: str
    code: str
    p_value: float | None = Field(default=None, ge=0, le=1)
    p_low: float | None = Field(default=None, ge=0, le=1)
    statistics: dict[str, float] = Field(default_factory=dict)
    position: int | None = None
    """Where it first shows (from 0), for a failure that has a place."""
