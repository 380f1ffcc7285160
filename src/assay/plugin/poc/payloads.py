"""Vectors as JSON text, made once and used for answers, callbacks and the store alike."""

from __future__ import annotations

import base64

from assay.plugin.poc.engine import Vectors


def artifacts_text(vectors: Vectors) -> str:
    """``{"nonce":..,"vector_b64":".."}`` of every finite row, comma between, without brackets."""
    return ",".join(
        f'{{"nonce":{nonce},"vector_b64":"{base64.b64encode(vectors.row(index)).decode("ascii")}"}}'
        for index, nonce in enumerate(vectors.nonces)
        if vectors.finite[index]
    )
