"""Where a replay ends, and what may not end it (case 59; spec replay section 2).

Greedy and on the tiny model, whose end-of-sequence id is 2.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.engine.answers import CLOSE, check_evidence, furthest
from tests.engine.talk import Talk, chat, replay_of, text

pytestmark = pytest.mark.parametrize("talk", ["v1", "v2"], indirect=True)
routes = pytest.mark.parametrize("make", [chat, text])
GREEDY = {"temperature": 0, "ignore_eos": True}
LENGTH = 12
FORCED = 6
MIDDLE = 4


@pytest.fixture(scope="session")
def eos(tiny_path: Path) -> int:
    """The model's own end-of-sequence id."""
    return int(json.loads((tiny_path / "config.json").read_text())["eos_token_id"])


@routes
def test_case_59_past_the_end_sampling_resumes(talk: Talk, runner: str, make: Any) -> None:
    """Case 59, max_tokens above the trace: the rest is what the model would have gone on with."""
    origin = talk.ask(make(max_tokens=LENGTH, **GREEDY))
    longer = talk.ask(replay_of(make(max_tokens=LENGTH, **GREEDY), origin.ids[:FORCED]))
    assert longer.ids == origin.ids
    assert furthest(longer, origin) <= CLOSE
    assert check_evidence(longer, runner=runner)["positions"] == FORCED


@routes
@pytest.mark.parametrize("asked", [{}, {"max_tokens": 2}, {"max_tokens": FORCED}])
def test_case_59_a_replay_stops_at_its_trace(
    talk: Talk, runner: str, make: Any, asked: Any
) -> None:
    """Case 59: max_tokens below the trace is raised to it, none means the trace's length."""
    origin = talk.ask(make(max_tokens=FORCED, **GREEDY))
    replay = talk.ask(replay_of(make(**GREEDY, **asked), origin.ids))
    assert replay.ids == origin.ids
    assert replay.finish == "length"
    assert replay.usage["completion_tokens"] == FORCED
    assert check_evidence(replay, runner=runner)["positions"] == FORCED


def test_case_59_max_completion_tokens_counts_like_max_tokens(talk: Talk) -> None:
    origin = talk.ask(chat(max_tokens=LENGTH, **GREEDY))
    short = talk.ask(replay_of(chat(max_completion_tokens=2, **GREEDY), origin.ids[:FORCED]))
    assert short.ids == origin.ids[:FORCED]
    long = talk.ask(replay_of(chat(max_completion_tokens=LENGTH, **GREEDY), origin.ids[:FORCED]))
    assert long.ids == origin.ids


@routes
def test_case_59_nothing_inside_the_trace_cuts_it(
    talk: Talk, runner: str, make: Any, eos: int
) -> None:
    """Case 59: end of sequence, a stop id and a stop string in the middle."""
    origin = talk.ask(make(max_tokens=LENGTH, **GREEDY))
    ids = [*origin.ids]
    ids[MIDDLE] = eos
    stop_ids = [ids[MIDDLE + 2]]
    word = next(letter for letter in origin.text if letter.isalnum())
    body = make(temperature=0, stop_token_ids=stop_ids, stop=[word])
    replay = talk.ask(replay_of(body, ids))
    assert replay.ids == ids
    assert check_evidence(replay, runner=runner)["positions"] == LENGTH


@routes
def test_case_59_the_last_id_decides_the_finish_reason(talk: Talk, make: Any, eos: int) -> None:
    """Case 59: a claim that ended with EOS or a stop id ends so again; ignore_eos is kept."""
    ids = [*talk.ask(make(max_tokens=FORCED, **GREEDY)).ids, eos]
    stopped = talk.ask(replay_of(make(temperature=0), ids))
    assert (stopped.ids, stopped.finish) == (ids, "stop")
    ignored = talk.ask(replay_of(make(**GREEDY), ids))
    assert (ignored.ids, ignored.finish) == (ids, "length")
    by_id = talk.ask(replay_of(make(**GREEDY, stop_token_ids=[ids[-2]]), ids[:-1]))
    assert (by_id.ids, by_id.finish, by_id.stop_reason) == (ids[:-1], "stop", ids[-2])


@routes
def test_case_59_a_longer_budget_still_ends_at_eos(talk: Talk, make: Any, eos: int) -> None:
    """Case 59: stock rules hold from the last forced id on, so EOS ends it though room is left."""
    ids = [*talk.ask(make(max_tokens=FORCED, **GREEDY)).ids, eos]
    replay = talk.ask(replay_of(make(temperature=0, max_tokens=LENGTH * 2), ids))
    assert (replay.ids, replay.finish) == (ids, "stop")


def test_case_59_min_tokens_masks_the_end_as_in_the_origin(
    talk: Talk, runner: str, eos: int
) -> None:
    """Case 59: before min_tokens EOS is impossible in the processed distribution, never in the raw."""
    body = chat(temperature=1.0, seed=5, logprobs_mode="processed_logprobs")
    origin = talk.ask({**body, "min_tokens": LENGTH, "max_tokens": LENGTH})
    assert len(origin.ids) == LENGTH
    assert eos not in origin.ids
    honest = talk.ask(replay_of({**body, "min_tokens": LENGTH}, origin.ids))
    assert furthest(origin, honest) <= CLOSE
    assert check_evidence(honest, runner=runner)["drawn"] == origin.ids
    ids = [*origin.ids]
    ids[MIDDLE] = eos
    masked = check_evidence(talk.ask(replay_of({**body, "min_tokens": LENGTH}, ids)), runner=runner)
    assert masked["logprob_processed"][MIDDLE] is None
    assert masked["logprob_raw"][MIDDLE] is not None
    assert masked["positions"] == LENGTH
    free = check_evidence(talk.ask(replay_of(body, ids)), runner=runner)
    assert free["logprob_processed"][MIDDLE] is not None


def test_case_59_ignore_eos_shapes_nothing_but_the_end(talk: Talk, eos: int) -> None:
    ids = talk.ask(chat(max_tokens=LENGTH, **GREEDY)).ids
    ids[MIDDLE] = eos
    kept = talk.ask(replay_of(chat(temperature=0), ids))
    ignored = talk.ask(replay_of(chat(**GREEDY), ids))
    assert kept.ids == ignored.ids == ids
    assert furthest(kept, ignored) <= CLOSE
