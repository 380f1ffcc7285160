"""What the tokenizer of a server says, over the routes that every vLLM server has.

``POST /detokenize`` with ``{"tokens": [...]}`` answers ``{"prompt": text}``, special tokens spelled
out; ``POST /tokenize`` with ``{"messages": [...]}`` answers ``{"tokens": [...]}`` (the same in vLLM
0.31 to 0.33). Neither costs the engine anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from assay.claims.digest import prompt_digest
from assay.claims.fields import as_ids, as_object, as_text
from assay.claims.strict_json import parse_json
from assay.errors import ClaimError, ReplayError
from assay.replay.client import EngineClient
from assay.replay.failures import as_replay_error

TOKENIZE: Final = "/tokenize"
DETOKENIZE: Final = "/detokenize"

PROBE: Final = (
    {"role": "user", "content": "Name two metals, please."},
    {"role": "assistant", "content": "Gold and tin."},
    {"role": "user", "content": "Thank you. \u00bfY en espa\u00f1ol?"},
)
"""The fixed conversation. It has no system message, so a default one shows, and a date with it.
Part of ``template_digest``: changing it makes digests of older claims unequal."""


async def decode_ids(client: EngineClient, ids: Sequence[int]) -> str:
    """The text of ``ids``. Raises ReplayError where the server does not say."""
    answer = await _ask(client, DETOKENIZE, {"tokens": list(ids)})
    try:
        return as_text(answer.get("prompt"), f"{DETOKENIZE}.prompt")
    except ClaimError as error:
        raise _unreadable(error) from error


async def template_digest(client: EngineClient) -> str | None:
    """``prompt_digest`` of how the server renders ``PROBE``; ``None`` where it does not say.

    Equal digests of two servers mean the same template, tokenizer and defaults, on one day.
    """
    try:
        answer = await _ask(client, TOKENIZE, {"messages": list(PROBE)})
        return prompt_digest(as_ids(answer.get("tokens"), f"{TOKENIZE}.tokens"))
    except (ReplayError, ClaimError):
        return None


async def _ask(client: EngineClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = await client.send("POST", path, body)
    if reply.status != 200:
        raise as_replay_error(reply)
    try:
        return as_object(parse_json(reply.body), path)
    except ClaimError as error:
        raise _unreadable(error) from error


def _unreadable(error: ClaimError) -> ReplayError:
    return ReplayError(
        f"the validator's server answered something that cannot be read: {error}",
        blame="validator",
        code="validator_error",
    )
