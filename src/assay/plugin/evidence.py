"""Evidence a worker keeps while replays run: bounded, folded without a sync, taken once.

A step leaves two small device tensors and the list of rows they belong to. They are copied to
pinned host memory in the background and folded into per-request arrays when their copy is known
to be finished; only :meth:`EvidenceStore.take`, called after the replay ended, may wait.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from assay.plugin.constants import MAX_OPEN_POSITIONS, MAX_OPEN_REPLAYS

INT_COLUMNS: Final = ("drawn", "rank_raw", "rank_processed")
FLOAT_COLUMNS: Final = (
    "logprob_raw",
    "logprob_processed",
    "drawn_raw",
    "drawn_processed",
    "noise_drawn",
    "noise_forced",
)
NOISE_COLUMNS: Final = FLOAT_COLUMNS[4:]
"""Order of :func:`assay.plugin.select.measure`. A noise of NaN means that it cannot be repeated."""


@dataclass
class _Record:
    """Arrays [positions] of one replay; ``seen`` marks the positions that were measured."""

    size: int
    ints: npt.NDArray[np.int32] = field(init=False)
    floats: npt.NDArray[np.float32] = field(init=False)
    seen: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.ints = np.zeros((len(INT_COLUMNS), self.size), dtype=np.int32)
        self.floats = np.zeros((len(FLOAT_COLUMNS), self.size), dtype=np.float32)
        self.seen = np.zeros(self.size, dtype=np.bool_)


@dataclass(frozen=True)
class _Pending:
    ints: torch.Tensor
    floats: torch.Tensor
    copied: torch.cuda.Event | None
    rows: tuple[tuple[int, str, int, int], ...]


class EvidenceStore:
    """Per-replay evidence of one worker, keyed by request."""

    def __init__(
        self, max_replays: int = MAX_OPEN_REPLAYS, max_positions: int = MAX_OPEN_POSITIONS
    ) -> None:
        self._records: OrderedDict[str, _Record] = OrderedDict()
        self._pending: deque[_Pending] = deque()
        self._dropped: OrderedDict[str, None] = OrderedDict()
        self._positions = 0
        self._max_replays = max_replays
        self._max_positions = max_positions

    def __len__(self) -> int:
        return len(self._records)

    @property
    def positions(self) -> int:
        """Positions held over all open replays."""
        return self._positions

    def add(
        self,
        ints: torch.Tensor,
        floats: torch.Tensor,
        rows: tuple[tuple[int, str, int, int], ...],
    ) -> None:
        """Keep one step: ``ints`` [3, n], ``floats`` [6, n], n rows (row, key, position, length)."""
        copied = None
        if ints.is_cuda:
            ints = ints.to("cpu", non_blocking=True)
            floats = floats.to("cpu", non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        self._pending.append(_Pending(ints, floats, copied, rows))
        while self._pending and (
            self._pending[0].copied is None or self._pending[0].copied.query()
        ):
            self._fold(self._pending.popleft())

    def take(self, key: str) -> dict[str, Any] | None:
        """Remove and return a replay's evidence as plain data; ``None`` if this worker has none.

        Positions are listed in ``at``: with sharded sampling a worker sees only some of them.
        """
        self._finish(key)
        record = self._records.pop(key, None)
        self._remember_drop(key)
        if record is None:
            return None
        self._positions -= record.size
        at = np.flatnonzero(record.seen)
        return {
            "size": record.size,
            "at": at.tolist(),
            **dict(zip(INT_COLUMNS, record.ints[:, at].tolist(), strict=True)),
            **dict(zip(FLOAT_COLUMNS, record.floats[:, at].tolist(), strict=True)),
        }

    def drop(self, key: str) -> None:
        """Forget a replay that was aborted or whose client went away."""
        record = self._records.pop(key, None)
        if record is not None:
            self._positions -= record.size
        self._remember_drop(key)

    def _finish(self, key: str) -> None:
        """Fold what is pending up to the last step of ``key``, waiting for its copy if need be."""
        last = -1
        for index, step in enumerate(self._pending):
            if any(owner == key for _, owner, _, _ in step.rows):
                last = index
        for _ in range(last + 1):
            step = self._pending.popleft()
            if step.copied is not None:
                step.copied.synchronize()
            self._fold(step)

    def _fold(self, step: _Pending) -> None:
        ints, floats = step.ints.numpy(), step.floats.numpy()
        for at, (_, key, position, size) in enumerate(step.rows):
            record = self._records.get(key)
            if record is None:
                if key in self._dropped:
                    continue
                record = self._open(key, size)
            record.ints[:, position] = ints[:, at]
            record.floats[:, position] = floats[:, at]
            record.seen[position] = True

    def _open(self, key: str, size: int) -> _Record:
        while self._records and (
            len(self._records) >= self._max_replays or self._positions + size > self._max_positions
        ):
            oldest, record = self._records.popitem(last=False)
            self._positions -= record.size
            self._remember_drop(oldest)
        record = self._records[key] = _Record(size)
        self._positions += size
        return record

    def _remember_drop(self, key: str) -> None:
        """A step in flight may still arrive for a replay that is gone; it must not reopen it."""
        self._dropped[key] = None
        while len(self._dropped) > self._max_replays:
            self._dropped.popitem(last=False)
