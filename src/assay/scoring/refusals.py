"""Verdicts where no comparison could be made: unreadable claims, replays that did not happen."""

from __future__ import annotations

from assay.errors import ClaimError, ReplayError
from assay.scoring.result import Outcome, Reason, Verdict

CONTENT_CODES = frozenset({"malformed", "position_gap"})
"""ClaimError codes that an executor's own words cause, so that they count against it."""

KEPT_CODES = frozenset({"mode_mismatch", "no_evidence", "prompt_mismatch", "no_token_ids"})
"""ReplayError codes that say more than "the replay is not available"."""


def verdict_without_replay(error: ReplayError) -> Verdict:
    """The verdict when the validator's engine could not replay.

    A refusal that the claim's own content causes counts against it (case 46); an outage or a limit
    of the validator says nothing about the executor.
    """
    if error.blame == "claim":
        reason = Reason(code="claim_rejected_by_engine", message=str(error))
        return Verdict(verdict="fail", reasons=(reason,))
    code = error.code if error.code in KEPT_CODES else "replay_unavailable"
    return Verdict(
        verdict="inconclusive", reasons=(Reason(code=code, message=f"{error.code}: {error}"),)
    )


def verdict_on_unreadable_claim(error: ClaimError) -> Verdict:
    """The verdict on a body that is no claim: a fail where its content breaks the protocol
    (``malformed``, ``position_gap``: case 27), inconclusive where nothing was claimed at all."""
    outcome: Outcome = "fail" if error.code in CONTENT_CODES else "inconclusive"
    return Verdict(verdict=outcome, reasons=(Reason(code=error.code, message=str(error)),))


def verdict_on_unreadable_replay(error: ClaimError) -> Verdict:
    """A broken answer of the validator's own engine decides nothing."""
    message = f"the replay cannot be read: {error}"
    return Verdict(
        verdict="inconclusive", reasons=(Reason(code="replay_unavailable", message=message),)
    )
