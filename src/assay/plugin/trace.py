"""Reading the plain request fields: enforced tokens in, vocabulary ids out, or a clear refusal.

Nothing here knows vLLM. Every refusal is a :class:`RequestError` whose ``param`` names the field
with its index, so that the HTTP layer can answer 400 before the engine sees anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from assay.errors import RequestError
from assay.plugin.constants import MAX_TOP_TOKENS, MAX_TRACE_POSITIONS, REQUEST_MODES

_DECIMAL = re.compile(r"[0-9]{1,19}\Z", re.ASCII)
_PREFIX = "token_id:"

Encode = Callable[[str], Sequence[int]]
"""Tokenises text without special tokens; ids only."""


@dataclass(frozen=True)
class Trace:
    """The claimed output as ids: ``tokens`` [positions], ``top_ids`` flat over all positions."""

    tokens: tuple[int, ...]
    top_ids: tuple[int, ...]


def read_trace(fields: dict[str, Any], vocab_size: int, encode: Encode) -> Trace | None:
    """Turn ``enforced_tokens`` or ``enforced_str`` into a :class:`Trace`; ``None`` if neither is there.

    Errors: :class:`RequestError` for both fields at once, wrong types, ids outside
    ``[0, vocab_size)``, more than 32,768 positions, more than 64 top tokens at one position, and
    text that is not exactly one token (never id 0: F5).
    """
    tokens, text = fields.get("enforced_tokens"), fields.get("enforced_str")
    if tokens is not None and text is not None:
        raise RequestError(
            "enforced_tokens and enforced_str exclude each other; send one of them",
            param="enforced_str",
        )
    if text is not None:
        return _from_text(text, vocab_size, encode)
    if tokens is not None:
        return _from_tokens(tokens, vocab_size, encode)
    return None


def read_mode(fields: dict[str, Any]) -> str | None:
    """The request's own ``logprobs_mode``, or ``None`` where it names none."""
    mode = fields.get("logprobs_mode")
    if mode is None or (isinstance(mode, str) and mode in REQUEST_MODES):
        return mode
    raise RequestError(
        f"logprobs_mode must be one of {', '.join(REQUEST_MODES)}, got {_show(mode)}",
        param="logprobs_mode",
    )


def _from_text(text: object, vocab_size: int, encode: Encode) -> Trace:
    if not isinstance(text, str):
        raise RequestError(
            f"enforced_str must be a string, got {_show(text)}", param="enforced_str"
        )
    # A token is at least one byte of text on every tokenizer vLLM serves with, but may be long:
    # bound the characters first so that a huge body is not tokenised at all.
    if len(text) > MAX_TRACE_POSITIONS * 64:
        raise RequestError("enforced_str is too long to tokenise", param="enforced_str")
    ids = tuple(_encoded(text, "enforced_str", encode))
    if not ids:
        raise RequestError("enforced_str tokenises to nothing", param="enforced_str")
    if len(ids) > MAX_TRACE_POSITIONS:
        raise RequestError(
            f"enforced_str is {len(ids)} tokens long; at most {MAX_TRACE_POSITIONS} are replayed",
            param="enforced_str",
        )
    return Trace(tuple(_in_range(number, vocab_size, "enforced_str") for number in ids), ())


