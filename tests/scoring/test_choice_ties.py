"""Ties, tiny temperatures and numbers no engine takes, in the choice channel.

Logits in bfloat16 are often equal: an engine's sort then puts the tied ids in an order of its own,
and a cut may take one and leave the other (kinds nondeterminism and audit).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.scoring import draw_sides
from tests.scoring.draw_sides import (
    Floats,
    World,
    claim_by,
    decode_replay,
    log_softmax,
    prefill_replay,
    tokens_of,
)

from assay.claims.claim import Claim, Replay
from assay.scoring.choice import Choice, choose, contradictions
from assay.scoring.choice_rule import choice_result
from assay.scoring.sampling import sampling_of
from assay.scoring.verdict import judge


def bfloat16(logits: Floats) -> Floats:
    """Rounded to 8 bits, as a model's head in bfloat16 gives them near 18: steps of 1/8."""
    return np.asarray(np.round((logits + 18) * 8) / 8)


def cut_as_vllm_does(logits: Floats, world: World) -> Floats:
    """Temperature, top-k and top-p on a stable ascending sort, like the engine's PyTorch code:
    ties with the k-th stay, and of tied ids at the edge of top-p the later one in the list."""
    scaled = logits / world.temperature
    order = np.argsort(scaled, axis=1, kind="stable")
    ranked = np.take_along_axis(scaled, order, axis=1)
    if world.top_k > 0:
        ranked = np.where(ranked < ranked[:, [-world.top_k]], -np.inf, ranked)
    if world.top_p < 1:
        out = np.cumsum(np.exp(log_softmax(ranked)), axis=1) <= 1 - world.top_p
        out[:, -1] = False
        ranked = np.where(out, -np.inf, ranked)
    cut = np.empty_like(ranked)
    np.put_along_axis(cut, order, ranked, axis=1)
    return log_softmax(cut)


@pytest.mark.parametrize("replay_of", [decode_replay, prefill_replay])
@pytest.mark.parametrize(
    "cuts",
    [
        {"top_p": 0.1},
        {"top_p": 0.5},
        {"top_k": 3, "top_p": 0.9},
        {"top_k": 20, "top_p": 0.8, "temperature": 0.7},
    ],
)
def test_tied_ids_at_the_edge_of_a_cut_are_no_contradiction(
    monkeypatch: pytest.MonkeyPatch,
    replay_of: Callable[[World, Claim, Floats], Replay],
    cuts: dict[str, Any],
) -> None:
    """Before, 48 of 120 honest bfloat16 claims at top_p 0.1 failed."""
    monkeypatch.setattr(draw_sides, "processed", cut_as_vllm_does)
    for number in range(8):
        world = World(number=number, sharpness=2.0, **cuts)
        logits = bfloat16(world.logits)
        claim = claim_by(world, logits)
        choice = choose(claim, replay_of(world, claim, logits))
        assert isinstance(choice, Choice)
        assert not contradictions(choice).any()
        assert choice_result(choice, {}).outcome != "fail"
        other = tokens_of(logits, dataclasses.replace(world, seed=8))
        cheat = claim_by(world, logits, tokens=other)
        found = choose(cheat, replay_of(world, cheat, logits))
        assert choice_result(found, {}).outcome == "fail"


def test_a_tiny_temperature_is_raised_and_not_greedy() -> None:
    """vLLM clamps 1e-6 to 0.01 before it asks whether a request is greedy."""
    tiny = sampling_of({"temperature": 1e-6, "seed": 1})
    assert not tiny.greedy
    assert tiny.divisor == 1e-2
    assert sampling_of({"temperature": 0}).greedy


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p"])
@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan")])
def test_a_number_no_engine_takes_ends_no_verdict(field: str, value: float) -> None:
    """An int too large for a float was an OverflowError, which ended a whole `assay verify`."""
    world = World()
    claim = claim_by(world, world.logits)
    hostile = claim.model_copy(update={"request": claim.request | {field: value}})
    for replay in (
        decode_replay(world, claim, world.logits),
        prefill_replay(world, claim, world.logits),
    ):
        assert judge(hostile, replay).path == replay.path


@pytest.mark.parametrize("key", [2**31, 2**63, 10**30])
def test_ids_of_no_vocabulary_end_no_verdict(key: int) -> None:
    world = World()
    claim = claim_by(world, world.logits)
    first, *others = claim.positions or ()
    listed = first.model_copy(
        update={"top": (*first.top[:-1], first.top[-1].model_copy(update={"key": key}))}
    )
    forged = claim.model_copy(update={"positions": (listed, *others)})
    named = claim.model_copy(update={"output_ids": (key, *(claim.output_ids or ())[1:])})
    replay = prefill_replay(world, claim, world.logits)
    assert judge(forged, replay).channels[1].outcome in ("pass", "inconclusive")
    assert judge(named, replay).channels[1].code == "no_token_ids"
