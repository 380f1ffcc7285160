"""The form of the choice evidence, and what both ways of getting it need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from assay.claims.claim import Claim, Replay
from assay.claims.positions import Position
from assay.scoring.arrays import Bools, Floats
from assay.scoring.constants import CONTRADICTION_SLACK
from assay.scoring.draws import Ints, lists_of
from assay.scoring.sampling import Sampling

PROCESSED: Final = "processed_logprobs"
RAW: Final = "raw_logprobs"


@dataclass(frozen=True)
class NoChoice:
    """The channel cannot look: ``code`` is stable, ``reason`` is for people."""

    code: str
    reason: str


class UnavailableError(Exception):
    """Raised inside the choice modules only; ``choice.choose`` turns it into ``NoChoice``."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.what = NoChoice(code, reason)


@dataclass(frozen=True)
class Choice:
    """What was drawn at the output positions ``positions`` [n].

    ``source``: ``evidence`` of a decode replay, or drawn again from ``lists``. ``mismatch`` [n]:
    the validator's draw is another id than the claimed one. ``margin`` [n] nats: by how much it
    beats the claimed one, 0 where they are equal, NaN where nobody knows. ``cut`` [n]: the
    validator's sampler cannot draw the claimed id at all; its margin is then that before the cut.

    ``own`` [n]: the lead (nats) over the claimed id on the claim's own numbers, at most 0 where
    the claimed id wins, NaN where its list does not say; ``own_cut`` [n]: by its own numbers the
    request's cuts take the claimed id out. ``entropy`` [n] nats of the validator's sampling
    distribution, NaN without a list. ``by_luck`` [n]: the chance that a draw with other noise
    comes out as this one. ``noise``: somebody knows the noise of the draws; without it margins are
    known only where the ids are equal. ``slack``: nats by which ``own`` may be off. ``sharper``: how
    many times the request's temperature makes differences larger (at least 1). ``unseen``: at
    most this many mismatches can be missing, expected over all positions. ``assumed``: what nobody
    stated; where it is not true, agreement still shows the seed at work and disagreement nothing.
    """

    source: Literal["evidence", "lists"]
    greedy: bool
    positions: Ints
    mismatch: Bools
    margin: Floats
    own: Floats
    own_cut: Bools
    cut: Bools
    entropy: Floats
    by_luck: Floats
    noise: bool = True
    slack: float = CONTRADICTION_SLACK
    sharper: float = 1.0
    unseen: float = 0.0
    assumed: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True)
class Asked:
    """A claim and its replay, with what the request says about draws, the claimed ids, what has to
    be assumed, and the model's end tokens where the validator knows them."""

    claim: Claim
    replay: Replay
    sampling: Sampling
    tokens: tuple[int, ...]
    assumed: tuple[str, ...] = ()
    end_ids: tuple[int, ...] = ()


def ranked(replay: Replay) -> tuple[Position, ...]:
    """The replay's positions, each with the likeliest alternatives the replay has of it."""
    held, more = replay.positions or (), replay.alternatives
    if len(more) < len(held):
        return held
    return tuple(p.model_copy(update={"top": top}) for p, top in zip(held, more, strict=False))


def entropies(asked: Asked, count: int) -> tuple[Floats, Floats]:
    """Entropy [count] (nats) of what the validator drew from, and the chance [count] that two draws
    from it agree. Outcomes are the listed alternatives, the claimed id, and the rest as one (which
    never agrees with itself). Raw lists are brought to the request's temperature; for a greedy
    request they say how contested the likeliest id was. NaN without a list."""
    held = ranked(asked.replay)
    out, luck = np.full(count, np.nan), np.full(count, np.nan)
    rows = min(count, len(held))
    if not rows or not any(position.top for position in held[:rows]):
        return out, luck
    lists = lists_of(held[:rows], asked.tokens[:rows])
    scale = 1.0 if asked.replay.logprobs_mode == PROCESSED else asked.sampling.divisor
    own = np.where(np.isnan(lists.claimed), -np.inf, lists.claimed)
    values = np.concatenate([lists.logprobs, own[:, None]], axis=1)
    chances = np.exp(np.minimum(values, 0.0))
    rest = np.clip(1 - chances.sum(axis=1, keepdims=True), 0.0, None)
    weights = np.concatenate([chances, rest], axis=1) ** (1 / scale)
    total = weights.sum(axis=1, keepdims=True)
    shares = weights / np.where(total > 0, total, 1.0)
    logs = np.log(np.where(shares > 0, shares, 1.0))
    out[:rows] = np.where(total[:, 0] > 0, -(shares * logs).sum(axis=1), np.nan)
    luck[:rows] = np.where(total[:, 0] > 0, (shares[:, :-1] ** 2).sum(axis=1), np.nan)
    return out, luck
