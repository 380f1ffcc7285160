"""The three-valued verdict; F27, F28 and F55 (what is missing or broken never counts as fine)."""

from __future__ import annotations

import json
from fractions import Fraction
from math import comb, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.poc.settings import NETWORK, StatTest
from assay.poc.verdict import compare_vector, judge, mismatch_p_value

K = 12


def _vectors(n: int, seed: int = 0) -> dict[int, np.ndarray]:
    rows = np.random.default_rng(seed).normal(size=(n, K))
    return dict(enumerate(rows / np.linalg.norm(rows, axis=1, keepdims=True)))


def _with_mismatches(vectors: dict[int, np.ndarray], count: int) -> dict[int, np.ndarray]:
    return {nonce: -v if nonce < count else v for nonce, v in vectors.items()}


def _codes(verdict) -> list[str]:
    return [reason.code for reason in verdict.reasons]


def test_equal_vectors_pass():
    verdict = judge(_vectors(200), _vectors(200), NETWORK)
    assert (verdict.verdict, verdict.fraud_detected) == ("pass", False)
    assert (verdict.n_compared, verdict.n_excluded, verdict.n_mismatch) == (200, 0, 0)
    assert (verdict.mean_distance, verdict.p_value) == (0.0, 1.0)
    assert _codes(verdict) == ["mismatches_tolerated"]


@pytest.mark.parametrize(("mismatches", "outcome"), [(27, "pass"), (28, "fail")])
def test_28_of_200_convict(mismatches, outcome):
    vectors = _vectors(200)
    verdict = judge(_with_mismatches(vectors, mismatches), vectors, NETWORK)
    assert verdict.verdict == outcome
    assert verdict.fraud_detected is (outcome == "fail")
    assert verdict.n_mismatch == mismatches
    assert verdict.mismatch_nonces == tuple(range(mismatches))
    assert verdict.distances[0].distance == pytest.approx(2)
    assert verdict.distances[0].cause == "distance"
    assert verdict.distances[-1].cause is None


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["claimed", "computed"])
def test_f27_f28_a_vector_that_is_not_finite_is_a_mismatch(bad, side):
    """NaN > threshold is False: counted by distance alone, all-NaN vectors would pass."""
    good = _vectors(50)
    poisoned = {nonce: v.copy() for nonce, v in good.items()}
    for v in poisoned.values():
        v[3] = bad
    sides = {"claimed": good, "computed": good, side: poisoned}
    verdict = judge(sides["claimed"], sides["computed"], NETWORK)
    assert verdict.verdict == "fail" and verdict.n_mismatch == 50
    assert verdict.mean_distance is None
    assert "non_finite_vectors" in _codes(verdict)


@pytest.mark.parametrize("shape", [(11,), (13,), (0,), (1, 12), ()])
def test_a_wrong_shape_is_a_mismatch_and_never_broadcast(shape):
    entry = compare_vector(0, np.zeros(shape), np.zeros(K), K, 0.4)
    assert (entry.distance, entry.cause) == (None, "shape")


def test_the_threshold_itself_is_no_mismatch():
    b = np.zeros(K)
    b[0] = 0.5
    assert compare_vector(0, np.zeros(K), b, K, 0.5).cause is None
    assert compare_vector(0, np.zeros(K), b, K, 0.4999).cause == "distance"


def test_finite_values_with_an_infinite_distance_are_a_mismatch():
    entry = compare_vector(0, np.full(K, 1e308), np.full(K, -1e308), K, 0.4)
    assert (entry.distance, entry.cause) == (None, "non_finite")


@pytest.mark.parametrize(("claimed", "computed"), [({}, {}), (_vectors(5), {}), ({}, _vectors(5))])
def test_f55_nothing_compared_is_no_verdict(claimed, computed):
    verdict = judge(claimed, computed, NETWORK)
    assert verdict.verdict == "inconclusive"
    assert _codes(verdict) == ["nothing_compared"]
    assert verdict.p_value is None and verdict.fraud_detected is None


