"""The judgement: a claim and its replay in, pass, fail or inconclusive with reasons out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from assay.claims.account import Check, Known, check_account, with_replay
from assay.claims.claim import Claim, Replay
from assay.scoring import findings as find
from assay.scoring.calibrated import Tested, TestedChannel, channel_tests, fitting_profile
from assay.scoring.causes import likely_causes
from assay.scoring.channel_results import (
    FLAT,
    SUPPORT,
    UNUSUAL,
    account_result,
    value_result,
    with_p_values,
)
from assay.scoring.channels import ChannelName, ChannelResult
from assay.scoring.choice import choose
from assay.scoring.choice_rule import DOUBTFUL, choice_result
from assay.scoring.combine import Combined, check_fpr, combine
from assay.scoring.constants import DEFAULT_FPR
from assay.scoring.findings import Finding, finding
from assay.scoring.length import tokens_needed
from assay.scoring.measure import measured
from assay.scoring.pairing import KindChoice, Pairing, pair_up, replayed_tokens
from assay.scoring.profile import Profile
from assay.scoring.refusals import (
    verdict_on_unreadable_claim,
    verdict_on_unreadable_replay,
    verdict_without_replay,
)
from assay.scoring.result import Kind, Outcome, Reason, Verdict
from assay.scoring.value_rule import look_at_values

__all__ = [
    "Kind",
    "KindChoice",
    "Known",
    "Outcome",
    "Reason",
    "Verdict",
    "judge",
    "verdict_on_unreadable_claim",
    "verdict_on_unreadable_replay",
    "verdict_without_replay",
]

NOT_CALIBRATED = "not calibrated, published thresholds and fixed rules apply"


def judge(
    claim: Claim,
    replay: Replay,
    *,
    threshold: float | None = None,
    kind: KindChoice = "auto",
    known: Known | None = None,
    profile: Profile | Sequence[Profile] | None = None,
    fpr: float = DEFAULT_FPR,
    allow_unknown: bool = False,
    require: Collection[ChannelName] = (),
) -> Verdict:
    """Judge ``claim`` by ``replay``.

    ``threshold`` is the published similarity to exceed; ``None`` picks one (see
    ``decision.choose_limits``). ``known`` is what the validator knows of the model for the account
    checks.

    ``kind`` says what the replay is. In an *enforced* replay the validator's engine was made to
    choose the claimed tokens, so a token or a length that differs counts against the claim. Two
    *natural* generations of one prompt part sooner or later on honest hardware (case 35): the
    positions before they part are compared, since they share their context, and the rest proves
    nothing; the verdict is inconclusive unless that prefix already fails. ``auto`` takes a replay
    for enforced when the plugin says so (response field ``assay``), when it was made by a replay
    path of this software, or when it repeats every claimed token; anything else is natural.

    ``profile`` holds honest runs (one profile, or several of which the fitting one is taken;
    ``allow_unknown`` as in ``profile.find_profile``). Where it fits, the value and choice channels
    are judged by p-values that together convict an honest claim with chance ``fpr``; where it does
    not, or lacks a statistic, the published thresholds and the fixed rules of ``choice_rule``
    apply, and the verdict says so. A ``threshold`` is an order of the caller's: with one, the
    value channel is held to it whatever the profile.

    ``require`` names channels without whose own pass nothing passes. An executor decides what its
    claim says, and by saying less (no seed, no tape) it can keep a channel from looking; whoever
    ordered seeded answers should require the choice channel.

    The verdict never passes, and never fails by distance, without a comparison. Raises
    SettingsError for a threshold outside [0, 1) and for a rate that is none.
    """
    check_fpr(fpr)
    pairing = pair_up(claim, replay, kind)
    account = _account(claim, replay, pairing, known)
    choice = choose(claim, replay)
    measurement = measured(claim, replay, pairing, choice)
    match = fitting_profile(profile, claim, replay, allow_unknown=allow_unknown)
    tested: dict[TestedChannel, Tested] = {}
    if match.profile is not None:
        tested = channel_tests(measurement, match.profile)
        if threshold is not None or replay.mode_source == "inferred":
            tested.pop("value", None)
    look = look_at_values(claim, replay, pairing, threshold=threshold, calibrated=tested)
    channels = (
        value_result(look, measurement, tested.get("value"), fpr),
        with_p_values(
            choice_result(choice, statistics={}),
            measurement,
            tested.get("choice"),
            fpr,
            flat=bool(look.fields.get("flat")),
        ),
        account_result(account),
    )
    found = [*find.from_account(account), *look.findings]
    if not pairing.usable and not found:
        found.append(finding("block", "no_evidence", "no position can be compared"))
    found += _of_channels(channels)
    found += _required(channels, require)
    together = combine(channels, fpr) if tested else None
    if together is not None:
        found += _rejected(channels, together)
    verdict = Verdict(
        verdict=_outcome(found, channels),
        reasons=_reasons(found),
        claim_positions=None if claim.positions is None else len(claim.positions),
        replay_positions=None if replay.positions is None else len(replay.positions),
        kind=pairing.kind,
        first_disagreement=pairing.parted,
        account=account,
        notes=_notes(claim, replay),
        path=replay.path,
        profile=match.profile.id if match.profile is not None and tested else None,
        calibration=_calibration(match.reason, tested),
        fpr=fpr if tested else None,
        p_value=None if together is None else together.p_value,
        channels=channels,
        **look.fields,
    )
    return verdict.model_copy(
        update={
            "causes": likely_causes(claim, replay, verdict, look, choice),
            "tokens_needed": tokens_needed(verdict, look, choice),
        }
    )


def _account(
    claim: Claim, replay: Replay, pairing: Pairing, known: Known | None
) -> tuple[Check, ...]:
    enforced = pairing.kind == "enforced"
    replayed = replayed_tokens(replay) if enforced and replay.positions else None
    informed = dataclasses.replace(known or Known(), replayed_tokens=replayed)
    return check_account(claim, with_replay(informed, claim, replay) if enforced else informed)


def _of_channels(channels: Sequence[ChannelResult]) -> list[Finding]:
    """Findings of the channels that no other rule has made already.

    A choice that is only too short says nothing against the claim; one that is doubtful must not
    pass. Where p-values judge the distances, whatever keeps them from passing does so here.
    """
    found = []
    value, choice, _ = channels
    if choice.outcome == "fail" and choice.p_value is None and choice.code != SUPPORT:
        found.append(finding("fail", choice.code, choice.reason, choice.position))
    elif choice.outcome == "inconclusive" and choice.code in (DOUBTFUL, UNUSUAL, FLAT):
        found.append(finding("hold", choice.code, choice.reason, choice.position))
    if value.outcome == "inconclusive" and (value.p_value is not None or value.code == FLAT):
        found.append(finding("hold", value.code, value.reason))
    return found


def _required(channels: Sequence[ChannelResult], require: Collection[ChannelName]) -> list[Finding]:
    """Holds for each channel that had to pass and did not get to an answer."""
    return [
        finding(
            "hold",
            "channel_required",
            f"the {channel.name} channel has to pass here and is"
            f" {channel.outcome.replace('_', ' ')}: {channel.reason}",
            channel.position,
        )
        for channel in channels
        if channel.name in require and channel.outcome in ("not_available", "inconclusive")
    ]


def _rejected(channels: Sequence[ChannelResult], together: Combined) -> list[Finding]:
    """Findings of the p-values that fail the claim at the joint rate, and of a channel that would
    fail alone and does not jointly."""
    rejected = {test.channel for test in together.tests_failed}
    found = []
    for channel in channels:
        if channel.outcome != "fail" or (channel.p_value is None and channel.p_low is None):
            continue
        if channel.name in rejected:
            found.append(finding("fail", channel.code, channel.reason, channel.position))
        else:
            reason = f"{channel.reason}; not enough for the stated rate over all channels"
            found.append(finding("hold", UNUSUAL, reason, channel.position))
    return found


def _outcome(found: Sequence[Finding], channels: Sequence[ChannelResult]) -> Outcome:
    if any(f.effect == "fail" for f in found):
        return "fail"
    value = channels[0]
    return "pass" if value.outcome == "pass" and not found else "inconclusive"


def _reasons(found: Sequence[Finding]) -> tuple[Reason, ...]:
    order = {"fail": 0, "block": 1, "hold": 2}
    return tuple(f.reason for f in sorted(found, key=lambda f: order[f.effect]))


def _notes(claim: Claim, replay: Replay) -> tuple[str, ...]:
    notes = [f"claim: {warning}" for warning in claim.warnings]
    notes += [f"replay: {warning}" for warning in replay.warnings]
    if claim.seed_source == "executor":
        notes.append(
            "claim: the executor chose the seed itself and may have tried several; agreement with"
            " it proves little"
        )
    return tuple(notes)


def _calibration(reason: str, tested: dict[TestedChannel, Tested]) -> str:
    """Where the numbers come from that decided."""
    if not tested:
        return f"{reason}; {NOT_CALIBRATED}"
    missing = [name for name in ("value", "choice") if name not in tested]
    if missing:
        return f"{reason}; {' and '.join(missing)} channel {NOT_CALIBRATED}"
    return reason
