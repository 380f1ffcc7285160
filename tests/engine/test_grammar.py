"""Structured output in a replay: the grammar shapes it until a forced id breaks it (case 28, F16).

xgrammar on V1, guidance on V2, and V1 under async scheduling, where the public report was made.
Every backend by itself is tested in ``tests/plugin``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.engine.answers import CLOSE, check_evidence, furthest
from tests.engine.talk import Talk, chat, replay_of

pytestmark = pytest.mark.parametrize("talk", ["v1", "v2", "v1-async"], indirect=True)
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["paris", "rome", "kyiv"]},
        "done": {"type": "boolean"},
        "count": {"enum": [1, 20, 300]},
    },
    "required": ["city", "done", "count"],
    "additionalProperties": False,
}
BOS, EOS = 1, 2


def schema_body(seed: int, **fields: Any) -> dict[str, Any]:
    shape = {"name": "answer", "schema": SCHEMA}
    return chat(
        "json",
        response_format={"type": "json_schema", "json_schema": shape},
        temperature=1.0,
        seed=seed,
        **fields,
    )


def check_valid(text: str) -> None:
    """What the grammar promises an ordinary user."""
    answer = json.loads(text)
    assert set(answer) == set(SCHEMA["properties"])
    assert answer["city"] in SCHEMA["properties"]["city"]["enum"]
    assert answer["count"] in SCHEMA["properties"]["count"]["enum"]
    assert isinstance(answer["done"], bool)


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_case_28_an_honest_structured_claim_keeps_its_grammar(
    talk: Talk, runner: str, mode: str
) -> None:
    """Case 28: same mask, same numbers, nothing rejected, finish as in the origin."""
    body = schema_body(1, logprobs_mode=mode)
    origin = talk.ask({**body, "max_tokens": 80})
    check_valid(origin.text)
    assert origin.finish == "stop"
    replay = talk.ask(replay_of(body, origin.ids))
    assert (replay.ids, replay.finish) == (origin.ids, "stop")
    assert furthest(origin, replay) <= CLOSE
    field = check_evidence(replay, runner=runner)
    assert field["grammar_conflict"] is None
    assert field["drawn"] == origin.ids


@pytest.mark.parametrize("broken", [BOS, EOS], ids=["special", "end"])
@pytest.mark.parametrize("where", ["first", "inside", "last"])
def test_case_28_a_forced_id_outside_the_grammar(
    talk: Talk, runner: str, broken: int, where: str
) -> None:
    """Case 28, fault 16: all positions come back, the first conflict is named, neighbours are strict."""
    origin = talk.ask(schema_body(1, max_tokens=80))
    at = {"first": 0, "inside": len(origin.ids) // 2, "last": len(origin.ids) - 2}[where]
    ids = [*origin.ids]
    ids[at] = broken
    bodies = [
        replay_of(schema_body(1), ids),
        schema_body(2, max_tokens=80),
        replay_of(schema_body(1), origin.ids),
        schema_body(3, max_tokens=80, logprobs_mode="processed_logprobs"),
    ]
    changed, neighbour, honest, other = talk.together(bodies)
    assert changed.ids == ids
    field = check_evidence(changed, runner=runner)
    assert field["grammar_conflict"] == at
    assert field["logprob_raw"][at] is None
    # From there on nothing is masked, so no later position is impossible.
    assert all(value is not None for value in field["logprob_raw"][at + 1 :])
    assert changed.chosen[:at] == pytest.approx(origin.chosen[:at], abs=CLOSE)
    check_valid(neighbour.text)
    check_valid(other.text)
    assert furthest(origin, honest) <= CLOSE
    assert check_evidence(honest, runner=runner)["grammar_conflict"] is None


def test_case_28_ordinary_users_keep_a_strict_grammar_after_all_this(talk: Talk) -> None:
    """Case 28: engine alive, grammar strict, and no line of the log speaks of a broken machine."""
    origin = talk.ask(schema_body(4, max_tokens=80))
    talk.ask(replay_of(schema_body(4), [BOS, *origin.ids]))
    check_valid(talk.ask(schema_body(4, max_tokens=80)).text)
    log = talk.server.log_text()
    assert "FSM" not in log
    assert "ERROR" not in log
    assert "grammar rejects forced token" in log
