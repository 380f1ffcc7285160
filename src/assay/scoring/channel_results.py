"""What each channel says, from findings, fixed rules and the p-values of a profile."""

from __future__ import annotations

from collections.abc import Sequence

from assay.claims.account import Check
from assay.scoring.calibrated import Tested
from assay.scoring.channels import ChannelOutcome, ChannelResult
from assay.scoring.constants import ERROR_RATE, FLAT_FAIL_LIMIT, MIN_INFORMATIVE
from assay.scoring.findings import Effect
from assay.scoring.measure import Measurement
from assay.scoring.value_rule import ValueLook

TOO_FAR = "value_too_far"
TOO_CLOSE = "value_too_close"
UNLIKELY = "choice_unlikely"
UNUSUAL = "unusual"
SHORT = "too_short_to_tell"
SUPPORT = "sampler_support"
FLAT = "flat_distribution"


def statistics_of(
    measurement: Measurement, channel: str, tested: Tested | None
) -> dict[str, float]:
    """The claim's numbers that belong to ``channel``, with the p-value of each where there is one."""
    own = {n: v for n, v in measurement.statistics.items() if n.startswith(f"{channel}_")}
    return own | (tested.parts if tested else {})


def value_result(
    look: ValueLook, measurement: Measurement, tested: Tested | None, fpr: float
) -> ChannelResult:
    """The value channel. What is wrong beside the distances (other tokens, no evidence, numbers
    that are none) decides before any p-value."""
    statistics = statistics_of(measurement, "value", tested)
    findings = [f for f in look.findings if f.reason.code != SUPPORT]
    for effect, outcome in _BY_EFFECT.items():
        first = next((f.reason for f in findings if f.effect == effect), None)
        if first is not None:
            if effect == "hold" and tested is not None and _fails(tested, fpr):
                break
            return ChannelResult(
                name="value",
                outcome=outcome,
                reason=first.message,
                code=first.code,
                statistics=statistics,
                position=first.position,
            )
    mean = measurement.statistics.get("value_distance", 0.0)
    count = len(measurement.series.get("value_distance", ()))
    about = f"mean distance {mean:.4f} over {count} informative positions"
    if tested is None:
        return ChannelResult(
            name="value", outcome="pass", reason=about, code="value_agrees", statistics=statistics
        )
    outcome, code, about = _by_p(tested, about, count, fpr)
    if code == TOO_FAR and look.fields.get("flat") and mean < FLAT_FAIL_LIMIT:
        # Profiles are of answers as they come, few of them flat: their p-value is no one's here.
        return ChannelResult(
            name="value",
            outcome="inconclusive",
            reason=f"{about}; but the validator's own distributions are flat, where honest engines"
            f" differ most: the worst on record lie at {FLAT_FAIL_LIMIT:.4f} (case 51)",
            code=FLAT,
            statistics=statistics,
        )
    return ChannelResult(
        name="value",
        outcome=outcome,
        reason=about,
        code=code,
        p_value=tested.p_value,
        p_low=tested.p_low,
        statistics=statistics,
        position=_peak(look, tested) if code == TOO_FAR else None,
    )


def _peak(look: ValueLook, tested: Tested) -> int | None:
    """The farthest position, where it alone is what honest claims hardly ever show."""
    peak, mean = (tested.parts.get(f"p_value_{name}", 1.0) for name in ("peak", "distance"))
    listed: tuple[float | None, ...] = look.fields.get("distances", ())
    known = [(distance, place) for place, distance in enumerate(listed) if distance is not None]
    return max(known)[1] if known and peak < mean else None


def _fails(tested: Tested, fpr: float) -> bool:
    return any(p is not None and p <= fpr for p in (tested.p_value, tested.p_low))


_BY_EFFECT: dict[Effect, ChannelOutcome] = {
    "fail": "fail",
    "block": "not_available",
    "hold": "inconclusive",
}


