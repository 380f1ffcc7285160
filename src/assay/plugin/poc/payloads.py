"""Vectors as JSON text, made once and used for answers, callbacks and the store alike.

A million waiting artifacts as Python objects would be half a gigabyte; as text they are 65 MB, and
lie in the database.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from assay.plugin.poc.engine import Vectors


def artifacts_text(vectors: Vectors) -> str:
    """``{"nonce":..,"vector_b64":".."}`` of every finite row, comma between, without brackets."""
    return ",".join(
        f'{{"nonce":{nonce},"vector_b64":"{base64.b64encode(vectors.row(index)).decode("ascii")}"}}'
        for index, nonce in enumerate(vectors.nonces)
        if vectors.finite[index]
    )


def with_artifacts(head: Mapping[str, Any] | str, pieces: list[str]) -> bytes:
    """``head`` as a JSON object (or its text) with ``artifacts`` put together from ``pieces``."""
    text = head if isinstance(head, str) else json.dumps(head)
    joined = ",".join(piece for piece in pieces if piece)
    separator = "" if text == "{}" else ","
    return f'{text[:-1]}{separator}"artifacts":[{joined}]}}'.encode()
