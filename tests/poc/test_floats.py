"""Normals, rotation, layer vectors, artifacts: the numpy reference against published values."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay import poc
from assay.errors import ClaimError, SettingsError
from assay.poc.normals import normals_rows, strong_lengths, strong_normals
from assay.poc.rotation import rotate_rows, rotation_vectors, unrotate_rows

VECTORS = Path(__file__).parents[2].parent / "shared" / "vectors" / "poc_integers.json"


@pytest.fixture(scope="module")
def published() -> dict:
    if not VECTORS.is_file():
        pytest.skip("shared/vectors/poc_integers.json is not beside the repository")
    return json.loads(VECTORS.read_text())


def test_normals(published):
    for entry in published["normals_float64_reference"]:
        made = poc.normals(entry["seed"], entry["n"])
        assert made.dtype == np.float32
        np.testing.assert_allclose(made, entry["values"], rtol=0, atol=1e-6)


def test_normals_are_all_cosines_then_all_sines():
    u = poc.uniforms(7, 6).astype(np.float64)
    radius = np.sqrt(-2 * np.log(u[:3]))
    expected = [radius * np.cos(2 * np.pi * u[3:]), radius * np.sin(2 * np.pi * u[3:])]
    np.testing.assert_allclose(poc.normals(7, 6), np.concatenate(expected), atol=1e-6)


def test_odd_number_of_normals_drops_the_last_sine():
    assert poc.normals(3, 7).tolist() == poc.normals(3, 8)[:7].tolist()


def test_rows_of_normals_are_the_single_ones():
    rows = normals_rows(np.array([1, 2**32 - 1], dtype=np.uint32), 9)
    assert rows.tolist() == [poc.normals(1, 9).tolist(), poc.normals(2**32 - 1, 9).tolist()]


def test_uniforms_reach_one_and_normals_stay_finite():
    # float32(2^32 - 1) / 2^32 rounds to exactly 1.0; ln 1 = 0 gives a radius of 0, not NaN. The
    # smallest first uniform is clamped, so 0 gives 6.79, not infinity.
    hashed = np.array([2**32 - 1, 0], dtype=np.uint32).astype(np.float32) / np.float32(2**32)
    assert hashed[0] == 1.0
    made = poc.normals(11, 200_000)
    assert np.isfinite(made).all() and np.abs(made).max() < 6.8
    assert abs(made.mean()) < 0.01 and abs(made.std() - 1) < 0.01


@pytest.mark.parametrize(
    ("n", "lengths"), [(16, [2] * 8), (17, [3] * 5 + [2, 0, 0]), (3, [1] * 3 + [0] * 5)]
)
def test_stronger_seed_lengths(n, lengths):
    assert strong_lengths(n, 8) == lengths


def test_stronger_normals_are_each_words_own():
    words = poc.strong_seed_words("b_p_nonce0")
    made = strong_normals(words, 80)
    assert made.shape == (80,)
    for word, seed in enumerate(words):
        assert made[10 * word : 10 * word + 10].tolist() == poc.normals(seed, 10).tolist()


def test_rotation(published):
    for entry in published["haar"]:
        start = np.arange(1, 13) / np.linalg.norm(np.arange(1, 13))
        rotated = poc.haar_rotate(entry["block_hash"], entry["public_key"], entry["nonce"], start)
        np.testing.assert_allclose(rotated, entry["output"], rtol=0, atol=1e-6)
        assert poc.encode_vector(rotated) == entry["f16_le_b64"]


def test_unrotating_gives_the_vector_back():
    y = np.random.default_rng(0).normal(size=(5, 12))
    steps = rotation_vectors("b", "p", range(5), 12).astype(np.float64)
    steps /= np.linalg.norm(steps, axis=-1, keepdims=True)
    np.testing.assert_allclose(unrotate_rows(rotate_rows(y, steps), steps), y, atol=1e-12)


def test_rotation_of_a_matrix_is_refused():
    with pytest.raises(SettingsError, match="vector: shape"):
        poc.haar_rotate("b", "p", 0, np.zeros((2, 12)))


def test_layer_vector_has_norm_one_and_a_reflection_undoes_itself():
    v = poc.layer_vector("b", 3, 577)
    assert np.linalg.norm(v) == pytest.approx(1, abs=1e-6)
    x = np.random.default_rng(0).normal(size=(4, 577)).astype(np.float32)
    once = poc.reflect(x, v)
    np.testing.assert_allclose(once @ v, -(x @ v), atol=1e-5)
    np.testing.assert_allclose(poc.reflect(once, v), x, atol=1e-5)


def test_input_embeddings_are_the_normals_of_the_input_string():
    made = poc.input_embeddings("b", "p", [4, 2], 3, 8)
    assert made.shape == (2, 3, 8) and made.dtype == np.float32
    assert made[1].ravel().tolist() == poc.normals(poc.seed("b_p_nonce2"), 24).tolist()
    stronger = poc.input_embeddings("b", "p", [4, 2], 3, 8, stronger=True)
    assert stronger[1, 0, :3].tolist() == poc.normals(poc.seed("b_p_nonce2"), 3 + 0).tolist()
    assert not np.array_equal(made, stronger)


@pytest.mark.parametrize("nonces", [[-1], [2**32], [True], [1.0], ["1"]])
def test_nonces_outside_32_bits_are_refused(nonces):
    with pytest.raises(SettingsError, match=r"nonces\[0\]"):
        poc.input_embeddings("b", "p", nonces, 2, 2)


@given(st.lists(st.floats(-1, 1, width=16), min_size=1, max_size=40))
def test_artifacts_round_trip(values):
    assert poc.decode_vector(poc.encode_vector(values), len(values)).tolist() == values


def test_artifact_is_32_characters_for_twelve_numbers():
    assert len(poc.encode_vector(np.zeros(12))) == 32
    assert poc.encoding(12) == {"dtype": "f16", "k_dim": 12, "endian": "le"}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 70000.0])
def test_f28_a_vector_that_is_not_finite_in_float16_is_never_encoded(bad):
    with pytest.raises(ClaimError, match="not finite") as caught:
        poc.encode_vector([0.0, bad])
    assert caught.value.code == "non_finite"


@pytest.mark.parametrize("text", ["", "!!!!", "AAA", "AAAAAA==A", "AAAA", "aé==", None, 5])
def test_text_that_is_no_vector_is_refused(text):
    with pytest.raises(ClaimError) as caught:
        poc.decode_vector(text)
    assert caught.value.code == "bad_base64"


def test_decoding_another_length_is_refused_when_the_length_is_known():
    with pytest.raises(ClaimError, match="11 values, expected 12"):
        poc.decode_vector(poc.encode_vector(np.zeros(11)), 12)
