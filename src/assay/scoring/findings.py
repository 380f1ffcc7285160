"""What stands between two sides and a fair comparison, each finding with its consequence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from assay.claims.account import Check
from assay.claims.claim import Claim, Replay
from assay.claims.positions import IMPOSSIBLE, Position
from assay.scoring.arrays import Bools, Floats, ScoreArrays
from assay.scoring.constants import CEILING_SHARE, IMPOSSIBLE_WIRE, MASS_TOLERANCE
from assay.scoring.result import Reason
from assay.scoring.signals import one_sided_padding, other_prompt, scale_factor

Effect = Literal["fail", "block", "hold"]
"""``fail``: counts against the claim whatever the distances say. ``block``: the distances mean
nothing, so they neither pass nor fail it. ``hold``: no pass, but distances may still fail it."""

LOGITS = ("raw_logits", "processed_logits")


@dataclass(frozen=True)
class Finding:
    effect: Effect
    reason: Reason


def finding(effect: Effect, code: str, message: str, position: int | None = None) -> Finding:
    return Finding(effect, Reason(code=code, message=message, position=position))


def from_account(checks: Iterable[Check]) -> list[Finding]:
    """Every failed account check counts against the claim."""
    return [
        finding("fail", check.code, check.reason, check.position)
        for check in checks
        if check.outcome == "fail"
    ]


def evidence_present(claim: Claim, replay: Replay) -> list[Finding]:
    """Both sides need alternatives. Nothing on either side is no evidence; an executor that sends
    no log probabilities where the validator has them hides what it ran (case 46)."""
    ours, theirs = claim.positions or (), replay.positions or ()
    if not ours and not theirs:
        return [finding("block", "no_evidence", "neither side has log probabilities")]
    if not ours:
        return [
            finding(
                "fail",
                "one_sided_evidence",
                "the claim has no log probabilities and the replay has them; the executor must"
                " report them",
            )
        ]
    if not theirs:
        return [
            finding(
                "block",
                "one_sided_evidence",
                "the replay has no log probabilities; the validator must ask for them",
            )
        ]
    for name, side in (("claim", ours), ("replay", theirs)):
        if all(len(position.top) <= 1 for position in side):
            return [
                finding(
                    "block",
                    "no_evidence",
                    f"the {name} lists at most one alternative a position; there is no top-k"
                    " evidence to compare, ask for top_logprobs of 4 or more",
                )
            ]
        if all(position.effective_k <= 1 for position in side):
            return [
                finding(
                    "block",
                    "no_evidence",
                    f"all alternatives of the {name} but one a position are padding (-9999.0):"
                    " a distribution of one outcome proves nothing",
                )
            ]
    return []


def partial_evidence(arrays: ScoreArrays) -> list[Finding]:
    """Alternatives at some positions only: an executor must not choose what is compared.

    One position may be bare (an end token: case 9), or as many as the ceiling allows.
    """
    found = []
    allowed = max(1, math.floor(CEILING_SHARE * len(arrays)))
    for name, empty, other in (
        ("claim", arrays.claim_counts == 0, arrays.replay_counts > 0),
        ("replay", arrays.replay_counts == 0, arrays.claim_counts > 0),
    ):
        places = np.flatnonzero(empty & other)
        if len(places) > allowed:
            found.append(
                finding(
                    "hold",
                    "partial_evidence",
                    f"the {name} has no alternatives at {len(places)} of {len(arrays)} positions"
                    " where the other side has them",
                    int(places[0]),
                )
            )
    return found


def unreadable_numbers(claim: Claim, replay: Replay) -> list[Finding]:
    """NaN and +infinity, which readers refuse already, in data that was put together by hand."""
    found = []
    for effect, name, side in (
        ("fail", "claim", claim.positions or ()),
        ("block", "replay", replay.positions or ()),
    ):
        bad = next((i for i, p in enumerate(side) if not _finite(p)), None)
        if bad is not None:
            found.append(
                finding(
                    "fail" if effect == "fail" else "block",
                    "not_finite",
                    f"the {name} has a log probability that is NaN or infinite",
                    bad,
                )
            )
    return found


def _finite(position: Position) -> bool:
    values = (position.logprob, *(entry.logprob for entry in position.top))
    return all(v == IMPOSSIBLE or math.isfinite(v) for v in values)


def same_prompt(claim: Claim, replay: Replay) -> list[Finding]:
    why = other_prompt(claim, replay)
    if why is None:
        return []
    return [
        finding(
            "block",
            "prompt_mismatch",
            f"{why}: system prompt, template or tokenizer are not the same, and the distributions"
            " cannot be compared",
        )
    ]


def same_spelling(claim: Sequence[Position], replay: Sequence[Position]) -> list[Finding]:
    """Ids can only be compared with ids, text with text."""
    ours, theirs = _key_types(claim), _key_types(replay)
    if ours and theirs and ours != theirs:
        return [
            finding(
                "block",
                "spelling_mismatch",
                "one side spells alternatives as ids and the other as text; record and replay with"
                " return_tokens_as_token_ids",
            )
        ]
    return []


def _key_types(side: Sequence[Position]) -> set[type]:
    return {type(entry.key) for position in side for entry in position.top}


def same_mode(claim: Claim, replay: Replay, arrays: ScoreArrays) -> list[Finding]:
    """Raw and processed numbers are two different things; there is no way from one to the other
    with only the listed alternatives known, so none is offered (cases 1, 3)."""
    ours, theirs = claim.logprobs_mode, replay.logprobs_mode
    for name, mode in (("claim", ours), ("replay", theirs)):
        if mode in LOGITS:
            return [
                finding(
                    "block",
                    "mode_mismatch",
                    f"the {name} holds {mode}, which are no log probabilities",
                )
            ]
    if ours is not None and theirs is not None:
        if ours == theirs:
            return []
        return [
            finding(
                "block",
                "mode_mismatch",
                f"the claim is in {ours} and the replay in {theirs}; replay it in {ours}",
            )
        ]
    if one_sided_padding(arrays):
        return [
            finding(
                "block",
                "mode_mismatch",
                "a sampler cut the alternatives of one side only: one side is in raw and the other"
                " in processed mode; name the modes and replay in that of the claim",
            )
        ]
    factor = scale_factor(arrays)
    if factor is not None:
        return [
            finding(
                "block",
                "mode_mismatch",
                f"the alternatives of the two sides differ by a constant factor of {factor:.3g}, as"
                " raw and processed mode do at a temperature other than 1; name the modes and"
                " replay in that of the claim",
            )
        ]
    return []


def same_k(claim: Sequence[Position], replay: Sequence[Position], *, raw: bool) -> list[Finding]:
    """Both sides must list equally many alternatives.

    Completions list the drawn token beside the top k, so k may vary by one within a side: ranges
    that overlap are equal. In raw mode nothing is cut, and padding means that the server was asked
    for more than it gives (case 8): there the possible alternatives are counted.
    """
    ours, theirs = _range(claim, raw), _range(replay, raw)
    if ours is None or theirs is None or (ours[0] <= theirs[1] and theirs[0] <= ours[1]):
        return []
    what = "possible alternatives" if raw else "alternatives"
    return [
        finding(
            "block",
            "k_mismatch",
            f"the claim lists {_show(ours)} {what} a position and the replay {_show(theirs)};"
            " replay with the top_logprobs of the claim",
        )
    ]


def _range(side: Sequence[Position], raw: bool) -> tuple[int, int] | None:
    counts = [p.effective_k if raw else len(p.top) + p.duplicates for p in side if p.top]
    return (min(counts), max(counts)) if counts else None


def _show(counts: tuple[int, int]) -> str:
    return str(counts[0]) if counts[0] == counts[1] else f"{counts[0]} to {counts[1]}"


def is_distribution(claim: Claim, replay: Replay, arrays: ScoreArrays) -> list[Finding]:
    """Listed probabilities must not sum above 1, whoever lists them."""
    found = []
    bad = _overfull(arrays.claim_logprobs, arrays.claim_possible)
    if bad is not None:
        declared = claim.logprobs_mode is not None
        found.append(
            finding(
                "fail" if declared else "block",
                "malformed",
                "the claimed probabilities of one position sum above 1: these are no log"
                " probabilities" + ("" if declared else "; logits, perhaps: name the mode"),
                bad,
            )
        )
    bad = _overfull(arrays.replay_logprobs, arrays.replay_possible)
    if bad is not None:
        found.append(
            finding(
                "block",
                "mode_mismatch",
                "the probabilities of the replay sum above 1: the validator's server sends logits,"
                " or a broken distribution",
                bad,
            )
        )
    return found


def _overfull(logprobs: Floats, possible: Bools) -> int | None:
    with np.errstate(over="ignore"):
        chances = np.where(possible, np.exp(np.where(possible, logprobs, 0.0)), 0.0)
    places = np.flatnonzero(~(chances.sum(axis=1) <= 1 + MASS_TOLERANCE))
    return int(places[0]) if len(places) else None


def not_constant(arrays: ScoreArrays, informative: Bools) -> list[Finding]:
    """A claim that repeats one list of numbers at every position was not computed by a model."""
    rows = np.flatnonzero(informative)
    if len(rows) < 2:
        return []
    values = np.where(arrays.claim_possible[rows], arrays.claim_logprobs[rows], IMPOSSIBLE_WIRE)
    values = np.sort(values, axis=1)
    if not (values == values[0]).all():
        return []
    return [
        finding(
            "hold",
            "no_evidence",
            "every position of the claim carries the same log probabilities; no model gives that",
            int(rows[0]),
        )
    ]
