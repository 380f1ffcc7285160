"""Tool calls against the token stream."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from assay.claims.account.check import Check, Subject
from assay.claims.account.constants import MOST_LEAVES, MOST_PLACES
from assay.claims.account.known import Known
from assay.claims.account.spelled import UNDECODABLE, without_spaces
from assay.claims.claim import Claim, ToolCall
from assay.claims.strict_json import parse_json
from assay.errors import ClaimError

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
CONSTANTS = {True: ("true", "True"), False: ("false", "False"), None: ("null", "None", "none")}
"""JSON's spelling and Python's: some models write calls as Python."""


def tool_calls(claim: Claim, known: Known) -> Check:
    """Names and arguments of tool calls must stand in what the ids decode to.

    Models write calls in many forms: JSON, XML, Python. Where the arguments stand there as JSON,
    spaces aside, all is said. Else every value is looked for by itself. One that is nowhere was
    not generated; one that stands there, but not at its key, has no outcome.
    """
    check = Subject("tool_calls", "tool_call_mismatch")
    if not claim.tool_calls:
        return check.unknown("the answer has no tool calls")
    if known.decoded_output is None:
        return check.unknown(known.why_not("decoded_output", "the ids were not decoded"))
    output = _Output(known.decoded_output)
    for index, call in enumerate(claim.tool_calls):
        try:
            wrong = _wrong_name(claim, call, output) or _wrong_arguments(call, output)
        except _NoOutcomeError as error:
            return check.unknown(f"tool call {index}: {error}")
        if wrong is not None and UNDECODABLE in output.plain:
            return check.unknown(f"tool call {index}: {wrong}, but it holds bytes that are no text")
        if wrong is not None:
            return check.fails(f"tool call {index}: {wrong}")
    return check.holds(f"{len(claim.tool_calls)} tool calls stand in what the ids decode to")


class _NoOutcomeError(Exception):
    """The arguments are in a form that cannot be looked for."""


class _Output:
    """The decoded output without spaces, as it is and with its escapes taken away."""

    def __init__(self, decoded: str) -> None:
        self.plain = without_spaces(decoded)
        once = _unescaped(decoded)  # JSON's escapes, then those of arguments sent as a string
        forms = (decoded, once, _unescaped(once), html.unescape(decoded))
        self._forms = tuple(dict.fromkeys(without_spaces(form) for form in forms))

    def says(self, text: str) -> bool:
        wanted = without_spaces(text)
        return any(wanted in form for form in self._forms)

    @cached_property
    def numbers(self) -> frozenset[float]:
        return frozenset(float(found) for form in self._forms for found in _NUMBER.findall(form))


def _unescaped(text: str) -> str:
    """``text`` without backslash escapes as JSON and Python write them."""
    plain = _ESCAPE.sub(_character, text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins halves


def _character(found: re.Match[str]) -> str:
    if found[1]:
        return chr(int(found[1], 16))
    return {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}.get(found[2], found[2])


def _wrong_name(claim: Claim, call: ToolCall, output: _Output) -> str | None:
    if not call.name or output.says(call.name):
        return None
    choice = claim.request.get("tool_choice")
    function = choice.get("function") if isinstance(choice, dict) else None
    if isinstance(function, dict) and function.get("name") == call.name:
        return None  # the caller named the function, so the model writes its arguments only
    return f"the output does not name the function {call.name!r}"


def _wrong_arguments(call: ToolCall, output: _Output) -> str | None:
    if without_spaces(call.arguments) in output.plain:
        return None
    try:
        arguments = parse_json(call.arguments)
    except ClaimError as error:
        raise _NoOutcomeError(f"the arguments are no JSON ({error})") from error
    if any(form in output.plain for form in _forms(arguments)):
        return None
    leaves = list(_leaves(arguments, None))
    if len(leaves) > MOST_LEAVES:
        raise _NoOutcomeError(f"the arguments hold more than {MOST_LEAVES} values")
    for key, value in leaves:
        if not _stands(value, output):
            return f"the argument {_shown(key, value)} is not in the output"
    for key, value in leaves:
        if key is not None and not _stands_at(key, value, output.plain):
            raise _NoOutcomeError(f"{_shown(key, value)} is in the output, but not at its key")
    return None


def _shown(key: str | None, value: Any) -> str:
    return f"{key or 'value'} = {json.dumps(value, ensure_ascii=False)[:60]}"


def _leaves(value: Any, key: str | None) -> Iterator[tuple[str | None, Any]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, None)
    else:
        yield key, value


def _as_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits, read as infinity from text too
        return math.inf if value > 0 else -math.inf


def _forms(value: Any) -> tuple[str, ...]:
    """``value`` as JSON without spaces, other characters than ASCII plain and escaped."""
    return tuple(
        without_spaces(json.dumps(value, ensure_ascii=ascii_only, separators=(",", ":")))
        for ascii_only in (False, True)
    )


def _stands(value: Any, output: _Output) -> bool:
    number = _as_number(value)
    if number is not None:
        return number in output.numbers
    if isinstance(value, str):
        return output.says(value)
    return any(word in output.plain for word in CONSTANTS[value])


def _stands_at(key: str, value: Any, decoded: str) -> bool:
    """False where the output has ``key`` in JSON form and never with ``value``."""
    marks = [f"{form}:" for form in _forms(key) if f"{form}:" in decoded]
    number = _as_number(value)
    if not marks:
        return True
    if number is None:
        return any(f"{mark}{form}" in decoded for mark in marks for form in _forms(value))
    return any(number in _numbers_after(mark, decoded) for mark in marks)


def _numbers_after(mark: str, decoded: str) -> Iterator[float]:
    place = decoded.find(mark)
    for _ in range(MOST_PLACES):
        found = _NUMBER.match(decoded, place + len(mark)) if place >= 0 else None
        if found:
            yield float(found.group())
        place = decoded.find(mark, place + 1) if place >= 0 else place
