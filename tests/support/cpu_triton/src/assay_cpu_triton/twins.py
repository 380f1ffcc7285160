"""PyTorch twins for the two kernels of Model Runner V2 that Triton cannot interpret.

Loaded as a vLLM general plugin. It does nothing unless Triton interprets, so that a V1 server,
or one with compiled kernels, is left alone. Checked on vLLM 0.32.0.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class GrammarBitmaskTwin:
    """Stands where ``_apply_grammar_bitmask_kernel`` stood and is launched the same way."""

    def __getitem__(self, grid: tuple[int, int]) -> GrammarBitmaskTwin:
        return self

    def __call__(  # noqa: PLR0917 - launched with the kernel's own positional arguments
        self,
        logits: torch.Tensor,
        logits_stride: int,
        logits_indices: torch.Tensor,
        cu_num_logits: torch.Tensor,
        bitmask: torch.Tensor,
        bitmask_stride: int,
        vocab_size: int,
        **meta: int,
    ) -> None:
        """Write -inf into ``logits`` [rows, vocab] wherever the packed mask has a 0 bit.

        ``logits_indices`` [masks] is request * MASK_STRIDE + position; ``cu_num_logits``
        [requests + 1] holds each request's first row; ``bitmask`` [masks, ceil(vocab / 32)]
        int32, bit i of word w standing for id 32 * w + i, 1 = allowed.
        """
        import torch

        mapping = logits_indices.long()
        request = mapping // meta["MASK_STRIDE"]
        position = mapping % meta["MASK_STRIDE"]
        first = cu_num_logits.long()[request]
        active = position < cu_num_logits.long()[request + 1] - first  # [masks]
        bits = torch.arange(32, dtype=torch.int32, device=bitmask.device)
        allowed = ((bitmask[:, :, None] >> bits) & 1).flatten(1)[:, :vocab_size].bool()
        rows = (first + position)[active]
        logits[rows] = logits[rows].masked_fill(~allowed[active], float("-inf"))


def top_k_top_p_twin(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None
) -> torch.Tensor:
    """vLLM's own PyTorch version, in the place of the combined kernel."""
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p_pytorch

    return apply_top_k_top_p_pytorch(logits, k, p, allow_cpu_sync=True)


def register() -> None:
    """Put the twins in place; idempotent, as vLLM may load plugins more than once a process."""
    from triton import knobs

    if not knobs.runtime.interpret:
        return
    sampler = importlib.import_module("vllm.v1.sample.ops.topk_topp_sampler")
    grammar = importlib.import_module("vllm.v1.worker.gpu.structured_outputs")
    for module, name, twin in (
        (sampler, "apply_top_k_top_p_triton", top_k_top_p_twin),
        (grammar, "_apply_grammar_bitmask_kernel", GrammarBitmaskTwin()),
    ):
        if not hasattr(module, name):
            raise RuntimeError(f"{module.__name__} has no {name}: the twins do not fit this vLLM")
        setattr(module, name, twin)
