"""The choice channel: tokens against the draws their seed makes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.scoring.draw_sides import (
    PROMPT,
    V2,
    World,
    claim_by,
    decode_replay,
    prefill_replay,
    tokens_of,
)

from assay.claims.claim import Claim, EngineIdentity, LogprobsMode, Prompt, Replay, Tape
from assay.claims.positions import TopEntry
from assay.scoring.choice import Choice, NoChoice, choose, contradictions, first_outlier
from assay.scoring.choice_rule import choice_result, counts_of

HARDWARE = 0.03  # nats: what another dtype or device moves a logit by
OTHER_WEIGHTS = 0.5  # nats: about int4
WORLDS = [
    World(),
    World(temperature=0.7, top_p=0.9),
    World(temperature=1.3, top_k=50, top_p=0.95),
    World(temperature=0.8, min_p=0.1),
    World(temperature=0),
]
REPLAYS = {"decode": decode_replay, "prefill": prefill_replay}
MODES: list[LogprobsMode] = ["raw_logprobs", "processed_logprobs"]
worlds = pytest.mark.parametrize("world", WORLDS, ids=lambda w: f"T{w.temperature}")
paths = pytest.mark.parametrize("path", REPLAYS)
modes = pytest.mark.parametrize("mode", MODES)


def measured(claim: Claim, replay: Replay) -> Choice:
    found = choose(claim, replay)
    assert isinstance(found, Choice), found
    return found


def refused(claim: Claim, replay: Replay) -> str:
    found = choose(claim, replay)
    assert isinstance(found, NoChoice), found
    assert found.reason
    assert choice_result(found, {}).outcome == "not_available"
    return found.code


@worlds
@paths
@modes
def test_an_engine_of_its_own_numbers_agrees_everywhere(
    world: World, path: str, mode: LogprobsMode
) -> None:
    engine = world.engine(0)
    claim = claim_by(world, engine, mode=mode)
    choice = measured(claim, REPLAYS[path](world, claim, engine))
    assert len(choice) == world.n
    assert not choice.mismatch.any()
    assert not choice.cut.any()
    assert not contradictions(choice).any()
    assert (choice.margin == 0).all()
    assert choice.greedy == (world.temperature == 0)


@worlds
@paths
@modes
def test_honest_hardware_never_contradicts_itself(
    world: World, path: str, mode: LogprobsMode
) -> None:
    """6 claims of 64 tokens: mismatches stay near the measured 2 to 3 %, contradictions at 0."""
    mismatches = positions = 0
    for number in range(6):
        one = dataclasses.replace(world, number=number, seed=100 + number)
        claim = claim_by(one, one.engine(HARDWARE), mode=mode)
        choice = measured(claim, REPLAYS[path](one, claim, one.engine(0)))
        assert not contradictions(choice).any()
        assert choice_result(choice, {}).outcome in ("pass", "inconclusive")
        mismatches += int(choice.mismatch.sum())
        positions += len(choice)
    assert mismatches < 0.06 * positions


@worlds
@paths
@modes
def test_laundering_fails_by_the_claims_own_numbers(
    world: World, path: str, mode: LogprobsMode
) -> None:
    """int4 writes, the real model's prefill supplies the log probabilities (case 57)."""
    real, cheap = world.engine(HARDWARE), world.engine(OTHER_WEIGHTS, 2)
    claim = claim_by(world, real, mode=mode, tokens=tokens_of(cheap, world))
    choice = measured(claim, REPLAYS[path](world, claim, world.engine(0)))
    result = choice_result(choice, {})
    assert (result.outcome, result.code) == ("fail", "choice_contradiction")
    # The same tokens with the cheap model's own numbers contradict nothing: the value channel's.
    open_claim = claim_by(world, cheap, mode=mode)
    choice = measured(open_claim, REPLAYS[path](world, open_claim, world.engine(0)))
    assert not contradictions(choice).any()
    assert choice.mismatch.mean() > 0.1


@pytest.mark.parametrize("world", WORLDS[:4], ids=lambda w: f"T{w.temperature}")
@paths
@modes
def test_another_seed_fails(world: World, path: str, mode: LogprobsMode) -> None:
    engine = world.engine(HARDWARE)
    tokens = tokens_of(engine, dataclasses.replace(world, seed=8))
    claim = claim_by(world, engine, mode=mode, tokens=tokens)
    choice = measured(claim, REPLAYS[path](world, claim, world.engine(0)))
    assert choice.mismatch.mean() > 0.5
    assert choice_result(choice, {}).code == "choice_contradiction"


