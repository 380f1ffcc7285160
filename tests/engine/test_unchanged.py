"""With the plugin, a user who sends none of our fields gets what stock vLLM answers, to the byte."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine import servers
from tests.engine.talk import CHAT, TEXT, Talk, chat, text
from tests.support.server import Server, client

pytestmark = pytest.mark.parametrize("talk", ["v1"], indirect=True)

OUR_ROUTES = ("/v1/assay/status", "/v1/assay/prefill")
POW_ROUTES = "/api/v1/pow/"
# What no two answers share, with the plugin or without: random ids and the time of day. The
# replacement keeps the length, so that Content-Length is compared as it is.
VARIES = re.compile(rb'(?<=chatcmpl-)[0-9a-f]{16}|(?<=cmpl-)[0-9a-f]{16}'
                    rb'|(?<=chatcmpl-tool-)[0-9a-f]+|(?<=modelperm-)[0-9a-f]+'
                    rb'|(?<="created":)\d{10}')  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["paris", "rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SHAPE = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["yes", "no"]}}}
SAMPLED = {"max_tokens": 10, "temperature": 0.8, "seed": 6}
PLAIN = {"model": "model", "messages": [{"role": "user", "content": "hi"}], **SAMPLED}

ORDINARY: dict[str, tuple[str, Any]] = {
    "chat": (CHAT, PLAIN),
    "chat with logprobs": (CHAT, chat(**SAMPLED)),
    "chat token text": (CHAT, {**PLAIN, "logprobs": True, "top_logprobs": 2}),
    "chat stream": (CHAT, {**PLAIN, "stream": True}),
    "chat stream everything": (
        CHAT,
        chat(stream=True, stream_options={"include_usage": True}, **SAMPLED),
    ),
    "chat two answers": (CHAT, {**PLAIN, "n": 2}),
    "chat tools": (CHAT, {**PLAIN, "tools": [TOOL]}),
    "chat tool wanted": (CHAT, {**PLAIN, "tools": [TOOL], "tool_choice": "required"}),
    "chat schema": (CHAT, {**PLAIN, "response_format": SHAPE}),
    "chat several turns": (
        CHAT,
        {
            **PLAIN,
            "messages": [
                {"role": "system", "content": "Short."},
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": "c"},
            ],
        },
    ),
    "chat cut settings": (CHAT, {**PLAIN, "top_k": 3, "min_p": 0.1, "stop": ["e"]}),
    "chat unknown field": (CHAT, {**PLAIN, "no_such_field": {"a": 1}}),
    "chat other xargs": (CHAT, {**PLAIN, "vllm_xargs": {"mine": 1}}),
    "chat null fields of ours": (CHAT, {**PLAIN, "enforced_tokens": None, "logprobs_mode": None}),
    "chat prompt scores": (CHAT, {**PLAIN, "prompt_logprobs": 2}),
    "text": (TEXT, text(**SAMPLED)),
    "text stream": (TEXT, text(stream=True, **SAMPLED)),
    "text echo": (TEXT, text(echo=True, **SAMPLED)),
    "text two prompts": (TEXT, {**text(**SAMPLED), "prompt": ["a", "b"]}),
    "text ids": (TEXT, text([7, 8, 9], **SAMPLED)),
    # What `assay verify --path prefill` sends to a plain server.
    "text scored": (
        TEXT,
        {"model": "model", "prompt": [*range(7, 60)], "prompt_logprobs": 20}
        | {"max_tokens": 1, "temperature": 0},
    ),
    "tokenize": ("/tokenize", {"model": "model", "messages": PLAIN["messages"]}),
    "error no messages": (CHAT, {"model": "model"}),
    "error no body": (CHAT, None),
    "error a list": (CHAT, []),
    "error model": (CHAT, {**PLAIN, "model": "none"}),
    "error type": (CHAT, {**PLAIN, "temperature": "warm"}),
    "error range": (CHAT, {**PLAIN, "temperature": -1}),
    "error too long": (TEXT, text([7] * (servers.MODEL_LENGTH + 1))),
    "error top": (CHAT, {**PLAIN, "top_logprobs": 2}),
    "error stream": (CHAT, {**PLAIN, "stream": True, "top_p": 7}),
}
STREAM_TRIES = 6
READS = ("/v1/models", "/version", "/health", "/v1/no_such_route", CHAT)


def collect(http: httpx.Client) -> Iterator[tuple[str, tuple[int, list[Any], bytes]]]:
    """Status, headers but for the date, and body of every ordinary exchange."""
    for name, (path, body) in ORDINARY.items():
        # vLLM joins chunks that a reader is late for, so how many a stream has depends on the
        # load of the machine: of a few tries the one with the most chunks is the whole one.
        tries = [
            seen(http.post(path, json=body)) for _ in range(STREAM_TRIES if "stream" in name else 1)
        ]
        yield name, max(tries, key=lambda answer: answer[2].count(b"data: "))
    for path in READS:
        yield f"GET {path}", seen(http.get(path))
    yield (
        "not JSON",
        seen(http.post(CHAT, content=b"{", headers={"content-type": "application/json"})),
    )
    yield "not said to be JSON", seen(http.post(CHAT, content=b"{}"))


def seen(response: httpx.Response) -> tuple[int, list[Any], bytes]:
    headers = [(k, v) for k, v in response.headers.multi_items() if k != "date"]
    same_length = VARIES.sub(lambda found: b"_" * len(found[0]), response.content)
    return response.status_code, headers, same_length


@pytest.fixture(scope="module")
def stock(
    tiny_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a server without the plugin answers: exchanges and OpenAPI schema."""
    spec = servers.tight_v1(tiny_path, plugin=False)
    log = tmp_path_factory.mktemp("stock") / "stock.log"
    with Server(spec, log) as server, client(server) as http:
        assert http.get(OUR_ROUTES[0]).status_code == 404
        return dict(collect(http)), http.get("/openapi.json").json()


def test_ordinary_answers_are_stock_to_the_byte(talk: Talk, stock: Any) -> None:
    """Spec replay section 1, last line; fault 3: nothing changes for who sends none of our fields."""
    answers, _ = stock
    with_plugin = dict(collect(talk.http))
    assert with_plugin.keys() == answers.keys()
    different = {
        name: (answers[name], with_plugin[name])
        for name in answers
        if answers[name] != with_plugin[name]
    }
    assert different == {}
    assert answers["chat"][0] == answers["chat stream"][0] == answers["text"][0] == 200
    assert {answers[name][0] for name in answers if name.startswith("error")} <= {400, 404, 422}


def test_the_schema_is_stock_apart_from_our_routes(talk: Talk, stock: Any) -> None:
    _, schema = stock
    ours = talk.http.get("/openapi.json").json()
    added = {path for path in ours["paths"] if path not in schema["paths"]}
    assert added >= set(OUR_ROUTES)
    assert all(path in OUR_ROUTES or path.startswith(POW_ROUTES) for path in added)
    for path in added:
        del ours["paths"][path]
    assert ours == schema
