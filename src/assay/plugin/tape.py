"""Runner V2's noise on the device, for the two ids that the evidence names of each row.

The torch twin of ``scoring/tape.py``: a pure function of (seed, position, token id), where the
position is the index of the last input token. Integer arithmetic is 32-bit and held in int64.
"""

from __future__ import annotations

from typing import Final

import torch

GENERATION: Final = 1
"""Number of this noise function (``scoring/tape.py``); the same in vLLM 0.31.0, 0.32.0, 0.33.0."""

_WORD: Final = 0xFFFFFFFF
_SECOND_DOMAIN: Final = 0x9E3779B9
_HASHED_BYTES: Final = 16
_LARGEST: Final = 1.0 - 2.0**-24


def tape_hash(
    seeds: torch.Tensor,
    positions: torch.Tensor,
    ids: torch.Tensor,
    *,
    salt: int = 0,
    domain: int = 0,
) -> torch.Tensor:
    """Hash of (seed, position, id), [batch, k] int64 in [0, 2^32).

    ``seeds`` and ``positions`` [batch] int64, ``ids`` [batch, k] int64. ``salt`` is
    ``scoring.tape.DRAFT_SALT`` for a speculative draft.
    """
    state = torch.full_like(seeds, domain)
    for word in (seeds, seeds >> 32, positions + salt):
        state = _mixed(state, word & _WORD)
    state = _mixed(state.unsqueeze(-1), ids & _WORD) ^ _HASHED_BYTES
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & _WORD
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & _WORD
    return state ^ (state >> 16)


def gumbel(
    seeds: torch.Tensor,
    positions: torch.Tensor,
    ids: torch.Tensor,
    *,
    fp64: bool = False,
    salt: int = 0,
) -> torch.Tensor:
    """Gumbel noise, [batch, k] float64 (nats); arguments as of :func:`tape_hash`.

    Single precision noise is made from u rounded to float32, as the engine's kernel has it; the
    logarithms here are double, a few 1e-6 from the kernel's where the noise can win.
    """
    low = tape_hash(seeds, positions, ids, salt=salt)
    if not fp64:
        u = ((low.to(torch.float64) + 0.5) * 2.0**-32).to(torch.float32).to(torch.float64)
        return -(-(-u.clamp(max=_LARGEST)).log1p()).log()
    high = tape_hash(seeds, positions, ids, salt=salt, domain=_SECOND_DOMAIN)
    bits = (high << 21) | (low >> 11)
    u = ((bits.to(torch.float64) + 0.5) * 2.0**-53).clamp(max=1.0 - 2.0**-53)
    return -(-u.log()).log()


def _mixed(state: torch.Tensor, word: torch.Tensor) -> torch.Tensor:
    word = _rotated((word * 0xCC9E2D51) & _WORD, 15)
    state = _rotated(state ^ ((word * 0x1B873593) & _WORD), 13)
    return (state * 5 + 0xE6546B64) & _WORD


def _rotated(value: torch.Tensor, bits: int) -> torch.Tensor:
    return ((value << bits) | (value >> (32 - bits))) & _WORD
