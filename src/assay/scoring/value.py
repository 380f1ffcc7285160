"""The value channel: how far the claimed distribution of a position is from the validator's."""

from __future__ import annotations

import math

import numpy as np

from assay.scoring.arrays import NO_REPLAY, Bools, Floats, ScoreArrays
from assay.scoring.constants import (
    IMPOSSIBLE_WIRE,
    MIN_POSITIONS,
    NON_FINITE_TERM,
    RELATIVE_GUARD,
    SHORT_CORRECTION,
    SINGLE_ENTRY_GAP,
)

CHUNK = 4096
"""Positions worked on at once, so that the temporaries of one chunk stay in the cache."""


def published_distances(arrays: ScoreArrays) -> Floats:
    """Distance [positions] of each position as the networks compute it, in [0, 0.5].

    With O the claimed map id -> log probability and V the validator's list of k entries:
    ``next = m1 - (m2 - m1)`` of O's two smallest values (one entry: m2 = m1 - 100), and the
    distance is the mean over V of ``|v - o| / (1e-6 + |v| + |o|) / 2`` with o = O[id] or ``next``;
    a term that is not finite is 0.5. Source: spec replay, section 4. Positions where a side lists
    nothing are NaN: there is no comparison.
    """
    out = np.full(len(arrays), np.nan)
    if arrays.claim_keys.shape[1] == arrays.replay_keys.shape[1] > 0:
        done = _aligned_distances(arrays, out)
    else:
        done = np.zeros(len(arrays), dtype=np.bool_)
    others = np.flatnonzero(~done)
    for start in range(0, len(others), CHUNK):
        rows = others[start : start + CHUNK]
        out[rows] = _any_distances(arrays.take(rows))
    return out


def _aligned_distances(arrays: ScoreArrays, out: Floats) -> Bools:
    """Fill ``out`` for the rows that list the same ids in the same order, most of an honest pair,
    and return which rows that were. They need no matching and no ``next``.

    Log probabilities are at most 0, so ``|v| + |o|`` is ``-(v + o)``; a chunk with a value above 0
    is left to the general path, and so is a row whose result is not finite or has an empty slot
    (the empty keys of the two sides differ).
    """
    width = arrays.claim_keys.shape[1]
    shape = (min(CHUNK, len(arrays)), width)
    terms, sizes = np.empty(shape, order="F"), np.empty(shape, order="F")
    same = np.empty(shape, dtype=np.bool_, order="F")
    done = np.zeros(len(arrays), dtype=np.bool_)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(arrays), CHUNK):
            rows = slice(start, min(start + CHUNK, len(arrays)))
            claimed, replayed = arrays.claim_logprobs[rows], arrays.replay_logprobs[rows]
            # Written so that NaN takes the general path too.
            if not (claimed.max() <= 0.0 and replayed.max() <= 0.0):
                continue
            term, size = terms[: len(claimed)], sizes[: len(claimed)]
            np.add(replayed, claimed, out=size)
            np.subtract(RELATIVE_GUARD, size, out=size)
            np.subtract(replayed, claimed, out=term)
            term /= size
            np.abs(term, out=term)
            total = out[rows]
            np.add.reduce(term, axis=1, out=total)
            total /= 2 * width
            equal = same[: len(claimed)]
            np.equal(arrays.claim_keys[rows], arrays.replay_keys[rows], out=equal)
            np.logical_and.reduce(equal, axis=1, out=done[rows])
            done[rows] &= np.isfinite(total)
    return done


def _any_distances(arrays: ScoreArrays) -> Floats:
    """The published distance of any rows, by matching every pair of slots."""
    claimed, found = claimed_for_replay(arrays)
    empty = arrays.replay_keys == NO_REPLAY
    missing = np.flatnonzero(~(found | empty).all(axis=1) & arrays.comparable)
    if len(missing):
        smallest, second = _two_smallest(arrays.take(missing))
        following = smallest - (second - smallest)
        claimed[missing] = np.where(found[missing], claimed[missing], following[:, None])
    replayed = arrays.replay_logprobs
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        terms = _terms(claimed, replayed)
        terms[empty] = 0.0
        distances = np.asarray(terms.sum(axis=1) / arrays.replay_counts)
    distances[~arrays.comparable] = np.nan
    return distances


def _terms(claimed: Floats, replayed: Floats) -> Floats:
    """``|v - o| / (1e-6 + |v| + |o|) / 2`` [positions, k], 0.5 where that is not finite."""
    sizes = np.abs(replayed)
    sizes += np.abs(claimed)
    sizes += RELATIVE_GUARD
    terms = replayed - claimed
    np.abs(terms, out=terms)
    terms /= sizes
    terms /= 2
    terms[~np.isfinite(terms)] = NON_FINITE_TERM
    return terms


def _two_smallest(arrays: ScoreArrays) -> tuple[Floats, Floats]:
    """Smallest and second smallest claimed value [positions]; the sign quirk for single entries.

    Every position must list something."""
    width = arrays.claim_logprobs.shape[1]
    listed = np.arange(width) < arrays.claim_counts[:, None]
    values = np.sort(np.where(listed, arrays.claim_logprobs, np.inf), axis=1)
    smallest, second = values[:, 0], values[:, min(1, width - 1)].copy()
    single = arrays.claim_counts == 1
    second[single] = smallest[single] - SINGLE_ENTRY_GAP
    return smallest, second


