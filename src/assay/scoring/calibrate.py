"""A profile from honest runs: which runs may go into it, and what it holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from assay.claims.claim import Claim, Replay
from assay.errors import ProfileError
from assay.scoring.baseline import zero_knowledge
from assay.scoring.constants import MIN_CALIBRATION_CLAIMS
from assay.scoring.measure import MAXIMA, measure
from assay.scoring.nulls import Null
from assay.scoring.profile import Group, Profile
from assay.scoring.profile_key import ProfileKey
from assay.scoring.result import Verdict
from assay.scoring.samples import ClaimRecord, record_of, table
from assay.scoring.tail import upper_p

NOT_ONE_CONDITION: Final = {
    "different_tokens": "the replay did not follow the claimed tokens",
    "different_length": "the replay has another length",
    "replay_incomplete": "the replay ended early",
    "prompt_mismatch": "the two sides ran different prompts",
    "spelling_mismatch": "one side spells ids, the other text",
    "mode_mismatch": "the two sides are in different log probability modes",
    "mode_inferred": "the log probability mode was only guessed",
    "k_mismatch": "the two sides list different numbers of alternatives",
    "not_finite": "a number is NaN or infinite",
    "malformed": "the numbers are no log probabilities",
    "one_sided_evidence": "only one side has log probabilities",
    "partial_evidence": "alternatives are missing at many positions",
    "no_evidence": "nothing can be compared, or every position says the same",
    "claim_rejected_by_engine": "no engine accepts the claim",
}
"""Reasons of a verdict that show a run to be no honest run of one condition, whatever its
distances. Reasons that come from distances (``similarity_below``, ``ceiling``, ...) are not among
them: the distances are what a profile is to learn."""
OUTLIER: Final = 0.01
"""A claim is named as an outlier when its p-value among the others, times their number, is below."""


@dataclass(frozen=True)
class HonestRun:
    """A claim that is known to be honest, its replay, and what was concluded without a profile.

    ``name`` tells the claim from others (a digest); ``replay`` is ``None`` when none was made.
    ``run`` names the run it belongs to, where runs of equal conditions are to be kept apart.
    """

    name: str
    claim: Claim
    replay: Replay | None
    verdict: Verdict
    run: str = ""


def make_profile(name: str, runs: Sequence[HonestRun]) -> Profile:
    """A profile of ``runs``, in groups by the conditions of both sides and the run.

    A claim that comes twice under the same conditions counts once (the last). Raises ProfileError
    for runs that are no honest runs of one condition, for mixed paths, modes or models, and for
    a group of fewer than ``MIN_CALIBRATION_CLAIMS`` claims.
    """
    if not runs:
        raise ProfileError(
            "no results to calibrate from; run `assay verify` on honest claims first"
        )
    pairs = _usable(runs)
    groups: dict[tuple[ProfileKey, str], dict[str, ClaimRecord]] = {}
    for run, replay in pairs:
        record = record_of(measure(run.claim, replay), run.name)
        which = ProfileKey.of(run.claim, replay), run.run
        groups.setdefault(which, {})[run.name] = record
    _of_one_kind([key for key, _ in groups])
    for (key, of_run), held in groups.items():
        long_enough = sum(bool(record.series) for record in held.values())
        if long_enough < MIN_CALIBRATION_CLAIMS:
            where = f"{key.label()}{f', run {of_run}' if of_run else ''}"
            raise ProfileError(
                f"{where}: {long_enough} claims long enough to measure, and at least"
                f" {MIN_CALIBRATION_CLAIMS} are needed for one set of conditions; verify more honest"
                " claims"
            )
    first, _ = next(iter(groups))
    baseline = zero_knowledge([(run.claim, replay) for run, replay in pairs])
    return Profile(
        name=name,
        path=first.path,
        mode=first.mode,
        groups=tuple(
            Group(key=key, run=run, records=tuple(held.values()))
            for (key, run), held in groups.items()
        ),
        baseline=tuple({r.claim: r for r in (record_of(m) for m in baseline) if r.series}.values()),
    )


def _usable(runs: Sequence[HonestRun]) -> list[tuple[HonestRun, Replay]]:
    refused: Counter[str] = Counter()
    examples: dict[str, str] = {}
    pairs = []
    for run in runs:
        why = _why_refused(run)
        if why is not None:
            refused[why] += 1
            examples.setdefault(why, run.claim.id)
        if run.replay is not None:
            pairs.append((run, run.replay))
    if refused:
        said = "; ".join(
            f"{count} x {why} (first: claim {examples[why]})" for why, count in refused.items()
        )
        raise ProfileError(
            f"{refused.total()} of {len(runs)} results are no honest runs of one condition: {said}."
            " Take them out, or find out why an honest run shows this"
        )
    return pairs


def _why_refused(run: HonestRun) -> str | None:
    if run.replay is None:
        return "no_replay: the claim was never replayed"
    for reason in run.verdict.reasons:
        if reason.code in NOT_ONE_CONDITION:
            return f"{reason.code}: {NOT_ONE_CONDITION[reason.code]}"
    failed = next((check for check in run.verdict.account if check.outcome == "fail"), None)
    return None if failed is None else f"{failed.code}: the claim contradicts itself"


def _of_one_kind(keys: Sequence[ProfileKey]) -> None:
    for what, found in (
        ("replay paths", {key.path for key in keys}),
        ("log probability modes", {str(key.mode) for key in keys}),
        ("models", {str(key.validator.model_digest or key.validator.model) for key in keys}),
    ):
        if len(found) > 1:
            raise ProfileError(
                f"the results mix {what} ({', '.join(sorted(found))}); a profile never does,"
                " calibrate each by itself"
            )


def warnings(profile: Profile) -> list[str]:
    """What somebody who means to use ``profile`` should know."""
    found = []
    for group in profile.groups:
        where = group.key.label()
        scores, _ = table(group.records, "value_distance")
        if len(scores) and not scores.any():
            found.append(
                f"{where}: every value distance is 0, so both engines computed the same bits, and"
                " the scale of honest differences is an assumption. Calibrate on another batch"
                " composition too, or honest claims may stand out"
            )
        for name in profile.nulls:
            found += [
                f"{where}: claim {record.claim[:16]} stands out by {name} (p {p:.1g} among the"
                " others); is it honest?"
                for record, p in _outliers(group, name)
            ]
    return found


def _outliers(group: Group, statistic: str) -> list[tuple[ClaimRecord, float]]:
    records = [record for record in group.records if statistic in record.series]
    if len(records) < MIN_CALIBRATION_CLAIMS or statistic in MAXIMA:
        return []
    sample = group.sample(statistic)
    null, whole = Null(statistic, (sample,)), sample.scores[:, -1]
    found = []
    for index, record in enumerate(records):
        least = null.least(sample, record.series[statistic].length)
        p = upper_p(np.delete(whole, index), float(whole[index]), least)
        if p * len(records) < OUTLIER:
            found.append((record, p))
    return found
