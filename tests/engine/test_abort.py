"""A client that goes away takes its replay along (case 42; fault 37)."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import pytest
from tests.engine.answers import Body
from tests.engine.talk import CHAT, Talk, chat, enforced, until

pytestmark = pytest.mark.parametrize("talk", ["v1", "v2"], indirect=True)
# As long as the context of these servers allows, to be under way when its client leaves.
TRACE = [17 + n % 300 for n in range(420)]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
def test_case_42_a_disconnect_ends_the_replay(talk: Talk, stream: bool) -> None:
    """Case 42, fault 37: nothing runs on, and the worker's evidence is freed."""
    until(talk.at_rest, "the server is at rest before the test")

    def held() -> bool:
        return bool(talk.status()["replays_open"] == 1)

    produced = talk.metric("vllm:generation_tokens_total")
    body = chat("hi", stream=stream, enforced_tokens=enforced(TRACE))
    # A fresh machine compiles one function of V1's sampler at the first logprobs: be patient.
    with httpx.Client(base_url=talk.server.url, trust_env=False, timeout=300.0) as leaving:
        if stream:
            with leaving.stream("POST", CHAT, json=body) as response:
                assert response.status_code == 200
                lines = response.iter_lines()
                assert next(lines).startswith("data: ")
                until(held, "a worker holds the replay", every=0.01)
        else:
            _leave_once(held, talk, body)
    until(talk.at_rest, "the replay of a client that left was ended and its evidence freed")
    assert talk.metric("vllm:generation_tokens_total") - produced < len(TRACE)


def _leave_once(held: Callable[[], bool], talk: Talk, body: Body) -> None:
    """Ask for a whole answer and hang up as soon as a worker holds the replay.

    By a socket of our own: a read limit in seconds is met on a fast machine before it runs out.
    """
    content = json.dumps(body).encode()
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    port = urlsplit(talk.server.url).port
    with socket.create_connection(("127.0.0.1", port), timeout=300) as leaving:
        leaving.sendall(head.encode() + content)
        until(held, "a worker holds the replay", every=0.01)


def test_case_42_a_refused_or_finished_replay_leaves_nothing(talk: Talk) -> None:
    """Case 42: the other ways a replay ends, streamed to its end and refused by the engine."""
    talk.ask(chat("hi", stream=True, enforced_tokens=enforced(TRACE[:6])))
    talk.ask(chat("hi", enforced_tokens=enforced(TRACE[:6])))
    talk.refused(chat("hi", enforced_tokens=enforced(TRACE[:6]), top_logprobs=500))
    until(talk.at_rest, "nothing is left of a replay that ended")
