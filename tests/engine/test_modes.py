"""Per-request ``logprobs_mode``: values, order of precedence, mixed batches.

Cases 1, 2, 3 and 53; faults 14 and 15.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.engine.answers import CLOSE, IMPOSSIBLE, Answer, check_evidence, furthest
from tests.engine.talk import Talk, chat, enforced, replay_of, text

tiny = pytest.mark.parametrize("talk", ["v1", "v2"], indirect=True)
everywhere = pytest.mark.parametrize("talk", ["v1", "v2", "real"], indirect=True)
routes = pytest.mark.parametrize("make", [chat, text])
RAW, PROCESSED = {"logprobs_mode": "raw_logprobs"}, {"logprobs_mode": "processed_logprobs"}
LENGTH = 8


def finite(top: dict[int, float]) -> dict[int, float]:
    return {token: value for token, value in top.items() if value > IMPOSSIBLE}


def replays(
    talk: Talk, make: Any, ids: list[int], settings: dict[str, Any]
) -> tuple[Answer, Answer]:
    """The same ids under ``settings``, raw and processed."""
    body = make(**settings)
    return talk.ask(replay_of(body, ids, **RAW)), talk.ask(replay_of(body, ids, **PROCESSED))


@everywhere
@routes
def test_case_1_and_2_only_processed_numbers_show_the_temperature(talk: Talk, make: Any) -> None:
    """Cases 1 and 2: raw is one thing at any temperature; processed is raw divided by it."""
    ids = talk.ask(make(max_tokens=LENGTH, temperature=0, ignore_eos=True)).ids
    cool_raw, cool = replays(talk, make, ids, {"temperature": 0.5, "ignore_eos": True})
    hot_raw, hot = replays(talk, make, ids, {"temperature": 2.0, "ignore_eos": True})
    assert furthest(cool_raw, hot_raw) <= CLOSE
    assert cool.chosen != pytest.approx(hot.chosen, abs=0.01)
    for at in range(LENGTH):
        for scaled, temperature in ((cool, 0.5), (hot, 2.0)):
            # Scaling is on logits: differences between ids scale, the numbers themselves do not
            # (case 3: dividing raw log probabilities by the temperature is wrong).
            first, *rest = sorted(cool_raw.tops[at], key=cool_raw.tops[at].__getitem__)
            for token in rest:
                want = (cool_raw.tops[at][token] - cool_raw.tops[at][first]) / temperature
                got = scaled.tops[at][token] - scaled.tops[at][first]
                assert got == pytest.approx(want, abs=5 * CLOSE)


@everywhere
@pytest.mark.parametrize(
    ("cut", "possible"), [({"top_k": 5}, 5), ({"top_k": 5, "temperature": 0.5}, 5)]
)
def test_case_1_and_2_processed_numbers_are_cut_by_top_k(
    talk: Talk, cut: dict[str, Any], possible: int
) -> None:
    """Cases 1 and 2: inside the cut they sum to one, outside they are impossible; raw are not cut."""
    body = chat(**{"temperature": 1.0, "ignore_eos": True, "seed": 4, **cut, "top_logprobs": 8})
    ids = talk.ask({**body, "max_tokens": LENGTH}).ids
    raw, processed = (
        talk.ask(replay_of(body, ids, **RAW)),
        talk.ask(replay_of(body, ids, **PROCESSED)),
    )
    for at in range(LENGTH):
        left = finite(processed.tops[at])
        assert len(left) == possible
        assert math.fsum(map(math.exp, left.values())) == pytest.approx(1.0, abs=1e-4)
        assert len(finite(raw.tops[at])) == 8
        assert math.fsum(map(math.exp, raw.tops[at].values())) < 1.0


@tiny
@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.2},
        {"frequency_penalty": 0.7},
        {"presence_penalty": 0.9},
        {"logit_bias": {"17": 3.0}},
        {"min_p": 0.05},
        {"top_p": 0.6},
        {"bad_words": ["the"]},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_case_2_and_40_sampling_settings_reach_a_replay(talk: Talk, settings: Any) -> None:
    """Cases 2 and 40: dropping one of them from a replay would change the processed numbers."""
    body = chat(temperature=1.0, seed=9, ignore_eos=True, **PROCESSED, **settings)
    origin = talk.ask({**body, "max_tokens": LENGTH})
    assert furthest(origin, talk.ask(replay_of(body, origin.ids))) <= CLOSE
    bare = {name: value for name, value in body.items() if name not in settings}
    raw, raw_bare = (talk.ask(replay_of(b, origin.ids, **RAW)) for b in (body, bare))
    assert furthest(raw, raw_bare) <= CLOSE
    if "bad_words" not in settings:  # the tiny model would not have written the word anyway
        assert furthest(origin, talk.ask(replay_of(bare, origin.ids))) > 100 * CLOSE


@everywhere
@routes
@pytest.mark.parametrize("stream", [False, True], ids=["json", "stream"])
def test_a_plain_request_may_choose_its_mode(talk: Talk, make: Any, stream: bool) -> None:
    """Any request, not only a replay; the mode changes numbers, never what is sampled."""
    body = make(max_tokens=LENGTH, temperature=0.5, seed=3, ignore_eos=True, stream=stream)
    default, raw, processed = (talk.ask({**body, **mode}) for mode in ({}, RAW, PROCESSED))
    assert default.assay is raw.assay is processed.assay is None
    assert default.ids == raw.ids == processed.ids
    assert furthest(default, raw) <= CLOSE  # these servers deploy raw log probabilities
    for at in range(LENGTH):
        low, *rest = sorted(raw.tops[at], key=raw.tops[at].__getitem__)
        for token in rest:
            want = (raw.tops[at][token] - raw.tops[at][low]) / 0.5
            got = processed.tops[at][token] - processed.tops[at][low]
            assert got == pytest.approx(want, abs=5 * CLOSE)


@tiny
def test_case_53_the_mode_is_named_and_a_guess_is_called_one(talk: Talk, runner: str) -> None:
    """Case 53: low ids (tool calls, JSON) make the old rule guess wrong; naming the mode does not."""
    body = chat(temperature=0.6, seed=2, ignore_eos=True)
    origin = talk.ask({**body, "max_tokens": LENGTH, **RAW})
    tops = [[0, 1, 44, 46] for _ in origin.ids]  # half of them below 4, as in a tool-call claim
    claim = {**body, "enforced_tokens": enforced(origin.ids, tops)}
    named = talk.ask({**claim, **RAW})
    assert furthest(origin, named) <= CLOSE
    assert check_evidence(named, runner=runner)["mode_source"] == "explicit"
    assert check_evidence(named, runner=runner)["inferred"] is None
    guessed = talk.ask(claim)
    field = check_evidence(guessed, runner=runner)
    assert field["mode_source"] == "inferred"
    assert field["logprobs_mode"] == "processed_logprobs"
    assert field["inferred"] == {"low_id_ratio": 0.5, "entries": 4 * LENGTH}
    assert furthest(origin, guessed) > 100 * CLOSE
    raw_like = {**body, "enforced_tokens": enforced(origin.ids, [[17, 42, 44, 46]] * LENGTH)}
    assert check_evidence(talk.ask(raw_like), runner=runner)["logprobs_mode"] == "raw_logprobs"
    silent = check_evidence(talk.ask(replay_of(body, origin.ids)), runner=runner)
    assert (silent["mode_source"], silent["inferred"]) == ("deployment", None)
    assert silent["logprobs_mode"] == talk.status()["logprobs_mode"]
    assert "inferred processed_logprobs from 0.5000 low ids of 32" in talk.server.log_text()


@tiny
def test_f14_rows_of_one_batch_keep_their_own_mode_and_ids(talk: Talk) -> None:
    """Fault 14: twelve requests of every kind at once, each equal to the same request alone.

    Prompts are short: a stock V1 CPU engine dies when it must chunk the prompt of a seeded request.
    """
    rng = np.random.default_rng(8)
    traces = rng.integers(5, 500, size=(6, 2 * LENGTH)).tolist()
    sampled = {"ignore_eos": True, "max_tokens": 2 * LENGTH}
    bodies = [
        chat("ab", temperature=0.9, seed=1, **sampled),
        chat("cd", temperature=0.7, seed=2, top_k=20, **sampled, **PROCESSED),
        chat("ef", temperature=0, **sampled, **PROCESSED),
        text("gh", temperature=1.2, seed=3, top_p=0.9, **sampled, **RAW),
        text("ij", temperature=0.8, seed=4, repetition_penalty=1.2, **sampled),
        text("kl", temperature=0.8, seed=4, frequency_penalty=0.5, **sampled, **PROCESSED),
        replay_of(chat("mn", temperature=0.8, seed=5), traces[0]),
        replay_of(chat("op", temperature=0.5, top_k=10, seed=6), traces[1], **PROCESSED),
        replay_of(text("qr", temperature=0), traces[2][:LENGTH], **PROCESSED),
        replay_of(text("st", temperature=1.5, min_p=0.01, seed=9), traces[3], **RAW),
        replay_of(chat("uv", presence_penalty=0.8, seed=7), traces[4][: LENGTH + 3], **PROCESSED),
        replay_of(text("wx", seed=8, max_tokens=2 * LENGTH), traces[5][:LENGTH]),
    ]
    alone = [talk.ask(body) for body in bodies]
    for _ in range(2):
        for single, mixed in zip(alone, talk.together(bodies), strict=True):
            assert mixed.ids == single.ids
            assert furthest(mixed, single) <= CLOSE
            assert (mixed.assay is None) == (single.assay is None)
            if single.assay is not None and mixed.assay is not None:
                assert mixed.assay["drawn"] == single.assay["drawn"]
                assert mixed.assay["logprobs_mode"] == single.assay["logprobs_mode"]
