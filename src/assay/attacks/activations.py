"""A check of activations in the style of TOPLOC, for comparison.

TOPLOC (Ong et al. 2025, "TOPLOC: a locality sensitive hashing scheme for trustless verifiable
inference") commits, for every 32 tokens, to the 128 largest values of the last hidden states, and
a verifier that recomputes them by one prefill counts exponents that differ and averages the
difference of the mantissas of the others. The published package packs the values into
a polynomial to save bytes; that is lossless, so it is left out here, and the statistic is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

CHUNK_TOKENS = 32
TOP_VALUES = 128
MANTISSA_BITS, EXPONENT_MASK = 7, 0xFF
"""Of bfloat16, in which TOPLOC compares."""

Bits = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class Commitment:
    """One chunk: flat indices into ``[tokens, hidden]`` and the bfloat16 bits there."""

    indices: npt.NDArray[np.int64]
    bits: Bits


def commit(bits: Bits) -> list[Commitment]:
    """The commitments to the bfloat16 bits ``[tokens, hidden]`` of one claim."""
    found = []
    for start in range(0, len(bits), CHUNK_TOKENS):
        flat = bits[start : start + CHUNK_TOKENS].ravel()
        # Without the sign bit, bfloat16 bits sort as magnitudes.
        magnitude = flat & np.uint16(0x7FFF)
        indices = np.argsort(-magnitude.astype(np.int64), kind="stable")[:TOP_VALUES]
        found.append(Commitment(indices, flat[indices]))
    return found


def distance(commitments: Sequence[Commitment], bits: Bits) -> float:
    """Mean over chunks of the mantissa difference (in steps of the last place) at the committed
    places; a value whose sign or exponent differs counts a whole mantissa, 128 steps.

    ``bits`` ``[tokens, hidden]`` are the verifier's. NaN for no chunk or other lengths.
    """
    per_chunk = []
    for number, one in enumerate(commitments):
        flat = bits[number * CHUNK_TOKENS : (number + 1) * CHUNK_TOKENS].ravel()
        if not len(flat) or one.indices.max(initial=0) >= len(flat):
            return float("nan")
        ours = flat[one.indices]
        same = (ours >> MANTISSA_BITS) == (one.bits >> MANTISSA_BITS)  # sign and exponent
        steps = 1 << MANTISSA_BITS
        low = np.uint16(steps - 1)
        gap = np.abs((ours & low).astype(np.int64) - (one.bits & low).astype(np.int64))
        per_chunk.append(float(np.where(same, gap, steps).mean()))
    return float(np.mean(per_chunk)) if per_chunk else float("nan")


class HiddenStates:
    """The model in a folder, run by transformers for its last hidden states."""

    def __init__(self, folder: Path, dtype: str = "float32") -> None:
        import torch
        from transformers import AutoModel

        self._model = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def bits(self, prompt: Sequence[int], output: Sequence[int]) -> Bits:
        """bfloat16 bits ``[len(output), hidden]``: the states each output token was drawn from."""
        import torch

        ids = torch.tensor([[*prompt, *output]])
        with torch.inference_mode():
            states = self._model(input_ids=ids).last_hidden_state[0]
        return as_bits(states[len(prompt) - 1 : -1])


def as_bits(states: torch.Tensor) -> Bits:
    """The bfloat16 bits of ``states``, same shape."""
    import torch

    return states.to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
