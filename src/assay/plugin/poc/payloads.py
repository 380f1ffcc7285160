"""Vectors as JSON text, made once and used for answers, callbacks and the store alike."""

from __future__ import annotations

import base64

from assay.plugin.poc.engine import Vectors


def artifacts_text(vectors: Vectors, *, mark_failed: bool = False) -> str:
    """``{"nonce":..,"vector_b64":".."}`` of every finite row, comma between, without brackets.

    ``mark_failed``: the rows that are not finite are in it too, with an empty text.
    """
    return ",".join(
        f'{{"nonce":{nonce},"vector_b64":"{_text(vectors, index)}"}}'
        for index, nonce in enumerate(vectors.nonces)
        if mark_failed or vectors.finite[index]
    )


def _text(vectors: Vectors, index: int) -> str:
    if not vectors.finite[index]:
        return ""
    return base64.b64encode(vectors.row(index)).decode("ascii")
