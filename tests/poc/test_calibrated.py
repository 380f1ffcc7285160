"""The verdict by a profile: honest, cheating, forged and hostile claims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.poc.challenges import HIDDEN
from tests.poc.honest_engines import (
    CHEAT,
    ENGINE,
    KEY,
    NEXT,
    N,
    engine,
    mixed,
    only,
    profile_of,
)

from assay.errors import ClaimError, SettingsError
from assay.poc.calibrated import judge_by_profile
from assay.poc.constants import MIN_NONCES
from assay.poc.statistics import predicted_vectors

PROFILE = profile_of("A100", "H100", "H200")
VALIDATOR = engine("A100")
SEEN, UNSEEN = ("H100", "A100"), ("B200", "A100")


def _judge(claimed, computed=VALIDATOR, hardware=UNSEEN, **options):
    options = {"hidden_size": HIDDEN, **options}
    return judge_by_profile(claimed, computed, PROFILE, key=KEY, hardware=hardware, **options)


def _changed(rows: dict) -> object:
    """An honest claim with some vectors replaced."""
    return replace(engine("B200"), vectors={**engine("B200").vectors, **rows})


@pytest.mark.parametrize("n", [50, 200, N])
@pytest.mark.parametrize("hardware", [SEEN, UNSEEN])
def test_honest_passes_and_other_weights_fail(n, hardware):
    computed = only(VALIDATOR, n)
    honest = _judge(engine("B200"), computed, hardware, sampled=True)
    assert honest.verdict == "pass", honest.reasons
    assert honest.p_value > 0.05 and honest.reasons[0].code == "as_far_as_honest"
    cheat = _judge(engine("B200", scale=CHEAT, seed=77), computed, hardware, sampled=True)
    assert cheat.verdict == "fail" and cheat.reasons[0].code == "farther_than_honest"
    assert cheat.basis == ("pair" if hardware is SEEN else "configuration")
    assert cheat.profile == PROFILE.digest and 0 < cheat.p_value < 0.005


def test_a_quarter_of_cheating_is_caught_where_the_pair_is_recorded():
    claim = mixed(engine("H100", seed=31), engine("H100", scale=0.5, seed=78), 0.25)
    found = _judge(claim, only(VALIDATOR, 200), SEEN, sampled=True)
    assert found.verdict == "fail"
    mixture = next(result for result in found.statistics if result.name == "mixture")
    assert mixture.p_value < 0.001
    assert found.cheating_share == pytest.approx(0.25, abs=0.12)
    unseen = _judge(claim, only(VALIDATOR, 200), UNSEEN, sampled=True)
    assert unseen.cheating_share is None and "mixture" in unseen.missing


@pytest.mark.parametrize("hardware", [SEEN, UNSEEN])
def test_vectors_forged_from_the_shared_mean_fail(hardware):
    """No model run: each vector is what the real ones of other nonces predict."""
    forged = replace(VALIDATOR, vectors=predicted_vectors(VALIDATOR, HIDDEN), name="forged")
    found = _judge(forged, only(VALIDATOR, 200), hardware, sampled=True)
    assert found.verdict == "fail"
    own = next(result for result in found.statistics if result.name == "own")
    assert own.value == pytest.approx(0, abs=0.1) and own.p_value < 0.001


def test_what_was_not_measured_has_a_reason_and_every_p_value_its_null():
    found = _judge(engine("B200"), hidden_size=None)
    assert {result.name for result in found.statistics} == {"bulk", "tail"}
    assert "hidden_size" in found.missing["own"]
    few = _judge(only(engine("B200"), 40), only(VALIDATOR, 40), hidden_size=4096)
    assert "0.11 times on average" in few.missing["own"]
    assert all("degrees of freedom" in result.null for result in found.statistics)
    assert all(0 < result.p_value <= 1 for result in found.statistics)


def test_json_is_plain():
    body = _judge(engine("B200")).as_json()
    assert body["verdict"] == "pass" and body["statistics"][0]["name"] == "bulk"
    assert body["reasons"][0]["code"] and body["n_compared"] + body["n_excluded"] == body["n_total"]


# --- hostile claims ----------------------------------------------------------------------------

BROKEN = {
    "nan": np.full(12, np.nan),
    "infinite": np.full(12, np.inf),
    "zero": np.zeros(12),
    "constant": np.full(12, 0.1),
    "short": np.full(11, 11**-0.5),
    "empty": np.zeros(0),
    "matrix": np.eye(12),
    "huge": np.full(12, 1e200),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("hardware", [SEEN, UNSEEN])
def test_a_claim_of_no_vectors_fails(broken, hardware):
    found = _judge(_changed({n: broken for n in range(N)}), hardware=hardware)
    assert found.verdict == "fail" and found.n_invalid == N
    assert "invalid_vectors" in [reason.code for reason in found.reasons]


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.parametrize("count", [1, 40])
def test_a_few_vectors_that_are_none_are_never_a_pass(broken, count):
    found = _judge(_changed({n: broken for n in range(count)}))
    assert found.n_invalid == count
    assert found.verdict == ("inconclusive" if count == 1 else "fail")
    assert "invalid_vectors" in [reason.code for reason in found.reasons]


def test_a_unit_vector_that_is_the_same_for_every_nonce_fails():
    constant = np.full(12, 12**-0.5)
    assert _judge(_changed({n: constant for n in range(N)})).verdict == "fail"


def test_a_shrunken_guess_is_no_vector():
    """The best guess without a model lies short; at norm 0.7 it would be nearer than any other."""
    guess = predicted_vectors(VALIDATOR, HIDDEN)
    found = _judge(_changed({n: 0.7 * row for n, row in guess.items()}))
    assert found.n_invalid == N and found.verdict == "fail"


@pytest.mark.parametrize("n", [0, 1, MIN_NONCES - 1])
def test_too_few_nonces_conclude_nothing_however_far(n):
    for scale in (0.05, 1.0):
        found = _judge(only(engine("B200", scale=scale), n), only(VALIDATOR, n))
        assert found.verdict == "inconclusive" and found.p_value is None
        assert found.reasons[0].code == ("nothing_compared" if n == 0 else "too_few_nonces")


def test_other_nonces_are_nothing_compared():
    found = _judge(only(engine("B200"), 100), only(VALIDATOR, 100, first=200))
    assert found.reasons[0].code == "nothing_compared" and found.n_excluded == 200


def test_missing_nonces_are_excluded_and_too_many_conclude_nothing():
    found = _judge(only(engine("B200"), 300))
    assert found.reasons[0].code == "too_many_excluded" and found.verdict == "inconclusive"
    assert _judge(only(engine("B200"), 300), only(VALIDATOR, 300)).verdict == "pass"


def test_our_own_broken_vectors_are_no_evidence():
    own = replace(VALIDATOR, vectors={**VALIDATOR.vectors, **{n: np.zeros(12) for n in range(20)}})
    found = _judge(engine("B200"), own)
    assert found.n_excluded == 20 and found.n_invalid == 0 and found.verdict == "pass"
    all_own = replace(VALIDATOR, vectors={n: np.full(12, np.nan) for n in range(N)})
    assert _judge(engine("B200"), all_own).reasons[0].code == "nothing_compared"


# --- configuration -----------------------------------------------------------------------------


def test_case_50_another_kv_dtype_is_configuration_and_not_fraud_with_a_profile_too():
    """KV dtype is part of the identity: a profile for one says nothing of the other."""
    far = engine("B200", scale=CHEAT, seed=77)
    fp8 = replace(far, profile={**ENGINE, "kv_cache_dtype": "fp8"})
    assert _judge(far).verdict == "fail"
    found = _judge(fp8)
    assert found.verdict == "inconclusive"
    assert found.reasons[0].code == "configuration_differs"
    assert "kv_cache_dtype (fp8 and auto)" in found.reasons[0].message
    near = replace(engine("B200"), profile={**ENGINE, "kv_cache_dtype": "fp8"})
    assert _judge(near).verdict == "pass"


def test_case_50_a_profile_of_another_kv_dtype_is_only_a_wider_basis():
    key = KEY.model_copy(update={"kv_cache_dtype": "fp8"})
    found = judge_by_profile(engine("B200"), VALIDATOR, PROFILE, key=key, hardware=SEEN)
    assert found.basis == "model"


def test_a_profile_of_nothing_like_it_gives_no_verdict_at_all():
    key = KEY.model_copy(update={"model": "another"})
    assert judge_by_profile(VALIDATOR, VALIDATOR, PROFILE, key=key, hardware=SEEN) is None


def _at(level: float):
    """The profile of engines whose honest distances had this bulk."""
    records = [
        record.model_copy(
            update={
                "statistics": {
                    "bulk": record.statistics["bulk"].model_copy(update={"value": level}),
                    "tail": record.statistics["tail"],
                }
            }
        )
        for record in PROFILE.records
    ]
    return PROFILE.model_copy(update={"records": tuple(records)})


@pytest.mark.parametrize(
    ("level", "code"), [(-0.6, "threshold_proves_nothing"), (0.3, "profile_too_wide")]
)
def test_a_profile_that_the_forger_passes_is_no_pass(level, code):
    """Honest engines so far apart that guessed, or any, vectors would do: nothing is proven."""
    for hidden_size in (HIDDEN, None):
        found = judge_by_profile(
            engine("B200"),
            VALIDATOR,
            _at(level),
            key=KEY,
            hardware=UNSEEN,
            hidden_size=hidden_size,
        )
        assert found.verdict == "inconclusive" and found.reasons[0].code == code


def test_another_challenge_and_a_bad_alpha_are_refused():
    with pytest.raises(ClaimError, match="block_hash") as caught:
        _judge(engine("B200", challenge=NEXT))
    assert caught.value.code == "challenge_differs"
    for alpha in (0.0, 1.0, float("nan")):
        with pytest.raises(SettingsError, match="alpha"):
            _judge(engine("B200"), alpha=alpha)
