"""Signals beside the distance: agreement, support, ceiling, entropy and flatness, mode factors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.claims.claim import Claim, Replay
from assay.claims.digest import prompt_digest
from assay.claims.positions import IMPOSSIBLE, Position
from assay.scoring.arrays import Bools, Floats, ScoreArrays
from assay.scoring.constants import (
    CEILING_DISTANCE,
    CEILING_SHARE,
    IMPOSSIBLE_WIRE,
    NEAR_BEST_NATS,
    PADDING_SHARE,
    SCALE_MIN_POSITIONS,
    SCALE_OFFSET,
    SCALE_SPREAD,
    SUPPORT_SHARE,
)
from assay.scoring.value import claimed_for_replay


def first_disagreement(claim: Sequence[Position], replay: Sequence[Position]) -> int | None:
    """Index of the first position whose tokens differ, ``None`` if there is none in the part that
    both sides have."""
    for index, (ours, theirs) in enumerate(zip(claim, replay, strict=False)):
        if ours.token != theirs.token:
            return index
    return None


def other_prompt(claim: Claim, replay: Replay) -> str | None:
    """Why the two sides are known to have run different prompts; ``None`` where they are not.

    A claim without prompt ids was rendered again: its count or its digest may still show that the
    executor's rendering was another one, by an honest date or default as well as by a lie.
    """
    ours, theirs = claim.prompt.token_ids, replay.prompt_token_ids
    if theirs is None or ours == theirs:
        return None
    length = claim.usage.prompt_tokens if ours is None else len(ours)
    digest = claim.prompt.digest
    if ours is None and length in (None, len(theirs)):
        if digest is None or digest.lower() == prompt_digest(theirs):
            return None
        return "the digest of the claim's prompt is not that of the replay's"
    place = ""
    if ours is not None:
        shortest = min(len(ours), len(theirs))
        first = next((i for i in range(shortest) if ours[i] != theirs[i]), shortest)
        place = f", different from prompt token {first} on"
    return f"the claim ran a prompt of {length} tokens and the replay one of {len(theirs)}{place}"


def top1_agreement(arrays: ScoreArrays) -> float:
    """Share of comparable positions where both sides have the same most likely alternative.

    A tie on the validator's side agrees with any of the tied. NaN with nothing to compare.
    """
    rows = arrays.comparable
    if not rows.any():
        return math.nan
    # Lists are sorted from likely to unlikely but for a drawn token at their head, so in most rows
    # both best alternatives stand first; only the others are searched.
    claim, replay = arrays.claim_logprobs, arrays.replay_logprobs
    agree = arrays.claim_keys[:, 0] == arrays.replay_keys[:, 0]
    agree &= claim[:, 0] == np.maximum.reduce(claim, axis=1)
    agree &= replay[:, 0] == np.maximum.reduce(replay, axis=1)
    others = np.flatnonzero(~agree & rows)
    if len(others):
        agree[others] = _same_best(arrays.take(others))
    return float(agree[rows].mean())


def _same_best(arrays: ScoreArrays) -> Bools:
    """[positions]: the replay gives the claim's best alternative its own best value."""
    place = arrays.claim_logprobs.argmax(axis=1)[:, None]
    best = np.take_along_axis(arrays.claim_keys, place, axis=1)
    replay = arrays.replay_logprobs
    is_best = replay == replay.max(axis=1, keepdims=True)
    return np.asarray(((arrays.replay_keys == best) & is_best).any(axis=1))


def entropies(logprobs: Floats, possible: Bools) -> Floats:
    """Entropy [positions] in nats of the listed alternatives plus the rest as one outcome.

    ``logprobs`` and ``possible`` [positions, k]. A lower bound of the true entropy: the rest is at
    least one outcome.
    """
    # A log probability is at most 0; where a server sent more, the verdict says so elsewhere.
    values = np.where(possible, np.minimum(logprobs, 0.0), 0.0)
    chances = np.where(possible, np.exp(values), 0.0)
    rest = np.clip(1 - chances.sum(axis=1), 0.0, None)
    with np.errstate(divide="ignore"):
        rest_term = np.where(rest > 0, -rest * np.log(np.where(rest > 0, rest, 1.0)), 0.0)
    return np.asarray(-(chances * values).sum(axis=1) + rest_term)


