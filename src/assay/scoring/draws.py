"""The token a seed draws from a list of alternatives, and what the list leaves open.

A position lists the likeliest ids and the chosen one; the engine drew among all of them. What can
be said with certainty:

- An id that is *surely kept* by the request's cuts and scores higher than the claimed one was
  drawn in its place: the claimed token is not the draw, by at least that margin.
- An id that is not listed, or not surely kept, can only make the true margin larger. So every
  mismatch found here is one, and ``unseen`` bounds how many may be missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.claims.positions import Position
from assay.scoring.arrays import Bools, Floats
from assay.scoring.constants import CUT_SLACK, IMPOSSIBLE_WIRE, LARGEST_VOCABULARY
from assay.scoring.sampling import Sampling

Ints = NDArray[np.int64]
NOBODY = -1
"""Key of an empty slot."""
LARGEST_ID = 1 << 31
"""Ids are below this in every engine."""


@dataclass(frozen=True)
class Lists:
    """Alternatives of ``n`` positions without the claimed id, likeliest first.

    ``keys`` int64 [n, k] with -1 and ``logprobs`` float64 [n, k] with -inf in empty slots and for
    what cannot occur. ``claimed`` [n]: log probability of the claimed id.
    """

    keys: Ints
    logprobs: Floats
    claimed: Floats


def lists_of(positions: Sequence[Position], claimed: Sequence[int]) -> Lists:
    """The lists of ``positions`` around the ids ``claimed``; keys that are text, or no id of any
    vocabulary, are left out."""
    width = max((len(position.top) for position in positions), default=0) or 1
    # Lists first, arrays at the end: writing single numbers into an array takes several times longer.
    key_rows, value_rows, owns = [], [], []
    for position, token in zip(positions, claimed, strict=True):
        own = position.logprob if position.token == token else math.nan
        row_keys: list[int] = []
        row_values: list[float] = []
        listed = None
        for entry in position.top:
            key, number = entry.key, entry.logprob
            # A chosen id beside the list is none of the likeliest, whatever its number says.
            if number < own and math.isfinite(number):
                own = number
            if key == token:
                listed = number
            elif isinstance(key, int) and 0 <= key < LARGEST_ID:
                row_keys.append(key)
                row_values.append(number)
        empty = width - len(row_keys)
        key_rows.append(row_keys + [NOBODY] * empty)
        value_rows.append(row_values + [-math.inf] * empty)
        owns.append(own if listed is None else listed)
    keys = np.array(key_rows, dtype=np.int64).reshape(len(positions), width)
    values = np.array(value_rows, dtype=np.float64).reshape(keys.shape)
    own_values = np.array(owns, dtype=np.float64)
    values[values <= IMPOSSIBLE_WIRE] = -np.inf
    own_values[own_values <= IMPOSSIBLE_WIRE] = -np.inf
    order = np.argsort(-values, axis=1, kind="stable")
    return Lists(
        np.take_along_axis(keys, order, axis=1),
        np.take_along_axis(values, order, axis=1),
        own_values,
    )


@dataclass(frozen=True)
class Kept:
    """What the cuts do: ``listed`` [n, k] surely stays in the draw, ``claimed_cut`` [n] the
    claimed id is surely out of it, ``rest`` [n] at most this much weight ``exp(logit / T)`` of ids
    that are not listed stays (in the units of the listed log probabilities)."""

    listed: Bools
    claimed_cut: Bools
    rest: Floats


def kept_by(lists: Lists, sampling: Sampling, *, processed: bool) -> Kept:
    """Apply the cuts of ``sampling`` to ``lists``, whose rows are output positions from 0.

    In processed mode the engine did so already: what is possible is kept. In raw mode the order is
    the engine's: temperature, min-p, top-k, then top-p of what is left, which keeps an id while the
    probability of those above it is less than p. The lists must hold the likeliest ids. Ids of one
    score (two logits in bfloat16 often are equal) stand in any order in the engine's sort, and it may
    keep all of them or some, so that none is surely kept where one of them may go. Before
    ``min_tokens`` one unknown id other than the two in question, the end token, may have been
    masked first; what is said is true whichever it is.
    """
    with np.errstate(divide="ignore"):
        remaining = np.log(np.clip(1 - _mass(lists), 0.0, 1.0))  # log mass that is not listed
    possible = np.isfinite(lists.logprobs)
    if processed:
        return Kept(possible, np.isneginf(lists.claimed), np.exp(remaining))
    divisor, masked = sampling.divisor, np.arange(len(possible)) < sampling.min_tokens
    scaled, claimed = lists.logprobs / divisor, lists.claimed / divisor
    best = np.maximum(scaled[:, 0], claimed)
    next_best = np.maximum(scaled[:, 1] if scaled.shape[1] > 1 else -np.inf, claimed)
    # Rank of each id among the listed and the claimed one, from 0: the last it may have in a tie.
    count, above_claimed = possible.sum(axis=1), (scaled > claimed[:, None]).sum(axis=1)
    final, not_below = _last_of_tie(scaled), claimed[:, None] >= scaled
    # ``alive`` surely stays, ``maybe`` is not surely out.
    alive, maybe, claimed_cut = possible.copy(), possible.copy(), np.isneginf(lists.claimed)
    last = np.where(possible, scaled, np.inf).min(axis=1)
    open_end = np.isfinite(remaining)  # ids that are not listed may be in the draw
    at_edge = np.zeros(len(scaled), dtype=np.bool_)  # some by a tie with the last listed one
    if sampling.min_p is not None:
        floor = best + math.log(sampling.min_p)
        alive &= scaled >= floor[:, None] + CUT_SLACK
        floor = np.where(masked, next_best, best) + math.log(sampling.min_p)
        maybe &= scaled >= floor[:, None] - CUT_SLACK
        claimed_cut |= claimed < floor - CUT_SLACK
        open_end &= last >= floor - CUT_SLACK
    if sampling.top_k is not None:
        alive &= final + not_below < sampling.top_k
        edge = np.minimum(sampling.top_k - 1 + masked, scaled.shape[1] - 1)
        open_end &= count + (claimed >= last) - masked < sampling.top_k
        lowest = np.take_along_axis(scaled, edge[:, None], axis=1)
        maybe &= scaled >= lowest
        at_edge = ~open_end & (remaining > -np.inf) & (lowest[:, 0] <= last)
        claimed_cut |= above_claimed - masked >= sampling.top_k
    low, high = _rest(remaining, last, divisor)
    low = np.where(open_end & (sampling.min_p is None) & (sampling.top_k is None), low, 0.0)
    beyond, high = np.where(at_edge, high, 0.0), np.where(open_end, high, 0.0)
    if (top_p := sampling.top_p) is not None:
        weights = np.where(alive, np.exp(scaled), 0.0)
        own = np.where(claimed_cut, 0.0, np.exp(claimed))
        total, most_total = (
            np.where(those, np.exp(scaled), 0.0).sum(axis=1) + own for those in (alive, maybe)
        )
        through = np.take_along_axis(np.cumsum(weights, axis=1), final, axis=1)
        before = through - weights + own[:, None] * not_below
        before_claimed = (weights * (scaled > claimed[:, None])).sum(axis=1)
        following = np.pad(weights[:, 1:], ((0, 0), (0, 1)))
        following = np.maximum(following, np.minimum(np.exp(last), low)[:, None])
        after = following * masked[:, None]
        first = np.where(masked, weights[:, 0] * (scaled[:, 0] > claimed), 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            most = before / ((total + low)[:, None] - after)
            least = (before_claimed - first) / (most_total + high + beyond - first)
        alive &= (most < top_p - CUT_SLACK) | (final + not_below == 0)
        claimed_cut |= (least > top_p + CUT_SLACK) & (above_claimed > 0)
        # Where the listed ids fill the nucleus nothing else is left in it.
        high = np.where(total / (total + high) > top_p + CUT_SLACK, 0.0, high)
    return Kept(alive, claimed_cut, high)


def _last_of_tie(scores: Floats) -> Ints:
    """Place [n, k] of the last id whose score is that of each; ``scores`` [n, k] fall."""
    last = np.tile(np.arange(scores.shape[1]), (len(scores), 1))
    for place in range(scores.shape[1] - 2, -1, -1):
        equal = scores[:, place] == scores[:, place + 1]
        last[:, place] = np.where(equal, last[:, place + 1], place)
    return last


def _mass(lists: Lists) -> Floats:
    claimed = np.where(np.isnan(lists.claimed), -np.inf, lists.claimed)
    return np.asarray(np.exp(lists.logprobs).sum(axis=1) + np.exp(claimed))


def _rest(remaining: Floats, last: Floats, divisor: float) -> tuple[Floats, Floats]:
    """Least and most weight ``sum exp(logprob / T)`` of ids that are not listed.

    Their probabilities sum to ``exp(remaining)`` and none exceeds the last listed one, whose
    ``logprob / T`` is ``last``. Below T = 1 the sum is largest when it is in few ids as likely as
    that, above when spread over all.
    """
    mass = np.exp(remaining)
    if divisor == 1.0:
        return mass, mass
    if divisor < 1.0:
        largest = np.minimum(remaining, last * divisor)
        with np.errstate(invalid="ignore"):
            high = np.exp(remaining + largest * (1 / divisor - 1))
        return np.zeros_like(mass), np.where(mass > 0, high, 0.0)
    return mass, np.exp(remaining / divisor + math.log(LARGEST_VOCABULARY) * (1 - 1 / divisor))


@dataclass(frozen=True)
class Draws:
    """``drawn`` [n]: the id that wins among the listed and the claimed one. ``margin`` [n]: by how
    many nats it beats the claimed one, at least 0, on the scores before any cut. ``cut`` [n]: the
    claimed id is surely out of the draw. ``unseen`` [n]: at most this chance that an id that is
    not listed wins instead. NaN margin where the claimed id has no log probability."""

    drawn: Ints
    margin: Floats
    cut: Bools
    unseen: Floats


def draw(
    lists: Lists,
    claimed: Ints,
    sampling: Sampling,
    noise: tuple[Floats, Floats],
    *,
    processed: bool,
    never: Bools | None = None,
) -> Draws:
    """Draw every position of ``lists`` again with ``noise`` (nats): [n, k] of the listed ids and
    [n] of the claimed ones; zeros for a greedy request. ``never`` [n, k]: listed ids that the
    engine had masked."""
    divisor = 1.0 if processed else sampling.divisor
    kept = kept_by(lists, sampling, processed=processed)
    eligible = kept.listed if never is None else kept.listed & ~never
    scores = np.where(eligible, lists.logprobs / divisor + noise[0], -np.inf)
    place = scores.argmax(axis=1)
    rows = np.arange(len(scores))
    best = scores[rows, place]
    own = lists.claimed / divisor + noise[1]
    with np.errstate(invalid="ignore", over="ignore"):
        lead = best - own
        unseen = np.clip(kept.rest * np.exp(-np.maximum(best, own)), 0.0, 1.0)
    wins = np.isfinite(best) & ((lead > 0) | kept.claimed_cut)
    margin = np.where(wins & np.isfinite(lead), np.maximum(lead, 0.0), 0.0)
    margin[np.isnan(own) | (kept.claimed_cut & ~np.isfinite(own))] = np.nan
    if sampling.greedy:
        unseen = np.zeros_like(best)  # the likeliest id is always listed
    return Draws(np.where(wins, lists.keys[rows, place], claimed), margin, kept.claimed_cut, unseen)
