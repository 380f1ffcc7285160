"""Seeds that nobody can grind: pinned vectors, what counts and what does not, checking a claim."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.claims.claim import Claim, Prompt
from assay.claims.seeds import (
    NOT_DIGESTED,
    canonical_request,
    derive_seed,
    request_digest,
    verify_seed,
)
from assay.errors import ClaimError

REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Grüße"}],
    "temperature": 1.0,
    "top_p": 0.95,
    "max_tokens": 64,
}
CANONICAL = (
    '{"max_tokens":64,"messages":[{"content":"Grüße","role":"user"}],"model":"m",'
    '"temperature":1,"top_p":0.95}'
)


def claim(**request: Any) -> Claim:
    return Claim(id="c", endpoint="chat", prompt=Prompt(token_ids=(1,)), request=request)


def test_pinned_vectors() -> None:
    """Other software must come to the same numbers: these never change within version 1."""
    assert canonical_request(REQUEST).decode() == CANONICAL
    assert request_digest(REQUEST).hex() == (
        "dc5db82c6f092f43b75bf39b009488ec28bde24728defeff7d921d0f9ac2d6d0"
    )
    assert derive_seed("drand:4242", REQUEST) == 7_339_657_945_011_029
    assert derive_seed("drand:4242", REQUEST, index=1) == 6_625_267_179_166_395
    assert derive_seed("Blöck 7", {}) == 8_177_334_699_790_828


def test_the_formula_as_it_is_written_down() -> None:
    beacon = b"0x1f"
    digest = hashlib.sha256(b"vllm-assay/request/v1\0" + CANONICAL.encode()).digest()
    text = b"vllm-assay/seed/v1\0" + struct.pack("<Q", 4) + beacon + digest + struct.pack("<Q", 3)
    expected = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 11
    assert derive_seed("0x1f", REQUEST, index=3) == expected


@pytest.mark.parametrize("name", sorted(NOT_DIGESTED))
def test_what_travels_with_a_request_does_not_move_its_seed(name: str) -> None:
    for value in (1, "x", None, {"a": 1}):
        assert derive_seed("b", {**REQUEST, name: value}) == derive_seed("b", REQUEST)


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.9},
        {"max_tokens": 65},
        {"messages": [{"role": "user", "content": "Grüsse"}]},
        {"model": "n"},
        {"stop": ["x"]},
        {"a_field_of_next_year": True},
    ],
)
def test_what_the_model_is_asked_moves_it(change: dict[str, Any]) -> None:
    assert derive_seed("b", REQUEST | change) != derive_seed("b", REQUEST)


def test_spelling_of_the_same_request_does_not_move_it() -> None:
    again = dict(reversed(REQUEST.items())) | {"temperature": 1, "stop": None}
    assert canonical_request(again) == canonical_request(REQUEST)
    assert canonical_request({"a": -0.0, "b": [2.0, {"c": 1e-07}], "d": 1e300}) == (
        b'{"a":0,"b":[2,{"c":1e-07}],"d":1e+300}'
    )
    assert canonical_request({"a": True}) != canonical_request({"a": 1})


@given(st.text(min_size=1, max_size=30), st.integers(0, 2**64 - 1))
def test_every_seed_is_one_vllm_takes_and_json_carries(beacon: str, index: int) -> None:
    try:
        seed = derive_seed(beacon, REQUEST, index)
    except ClaimError as error:
        assert error.field == "beacon"
        return
    assert 0 <= seed < 2**53
    assert int(float(seed)) == seed


def test_beacon_and_request_cannot_be_confused() -> None:
    """The beacon's length is hashed too, and index and beacon are apart."""
    seeds = {
        derive_seed(beacon, REQUEST, index) for beacon in ("a", "aa", "a\0") for index in range(5)
    }
    assert len(seeds) == 15


@pytest.mark.parametrize(
    ("beacon", "request_", "index", "field"),
    [
        ("", {}, 0, "beacon"),
        ("\ud800", {}, 0, "beacon"),
        ("b", {"x": float("nan")}, 0, "request"),
        ("b", {"x": [float("inf")]}, 0, "request"),
        ("b", {"x": "\ud800"}, 0, "request"),
        ("b", {"x": {1, 2}}, 0, "request"),
        ("b", {}, -1, "index"),
        ("b", {}, 2**64, "index"),
    ],
)
def test_bad_input_is_named(beacon: str, request_: dict[str, Any], index: int, field: str) -> None:
    with pytest.raises(ClaimError) as error:
        derive_seed(beacon, request_, index)
    assert error.value.field == field


def test_a_claims_seed_is_checked() -> None:
    seed = derive_seed("b", REQUEST)
    assert verify_seed(claim(**REQUEST, seed=seed, logprobs=True, top_logprobs=5), "b").ok
    ground = verify_seed(claim(**REQUEST, seed=seed + 1), "b")
    assert not ground.ok
    assert str(seed) in ground.reason
    assert not verify_seed(claim(**REQUEST, seed=seed), "another").ok
    assert not verify_seed(claim(**(REQUEST | {"top_p": 0.9}), seed=seed), "b").ok
    assert not verify_seed(claim(**REQUEST, seed=seed), "b", index=1).ok
    for missing in (None, True, "7"):
        assert verify_seed(claim(**REQUEST, seed=missing), "b").reason.endswith("has no seed")
