"""Bare decimals instead of ``token_id:123``, and nothing else changed."""

from __future__ import annotations

import json

from assay.node.bare_ids import BareEvents, bare_json

CHAT = {
    "choices": [
        {
            "message": {"content": "he said token_id:5"},
            "logprobs": {
                "content": [
                    {
                        "token": "token_id:5",
                        "logprob": -0.5,
                        "top_logprobs": [{"token": "token_id:5"}, {"token": "token_id:77"}],
                    }
                ]
            },
        }
    ]
}
TEXT = {
    "choices": [
        {
            "text": "token_id:9",
            "logprobs": {
                "tokens": ["token_id:1", "plain"],
                "top_logprobs": [{"token_id:1": -0.1, "token_id:2": -3.0}, None],
            },
        }
    ]
}


def test_chat_ids_become_bare_and_text_stays() -> None:
    choice = json.loads(bare_json(json.dumps(CHAT).encode()))["choices"][0]
    (entry,) = choice["logprobs"]["content"]
    assert entry["token"] == "5"
    assert [top["token"] for top in entry["top_logprobs"]] == ["5", "77"]
    assert choice["message"]["content"] == "he said token_id:5"


def test_completion_ids_become_bare_and_text_stays() -> None:
    choice = json.loads(bare_json(json.dumps(TEXT).encode()))["choices"][0]
    assert choice["logprobs"]["tokens"] == ["1", "plain"]
    assert choice["logprobs"]["top_logprobs"] == [{"1": -0.1, "2": -3.0}, None]
    assert choice["text"] == "token_id:9"


def test_what_has_no_ids_comes_back_byte_for_byte() -> None:
    for body in (b'{"a" : 1}', b"not json token_id:5", b'["token_id:5"]', b'{"x": "token_id:5"}'):
        assert bare_json(body) == body


def test_events_are_rewritten_however_the_stream_is_cut() -> None:
    event = b"data: " + json.dumps(CHAT).encode() + b"\n\n"
    stream = event + b": ping\n\n" + event + b"data: [DONE]\n\n"
    whole = BareEvents()
    wanted = whole.feed(stream) + whole.rest()
    assert b'"token":"5"' in wanted
    assert wanted.endswith(b"data: [DONE]\n\n")
    for size in (1, 7, 64):
        cut = BareEvents()
        pieces = [cut.feed(stream[i : i + size]) for i in range(0, len(stream), size)]
        assert b"".join(pieces) + cut.rest() == wanted


def test_the_end_of_a_broken_stream_is_not_lost() -> None:
    events = BareEvents()
    assert events.feed(b"data: half") == b""
    assert events.rest() == b"data: half"
