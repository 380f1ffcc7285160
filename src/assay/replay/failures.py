"""Whose fault a failed replay is, and which failures are worth a second try."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from assay.errors import ReplayError
from assay.replay.client import EngineReply

CLAIM_PARAMS = ("enforced_tokens.tokens[", "output_token_ids[")
"""Starts of the names of what the executor wrote. Everything else in a replay request is the
caller's or the validator's own; the bare ``enforced_tokens`` names a limit of the server, such as
a context too small for the trace."""

RETRY_STATUSES = frozenset({429, 502, 503, 504})
"""No work was done, or a proxy gave up: sending the same replay again is safe. A 500 is not
retried: a replay is deterministic, so the same request would break the engine the same way."""

RETRY_CODES = frozenset({"validator_unreachable", "validator_busy"})
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0


@dataclass(frozen=True)
class ServerError:
    """The OpenAI-shaped error object of a reply, as far as there was one."""

    message: str
    param: str | None = None


def read_error(reply: EngineReply) -> ServerError:
    """The error object of ``reply``; its text, cut short, where there is none."""
    text = reply.body[:2000].decode("utf-8", errors="replace").strip()
    try:
        body = json.loads(reply.body)
    except ValueError:
        return ServerError(text or f"HTTP {reply.status} without a body")
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, str):
            return ServerError(error)
        if isinstance(error, dict):
            message = error.get("message") or error.get("detail") or error.get("error")
            param = error.get("param")
            return ServerError(
                str(message) if message else text, param if isinstance(param, str) else None
            )
    return ServerError(text)


def as_replay_error(reply: EngineReply) -> ReplayError:
    """A ReplayError for a reply with an error status.

    Only a refusal that names one of the executor's tokens counts against the claim (case 46). Any
    other refusal, for instance a context or a top-k the validator's server is too small for, says
    nothing about the executor: no verdict, and the reason.
    """
    error = read_error(reply)
    status = reply.status
    if status in (400, 413, 422) and (error.param or "").startswith(CLAIM_PARAMS):
        return ReplayError(
            f"the validator's engine refused the claimed tokens: {error.message}"
            f" (field {error.param})",
            blame="claim",
            status=status,
            code="malformed",
        )
    code, why = _validator_reason(status)
    return ReplayError(
        f"{why} (HTTP {status}): {error.message}", blame="validator", status=status, code=code
    )


def _validator_reason(status: int) -> tuple[str, str]:
    if status in (401, 403):
        return "validator_unauthorised", "the validator's server refused the key; set --api-key"
    if status == 404:
        return "validator_unusable", "the validator's server has no such route or model"
    if status in RETRY_STATUSES:
        return "validator_busy", "the validator's server is busy or away"
    if status >= 500:
        return "validator_error", "the validator's server failed"
    return "request_refused", "the validator's server cannot run this request"


def is_retryable(error: ReplayError) -> bool:
    """True when nothing was computed, so that asking again can give another answer.

    A time-out is not retried: the engine is still busy with the first request, and a second one
    makes that worse.
    """
    return error.blame == "validator" and error.code in RETRY_CODES


async def with_retries(
    attempt: Callable[[], Awaitable[EngineReply]],
    *,
    retries: int,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> EngineReply:
    """Run ``attempt`` up to ``1 + retries`` times; the wait doubles from FIRST_WAIT_S seconds.

    ``Retry-After`` of the server wins over the doubling, up to LONGEST_WAIT_S. Returns the first
    reply with status 200; raises the ReplayError of the last attempt.
    """
    for tried in range(retries + 1):
        wait = min(FIRST_WAIT_S * 2**tried, LONGEST_WAIT_S)
        try:
            reply = await attempt()
        except ReplayError as error:
            if tried == retries or not is_retryable(error):
                raise
        else:
            if reply.status == 200:
                return reply
            failure = as_replay_error(reply)
            if tried == retries or not is_retryable(failure):
                raise failure
            wait = _retry_after(reply, wait)
        await sleep(wait)
    raise AssertionError("unreachable: the last attempt returns or raises")


def _retry_after(reply: EngineReply, default: float) -> float:
    try:
        asked = float(reply.headers.get("retry-after", ""))
    except ValueError:  # absent, or an HTTP date: the doubling is good enough
        return default
    return min(max(asked, 0.0), LONGEST_WAIT_S)
