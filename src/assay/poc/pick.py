"""Which k dimensions of the last hidden state a nonce shows, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from assay.errors import SettingsError
from assay.poc.murmur import murmur3_32
from assay.poc.seeds import pick_text, seed

IndexArray = npt.NDArray[np.int64]


def pick_indices(
    block_hash: str, public_key: str, nonce: int, hidden_size: int, k: int
) -> IndexArray:
    """The ``k`` picked dimensions, int64 ``[k]``, in canonical order.

    Every dimension d gets the score murmur3_32(d); the k smallest scores win, the lower index on
    a tie. Canonical order: the k-1 smallest in ascending dimension index, the k-th smallest last
    (the order found in the published vectors; ``torch.topk`` on a CPU gives another one).
    """
    row: IndexArray = pick_rows(block_hash, public_key, [nonce], hidden_size, k)[0]
    return row


def pick_rows(
    block_hash: str, public_key: str, nonces: Sequence[int], hidden_size: int, k: int
) -> IndexArray:
    """``pick_indices`` of every nonce: int64 ``[len(nonces), k]``."""
    check_pick(hidden_size, k)
    keys = np.arange(hidden_size, dtype=np.uint32)
    shift = np.uint64(32)
    picked = np.empty((len(nonces), k), dtype=np.int64)
    for row, nonce in enumerate(nonces):
        scores = murmur3_32(keys, seed(pick_text(block_hash, public_key, nonce, k)))
        # Score and index in one number, so that equal scores go to the lower index.
        ranked = (scores.astype(np.uint64) << shift) | keys
        smallest = np.sort(np.partition(ranked, k - 1)[:k]) & np.uint64(2**32 - 1)
        picked[row, :-1] = np.sort(smallest[:-1])
        picked[row, -1] = smallest[-1]
    return picked


def check_pick(hidden_size: int, k: int) -> None:
    """Raise SettingsError unless 1 <= k <= hidden_size."""
    if not 1 <= k <= hidden_size:
        raise SettingsError(f"k: cannot pick {k} of {hidden_size} dimensions; give 1..hidden_size")
