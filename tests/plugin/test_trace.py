"""Spec replay section 1: what the request fields may hold, and how everything else is refused.

Fault 2 (a field dropped by the request model) is held where the models are: ``test_mode.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.errors import RequestError
from assay.plugin.constants import MAX_TOP_TOKENS, MAX_TRACE_POSITIONS
from assay.plugin.trace import Trace, read_mode, read_trace, token_id

VOCAB = 512

WORDS = {"city": [7], "two words": [8, 9], "": []}


def encode(text: str) -> list[int]:
    """A tokenizer with one known word; other text is one id a character."""
    return WORDS.get(text, [ord(char) % VOCAB for char in text])


def tokens(*entries: Any, **beside: Any) -> dict[str, Any]:
    return {"enforced_tokens": {"tokens": list(entries), **beside}}


def read(fields: dict[str, Any]) -> Trace | None:
    return read_trace(fields, VOCAB, encode)


def refused(fields: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(fields)
    return caught.value


GOOD = {"token": "token_id:5"}


@pytest.mark.parametrize(
    ("spelling", "number"),
    [("token_id:0", 0), ("token_id:511", 511), ("17", 17), ("0017", 17), (42, 42), ("0", 0)],
)
def test_a_token_is_an_id_with_prefix_a_bare_decimal_or_a_number(
    spelling: object, number: int
) -> None:
    assert read(tokens({"token": spelling})) == Trace((number,), ())


def test_top_tokens_of_all_positions_are_kept_flat_in_order() -> None:
    trace = read(
        tokens(
            {"token": "1", "top_tokens": ["token_id:3", "2"]},
            {"token": "4", "top_tokens": None},
            {"token": "5", "top_tokens": []},
            {"token": "6", "top_tokens": ["0"]},
        )
    )
    assert trace == Trace((1, 4, 5, 6), (3, 2, 0))


def test_neither_field_is_no_replay() -> None:
    assert read({}) is None
    assert read({"enforced_tokens": None, "enforced_str": None}) is None


# A string int() accepts and a person does not is text: 1_0, a sign, white space, other digits.
# Case 47's forms: decoded text, -1, and text among the top tokens.
TEXT = ["hello", "-1", "+1", "1_0", " 1", "1 ", "1\n", "١٢", "１２", "²", "", "0x10", "1.0", "1e2"]


@pytest.mark.parametrize("text", TEXT)
@pytest.mark.parametrize("prefix", ["", "token_id:"])
def test_f04_case47_text_is_named_as_a_non_numeric_token_with_its_index(
    text: str, prefix: str
) -> None:
    """F4: text never crashes. F8: the second position is checked like the first."""
    error = refused(tokens(GOOD, {"token": prefix + text}))
    assert error.param == "enforced_tokens.tokens[1].token"
    assert "non-numeric token" in str(error)


def test_case47_a_text_among_the_top_tokens_is_refused_with_both_indices() -> None:
    error = refused(tokens(GOOD, {"token": "42", "top_tokens": ["1", "x"]}))
    assert error.param == "enforced_tokens.tokens[1].top_tokens[1]"
    assert "non-numeric token" in str(error)


@pytest.mark.parametrize("number", [512, "512", "token_id:512", 99999999, "9" * 19])
def test_f06_case46c_an_id_outside_the_vocabulary_is_refused(number: object) -> None:
    error = refused(tokens(GOOD, GOOD, {"token": number}))
    assert error.param == "enforced_tokens.tokens[2].token"
    assert "outside this model's vocabulary [0, 512)" in str(error)


def test_a_decimal_longer_than_any_id_is_refused_without_reading_it_as_a_number() -> None:
    assert refused(tokens({"token": "9" * 5000})).param == "enforced_tokens.tokens[0].token"


def test_f07_case46d_minus_one_as_a_number_is_out_of_range() -> None:
    """F7: -1 is the internal mark of a row that is not forced; a client cannot send it."""
    error = refused(tokens({"token": -1}))
    assert error.param == "enforced_tokens.tokens[0].token"
    assert "outside" in str(error)
    assert refused(tokens({"token": 3, "top_tokens": [-1]})).param.endswith("top_tokens[0]")


@pytest.mark.parametrize("value", [5.0, 1.5, True, False, None, [1], {"id": 1}, float("nan")])
def test_case46e_floats_booleans_and_other_types_are_no_token(value: object) -> None:
    error = refused(tokens({"token": value}))
    assert error.param == "enforced_tokens.tokens[0].token"
    top = refused(tokens({"token": "1", "top_tokens": [value]}))
    assert top.param == "enforced_tokens.tokens[0].top_tokens[0]"


@pytest.mark.parametrize("bad_at", [0, 1, 7])
def test_f08_every_position_is_checked(bad_at: int) -> None:
    entries = [dict(GOOD) for _ in range(8)]
    entries[bad_at] = {"token": "word"}
    assert refused(tokens(*entries)).param == f"enforced_tokens.tokens[{bad_at}].token"


def test_f09_the_longest_trace_is_read_and_one_more_is_refused() -> None:
    entries = [GOOD] * MAX_TRACE_POSITIONS
    assert MAX_TRACE_POSITIONS == 32_768
    trace = read(tokens(*entries))
    assert trace is not None
    assert len(trace.tokens) == 32_768
    error = refused(tokens(*entries, GOOD))
    assert error.param == "enforced_tokens.tokens"
    assert "32769" in str(error)


def test_f09_the_most_top_tokens_are_read_and_one_more_is_refused() -> None:
    assert MAX_TOP_TOKENS == 64
    trace = read(tokens({"token": "1", "top_tokens": ["2"] * 64}))
    assert trace is not None
    assert len(trace.top_ids) == 64
    error = refused(tokens(GOOD, {"token": "1", "top_tokens": ["2"] * 65}))
    assert error.param == "enforced_tokens.tokens[1].top_tokens"


def test_f09_a_long_enforced_str_is_refused_at_the_same_limit() -> None:
    trace = read({"enforced_str": "a" * MAX_TRACE_POSITIONS})
    assert trace is not None
    assert len(trace.tokens) == MAX_TRACE_POSITIONS
    assert refused({"enforced_str": "a" * (MAX_TRACE_POSITIONS + 1)}).param == "enforced_str"


def test_f09_a_huge_enforced_str_is_refused_before_it_is_tokenised() -> None:
    def never(text: str) -> list[int]:
        raise AssertionError("tokenised")

    with pytest.raises(RequestError, match="too long"):
        read_trace({"enforced_str": "a" * (MAX_TRACE_POSITIONS * 64 + 1)}, VOCAB, never)


def test_enforced_str_is_tokenised_as_a_whole() -> None:
    assert read({"enforced_str": "two words"}) == Trace((8, 9), ())


@pytest.mark.parametrize("value", ["", 5, ["a"], {"a": 1}, False, 0])
def test_enforced_str_must_be_text_that_gives_tokens(value: object) -> None:
    assert refused({"enforced_str": value}).param == "enforced_str"


def test_both_fields_at_once_are_refused() -> None:
    error = refused({**tokens(GOOD), "enforced_str": "city"})
    assert error.param == "enforced_str"
    assert "exclude each other" in str(error)


def test_f05_allowed_text_resolves_to_its_one_id() -> None:
    trace = read(tokens({"token": "city", "top_tokens": ["city", "3"]}, allow_text=True))
    assert trace == Trace((7,), (7, 3))


@pytest.mark.parametrize(("text", "count"), [("two words", 2), ("", 0), ("-1", 2), ("1_0", 3)])
def test_f05_allowed_text_of_none_or_several_ids_is_an_error_with_its_index(
    text: str, count: int
) -> None:
    """F5: never id 0. The spellings ``int()`` would take are text here too."""
    error = refused(tokens(GOOD, {"token": text}, allow_text=True))
    assert error.param == "enforced_tokens.tokens[1].token"
    assert f"is {count} tokens here" in str(error)


def test_f05_a_broken_prefixed_id_is_no_text_even_where_text_is_allowed() -> None:
    error = refused(tokens({"token": "token_id:city"}, allow_text=True))
    assert "non-numeric token" in str(error)


@pytest.mark.parametrize("word_ids", [[VOCAB], [-1]])
def test_f06_text_resolved_to_an_id_the_model_lacks_is_refused(word_ids: list[int]) -> None:
    """A tokenizer can hold more ids than the model: such a word would take the device down."""
    with pytest.raises(RequestError, match="outside") as caught:
        read_trace(tokens({"token": "x"}, allow_text=True), VOCAB, lambda _: word_ids)
    assert caught.value.param == "enforced_tokens.tokens[0].token"


def test_f06_enforced_str_resolved_to_an_id_the_model_lacks_is_refused() -> None:
    with pytest.raises(RequestError, match="outside") as caught:
        read_trace({"enforced_str": "xy"}, VOCAB, lambda _: [3, VOCAB])
    assert caught.value.param == "enforced_str"


@pytest.mark.parametrize("value", [1, "true", None, [], 0])
def test_allow_text_must_be_a_boolean(value: object) -> None:
    assert refused(tokens(GOOD, allow_text=value)).param == "enforced_tokens.allow_text"


@pytest.mark.parametrize("value", ["x", 5, [], [GOOD], True, 0.5])
def test_enforced_tokens_must_be_an_object(value: object) -> None:
    assert refused({"enforced_tokens": value}).param == "enforced_tokens"


@pytest.mark.parametrize("value", [None, "5", {"token": "5"}, 5, []])
def test_tokens_must_be_a_list_that_holds_something(value: object) -> None:
    assert refused({"enforced_tokens": {"tokens": value}}).param == "enforced_tokens.tokens"
    assert refused({"enforced_tokens": {}}).param == "enforced_tokens.tokens"


@pytest.mark.parametrize("value", [None, "5", 5, [5]])
def test_a_position_must_be_an_object(value: object) -> None:
    assert refused(tokens(GOOD, value)).param == "enforced_tokens.tokens[1]"


def test_a_position_must_have_a_token() -> None:
    assert refused(tokens(GOOD, {"top_tokens": []})).param == "enforced_tokens.tokens[1].token"


@pytest.mark.parametrize("value", ["1", {"1": 2}, 5, False])
def test_top_tokens_must_be_a_list(value: object) -> None:
    error = refused(tokens({"token": "1", "top_tokens": value}))
    assert error.param == "enforced_tokens.tokens[0].top_tokens"


def test_f02_unknown_fields_are_named_and_not_dropped() -> None:
    assert refused(tokens(GOOD, tokenz=1)).param == "enforced_tokens.tokenz"
    error = refused(tokens(GOOD, {"token": "1", "logprob": -0.5}))
    assert error.param == "enforced_tokens.tokens[1].logprob"
    assert refused(tokens({"token": "1", "a b": 1})).param == "enforced_tokens.tokens[0]"


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", None])
def test_the_two_modes_are_read(mode: str | None) -> None:
    assert read_mode({"logprobs_mode": mode} if mode else {}) == mode


@pytest.mark.parametrize(
    "mode",
    ["raw_logits", "processed_logits", "RAW_LOGPROBS", "", 1, True, [], {}, ["raw_logprobs"]],
)
def test_case1_any_other_mode_is_refused(mode: object) -> None:
    """Case 1: a ``*_logits`` mode must never be read as log probabilities."""
    with pytest.raises(RequestError) as caught:
        read_mode({"logprobs_mode": mode})
    assert caught.value.param == "logprobs_mode"


@given(
    st.lists(
        st.tuples(
            st.integers(0, VOCAB - 1),
            st.sampled_from([str, "token_id:{}".format, int, "00{}".format]),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_every_spelling_of_ids_is_read_back(pairs: list[tuple[int, Any]]) -> None:
    trace = read(tokens(*({"token": spell(number)} for number, spell in pairs)))
    assert trace == Trace(tuple(number for number, _ in pairs), ())


@given(st.text(max_size=8))
def test_a_string_is_an_id_only_if_it_is_plain_ascii_digits(text: str) -> None:
    plain = text != "" and all(char in "0123456789" for char in text)
    if plain and int(text) < VOCAB:
        assert token_id(text, VOCAB, "p", None) == int(text)
    else:
        with pytest.raises(RequestError):
            token_id(text, VOCAB, "p", None)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["tokens", "token", "top_tokens", "allow_text"]) | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
entry_like = st.fixed_dictionaries(
    {"token": json_values}, optional={"top_tokens": st.lists(json_values, max_size=3) | json_values}
)
near_misses = st.fixed_dictionaries(
    {"tokens": st.lists(entry_like | json_values, max_size=4) | json_values},
    optional={"allow_text": json_values},
)


@given(st.none() | near_misses | json_values, st.none() | json_values, json_values)
def test_any_json_is_read_or_refused_by_name(enforced: Any, text: Any, mode: Any) -> None:
    """Nothing but a RequestError that names one of our fields; what is accepted is in range."""
    fields = {"enforced_tokens": enforced, "enforced_str": text, "logprobs_mode": mode}
    try:
        trace = read(fields)
    except RequestError as error:
        assert error.param.startswith(("enforced_tokens", "enforced_str"))
    else:
        assert trace is None or (trace.tokens and all(0 <= id < VOCAB for id in trace.tokens))
        assert trace is None or all(0 <= id < VOCAB for id in trace.top_ids)
    try:
        assert read_mode(fields) in (None, "raw_logprobs", "processed_logprobs")
    except RequestError as error:
        assert error.param == "logprobs_mode"
