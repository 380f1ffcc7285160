"""The choice channel without the plugin's evidence: noise computed over listed alternatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from assay.claims.claim import Tape
from assay.claims.positions import Position
from assay.scoring.arrays import Bools, Floats
from assay.scoring.choice_form import (
    PROCESSED,
    RAW,
    Asked,
    Choice,
    UnavailableError,
    entropies,
    ranked,
)
from assay.scoring.constants import (
    CONTRADICTION_SLACK,
    FIT_CONTRAST,
    FIT_LEAST,
    TEMPERATURES,
)
from assay.scoring.draws import Draws, Ints, Lists, draw, lists_of
from assay.scoring.sampling import Sampling
from assay.scoring.signals import first_disagreement
from assay.scoring.tape import REPEATABLE, gumbel, tape_name
from assay.scoring.tape_v1 import row_seeds, splitmix_gumbel

Noise = Callable[[Ints], Floats]


def assumptions(asked: Asked) -> tuple[str, ...]:
    """What has to be assumed for the noise computed here to be the origin's.

    Raises UnavailableError for draws of a generator that only its own device repeats, and for a
    noise this software does not know.
    """
    if asked.sampling.greedy:
        return ()
    tape, runner = asked.claim.tape, asked.claim.engine.runner
    if tape is None and runner != "v1":
        return (
            "the claim does not say what turned its seed into draws (claim.tape); the present"
            " noise of runner V2 was taken",
        )
    if tape is None or (tape.runner, tape.generation) == ("v1", 1):
        raise UnavailableError(
            "sequential_generator",
            "runner V1 draws from a generator consumed in order: only a decode replay on the same"
            " kind of device repeats it",
        )
    if (tape.runner, tape.generation) not in REPEATABLE:
        raise UnavailableError(
            "other_tape", f"{tape_name(tape)} is not known to this version of assay"
        )
    return ()


def from_lists(asked: Asked) -> Choice:
    """The claimed tokens against those drawn from the replay's lists, and from the claim's own.

    Raises UnavailableError where the lists do not determine what was drawn from.
    """
    sampling, replay = asked.sampling, asked.replay
    held = ranked(replay)
    count = min(len(asked.tokens), len(held))
    parted = first_disagreement(asked.claim.positions or (), held)
    count = count if parted is None else min(count, parted)
    if count == 0 or not any(position.top for position in held[:count]):
        raise UnavailableError("no_evidence", "the replay lists no alternatives to draw from")
    assumed = asked.assumed + _readable(asked)
    claimed = np.array(asked.tokens[:count], dtype=np.int64)
    redraw = _Redraw(sampling, claimed, _noise(asked, count), asked.end_ids)
    drawn = redraw(held[:count], processed=replay.logprobs_mode == PROCESSED)
    if not asked.end_ids and sampling.min_tokens:
        ends = _guessed_ends(asked, redraw, drawn)
        redraw = dataclasses.replace(redraw, ends=ends)
        drawn = redraw(held[:count], processed=replay.logprobs_mode == PROCESSED)
    rows = np.flatnonzero(~np.isnan(drawn.margin) | drawn.cut)
    if not len(rows):
        raise UnavailableError(
            "no_evidence", "the replay gives the claimed tokens no log probability"
        )
    own, own_cut = _own_draws(asked, redraw, count)
    entropy, by_luck = entropies(asked, count)
    return Choice(
        source="lists",
        greedy=sampling.greedy,
        positions=rows,
        mismatch=(drawn.drawn != claimed)[rows],
        margin=drawn.margin[rows],
        own=own[rows],
        own_cut=own_cut[rows],
        cut=drawn.cut[rows],
        entropy=entropy[rows],
        by_luck=by_luck[rows],
        sharper=sampling.sharper,
        unseen=float(drawn.unseen[rows].sum()),
        assumed=assumed,
    )


def _readable(asked: Asked) -> tuple[str, ...]:
    """What reading the replay's lists as the origin's distribution assumes."""
    mode = asked.replay.logprobs_mode
    if mode == PROCESSED:
        return ()
    if mode != RAW:
        raise UnavailableError(
            "mode_unknown", "the replay does not say whether it is raw or processed"
        )
    sampling = asked.sampling
    fields = _shaping(sampling)
    if fields:
        raise UnavailableError(
            "shaped_distribution",
            f"the request's {', '.join(fields)} shape the draw and do not show in the raw log"
            " probabilities of a forward pass; use a decode replay or processed mode",
        )
    if sampling.temperature is None:
        raise UnavailableError(
            "temperature_not_named", "the request names no temperature, so a default was used"
        )
    if not sampling.unnamed or sampling.greedy:
        return ()
    return (
        f"the request leaves {', '.join(sampling.unnamed)} to the server's defaults, which were"
        " taken to change nothing",
    )


def _shaping(sampling: Sampling) -> tuple[str, ...]:
    return sampling.reshaped + sampling.grammar


def _prompt_length(asked: Asked) -> int:
    for ids in (asked.claim.prompt.token_ids, asked.replay.prompt_token_ids):
        if ids is not None:
            return len(ids)
    counted = asked.claim.usage.prompt_tokens
    if counted is None:
        raise UnavailableError(
            "no_prompt_ids", "the length of the prompt, which places every draw, is unknown"
        )
    return counted


def _noise(asked: Asked, count: int) -> Noise:
    """The noise of the claim's tape at its first ``count`` outputs; zero for a greedy request."""
    if asked.sampling.greedy:
        return lambda ids: np.zeros(ids.shape)
    seed = asked.sampling.seed or 0
    tape = asked.claim.tape or Tape(runner="v2")
    if tape.runner == "v1":
        steps = row_seeds(seed, count)[:, None]
        return lambda ids: splitmix_gumbel(steps, ids)
    places = (np.arange(count) + _prompt_length(asked) - 1)[:, None]
    return lambda ids: gumbel(seed, places, ids, fp64=tape.fp64)


