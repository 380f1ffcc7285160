"""One scratch KV cache for a proof-of-compute forward; live blocks are never touched.

Layers run one after another and a proof needs no cache after its layer, so all layers of one
layout share one tensor; a layer whose cache later layers read (KV sharing) has one with them
alone. Every attention layer is re-bound to it for the forward and bound back on every exit path.
Block 0 stays unused: padding kernels skip it (F24).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from assay.errors import SurfaceError

logger = logging.getLogger("vllm.assay")

MIB = 1 << 20


@dataclass(frozen=True)
class Layout:
    """What two layers must have in common to share a scratch tensor.

    ``shape`` with the block dimension set to 0; ``order`` lists dimensions from the widest stride;
    ``owner`` names the layer whose cache others read, and is empty for all the rest.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    block_dim: int
    owner: str = ""


def shared_owners(layers: dict[str, Any]) -> dict[str, str]:
    """Layer -> the layer that writes the cache it reads, for both sides of every KV sharing."""
    readers = {
        name: target
        for name, layer in layers.items()
        if (target := getattr(layer, "kv_sharing_target_layer_name", None)) is not None
    }
    return {target: target for target in readers.values()} | readers


def layout_of(cache: Any, n_blocks: int, name: str, owner: str = "") -> Layout:
    """The layout of a layer's live cache of ``n_blocks`` kernel blocks; SurfaceError if unknown."""
    if not isinstance(cache, torch.Tensor) or cache.ndim < 3:
        raise SurfaceError(
            f"attention layer {name} keeps its state in {type(cache).__name__}, not in one block "
            "cache (a state-space or linear-attention layer?); proof of compute is refused"
        )
    if n_blocks not in cache.shape[:2]:
        raise SurfaceError(
            f"attention layer {name} has a cache of shape {tuple(cache.shape)}, in which "
            f"{n_blocks} blocks cannot be found"
        )
    block_dim = 0 if cache.shape[0] == n_blocks else 1
    shape = tuple(0 if dim == block_dim else size for dim, size in enumerate(cache.shape))
    strides = cache.stride()
    order = tuple(sorted(range(cache.ndim), key=lambda dim: (-strides[dim], dim)))
    return Layout(shape, order, cache.dtype, cache.device, block_dim, owner)


class ScratchCache:
    """Scratch tensors by layout, grown when a larger batch comes and otherwise reused."""

    def __init__(self) -> None:
        self._tensors: dict[Layout, torch.Tensor] = {}

    def get(self, layout: Layout, blocks: int) -> torch.Tensor:
        """A tensor of this layout with at least ``blocks`` blocks, zero where never written."""
        held = self._tensors.get(layout)
        if held is None or held.shape[layout.block_dim] < blocks:
            self._tensors.pop(layout, None)
            del held
            held = self._tensors[layout] = _allocate(layout, blocks)
            logger.info(
                "assay: scratch KV cache of %d blocks, %.1f MiB (%d layouts, %.1f MiB in all)",
                blocks,
                held.numel() * held.element_size() / MIB,
                len(self._tensors),
                self.bytes / MIB,
            )
        return held

    def clear(self, layout: Layout, blocks: torch.Tensor) -> None:
        """Zero ``blocks`` (int64, on the device) of the tensor of ``layout``."""
        # As bytes: filling is not implemented for every cache dtype (float8).
        tensor = self._tensors[layout].view(torch.uint8)
        tensor.index_fill_(layout.block_dim, blocks, 0)

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self._tensors.values())


def _allocate(layout: Layout, blocks: int) -> torch.Tensor:
    sizes = [blocks if dim == layout.block_dim else s for dim, s in enumerate(layout.shape)]
    stored = torch.zeros(
        [sizes[dim] for dim in layout.order], dtype=layout.dtype, device=layout.device
    )
    back = sorted(range(len(sizes)), key=lambda dim: layout.order[dim])
    return stored.permute(back)


@contextmanager
def bound(layers: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Iterator[None]:
    """Bind every named layer to its scratch tensor, and back, exceptions included."""
    live = {name: layers[name].kv_cache for name in tensors}
    try:
        for name, tensor in tensors.items():
            layers[name].kv_cache = tensor
        yield
    finally:
        for name, cache in live.items():
            layers[name].kv_cache = cache
