"""Reading files of vectors: every published form, and every way to be wrong, by name."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pytest

from assay.errors import ClaimError
from assay.poc import encode_vector
from assay.poc.artifact_file import Challenge, artifact_set, read_artifact_file

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "poc"


def _body(**changes):
    body = {
        "block_hash": "b",
        "public_key": "p",
        "artifacts": [{"nonce": n, "vector_b64": encode_vector(np.full(12, 0.25))} for n in (3, 1)],
    }
    return {**body, **changes}


def test_the_smallest_file():
    read = artifact_set(_body())
    assert read.challenge == Challenge("b", "p", 12)
    assert list(read.vectors) == [3, 1]
    assert read.vectors[3].tolist() == [0.25] * 12


def test_everything_a_file_may_say():
    read = artifact_set(
        _body(
            k_dim=12,
            encoding={"dtype": "f16", "k_dim": 12, "endian": "le"},
            seq_len=1024,
            model="m",
            poc_stronger_rng=True,
            hidden_size=4096,
            profile={"dtype": "bfloat16"},
            unknown_extra=1,
        )
    )
    assert read.challenge == Challenge("b", "p", 12, 1024, "m", True)
    assert read.hidden_size == 4096 and read.profile == {"dtype": "bfloat16"}


def test_lists_of_numbers_are_read_and_null_is_nan():
    body = {"block_hash": "b", "public_key": "p", "nonces": [7], "vectors": [[0.5] * 11 + [None]]}
    (vector,) = artifact_set(body).vectors.values()
    assert vector[0] == 0.5 and np.isnan(vector[11])


def test_a_vector_of_a_wrong_length_or_with_nan_is_kept_for_the_verdict():
    nan = np.full(12, np.nan, dtype="<f2").tobytes()
    artifacts = [
        {"nonce": 0, "vector_b64": encode_vector(np.zeros(11))},
        {"nonce": 1, "vector_b64": base64.b64encode(nan).decode()},
    ]
    vectors = artifact_set(_body(artifacts=artifacts)).vectors
    assert vectors[0].shape == (11,) and np.isnan(vectors[1]).all()


GOOD = encode_vector(np.zeros(12))


@pytest.mark.parametrize(
    ("changes", "field", "code"),
    [
        ({"block_hash": None}, "block_hash", "malformed"),
        ({"block_hash": ""}, "block_hash", "malformed"),
        ({"public_key": 5}, "public_key", "malformed"),
        ({"artifacts": {}}, "artifacts", "malformed"),
        ({"artifacts": [{"nonce": 1}]}, "artifacts[0]", "malformed"),
        ({"artifacts": ["x"]}, "artifacts[0]", "malformed"),
        ({"artifacts": [{"nonce": -1, "vector_b64": GOOD}]}, "artifacts[0].nonce", "bad_nonce"),
        ({"artifacts": [{"nonce": 2**32, "vector_b64": GOOD}]}, "artifacts[0].nonce", "bad_nonce"),
        ({"artifacts": [{"nonce": True, "vector_b64": GOOD}]}, "artifacts[0].nonce", "bad_nonce"),
        ({"artifacts": [{"nonce": 1.0, "vector_b64": GOOD}]}, "artifacts[0].nonce", "bad_nonce"),
        ({"artifacts": [{"nonce": "1", "vector_b64": GOOD}]}, "artifacts[0].nonce", "bad_nonce"),
        (
            {"artifacts": [{"nonce": 1, "vector_b64": "**"}]},
            "artifacts[0].vector_b64",
            "bad_base64",
        ),
        ({"artifacts": [{"nonce": 1, "vector_b64": 7}]}, "artifacts[0].vector_b64", "bad_base64"),
        ({"artifacts": [{"nonce": 4, "vector_b64": GOOD}] * 2}, "artifacts[1]", "duplicate_nonce"),
        ({"vectors": [[0.0] * 12], "nonces": [1]}, "vectors", "malformed"),
        ({"vectors": [[0.0] * 12, [0.0] * 12], "nonces": [3, 1]}, "vectors", "malformed"),
        ({"vectors": [[0.0] * 12], "nonces": [1, 2]}, "vectors", "malformed"),
        ({"vectors": [["x"]], "nonces": [1]}, "vectors[0]", "malformed"),
        ({"vectors": [[True]], "nonces": [1]}, "vectors[0]", "malformed"),
        ({"vectors": [[10**400]], "nonces": [1]}, "vectors[0]", "malformed"),
        ({"vectors": 1}, "vectors", "malformed"),
        ({"k_dim": 0}, "k_dim", "malformed"),
        ({"k_dim": 12.0}, "k_dim", "malformed"),
        ({"k_dim": 12, "encoding": {"k_dim": 11}}, "k_dim", "malformed"),
        ({"encoding": {"dtype": "f32"}}, "encoding.dtype", "malformed"),
        ({"encoding": {"endian": "be"}}, "encoding.endian", "malformed"),
        ({"encoding": [1]}, "encoding", "malformed"),
        ({"seq_len": -1}, "seq_len", "malformed"),
        ({"poc_stronger_rng": 1}, "poc_stronger_rng", "malformed"),
        ({"profile": [1]}, "profile", "malformed"),
    ],
)
def test_a_wrong_field_is_named(changes, field, code):
    with pytest.raises(ClaimError) as caught:
        artifact_set(_body(**changes))
    assert str(caught.value).startswith(f"{field}:")
    assert caught.value.code == code


@pytest.mark.parametrize("body", [[], 1, None, "x"])
def test_a_file_that_is_no_object(body):
    with pytest.raises(ClaimError, match="a JSON object"):
        artifact_set(body)


def test_no_vectors_at_all():
    with pytest.raises(ClaimError, match="artifacts: missing"):
        artifact_set({"block_hash": "b", "public_key": "p"})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"{\n oops", "not JSON: .* line 2"),
        (b"\xff\xfe", "cannot be read"),
        (b"", "not JSON"),
        (b"[" * 10**6, "not JSON of vectors"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, raw, message):
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    with pytest.raises(ClaimError, match=f"a.json: {message}"):
        read_artifact_file(path)
    with pytest.raises(ClaimError, match=r"none\.json: cannot be read"):
        read_artifact_file(tmp_path / "none.json")


def test_a_challenge_from_outside_fills_a_silent_file_and_yields_to_a_speaking_one(tmp_path):
    silent = tmp_path / "silent.json"
    silent.write_text(json.dumps({"nonces": [1], "vectors": [[0.0] * 12]}))
    with pytest.raises(ClaimError, match="block_hash: missing"):
        read_artifact_file(silent)
    read = read_artifact_file(silent, block_hash="x", public_key="y")
    assert (read.challenge.block_hash, read.challenge.public_key) == ("x", "y")
    speaking = tmp_path / "speaking.json"
    speaking.write_text(json.dumps(_body()))
    assert read_artifact_file(speaking, block_hash="x").challenge.block_hash == "b"


@pytest.mark.skipif(not DATA.is_dir(), reason="shared/data/poc is not beside the repository")
@pytest.mark.parametrize(
    ("path", "count", "challenge"),
    [
        (
            "gonka-golden/moonshotai-kimi-k2.6.json",
            200,
            Challenge("TEST_BLOCK", "test_pub_keys", 12, 1024, "moonshotai/Kimi-K2.6"),
        ),
        (
            "gonka-vllm-poc2-report/v2/qwen236_20260110_072355/server_B200_FP8.json",
            500,
            Challenge("TEST_BLOCK_HsdcASH_123sdcsdc", "test_nodesdcdcd", 12),
        ),
        (
            "kaitakuai-experiments/2026-05__qwen235b-fp8-2xb200__nonces_1000.json",
            1000,
            Challenge("artifact_collection_block_v1", "artifact_collection_pk_v1", 12, 1024),
        ),
    ],
)
def test_every_family_of_published_files(path, count, challenge):
    read = read_artifact_file(DATA / path)
    assert len(read.vectors) == count and read.challenge == challenge
    norms = [np.linalg.norm(vector) for vector in read.vectors.values()]
    assert np.allclose(norms, 1, atol=1e-3)
