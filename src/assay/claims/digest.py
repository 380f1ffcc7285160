"""The digest that binds a claim to its prompt."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

ID_LIMIT = 1 << 32


def prompt_digest(ids: Sequence[int]) -> str | None:
    """SHA-256 (hex) over ``ids``, each as a little-endian unsigned 32-bit integer, in order.

    Equal on every machine and for every tokenizer library, since it sees ids and no text.
    ``None`` for ids that do not fit, which no vocabulary holds.
    """
    if not all(0 <= token < ID_LIMIT for token in ids):
        return None
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()
