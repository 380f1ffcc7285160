"""Positions as padded arrays, the form every score is computed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.claims.positions import IMPOSSIBLE, Position, TokenKey
from assay.scoring.constants import IMPOSSIBLE_WIRE

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NO_CLAIM = -1
NO_REPLAY = -2
"""Keys of empty slots; different, so that an empty slot never matches another."""


@dataclass(frozen=True)
class ScoreArrays:
    """Two sides of ``positions`` compared positions, alternatives in the order they were sent.

    ``*_keys`` int32 [positions, k]: one number for each token key of the pair (no vocabulary id:
    text keys get numbers too). ``*_logprobs`` float64 [positions, k], natural log, impossible =
    -9999.0, empty slots 0.0. ``k`` differs between the sides and is the widest position's.
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
        return np.asarray((self.claim_keys != NO_CLAIM) & (self.claim_logprobs > IMPOSSIBLE_WIRE))

    @property
    def replay_possible(self) -> Bools:
        """[positions, k] as ``claim_possible``."""
        return np.asarray(
            (self.replay_keys != NO_REPLAY) & (self.replay_logprobs > IMPOSSIBLE_WIRE)
        )

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
    positions = min(len(claim), len(replay))
    numbers: dict[TokenKey, int] = {}
    return ScoreArrays(
        *_side(claim[:positions], numbers, NO_CLAIM), *_side(replay[:positions], numbers, NO_REPLAY)
    )


def _side(
    positions: Sequence[Position], numbers: dict[TokenKey, int], empty: int
) -> tuple[Ints, Floats, Ints]:
    counts = np.fromiter((len(p.top) for p in positions), dtype=np.int32, count=len(positions))
    width = int(counts.max(initial=0))
    total = int(counts.sum())
    flat_keys = np.fromiter(
        (numbers.setdefault(e.key, len(numbers)) for p in positions for e in p.top),
        dtype=np.int32,
        count=total,
    )
    flat_values = np.fromiter(
        (e.logprob for p in positions for e in p.top), dtype=np.float64, count=total
    )
    flat_values[flat_values == IMPOSSIBLE] = IMPOSSIBLE_WIRE
    filled = np.arange(width) < counts[:, None]  # [positions, width]
    keys = np.full((len(positions), width), empty, dtype=np.int32)
    values = np.zeros((len(positions), width), dtype=np.float64)
    keys[filled] = flat_keys
    values[filled] = flat_values
    return np.asfortranarray(keys), np.asfortranarray(values), counts
