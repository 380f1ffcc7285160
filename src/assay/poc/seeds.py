"""Challenge strings and the seeds they hash to."""

from __future__ import annotations

import hashlib

from assay.poc.constants import STRONG_SEED_WORDS


def seed(text: str) -> int:
    """First 4 bytes of SHA-256 of the UTF-8 ``text``, big endian, as an unsigned 32-bit int."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def strong_seed_words(text: str) -> tuple[int, ...]:
    """The 8 big-endian uint32 words of SHA-256(``text``). Word 0 equals ``seed(text)``."""
    digest = hashlib.sha256(text.encode()).digest()
    return tuple(
        int.from_bytes(digest[4 * word : 4 * word + 4], "big") for word in range(STRONG_SEED_WORDS)
    )


# The strings. The underscores differ between them (``nonce7`` but ``nonce_7``): consensus.


def input_text(block_hash: str, public_key: str, nonce: int) -> str:
    return f"{block_hash}_{public_key}_nonce{nonce}"


def token_ids_text(block_hash: str, public_key: str, nonce: int) -> str:
    return f"{block_hash}_{public_key}_nonce{nonce}_input_ids"


def pick_text(block_hash: str, public_key: str, nonce: int, k: int) -> str:
    return f"{block_hash}_{public_key}_nonce_{nonce}_pick_{k}"


def rotation_text(block_hash: str, public_key: str, nonce: int, k: int, step: int) -> str:
    return f"{block_hash}_{public_key}_nonce_{nonce}_haar_hh_{k}_{step}"


def layer_text(block_hash: str, layer: int) -> str:
    return f"{block_hash}_layer_{layer}_householder"
