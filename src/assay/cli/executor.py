"""What the claims of one executor say together, at the end of ``assay verify``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from assay.cli.console import stdout
from assay.scoring.evalues import Accumulated, accumulate
from assay.scoring.measure import measure
from assay.scoring.profile import Profile, find_profile
from assay.store.result import VerifyResult


def executor_evidence(
    results: Sequence[VerifyResult],
    profiles: Sequence[Profile],
    fpr: float,
    *,
    allow_unknown: bool = False,
) -> Accumulated | None:
    """The evidence of all ``results`` in their order, as of one executor; ``None`` without
    profiles. Results without a replay are skipped."""
    if not profiles:
        return None
    measured = []
    for result in results:
        if result.replay is not None:
            match = find_profile(profiles, result.claim, result.replay, allow_unknown=allow_unknown)
            found = measure(result.claim, result.replay, kind="enforced")
            measured.append((match.profile, found))
    return accumulate(measured, fpr)


def verdicts_of(results: Sequence[VerifyResult], executor: Accumulated | None) -> list[str]:
    """Every verdict, and ``fail`` for an executor whose claims together convict it."""
    found = [str(result.verdict.verdict) for result in results]
    convicted = executor is not None and executor.outcome == "convicted"
    return [*found, "fail"] if convicted else found


def print_executor(results: Sequence[VerifyResult], executor: Accumulated | None) -> None:
    """One line on the executor, one on what no profile fits; nothing without profiles."""
    if executor is None:
        return
    console = stdout()
    console.print(f"executor: {describe(executor)}", markup=False)
    unfit = Counter(
        result.verdict.calibration
        for result in results
        if result.verdict.profile is None and result.verdict.calibration is not None
    )
    for reason, count in unfit.most_common(3):
        console.print(f"{count} claims without a profile: {reason}", markup=False)


def describe(executor: Accumulated) -> str:
    """The accumulated evidence for people."""
    said = {
        "convicted": "fails by the claims together",
        "not_shown": "no cheating shown by the claims together",
        "not_available": "not judged",
    }[executor.outcome]
    text = f"{said} ({executor.reason})"
    share = executor.share
    if share is not None:
        text += (
            f"; cheating in an estimated {share.share:.0%} of the claims"
            f" ({share.level:.0%} interval {share.low:.0%} to {share.high:.0%})"
        )
    return text
