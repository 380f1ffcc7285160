"""The prompt's token ids as the validator's own server makes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.claims.claim import Claim
from assay.claims.fields import as_ids, as_list, as_object
from assay.claims.strict_json import parse_json
from assay.errors import ClaimError, ReplayError
from assay.replay.client import EngineClient, EngineReply
from assay.replay.failures import with_retries
from assay.replay.prefill_fits import not_available
from assay.replay.request import CHAT_ONLY, ReplayRequest

TOKENIZE = "/tokenize"

TOKENIZE_CHAT = frozenset(
    {
        "messages",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "chat_template",
        "chat_template_kwargs",
    }
)
"""Fields that /tokenize renders exactly as /v1/chat/completions does. Tools are not among them: a
server may leave them out, or a parser may change the request."""

NOT_RENDERING = frozenset({"top_logprobs", "max_completion_tokens", "parallel_tool_calls"})
"""Chat fields that do not touch the prompt."""

ELSEWHERE = (CHAT_ONLY - TOKENIZE_CHAT - NOT_RENDERING) | {"truncate_prompt_tokens", "suffix"}
"""Where one of these stands, only the route itself knows the prompt."""

ANSWER_FIELDS = frozenset(
    {
        "enforced_tokens",
        "enforced_str",
        "logprobs",
        "top_logprobs",
        "logprobs_mode",
        "min_tokens",
        "max_completion_tokens",
        "return_tokens_as_token_ids",
    }
)
"""Left out when the route is asked for the prompt alone."""


async def render_prompt(
    client: EngineClient, claim: Claim, request: ReplayRequest, *, retries: int
) -> tuple[int, ...]:
    """The ids of the prompt of ``request``, whose body names the model to use.

    ``/tokenize`` costs the engine nothing. Where the body holds what it does not know, where it
    is not served, or where its ids are not those the claim reports, the route itself is asked for
    one token and for the ids of the prompt it rendered: a difference must not be /tokenize's.

    Raises ReplayError: ``prefill_not_available`` for several prompts in one request or a server
    that returns no ids, and what a refused request raises.
    """
    body = request.body
    sent = _sent_ids(body.get("prompt"))
    if sent is not None and not body.get("truncate_prompt_tokens"):
        return sent
    if sent is None and not _one_text(body):
        raise not_available("its request holds several prompts")
    if all(body.get(name) is None for name in ELSEWHERE):
        ids = await _tokenize(client, body, retries)
        if ids is not None and claim.prompt.token_ids in (None, ids):
            return ids
    return await _ask_route(client, request, retries)


def _sent_ids(prompt: object) -> tuple[int, ...] | None:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], str | list):
        return None
    try:
        return as_ids(prompt, "request.prompt")
    except ClaimError as error:
        raise ReplayError(str(error), blame="claim", code="malformed") from error


def _one_text(body: Mapping[str, Any]) -> bool:
    prompt = body.get("prompt")
    return (
        "messages" in body
        or isinstance(prompt, str)
        or (isinstance(prompt, list) and len(prompt) == 1)
    )


async def _tokenize(
    client: EngineClient, body: Mapping[str, Any], retries: int
) -> tuple[int, ...] | None:
    """Ids from /tokenize, ``None`` where the server cannot say."""
    if "messages" in body:
        asked = {name: body[name] for name in TOKENIZE_CHAT if name in body}
    else:
        prompt = body["prompt"]
        asked = {"prompt": prompt[0] if isinstance(prompt, list) else prompt}
        if "add_special_tokens" in body:
            asked["add_special_tokens"] = body["add_special_tokens"]
    try:
        reply = await with_retries(
            lambda: client.send("POST", TOKENIZE, asked | {"model": body["model"]}),
            retries=retries,
        )
        answer = as_object(parse_json(reply.body), TOKENIZE)
        return as_ids(answer.get("tokens"), "tokens")
    except ClaimError:
        return None
    except ReplayError as error:
        if error.status in (400, 404, 405, 422, 501):
            return None
        raise


async def _ask_route(client: EngineClient, request: ReplayRequest, retries: int) -> tuple[int, ...]:
    asked = {name: value for name, value in request.body.items() if name not in ANSWER_FIELDS}
    asked |= {"max_tokens": 1, "stream": False, "return_token_ids": True}
    reply = await with_retries(lambda: client.send("POST", request.path, asked), retries=retries)
    return _prompt_ids(reply)


def _prompt_ids(reply: EngineReply) -> tuple[int, ...]:
    try:
        body = as_object(parse_json(reply.body), "body")
        choice = as_object(as_list(body.get("choices"), "choices")[0], "choices[0]")
        ids = body.get("prompt_token_ids") or choice.get("prompt_token_ids")
        return as_ids(ids, "prompt_token_ids")
    except (ClaimError, IndexError) as error:
        raise not_available(
            f"the server does not say which ids its prompt has ({error})"
        ) from error
