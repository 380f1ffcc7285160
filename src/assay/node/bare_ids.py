"""Token strings of log probabilities as bare decimals, for one kind of network client.

vLLM spells ids as ``token_id:123`` (``return_tokens_as_token_ids``), that client as ``123``. Only
the strings of ``logprobs`` are rewritten, never text that an answer happens to contain.
"""

from __future__ import annotations

import json
from typing import Any

PREFIX = "token_id:"
MARK = PREFIX.encode()


def bare_json(body: bytes) -> bytes:
    """A JSON answer with bare ids. What holds none, or is no JSON object, comes back unchanged."""
    if MARK not in body:
        return body
    try:
        answer = json.loads(body)
    except ValueError:
        return body
    if not _rewrite(answer):
        return body
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()


class BareEvents:
    """The same for an event stream, fed piece by piece; whole events come out as they complete."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """The events that ``piece`` completes."""
        self._held += piece
        whole, end, self._held = self._held.rpartition(b"\n\n")
        return self._events(whole) + end

    def rest(self) -> bytes:
        """What is left at the end of the stream."""
        held, self._held = self._held, b""
        return self._events(held)

    @staticmethod
    def _events(text: bytes) -> bytes:
        if MARK not in text:
            return text
        return b"\n".join(_line(line) for line in text.split(b"\n"))


def _line(line: bytes) -> bytes:
    head = b"data: "
    if not line.startswith(head) or MARK not in line:
        return line
    return head + bare_json(line[len(head) :])


def _rewrite(answer: Any) -> bool:
    """Rewrite in place; whether anything was."""
    changed = False
    choices = answer.get("choices") if isinstance(answer, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        logprobs = choice.get("logprobs") if isinstance(choice, dict) else None
        if isinstance(logprobs, dict):
            changed |= _chat(logprobs) | _completion(logprobs)
    return changed


def _chat(logprobs: dict[str, Any]) -> bool:
    """``content``: entries with ``token`` and ``top_logprobs``, themselves entries."""
    changed = False
    content = logprobs.get("content")
    for entry in content if isinstance(content, list) else ():
        if isinstance(entry, dict):
            tops = entry.get("top_logprobs")
            for one in (entry, *(tops if isinstance(tops, list) else ())):
                if isinstance(one, dict) and _is_spelled(one.get("token")):
                    one["token"] = one["token"][len(PREFIX) :]
                    changed = True
    return changed


def _completion(logprobs: dict[str, Any]) -> bool:
    """``tokens`` [n] and ``top_logprobs`` [n], objects from token to log probability."""
    changed = False
    tokens = logprobs.get("tokens")
    if isinstance(tokens, list) and any(map(_is_spelled, tokens)):
        logprobs["tokens"] = [t[len(PREFIX) :] if _is_spelled(t) else t for t in tokens]
        changed = True
    tops = logprobs.get("top_logprobs")
    if isinstance(tops, list):
        for index, top in enumerate(tops):
            if isinstance(top, dict) and any(map(_is_spelled, top)):
                tops[index] = {
                    (key[len(PREFIX) :] if _is_spelled(key) else key): value
                    for key, value in top.items()
                }
                changed = True
    return changed


def _is_spelled(token: Any) -> bool:
    return isinstance(token, str) and token.startswith(PREFIX) and token[len(PREFIX) :].isdecimal()
