"""Statistics of distances: what moves them and what does not."""

from __future__ import annotations

import numpy as np
import pytest

from assay.poc.spread import MixtureScore, bulk_and_tail, log_quantiles, sampling_variances


def _honest(n: int, seed: int = 0, scale: float = 0.08) -> np.ndarray:
    return scale * np.exp(0.5 * np.random.default_rng(seed).normal(size=n))


def test_bulk_is_the_level_and_tail_is_free_of_it():
    near, far = bulk_and_tail(_honest(1000))
    near_twice, far_twice = bulk_and_tail(2 * _honest(1000))
    assert near_twice - near == pytest.approx(np.log(2))
    assert far_twice == pytest.approx(far)


def test_bulk_is_blind_to_a_few_far_nonces_and_tail_is_not():
    honest = _honest(1000)
    contaminated = honest.copy()
    contaminated[:100] = 1.2
    near, far = bulk_and_tail(honest)
    near_too, far_too = bulk_and_tail(contaminated)
    assert abs(near_too - near) < 0.1
    assert far_too - far > 0.5


def test_many_claims_at_once_are_each_alone():
    rows = np.array([_honest(60, seed) for seed in range(5)])
    near, far = bulk_and_tail(rows)
    for row, one, other in zip(rows, near, far, strict=True):
        assert bulk_and_tail(row) == (pytest.approx(one), pytest.approx(other))


def test_equal_engines_have_numbers_and_no_infinity():
    near, far = bulk_and_tail(np.zeros(40))
    assert np.isfinite(near) and far == 0
    assert np.isfinite(log_quantiles(np.zeros(40))).all()


def test_the_sampling_variance_is_that_of_fresh_samples():
    found = sampling_variances(_honest(2000))
    fresh = np.array([bulk_and_tail(_honest(50, seed)) for seed in range(1, 400)])
    assert found == pytest.approx(tuple(50 * fresh.var(axis=0)), rel=0.3)


def test_a_farther_nonce_never_scores_less():
    score = MixtureScore(log_quantiles(_honest(1000)))
    values = score.scores(np.linspace(0, 2, 500))
    assert (np.diff(values) >= 0).all() and values[-1] > values[0]


def test_the_mean_score_of_honest_nonces_is_the_one_it_is_compared_with():
    score = MixtureScore(log_quantiles(_honest(5000)))
    fresh = score.scores(_honest(5000, 1))
    assert fresh.mean() == pytest.approx(score.mean, abs=0.03)
    assert fresh.var() == pytest.approx(score.variance, rel=0.15)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_the_cheating_share_is_a_lower_bound_near_the_truth(share):
    score = MixtureScore(log_quantiles(_honest(2000)))
    distances = _honest(2000, 2)
    distances[: int(2000 * share)] *= 5
    assert score.cheating_share(distances) == pytest.approx(share, abs=0.06)
