"""The choice channel from a decode replay: the plugin saw what the engine would have drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assay.claims.claim import Evidence, Tape
from assay.scoring.arrays import Bools, Floats
from assay.scoring.choice_form import PROCESSED, RAW, Asked, Choice, UnavailableError, entropies
from assay.scoring.constants import CONTRADICTION_SLACK, SHAPED_SLACK
from assay.scoring.draws import Ints, kept_by, lists_of
from assay.scoring.signals import first_disagreement
from assay.scoring.tape import REPEATABLE, tape_name


def assumptions(asked: Asked, evidence: Evidence) -> tuple[str, ...]:
    """What has to be assumed for the replay's draws to be the origin's.

    Raises UnavailableError where they cannot be: another noise, or another kind of device.
    """
    if asked.sampling.greedy:
        return ()
    mine, theirs = evidence.tape, asked.claim.tape
    if theirs is None:
        name = tape_name(mine) if mine else f"runner {evidence.runner.upper()}"
        return (
            "the claim does not say what turned its seed into draws (claim.tape); the validator's"
            f" own was taken: {name}",
        )
    if mine is None:
        if evidence.runner != theirs.runner:
            mine = Tape(runner=evidence.runner)
        else:
            return ("the validator's server does not say by which noise it drew",)
    if (mine.runner, mine.generation, mine.fp64) != (theirs.runner, theirs.generation, theirs.fp64):
        raise UnavailableError(
            "other_tape",
            f"the claim was drawn by {tape_name(theirs)} and the replay by {tape_name(mine)}: equal"
            " seeds draw other tokens there",
        )
    if (mine.runner, mine.generation) in REPEATABLE:
        return ()
    if mine.device is None or theirs.device is None:
        return ("one side does not say on which kind of device runner V1's generator ran",)
    if mine.device != theirs.device:
        raise UnavailableError(
            "other_device",
            f"runner V1 draws from a generator of the device: the claim's was on {theirs.device},"
            f" the validator's on {mine.device}",
        )
    return ()


def from_evidence(asked: Asked, evidence: Evidence) -> Choice:
    """The choice evidence in ``evidence``. Raises UnavailableError where it covers no position."""
    count = _covered(asked, evidence)
    sampling = asked.sampling
    drawn = np.array(evidence.drawn[:count], dtype=np.int64)
    claimed = np.array(asked.tokens[:count], dtype=np.int64)
    noise = _column(evidence.noise_drawn, count) - _column(evidence.noise_forced, count)
    if sampling.greedy:
        noise = np.zeros(count)
    forced = _column(evidence.logprob_processed, count)
    raw = _column(evidence.drawn_raw, count) - _column(evidence.logprob_raw, count)
    mismatch = drawn != claimed
    listed = len(evidence.logprob_processed) >= count
    cut = np.isnan(forced) if listed else np.zeros(count, dtype=np.bool_)
    # Where a cut took the claimed id out, the scores before the cut say how far it was off.
    uncut = raw / sampling.divisor + noise
    if sampling.temperature is None:
        uncut = np.full(count, np.nan)
    lead = np.where(cut, uncut, _column(evidence.drawn_processed, count) - forced + noise)
    own, own_cut = _own_leads(asked, claimed, drawn, noise, (lead - raw / sampling.divisor))
    entropy, by_luck = entropies(asked, count)
    return Choice(
        source="evidence",
        greedy=sampling.greedy,
        positions=np.arange(count),
        mismatch=mismatch,
        margin=np.where(mismatch, np.maximum(lead, 0.0), 0.0),
        own=np.where(mismatch, own, 0.0),
        own_cut=own_cut,
        cut=cut,
        entropy=entropy,
        by_luck=by_luck,
        noise=bool(np.isfinite(noise).any()),
        slack=SHAPED_SLACK * sampling.sharper if _shaped(asked) else CONTRADICTION_SLACK,
        sharper=sampling.sharper,
        assumed=asked.assumed,
    )


def _shaped(asked: Asked) -> bool:
    """Fields that raw log probabilities do not show shape the draw, or may do so."""
    sampling = asked.sampling
    if asked.claim.logprobs_mode != RAW:
        return False
    return bool(sampling.reshaped) or "repetition_penalty" in sampling.unnamed


def _covered(asked: Asked, evidence: Evidence) -> int:
    """Positions from the first on that the evidence speaks about."""
    count = min(len(evidence.drawn), len(asked.tokens))
    if evidence.grammar_conflict is not None:
        # From there on the replay ran without the grammar that shaped the origin's draws.
        count = min(count, evidence.grammar_conflict)
    parted = first_disagreement(asked.claim.positions or (), asked.replay.positions or ())
    count = count if parted is None else min(count, parted)
    if count == 0:
        raise UnavailableError("no_evidence", "the evidence of the replay covers no position")
    return count


def _column(values: Sequence[float | None], count: int) -> Floats:
    """[count], NaN where nothing is known; all NaN where the server sent too few."""
    if len(values) < count:
        return np.full(count, np.nan)
    return np.array([np.nan if v is None else v for v in values[:count]], dtype=np.float64)


def _own_leads(
    asked: Asked, claimed: Ints, drawn: Ints, noise: Floats, shaping: Floats
) -> tuple[Floats, Bools]:
    """Lead [n] of the validator's draw over the claimed id on the claim's own numbers, and whether
    the claim's own numbers exclude the claimed id [n].

    In processed mode the claim lists what the executor drew from. In raw mode ``shaping`` [n] adds
    what is not in raw log probabilities: noise, penalties and biases as they changed the lead on
    the validator's side. NaN where the claim does not list the drawn id, or where a cut may have
    taken it out on the executor's side.
    """
    count, sampling, held = len(claimed), asked.sampling, asked.claim.positions or ()
    mode = asked.claim.logprobs_mode
    unknown, never = np.full(count, np.nan), np.zeros(count, dtype=np.bool_)
    if len(held) < count or mode not in (RAW, PROCESSED):
        return unknown, never
    lists = lists_of(held[:count], claimed.tolist())
    at = lists.keys == drawn[:, None]
    rows, place = np.arange(count), at.argmax(axis=1)
    theirs = np.where(at.any(axis=1), lists.logprobs[rows, place], np.nan)
    with np.errstate(invalid="ignore"):
        difference = theirs - lists.claimed
    difference[~np.isfinite(difference)] = np.nan
    kept = kept_by(lists, sampling, processed=mode == PROCESSED)
    if mode == PROCESSED:
        return difference + noise, kept.claimed_cut
    defaults = {"top_k", "top_p", "min_p"} & set(sampling.unnamed)
    hidden = not sampling.greedy and (sampling.cuts or bool(defaults))
    if sampling.temperature is None or (sampling.reshaped and hidden):
        return unknown, never
    surely = kept.listed[rows, place]
    if defaults and not sampling.greedy:
        # The server may cut by defaults of its own; no cut takes an id and leaves a less likely one.
        surely = surely & (theirs > lists.claimed)
    lead = difference / sampling.divisor + shaping
    return np.where(surely, lead, np.nan), never if sampling.reshaped else kept.claimed_cut
