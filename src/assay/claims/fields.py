"""Typed access to parsed JSON; every refusal names the JSON path and says what was found."""

from __future__ import annotations

import json
import math
from typing import Any

from assay.claims.positions import IMPOSSIBLE
from assay.errors import ClaimError

SENTINEL = -9999.0
"""What vLLM writes for an impossible token: its OpenAI layer sends ``max(logprob, -9999.0)``
(``entrypoints/openai``), because JSON has no infinity. Anything at or below it is impossible."""

_IMPOSSIBLE_TEXT = frozenset({"-inf", "-infinity"})


def show(value: object) -> str:
    """``value`` for an error message, cut short."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError):
        text = type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def as_object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ClaimError(f"expected an object, found {show(value)}", field=path)
    return value


def as_list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise ClaimError(f"expected a list, found {show(value)}", field=path)
    return value


def as_text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise ClaimError(f"expected a string, found {show(value)}", field=path)
    return value


def as_count(value: object, path: str) -> int | None:
    """A non-negative integer or ``None``."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ClaimError(f"expected a count, found {show(value)}", field=path)
    return value


def as_ids(value: object, path: str) -> tuple[int, ...]:
    """A list of vocabulary ids. Negative numbers, floats and booleans are no ids (case 46)."""
    entries = as_list(value, path)
    for index, entry in enumerate(entries):
        if not isinstance(entry, int) or isinstance(entry, bool) or entry < 0:
            raise ClaimError(
                f"expected a token id (an integer from 0), found {show(entry)}",
                field=f"{path}[{index}]",
            )
    return tuple(entries)


def as_logprob(value: object, path: str) -> float:
    """A natural-log probability; ``IMPOSSIBLE`` for null, -inf, "-Infinity" and -9999.0 or less.

    Raises ClaimError for NaN, +infinity, booleans and other text. Values above zero pass: where a
    server sends logits they are legal, and scoring decides (``assay.scoring.evidence``).
    """
    if value is None:
        return IMPOSSIBLE
    if isinstance(value, str):
        if value.lower() in _IMPOSSIBLE_TEXT:
            return IMPOSSIBLE
        raise ClaimError(f"expected a log probability, found the text {show(value)}", field=path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ClaimError(f"expected a log probability, found {show(value)}", field=path)
    try:
        number = float(value)
    except OverflowError as error:
        raise ClaimError("the number is too large for a log probability", field=path) from error
    if math.isnan(number) or number == math.inf:
        raise ClaimError(
            f"{number} is no log probability; an impossible token is written as null or -9999.0",
            field=path,
        )
    return IMPOSSIBLE if number <= SENTINEL else number


def as_bytes(value: object, path: str) -> bytes | None:
    """The optional ``bytes`` list of a log probability entry."""
    if value is None:
        return None
    entries = as_list(value, path)
    for index, entry in enumerate(entries):
        if not isinstance(entry, int) or isinstance(entry, bool) or not 0 <= entry < 256:
            raise ClaimError(f"expected a byte, found {show(entry)}", field=f"{path}[{index}]")
    return bytes(entries)
