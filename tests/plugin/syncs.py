"""Finds operations that would make a device wait for the host, or launch one kernel a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

READS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.is_nonzero}
"""Their result, or its size, is needed on the host."""
ROW_WRITES = {aten.index_put_, aten.index_put, aten.copy_, aten.fill_, aten.masked_scatter_}
"""Writes into a part of a tensor: one launch each, and a host value each."""
INDEXING = {aten.index}
"""Waits for the device when an index is boolean."""


class Syncs(TorchDispatchMode):
    """Counts the forbidden operations that run inside it, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        packet = func.overloadpacket
        if packet in READS or packet in ROW_WRITES:
            self.seen[str(packet)] += 1
        if packet in INDEXING and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        ):
            self.seen["aten.index by a mask"] += 1
        return func(*args, **(kwargs or {}))


def count(run: Callable[[], Any]) -> Counter[str]:
    """Forbidden operations of one call."""
    with Syncs() as mode:
        run()
    return mode.seen


def on_meta(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without data: whatever reads a value on the host raises."""
    return tensor.to("meta")
