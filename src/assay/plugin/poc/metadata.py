"""Attention metadata of a batch of fresh sequences, built anew for every call (F21).

Every sequence starts at position 0, is causal within itself and reuses nothing. Each attention
group has its own block size (F22), hence its own block table and slots.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from vllm.v1.attention.backend import CommonAttentionMetadata

from assay.errors import SurfaceError

MIXES_SEQUENCES = frozenset({"CPU_MLA"})
"""Backends whose output for one sequence depends on the others of the batch, so that a vector would
depend on its neighbours. vLLM 0.32's CPU MLA: ordinary prompts of the same text get log probabilities
up to 0.6 apart in batches of 1, 2 and 3 (found with a tiny DeepSeek-V2)."""


@dataclass(frozen=True)
class Group:
    """One attention group: its builder, its layers, and its kernel block size in tokens."""

    builder: Any
    layer_names: tuple[str, ...]
    block_size: int


def groups_of(runner: Any) -> list[Group]:
    """The attention groups of a model runner of either generation."""
    groups = []
    for per_cache in runner.attn_groups:
        for group in per_cache:
            if group.backend.get_name() in MIXES_SEQUENCES:
                raise SurfaceError(
                    f"attention backend {group.backend.get_name()} does not keep the sequences of a "
                    "batch apart, so no vector could be repeated; proof of compute is refused"
                )
            builder = group.get_metadata_builder(0)
            block_size = getattr(builder.kv_cache_spec, "block_size", None)
            if not isinstance(block_size, int) or not hasattr(builder.kv_cache_spec, "head_size"):
                raise SurfaceError(
                    f"attention group {group.backend.__name__} ({', '.join(group.layer_names[:2])}) "
                    "has no token blocks; proof of compute is refused"
                )
            groups.append(Group(builder, tuple(group.layer_names), block_size))
    return groups


def blocks_needed(batch: int, seq_len: int, block_size: int) -> int:
    """Blocks of one layout for a batch, the unused block 0 included."""
    return 1 + batch * -(-seq_len // block_size)


def part_filled(
    batch: int, seq_len: int, block_size: int, device: torch.device
) -> torch.Tensor | None:
    """The last block of every sequence, int64 ``[batch]``; ``None`` where sequences fill theirs.

    Kernels read whole blocks and give the slots past the end a weight of 0, but 0 x NaN is NaN:
    what a broken batch left there would break every batch after it.
    """
    width = -(-seq_len // block_size)
    if seq_len % block_size == 0:
        return None
    return torch.arange(width, batch * width + 1, width, device=device)


def build(
    groups: list[Group], batch: int, seq_len: int, device: torch.device
) -> tuple[dict[str, Any], dict[str, torch.Tensor], torch.Tensor]:
    """Metadata by layer, slots [batch * seq_len] by layer, positions [batch * seq_len] int64."""
    tokens = batch * seq_len
    starts = torch.arange(0, tokens + 1, seq_len, dtype=torch.int32)
    lengths = torch.full((batch,), seq_len, dtype=torch.int32)
    positions = torch.arange(seq_len, dtype=torch.int64, device=device).repeat(batch)
    metadata: dict[str, Any] = {}
    slots_by_layer: dict[str, torch.Tensor] = {}
    for group in groups:
        width = -(-seq_len // group.block_size)
        table = torch.arange(1, 1 + batch * width, dtype=torch.int32, device=device)
        table = table.view(batch, width)
        first = table[:, :1].to(torch.int64) * group.block_size
        slots = (first + torch.arange(seq_len, device=device)).view(-1)
        common = _common(
            query_start_loc=starts.to(device),
            query_start_loc_cpu=starts,
            seq_lens=lengths.to(device),
            num_reqs=batch,
            num_actual_tokens=tokens,
            max_query_len=seq_len,
            max_seq_len=seq_len,
            block_table_tensor=table,
            slot_mapping=slots,
            causal=True,
            positions=positions,
            is_prefilling=torch.ones(batch, dtype=torch.bool),
            # MLA backends read lengths on the host from here (F23).
            seq_lens_cpu_upper_bound=lengths,
            _seq_lens_cpu=lengths,
            _num_computed_tokens_cpu=torch.zeros_like(lengths),
        )
        built = group.builder.build(0, common)
        for name in group.layer_names:
            metadata[name] = built
            slots_by_layer[name] = slots
    return metadata, slots_by_layer, positions


def _common(**values: Any) -> CommonAttentionMetadata:
    """``CommonAttentionMetadata`` with those of ``values`` this version has (fields differ)."""
    known = {field.name for field in fields(CommonAttentionMetadata) if field.init}
    return CommonAttentionMetadata(**{k: v for k, v in values.items() if k in known})
