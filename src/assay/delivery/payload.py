"""A callback's body, put together from text that was made once.

A million waiting artifacts as Python objects would be half a gigabyte; as text they are 65 MB, and
lie in the database.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def with_artifacts(head: Mapping[str, Any] | str, pieces: list[str]) -> bytes:
    """``head`` as a JSON object (or its text) with ``artifacts`` put together from ``pieces``."""
    text = head if isinstance(head, str) else json.dumps(head)
    joined = ",".join(piece for piece in pieces if piece)
    separator = "" if text == "{}" else ","
    return f'{text[:-1]}{separator}"artifacts":[{joined}]}}'.encode()
