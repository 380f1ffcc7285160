"""The text of an answer against what its ids decode to."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.claims.account_claims import EOS, checks, claim, outcome
from tests.claims.bodies import completion

from assay.claims.account import Known
from assay.claims.account.spelled import is_spelled
from assay.claims.account.text import decodable_ids
from assay.claims.claim import ToolCall
from assay.claims.read_json import read_response


def text(
    said: str | None,
    decoded: str | None,
    request: dict[str, Any] | None = None,
    **changes: Any,
) -> str:
    written = claim(request, output_text=said, **changes)
    return outcome("text", written, Known(decoded_output=decoded))


def test_edited_text_fails_and_says_where() -> None:
    check = checks(claim(output_text="one TWO"), Known(decoded_output="one two"))["text"]
    assert (check.outcome, check.code) == ("fail", "text_mismatch")
    assert "character 4" in check.reason


@pytest.mark.parametrize(
    ("said", "decoded", "expected"),
    [
        ("one two", "one two", "pass"),
        ("one two", "one two<|im_end|>", "pass"),
        ("one two", "<|assistant|>one<|sep|> two</s>", "pass"),
        ("one<|im_end|>", "one<|im_end|>", "pass"),
        ("one", " one", "pass"),
        ("one\ufffd", "one", "pass"),
        ("one", "one\ufffd\ufffd", "pass"),
        ("a <b>c</b>", "a <b>c</b><|im_end|>", "pass"),
        ("one", "one two", "fail"),
        ("one two three", "one two", "fail"),
        ("", "one", "fail"),
        ("", "", "pass"),
        ("don't", "do n't", "not_available"),
        ("a\ufffdb", "a\ufffd\ufffdb", "not_available"),
        (None, "one", "not_available"),
        ("one", None, "not_available"),
    ],
)
def test_text_against_ids(said: str | None, decoded: str | None, expected: str) -> None:
    assert text(said, decoded) == expected


def test_text_up_to_a_stop_string() -> None:
    stops: dict[str, Any] = {"stop": ["END"]}
    assert text("one ", "one END", stops) == "pass"
    assert text("one END", "one END.", {**stops, "include_stop_str_in_output": True}) == "pass"
    assert text("one ", "one END", {}) == "fail"
    assert text("one ", "one END", stops, finish_reason="length") == "fail"
    assert text("on", "one END", stops) == "fail"
    assert text("one END two ", "one END two END", stops) == "fail"
    assert text("one END two ", "one END two END", {**stops, "min_tokens": 4}) == "pass"


def test_reasoning_that_a_parser_took_away() -> None:
    thought = "so it is</think>\n\nforty"
    assert text("forty", thought) == "not_available"
    assert text("forty", "so it is forty") == "fail"
    assert text("forty", thought, reasoning_text="so it is") == "pass"
    assert text("fifty", thought, reasoning_text="so it is") == "not_available"
    assert text(None, thought, reasoning_text="so it is") == "pass"


def test_a_text_that_a_tool_parser_may_have_changed() -> None:
    tools = {"tools": [{"type": "function"}]}
    assert text("one", "one <tool_call>{}</tool_call>", tools) == "not_available"
    assert text("one", "one two", {**tools, "tool_choice": "none"}) == "fail"
    called = {"tool_calls": (ToolCall(name="f"),)}
    assert text("one", "one <tool_call>f", **called) == "pass"
    assert text(None, "<tool_call>f", **called) == "not_available"


def test_a_completion_has_no_parsers_to_blame() -> None:
    written = read_response(completion(), {})
    assert outcome("text", written, Known(decoded_output="one two")) == "pass"
    assert outcome("text", written, Known(decoded_output="x</think>one two")) == "fail"
    echoed = read_response(completion(), {"echo": True})
    assert outcome("text", echoed, Known(decoded_output="two")) == "not_available"


def test_the_end_token_is_not_part_of_the_text() -> None:
    assert decodable_ids(claim(), (EOS,)) == (100, 101)
    assert decodable_ids(claim(), (7,)) == (100, 101, EOS)
    assert decodable_ids(claim({"stop_token_ids": [EOS]}), None) == (100, 101)
    assert decodable_ids(claim(finish_reason="length"), (EOS,)) == (100, 101, EOS)
    kept = claim({"include_stop_str_in_output": True})
    assert decodable_ids(kept, (EOS,)) == (100, 101, EOS)
    assert decodable_ids(claim(output_ids=None), (EOS,)) == ()
    assert decodable_ids(claim(output_ids=()), (EOS,)) == ()


def test_a_hostile_output_of_special_tokens_only_has_no_outcome() -> None:
    tags = "<a>" * 30_000
    assert is_spelled(tags, tags) is True
    assert is_spelled("<br>" * 100, "<br>" * 100 + "<|im_end|>") is True
    assert is_spelled("", "<a>" * 50) is True
    assert is_spelled("<a>" * 29_999, tags) is None
    assert is_spelled("b", tags) is False
    assert text("<a>" * 29_999, tags) == "not_available"


TOWN = '{"city": "Québec", "days": 3, "when": null, "metric": true}'


def call(arguments: str, decoded: str | None, name: str | None = "weather", **changes: Any) -> str:
    asked = claim(tool_calls=(ToolCall(name=name, arguments=arguments),), **changes)
    check = checks(asked, Known(decoded_output=decoded))["tool_calls"]
    assert check.code == "tool_call_mismatch"
    return check.outcome


@pytest.mark.parametrize(
    "decoded",
    [
        f'<tool_call>\n{{"name": "weather", "arguments": {TOWN}}}\n</tool_call>',
        '{"name":"weather","parameters":{"city":"Qu\\u00e9bec","days":3,"when":null,"metric":true}}',
        '{"name": "weather", "arguments": {"metric": true, "days": 3.0, "city": "Québec",'
        ' "when": null}}',
        "<function=weather><parameter=city>\nQuébec\n</parameter><parameter=days>3</parameter>"
        "<parameter=when>null</parameter><parameter=metric>true</parameter></function>",
        "[weather(city='Québec', days=3, when=None, metric=True)]",
    ],
    ids=["json", "escaped", "other order", "xml", "python"],
)
def test_a_tool_call_in_the_forms_that_models_write(decoded: str) -> None:
    assert call(TOWN, decoded) == "pass"
    assert call(TOWN.replace("Québec", "Quebec"), decoded) == "fail"
    assert call(TOWN.replace("3", "4"), decoded) == "fail"
    assert call(TOWN, decoded, name="climate") == "fail"
    assert call("{}", decoded) == "pass"


def test_values_that_change_places_show_where_the_call_is_json() -> None:
    decoded = '{"name": "weather", "arguments": {"from": "Rome", "to": "Oslo"}}'
    assert call('{"to": "Oslo", "from": "Rome"}', decoded) == "pass"
    assert call('{"from": "Oslo", "to": "Rome"}', decoded) == "not_available"
    assert call('{"from": "Oslo", "to": "Bonn"}', decoded) == "fail"
    numbers = '{"name": "weather", "arguments": {"from": 3e0, "to": -4.50}}'
    assert call('{"to": -4.5, "from": 3}', numbers) == "pass"
    assert call('{"to": 3, "from": -4.5}', numbers) == "not_available"
    assert call('{"to": 5, "from": 3}', numbers) == "fail"


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        ("https://a/b", 'weather {"u": "https:\\/\\/a\\/b", }'),
        ("it's", 'weather {"u": "it\\u0027s", }'),
        ("it's", "weather(u='it\\'s')"),
        ('a\nb\t"c"', 'weather {"u": "a\\nb\\t\\"c\\"", }'),
        ("a\nb", 'weather {"arguments": "{\\"u\\": \\"a\\\\nb\\"}"}'),
        ("\U0001f600", 'weather {"u": "\\ud83d\\ude00", }'),
        ("a & b", "weather <parameter=u>a &amp; b</parameter>"),
        (10**400, "weather <parameter=u>1" + "0" * 400 + "</parameter>"),
    ],
    ids=["slash", "unicode", "python", "newline", "string in a string", "halves", "xml", "large"],
)
def test_escapes_are_no_edits(value: Any, decoded: str) -> None:
    assert call(json.dumps({"u": value}), decoded) != "fail"
    assert call(json.dumps({"u": "other"}), decoded) == "fail"


def test_the_name_that_the_caller_chose_is_not_written_by_the_model() -> None:
    chosen = claim({"tool_choice": {"type": "function", "function": {"name": "weather"}}})
    asked = chosen.model_copy(update={"tool_calls": (ToolCall(name="weather", arguments=TOWN),)})
    assert outcome("tool_calls", asked, Known(decoded_output=TOWN)) == "pass"
    assert call(TOWN, TOWN) == "fail"


@pytest.mark.parametrize(
    ("arguments", "decoded"),
    [
        (TOWN, None),
        ('{"city": "Qu', "weather Rome"),
        (TOWN, "weather \ufffd"),
        ("[" + ",".join(map(str, range(2000))) + "]", "weather"),
        ('{"a": NaN}', "weather"),
        ("[" * 5000, "weather"),
    ],
    ids=["not decoded", "cut off", "no text", "too many", "nan", "deep"],
)
def test_tool_calls_without_an_outcome(arguments: str, decoded: str | None) -> None:
    assert call(arguments, decoded) == "not_available"


def test_arguments_that_were_cut_off_stand_as_they_are() -> None:
    assert (
        call('{"city": "Qu', '<tool_call>{"name": "weather", "arguments": {"city": "Qu') == "pass"
    )
    assert outcome("tool_calls", claim(), Known(decoded_output="x")) == "not_available"