@paths
def test_wider_cuts_than_asked_are_seen(path: str) -> None:
    world = World(temperature=0.8, min_p=0.1)
    engine = world.engine(HARDWARE)
    tokens = tokens_of(engine, dataclasses.replace(world, min_p=0.0))
    claim = claim_by(world, engine, tokens=tokens)
    choice = measured(claim, REPLAYS[path](world, claim, world.engine(0)))
    assert choice.cut.mean() > 0.2
    assert choice.own_cut.mean() > 0.2
    assert (choice.mismatch | ~choice.cut).all()
    # Uncut, these tokens would have won: their margins are small, their number is not.
    assert choice.margin[choice.cut].max() < 0.5
    assert choice_result(choice, {}).outcome == "fail"


@worlds
@paths
def test_one_replaced_token_is_named(world: World, path: str) -> None:
    """A single token put there by hand, in an answer that is honest otherwise."""
    engine = world.engine(HARDWARE)
    tokens = tokens_of(engine, world)
    tokens[20] = int(np.argsort(engine[20])[world.logits.shape[1] // 2])
    claim = claim_by(world, engine, tokens=tokens)
    choice = measured(claim, REPLAYS[path](world, claim, world.engine(0)))
    assert first_outlier(choice) == 20
    result = choice_result(choice, {})
    assert (result.outcome, result.position) == ("fail", 20)
    assert result.code in ("choice_outlier", "choice_contradiction")


def test_margins_are_the_lead_of_the_draw() -> None:
    """By hand: log probabilities plus noise of the two ids, over the full vocabulary."""
    world = World(temperature=0.7, top_p=0.9)
    tokens = tokens_of(world.engine(OTHER_WEIGHTS, 2), world)
    claim = claim_by(world, world.engine(0), tokens=tokens)
    replay = decode_replay(world, claim, world.engine(0))
    choice, evidence = measured(claim, replay), replay.evidence
    assert evidence is not None
    rows = np.flatnonzero(choice.mismatch & ~choice.cut)
    assert len(rows)
    for row in rows:
        processed, forced = evidence.drawn_processed[row], evidence.logprob_processed[row]
        noise = (evidence.noise_drawn[row], evidence.noise_forced[row])
        assert processed is not None and forced is not None
        assert noise[0] is not None and noise[1] is not None
        assert choice.margin[row] == pytest.approx(processed + noise[0] - forced - noise[1])
        assert choice.margin[row] > 0


def test_lists_find_no_more_than_the_whole_vocabulary_shows() -> None:
    """Every mismatch from a list is one, its margin never larger, and `unseen` covers the rest."""
    for number in range(4):
        world = World(number=number, temperature=0.9, top_p=0.97, seed=number)
        tokens = tokens_of(world.engine(OTHER_WEIGHTS, 2), world)
        claim = claim_by(world, world.engine(HARDWARE), tokens=tokens)
        full = measured(claim, decode_replay(world, claim, world.engine(0)))
        part = measured(claim, prefill_replay(world, claim, world.engine(0), k=8))
        assert (full.mismatch | ~part.mismatch).all()
        both = part.mismatch & ~full.cut
        assert (part.margin[both] <= full.margin[both] + 1e-9).all()
        assert full.mismatch.sum() - part.mismatch.sum() <= part.unseen + 1e-9


def test_more_alternatives_than_the_claim_lists_are_used() -> None:
    """A prefill replay lists the claim's own ids for the distance and the likeliest beside them."""
    world = World()
    tokens = tokens_of(world.engine(OTHER_WEIGHTS, 2), world)
    claim = claim_by(world, world.engine(HARDWARE), tokens=tokens, k=5)
    short = prefill_replay(world, claim, world.engine(0), k=2)
    long = prefill_replay(world, claim, world.engine(0), k=50)
    assert long.positions is not None
    more = short.model_copy(update={"alternatives": tuple(p.top for p in long.positions)})
    assert measured(claim, more).mismatch.sum() == measured(claim, long).mismatch.sum()
    assert measured(claim, short).mismatch.sum() < measured(claim, more).mismatch.sum()


def test_double_precision_noise_is_another_tape() -> None:
    world = World()
    claim = claim_by(world, world.engine(0))
    double = claim.model_copy(update={"tape": Tape(runner="v2", fp64=True)})
    replay = decode_replay(world, claim, world.engine(0))
    assert refused(double, replay) == "other_tape"
    # Computed here, the claim's own flag decides which noise is drawn.
    assert measured(double, prefill_replay(world, claim, world.engine(0))).mismatch.mean() > 0.5


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"request": World(seed=None).request}, "unseeded"),
        ({"request": World(seed=-1).request}, "unseeded"),
        ({"request": World().request | {"n": 2}}, "several_choices"),
        ({"prompt": Prompt(token_ids=(5, 6, 7), source="response")}, "prompt_mismatch"),
        ({"output_ids": None, "positions": None}, "no_token_ids"),
        ({"tape": Tape(runner="v1", device="cpu")}, "other_tape"),
        ({"tape": Tape(runner="v2", generation=9)}, "other_tape"),
    ],
)
def test_a_replay_that_cannot_tell_says_why(changes: dict[str, Any], code: str) -> None:
    world = World()
    claim = claim_by(world, world.engine(0))
    replay = decode_replay(world, claim, world.engine(0))
    assert refused(claim.model_copy(update=changes), replay) == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tape": Tape(runner="v1", device="cpu")}, "sequential_generator"),
        ({"tape": Tape(runner="v2", generation=9)}, "other_tape"),
        ({"request": World().request | {"repetition_penalty": 1.1}}, "shaped_distribution"),
        ({"request": World().request | {"logit_bias": {"5": 1}}}, "shaped_distribution"),
        (
            {"request": World().request | {"response_format": {"type": "json_object"}}},
            "shaped_distribution",
        ),
        ({"request": {"seed": 7}}, "temperature_not_named"),
    ],
)
def test_one_forward_pass_cannot_tell_everything(changes: dict[str, Any], code: str) -> None:
    world = World()
    claim = claim_by(world, world.engine(0))
    replay = prefill_replay(world, claim, world.engine(0))
    assert refused(claim.model_copy(update=changes), replay) == code


