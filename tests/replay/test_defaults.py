"""What a request leaves to the server: the executor's defaults count, not the validator's (case 2)."""

from __future__ import annotations

import pytest

from assay.claims.claim import Claim, EngineIdentity, Prompt
from assay.replay.identity import ServerIdentity
from assay.replay.prefill_fits import settle_mode
from assay.replay.request import DEFAULT_OPTIONS, build_replay_request


def claim(defaults: dict[str, float] | None, **request: object) -> Claim:
    return Claim(
        id="c",
        endpoint="completions",
        prompt=Prompt(token_ids=(1, 2), source="request"),
        request={"prompt": [1, 2], **request},
        output_ids=(3, 4),
        logprobs_mode="processed_logprobs",
        engine=EngineIdentity(default_sampling_params=defaults),
    )


def test_the_executors_defaults_are_named_in_the_replay() -> None:
    body = build_replay_request(claim({"top_k": 20.0, "temperature": 0.6}, top_p=0.9)).body
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.6, 0.9, 20)
    assert isinstance(body["top_k"], int)
    assert (body["min_p"], body["repetition_penalty"]) == (0.0, 1.0)


def test_a_server_without_defaults_is_not_replayed_with_the_validators() -> None:
    body = build_replay_request(claim({})).body
    assert (body["temperature"], body["top_p"], body["top_k"]) == (1.0, 1.0, 0)


@pytest.mark.parametrize("given", [None, 0.3])
def test_unknown_defaults_and_named_values_stay_as_they_are(given: float | None) -> None:
    unknown = build_replay_request(claim(None, temperature=given)).body
    assert unknown["temperature"] == given
    assert "top_p" not in unknown
    named = build_replay_request(claim({"temperature": 0.6}, temperature=0.3)).body
    assert named["temperature"] == 0.3


def test_a_prefill_applies_the_executors_defaults() -> None:
    server = ServerIdentity(default_sampling_params={"temperature": 0.7, "top_k": 20})
    mode = settle_mode(claim({}), DEFAULT_OPTIONS, server)
    assert mode.cuts is None
    assert mode.notes[0].code == "processed_is_raw"
    cut = settle_mode(claim({"temperature": 0.7, "top_k": 20}), DEFAULT_OPTIONS, server).cuts
    assert cut is not None
    assert cut.top_k == 20
