"""The verdict over three channels, with and without a profile."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

import pytest
from tests.scoring.draw_sides import World, claim_by, decode_replay, prefill_replay, tokens_of
from tests.scoring.sides import claim_of, needs_data, positions, recorded_pairs, replay_of

from assay.claims.claim import Claim, EngineIdentity, Replay, Tape, Usage
from assay.claims.positions import Position, TopEntry
from assay.errors import SettingsError
from assay.scoring.measure import measure
from assay.scoring.profile import Group, Profile
from assay.scoring.profile_key import ProfileKey
from assay.scoring.samples import record_of
from assay.scoring.verdict import Verdict, judge

HARDWARE = 0.02
ENGINE = EngineIdentity(model="toy", runner="v2", hardware="cpu", dtype="float32")
WORLD = World(n=64, temperature=0.8, sharpness=4.5)
PATHS = {"decode": decode_replay, "prefill": prefill_replay}
paths = pytest.mark.parametrize("path", PATHS)


def honest(number: int, path: str = "decode", noise: float = HARDWARE) -> tuple[Claim, Replay]:
    world = dataclasses.replace(WORLD, number=number, seed=1000 + number)
    return pair(world, world.engine(noise), path)


def pair(world: World, logits: Any, path: str = "decode", **how: Any) -> tuple[Claim, Replay]:
    claim = claim_by(world, logits, k=8, engine=ENGINE, **how)
    replay = PATHS[path](world, claim, world.engine(0), k=8)
    return claim, replay.model_copy(update={"engine": ENGINE})


@cache
def profile(path: str = "decode", claims: int = 60) -> Profile:
    made = [honest(500 + number, path) for number in range(claims)]
    records = tuple(
        record_of(measure(claim, replay), f"claim {index}")
        for index, (claim, replay) in enumerate(made)
    )
    group = Group(key=ProfileKey.of(*made[0]), records=records)
    return Profile(name="toy", path=made[0][1].path, mode="raw_logprobs", groups=(group,))


def outcome(verdict: Verdict) -> dict[str, str]:
    return {channel.name: channel.outcome for channel in verdict.channels}


# --- without a profile


@paths
def test_three_channels_are_named_and_marked_uncalibrated(path: str) -> None:
    verdict = judge(*honest(1, path, 0.001))
    assert verdict.verdict == "pass"
    assert outcome(verdict) == {"value": "pass", "choice": "pass", "account": "pass"}
    assert verdict.path == path
    assert verdict.profile is None
    assert verdict.p_value is verdict.fpr is None
    assert "no profile was given" in (verdict.calibration or "")
    assert "published thresholds" in (verdict.calibration or "")
    assert verdict.limits_source == "the default, not calibrated"
    assert verdict.channels[1].statistics["choice_mismatch"] < 0.1


@needs_data
def test_recorded_pairs_are_judged_by_distance_as_before() -> None:
    """They carry no seed evidence: the choice channel is silent, whatever the distances say."""
    for one in recorded_pairs():
        verdict = judge(one.claim, one.replay)
        choice = verdict.channels[1]
        assert choice.outcome == "not_available", (one.name, choice)
        assert choice.reason
        by_value = verdict.channels[0].outcome
        if one.row["label"] == "honest":
            assert by_value != "fail"


@paths
def test_laundering_never_passes_though_its_distance_is_zero(path: str) -> None:
    tokens = tokens_of(WORLD.engine(0.6, 2), WORLD)
    verdict = judge(*pair(WORLD, WORLD.engine(0), path, tokens=tokens))
    assert (verdict.mean_distance, verdict.by_distance) == (0.0, "pass")
    assert verdict.verdict == "fail"
    assert outcome(verdict)["choice"] == "fail"


def test_the_choice_counts_where_there_is_nothing_to_compare() -> None:
    """A claim in another mode than the replay: distances mean nothing, draws still do."""
    tokens = tokens_of(WORLD.engine(0), dataclasses.replace(WORLD, seed=8))
    claim, replay = pair(WORLD, WORLD.engine(0), tokens=tokens)
    other = claim.model_copy(update={"logprobs_mode": "processed_logprobs"})
    verdict = judge(other, replay)
    assert outcome(verdict)["value"] == "not_available"
    assert verdict.verdict == "fail"
    assert verdict.by_distance is None


def test_an_honest_claim_of_another_runner_or_device_never_fails() -> None:
    tokens = tokens_of(WORLD.engine(0), dataclasses.replace(WORLD, seed=8))
    for tape in (Tape(runner="v1", device="cuda"), Tape(runner="v2", fp64=True), None):
        claim, replay = pair(WORLD, WORLD.engine(0.001), tokens=tokens, tape=tape)
        verdict = judge(claim, replay)
        assert outcome(verdict)["choice"] == "not_available"
        assert verdict.verdict == "pass"
        assert verdict.channels[1].reason


def test_a_required_channel_that_could_not_look_keeps_a_claim_from_passing() -> None:
    """An executor that leaves out its tape, or the seed, cannot slip past the choice channel."""
    claim, replay = pair(WORLD, WORLD.engine(0.001), tape=None)
    silent = claim.model_copy(update={"tape": Tape(runner="v1", device="cuda")})
    unseeded = {name: value for name, value in claim.request.items() if name != "seed"}
    for said in (silent, claim.model_copy(update={"request": unseeded})):
        assert judge(said, replay).verdict == "pass"
        verdict = judge(said, replay, require=("choice",))
        assert verdict.verdict == "inconclusive"
        assert [reason.code for reason in verdict.reasons] == ["channel_required"]
        assert "choice channel" in verdict.reasons[0].message
    assert judge(*honest(1, noise=0.001), require=("choice",)).verdict == "pass"


def test_a_seed_of_the_executors_own_is_noted() -> None:
    claim, replay = honest(1, noise=0.001)
    for source, noted in (("executor", True), ("client", False), ("beacon", False), (None, False)):
        verdict = judge(claim.model_copy(update={"seed_source": source}), replay)
        assert any("chose the seed" in note for note in verdict.notes) == noted
        assert verdict.verdict == "pass"


def test_no_claim_that_says_nothing_about_itself_passes_an_account() -> None:
    verdict = judge(claim_of(positions(48)), replay_of(positions(48)))
    assert outcome(verdict)["account"] == "not_available"
    assert verdict.verdict == "pass"


# --- with a profile


@paths
def test_honest_claims_pass_at_the_stated_rate(path: str) -> None:
    verdicts = [judge(*honest(n, path), profile=profile(path)) for n in range(30)]
    assert all(v.verdict != "fail" for v in verdicts)
    assert sum(v.verdict == "pass" for v in verdicts) >= 27
    for verdict in verdicts:
        assert verdict.profile == profile(path).id
        assert verdict.fpr == 1e-3
        assert verdict.p_value is not None
        assert verdict.channels[0].p_value is not None
        assert verdict.channels[1].p_value is not None
        assert any(name.startswith("p_value_") for name in verdict.channels[0].statistics)


@paths
def test_a_cheat_fails_by_a_p_value_where_no_fixed_rule_would(path: str) -> None:
    """Weights a little off: inconclusive by the published limits, unlikely among honest claims."""
    claim, replay = pair(WORLD, WORLD.engine(0.25, 2), path)
    assert judge(claim, replay).verdict == "inconclusive"
    verdict = judge(claim, replay, profile=profile(path))
    assert verdict.verdict == "fail"
    assert verdict.reasons[0].code == "value_too_far"
    assert verdict.p_value is not None
    assert verdict.p_value < 1e-3
    assert verdict.causes


@paths
def test_case_51_a_flat_claim_is_not_convicted_by_a_profile_of_sharp_ones(path: str) -> None:
    """Honest hardware differs most where many tokens are about as likely; no profile says how much.

    The same distance on a claim that is not flat fails (the test above).
    """
    level = dataclasses.replace(WORLD, sharpness=1.0, temperature=1.0)
    claim, replay = pair(level, level.engine(0.25, 2), path)
    verdict = judge(claim, replay, profile=profile(path))
    assert verdict.flat
    assert verdict.profile is not None
    assert verdict.verdict == "inconclusive"
    assert "flat_distribution" in [reason.code for reason in verdict.reasons]
    # What no hardware explains still convicts: text of another seed under the engine's own numbers.
    tokens = tokens_of(level.engine(0), dataclasses.replace(level, seed=8))
    forged = judge(*pair(level, level.engine(0), path, tokens=tokens), profile=profile(path))
    assert forged.flat
    assert forged.verdict == "fail"


def test_one_far_position_is_named_by_its_p_value() -> None:
    logits = WORLD.engine(HARDWARE)
    logits[33] = WORLD.engine(4.0, 3)[33]
    claim, replay = pair(WORLD, logits)
    verdict = judge(claim, replay, profile=profile(), fpr=0.01)
    assert verdict.verdict == "fail"
    assert verdict.channels[0].code == "value_too_far"
    assert verdict.channels[0].position == verdict.reasons[0].position == 33
    # At a rate that the channel reaches and all channels together do not.
    p = verdict.channels[0].p_value
    assert p is not None
    near = judge(claim, replay, profile=profile(), fpr=1.5 * p)
    assert near.verdict == "inconclusive"
    assert near.reasons[0].code == "unusual"
    assert "over all channels" in near.reasons[0].message


def test_a_slightly_other_temperature_fails_by_the_choice_alone() -> None:
    world = dataclasses.replace(WORLD, n=256)
    tokens = tokens_of(world.engine(HARDWARE), dataclasses.replace(world, temperature=0.7))
    verdict = judge(*pair(world, world.engine(HARDWARE), tokens=tokens), profile=profile())
    assert verdict.verdict == "fail"
    assert outcome(verdict)["value"] == "pass"
    assert outcome(verdict)["choice"] == "fail"


def test_numbers_that_are_too_close_are_evidence_too() -> None:
    """Both tails: a sample of honest claims that never come near 0."""
    claim, replay = pair(WORLD, WORLD.engine(0))
    verdict = judge(claim, replay, profile=profile(), fpr=0.1)
    assert verdict.verdict == "fail"
    assert verdict.reasons[0].code == "value_too_close"
    assert [cause.name for cause in verdict.causes] == ["laundering"]


def test_paths_are_never_mixed() -> None:
    verdict = judge(*honest(1, "prefill"), profile=profile("decode"))
    assert verdict.profile is None
    assert "path" in (verdict.calibration or "")
    assert verdict.p_value is None
    both = judge(*honest(1, "prefill"), profile=[profile("decode"), profile("prefill")])
    assert both.profile == profile("prefill").id


def test_a_profile_of_other_hardware_does_not_fit_and_says_so() -> None:
    claim, replay = honest(1)
    there = claim.model_copy(update={"engine": ENGINE.model_copy(update={"hardware": "H100"})})
    verdict = judge(there, replay, profile=profile())
    assert verdict.profile is None
    assert "hardware" in (verdict.calibration or "")
    unknown = claim.model_copy(update={"engine": ENGINE.model_copy(update={"hardware": None})})
    assert judge(unknown, replay, profile=profile()).profile is None
    allowed = judge(unknown, replay, profile=profile(), allow_unknown=True)
    assert allowed.profile == profile().id
    assert "unknown" in (allowed.calibration or "")


def test_a_short_claim_is_inconclusive_with_a_profile_too() -> None:
    world = dataclasses.replace(WORLD, n=10, number=3)
    claim, replay = pair(world, world.engine(HARDWARE))
    verdict = judge(claim, replay, profile=profile())
    assert verdict.verdict == "inconclusive"
    assert verdict.reasons[0].code == "too_short_to_tell"
    assert verdict.tokens_needed is not None
    assert verdict.tokens_needed > 10


def test_an_assumed_tape_gives_no_p_value_to_the_choice() -> None:
    claim, replay = honest(1)
    verdict = judge(claim.model_copy(update={"tape": None}), replay, profile=profile())
    assert verdict.channels[1].p_value is None
    assert verdict.channels[1].outcome == "pass"
    assert "choice channel not calibrated" in (verdict.calibration or "")


def test_a_guessed_mode_gives_no_p_value_to_the_distances() -> None:
    claim, replay = pair(WORLD, WORLD.engine(0.25, 2))
    guessed = replay.model_copy(update={"mode_source": "inferred"})
    verdict = judge(claim, guessed, profile=profile())
    assert verdict.channels[0].p_value is None
    assert verdict.channels[0].outcome != "fail"


def test_a_threshold_of_the_callers_comes_before_the_profile() -> None:
    verdict = judge(*honest(1), profile=profile(), threshold=0.99999)
    assert verdict.limits_source == "the threshold given"
    assert verdict.channels[0].p_value is None


@pytest.mark.parametrize("fpr", [0.0, 0.5, -1.0, math.nan])
def test_a_rate_must_be_one(fpr: float) -> None:
    with pytest.raises(SettingsError, match="fpr"):
        judge(*honest(1), fpr=fpr)


# --- claims that no model made


def constant(value: float) -> tuple[Position, ...]:
    return tuple(
        Position(
            token=i, logprob=value, top=tuple(TopEntry(key=k, logprob=value) for k in range(8))
        )
        for i in range(64)
    )


@pytest.mark.parametrize("value", [0.0, -2.5, -1e-9, -9999.0])
@pytest.mark.parametrize("calibrated", [False, True])
def test_all_zero_and_constant_claims_never_pass(value: float, calibrated: bool) -> None:
    claim, replay = honest(1)
    assert replay.positions is not None
    forged = constant(value)
    forged = tuple(
        position.model_copy(update={"token": real.token})
        for position, real in zip(forged, replay.positions, strict=True)
    )
    verdict = judge(
        claim.model_copy(update={"positions": forged}),
        replay,
        profile=profile() if calibrated else None,
    )
    assert verdict.verdict != "pass"
    assert verdict.reasons


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("side", ["claim", "replay"])
def test_nan_never_passes_and_enters_no_statistic(bad: float, side: str) -> None:
    claim, replay = honest(1)
    assert claim.positions is not None
    assert replay.positions is not None

    def broken(held: tuple[Position, ...]) -> tuple[Position, ...]:
        top = tuple(e.model_copy(update={"logprob": bad}) for e in held[3].top)
        return (*held[:3], held[3].model_copy(update={"logprob": bad, "top": top}), *held[4:])

    if side == "claim":
        claim = claim.model_copy(update={"positions": broken(claim.positions)})
    else:
        replay = replay.model_copy(update={"positions": broken(replay.positions)})
    for verdict in (judge(claim, replay), judge(claim, replay, profile=profile())):
        assert verdict.verdict == ("fail" if side == "claim" else "inconclusive")
        for channel in verdict.channels:
            assert all(math.isfinite(value) for value in channel.statistics.values())
    assert "value_distance" not in measure(claim, replay).series


def test_nan_in_the_evidence_is_no_margin() -> None:
    claim, replay = honest(1)
    assert replay.evidence is not None
    bad = replay.evidence.model_copy(update={"noise_drawn": (math.nan,) * 64})
    measured = measure(claim, replay.model_copy(update={"evidence": bad}))
    assert all(math.isfinite(v) for values in measured.series.values() for v in values)


# --- public reports


def test_case_33_a_batch_moves_numbers_and_the_verdict_stays() -> None:
    """33: small drift between identical requests is normal; the limit stands above it."""
    verdicts = [judge(*honest(1, noise=noise)) for noise in (0.0, 0.001, 0.003)]
    assert {verdict.verdict for verdict in verdicts} == {"pass"}
    for verdict in verdicts:
        assert verdict.mean_distance is not None
        assert verdict.pass_limit is not None
        assert verdict.mean_distance < verdict.pass_limit / 2


@needs_data
def test_case_35_seeded_answers_of_two_gpus_are_not_fraud() -> None:
    """35: natural generations part; the channel that needs one noise says it cannot look."""
    parted = [one for one in recorded_pairs() if one.row["kind"] == "natural_prefix"]
    assert parted
    for one in parted:
        verdict = judge(one.claim, one.replay)
        assert verdict.verdict != "fail"
        assert verdict.channels[1].outcome == "not_available"


def test_case_54_the_answer_is_graded_and_names_what_it_cannot_tell() -> None:
    """54: effect size, confidence, sample size needed and what cannot be told, honest or not."""
    for noise in (HARDWARE, 0.15, 0.6):
        claim, replay = pair(WORLD, WORLD.engine(noise, 2))
        verdict = judge(claim, replay, profile=profile())
        value, choice = verdict.channels[0], verdict.channels[1]
        assert value.statistics["value_distance"] > 0
        assert value.p_value is not None
        assert choice.p_value is not None
        assert verdict.calibration
    unseeded = claim.model_copy(update={"request": claim.request | {"seed": None}})
    silent = judge(unseeded, replay).channels[1]
    assert (silent.outcome, silent.code) == ("not_available", "unseeded")


def test_case_56_text_without_ids_is_not_judged_by_draws() -> None:
    """56: a claim given as text only has no tokens that could follow from a seed."""
    text = tuple(
        Position(token="text:61", logprob=-0.5, top=(TopEntry(key="text:61", logprob=-0.5),))
        for _ in range(20)
    )
    claim = claim_of(text, request=WORLD.request, usage=Usage(completion_tokens=20))
    verdict = judge(claim, replay_of(positions(20), path="file"))
    assert verdict.verdict == "inconclusive"
    assert verdict.causes == ()
    assert verdict.channels[1].code == "no_token_ids"


@paths
def test_case_57_prefilled_and_copied_claims_are_caught(path: str) -> None:
    """57: a small model scores the real text; another prompt's numbers are sent; a cheap text is
    scored by the real model. The first two show in the values, the last in the choice."""
    real = WORLD.engine(HARDWARE)
    small = pair(WORLD, WORLD.engine(2.0, 2), path, tokens=tokens_of(real, WORLD))
    scored = judge(*small)
    assert scored.verdict == "fail"
    assert outcome(scored)["value"] == "fail"
    other = dataclasses.replace(WORLD, number=77)
    copied_claim = claim_by(other, other.engine(0), k=8, engine=ENGINE)
    replay = PATHS[path](WORLD, copied_claim, WORLD.engine(0), k=8)
    copied = judge(copied_claim, replay)
    assert copied.verdict == "fail"
    laundered = judge(*pair(WORLD, real, path, tokens=tokens_of(WORLD.engine(0.6, 2), WORLD)))
    assert outcome(laundered)["choice"] == "fail"
