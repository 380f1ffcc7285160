"""The choice channel: does each claimed token follow from the seed?

From a decode replay the plugin's evidence says which id the validator's engine would have drawn
and by how much it beats the claimed one over the full vocabulary. Without evidence (a prefill
replay, recorded files) the noise of runner V2 is computed here and the listed alternatives are
drawn from again (``scoring/draws.py``).

Two questions are asked of each position, and they have different nulls:

- Does the *validator's* distribution draw the claimed token? Honest hardware differs now and then.
- Does the claim's *own* distribution? The same noise on the numbers the executor reports itself
  decides its own draw whatever the hardware, so an honest claim never contradicts itself. A cheap
  model's text with the real model's log probabilities does, at every token the two draw apart.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from assay.claims.claim import Claim, Replay
from assay.scoring import choice_evidence, choice_lists
from assay.scoring.arrays import Bools, Floats
from assay.scoring.choice_form import Asked, Choice, NoChoice, UnavailableError
from assay.scoring.constants import (
    CONTESTED_NATS,
    TAMPER_NATS,
    TAMPER_NATS_REPLAYED,
    TAMPER_SLACKS,
)
from assay.scoring.draws import LARGEST_ID
from assay.scoring.sampling import Sampling, sampling_of
from assay.scoring.signals import other_prompt

__all__ = [
    "Choice",
    "NoChoice",
    "choose",
    "contested",
    "contradictions",
    "drawn_at",
    "first_outlier",
]


def choose(claim: Claim, replay: Replay) -> Choice | NoChoice:
    """The choice evidence of ``claim`` in ``replay``, or why there is none.

    What the request does not say is taken from what the engines say of themselves: the defaults
    of the claim's server (else of the validator's), the end tokens of the validator's (else of the
    claim's; where neither tells, one is guessed from the draws).
    """
    try:
        asked = _asked(claim, replay)
        evidence = replay.evidence
        if evidence is not None and evidence.drawn:
            assumed = choice_evidence.assumptions(asked, evidence)
            asked = dataclasses.replace(asked, assumed=assumed)
            return choice_evidence.from_evidence(asked, evidence)
        asked = dataclasses.replace(asked, assumed=choice_lists.assumptions(asked))
        return choice_lists.from_lists(asked)
    except UnavailableError as missing:
        return missing.what


def drawn_at(claim: Claim, replay: Replay) -> float | None:
    """The temperature that explains the claimed tokens where the request's does not
    (``choice_lists.fitting_temperature``); ``None`` where none does, or nobody can tell."""
    try:
        return choice_lists.fitting_temperature(_asked(claim, replay))
    except UnavailableError:
        return None


def contested(choice: Choice) -> Bools:
    """[n]: different draws would part here often enough to tell them apart."""
    with np.errstate(invalid="ignore"):
        return np.asarray(choice.entropy >= CONTESTED_NATS)


def contradictions(choice: Choice) -> Bools:
    """[n]: the claim's own numbers and the seed draw another id than the claimed one."""
    with np.errstate(invalid="ignore"):
        return np.asarray((choice.own > choice.slack) | choice.own_cut)


def first_outlier(choice: Choice) -> int | None:
    """The first output position whose token was put there by hand: on the claim's own numbers, or
    by far on the validator's, another id wins. ``None`` where there is none."""
    with np.errstate(invalid="ignore"):
        far = choice.own >= max(TAMPER_NATS, TAMPER_SLACKS * choice.slack)
        far |= _only_replayed(choice)
    places = np.flatnonzero(far)
    return int(choice.positions[places[0]]) if len(places) else None


def _only_replayed(choice: Choice) -> Bools:
    margin: Floats = choice.margin
    return np.asarray(np.isnan(choice.own) & (margin >= TAMPER_NATS_REPLAYED * choice.sharper))


def _asked(claim: Claim, replay: Replay) -> Asked:
    tokens = _tokens(claim)
    if not tokens or not all(0 <= token < LARGEST_ID for token in tokens):
        raise UnavailableError("no_token_ids", "the claim gives no ids for its tokens")
    differs = other_prompt(claim, replay)
    if differs is not None:
        raise UnavailableError("prompt_mismatch", differs)
    defaults = claim.engine.default_sampling_params
    if defaults is None:
        defaults = replay.engine.default_sampling_params
    sampling = sampling_of(claim.request, defaults)
    _repeatable(sampling)
    ends = replay.engine.eos_token_ids or claim.engine.eos_token_ids or ()
    return Asked(claim, replay, sampling, tokens, end_ids=ends)


def _repeatable(sampling: Sampling) -> None:
    if sampling.choices > 1:
        raise UnavailableError(
            "several_choices", "of n choices each has a seed of its own, and nobody says which"
        )
    if not sampling.greedy and sampling.seed is None:
        raise UnavailableError(
            "unseeded",
            "the request has no seed and is not greedy: the engine drew from a random state that"
            " nobody can repeat",
        )


def _tokens(claim: Claim) -> tuple[int, ...]:
    if claim.output_ids is not None:
        return claim.output_ids
    held = claim.positions or ()
    ids = tuple(p.token for p in held if isinstance(p.token, int))
    return ids if len(ids) == len(held) else ()
