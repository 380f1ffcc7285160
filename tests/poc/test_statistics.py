"""The zero-knowledge baseline and the unexplained share: what they must say, on made-up states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.poc.challenges import HIDDEN, noisy, states, vectors

from assay.errors import SettingsError
from assay.poc.statistics import predicted_vectors, unexplained_share, zero_knowledge


def test_states_without_a_shared_part_cannot_be_guessed():
    baseline = zero_knowledge(vectors(states(300, shared=0)), HIDDEN)
    assert baseline.n == 300
    assert baseline.mean_distance == pytest.approx(np.sqrt(2), abs=0.1)
    assert baseline.pass_rate(0.75) < 0.02


def test_a_shared_part_is_guessed_from_the_neighbours_without_a_model():
    baseline = zero_knowledge(vectors(states(300, shared=0.95)), HIDDEN)
    assert baseline.mean_distance < 0.4
    assert baseline.pass_rate(0.4) > 0.8
    assert baseline.mismatches(0.4) == round(300 * (1 - baseline.pass_rate(0.4)))


def test_a_nonce_does_not_predict_itself():
    """Leave-one-out: changing one vector must not change its own prediction."""
    real = vectors(states(100, shared=0.5))
    before = predicted_vectors(real, HIDDEN)[7]
    changed = replace(real, vectors={**real.vectors, 7: -real.vectors[7]})
    after = predicted_vectors(changed, HIDDEN)
    assert np.allclose(before, after[7])
    assert not np.allclose(predicted_vectors(real, HIDDEN)[8], after[8])


def test_predictions_are_unit_vectors_and_zero_where_no_neighbour_shows_a_dimension():
    # 100,000 dimensions, two nonces: no dimension is shown twice.
    made = np.random.default_rng(0).normal(size=(2, 100_000))
    predicted = predicted_vectors(vectors(made), 100_000)
    assert [np.abs(row).max() for row in predicted.values()] == [0, 0]
    norms = [
        np.linalg.norm(r) for r in predicted_vectors(vectors(states(99, shared=0)), HIDDEN).values()
    ]
    assert np.allclose(norms, 1)


def test_unusable_vectors_are_left_out():
    real = vectors(states(50, shared=0.5))
    broken = {**real.vectors, 3: np.full(12, np.nan), 4: np.zeros(11)}
    predicted = predicted_vectors(replace(real, vectors=broken), HIDDEN)
    assert sorted(set(real.vectors) - set(predicted)) == [3, 4]


def test_one_vector_has_no_neighbours():
    with pytest.raises(SettingsError, match="needs two"):
        predicted_vectors(vectors(states(1, shared=0.5)), HIDDEN)


def test_the_forger_has_an_unexplained_share_of_exactly_one():
    real = vectors(states(200, shared=0.8))
    predicted = predicted_vectors(real, HIDDEN)
    forged = replace(real, vectors=predicted)
    assert unexplained_share(forged, real, predicted).share == pytest.approx(1)
    assert unexplained_share(real, real, predicted).share == 0


@pytest.mark.parametrize("shared", [0.0, 0.5, 0.9])
def test_the_share_grows_with_the_noise_and_tells_honest_from_cheat(shared):
    clean = states(300, shared=shared)
    own = np.sqrt(1 - shared)
    real = vectors(clean)
    predicted = predicted_vectors(real, HIDDEN)
    honest = unexplained_share(vectors(noisy(clean, 0.05 * own)), real, predicted)
    cheat = unexplained_share(vectors(noisy(clean, 0.4 * own)), real, predicted)
    assert honest.share < 0.01
    assert 0.05 < cheat.share < 0.5
    assert cheat.share - 4 * cheat.standard_error > honest.share + 4 * honest.standard_error


def test_the_standard_error_is_that_of_the_ratio():
    """Against the spread of the share over independent sets."""
    shares, errors = [], []
    for seed in range(30):
        clean = states(100, shared=0.5, seed=seed)
        real = vectors(clean)
        found = unexplained_share(
            vectors(noisy(clean, 0.3, seed + 100)), real, predicted_vectors(real, HIDDEN)
        )
        shares.append(found.share)
        errors.append(found.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(shares), rel=0.5)


def test_no_common_nonces_give_no_share():
    real = vectors(states(20, shared=0.5))
    empty = replace(real, vectors={})
    assert unexplained_share(empty, real, predicted_vectors(real, HIDDEN)) is None
