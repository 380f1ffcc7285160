"""Input embeddings and pseudo token ids of nonces (numpy reference)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from assay.errors import SettingsError
from assay.poc.constants import MAX_ELEMENTS
from assay.poc.murmur import murmur3_32
from assay.poc.nonces import check_nonces
from assay.poc.normals import FloatArray, normals, strong_normals
from assay.poc.seeds import input_text, seed, strong_seed_words, token_ids_text


def input_embeddings(  # noqa: PLR0917 - the public signature
    block_hash: str,
    public_key: str,
    nonces: Sequence[int],
    seq_len: int,
    hidden_size: int,
    stronger: bool = False,
) -> FloatArray:
    """Embeddings float32 ``[len(nonces), seq_len, hidden_size]``.

    ``stronger`` is ``poc_stronger_rng`` of the wire. The plain reference: one nonce after
    another. ``assay.poc.torch_batch.input_embeddings`` makes the same numbers on a device.
    """
    check_embedding_shape(seq_len, hidden_size)
    check_nonces(nonces)
    n = seq_len * hidden_size
    made = np.empty((len(nonces), n), dtype=np.float32)
    for row, nonce in enumerate(nonces):
        text = input_text(block_hash, public_key, nonce)
        made[row] = (
            strong_normals(strong_seed_words(text), n) if stronger else normals(seed(text), n)
        )
    return made.reshape(len(nonces), seq_len, hidden_size)


def pseudo_token_ids(
    block_hash: str, public_key: str, nonce: int, seq_len: int, vocab_size: int
) -> npt.NDArray[np.int32]:
    """Token ids int32 ``[seq_len]`` for models that gather by id beside the embeddings."""
    check_vocab(vocab_size)
    check_nonces([nonce])
    keys = np.arange(seq_len, dtype=np.uint32)
    hashed = murmur3_32(keys, seed(token_ids_text(block_hash, public_key, nonce)))
    return (hashed % np.uint32(vocab_size)).astype(np.int32)


def check_embedding_shape(seq_len: int, hidden_size: int) -> None:
    """Raise SettingsError unless both sizes are positive and their product can be hashed."""
    if seq_len < 1 or hidden_size < 1 or seq_len * hidden_size > MAX_ELEMENTS:
        raise SettingsError(
            f"seq_len, hidden_size: {seq_len} x {hidden_size} given; both must be at least 1 and "
            f"their product at most {MAX_ELEMENTS}"
        )


def check_vocab(vocab_size: int) -> None:
    """Raise SettingsError unless ids of this vocabulary fit int32."""
    if not 1 <= vocab_size < 2**31:
        raise SettingsError(f"vocab_size: {vocab_size} given; give 1 to {2**31 - 1}")