def claimed_for_replay(arrays: ScoreArrays) -> tuple[Floats, Bools]:
    """Claimed value of each replayed key, and whether the claim has it: [positions, k of replay].

    Where it has not, the value means nothing.
    """
    slots = np.zeros(arrays.replay_keys.shape, dtype=np.int16, order="F")  # claimed slot + 1
    same = np.empty(slots.shape, dtype=np.bool_, order="F")
    step = np.empty_like(slots)
    for slot in range(arrays.claim_keys.shape[1]):
        np.equal(arrays.replay_keys, arrays.claim_keys[:, slot : slot + 1], out=same)
        # Keys of a side are distinct, so at most one slot adds to each place: a sum is a choice.
        np.multiply(same, np.int16(slot + 1), out=step)
        slots += step
    found = slots > 0
    if not arrays.claim_logprobs.shape[1]:
        return np.zeros(slots.shape), found
    flat = np.ascontiguousarray(arrays.claim_logprobs.T).ravel()  # rank after rank
    places = np.maximum(slots, 1).astype(np.intp)
    places -= 1
    places *= len(arrays)
    places += np.arange(len(arrays))[:, None]
    return flat[places], found


def distances(arrays: ScoreArrays) -> Floats:
    """Distance [positions] of each position as our verdict uses it, in [0, 0.5].

    The published formula with three repairs, so that it is equal to it wherever both sides list k
    possible alternatives:

    - Padding is no evidence (case 8): slots that are impossible on the validator's side add no
      term, and the sum is divided by the alternatives that are possible anywhere in the replay (at
      most k), not by k. Otherwise asking for 20 alternatives of a sampler that keeps 2 would
      shrink every distance tenfold.
    - A side that lists fewer possible alternatives than it has slots says that everything else is
      impossible. An alternative that is possible for one side and not for the other is a
      contradiction and counts 0.5, whichever side it is on; which padding ids were listed does
      not matter.
    - With a single claimed alternative ``next`` lies 100 nats below it, not above.

    NaN where a side lists nothing.
    """
    claim_possible, replay_possible = arrays.claim_possible, arrays.replay_possible
    claimed, found = claimed_for_replay(arrays)
    claimed = np.where(found, claimed, _next(arrays, claim_possible)[:, None])
    with np.errstate(invalid="ignore", over="ignore"):
        terms = _terms(claimed, arrays.replay_logprobs)
    terms[replay_possible & (claimed <= IMPOSSIBLE_WIRE)] = NON_FINITE_TERM
    terms[~replay_possible] = 0.0
    lost = _only_claimed(arrays, claim_possible, replay_possible)
    possible = replay_possible.sum(axis=1)
    widest = int(possible.max(initial=0))
    total = terms.sum(axis=1) + lost * NON_FINITE_TERM
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.asarray(total / np.maximum(widest, possible + lost))
    result[(possible + lost) == 0] = 0.0
    result[~arrays.comparable] = np.nan
    return result


def _next(arrays: ScoreArrays, possible: Bools) -> Floats:
    """Value [positions] of an alternative the claim does not list: impossible where the claim has
    padding, since then it lists all that can occur."""
    count = possible.sum(axis=1)
    result = np.full(len(arrays), IMPOSSIBLE_WIRE)
    complete = np.flatnonzero((count > 0) & (count == arrays.claim_counts))
    if len(complete):
        smallest, second = _two_smallest(arrays.take(complete))
        gap = np.where(count[complete] > 1, second - smallest, SINGLE_ENTRY_GAP)
        result[complete] = smallest - gap
    return result


def _only_claimed(
    arrays: ScoreArrays, claim_possible: Bools, replay_possible: Bools
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """[positions]: claimed alternatives that the validator's padding says are impossible, at most
    as many as there is padding."""
    found = np.zeros(arrays.claim_keys.shape, dtype=np.bool_)
    for slot in range(arrays.replay_keys.shape[1]):
        same = arrays.claim_keys == arrays.replay_keys[:, slot : slot + 1]
        found |= same & replay_possible[:, slot : slot + 1]
    missing = (claim_possible & ~found).sum(axis=1)
    padding = arrays.replay_counts - replay_possible.sum(axis=1)
    return np.asarray(np.minimum(missing, padding), dtype=np.int64)


def similarity_first(arrays: ScoreArrays, published: Floats) -> float:
    """First generation: ``1 - sum(terms) / (max(100, N) * k)``, not below 0.

    ``published`` [positions] are ``published_distances``; ``k`` is the length of the *claim's*
    first list, as the recorded numbers show (labels.csv, qwen3-235b rows: 1 against 4).
    Raises ValueError with nothing to compare.
    """
    _refuse_nothing(published)
    terms = float((published * arrays.replay_counts).sum())
    k = int(arrays.claim_counts[0])
    return max(0.0, 1 - terms / (max(MIN_POSITIONS, len(published)) * k))


def similarity_second(published: Floats) -> float:
    """Second generation: ``1 - max(sum(d)/N - 0.10/sqrt(N), sum(d)/max(N, 100))``.

    Raises ValueError with nothing to compare.
    """
    _refuse_nothing(published)
    positions = len(published)
    total = float(published.sum())
    mean = max(
        total / positions - SHORT_CORRECTION / math.sqrt(positions),
        total / max(positions, MIN_POSITIONS),
    )
    return 1 - mean


def _refuse_nothing(published: Floats) -> None:
    if not len(published):
        raise ValueError("no position to compare: there is no similarity")
