"""The number of chunks of vLLM's shared-memory broadcast rings, as a setting.

Large models under load died of starved rings at vLLM's sizes and lived at 64 chunks. One engine of
``world`` workers holds these rings, each ``chunks x (chunk_bytes + 1 + readers)`` bytes:

- one from the executor to all workers: ``VLLM_MQ_MAX_CHUNK_BYTES_MB`` (16 MiB) a chunk, 10 chunks;
- one from each worker back: 24 MiB a chunk, 10 chunks;
- one for each tensor-parallel group of more than one: 4 MiB a chunk, 6 chunks.

A /dev/shm segment takes memory as its chunks are first written, so a ring that is never full costs
less than its size; but a container whose /dev/shm is too small dies with SIGBUS in the middle of
traffic, which is why the whole sum is checked when the first ring is made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.errors import SettingsError
from assay.plugin.constants import MAX_RING_CHUNKS, RING_CHUNKS_SETTING

MIB = 1 << 20
BROADCAST_CHUNK = 16 * MIB
"""vLLM's default of VLLM_MQ_MAX_CHUNK_BYTES_MB."""
RESPONSE_CHUNK = 24 * MIB
"""Default ``max_chunk_bytes`` of ``MessageQueue``."""
GROUP_CHUNK = 4 * MIB
"""``1 << 22`` at the tensor-parallel group's call site in ``distributed/parallel_state.py``."""
STOCK_CHUNKS, STOCK_GROUP_CHUNKS = 10, 6
SHM = Path("/dev/shm")


def parse_chunks(value: str | None) -> int | None:
    """The setting as a number; ``None`` (unset or empty) keeps vLLM's sizes at every call site."""
    if value is None or not value.strip():
        return None
    if not (value.isascii() and value.isdigit() and 2 <= int(value) <= MAX_RING_CHUNKS):
        raise SettingsError(
            f"{RING_CHUNKS_SETTING} must be a whole number from 2 to {MAX_RING_CHUNKS}, "
            f"got {value!r}; unset it for vLLM's own sizes"
        )
    return int(value)


def needed_bytes(world: int, chunks: int | None, broadcast_chunk: int = BROADCAST_CHUNK) -> int:
    """Bytes of /dev/shm all rings of one engine with ``world`` local workers can take."""
    ring = chunks or STOCK_CHUNKS
    group = (chunks or STOCK_GROUP_CHUNKS) * GROUP_CHUNK if world > 1 else 0
    return ring * (broadcast_chunk + world * RESPONSE_CHUNK) + group


def check_space(
    world: int, chunks: int | None, broadcast_chunk: int = BROADCAST_CHUNK, shm: Path = SHM
) -> None:
    """Raise :class:`SettingsError` with the size needed when ``shm`` cannot hold all rings."""
    if not shm.is_dir():
        return
    need, free = needed_bytes(world, chunks, broadcast_chunk), shutil.disk_usage(shm).free
    if need > free:
        raise SettingsError(
            f"{shm} has {free // MIB} MiB free, but the rings of {world} worker(s) with "
            f"{chunks or 'stock'} chunks can take {need // MIB} MiB. Give the container "
            f"--shm-size={-(-need // (1 << 30))}g or more, or lower {RING_CHUNKS_SETTING}."
        )


def sized_ring(
    stock: type, chunks: int, broadcast_chunk: int = BROADCAST_CHUNK, shm: Path = SHM
) -> Callable[..., Any]:
    """``ShmRingBuffer.__init__`` that uses ``chunks`` for rings it creates.

    A ring that is opened by name keeps the size its creator chose. The first ring an executor
    makes is the broadcast to all its workers, known by its chunk size (``broadcast_chunk`` bytes):
    the sum of all rings is checked there.
    """
    original = stock.__init__

    def __init__(  # noqa: N807
        self: Any,
        n_reader: int,
        max_chunk_bytes: int,
        max_chunks: int,
        name: str | None = None,
    ) -> None:
        if name is not None:
            original(self, n_reader, max_chunk_bytes, max_chunks, name)
            return
        if max_chunk_bytes == broadcast_chunk:
            check_space(n_reader, chunks, max_chunk_bytes, shm)
        original(self, n_reader, max_chunk_bytes, chunks, None)

    __init__.assay_stock = original  # type: ignore[attr-defined]
    return __init__
