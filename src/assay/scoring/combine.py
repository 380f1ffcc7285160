"""From the p-values of several channels to one, at a stated false-positive rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from assay.errors import SettingsError
from assay.scoring.channels import ChannelName, ChannelResult
from assay.scoring.constants import DEFAULT_FPR

Tail = Literal["upper", "lower"]


class FailedTest(BaseModel):
    """A p-value that stays below its share of the rate. ``adjusted`` is Holm's p-value: to be
    compared with the rate itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    channel: ChannelName
    tail: Tail
    p_value: float
    adjusted: float


class Combined(BaseModel):
    """What the channels say together.

    ``p_value`` is Bonferroni's over the ``tests`` p-values there are, ``None`` without any.
    ``failed`` channels convict: by their p-value (``tests_failed``, each with its tail) or without
    one (a check that an honest claim cannot fail). ``fpr`` is the chance that an honest claim
    fails by any p-value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    outcome: Literal["pass", "fail", "inconclusive"]
    p_value: float | None = Field(default=None, gt=0, le=1)
    fpr: float
    tests: int = 0
    failed: tuple[ChannelName, ...] = ()
    tests_failed: tuple[FailedTest, ...] = ()
    reason: str


def check_fpr(fpr: float) -> None:
    """Raise SettingsError unless ``fpr`` is a rate in (0, 0.5)."""
    if not 0 < fpr < 0.5:  # NaN is refused too
        raise SettingsError(f"fpr {fpr}: expected a false-positive rate above 0 and below 0.5")


def bonferroni(p_values: Sequence[float]) -> float:
    """One p-value from several: ``min(1, m min(p))``. Valid whatever their dependence, which
    matters here: all channels look at the same tokens."""
    return min(1.0, len(p_values) * min(p_values))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979), in the order given: those at most alpha may all be rejected
    with a chance of alpha for any false rejection, whatever their dependence."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [1.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


def combine(channels: Sequence[ChannelResult], fpr: float = DEFAULT_FPR) -> Combined:
    """One outcome from ``channels``.

    Every p-value of every channel is a test (upper tail: too far; lower tail: too close); Holm's
    procedure at ``fpr`` says which fail. A channel that fails without a p-value fails the claim by
    itself, and one that has p-values fails only by them: its own outcome may rest on another rate.

    Without a failure the claim passes when a channel passes and none is inconclusive. Channels that
    are not available are neither for nor against; when nothing could look, or only the account (a
    claim's own words), nothing passes. Raises SettingsError for a rate that is none.
    """
    check_fpr(fpr)
    tests = [
        (channel.name, tail, p)
        for channel in channels
        for tail, p in (("upper", channel.p_value), ("lower", channel.p_low))
        if p is not None and math.isfinite(p)
    ]
    adjusted = holm([p for _, _, p in tests])
    tests_failed = tuple(
        FailedTest(
            channel=name, tail="upper" if tail == "upper" else "lower", p_value=p, adjusted=a
        )
        for (name, tail, p), a in sorted(zip(tests, adjusted, strict=True), key=lambda t: t[1])
        if a <= fpr
    )
    by_rule = [c for c in channels if c.outcome == "fail" and c.p_value is None and c.p_low is None]
    failed = tuple(dict.fromkeys([*(t.channel for t in tests_failed), *(c.name for c in by_rule)]))
    p_value = max(bonferroni([p for _, _, p in tests]), 1e-300) if tests else None
    if failed:
        outcome: Literal["pass", "fail", "inconclusive"] = "fail"
        reason = "; ".join(
            [
                f"{t.channel} channel: {'too far' if t.tail == 'upper' else 'too close'}"
                f" (p {t.p_value:.2g}, {t.adjusted:.2g} over {len(tests)} tests, rate {fpr:g})"
                for t in tests_failed
            ]
            + [f"{c.name} channel: {c.reason}" for c in by_rule]
        )
    else:
        outcome, reason = _without_failure(channels)
    return Combined(
        outcome=outcome,
        p_value=p_value,
        fpr=fpr,
        tests=len(tests),
        failed=failed,
        tests_failed=tests_failed,
        reason=reason,
    )


def _without_failure(
    channels: Sequence[ChannelResult],
) -> tuple[Literal["pass", "inconclusive"], str]:
    """A channel whose own outcome is a fail that the joint rate does not bear out is undecided."""
    undecided = [c for c in channels if c.outcome in ("inconclusive", "fail")]
    passed = [c.name for c in channels if c.outcome == "pass"]
    if undecided:
        return "inconclusive", "; ".join(f"{c.name} channel: {c.reason}" for c in undecided)
    if not any(name != "account" for name in passed):
        blind = "; ".join(f"{c.name} channel: {c.reason}" for c in channels if c.name != "account")
        return "inconclusive", blind or "no channel looked at the claim"
    return "pass", f"passed: {', '.join(passed)}"