@pytest.mark.parametrize("world", WORLDS[:4], ids=lambda w: f"T{w.temperature}")
@paths
@pytest.mark.parametrize("known", [True, False])
def test_min_tokens_masks_an_end_token_and_nothing_else(
    world: World, path: str, known: bool
) -> None:
    """The end token wins some draws of raw numbers that the engine had taken it out of."""
    least = 40
    world = dataclasses.replace(world, extra={"min_tokens": least})
    engine = world.engine(HARDWARE)
    end = 17
    engine[:, end] = engine.max(axis=1) - 0.5  # likely everywhere
    masked = engine.copy()
    masked[:least, end] = -np.inf
    tokens = tokens_of(masked, world)
    assert end not in tokens[:least]
    claim = claim_by(world, engine, tokens=tokens)
    if path == "decode":
        replay = decode_replay(world, claim, masked)
        raw = decode_replay(world, claim, engine)
        replay = replay.model_copy(update={"positions": raw.positions})
    else:
        replay = prefill_replay(world, claim, engine)
    engine_says = EngineIdentity(eos_token_ids=(end,) if known else None)
    choice = measured(claim, replay.model_copy(update={"engine": engine_says}))
    assert not contradictions(choice)[:least].any()
    assert not choice.mismatch[:least].any()
    # A cheap model's text is still seen.
    cheap = world.engine(OTHER_WEIGHTS, 2)
    cheap[:, end] = -np.inf
    laundered = claim_by(world, engine, tokens=tokens_of(cheap, world))
    replay = prefill_replay(world, laundered, engine)
    choice = measured(laundered, replay.model_copy(update={"engine": engine_says}))
    assert contradictions(choice)[:least].sum() >= 4


def test_processed_lists_need_no_parameters() -> None:
    """Penalties show in processed numbers, so nothing has to be named."""
    world = World()
    claim = claim_by(
        world,
        world.engine(0),
        mode="processed_logprobs",
        request={"seed": 7, "logit_bias": {"5": 1}},
    )
    choice = measured(claim, prefill_replay(world, claim, world.engine(0)))
    assert not choice.mismatch.any()
    assert not choice.assumed


def v1_pair(claimed: str | None, mine: str | None) -> tuple[Claim, Replay]:
    """A claim whose tokens the validator's engine does not draw."""
    world = World()
    tokens = tokens_of(world.engine(0), dataclasses.replace(world, seed=8))
    claim = claim_by(world, world.engine(0), tokens=tokens, tape=Tape(runner="v1", device=claimed))
    tape = Tape(runner="v1", device=mine)
    return claim, decode_replay(world, claim, world.engine(0), tape=tape)