@dataclass(frozen=True)
class _Redraw:
    """Draws lists around the claimed ids again. ``noise`` gives that of ids [n, k]; ``ends`` are
    ids that cannot be drawn before ``min_tokens``, where a raw list does not show it."""

    sampling: Sampling
    claimed: Ints
    noise: Noise
    ends: tuple[int, ...] = ()

    def __call__(self, positions: Sequence[Position], *, processed: bool) -> Draws:
        lists = lists_of(positions, self.claimed.tolist())
        noise = (self.noise(lists.keys), self.noise(self.claimed[:, None])[:, 0])
        return self.drawn(lists, noise, processed=processed)

    def drawn(self, lists: Lists, noise: tuple[Floats, Floats], *, processed: bool) -> Draws:
        """The draws from ``lists`` with their ``noise`` of the listed and the claimed ids."""
        never = None
        if not processed and self.sampling.min_tokens:
            early = np.arange(len(lists.keys)) < self.sampling.min_tokens
            never = np.isin(lists.keys, (*self.ends, *self.sampling.stop_ids)) & early[:, None]
        return draw(lists, self.claimed, self.sampling, noise, processed=processed, never=never)


def _guessed_ends(asked: Asked, redraw: _Redraw, drawn: Draws) -> tuple[int, ...]:
    """The end token, where nobody says which it is: the id that is drawn most often in place of
    the claimed ones while it must not be, on either side's numbers. On the claim's own an honest
    one differs nowhere else. Taking ids out can only help the claim."""
    count = len(redraw.claimed)
    sides = [drawn]
    held = asked.claim.positions or ()
    if len(held) >= count and asked.claim.logprobs_mode == RAW:
        sides.append(redraw(held[:count], processed=False))
    early = np.arange(count) < redraw.sampling.min_tokens
    found = []
    for side in sides:
        ids, counts = np.unique(
            side.drawn[early & (side.drawn != redraw.claimed)], return_counts=True
        )
        found += [int(ids[counts.argmax()])] if len(ids) else []
    return tuple(found)


def _own_draws(asked: Asked, redraw: _Redraw, count: int) -> tuple[Floats, Bools]:
    """The claimed tokens drawn again from the claim's own lists: the winner's lead [n], and
    whether the claim's own numbers exclude the claimed id [n]."""
    held, mode = asked.claim.positions or (), asked.claim.logprobs_mode
    raw = mode == RAW and not asked.sampling.reshaped and asked.sampling.temperature is not None
    if len(held) < count or not (mode == PROCESSED or raw):
        return np.full(count, np.nan), np.zeros(count, dtype=np.bool_)
    drawn = redraw(held[:count], processed=mode == PROCESSED)
    return drawn.margin, drawn.cut


def fitting_temperature(asked: Asked) -> float | None:
    """The temperature at which the claimed tokens follow from the claim's own raw numbers, where at
    the request's they do not and at another one nearly all do; ``None`` otherwise.

    Raises UnavailableError as ``assumptions`` does.
    """
    assumptions(asked)
    sampling, held = asked.sampling, asked.claim.positions or ()
    named = sampling.temperature
    if named is None or sampling.greedy or sampling.reshaped or asked.claim.logprobs_mode != RAW:
        return None
    count = min(len(held), len(asked.tokens))
    claimed = np.array(asked.tokens[:count], dtype=np.int64)
    ends = asked.end_ids
    redraw = _Redraw(sampling, claimed, _noise(asked, count), ends)
    lists = lists_of(held[:count], claimed.tolist())
    noise = (redraw.noise(lists.keys), redraw.noise(claimed[:, None])[:, 0])

    def against(temperature: float) -> int:
        at = dataclasses.replace(sampling, temperature=temperature)
        drawn = dataclasses.replace(redraw, sampling=at).drawn(lists, noise, processed=False)
        with np.errstate(invalid="ignore"):
            return int(((drawn.margin > CONTRADICTION_SLACK) | drawn.cut).sum())

    counts = {temperature: against(temperature) for temperature in TEMPERATURES}
    fewest = min(counts.values())
    if against(named) < max(FIT_LEAST, FIT_CONTRAST * fewest):
        return None
    # Of several that fit alike, the middle one.
    alike = [temperature for temperature, number in counts.items() if number == fewest]
    return alike[len(alike) // 2]