def _by_p(tested: Tested, about: str, count: int, fpr: float) -> tuple[ChannelOutcome, str, str]:
    upper, lower = tested.p_value, tested.p_low
    if upper is not None:
        about = f"{about}: honest claims show as much with chance {upper:.2g}"
    if upper is not None and upper <= fpr:
        return "fail", TOO_FAR, about
    if lower is not None and lower <= fpr:
        return "fail", TOO_CLOSE, f"{about}, and as little with chance {lower:.2g}: too close"
    if count < MIN_INFORMATIVE or upper is None:
        return "inconclusive", SHORT, f"{about}; too few positions to tell"
    if upper <= ERROR_RATE:
        return "inconclusive", UNUSUAL, f"{about}: unusual, and not enough for the stated rate"
    return "pass", "value_agrees", about


def with_support(rule: ChannelResult, look: ValueLook) -> ChannelResult:
    """The choice channel's result, or a failure where the validator's sampler cannot have drawn too
    many of the tokens: that needs no seed."""
    found = next((f for f in look.findings if f.reason.code == SUPPORT), None)
    if found is None or found.effect != "fail" or rule.outcome == "fail":
        return rule
    reason = found.reason
    return rule.model_copy(
        update={
            "outcome": "fail",
            "code": SUPPORT,
            "reason": reason.message,
            "position": reason.position,
        }
    )


def _contradicted(tested: Tested) -> float:
    """The p-value of the contradictions alone, paid for as one of all."""
    upper = [name for name in tested.parts if not name.startswith("p_low_")]
    return min(1.0, len(upper) * tested.parts.get("p_choice_contradiction", 1.0))


def with_p_values(
    rule: ChannelResult,
    measurement: Measurement,
    tested: Tested | None,
    fpr: float,
    *,
    flat: bool = False,
) -> ChannelResult:
    """The choice channel: the fixed rule's result, or a profile's where it can judge.

    The fixed rule convicts only beyond doubt (a chance of 1e-6), and that stays so beside a
    profile: its conviction stands by itself. On a ``flat`` claim honest engines draw apart more
    often than the profile's answers did: there only contradictions of the claim's own numbers,
    which no hardware explains, convict.
    """
    statistics = rule.statistics | statistics_of(measurement, "choice", tested)
    if tested is None or tested.p_value is None or rule.outcome in ("fail", "not_available"):
        return rule.model_copy(update={"statistics": statistics})
    p = tested.p_value
    about = f"{rule.reason}: honest claims show as much with chance {p:.2g}"
    outcome: ChannelOutcome = "pass"
    code = "choice_agrees"
    if rule.code == SHORT:
        outcome, code = "inconclusive", SHORT
    if p <= fpr and flat and _contradicted(tested) > fpr:
        return ChannelResult(
            name="choice",
            outcome="inconclusive",
            reason=f"{about}; but the validator's own distributions are flat, where honest engines"
            " draw apart most (case 51)",
            code=FLAT,
            statistics=statistics,
            position=rule.position,
        )
    if p <= fpr:
        outcome, code = "fail", UNLIKELY
    elif p <= ERROR_RATE:
        outcome, code = "inconclusive", UNUSUAL
    return ChannelResult(
        name="choice",
        outcome=outcome,
        reason=about,
        code=code,
        p_value=p,
        statistics=statistics,
        position=rule.position,
    )


def account_result(checks: Sequence[Check]) -> ChannelResult:
    """The account channel: one failed check fails it, one that holds is needed to pass."""
    failed = [check for check in checks if check.outcome == "fail"]
    held = sum(check.outcome == "pass" for check in checks)
    if failed:
        first = failed[0]
        return ChannelResult(
            name="account",
            outcome="fail",
            reason="; ".join(check.reason for check in failed),
            code=first.code,
            position=first.position,
        )
    if not held:
        return ChannelResult(
            name="account",
            outcome="not_available",
            reason="the claim says nothing about itself that could be checked",
            code="nothing_to_check",
        )
    return ChannelResult(
        name="account",
        outcome="pass",
        reason=f"{held} of {len(checks)} checks hold, none fails",
        code="account_holds",
    )
