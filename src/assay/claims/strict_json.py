"""JSON as the standard means it: literals such as NaN are found and named by line and column."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from assay.errors import ClaimError

_STRING_OR_LITERAL = re.compile(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity')

NOT_JSON = "not_json"
"""Code of a ClaimError for a document that cannot be parsed at all: nothing is known about who
wrote it, so unlike ``malformed`` it never counts against an executor."""


def parse_json(body: bytes | str) -> Any:
    """The value of a JSON document.

    ``-Infinity`` is kept as ``-math.inf`` (some servers write an impossible token so, case 10).
    Raises ClaimError: code ``not_json`` with line and column where the text is no JSON; code
    ``malformed`` for NaN and Infinity literals and for a key given twice in one object, which two
    readers could understand differently.
    """
    text = _text(body)
    try:
        return json.loads(text, parse_constant=_constant, object_pairs_hook=_object)
    except _LiteralError as error:
        line, column = _locate(text, error.literal)
        raise ClaimError(
            f"line {line} column {column}: {error.literal} is not a number; an impossible token is"
            " written as null or -9999.0"
        ) from error
    except json.JSONDecodeError as error:
        raise ClaimError(
            f"line {error.lineno} column {error.colno}: not JSON: {error.msg}", code=NOT_JSON
        ) from error
    except (RecursionError, ValueError) as error:  # nested too deep; an integer of 5,000 digits
        raise ClaimError(f"not readable JSON: {error}", code=NOT_JSON) from error


class _LiteralError(ValueError):
    def __init__(self, literal: str) -> None:
        super().__init__(literal)
        self.literal = literal


def _text(body: bytes | str) -> str:
    if isinstance(body, str):
        return body
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ClaimError(f"byte {error.start}: not UTF-8 text", code=NOT_JSON) from error


def _constant(literal: str) -> float:
    if literal == "-Infinity":
        return -math.inf
    raise _LiteralError(literal)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ClaimError(f"the key {twice!r} is given twice in one object")
    return value


def _locate(text: str, literal: str) -> tuple[int, int]:
    """Line and column, from 1, of the first bare ``literal`` outside strings."""
    for found in _STRING_OR_LITERAL.finditer(text):
        if found.group() == literal:
            before = text[: found.start()]
            return before.count("\n") + 1, found.start() - (before.rfind("\n") + 1) + 1
    raise AssertionError(f"the parser saw {literal} and the scanner did not")
