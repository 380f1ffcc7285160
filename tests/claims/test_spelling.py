"""Ids or text, decided for the whole body."""

from __future__ import annotations

import pytest
from tests.claims.bodies import DATA, chat, entry, needs_data

from assay.claims.read_json import read_response
from assay.claims.spelling import parse_id, text_key
from assay.errors import ClaimError


@pytest.mark.parametrize(
    ("token", "number"),
    [("token_id:0", 0), ("token_id:151645", 151645), ("42", 42), ("0", 0)],
)
def test_what_is_an_id(token: str, number: int) -> None:
    assert parse_id(token) == number


@pytest.mark.parametrize(
    "token",
    [
        *("1_000", "+5", "-1", " 7", "7 ", "7\n", "٣", "²", "", "hello", "4.0", "1e3", "0x10"),
        *("token_id:", "token_id:-1", "token_id: 5", "token_id:1_0", "token_id:x", "9" * 20),
    ],
)
def test_case_47_what_int_accepts_and_a_person_does_not_is_text(token: str) -> None:
    assert parse_id(token) is None


def test_text_keys_are_of_the_bytes_where_there_are_bytes() -> None:
    assert text_key("�", bytes([0xE2, 0x80])) == "text:e280"
    assert text_key("é", None) == "text:c3a9"
    assert text_key("", b"") == "text:"


def test_case_5_equal_text_with_different_bytes_stays_two_tokens() -> None:
    content = [entry("true", -0.1, [], bytes=[116, 114, 117, 101])]
    content[0]["top_logprobs"] = [
        {"token": "true", "logprob": -0.1, "bytes": [116, 114, 117, 101]},
        {"token": "true", "logprob": -2.5, "bytes": [0xE2, 0x96, 0x81, 116, 114, 117, 101]},
    ]
    claim = read_response(chat(content, choice={"token_ids": None}, prompt_token_ids=None))
    assert claim.positions is not None
    assert [top.logprob for top in claim.positions[0].top] == [-0.1, -2.5]
    assert claim.positions[0].duplicates == 0
    assert any("case 5" in warning for warning in claim.warnings)


def test_case_24_byte_fallback_text_does_not_disturb_ids() -> None:
    """Several alternatives decode to "" or U+FFFD; in a body spelled as ids only ids count."""
    top = [("token_id:100", -0.2), ("token_id:101", -1.9), ("token_id:102", -3.0)]
    content = [entry("token_id:100", -0.2, top)]
    for one, raw in zip(content[0]["top_logprobs"], ([0xF0], [], []), strict=True):
        one["bytes"] = raw
    claim = read_response(chat(content))
    assert claim.positions is not None
    assert [one.key for one in claim.positions[0].top] == [100, 101, 102]


def test_case_24_equal_text_and_bytes_are_one_entry_and_flagged() -> None:
    content = [entry("�", -0.2, [("�", -0.2), ("�", -1.0), ("a", -2.0)])]
    claim = read_response(chat(content, choice={"token_ids": None}, prompt_token_ids=None))
    assert claim.positions is not None
    assert claim.positions[0].duplicates == 1
    assert [one.logprob for one in claim.positions[0].top] == [-0.2, -2.0]
    assert any("position 0" in warning and "twice" in warning for warning in claim.warnings)


def test_a_number_among_words_is_text() -> None:
    content = [
        entry("The", -0.2, [("The", -0.2), ("4", -2.0)]),
        entry("4", -0.2, [("4", -0.2), ("5", -2.0)]),
        entry("!", -0.2, [("!", -0.2), ("?", -2.0)]),
    ]
    claim = read_response(chat(content, choice={"token_ids": None}, prompt_token_ids=None))
    assert claim.output_ids is None
    assert claim.positions is not None
    assert claim.positions[1].token == "text:34"


def test_case_47_text_in_a_body_of_prefixed_ids_is_refused_with_its_place() -> None:
    content = [
        entry("token_id:5", -0.2, [("token_id:5", -0.2)]),
        entry("token_id:6", -0.2, [("token_id:6", -0.2), ("hello", -2.0)]),
    ]
    with pytest.raises(ClaimError, match=r"content\[1\]\.top_logprobs\[1\].*'hello'") as error:
        read_response(chat(content, choice={"token_ids": None}, prompt_token_ids=None))
    assert error.value.code == "malformed"


@pytest.mark.parametrize("stranger", ["hello", "-1", "EMPTY", "4.5", "1_0"])
def test_case_47_text_in_a_body_of_bare_ids_with_real_bytes_is_refused(stranger: str) -> None:
    """The form of networks that put bare ids into ``token``: the chosen token's bytes are text."""
    content = [
        entry("758", -0.2, [("758", -0.2)], bytes=[84, 104, 101]),
        entry("42", -0.2, [("42", -0.2), (stranger, -2.0)], bytes=[32, 117]),
    ]
    with pytest.raises(ClaimError, match=r"content\[1\]\.top_logprobs\[1\].*not numeric"):
        read_response(chat(content, choice={"token_ids": None}, prompt_token_ids=None))


def test_case_47_a_mixture_without_proof_is_text_and_flagged() -> None:
    content = [
        entry("1", -0.2, [("1", -0.2), ("2", -2.0)]),
        entry("2", -0.2, [("2", -0.2), ("x", -2.0)]),
    ]
    claim = read_response(chat(content, choice={"token_ids": None}, prompt_token_ids=None))
    assert claim.output_ids is None
    assert any("content[1].top_logprobs[1]" in warning for warning in claim.warnings)


@needs_data
def test_recorded_bodies_are_spelled_as_they_were_made() -> None:
    ids = DATA / "kaitakuai-experiments" / "minimax-m27_hi" / "inference.json"
    text = DATA / "gonka-testdata" / "qwq32b_same_model" / "inference.json"
    spelled_ids = read_response(ids.read_bytes())
    spelled_text = read_response(text.read_bytes())
    assert spelled_ids.output_ids is not None
    assert spelled_ids.output_ids[:2] == (758, 3100)
    assert spelled_text.output_ids is None
    assert spelled_text.positions is not None
    assert spelled_text.positions[0].token == "text:" + b"Okay".hex()


@pytest.mark.parametrize("token", ["", "hello", "-1", "token_id:"])
def test_f5_text_that_is_no_id_never_becomes_id_zero(token: str) -> None:
    assert parse_id(token) != 0
    content = [entry(token, -0.2, [(token, -0.2), ("b", -2.0)])]
    claim = read_response(chat(content, choice={"token_ids": None}, prompt_token_ids=None))
    assert claim.output_ids is None


def test_f3_ids_are_spelled_as_the_engine_spells_them() -> None:
    """``token_id:N`` names an id exactly, where decoded text may name two or none."""
    content = [entry("token_id:0", -0.2, [("token_id:0", -0.2), ("token_id:1", -2.0)])]
    claim = read_response(chat(content, choice={"token_ids": None}, prompt_token_ids=None))
    assert claim.output_ids == (0,)
