"""Enforced tokens over HTTP: exact ids, true log probabilities, evidence of what would be drawn.

Cases 20 and 59; faults 2, 3, 8, 20. On both runners with the tiny model, on V1 with a real one.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.answers import CLOSE, check_evidence, furthest
from tests.engine.talk import TOP, Talk, chat, enforced, replay_of, text

everywhere = pytest.mark.parametrize("talk", ["v1", "v2", "real"], indirect=True)
tiny = pytest.mark.parametrize("talk", ["v1", "v2"], indirect=True)
routes = pytest.mark.parametrize("make", [chat, text])
SAMPLED = {"seed": 11, "temperature": 0.8, "top_k": 50, "top_p": 0.95, "ignore_eos": True}
LENGTH = 20
ALTERED = 9


@everywhere
@routes
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_case_59_a_replay_returns_its_trace_and_the_origins_numbers(
    talk: Talk, runner: str, make: Any, stream: bool, mode: str
) -> None:
    """Case 59: exact ids, as many positions as forced, the numbers of natural generation."""
    body = make(logprobs_mode=mode, **SAMPLED)
    origin = talk.ask({**body, "max_tokens": LENGTH})
    assert len(origin.ids) == LENGTH
    assert origin.assay is None
    replay = talk.ask(replay_of(body, origin.ids, stream=stream))
    assert replay.ids == origin.ids
    assert furthest(origin, replay) <= CLOSE
    assert replay.finish == "length"
    field = check_evidence(replay, runner=runner)
    assert field["positions"] == LENGTH
    assert field["logprobs_mode"] == mode
    assert field["mode_source"] == "explicit"
    # The seed is the origin's: the sampler would have drawn what was claimed, everywhere.
    assert field["drawn"] == origin.ids
    assert field["grammar_conflict"] is None


@everywhere
def test_a_forced_id_outside_the_top_k_keeps_its_true_number(talk: Talk, runner: str) -> None:
    """Faults 3 and 8: any position, any id; the number is checked against a natural request."""
    body = chat(**SAMPLED)
    origin = talk.ask({**body, "max_tokens": LENGTH})
    so_far = origin.prompt_ids + origin.ids[:ALTERED]
    natural = talk.ask(text(so_far, max_tokens=1, temperature=0, logprobs=20))
    ranked = sorted(natural.tops[0], key=natural.tops[0].__getitem__, reverse=True)
    unlikely = next(i for i in ranked[TOP + 5 :] if i != origin.ids[ALTERED])
    ids = [*origin.ids]
    ids[ALTERED] = unlikely
    replay = talk.ask(replay_of(body, ids))
    assert replay.ids == ids
    assert abs(replay.chosen[ALTERED] - natural.tops[0][unlikely]) <= CLOSE
    field = check_evidence(replay, runner=runner)
    assert field["rank_raw"][ALTERED] == 1 + ranked.index(unlikely)
    # Up to the changed id the draw is the origin's; there it names the id that was replaced.
    assert field["drawn"][: ALTERED + 1] == origin.ids[: ALTERED + 1]
    assert replay.chosen[:ALTERED] == pytest.approx(origin.chosen[:ALTERED], abs=CLOSE)
    # After it the context differs, and so does the distribution.
    assert replay.chosen[ALTERED + 1 :] != pytest.approx(origin.chosen[ALTERED + 1 :], abs=CLOSE)


@tiny
@routes
def test_one_replay_measures_both_modes(talk: Talk, runner: str, make: Any) -> None:
    """Evidence holds raw and processed numbers, whichever the response shows."""
    body = make(**SAMPLED)
    origin = talk.ask({**body, "max_tokens": LENGTH})
    raw = talk.ask(replay_of(body, origin.ids, logprobs_mode="raw_logprobs"))
    processed = talk.ask(replay_of(body, origin.ids, logprobs_mode="processed_logprobs"))
    one, other = check_evidence(raw, runner=runner), check_evidence(processed, runner=runner)
    for name in ("logprob_raw", "logprob_processed"):
        assert one[name] == pytest.approx(other[name], abs=CLOSE)
    for name in ("drawn", "rank_raw", "rank_processed"):
        assert one[name] == other[name]
    assert raw.chosen != pytest.approx(processed.chosen, abs=CLOSE)


@tiny
def test_case_7_no_alternatives_asked_for(talk: Talk, runner: str) -> None:
    """Case 7: top_logprobs 0 still returns the chosen token's number; no logprobs, no numbers."""
    body = chat(**SAMPLED)
    origin = talk.ask({**body, "max_tokens": LENGTH})
    bare = talk.ask(replay_of({**body, "top_logprobs": 0}, origin.ids))
    assert bare.ids == origin.ids
    assert bare.chosen == pytest.approx(origin.chosen, abs=CLOSE)
    assert bare.tops == [{}] * LENGTH
    without = {k: v for k, v in body.items() if k not in ("logprobs", "top_logprobs")}
    silent = talk.ask(replay_of(without, origin.ids))
    assert silent.ids == origin.ids
    assert silent.chosen == []
    field = check_evidence(silent, runner=runner)
    assert field["drawn"] == origin.ids
    assert field["logprob_raw"] == pytest.approx(origin.chosen, abs=CLOSE)


@tiny
def test_every_spelling_of_an_id_forces_it(talk: Talk) -> None:
    """``token_id:N``, a bare decimal, an integer, and text where the caller allows it."""
    body = text(temperature=0)
    word = talk.ask({**body, "max_tokens": 1, "logprobs": None})
    spelled = ["token_id:17", "42", 300, word.text]
    tokens = {"tokens": [{"token": one} for one in spelled], "allow_text": True}
    answer = talk.ask({**body, "enforced_tokens": tokens})
    assert answer.ids[:3] == [17, 42, 300]
    assert answer.ids[3:] == word.ids


@tiny
def test_enforced_str_forces_its_tokens(talk: Talk, runner: str) -> None:
    answer = talk.ask(text(enforced_str="The answer is 12."))
    assert answer.text == "The answer is 12."
    assert check_evidence(answer, runner=runner)["positions"] == len(answer.ids)
    again = talk.ask(text(enforced_tokens=enforced(answer.ids)))
    assert again.ids == answer.ids
    assert furthest(answer, again) <= CLOSE


@everywhere
@routes
def test_case_20_token_ids_are_filled(talk: Talk, make: Any) -> None:
    """Case 20: return_token_ids gives the ids of prompt and answer, forced or not."""
    origin = talk.ask(make(max_tokens=4, temperature=0, ignore_eos=True))
    assert len(origin.ids) == 4
    assert origin.prompt_ids
    replay = talk.ask(replay_of(make(temperature=0, ignore_eos=True), origin.ids))
    assert replay.ids == origin.ids
    assert replay.prompt_ids == origin.prompt_ids