def near_best(logprobs: Floats, possible: Bools) -> Floats:
    """Alternatives [positions] within 1 nat of the best one, itself included; 0 without any."""
    if not logprobs.shape[1]:
        return np.zeros(len(logprobs))
    values = np.where(possible, logprobs, -np.inf)
    best = values.max(axis=1, keepdims=True)
    return np.asarray((possible & (values >= best - NEAR_BEST_NATS)).sum(axis=1), dtype=np.float64)


@dataclass(frozen=True)
class Count:
    """How many positions break a rule, how many may, and the first of them."""

    count: int
    allowed: int
    first: int | None

    @property
    def exceeded(self) -> bool:
        return self.count > self.allowed


def above_ceiling(distances: Floats) -> Count:
    """Positions with a distance above 0.30; floor(0.02 N) are allowed (spec replay, section 4)."""
    places = np.flatnonzero(distances > CEILING_DISTANCE)
    compared = int(np.isfinite(distances).sum())
    first = int(places[0]) if len(places) else None
    return Count(len(places), math.floor(CEILING_SHARE * compared), first)


def without_support(replay: Replay, positions: int) -> Count | None:
    """Positions whose forced token the validator's own sampler could not have drawn.

    max(1, ceil(0.03 N)) are allowed (spec replay, section 4). Taken from the plugin's evidence,
    which has the processed numbers of a raw replay too, else from a replay in processed mode.
    ``None`` where neither is there: a raw log probability says nothing about the sampler.
    """
    evidence = replay.evidence
    values: Sequence[float | None]
    if evidence is not None and len(evidence.logprob_processed) >= positions:
        values = evidence.logprob_processed[:positions]
    elif replay.logprobs_mode == "processed_logprobs" and replay.positions is not None:
        values = [p.logprob for p in replay.positions[:positions]]
    else:
        return None
    places = [index for index, v in enumerate(values) if v is None or v == IMPOSSIBLE]
    allowed = max(1, math.ceil(SUPPORT_SHARE * positions))
    return Count(len(places), allowed, places[0] if places else None)


def has_padding(arrays: ScoreArrays) -> bool:
    """True when a side lists an impossible alternative: a sampler, or a limit, cut it."""
    return bool(
        (arrays.claim_counts.sum() > arrays.claim_possible.sum())
        or (arrays.replay_counts.sum() > arrays.replay_possible.sum())
    )


def one_sided_padding(arrays: ScoreArrays) -> bool:
    """True when one side has padding and the other has none: a sampler cut only one of them."""
    claim_listed, replay_listed = arrays.claim_counts.sum(), arrays.replay_counts.sum()
    if not claim_listed or not replay_listed:
        return False
    claim = 1 - arrays.claim_possible.sum() / claim_listed
    replay = 1 - arrays.replay_possible.sum() / replay_listed
    return bool(min(claim, replay) == 0 and max(claim, replay) > PADDING_SHARE)


def scale_factor(arrays: ScoreArrays) -> float | None:
    """The factor between the two sides' differences of alternatives, where it is one and not 1.

    Log probabilities of one model in raw mode and in processed mode at temperature T have
    ``v_i - v_best = (o_i - o_best) / T`` at every position. The factor only names the mistake
    (cases 1, 3); nothing is ever rescaled with it. ``None`` where there is no such factor.
    """
    claimed, found = claimed_for_replay(arrays)
    both = found & arrays.replay_possible & (claimed > IMPOSSIBLE_WIRE)
    rows = both.sum(axis=1) >= 3
    if rows.sum() < SCALE_MIN_POSITIONS:
        return None
    both, claimed, replayed = both[rows], claimed[rows], arrays.replay_logprobs[rows]
    best = np.where(both, replayed, -np.inf).argmax(axis=1)[:, None]
    ours = replayed - np.take_along_axis(replayed, best, axis=1)
    theirs = claimed - np.take_along_axis(claimed, best, axis=1)
    # Differences below 0.1 nat are mostly rounding noise.
    usable = both & (np.abs(theirs) > 0.1)
    if usable.sum() < 2 * SCALE_MIN_POSITIONS:
        return None
    factors = ours[usable] / theirs[usable]
    middle = float(np.median(factors))
    if middle <= 0 or abs(middle - 1) < SCALE_OFFSET:
        return None
    spread = float(np.median(np.abs(factors - middle))) / middle
    return middle if spread < SCALE_SPREAD else None