@paths
def test_v1_of_a_cpu_is_drawn_again_anywhere(path: str) -> None:
    """Its generator is mt19937 and gives one number a step: lists are enough."""
    world = World(tape=Tape(runner="v1", generation=2, device="cpu"))
    claim = claim_by(world, world.engine(HARDWARE))

    def replay_of(one: Claim) -> Replay:
        if path == "prefill":
            return prefill_replay(world, one, world.engine(0))
        return decode_replay(world, one, world.engine(0), tape=world.tape)

    replay = replay_of(claim)
    choice = measured(claim, replay)
    assert choice.mismatch.mean() < 0.06
    assert not choice.assumed
    tokens = tokens_of(world.engine(0), dataclasses.replace(world, seed=8))
    other = claim_by(world, world.engine(0), tokens=tokens)
    assert measured(other, replay_of(other)).mismatch.mean() > 0.5
    # Where both sides draw by it, the kind of device does not matter.
    there = claim.model_copy(update={"tape": Tape(runner="v1", generation=2)})
    assert not measured(there, replay).assumed


def test_v1_on_another_kind_of_device_is_not_available() -> None:
    assert refused(*v1_pair("cuda", "cpu")) == "other_device"


def test_v1_on_the_same_kind_of_device_counts() -> None:
    assert choice_result(measured(*v1_pair("cpu", "cpu")), {}).outcome == "fail"


@pytest.mark.parametrize(("claimed", "mine"), [(None, "cpu"), ("cuda", None)])
def test_v1_on_an_unknown_device_never_counts_against_the_claim(
    claimed: str | None, mine: str | None
) -> None:
    result = choice_result(measured(*v1_pair(claimed, mine)), {})
    assert (result.outcome, result.code) == ("not_available", "assumption")
    assert "device" in result.reason


@paths
def test_a_claim_that_names_no_tape_can_agree_but_not_fail(path: str) -> None:
    """Agreement with a seed's noise is no accident, disagreement may be another engine's noise."""
    world = World()
    honest = claim_by(world, world.engine(HARDWARE), tape=None)
    replay = REPLAYS[path](world, honest, world.engine(0))
    assert choice_result(measured(honest, replay), {}).outcome == "pass"
    tokens = tokens_of(world.engine(0), dataclasses.replace(world, seed=8))
    other = claim_by(world, world.engine(0), tokens=tokens, tape=None)
    result = choice_result(measured(other, REPLAYS[path](world, other, world.engine(0))), {})
    assert (result.outcome, result.code) == ("not_available", "assumption")


def test_defaults_of_a_server_never_count_against_a_prefill() -> None:
    """A request that names no top-p was cut by the model's generation config, perhaps."""
    world = World(temperature=1.3, top_p=0.6)
    bare = {"temperature": 1.3, "seed": 7}
    claim = claim_by(world, world.engine(0), request=bare)
    choice = measured(claim, prefill_replay(world, claim, world.engine(0)))
    assert "top_p" in choice.assumed[0]
    assert choice_result(choice, {}).outcome != "fail"


def test_defaults_that_a_server_states_are_applied() -> None:
    """A model's generation config, as the validator's or the claim's own server reports it."""
    world = World(temperature=1.3, top_p=0.6)
    bare = {"temperature": 1.3, "seed": 7}
    claim = claim_by(world, world.engine(0), request=bare)
    replay = prefill_replay(world, claim, world.engine(0))
    for defaults, share in (({"top_p": 0.6, "top_k": 0.0}, 0.0), ({}, 0.02)):
        engine = EngineIdentity(default_sampling_params=defaults)
        there = replay.model_copy(update={"engine": engine})
        choice = measured(claim, there)
        assert not choice.assumed
        assert (choice.mismatch.mean() > share) == (share > 0)
        here = claim.model_copy(update={"engine": engine})
        assert (measured(here, replay).mismatch == choice.mismatch).all()
    warm = claim_by(world, world.engine(0), request={"seed": 7, "top_p": 0.6})
    engine = EngineIdentity(default_sampling_params={"temperature": 1.3})
    told = measured(warm.model_copy(update={"engine": engine}), replay)
    assert not told.mismatch.any()


