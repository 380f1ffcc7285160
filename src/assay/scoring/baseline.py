"""What an executor without the model would score: the zero-knowledge baseline of a profile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assay.claims.claim import Claim, Replay
from assay.scoring.arrays import Floats, build_arrays
from assay.scoring.constants import GREEDY_BELOW, IMPOSSIBLE_WIRE
from assay.scoring.decision import informative_positions
from assay.scoring.measure import Measurement, summarise
from assay.scoring.value import distances

Pair = tuple[Claim, Replay]


def zero_knowledge(pairs: Sequence[Pair]) -> list[Measurement]:
    """One measurement for each pair of which something can be said.

    ``value_distance``, ``value_peak``: the claim against the replay of another prompt, position by
    position, as if somebody had copied numbers of another exchange (the tokens differ, so the
    comparison is of the listed alternatives only). ``choice_mismatch``: the chance that two
    independent draws from the validator's distribution differ, 1 - sum(p^2) over the listed
    alternatives: what low entropy gives for free to somebody who guesses the seed. Ids outside the
    list are taken never to agree. Greedy requests have no such chance.
    """
    found = []
    for index, (claim, replay) in enumerate(pairs):
        series: dict[str, Floats] = {}
        other = _another_prompt(pairs, index)
        values = None if other is None else _value(claim, other)
        if values is not None and len(values):
            series["value_distance"] = series["value_peak"] = values
        mismatch = _free_mismatch(claim, replay)
        if mismatch is not None and len(mismatch):
            series["choice_mismatch"] = mismatch
        if series:
            found.append(
                Measurement(
                    claim_id=claim.id,
                    path=replay.path,
                    mode=replay.logprobs_mode or claim.logprobs_mode,
                    positions=max(map(len, series.values())),
                    series={name: tuple(map(float, v)) for name, v in series.items()},
                    statistics={name: summarise(name, v) for name, v in series.items()},
                )
            )
    return found


def _another_prompt(pairs: Sequence[Pair], index: int) -> Replay | None:
    """The replay of the next pair, going round, whose prompt is another."""
    mine = pairs[index][0].prompt
    for step in range(1, len(pairs)):
        claim, replay = pairs[(index + step) % len(pairs)]
        if claim.prompt != mine:
            return replay
    return None


def _value(claim: Claim, replay: Replay) -> Floats | None:
    ours, theirs = claim.positions or (), replay.positions or ()
    shared = min(len(ours), len(theirs))
    kinds = [{type(e.key) for p in side[:shared] for e in p.top} for side in (ours, theirs)]
    if not shared or kinds[0] != kinds[1]:
        return None
    arrays = build_arrays(ours[:shared], theirs[:shared])
    if not arrays.comparable.any():
        return None
    found = distances(arrays)
    return np.asarray(found[informative_positions(arrays, found)])


def _free_mismatch(claim: Claim, replay: Replay) -> Floats | None:
    """[positions]: chance that another draw names another token."""
    temperature = claim.request.get("temperature", 1.0)
    usual = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if not usual or temperature < GREEDY_BELOW or not replay.positions:
        return None
    mode = replay.logprobs_mode
    if mode not in ("raw_logprobs", "processed_logprobs"):
        return None
    chances = []
    for position in replay.positions:
        listed = np.array([entry.logprob for entry in position.top], dtype=np.float64)
        listed = listed[np.isfinite(listed) & (listed > IMPOSSIBLE_WIRE)]
        if not len(listed):
            continue
        if mode == "raw_logprobs":
            listed = listed / temperature
            listed -= listed.max() + np.log(np.exp(listed - listed.max()).sum())
        chances.append(float(np.clip(1 - np.exp(2 * np.minimum(listed, 0.0)).sum(), 0.0, 1.0)))
    return np.array(chances)
