"""The device half of a step: force ids, choose each row's mode, measure the evidence.

No host synchronisation happens here: the plan is uploaded once and everything else is
``torch.where`` over whole tensors (no ``any()``, no boolean indexing, no per-row writes).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from assay.plugin.rows import LOGIT_MODES, RAW_MODES, StepPlan


@dataclass(frozen=True)
class StepTensors:
    """A plan on the device: ``forced`` [batch] int64, ``raw`` and ``logits`` [batch, 1] bool."""

    plan: StepPlan
    forced: torch.Tensor
    raw: torch.Tensor
    logits: torch.Tensor


def upload(plan: StepPlan, device: torch.device) -> StepTensors:
    """Move one plan to the device in a single copy."""
    table = np.empty((3, len(plan.modes)), dtype=np.int64)
    table[0] = plan.forced
    table[1] = [mode in RAW_MODES for mode in plan.modes]
    table[2] = [mode in LOGIT_MODES for mode in plan.modes]
    host = torch.from_numpy(table)
    if device.type != "cpu":
        host = host.pin_memory().to(device, non_blocking=True)
    flags = host[1:].to(torch.bool)
    return StepTensors(plan, host[0], flags[0].unsqueeze(-1), flags[1].unsqueeze(-1))


def force(sampled: torch.Tensor, step: StepTensors) -> torch.Tensor:
    """``sampled`` [batch] with the forced ids in place; same dtype."""
    forced = step.forced.to(sampled.dtype)
    return torch.where(forced >= 0, forced, sampled)


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Log-softmax over the vocabulary in float32, [batch, vocab]; what vLLM returns as logprobs."""
    return logits.log_softmax(dim=-1, dtype=torch.float32)


def scores(raw: torch.Tensor, processed: torch.Tensor, step: StepTensors) -> torch.Tensor:
    """Each row's own numbers, float32 [batch, vocab], from its raw and processed logits.

    A row in a ``*_logits`` mode gets logits, every other row log probabilities. A batch whose rows
    agree takes one branch and builds one tensor.
    """
    mode = step.plan.single_mode
    if mode is not None:
        chosen = raw if mode in RAW_MODES else processed
        return chosen.to(torch.float32) if mode in LOGIT_MODES else log_probabilities(chosen)
    chosen = torch.where(step.raw, raw.to(torch.float32), processed.to(torch.float32))
    if not any(name in LOGIT_MODES for name in step.plan.modes):
        return log_probabilities(chosen)
    return torch.where(step.logits, chosen, log_probabilities(chosen))


def measure(
    drawn: torch.Tensor,
    forced_into: torch.Tensor,
    raw_logprobs: torch.Tensor,
    processed_logprobs: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Evidence of one step: ids and ranks [3, batch] int64, log probabilities [2, batch] float32.

    Rows of the first: the id that would have been drawn, the rank of the final id under the raw
    and under the processed distribution (1 = most likely; counted with ``>=``, as both runners do).
    """
    index = forced_into.to(torch.int64).unsqueeze(-1)
    raw = raw_logprobs.gather(-1, index)
    processed = processed_logprobs.gather(-1, index)
    ints = torch.stack(
        (
            drawn.to(torch.int64),
            (raw_logprobs >= raw).sum(dim=-1),
            (processed_logprobs >= processed).sum(dim=-1),
        )
    )
    return ints, torch.cat((raw, processed), dim=-1).T
