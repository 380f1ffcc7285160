"""Positions as padded arrays, the form every score is computed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.claims.positions import IMPOSSIBLE, Position, TokenKey, TopEntry
from assay.scoring.constants import IMPOSSIBLE_WIRE

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NO_CLAIM = -1
NO_REPLAY = -2
"""Keys of empty slots; different, so that an empty slot never matches another."""
EMPTY = -np.inf
"""Log probability of empty slots: below every other, the impossible included."""


@dataclass(frozen=True)
class ScoreArrays:
    """Two sides of ``positions`` compared positions, alternatives in the order they were sent.

    ``*_keys`` int32 [positions, k]: vocabulary ids, or where a key is text one number for each
    key of the pair. ``*_logprobs`` float64 [positions, k], natural log, impossible = -9999.0,
    empty slots -inf. ``k`` differs between the sides and is the widest position's.
    ``*_counts`` int32 [positions]: entries listed. All in column-major order, so that one rank of
    all positions is contiguous.
    """

    claim_keys: Ints
    claim_logprobs: Floats
    claim_counts: Ints
    replay_keys: Ints
    replay_logprobs: Floats
    replay_counts: Ints

    def __len__(self) -> int:
        return len(self.claim_counts)

    @property
    def comparable(self) -> Bools:
        """[positions]: both sides list at least one alternative."""
        return (self.claim_counts > 0) & (self.replay_counts > 0)

    @property
    def claim_possible(self) -> Bools:
        """[positions, k]: the slot holds an alternative that can occur."""
        return np.asarray(self.claim_logprobs > IMPOSSIBLE_WIRE)

    @property
    def replay_possible(self) -> Bools:
        """[positions, k] as ``claim_possible``."""
        return np.asarray(self.replay_logprobs > IMPOSSIBLE_WIRE)

    def first(self, positions: int) -> ScoreArrays:
        """The arrays of the first ``positions`` positions, sharing memory with these."""
        return ScoreArrays(
            self.claim_keys[:positions],
            self.claim_logprobs[:positions],
            self.claim_counts[:positions],
            self.replay_keys[:positions],
            self.replay_logprobs[:positions],
            self.replay_counts[:positions],
        )

    def take(self, rows: NDArray[np.intp]) -> ScoreArrays:
        """The arrays of the positions ``rows``, copied."""
        return ScoreArrays(
            np.take(self.claim_keys.T, rows, axis=1).T,
            np.take(self.claim_logprobs.T, rows, axis=1).T,
            self.claim_counts[rows],
            np.take(self.replay_keys.T, rows, axis=1).T,
            np.take(self.replay_logprobs.T, rows, axis=1).T,
            self.replay_counts[rows],
        )


def build_arrays(claim: Sequence[Position], replay: Sequence[Position]) -> ScoreArrays:
    """Arrays of the positions both sides have; the longer side's rest is left out."""
    count = min(len(claim), len(replay))
    sides = ([p.top for p in claim[:count]], [p.top for p in replay[:count]])
    ours, theirs = ([e.key for top in side for e in top] for side in sides)
    our_keys, their_keys = _as_ids(ours), _as_ids(theirs)
    if our_keys is None or their_keys is None:
        our_keys, their_keys = _numbered(ours, theirs)
    return ScoreArrays(
        *_side(sides[0], our_keys, NO_CLAIM), *_side(sides[1], their_keys, NO_REPLAY)
    )


def _as_ids(keys: list[TokenKey]) -> Ints | None:
    """The keys themselves where all are vocabulary ids of ordinary size, else ``None``."""
    if not set(map(type, keys)) <= {int}:
        return None
    try:
        numbers = np.array(keys, dtype=np.int32)
    except OverflowError:
        return None
    return numbers if not len(numbers) or numbers.min() >= 0 else None


def _numbered(ours: list[TokenKey], theirs: list[TokenKey]) -> tuple[Ints, Ints]:
    """A number for each distinct key of the pair."""
    numbers: dict[TokenKey, int] = {}
    for key in (*ours, *theirs):
        numbers.setdefault(key, len(numbers))
    return (
        np.array([numbers[key] for key in ours], dtype=np.int32),
        np.array([numbers[key] for key in theirs], dtype=np.int32),
    )


def _side(tops: list[tuple[TopEntry, ...]], numbers: Ints, empty: int) -> tuple[Ints, Floats, Ints]:
    counts = np.array([len(top) for top in tops], dtype=np.int32)
    flat = np.array([e.logprob for top in tops for e in top], dtype=np.float64)
    flat[flat == IMPOSSIBLE] = IMPOSSIBLE_WIRE
    width = int(counts.max(initial=0))
    if len(flat) == width * len(counts):
        shape = (len(counts), width)
        return (
            np.asfortranarray(numbers.reshape(shape)),
            np.asfortranarray(flat.reshape(shape)),
            counts,
        )
    filled = np.arange(width) < counts[:, None]  # [positions, width]
    keys = np.full((len(counts), width), empty, dtype=np.int32)
    values = np.full((len(counts), width), EMPTY)
    keys[filled] = numbers
    values[filled] = flat
    return np.asfortranarray(keys), np.asfortranarray(values), counts
