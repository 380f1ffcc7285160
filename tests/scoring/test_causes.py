"""The likely cause behind a verdict: one cheat after the other on a toy model."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from tests.scoring.draw_sides import (
    World,
    claim_by,
    decode_replay,
    prefill_replay,
    tokens_of,
)

from assay.claims.claim import Claim, Prompt, Replay, Usage
from assay.scoring.causes import unrelated_draws
from assay.scoring.choice import Choice, choose, drawn_at
from assay.scoring.spans import far_span
from assay.scoring.verdict import Verdict, judge

HARDWARE, DTYPE, INT4 = 0.02, 0.05, 0.6
WORLD = World(n=96, temperature=0.8, sharpness=2.6)


def names(verdict: Verdict) -> list[str]:
    return [cause.name for cause in verdict.causes]


def both(claim: Claim, world: World = WORLD) -> list[Verdict]:
    engine = world.engine(0)
    replays: list[Replay] = [
        decode_replay(world, claim, engine),
        prefill_replay(world, claim, engine),
    ]
    return [judge(claim, replay) for replay in replays]


def test_an_honest_claim_has_no_cause() -> None:
    for verdict in both(claim_by(WORLD, WORLD.engine(0.001))):
        assert (verdict.verdict, verdict.causes) == ("pass", ())


def test_case_57_laundering_is_named_where_the_values_are_clean() -> None:
    """The real model's numbers over a cheap model's text: distance 0, choice bad."""
    tokens = tokens_of(WORLD.engine(INT4, 2), WORLD)
    for verdict in both(claim_by(WORLD, WORLD.engine(0.001), tokens=tokens)):
        assert verdict.verdict == "fail"
        assert verdict.by_distance == "pass"
        assert verdict.channels[0].outcome == "pass"
        assert verdict.channels[1].outcome == "fail"
        assert names(verdict)[0] == "laundering"
        assert "likely" in verdict.causes[0].message


def test_another_seed_is_told_from_laundering() -> None:
    engine = WORLD.engine(0.001)
    tokens = tokens_of(engine, dataclasses.replace(WORLD, seed=99))
    for verdict in both(claim_by(WORLD, engine, tokens=tokens)):
        assert verdict.verdict == "fail"
        assert names(verdict)[0] == "seed"


def test_share_of_unrelated_draws_is_one_for_another_seed() -> None:
    engine = WORLD.engine(0)
    for seed, low, high in ((WORLD.seed, 0.0, 0.0), (99, 0.85, 1.15)):
        tokens = tokens_of(engine, dataclasses.replace(WORLD, seed=seed))
        claim = claim_by(WORLD, engine, tokens=tokens)
        choice = choose(claim, decode_replay(WORLD, claim, engine))
        assert isinstance(choice, Choice)
        assert low <= unrelated_draws(choice) <= high


def test_wider_cuts_than_asked_are_the_sampler() -> None:
    world = World(n=96, temperature=0.8, min_p=0.1, sharpness=2.6)
    engine = world.engine(0.001)
    tokens = tokens_of(engine, dataclasses.replace(world, min_p=0.0))
    for verdict in both(claim_by(world, engine, tokens=tokens), world):
        assert verdict.verdict == "fail"
        assert names(verdict)[0] == "sampler"


@pytest.mark.parametrize("drawn", [0.5, 1.2])
def test_the_temperature_that_was_used_is_named(drawn: float) -> None:
    """Raw numbers do not show a temperature; with the noise of the seed they tell it."""
    engine = WORLD.engine(0.001)
    tokens = tokens_of(engine, dataclasses.replace(WORLD, temperature=drawn))
    for verdict in both(claim_by(WORLD, engine, tokens=tokens)):
        assert verdict.verdict == "fail"
        assert names(verdict)[0] == "sampler"
        found = re.search(r"near ([0-9.]+),", verdict.causes[0].message)
        assert found is not None
        assert abs(float(found[1]) - drawn) <= 0.15


def test_no_temperature_explains_another_models_text() -> None:
    for tokens in (
        tokens_of(WORLD.engine(INT4, 2), WORLD),
        tokens_of(WORLD.engine(0), dataclasses.replace(WORLD, seed=99)),
    ):
        claim = claim_by(WORLD, WORLD.engine(0), tokens=tokens)
        assert drawn_at(claim, decode_replay(WORLD, claim, WORLD.engine(0))) is None


def test_a_replaced_token_is_named_with_its_position() -> None:
    engine = WORLD.engine(0.001)
    tokens = tokens_of(engine, WORLD)
    tokens[40] = int(np.argsort(engine[40])[50])
    for verdict in both(claim_by(WORLD, engine, tokens=tokens)):
        assert verdict.verdict == "fail"
        cause = verdict.causes[0]
        assert (cause.name, cause.position, cause.end) == ("token_replaced", 40, 41)


@pytest.mark.parametrize(("start", "end"), [(30, 96), (30, 60)])
def test_a_tampered_span_is_named_where_it_begins(start: int, end: int) -> None:
    """Another model wrote positions `start` to `end` and reported its own numbers."""
    engine, other = WORLD.engine(0.001), WORLD.engine(1.5, 2)
    mixed = engine.copy()
    mixed[start:end] = other[start:end]
    for verdict in both(claim_by(WORLD, mixed)):
        assert verdict.verdict == ("fail" if end == WORLD.n else "inconclusive")
        cause = next(c for c in verdict.causes if c.name == "tampered_span")
        assert cause.position is not None
        assert abs(cause.position - start) <= 2
        assert (cause.end is None) == (end == WORLD.n)
        if cause.end is not None:
            assert abs(cause.end - end) <= 2


def test_a_replaced_token_is_where_its_span_begins() -> None:
    """A likely other token: its own numbers stay right, those after it belong to another text."""
    engine, other = WORLD.engine(0.001), WORLD.engine(1.5, 2)
    tokens = tokens_of(engine, WORLD)
    ranked = np.argsort(engine[40])[::-1]
    tokens[40] = int(next(token for token in ranked if token != tokens[40]))
    mixed = engine.copy()
    mixed[41:] = other[41:]
    for verdict in both(claim_by(WORLD, mixed, tokens=tokens)):
        cause = next(c for c in verdict.causes if c.name == "tampered_span")
        assert cause.position == 40


@pytest.mark.parametrize(("noise", "name"), [(1.0, "quantisation"), (8.0, "other_model")])
def test_wrong_from_the_first_token_is_the_weights(noise: float, name: str) -> None:
    for verdict in both(claim_by(WORLD, WORLD.engine(noise, 2))):
        assert verdict.verdict == "fail"
        assert name in names(verdict)
        assert "tampered_span" not in names(verdict)


def test_a_clean_first_token_points_at_the_cache() -> None:
    mixed = WORLD.engine(0.8, 2)
    mixed[0] = WORLD.engine(0)[0]
    for verdict in both(claim_by(WORLD, mixed)):
        assert names(verdict)[0] == "kv_cache"


def test_other_prompt_ids_are_the_template() -> None:
    claim = claim_by(WORLD, WORLD.engine(0))
    replay = decode_replay(WORLD, claim, WORLD.engine(0))
    verdict = judge(claim, replay.model_copy(update={"prompt_token_ids": (5, 6, 7)}))
    assert names(verdict) == ["template"]
    # A prompt that nobody named may differ too.
    bare = claim_by(WORLD, WORLD.engine(1.2, 2), prompt=Prompt(text="x"))
    assert "template" in names(judge(bare, decode_replay(WORLD, bare, WORLD.engine(0))))


def test_account_failures_have_causes_of_their_own() -> None:
    claim = claim_by(WORLD, WORLD.engine(0))
    inflated = claim.model_copy(update={"usage": Usage(prompt_tokens=4, completion_tokens=120)})
    verdict = judge(inflated, decode_replay(WORLD, claim, WORLD.engine(0)))
    assert verdict.channels[2].outcome == "fail"
    assert names(verdict) == ["inflation"]
    cut = claim.model_copy(update={"request": WORLD.request | {"max_tokens": 200}})
    known = judge(cut, decode_replay(WORLD, cut, WORLD.engine(0)))
    assert "inflation" not in names(known)


def test_a_short_honest_claim_is_told_how_many_tokens_it_needs() -> None:
    """54: a graded answer, with the sample size that would decide."""
    world = dataclasses.replace(WORLD, n=9)
    claim = claim_by(world, world.engine(0.001))
    for verdict in both(claim, world):
        assert verdict.verdict == "inconclusive"
        assert verdict.causes == ()
        assert verdict.tokens_needed is not None
        assert 9 < verdict.tokens_needed <= 24
    # A claim of that many tokens passes.
    longer = dataclasses.replace(WORLD, n=24)
    for verdict in both(claim_by(longer, longer.engine(0.001)), longer):
        assert (verdict.verdict, verdict.tokens_needed) == ("pass", None)


def test_far_span_finds_a_stretch_and_no_stretch_in_even_noise() -> None:
    rng = np.random.default_rng(3)
    for number in range(200):
        flat = rng.exponential(0.01, size=64)
        assert far_span(flat) is None, number
    marked = rng.exponential(0.004, size=64)
    marked[20:40] = rng.exponential(0.1, size=20)
    span = far_span(marked)
    assert span is not None
    assert abs(span.start - 20) <= 2
    assert abs(span.end - 40) <= 2
    assert far_span(np.zeros(50)) is None
    assert far_span(np.array([0.2])) is None
    long = np.concatenate([np.full(3000, 0.002), np.full(1000, 0.1)])
    found = far_span(long)
    assert found is not None
    assert abs(found.start - 3000) <= 20
