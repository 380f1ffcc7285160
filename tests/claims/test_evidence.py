"""The response field of the plugin."""

from __future__ import annotations

from typing import Any

import pytest
from tests.claims.bodies import chat

from assay.claims.claim import Tape
from assay.claims.evidence import read_evidence
from assay.claims.read_json import read_replay
from assay.errors import ClaimError


def field(**changes: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "runner": "v2",
        "logprobs_mode": "processed_logprobs",
        "mode_source": "inferred",
        "inferred": {"low_id_ratio": 0.31, "entries": 64},
        "positions": 3,
        "drawn": [100, 7, 102],
        "rank_raw": [1, 2, 1],
        "rank_processed": [1, 2, 1],
        "logprob_raw": [-0.25, -0.25, -0.25],
        "logprob_processed": [-0.1, None, -9999.0],
        "grammar_conflict": 1,
        "complete": True,
    } | changes


def test_evidence_of_a_replay() -> None:
    replay = read_replay(chat(assay=field()))
    assert replay.evidence is not None
    assert replay.evidence.runner == replay.engine.runner == "v2"
    assert replay.evidence.drawn == (100, 7, 102)
    assert replay.evidence.logprob_processed == (-0.1, None, None)
    assert replay.evidence.grammar_conflict == 1
    assert replay.logprobs_mode == "processed_logprobs"
    assert replay.mode_source == "inferred"
    assert replay.prompt_token_ids == (1, 2)


def test_case_53_a_guessed_mode_is_named() -> None:
    warnings = read_replay(chat(assay=field())).warnings
    assert any("guessed" in warning and "0.31" in warning for warning in warnings)
    assert any("grammar was off" in warning for warning in warnings)


def test_a_replay_without_the_field_has_no_evidence_and_no_mode() -> None:
    replay = read_replay(chat(), "file")
    assert replay.evidence is None
    assert replay.logprobs_mode is None
    assert replay.path == "file"


CHOICE = {
    "drawn_raw": [-0.2, None, -0.1],
    "drawn_processed": [-0.1, -0.3, 0],
    "noise_drawn": [3.5, None, 0.0],
    "noise_forced": [-1.25, None, 0],
    "tape": {"runner": "v2", "generation": 1, "fp64": False, "device": "cuda", "more": 1},
}


def test_the_numbers_of_the_choice_channel() -> None:
    evidence = read_replay(chat(assay=field(**CHOICE))).evidence
    assert evidence is not None
    assert evidence.drawn_raw == (-0.2, None, -0.1)
    assert evidence.drawn_processed == (-0.1, -0.3, 0.0)
    assert evidence.noise_drawn == (3.5, None, 0.0)
    assert evidence.noise_forced == (-1.25, None, 0.0)
    assert evidence.tape == Tape(runner="v2", device="cuda")


def test_an_older_plugin_sends_none_of_them() -> None:
    evidence = read_replay(chat(assay=field(tape=None))).evidence
    assert evidence is not None
    assert (evidence.drawn_raw, evidence.noise_forced, evidence.tape) == ((), (), None)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"noise_drawn": [0.0, 0.0]}, "assay.noise_drawn"),
        ({"noise_forced": [0.0] * 4}, "assay.noise_forced"),
        ({"drawn_raw": [0.0]}, "assay.drawn_raw"),
        ({"drawn_processed": [0.0] * 100_000}, "assay.drawn_processed"),
        ({"drawn_processed": [0.0, True, 0.0]}, "assay.drawn_processed[1]"),
        ({"noise_drawn": "abc"}, "assay.noise_drawn"),
        ({"noise_drawn": [0.0, "1", 0.0]}, "assay.noise_drawn[1]"),
        ({"noise_drawn": [0.0, 0.0, False]}, "assay.noise_drawn[2]"),
        ({"noise_drawn": [0.0, 0.0, {}]}, "assay.noise_drawn[2]"),
        ({"noise_forced": [float("nan"), 0.0, 0.0]}, "assay.noise_forced[0]"),
        ({"noise_forced": [0.0, float("inf"), 0.0]}, "assay.noise_forced[1]"),
        ({"noise_forced": [0.0, 1e6, 0.0]}, "assay.noise_forced[1]"),
        ({"noise_forced": [0.0, 10**400, 0.0]}, "assay.noise_forced[1]"),
        ({"tape": "v2"}, "assay.tape"),
        ({"tape": {}}, "assay.tape.runner"),
        ({"tape": {"runner": ["v2"]}}, "assay.tape.runner"),
        ({"tape": {"runner": "v2", "generation": -1}}, "assay.tape.generation"),
        ({"tape": {"runner": "v2", "fp64": False}}, "assay.tape.generation"),
        ({"tape": {"runner": "v2", "generation": 1, "fp64": 0}}, "assay.tape.fp64"),
        (
            {"tape": {"runner": "v2", "generation": 1, "fp64": False, "device": 1}},
            "assay.tape.device",
        ),
    ],
)
def test_hostile_numbers_of_the_choice_channel_are_refused_by_name(
    changes: dict[str, Any], where: str
) -> None:
    with pytest.raises(ClaimError) as error:
        read_evidence(field(**{**CHOICE, **changes}))
    assert error.value.field == where


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"version": 2}, "assay.version"),
        ({"version": None}, "assay.version"),
        ({"version": True}, "assay.version"),
        ({"runner": "v3"}, "assay.runner"),
        ({"logprobs_mode": "raw"}, "assay.logprobs_mode"),
        ({"mode_source": None}, "assay.mode_source"),
        ({"drawn": [1, 2]}, "assay.rank_raw"),
        ({"drawn": [1, 2, -3]}, "assay.drawn[2]"),
        ({"rank_raw": [1.5, 1, 1]}, "assay.rank_raw[0]"),
        ({"logprob_raw": [0.0, "x", 0.0]}, "assay.logprob_raw[1]"),
        ({"logprob_processed": [-1.0]}, "assay.logprob_processed"),
        ({"grammar_conflict": -1}, "assay.grammar_conflict"),
        ({"complete": 1}, "assay.complete"),
    ],
)
def test_a_wrong_field_is_refused_by_name(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(ClaimError) as error:
        read_replay(chat(assay=field(**changes)))
    assert error.value.field == where
