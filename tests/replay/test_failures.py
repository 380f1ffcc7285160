"""Whose fault a failure is, and which are tried again."""

from __future__ import annotations

import json

import pytest

from assay.errors import ReplayError
from assay.replay.client import EngineReply
from assay.replay.failures import LONGEST_WAIT_S, as_replay_error, read_error, with_retries


def reply(status: int, param: str | None = None, message: str = "no") -> EngineReply:
    body = {"error": {"message": message, "type": "x", "param": param, "code": status}}
    return EngineReply(status, json.dumps(body).encode())


def test_case_46_a_refused_claimed_token_counts_against_the_claim() -> None:
    error = as_replay_error(reply(400, "enforced_tokens.tokens[3].token", "not an id"))
    assert error.blame == "claim"
    assert "enforced_tokens.tokens[3].token" in str(error)
    assert "not an id" in str(error)


@pytest.mark.parametrize(
    ("status", "param", "code"),
    [
        (400, "enforced_tokens", "request_refused"),  # a context too small for the trace
        (400, "max_tokens", "request_refused"),
        (422, "top_logprobs", "request_refused"),
        (400, None, "request_refused"),
        (401, None, "validator_unauthorised"),
        (403, None, "validator_unauthorised"),
        (404, None, "validator_unusable"),
        (429, None, "validator_busy"),
        (500, None, "validator_error"),
        (503, None, "validator_busy"),
    ],
)
def test_every_other_refusal_says_nothing_about_the_executor(
    status: int, param: str | None, code: str
) -> None:
    error = as_replay_error(reply(status, param))
    assert (error.blame, error.code, error.status) == ("validator", code, status)


def test_a_500_that_names_a_token_is_still_the_servers() -> None:
    assert as_replay_error(reply(500, "enforced_tokens.tokens[0]")).blame == "validator"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "HTTP 502 without a body"),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (b'{"detail": "gone"}', "gone"),
        (b'{"error": "Unauthorized"}', "Unauthorized"),
        (b"[1]", "[1]"),
    ],
)
def test_any_error_body_gives_a_message(body: bytes, message: str) -> None:
    assert read_error(EngineReply(502, body)).message == message


class Script:
    """Answers in order; counts calls and remembers waits."""

    def __init__(self, *answers: EngineReply | ReplayError) -> None:
        self.answers = list(answers)
        self.waits: list[float] = []

    async def attempt(self) -> EngineReply:
        answer = self.answers.pop(0)
        if isinstance(answer, ReplayError):
            raise answer
        return answer

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


OK = EngineReply(200, b"{}")
AWAY = ReplayError("away", blame="validator", code="validator_unreachable")
LATE = ReplayError("late", blame="validator", code="validator_timeout")


async def test_a_server_that_comes_back_is_asked_again_with_growing_waits() -> None:
    script = Script(AWAY, reply(503), OK)
    assert await with_retries(script.attempt, retries=3, sleep=script.sleep) is OK
    assert script.waits == [0.5, 1.0]


async def test_tries_are_bounded() -> None:
    script = Script(AWAY, AWAY, AWAY, OK)
    with pytest.raises(ReplayError, match="away"):
        await with_retries(script.attempt, retries=2, sleep=script.sleep)
    assert script.answers == [OK]


async def test_f48_retry_after_is_in_seconds_and_bounded() -> None:
    slow = EngineReply(429, b"", {"retry-after": "2"})
    forever = EngineReply(429, b"", {"retry-after": "86400"})
    script = Script(slow, forever, OK)
    await with_retries(script.attempt, retries=3, sleep=script.sleep)
    assert script.waits == [2.0, LONGEST_WAIT_S]


@pytest.mark.parametrize(
    "answer", [reply(400, "enforced_tokens.tokens[0].token"), reply(500), reply(401), LATE]
)
async def test_what_another_try_cannot_change_is_not_tried_again(
    answer: EngineReply | ReplayError,
) -> None:
    script = Script(answer, OK)
    with pytest.raises(ReplayError):
        await with_retries(script.attempt, retries=3, sleep=script.sleep)
    assert script.answers == [OK]
    assert script.waits == []
