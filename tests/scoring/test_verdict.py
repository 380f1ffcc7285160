"""The judgement, reason by reason and case by case."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from tests.scoring.sides import (
    claim_of,
    distribution,
    needs_data,
    position,
    positions,
    recorded_pair,
    recorded_pairs,
    replay_of,
)

from assay.claims.account import Known
from assay.claims.claim import EngineIdentity, Evidence, Usage
from assay.claims.positions import IMPOSSIBLE, Position, TopEntry
from assay.errors import ClaimError, ReplayError, SettingsError
from assay.scoring.verdict import (
    Verdict,
    judge,
    verdict_on_unreadable_claim,
    verdict_on_unreadable_replay,
    verdict_without_replay,
)

HONEST = 0.002  # nats of noise: about what other hardware does
CHEAT = 1.5  # nats of noise: about what int4 weights do


def codes(verdict: Verdict) -> list[str]:
    return [reason.code for reason in verdict.reasons]


def pair(count: int = 48, noise: float = HONEST, **how: Any) -> tuple[Any, Any]:
    return claim_of(positions(count, noise=noise, **how)), replay_of(positions(count, **how))


def test_an_honest_claim_passes_without_a_reason() -> None:
    verdict = judge(*pair())
    assert (verdict.verdict, verdict.reasons) == ("pass", ())
    assert verdict.positions == verdict.informative_positions == 48
    assert verdict.kind == "enforced"
    assert verdict.by_distance == "pass"
    assert verdict.similarity is not None
    assert verdict.similarity > 0.99
    assert len(verdict.distances) == len(verdict.entropies) == len(verdict.near_best) == 48


def test_a_cheat_fails_with_the_reason_and_its_numbers() -> None:
    verdict = judge(*pair(noise=CHEAT))
    assert verdict.verdict == "fail"
    assert "similarity_below" in codes(verdict)
    assert verdict.mean_distance is not None
    assert verdict.fail_limit is not None
    assert verdict.mean_distance > verdict.fail_limit


def test_ten_honest_looking_positions_are_too_short_to_tell() -> None:
    verdict = judge(*pair(10))
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["too_short_to_tell"])
    assert judge(*pair(12)).verdict == "pass"


@needs_data
@pytest.mark.parametrize("threshold", [None, 0.9, 0.99])
@pytest.mark.parametrize("start", range(0, 100, 10))
def test_ten_positions_of_the_recorded_fraud_are_inconclusive(
    start: int, threshold: float | None
) -> None:
    """The published rule gives most of these more than 0.99."""
    fraud = recorded_pair("awq_int4_vs_fp8")
    cut = slice(start, start + 10)
    assert fraud.claim.positions is not None
    assert fraud.replay.positions is not None
    usage = Usage(completion_tokens=10)
    short = fraud.claim.model_copy(update={"positions": fraud.claim.positions[cut], "usage": usage})
    replay = fraud.replay.model_copy(
        update={"positions": fraud.replay.positions[cut], "usage": usage}
    )
    verdict = judge(short, replay, threshold=threshold)
    assert verdict.similarity is not None
    # Ten positions that even the published rule, kind to short claims, rejects may fail.
    clearly_wrong = verdict.similarity <= (threshold or 0.0)
    assert verdict.verdict == "inconclusive" or (clearly_wrong and verdict.verdict == "fail")


@needs_data
def test_no_recorded_honest_pair_fails_and_no_recorded_fraud_passes() -> None:
    seen = {"honest": 0, "fraud": 0}
    for one in recorded_pairs():
        for threshold in (None, 0.9):
            verdict = judge(one.claim, one.replay, threshold=threshold)
            unwanted = "fail" if one.row["label"] == "honest" else "pass"
            assert verdict.verdict != unwanted, one.name
        seen[one.row["label"]] += 1
    assert seen == {"honest": 61, "fraud": 1}


@needs_data
def test_known_pairs_of_qwq() -> None:
    honest, fraud = recorded_pair("same_model"), recorded_pair("awq_int4_vs_fp8")
    assert judge(honest.claim, honest.replay).verdict == "pass"
    # The published default threshold, told to be the right one for this model.
    told = judge(fraud.claim, fraud.replay, threshold=0.99)
    assert told.verdict == "fail"
    assert told.similarity == pytest.approx(0.966889, abs=1e-6)
    # Untold, its 23 informative positions are not clearly beyond what honest hardware does.
    assert judge(fraud.claim, fraud.replay).verdict == "inconclusive"


@needs_data
def test_equal_recorded_answers_pass() -> None:
    for case in ("minimax-m27_ch", "minimax-m27_en", "minimax-m27_hi"):
        one = recorded_pair(case, "validation-5.json")
        assert judge(one.claim, one.replay).verdict == "pass"


# --- tokens and lengths


def test_a_different_token_in_an_enforced_replay_fails_with_its_position() -> None:
    claim, replay = pair()
    held = list(replay.positions)
    held[20] = held[20].model_copy(update={"token": 7})
    verdict = judge(claim, replay.model_copy(update={"positions": tuple(held)}))
    assert verdict.verdict == "fail"
    assert verdict.first_disagreement == 20
    assert verdict.positions == 20
    assert [(r.code, r.position) for r in verdict.reasons] == [("different_tokens", 20)]


def test_case_35_free_generations_part_and_the_prefix_is_compared() -> None:
    claim, replay = pair()
    held = list(replay.positions)
    held[20] = held[20].model_copy(update={"token": 7})
    natural = replay.model_copy(update={"positions": tuple(held), "path": "file"})
    verdict = judge(claim, natural)
    assert verdict.kind == "natural"
    assert (verdict.verdict, verdict.by_distance) == ("inconclusive", "pass")
    assert codes(verdict) == ["different_tokens"]
    assert "at position 20" in verdict.reasons[0].message
    assert judge(claim, natural, kind="enforced").verdict == "fail"


def test_a_natural_pair_whose_prefix_is_clearly_wrong_fails() -> None:
    claim, replay = pair(noise=CHEAT)
    held = list(replay.positions)
    held[40] = held[40].model_copy(update={"token": 7})
    natural = replay.model_copy(update={"positions": tuple(held), "path": "file"})
    verdict = judge(claim, natural)
    assert (verdict.verdict, verdict.by_distance) == ("fail", "fail")


@needs_data
def test_case_35_recorded_natural_pairs_are_no_fraud() -> None:
    parted = 0
    for one in recorded_pairs():
        if one.row["full_chain_verdict"] != "different_tokens":
            continue
        verdict = judge(one.claim, one.replay)
        assert verdict.verdict == "inconclusive", one.name
        assert "different_tokens" in codes(verdict)
        assert verdict.first_disagreement == int(one.row["comparable_positions"])
        assert verdict.by_distance != "fail"
        parted += 1
    assert parted > 20


def test_a_shorter_replay() -> None:
    claim, replay = pair()
    short = replay.model_copy(update={"positions": replay.positions[:40]})
    enforced = judge(claim, short)
    assert (enforced.verdict, codes(enforced)) == ("fail", ["different_length"])
    natural = judge(claim, short.model_copy(update={"path": "file"}))
    assert (natural.verdict, natural.by_distance) == ("inconclusive", "pass")


def test_a_longer_replay_is_accepted() -> None:
    claim, replay = claim_of(positions(48, noise=HONEST)), replay_of(positions(60))
    assert judge(claim, replay).verdict == "pass"


def test_an_incomplete_replay_decides_nothing() -> None:
    claim, replay = pair()
    evidence = Evidence(runner="v1", complete=False)
    short = replay.model_copy(update={"positions": replay.positions[:40], "evidence": evidence})
    verdict = judge(claim, short)
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["replay_incomplete"])


def test_case_9_a_last_position_that_the_replay_could_not_name() -> None:
    claim, replay = pair(13)
    short = replay.model_copy(
        update={"positions": replay.positions[:12], "usage": Usage(completion_tokens=13)}
    )
    assert judge(claim, short).verdict == "pass"


def test_case_9_a_last_position_without_alternatives_on_either_side() -> None:
    end = Position(token=2, logprob=IMPOSSIBLE)
    real = position([(2, -0.1), (3, -2.4)])
    for ours, theirs in ((end, real), (real, end), (end, end)):
        claim = claim_of((*positions(12, noise=HONEST), ours))
        replay = replay_of((*positions(12), theirs))
        verdict = judge(claim, replay)
        assert verdict.verdict == "pass"
        assert verdict.positions == 12
        assert verdict.distances[12] is None


# --- evidence


def bare(count: int = 20) -> tuple[Position, ...]:
    return tuple(Position(token=1000 + i, logprob=-0.5) for i in range(count))


def top1(count: int = 20) -> tuple[Position, ...]:
    return tuple(position([(1000 + i, -0.5)]) for i in range(count))


def all_padding(count: int = 20) -> tuple[Position, ...]:
    return tuple(
        position([(1000 + i, 0.0), (0, IMPOSSIBLE), (1, IMPOSSIBLE)]) for i in range(count)
    )


@pytest.mark.parametrize("held", [bare(), top1(), all_padding()], ids=["bare", "top-1", "padding"])
def test_case_7_no_top_k_evidence_is_neither_fraud_nor_pass(held: Any) -> None:
    both = judge(claim_of(held), replay_of(held))
    claim_only = judge(claim_of(held), replay_of(positions(20)))
    assert both.verdict == claim_only.verdict == "inconclusive"
    assert codes(both) == ["no_evidence"]
    assert codes(claim_only)[0] == "no_evidence"


@pytest.mark.parametrize("held", [None, ()])
def test_case_46_a_claim_without_log_probabilities_is_rejected(held: Any) -> None:
    one_sided = judge(claim_of(held), replay_of(positions(20)))
    assert (one_sided.verdict, codes(one_sided)) == ("fail", ["one_sided_evidence"])
    assert one_sided.similarity is None
    for nothing in (None, ()):
        both = judge(claim_of(held), replay_of(nothing))
        assert (both.verdict, codes(both)) == ("inconclusive", ["no_evidence"])


@pytest.mark.parametrize("held", [None, ()])
def test_a_replay_without_log_probabilities_is_no_fault_of_the_executor(held: Any) -> None:
    verdict = judge(claim_of(positions(20)), replay_of(held))
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["one_sided_evidence"])


def test_case_46_ids_outside_the_vocabulary_are_rejected() -> None:
    claim, replay = pair()
    known = Known(vocab_size=500)
    verdict = judge(claim, replay, known=known)
    assert verdict.verdict == "fail"
    assert "out_of_vocabulary" in codes(verdict)
    negative = claim.model_copy(update={"output_ids": (-5,)})
    assert "out_of_vocabulary" in codes(judge(negative, replay))


def test_case_46_a_refusal_caused_by_the_claim_counts_against_it() -> None:
    error = ReplayError("id 99999999 is outside", blame="claim", status=400, code="malformed")
    verdict = verdict_without_replay(error)
    assert (verdict.verdict, codes(verdict)) == ("fail", ["claim_rejected_by_engine"])
    outage = ReplayError("no answer", blame="validator", code="validator_unreachable")
    verdict = verdict_without_replay(outage)
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["replay_unavailable"])
    assert "validator_unreachable" in verdict.reasons[0].message


def test_case_27_truncated_evidence_is_rejected() -> None:
    error = ClaimError("1 position but 4 tokens", code="position_gap")
    assert verdict_on_unreadable_claim(error).verdict == "fail"
    built = claim_of(positions(20), usage=Usage(completion_tokens=80))
    verdict = judge(built, replay_of(positions(20)))
    assert verdict.verdict == "fail"
    assert {"position_gap", "inflated"} <= set(codes(verdict))


@pytest.mark.parametrize(
    ("code", "outcome"),
    [("malformed", "fail"), ("truncated", "inconclusive"), ("no_token_ids", "inconclusive")],
)
def test_what_an_unreadable_claim_means(code: str, outcome: str) -> None:
    verdict = verdict_on_unreadable_claim(ClaimError("why", code=code))
    assert (verdict.verdict, codes(verdict)) == (outcome, [code])


def test_an_unreadable_replay_decides_nothing() -> None:
    verdict = verdict_on_unreadable_replay(ClaimError("NaN"))
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["replay_unavailable"])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", ["top", "chosen"])
def test_f27_what_is_not_a_number_never_passes(value: float, place: str) -> None:
    claim, replay = pair()

    def broken(held: tuple[Position, ...]) -> tuple[Position, ...]:
        one = held[5]
        if place == "chosen":
            bad = one.model_copy(update={"logprob": value})
        else:
            entry = TopEntry.model_construct(key=one.top[0].key, logprob=value)
            bad = one.model_copy(update={"top": (entry, *one.top[1:])})
        return (*held[:5], bad, *held[6:])

    verdict = judge(claim.model_copy(update={"positions": broken(claim.positions)}), replay)
    assert (verdict.verdict, codes(verdict)) == ("fail", ["not_finite"])
    assert verdict.reasons[0].position == 5
    verdict = judge(claim, replay.model_copy(update={"positions": broken(replay.positions)}))
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["not_finite"])


def test_an_executor_does_not_choose_which_positions_are_compared() -> None:
    """Twelve honest-looking positions and nothing to compare at the rest."""
    shown = tuple(
        p if index < 12 else p.model_copy(update={"top": ()})
        for index, p in enumerate(positions(100, noise=HONEST))
    )
    verdict = judge(claim_of(shown), replay_of(positions(100)))
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["partial_evidence"])
    assert verdict.reasons[0].position == 12


# --- modes


@pytest.mark.parametrize("ours", ["raw_logprobs", "processed_logprobs"])
def test_case_1_modes_that_differ_are_named_and_give_no_fraud_score(ours: str) -> None:
    theirs = "processed_logprobs" if ours == "raw_logprobs" else "raw_logprobs"
    for noise in (HONEST, CHEAT):
        claim = claim_of(positions(48, noise=noise), logprobs_mode=ours)
        verdict = judge(claim, replay_of(positions(48), logprobs_mode=theirs))
        assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["mode_mismatch"])
        assert verdict.by_distance is None


@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits"])
def test_case_1_logits_are_no_log_probabilities(mode: str) -> None:
    claim, replay = pair()
    for changed in (
        (claim.model_copy(update={"logprobs_mode": mode}), replay),
        (claim, replay.model_copy(update={"logprobs_mode": mode})),
        (
            claim.model_copy(update={"logprobs_mode": mode}),
            replay.model_copy(update={"logprobs_mode": mode}),
        ),
    ):
        verdict = judge(*changed)
        assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["mode_mismatch"])


def rescaled(held: tuple[Position, ...], temperature: float) -> tuple[Position, ...]:
    """Processed numbers of raw ones at a temperature, over the listed alternatives."""
    out = []
    for one in held:
        values = [e.logprob / temperature for e in one.top]
        total = math.log(sum(map(math.exp, values)))
        listed = [(e.key, v - total) for e, v in zip(one.top, values, strict=True)]
        out.append(position(listed, token=one.token))
    return tuple(out)


@pytest.mark.parametrize("temperature", [0.5, 0.7])
def test_case_3_raw_against_processed_is_named_even_where_no_side_says_its_mode(
    temperature: float,
) -> None:
    claim = claim_of(positions(48), logprobs_mode=None)
    replay = replay_of(rescaled(positions(48), temperature), logprobs_mode=None)
    verdict = judge(claim, replay)
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["mode_mismatch"])
    assert f"{1 / temperature:.3g}" in verdict.reasons[0].message


def test_case_3_there_is_no_option_that_rescales() -> None:
    with pytest.raises(TypeError):
        judge(*pair(), temperature=0.5)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        judge(*pair(), rescale=True)  # type: ignore[call-arg]


def test_case_2_another_temperature_in_a_declared_mode_is_a_difference() -> None:
    """Processed on both sides, but the executor sampled at another temperature than it says."""
    claim = claim_of(rescaled(positions(48), 0.5), logprobs_mode="processed_logprobs")
    replay = replay_of(rescaled(positions(48), 1.0), logprobs_mode="processed_logprobs")
    verdict = judge(claim, replay)
    assert verdict.verdict != "pass"
    assert "mode_mismatch" not in codes(verdict)


def test_a_sampler_that_cut_one_side_only_is_a_mode_mismatch() -> None:
    cut = tuple(
        position(
            [*distribution(i)[:2], (0, IMPOSSIBLE), (1, IMPOSSIBLE), (2, IMPOSSIBLE)], 1000 + i
        )
        for i in range(48)
    )
    verdict = judge(claim_of(cut, logprobs_mode=None), replay_of(positions(48), logprobs_mode=None))
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["mode_mismatch"])


def test_case_53_a_guessed_mode_never_accuses() -> None:
    claim, replay = pair(noise=CHEAT)
    guessed = replay.model_copy(update={"mode_source": "inferred"})
    verdict = judge(claim, guessed)
    assert verdict.verdict == "inconclusive"
    assert "mode_inferred" in codes(verdict)
    honest = judge(pair()[0], guessed)
    assert honest.verdict == "pass"


# --- k, prompt, spelling, shape


def test_different_numbers_of_alternatives_are_not_compared() -> None:
    claim, replay = claim_of(positions(48, k=3)), replay_of(positions(48, k=5))
    verdict = judge(claim, replay)
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["k_mismatch"])
    assert verdict.similarity is not None


def test_completions_list_the_drawn_token_beside_the_top_k() -> None:
    def listed(held: tuple[Position, ...], every: int) -> tuple[Position, ...]:
        return tuple(
            p.model_copy(update={"top": (TopEntry(key=p.token, logprob=-9.0), *p.top)})
            if index % every == 0
            else p
            for index, p in enumerate(held)
        )

    claim = claim_of(listed(positions(48, noise=HONEST), 4))
    assert judge(claim, replay_of(listed(positions(48), 4))).verdict == "pass"
    # One side seldom lists it where the other does: no k_mismatch.
    assert "k_mismatch" not in codes(judge(claim, replay_of(listed(positions(48), 8))))


def test_case_8_a_server_that_gives_20_of_50_is_a_k_mismatch_and_no_fraud() -> None:
    def capped(one: Position) -> Position:
        padding = tuple(TopEntry(key=5000 + i, logprob=IMPOSSIBLE) for i in range(15))
        return one.model_copy(update={"top": one.top[:5] + padding})

    full = positions(48, k=20)
    claim = claim_of(tuple(capped(p) for p in positions(48, k=20, noise=HONEST)))
    verdict = judge(claim, replay_of(full))
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["k_mismatch"])
    same = judge(claim, replay_of(tuple(capped(p) for p in full)))
    assert same.verdict == "pass"


def test_another_prompt_is_named_with_the_place() -> None:
    claim, replay = pair()
    for noise in (HONEST, CHEAT):
        claim = claim_of(positions(48, noise=noise))
        verdict = judge(claim, replay.model_copy(update={"prompt_token_ids": (1, 9, 2)}))
        assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["prompt_mismatch"])
        assert "prompt token 1" in verdict.reasons[0].message


def test_case_56_text_is_not_compared_with_ids() -> None:
    text = tuple(
        p.model_copy(
            update={
                "top": tuple(TopEntry(key=f"text:{e.key:04x}", logprob=e.logprob) for e in p.top)
            }
        )
        for p in positions(48)
    )
    verdict = judge(claim_of(text), replay_of(positions(48)))
    assert (verdict.verdict, codes(verdict)) == ("inconclusive", ["spelling_mismatch"])


def flat_positions(count: int, spread: float) -> tuple[Position, ...]:
    """Nearly equal alternatives; ``spread`` moves them about and swaps their ranks."""
    out = []
    for index in range(count):
        listed = [
            (
                e.key,
                -2.0 + 0.3 * math.sin(7 * index + rank) + spread * math.sin(index * 3 + rank * 5),
            )
            for rank, e in enumerate(positions(1, first=index)[0].top)
        ]
        out.append(position(sorted(listed, key=lambda item: -item[1]), token=1000 + index))
    return tuple(out)


def test_case_51_a_flat_claim_is_shown_as_flat_and_judged_more_mildly() -> None:
    verdict = judge(claim_of(flat_positions(64, 0.8)), replay_of(flat_positions(64, 0.0)))
    assert verdict.flat
    assert verdict.mean_near_best is not None
    assert verdict.mean_near_best > 2.5
    assert verdict.mean_entropy is not None
    assert verdict.mean_distance is not None
    # As far as an int4 claim on plain text, which fails.
    assert 0.05 < verdict.mean_distance < 0.1384
    assert verdict.verdict == "inconclusive"
    assert codes(verdict) == ["similarity_below", "flat_distribution"]


def test_case_51_a_flat_claim_that_is_clearly_wrong_still_fails() -> None:
    shifted = tuple(
        p.model_copy(
            update={
                "top": tuple(TopEntry(key=e.key + 50_000, logprob=e.logprob - 2) for e in p.top)
            }
        )
        for p in flat_positions(64, 0.0)
    )
    verdict = judge(claim_of(shifted), replay_of(flat_positions(64, 0.0)))
    assert verdict.flat
    assert verdict.verdict == "fail"


def test_an_honest_flat_claim_passes() -> None:
    verdict = judge(claim_of(flat_positions(64, 0.001)), replay_of(flat_positions(64, 0.0)))
    assert verdict.flat
    assert verdict.verdict == "pass"


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_all_zeros_are_no_distribution(mode: str) -> None:
    zeros = tuple(
        position([(1000 + i, 0.0), (1, 0.0), (2, 0.0), (3, 0.0), (4, 0.0)]) for i in range(48)
    )
    verdict = judge(
        claim_of(zeros, logprobs_mode=mode), replay_of(positions(48), logprobs_mode=mode)
    )
    assert verdict.verdict == "fail"
    assert codes(verdict)[0] == "malformed"
    both = judge(claim_of(zeros, logprobs_mode=None), replay_of(zeros, logprobs_mode=None))
    assert both.verdict == "inconclusive"


def test_one_list_of_numbers_at_every_position_never_passes() -> None:
    held = tuple(position([(1000 + i, -0.2), (1, -2.0), (2, -4.0)]) for i in range(48))
    verdict = judge(claim_of(held), replay_of(held))
    assert verdict.verdict == "inconclusive"
    assert "no_evidence" in codes(verdict)


def test_uniform_numbers_on_both_sides_prove_nothing() -> None:
    held = tuple(position([(1000 + i, -1.7), (1, -1.7), (2, -1.7)]) for i in range(48))
    verdict = judge(claim_of(held), replay_of(held))
    assert verdict.verdict == "inconclusive"
    assert verdict.informative_positions == 0


# --- published rejections


def spliced(count: int, wrong: int) -> Any:
    """A claim with ``wrong`` positions of an unrelated model in it."""
    held = list(positions(count, noise=HONEST))
    for index in range(wrong):
        foreign = [(9000, -1e-4), *((9000 + i, -20.0 - 5 * i) for i in range(1, 5))]
        held[7 * index] = position(foreign, token=held[7 * index].token)
    return claim_of(tuple(held))


def test_positions_above_the_ceiling_are_rejected_with_the_first_of_them() -> None:
    replay = replay_of(positions(100))
    assert "ceiling" not in codes(judge(spliced(100, 2), replay))
    verdict = judge(spliced(100, 3), replay)
    assert (verdict.verdict, codes(verdict)[0]) == ("fail", "ceiling")
    assert verdict.above_ceiling == 3
    assert verdict.reasons[0].position == 0


def test_one_outlier_in_a_short_claim_only_holds_the_pass() -> None:
    verdict = judge(spliced(30, 1), replay_of(positions(30)))
    assert (verdict.verdict, codes(verdict)[0]) == ("inconclusive", "ceiling")


def test_tokens_the_claimed_sampler_cannot_draw_are_rejected() -> None:
    held = tuple(
        p.model_copy(update={"logprob": IMPOSSIBLE}) if i in (3, 9, 11) else p
        for i, p in enumerate(positions(48))
    )
    claim = claim_of(positions(48, noise=HONEST), logprobs_mode="processed_logprobs")
    verdict = judge(claim, replay_of(held, logprobs_mode="processed_logprobs"))
    assert (verdict.verdict, codes(verdict)) == ("fail", ["sampler_support"])
    assert (verdict.without_support, verdict.reasons[0].position) == (3, 3)


def test_published_thresholds_are_used_for_their_models() -> None:
    engine = EngineIdentity(model="MiniMaxAI/MiniMax-M2.7")
    claim = claim_of(positions(64, noise=HONEST), logprobs_mode=None, engine=engine)
    verdict = judge(claim, replay_of(positions(64), logprobs_mode=None))
    assert verdict.pass_limit == pytest.approx(1 - 0.922)
    assert "MiniMax-M2.7" in (verdict.limits_source or "")


@pytest.mark.parametrize("held", [positions(20), None])
def test_a_threshold_out_of_range_is_refused_even_without_a_comparison(held: Any) -> None:
    with pytest.raises(SettingsError):
        judge(claim_of(held), replay_of(held), threshold=1.5)


def test_a_verdict_is_plain_json() -> None:
    end = Position(token=2, logprob=IMPOSSIBLE)
    for verdict in (
        judge(claim_of((*positions(12), end)), replay_of((*positions(12), end))),
        judge(claim_of(None), replay_of(None)),
    ):
        text = json.dumps(verdict.to_json(), allow_nan=False)
        assert Verdict.model_validate_json(text) == verdict
        for name in ("verdict", "reasons", "positions", "similarity", "similarity_v1"):
            assert name in json.loads(text)
