"""What the routes need from an engine. ``vllm_engine`` has the real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from assay.plugin.poc.failures import EngineFaultError
from assay.poc.artifact_file import Challenge

_WIRE = np.dtype("<f2")
BYTES_PER_VALUE = _WIRE.itemsize


@dataclass(frozen=True)
class Vectors:
    """One batch back from the device.

    ``raw`` holds ``[n, k]`` float16 little endian, rows in the order of ``nonces``; ``finite``
    says which rows may be sent; ``seconds`` is device time by part (inputs, metadata, forward,
    projection).
    """

    nonces: tuple[int, ...]
    raw: bytes
    finite: tuple[bool, ...]
    k: int
    seconds: Mapping[str, float]

    @property
    def device_seconds(self) -> float:
        return sum(self.seconds.values())

    def row(self, index: int) -> bytes:
        width = self.k * BYTES_PER_VALUE
        return self.raw[index * width : (index + 1) * width]

    def rows(self) -> npt.NDArray[np.float32]:
        """``[n, k]``, rows that are not finite included."""
        return np.frombuffer(self.raw, dtype=_WIRE).reshape(-1, self.k).astype(np.float32)


def checked_vectors(
    nonces: Sequence[int],
    k: int,
    answer: Mapping[str, Any],
) -> Vectors:
    """A worker's answer as :class:`Vectors`; EngineFaultError unless it is about exactly ``nonces``.

    The bytes crossed two processes and a shared-memory ring: a torn or short answer must never
    become a vector of another nonce (case 32). Finiteness is looked at again here (F27, F28).
    """
    raw = bytes(answer["vectors"])
    if list(answer["nonces"]) != list(nonces):
        raise EngineFaultError("the worker answered for other nonces than it was asked for")
    if len(raw) != len(nonces) * k * BYTES_PER_VALUE or len(answer["finite"]) != len(nonces):
        raise EngineFaultError(
            f"the worker answered with {len(raw)} bytes and {len(answer['finite'])} marks for "
            f"{len(nonces)} vectors of {k} float16"
        )
    values = np.frombuffer(raw, dtype=_WIRE).reshape(len(nonces), k)
    finite = [bool(np.isfinite(row).all()) for row in values]
    return Vectors(
        nonces=tuple(nonces),
        raw=raw,
        finite=tuple(
            bool(said) and seen for said, seen in zip(answer["finite"], finite, strict=True)
        ),
        k=k,
        seconds={name: float(value) for name, value in answer["seconds"].items()},
    )


class PocEngine(Protocol):
    """An engine that can compute PoC vectors.

    ``forward`` raises EngineFaultError with the engine's reason. A forward that was sent cannot be
    called off: callers await it, or leave it to run out.
    """

    @property
    def errored(self) -> bool:
        """Whether the engine is gone for good."""

    async def forward(self, challenge: Challenge, nonces: Sequence[int]) -> Vectors:
        """Vectors of ``nonces``, in one batch."""

    async def profile(self) -> dict[str, Any]:
        """What a threshold is calibrated for, and ``token_budget`` (tokens a forward may have)."""

    async def asleep(self) -> bool:
        """Whether the engine sleeps or its scheduler is paused."""

    async def abort_all(self) -> None:
        """Abort everything running and waiting, in one call."""