def test_an_old_plugin_sends_no_noise() -> None:
    """Mismatches only: margins are missing, and so is the tape, so nothing counts against anybody."""
    world = World()
    tokens = tokens_of(world.engine(0), dataclasses.replace(world, seed=8))
    for claimed, fails in ((tokens, True), (tokens_of(world.engine(0), world), False)):
        claim = claim_by(world, world.engine(0), tokens=claimed)
        replay = decode_replay(world, claim, world.engine(0), noise=False, tape=None)
        choice = measured(claim, replay)
        assert choice.noise is False
        assert np.isnan(choice.margin[choice.mismatch]).all()
        assert choice.mismatch.any() == fails
        assert choice_result(choice, {}).outcome == ("not_available" if fails else "pass")
        assert "does not say" in choice.assumed[0]


def test_noise_is_not_needed_where_the_tape_is_known() -> None:
    world = World()
    tokens = tokens_of(world.engine(0), dataclasses.replace(world, seed=8))
    claim = claim_by(world, world.engine(0), tokens=tokens)
    replay = decode_replay(world, claim, world.engine(0), noise=False)
    assert choice_result(measured(claim, replay), {}).code == "choice_mismatch"


def test_positions_after_a_grammar_conflict_are_left_out() -> None:
    world = World()
    claim = claim_by(world, world.engine(0))
    replay = decode_replay(world, claim, world.engine(0))
    assert replay.evidence is not None
    cut = replay.evidence.model_copy(update={"grammar_conflict": 10})
    assert len(measured(claim, replay.model_copy(update={"evidence": cut}))) == 10


def test_low_entropy_agrees_for_free_and_passes_nothing() -> None:
    """spec replay, section 6: shifted noise agrees where only one token is likely."""
    world = World(sharpness=60.0, temperature=0.5)
    tokens = tokens_of(world.engine(0), dataclasses.replace(world, seed=8))
    claim = claim_by(world, world.engine(0), tokens=tokens)
    choice = measured(claim, decode_replay(world, claim, world.engine(0)))
    assert choice.mismatch.mean() < 0.05
    assert counts_of(choice).contested < 12
    assert choice_result(choice, {}).outcome != "pass"


def test_greedy_near_ties_show_in_the_margin() -> None:
    world = World(temperature=0)
    engine = world.engine(0)
    tokens = tokens_of(engine, world)
    second = int(np.argsort(engine[5])[-2])
    engine[5, second] = engine[5].max() - 1e-4
    tokens[5] = second
    claim = claim_by(world, engine, tokens=tokens)
    choice = measured(claim, decode_replay(world, claim, engine))
    assert choice.mismatch.sum() == 1
    assert choice.margin.max() == pytest.approx(1e-4, rel=1e-3)
    assert not contradictions(choice).any()
    assert choice_result(choice, {}).outcome == "pass"


def test_greedy_needs_neither_seed_nor_tape() -> None:
    world = World(temperature=0, seed=None)
    claim = claim_by(world, world.engine(0), tape=None)
    for replay in (
        decode_replay(world, claim, world.engine(0), tape=None),
        prefill_replay(world, claim, world.engine(0)),
    ):
        choice = measured(claim, replay)
        assert not choice.assumed
        assert not choice.mismatch.any()


def test_positions_of_draws_depend_on_the_length_of_the_prompt() -> None:
    world = World()
    claim = claim_by(world, world.engine(0))
    replay = prefill_replay(world, claim, world.engine(0))
    assert measured(claim, replay).mismatch.sum() == 0
    shifted = {"prompt": Prompt(token_ids=(*PROMPT, 9)), "usage": claim.usage}
    longer = replay.model_copy(update={"prompt_token_ids": (*PROMPT, 9)})
    assert measured(claim.model_copy(update=shifted), longer).mismatch.mean() > 0.5


def test_an_empty_or_textual_list_is_no_evidence() -> None:
    world = World()
    claim = claim_by(world, world.engine(0))
    replay = prefill_replay(world, claim, world.engine(0))
    assert replay.positions is not None
    bare = tuple(p.model_copy(update={"top": ()}) for p in replay.positions)
    assert refused(claim, replay.model_copy(update={"positions": bare})) == "no_evidence"
    assert refused(claim, replay.model_copy(update={"positions": ()})) == "no_evidence"
    text = tuple(
        p.model_copy(update={"top": (TopEntry(key="text:61", logprob=-0.1),)})
        for p in replay.positions
    )
    choice = measured(claim, replay.model_copy(update={"positions": text}))
    assert not choice.mismatch.any()
    assert choice_result(choice, {}).outcome != "fail"
    assert V2.runner == "v2"
