"""Response bodies made by hand, and where the recorded ones are."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "inference"
needs_data = pytest.mark.skipif(
    not DATA.is_dir(), reason="shared/data/inference is not beside the repository"
)


def entry(token: str, logprob: Any, top: list[tuple[str, Any]], **more: Any) -> dict[str, Any]:
    """One position of a chat answer."""
    return {
        "token": token,
        "logprob": logprob,
        "bytes": None,
        "top_logprobs": [{"token": t, "logprob": lp, "bytes": None} for t, lp in top],
        **more,
    }


def id_entries(count: int = 3) -> list[dict[str, Any]]:
    """Positions spelled as ids; token 100 + i is chosen at position i."""
    return [
        entry(
            f"token_id:{100 + i}",
            -0.25,
            [(f"token_id:{100 + i}", -0.25), (f"token_id:{200 + i}", -1.75), ("token_id:9", -4.5)],
        )
        for i in range(count)
    ]


def chat(content: Any = None, **fields: Any) -> dict[str, Any]:
    """A chat answer with token ids; ``fields`` replace top-level fields, ``choice`` those of the
    choice. ``content`` None = three positions spelled as ids."""
    content = id_entries() if content is None else content
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "one two three"},
        "logprobs": {"content": content},
        "finish_reason": "stop",
        "token_ids": [100 + i for i in range(len(content))],
    }
    choice.update(fields.pop("choice", {}))
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": 2, "completion_tokens": len(content)},
        "prompt_token_ids": [1, 2],
    }
    body.update(fields)
    return copy.deepcopy(body)


def completion(**fields: Any) -> dict[str, Any]:
    """A completions answer of two positions, spelled as ids."""
    choice = {
        "index": 0,
        "text": "one two",
        "logprobs": {
            "tokens": ["token_id:100", "token_id:101"],
            "token_logprobs": [-0.25, -0.5],
            "top_logprobs": [
                {"token_id:100": -0.25, "token_id:7": -2.0},
                {"token_id:8": -0.125, "token_id:101": -0.5},
            ],
            "text_offset": [0, 3],
        },
        "finish_reason": "length",
        "token_ids": [100, 101],
        "prompt_token_ids": [1, 2],
    }
    choice.update(fields.pop("choice", {}))
    body = {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": 2, "completion_tokens": 2},
    }
    body.update(fields)
    return copy.deepcopy(body)


def sse(*chunks: dict[str, Any] | str, done: bool = True) -> list[str]:
    """The lines of an event stream."""
    lines: list[str] = []
    for chunk in chunks:
        lines += [f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}", ""]
    return [*lines, "data: [DONE]", ""] if done else lines


def chunk(content: list[dict[str, Any]] | None, **choice: Any) -> dict[str, Any]:
    """One chunk of a streamed chat answer; ``content`` None = log probabilities null."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {"content": "x"},
                "logprobs": None if content is None else {"content": content},
                "finish_reason": None,
                **choice,
            }
        ],
    }


def usage_chunk(completion_tokens: int) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "model": "m",
        "choices": [],
        "usage": {"prompt_tokens": 2, "completion_tokens": completion_tokens},
    }
