"""A client that goes away takes its replay along (case 42; fault 37)."""

from __future__ import annotations

import httpx
import pytest
from tests.engine.talk import CHAT, Talk, chat, enforced, until

pytestmark = pytest.mark.parametrize("talk", ["v1", "v2"], indirect=True)
# Long enough to be under way when its client leaves, at any speed seen here.
TRACE = [17 + n % 300 for n in range(420)]


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
def test_case_42_a_disconnect_ends_the_replay(talk: Talk, stream: bool) -> None:
    """Case 42, fault 37: nothing runs on, and the worker's evidence is freed."""
    until(talk.at_rest, "the server is at rest before the test")
    produced = talk.metric("vllm:generation_tokens_total")
    body = chat("hi", stream=stream, enforced_tokens=enforced(TRACE))
    # A fresh machine compiles one function of V1's sampler at the first logprobs: be patient.
    with httpx.Client(base_url=talk.server.url, trust_env=False, timeout=300.0) as leaving:
        if stream:
            with leaving.stream("POST", CHAT, json=body) as response:
                assert response.status_code == 200
                lines = response.iter_lines()
                assert next(lines).startswith("data: ")
                until(lambda: talk.status()["replays_open"] == 1, "a worker holds the replay")
        else:
            # The request stays unanswered for so short a time that the client gives up first.
            with pytest.raises(httpx.ReadTimeout):
                leaving.post(CHAT, json=body, timeout=httpx.Timeout(5.0, read=0.3))
    until(talk.at_rest, "the replay of a client that left was ended and its evidence freed")
    assert talk.metric("vllm:generation_tokens_total") - produced < len(TRACE)


def test_case_42_a_refused_or_finished_replay_leaves_nothing(talk: Talk) -> None:
    """Case 42: the other ways a replay ends, streamed to its end and refused by the engine."""
    talk.ask(chat("hi", stream=True, enforced_tokens=enforced(TRACE[:6])))
    talk.ask(chat("hi", enforced_tokens=enforced(TRACE[:6])))
    talk.refused(chat("hi", enforced_tokens=enforced(TRACE[:6]), top_logprobs=500))
    until(talk.at_rest, "nothing is left of a replay that ended")
