"""A seed that somebody chose where the validator demands the beacon's."""

from __future__ import annotations

import pytest
from tests.claims.account_claims import checks, claim, outcome

from assay.claims.account import Known
from assay.claims.seeds import derive_seed

BEACON = "block 7"
REQUEST = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.7}
DEMANDED = Known(beacon=BEACON)


def test_without_a_demand_there_is_no_such_check() -> None:
    assert "beacon_seed" not in checks(claim({**REQUEST, "seed": 1}))


def test_the_beacons_seed_holds_however_the_answer_was_asked_for() -> None:
    seed = derive_seed(BEACON, REQUEST)
    for extra in ({}, {"logprobs": True, "top_logprobs": 5}, {"return_token_ids": True}):
        assert outcome("beacon_seed", claim({**REQUEST, **extra, "seed": seed}), DEMANDED) == "pass"


@pytest.mark.parametrize("source", [None, "client", "executor", "beacon"])
def test_a_ground_seed_fails_whatever_the_claim_says_of_its_source(source: str | None) -> None:
    ground = claim({**REQUEST, "seed": derive_seed(BEACON, REQUEST) ^ 1}, seed_source=source)
    check = checks(ground, DEMANDED)["beacon_seed"]
    assert (check.outcome, check.code) == ("fail", "chosen_seed")


def test_the_seed_of_another_request_or_beacon_fails() -> None:
    other = derive_seed(BEACON, {**REQUEST, "temperature": 0.6})
    late = derive_seed("block 8", REQUEST)
    for seed in (other, late):
        assert outcome("beacon_seed", claim({**REQUEST, "seed": seed}), DEMANDED) == "fail"


def test_a_request_without_a_seed_is_not_judged() -> None:
    assert outcome("beacon_seed", claim(REQUEST), DEMANDED) == "not_available"
