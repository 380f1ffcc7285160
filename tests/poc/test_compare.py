"""Two files of one challenge: refused when they are not, and withheld when they prove nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.poc.challenges import CHALLENGE, HIDDEN, noisy, states, vectors

from assay.errors import ClaimError, SettingsError
from assay.poc.compare import compare
from assay.poc.settings import NETWORK, StatTest

CLEAN = states(120, shared=0.3)
REAL = vectors(CLEAN, "real.json")


def _changed(**changes):
    return replace(REAL, challenge=replace(CHALLENGE, **changes), name="other.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_hash", "another"),
        ("public_key", "another"),
        ("k", 11),
        ("seq_len", 17),
        ("model", "another"),
    ],
)
def test_another_challenge_is_refused_with_the_field(field, value):
    with pytest.raises(ClaimError, match=f"^{field}: .*real.json.*other.json") as caught:
        compare(REAL, _changed(**{field: value}), NETWORK)
    assert caught.value.code == "challenge_differs"


def test_another_seed_strength_is_refused():
    strong, plain = _changed(poc_stronger_rng=True), _changed(poc_stronger_rng=False)
    with pytest.raises(ClaimError, match="poc_stronger_rng"):
        compare(strong, plain, NETWORK)


def test_what_a_file_is_silent_about_is_not_compared():
    silent = _changed(seq_len=None, model=None)
    assert compare(silent, REAL, NETWORK).verdict.verdict == "pass"


def test_case_50_another_kv_dtype_is_configuration_and_not_fraud():
    far = vectors(noisy(CLEAN, 1.0), profile={"kv_cache_dtype": "auto", "gpu": "H200"})
    same = replace(REAL, profile={"kv_cache_dtype": "auto", "gpu": "B200"})
    other = replace(REAL, profile={"kv_cache_dtype": "fp8", "gpu": "B200"})
    assert compare(far, same, NETWORK).verdict.verdict == "fail"
    assert compare(far, REAL, NETWORK).verdict.verdict == "fail"
    withheld = compare(far, other, NETWORK).verdict
    assert withheld.verdict == "inconclusive" and withheld.fraud_detected is None
    assert withheld.reasons[0].code == "configuration_differs"
    assert "kv_cache_dtype (auto and fp8)" in withheld.reasons[0].message


def test_another_profile_that_passes_passes():
    near = vectors(noisy(CLEAN, 0.01), profile={"dtype": "float16"})
    other = replace(REAL, profile={"dtype": "bfloat16"})
    assert compare(near, other, NETWORK).verdict.verdict == "pass"


def test_the_baseline_comes_with_the_verdict_when_the_hidden_size_is_known():
    near = vectors(noisy(CLEAN, 0.01))
    assert compare(near, REAL, NETWORK).baseline is None
    for result in (
        compare(near, REAL, NETWORK, hidden_size=HIDDEN),
        compare(replace(near, hidden_size=HIDDEN), REAL, NETWORK),
    ):
        body = result.as_json()
        assert body["verdict"] == "pass"
        assert body["zero_knowledge"]["n"] == 120
        assert body["zero_knowledge"]["pass_rate"] < 0.1
        assert 0 < body["unexplained"]["share"] < 0.01


def test_a_pass_that_a_forger_without_the_model_gets_too_is_withheld():
    clean = states(120, shared=0.97)
    honest, real = vectors(noisy(clean, 0.01)), vectors(clean)
    loose = StatTest(0.75, 0.1, 0.05)
    assert compare(honest, real, loose).verdict.verdict == "pass"
    withheld = compare(honest, real, loose, hidden_size=HIDDEN).verdict
    assert withheld.verdict == "inconclusive"
    assert withheld.reasons[0].code == "threshold_proves_nothing"
    assert compare(honest, real, StatTest(0.1, 0.1, 0.05), hidden_size=HIDDEN).verdict.verdict == (
        "pass"
    )


def test_a_fail_stays_a_fail_at_a_loose_threshold():
    clean = states(120, shared=0.97)
    cheat = replace(vectors(clean), vectors={n: -v for n, v in vectors(clean).vectors.items()})
    loose = StatTest(0.75, 0.1, 0.05)
    assert compare(cheat, vectors(clean), loose, hidden_size=HIDDEN).verdict.verdict == "fail"


def test_vectors_of_another_key_fail():
    other = vectors(CLEAN, challenge=replace(CHALLENGE, public_key="another"))
    result = compare(replace(other, challenge=CHALLENGE), REAL, NETWORK)
    assert result.verdict.verdict == "fail"
    assert result.verdict.mean_distance == pytest.approx(np.sqrt(2), abs=0.1)


def test_a_recomputation_of_nan_only_gives_no_baseline_and_no_pass():
    broken = replace(REAL, vectors={nonce: np.full(12, np.nan) for nonce in REAL.vectors})
    result = compare(REAL, broken, NETWORK, hidden_size=HIDDEN)
    assert result.baseline is None and result.verdict.verdict != "pass"


@pytest.mark.parametrize(("given", "message"), [(HIDDEN + 1, "give one"), (4, "below k")])
def test_a_hidden_size_that_cannot_be_is_refused(given, message):
    computed = replace(REAL, hidden_size=HIDDEN if given > HIDDEN else None)
    with pytest.raises(SettingsError, match=message):
        compare(REAL, computed, NETWORK, hidden_size=given)
