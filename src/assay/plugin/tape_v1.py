"""Runner V1's noise, drawn a second time for the two ids that the evidence names.

V1 gives every seeded request a ``torch.Generator`` and takes one draw of it a step. A copy of the
generator, made before the step, draws the same noise again. Stock code has two ways to make noise
of a draw, and which one runs depends on the version, the platform and a flag; it is found by
trying, because a wrong guess would be evidence against honest executors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from vllm.platforms import current_platform

EXPONENTIAL: Final = 1
"""Generation: one row of Exp(1) numbers q, drawn from the generator; noise is -log q."""
SPLITMIX: Final = 2
"""Generation: one number of 31 bits from the generator, hashed with each token id (SplitMix64)."""

SEED_RANGE: Final = 2**31
_GAMMA: Final = 0x9E3779B97F4A7C15 - 2**64
_MIXERS: Final = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))

_ROWS, _VOCAB = 16, 67
"""Size of the trial: 16 draws from 67 ids agree by chance once in 67**16."""


@dataclass(frozen=True)
class SequentialTape:
    """How the noise of this worker's sampler is made. ``generation`` is ``None`` when unknown."""

    generation: int | None
    fp64: bool

    @classmethod
    def of(cls, sampler: Callable[..., Any], *, fp64: bool) -> SequentialTape:
        """The tape of ``sampler`` (a native ``TopKTopPSampler``), found by drawing with it."""
        device = torch.device(current_platform.device_type)
        logits = torch.zeros((_ROWS, _VOCAB), dtype=torch.float32, device=device)
        every = torch.arange(_VOCAB, device=device).expand(_ROWS, -1)

        def generators() -> dict[int, torch.Generator]:
            return {row: torch.Generator(device).manual_seed(row) for row in range(_ROWS)}

        # Unseeded requests draw from the global generator: the trial must not move it.
        with torch.random.fork_rng(devices=[]):
            drawn, _ = sampler(logits.clone(), generators(), None, None)
        for generation in (EXPONENTIAL, SPLITMIX):
            tape = cls(generation, fp64)
            noise = tape.noise(list(generators().values()), every, _VOCAB)
            if noise is not None and torch.equal(noise.argmax(dim=-1), drawn):
                return tape
        return cls(None, fp64)

    def copies(
        self, generators: Mapping[int, torch.Generator], rows: Sequence[int]
    ) -> list[torch.Generator] | None:
        """Copies of the generators of ``rows`` as they stand; ``None`` where one is missing."""
        if self.generation is None or not all(row in generators for row in rows):
            return None
        return [generators[row].clone_state() for row in rows]

    def noise(
        self, copies: list[torch.Generator] | None, ids: torch.Tensor, vocab: int
    ) -> torch.Tensor | None:
        """Gumbel noise [n, k] of ``ids`` [n, k] int64 by each copy's next draw; consumes it.

        ``None`` where it cannot be repeated. The sampler drew argmax over all ids of processed log
        probability + noise. Memory: [n, vocab], as stock code's own noise.
        """
        if copies is None:
            return None
        if not copies:
            return ids.to(torch.float64)  # no row, no noise; keeps the shape [0, k]
        if self.generation == SPLITMIX:
            draws = [
                torch.randint(0, SEED_RANGE, (1,), generator=copy, dtype=torch.long)
                for copy in copies
            ]
            return splitmix_noise(torch.cat(draws), ids)
        dtype = torch.float64 if self.fp64 else torch.float32
        q = torch.empty((len(copies), vocab), dtype=dtype, device=ids.device)
        for row, copy in enumerate(copies):
            q[row].exponential_(generator=copy)
        return -q.gather(-1, ids).log()


def splitmix_noise(row_seeds: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Gumbel noise [n, k] float64 of ``ids`` [n, k] under ``row_seeds`` [n] int64.

    ``-log(-log u)`` with u = (b + 1/2) / 2^53 and b the upper 53 bits of the id's number in the
    SplitMix64 stream that starts at the mixed row seed. 64-bit arithmetic wraps.
    """
    start = _mix64(row_seeds).unsqueeze(-1)
    bits = _shifted(_mix64(start + (ids + 1) * _GAMMA), 11)
    u = (bits.to(torch.float64) + 0.5) * 2.0**-53
    return -(-u.log()).log()


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right of int64, which torch shifts with its sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix64(value: torch.Tensor) -> torch.Tensor:
    for bits, factor in _MIXERS:
        value = (value ^ _shifted(value, bits)) * factor
    return value ^ _shifted(value, 31)
