"""Forged vectors: what the mean knows, what a search finds, and that gaps show."""

from __future__ import annotations

import numpy as np
import pytest

from assay.attacks.forge import forged, learn, porosity, search
from assay.errors import SettingsError
from assay.poc.artifact_file import ArtifactSet, Challenge
from assay.poc.layers import vector_from_state

HIDDEN = 64
CHALLENGE = Challenge("block", "key", seq_len=4)


def vectors(nonces, *, own: float) -> ArtifactSet:
    """Vectors of states that share a part and differ by ``own`` times noise."""
    shared = np.random.default_rng(1).normal(size=HIDDEN)
    found = {}
    for nonce in nonces:
        state = shared + own * np.random.default_rng(1000 + nonce).normal(size=HIDDEN)
        found[nonce] = vector_from_state(state, "block", "key", nonce)
    return ArtifactSet(CHALLENGE, found, name="made", hidden_size=HIDDEN)


def distances(a: ArtifactSet, b: ArtifactSet) -> list[float]:
    return [float(np.linalg.norm(a.vectors[n] - b.vectors[n])) for n in b.vectors]


def test_where_all_states_are_equal_the_mean_is_the_vector() -> None:
    guess = forged(learn(vectors(range(60), own=0.0), HIDDEN), range(500, 520))
    real = vectors(range(500, 520), own=0.0)
    # What is left is the norm of the picked dimensions, which differs from nonce to nonce.
    assert max(distances(guess, real)) < 0.25


def test_the_mean_beats_chance_and_is_no_real_vector() -> None:
    known = learn(vectors(range(100), own=1.0), HIDDEN)
    real = vectors(range(500, 560), own=1.0)
    far = np.mean(distances(forged(known, list(real.vectors)), real))
    assert 0.3 < far < 1.3  # sqrt(2) = 1.41 is chance
    assert all(
        np.linalg.norm(v) == pytest.approx(1.0) for v in forged(known, [1, 2]).vectors.values()
    )


def test_searched_nonces_suit_the_forger_better_and_are_sparse() -> None:
    known = learn(vectors(range(200), own=1.0), HIDDEN)
    taken = list(range(1000, 1040))
    chosen = search(known, 40, range(1000, 5000))
    assert len(set(chosen)) == 40 and chosen == sorted(chosen)

    def miss(nonces: list[int]) -> float:
        return float(np.mean(distances(forged(known, nonces), vectors(nonces, own=1.0))))

    assert miss(chosen) < miss(taken)
    assert porosity([n - 1000 for n in chosen]) > 20
    assert porosity([n - 1000 for n in taken]) == pytest.approx(1.0)


def test_porosity_of_a_node_that_shares_the_nonces() -> None:
    assert porosity([0, 4, 8, 12], step=4) == pytest.approx(1.0)
    assert porosity([0, 2, 4, 6]) == pytest.approx(2.0)
    assert porosity([7]) is None and porosity([]) is None


def test_too_little_to_learn_from() -> None:
    with pytest.raises(SettingsError, match="two are needed"):
        learn(vectors([5], own=1.0), HIDDEN)
    known = learn(vectors(range(10), own=1.0), HIDDEN)
    with pytest.raises(SettingsError, match="3 nonces asked of 2"):
        search(known, 3, [1, 2])