@pytest.mark.parametrize("lost", [10, 11])
@pytest.mark.parametrize("how", ["claim lacks", "recomputation lacks", "could not recompute"])
def test_f55_more_than_a_tenth_excluded_is_no_verdict(lost, how):
    claimed, computed = _vectors(100), _vectors(100)
    for nonce in range(lost):
        if how == "claim lacks":
            del claimed[nonce]
        elif how == "recomputation lacks":
            del computed[nonce]
        else:
            computed[nonce] = None
    verdict = judge(claimed, computed, NETWORK)
    assert verdict.n_excluded == lost and verdict.excluded_nonces == tuple(range(lost))
    assert verdict.n_compared == 100 - lost
    assert verdict.verdict == ("pass" if lost == 10 else "inconclusive")
    if lost == 11:
        assert _codes(verdict) == ["too_many_excluded"] and verdict.fraud_detected is None


def test_too_many_excluded_withholds_a_fail_too():
    claimed = {nonce: -v for nonce, v in _vectors(100).items()}
    computed = {nonce: v for nonce, v in _vectors(100).items() if nonce >= 20}
    assert judge(claimed, computed, NETWORK).verdict == "inconclusive"


def test_a_sample_leaves_the_rest_of_the_claim_out():
    sample = {nonce: v for nonce, v in _vectors(1000).items() if nonce % 5 == 0}
    assert judge(_vectors(1000), sample, NETWORK).verdict == "inconclusive"
    verdict = judge(_vectors(1000), sample, NETWORK, sampled=True)
    assert (verdict.verdict, verdict.n_compared, verdict.n_excluded) == ("pass", 200, 0)


def test_a_sample_still_counts_what_the_claim_withholds():
    claimed = {nonce: v for nonce, v in _vectors(100).items() if nonce >= 20}
    verdict = judge(claimed, _vectors(100), NETWORK, sampled=True)
    assert (verdict.verdict, verdict.n_excluded) == ("inconclusive", 20)


def test_a_count_that_could_never_convict_is_no_pass():
    verdict = judge(_vectors(1), _vectors(1), NETWORK)
    assert verdict.verdict == "inconclusive" and _codes(verdict) == ["too_few_nonces"]
    assert judge(_vectors(2), _vectors(2), NETWORK).verdict == "pass"
    assert judge(_with_mismatches(_vectors(2), 2), _vectors(2), NETWORK).verdict == "fail"


def test_reference_defaults_convict_honest_hardware():
    """Two honest GPU kinds differ by 0.09 in the mean; kept as the wire default only."""
    noise = np.random.default_rng(1).normal(scale=0.09 / np.sqrt(K), size=(200, K))
    computed = {nonce: v + noise[nonce] for nonce, v in _vectors(200).items()}
    assert judge(_vectors(200), computed, StatTest(0.02, 0.001, 0.01)).verdict == "fail"
    assert judge(_vectors(200), computed, NETWORK).verdict == "pass"


def test_a_verdict_is_plain_json_without_nan():
    claimed = _with_mismatches(_vectors(60), 3)
    claimed[9] = np.full(K, nan)
    claimed[10] = np.zeros(3)
    text = json.dumps(judge(claimed, _vectors(60), NETWORK).as_json(), allow_nan=False)
    body = json.loads(text)
    assert body["n_mismatch"] == 5 and body["mismatch_nonces"] == [0, 1, 2, 9, 10]
    assert [reason["code"] for reason in body["reasons"]] == [
        "mismatches_tolerated",
        "non_finite_vectors",
        "wrong_shape_vectors",
    ]
    assert body["distances"][9] == {"nonce": 9, "distance": None, "cause": "non_finite"}
    assert body["settings"] == {"dist_threshold": 0.4, "p_mismatch": 0.1, "alpha": 0.05}


def test_an_empty_verdict_is_plain_json_too():
    assert json.loads(json.dumps(judge({}, {}, NETWORK).as_json(), allow_nan=False))


@given(st.data())
def test_p_value_is_the_exact_binomial_tail(data):
    n = data.draw(st.integers(1, 60))
    m = data.draw(st.integers(0, n))
    p = data.draw(st.fractions(Fraction(1, 100), Fraction(99, 100), max_denominator=100))
    exact = sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(m, n + 1))
    assert mismatch_p_value(m, n, float(p)) == pytest.approx(float(exact), rel=1e-9)