def _from_tokens(value: object, vocab_size: int, encode: Encode) -> Trace:
    param = "enforced_tokens"
    if not isinstance(value, dict):
        raise RequestError(
            f'{param} must be an object {{"tokens": [...]}}, got {_show(value)}', param=param
        )
    _only_known(value, ("tokens", "allow_text"), param)
    allow_text = value.get("allow_text", False)
    if not isinstance(allow_text, bool):
        raise RequestError(f"{param}.allow_text must be true or false", param=f"{param}.allow_text")
    entries = value.get("tokens")
    param = f"{param}.tokens"
    if not isinstance(entries, list):
        raise RequestError(f"{param} must be a list, got {_show(entries)}", param=param)
    if not entries:
        raise RequestError(f"{param} is empty; a replay needs at least one token", param=param)
    if len(entries) > MAX_TRACE_POSITIONS:
        raise RequestError(
            f"{param} has {len(entries)} positions; at most {MAX_TRACE_POSITIONS} are replayed",
            param=param,
        )
    resolve = encode if allow_text else None
    tokens: list[int] = []
    top_ids: list[int] = []
    for index, entry in enumerate(entries):
        where = f"{param}[{index}]"
        if not isinstance(entry, dict):
            raise RequestError(
                f'{where} must be an object {{"token": ...}}, got {_show(entry)}', param=where
            )
        _only_known(entry, ("token", "top_tokens"), where)
        if "token" not in entry:
            raise RequestError(f"{where} has no token", param=f"{where}.token")
        tokens.append(token_id(entry["token"], vocab_size, f"{where}.token", resolve))
        top = entry.get("top_tokens")
        if top is None:
            continue
        if not isinstance(top, list):
            raise RequestError(
                f"{where}.top_tokens must be a list, got {_show(top)}", param=f"{where}.top_tokens"
            )
        if len(top) > MAX_TOP_TOKENS:
            raise RequestError(
                f"{where}.top_tokens has {len(top)} entries; at most {MAX_TOP_TOKENS} are read",
                param=f"{where}.top_tokens",
            )
        top_ids.extend(
            token_id(item, vocab_size, f"{where}.top_tokens[{at}]", resolve)
            for at, item in enumerate(top)
        )
    return Trace(tuple(tokens), tuple(top_ids))


def token_id(value: object, vocab_size: int, param: str, encode: Encode | None) -> int:
    """One spelling of a token as its id: ``token_id:N``, a bare decimal, an integer; text if allowed.

    A string ``int()`` would accept and a person would not (underscore, sign, white space, digits
    of other scripts) counts as text.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise RequestError(
            f'{param} must be "token_id:N" or a decimal string, got {_show(value)}', param=param
        )
    if isinstance(value, int):
        number = value
    else:
        digits = value.removeprefix(_PREFIX)
        if _DECIMAL.match(digits):
            number = int(digits)
        elif encode is not None and digits is value:
            number = _from_word(value, param, encode)
        else:
            hint = "" if digits is not value else '; text needs "allow_text": true beside "tokens"'
            raise RequestError(
                f"{param} {_show(value)} is a non-numeric token: write token_id:N{hint}",
                param=param,
            )
    return _in_range(number, vocab_size, param)


def _in_range(number: int, vocab_size: int, param: str) -> int:
    """Checked for tokenised text too: a tokenizer may hold ids its model has no row for (F6)."""
    if not 0 <= number < vocab_size:
        raise RequestError(
            f"{param} is id {number}, outside this model's vocabulary [0, {vocab_size})",
            param=param,
        )
    return number


def _from_word(text: str, param: str, encode: Encode) -> int:
    ids = _encoded(text, param, encode)
    if len(ids) != 1:
        raise RequestError(
            f"{param} {_show(text)} is {len(ids)} tokens here, not one; send its id instead",
            param=param,
        )
    return ids[0]


def _encoded(text: str, param: str, encode: Encode) -> Sequence[int]:
    """Tokenise; JSON can spell half of a surrogate pair, which is no text to any tokenizer."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds half a character (an unpaired surrogate) at {error.start}; "
            "send valid Unicode",
            param=param,
        ) from error
    return encode(text)


def _only_known(entry: dict[Any, Any], known: tuple[str, ...], where: str) -> None:
    for key in entry:
        if key not in known:
            raise RequestError(
                f"{where} has the unknown field {_show(key)}; known are {', '.join(known)}",
                param=f"{where}.{key}" if isinstance(key, str) and key.isidentifier() else where,
            )


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
