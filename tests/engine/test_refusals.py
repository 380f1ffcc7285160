"""Bad requests get HTTP 400 that names the field, and harm nothing (faults 4-9; cases 8, 10, 22, 46, 47).

The HTTP layer is the same on both runners; V1 serves here, the fuzz visits both.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.answers import CLOSE, check_evidence, furthest
from tests.engine.servers import MAX_LOGPROBS, MODEL_LENGTH
from tests.engine.talk import CHAT, TEXT, Talk, chat, enforced, text

pytestmark = pytest.mark.parametrize("talk", ["v1"], indirect=True)

GOOD = {"token": "token_id:17"}
T = "enforced_tokens"


def second(token: Any) -> dict[str, Any]:
    """A trace whose second entry is under test: fault 8 was a check of the first one only."""
    return {T: {"tokens": [GOOD, {"token": token}]}}


def with_top(top: Any) -> dict[str, Any]:
    return {T: {"tokens": [GOOD, {**GOOD, "top_tokens": top}]}}


SECOND = f"{T}.tokens[1].token"
TOPS = f"{T}.tokens[1].top_tokens"
OURS: list[tuple[str, dict[str, Any], str]] = [
    ("a string", {T: "42"}, T),
    ("a list", {T: [17]}, T),
    ("no tokens", {T: {}}, f"{T}.tokens"),
    ("tokens a string", {T: {"tokens": "17"}}, f"{T}.tokens"),
    ("empty", {T: {"tokens": []}}, f"{T}.tokens"),
    ("entry a number", {T: {"tokens": [GOOD, 17]}}, f"{T}.tokens[1]"),
    ("entry empty", {T: {"tokens": [GOOD, {}]}}, SECOND),
    ("unknown beside tokens", {T: {"tokens": [GOOD], "mode": 1}}, f"{T}.mode"),
    ("unknown in entry", {T: {"tokens": [{**GOOD, "logprob": 0}]}}, f"{T}.tokens[0].logprob"),
    ("case 47 text", second("hello"), SECOND),
    ("case 47 minus one", second("-1"), SECOND),
    ("case 47 top token text", with_top(["x"]), f"{TOPS}[0]"),
    ("case 46 abc", second("abc"), SECOND),
    ("case 46 out of range", second("99999999"), SECOND),
    ("case 46 negative", second(-1), SECOND),
    ("case 46 float", second(1.5), SECOND),
    ("case 46 whole float", second(17.0), SECOND),
    ("fault 6 first id outside", second("token_id:512"), SECOND),
    ("fault 7 prefixed minus one", second("token_id:-1"), SECOND),
    ("huge", second(10**30), SECOND),
    ("huge text", second("9" * 400), SECOND),
    ("bool", second(True), SECOND),
    ("null", second(None), SECOND),
    ("object", second({"id": 1}), SECOND),
    ("list token", second([17]), SECOND),
    ("empty text", second(""), SECOND),
    ("underscore", second("1_0"), SECOND),
    ("plus", second("+5"), SECOND),
    ("space", second(" 5"), SECOND),
    ("line end", second("5\n"), SECOND),
    ("other digits", second("\u0665"), SECOND),
    ("prefixed space", second("token_id: 5"), SECOND),
    ("fault 5 text of no token", {T: {"tokens": [{"token": ""}], "allow_text": True}},
     f"{T}.tokens[0].token"),
    ("fault 5 text of many tokens",
     {T: {"tokens": [{"token": "many tokens"}], "allow_text": True}}, f"{T}.tokens[0].token"),
    ("allow_text a number", {T: {"tokens": [GOOD], "allow_text": 1}}, f"{T}.allow_text"),
    ("top tokens a string", with_top("17"), TOPS),
    ("top tokens bool", with_top([True]), f"{TOPS}[0]"),
    ("top tokens outside", with_top(["17", "512"]), f"{TOPS}[1]"),
    ("fault 9 top tokens", with_top(["17"] * 65), TOPS),
    ("fault 9 positions", {T: enforced([17] * 32_769)}, f"{T}.tokens"),
    ("longer than the context", {T: enforced([17] * MODEL_LENGTH)}, T),
    ("no room beside the prompt", {T: enforced([17] * (MODEL_LENGTH - 2))}, T),
    ("both fields", {T: enforced([17]), "enforced_str": "a"}, "enforced_str"),
    ("text a number", {"enforced_str": 5}, "enforced_str"),
    ("text empty", {"enforced_str": ""}, "enforced_str"),
    ("text too long", {"enforced_str": "word " * MODEL_LENGTH}, "enforced_str"),
    ("half a character", {"enforced_str": "\ud800"}, "enforced_str"),
    ("half a character as token", {T: {"tokens": [{"token": "\ud800"}], "allow_text": True}},
     f"{T}.tokens[0].token"),
    ("mode unknown", {"logprobs_mode": "cooked"}, "logprobs_mode"),
    ("mode a number", {"logprobs_mode": 1}, "logprobs_mode"),
    ("case 1 a logits mode", {"logprobs_mode": "processed_logits"}, "logprobs_mode"),
    ("several answers", {T: enforced([17]), "n": 2}, "n"),
    ("prompt scores", {T: enforced([17]), "prompt_logprobs": 1}, "prompt_logprobs"),
    ("echo", {T: enforced([17]), "echo": True}, "echo"),
    ("beams", {T: enforced([17]), "use_beam_search": True}, "use_beam_search"),
    ("reserved name", {"vllm_xargs": {"assay_trace": [17]}}, "vllm_xargs.assay_trace"),
    ("reserved name beside", {T: enforced([17]), "vllm_xargs": {"assay_key": "x"}},
     "vllm_xargs.assay_key"),
]  # fmt: skip


@pytest.mark.parametrize("make", [chat, text])
@pytest.mark.parametrize(("fields", "param"), [c[1:] for c in OURS], ids=[c[0] for c in OURS])
def test_a_bad_field_is_named(talk: Talk, make: Any, fields: dict[str, Any], param: str) -> None:
    """Cases 46 and 47: each form by itself, on both routes, with the index of what is wrong."""
    error = talk.refused(make(**fields))
    assert error["param"] == param
    assert error["type"] == "BadRequestError"


@pytest.mark.parametrize("stream", [False, True])
def test_a_stream_is_refused_with_a_status_too(talk: Talk, stream: bool) -> None:
    error = talk.refused(chat(stream=stream, **second("-1")))
    assert error["param"] == SECOND


def test_several_prompts_are_refused(talk: Talk) -> None:
    error = talk.refused({**text(), "prompt": ["a", "b"], T: enforced([17])})
    assert error["param"] == "prompt"


@pytest.mark.parametrize("asked", [MAX_LOGPROBS + 1, 50])
def test_case_8_more_alternatives_than_the_server_gives(talk: Talk, asked: int) -> None:
    """Case 8: 21 and 50 over the default of 20 are refused, never filled up."""
    assert str(asked) in talk.refused(chat(max_tokens=1) | {"top_logprobs": asked})["message"]
    assert talk.refused(text(max_tokens=1, logprobs=asked))["message"]
    replay = {"top_logprobs": asked, T: enforced([17])}
    assert talk.refused(chat() | replay)["message"]
    most = talk.ask(chat() | replay | {"top_logprobs": MAX_LOGPROBS})
    assert len(most.tops[0]) == MAX_LOGPROBS
    assert min(most.tops[0].values()) > -100.0


def test_case_10_echo_verbatim_and_with_enforced_tokens(talk: Talk) -> None:
    """Case 10: the reported body is answered or refused, never a broken body; ours refuses echo."""
    body = {
        "model": "model",
        "prompt": "correct horse battery staple",
        "echo": 1,
        "logprobs": 1,
        "temperature": 1,
        "top_k": 1,
    }
    response = talk.post(body)
    assert response.status_code in (200, 400)
    assert response.json()
    assert talk.refused({**body, T: enforced([17])})["param"] == "echo"


def test_case_22_null_top_logprobs(talk: Talk, runner: str) -> None:
    """Case 22: exactly the reported fields with enforced tokens: chosen numbers, no alternatives."""
    body = {
        "model": "model",
        "messages": [{"role": "user", "content": "hi"}],
        "logprobs": True,
        "top_logprobs": None,
        "return_tokens_as_token_ids": True,
        T: enforced([17, 18, 19]),
    }
    response = talk.post(body)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 200:
        answer = talk.ask(body)
        assert answer.ids == [17, 18, 19]
        assert check_evidence(answer, runner=runner)["complete"] is True


def test_nothing_of_this_harms_the_engine(talk: Talk) -> None:
    """Cases 22, 46 and 47: an ordinary request before all of them equals the one after."""
    ordinary = chat(max_tokens=12, temperature=0.7, seed=1)
    before = talk.ask(ordinary)
    for _, fields, _ in OURS:
        assert talk.post(chat(**fields)).status_code == 400
    for path in (CHAT, TEXT):
        assert talk.http.post(path, content=b'{"enforced_tokens": {').status_code == 400
        assert talk.post([], path).status_code == 400
    after = talk.ask(ordinary)
    assert after.ids == before.ids
    assert furthest(before, after) <= CLOSE
    assert talk.at_rest()
