"""Tool calls against the token stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from assay.claims.account.check import Check, Subject
from assay.claims.account.constants import MOST_LEAVES
from assay.claims.account.known import Known
from assay.claims.account.spelled import UNDECODABLE, without_spaces
from assay.claims.claim import Claim, ToolCall
from assay.claims.strict_json import parse_json
from assay.errors import ClaimError

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
CONSTANTS = {True: ("true", "True"), False: ("false", "False"), None: ("null", "None", "none")}
"""JSON's spelling and Python's: some models write calls as Python."""


def tool_calls(claim: Claim, known: Known) -> Check:
    """Names and arguments of tool calls must stand in what the ids decode to.

    Models write calls in many forms: JSON, XML, Python. Where the arguments stand there as JSON,
    spaces aside, all is said. Else every value is looked for by itself, together with its key
    where the text has that key in JSON form.
    """
    check = Subject("tool_calls", "tool_call_mismatch")
    if not claim.tool_calls:
        return check.unknown("the answer has no tool calls")
    if known.decoded_output is None:
        return check.unknown(known.why_not("decoded_output", "the ids were not decoded"))
    decoded = without_spaces(known.decoded_output)
    for index, call in enumerate(claim.tool_calls):
        try:
            wrong = _wrong_name(claim, call, decoded) or _wrong_arguments(call, decoded)
        except _NoOutcomeError as error:
            return check.unknown(f"tool call {index}: {error}")
        if wrong is not None and UNDECODABLE in decoded:
            return check.unknown(f"tool call {index}: {wrong}, but it holds bytes that are no text")
        if wrong is not None:
            return check.fails(f"tool call {index}: {wrong}")
    return check.holds(f"{len(claim.tool_calls)} tool calls stand in what the ids decode to")


class _NoOutcomeError(Exception):
    """The arguments are in a form that cannot be looked for."""


def _wrong_name(claim: Claim, call: ToolCall, decoded: str) -> str | None:
    if not call.name or without_spaces(call.name) in decoded:
        return None
    choice = claim.request.get("tool_choice")
    function = choice.get("function") if isinstance(choice, dict) else None
    if isinstance(function, dict) and function.get("name") == call.name:
        return None  # the caller named the function, so the model writes its arguments only
    return f"the output does not name the function {call.name!r}"


def _wrong_arguments(call: ToolCall, decoded: str) -> str | None:
    if without_spaces(call.arguments) in decoded:
        return None
    try:
        arguments = parse_json(call.arguments)
    except ClaimError as error:
        raise _NoOutcomeError(f"the arguments are no JSON ({error})") from error
    if any(form in decoded for form in _forms(arguments)):
        return None
    leaves = list(_leaves(arguments, None))
    if len(leaves) > MOST_LEAVES:
        raise _NoOutcomeError(f"the arguments hold more than {MOST_LEAVES} values")
    numbers: set[float] = set()
    if any(_is_number(value) for _, value in leaves):
        numbers = {float(found) for found in _NUMBER.findall(decoded)}
    for key, value in leaves:
        if not _stands(key, value, decoded, numbers):
            shown = json.dumps(value, ensure_ascii=False)[:60]
            return f"the argument {key or 'value'} = {shown} is not in the output"
    return None


def _leaves(value: Any, key: str | None) -> Iterator[tuple[str | None, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, None)
    else:
        yield key, value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _forms(value: Any) -> tuple[str, ...]:
    """``value`` as JSON without spaces, other characters than ASCII plain and escaped."""
    return tuple(
        without_spaces(json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")))
        for ascii_only in (False, True)
    )


def _stands(key: str | None, value: Any, decoded: str, numbers: set[float]) -> bool:
    if key is not None:
        marks = [f"{form}:" for form in _forms(key) if f"{form}:" in decoded]
        if marks and not _is_number(value):
            return any(f"{mark}{form}" in decoded for mark in marks for form in _forms(value))
    if _is_number(value):
        return float(value) in numbers
    if isinstance(value, str):
        plain = without_spaces(value)
        escaped = (form[1:-1] for form in _forms(value))
        python = plain.replace("\\", "\\\\").replace("'", "\\'")
        return any(form in decoded for form in (plain, python, *escaped))
    return any(word in decoded for word in CONSTANTS[value])
