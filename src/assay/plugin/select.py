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
    """A plan on the device: ``forced`` [batch] int64, ``raw`` and ``logits`` [batch, 1] bool.

    ``rows`` [n] int64 are the rows with evidence, in the plan's order; ``seeded`` [m] int64 those
    whose noise can be drawn again; ``source`` [n] int64 says where a row's noise is found
    (:func:`noise_columns`).
    """

    plan: StepPlan
    forced: torch.Tensor
    raw: torch.Tensor
    logits: torch.Tensor
    rows: torch.Tensor
    seeded: torch.Tensor
    source: torch.Tensor


GREEDY, UNKNOWN, FIRST_SEEDED = 0, 1, 2
"""Values of ``StepTensors.source``: no noise, noise nobody can repeat, and the first seeded row."""


def upload(plan: StepPlan, device: torch.device) -> StepTensors:
    """Move one plan to the device in a single copy."""
    table = np.zeros((6, len(plan.modes)), dtype=np.int64)
    table[0] = plan.forced
    table[1] = [mode in RAW_MODES for mode in plan.modes]
    table[2] = [mode in LOGIT_MODES for mode in plan.modes]
    rows, seeded = len(plan.evidence), len(plan.seeded)
    source = dict.fromkeys(plan.greedy, GREEDY)
    source |= {row: FIRST_SEEDED + at for at, row in enumerate(plan.seeded)}
    table[3, :rows] = [row for row, *_ in plan.evidence]
    table[4, :seeded] = plan.seeded
    table[5, :rows] = [source.get(row, UNKNOWN) for row, *_ in plan.evidence]
    host = torch.from_numpy(table)
    if device.type != "cpu":
        host = host.pin_memory().to(device, non_blocking=True)
    flags = host[1:3].to(torch.bool)
    return StepTensors(
        plan,
        host[0],
        flags[0].unsqueeze(-1),
        flags[1].unsqueeze(-1),
        host[3, :rows],
        host[4, :seeded],
        host[5, :rows],
    )


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


def pairs(drawn: torch.Tensor, final: torch.Tensor) -> torch.Tensor:
    """The two ids of every row, [batch, 2] int64: the one drawn and the one it ended with."""
    return torch.stack((drawn.to(torch.int64), final.to(torch.int64)), dim=-1)


def noise_columns(step: StepTensors, noise: torch.Tensor | None) -> torch.Tensor:
    """Noise of the rows with evidence, [n, 2] float32: 0 if greedy, NaN where it is not repeatable.

    ``noise`` [m, 2] are the seeded rows' own, in the order of ``step.seeded``; ``None`` where this
    runner's noise is not known.
    """
    if noise is None:
        unknown = (step.source != GREEDY).unsqueeze(-1).expand(-1, 2)
        return torch.zeros_like(unknown, dtype=torch.float32).masked_fill(unknown, torch.nan)
    noise = noise.to(torch.float32)
    nothing, unknown = noise.new_zeros((1, 2)), noise.new_full((1, 2), torch.nan)
    return torch.cat((nothing, unknown, noise)).index_select(0, step.source)


def measure(
    step: StepTensors,
    ids: torch.Tensor,
    raw_logits: torch.Tensor,
    processed_logits: torch.Tensor,
    noise: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Evidence of one step: ids and ranks [3, n] int64, numbers [6, n] float32.

    ``raw_logits`` and ``processed_logits`` [batch, vocab] are read in the n rows with evidence
    only, ``ids`` [batch, 2] come from :func:`pairs`, ``noise`` [n, 2] from :func:`noise_columns`.
    Rows of the first: the id that would have been drawn, the rank of the final id under the raw
    and under the processed distribution (1 = most likely; counted with ``>=``, as both runners do).
    Rows of the second: the final id's raw and processed log probability, the drawn id's, and the
    noise of the drawn and of the final id.
    """
    ids = ids.index_select(0, step.rows)
    raw_logprobs = log_probabilities(raw_logits.index_select(0, step.rows))
    processed_logprobs = log_probabilities(processed_logits.index_select(0, step.rows))
    raw = raw_logprobs.gather(-1, ids)
    processed = processed_logprobs.gather(-1, ids)
    ints = torch.stack(
        (
            ids[:, 0],
            (raw_logprobs >= raw[:, 1:]).sum(dim=-1),
            (processed_logprobs >= processed[:, 1:]).sum(dim=-1),
        )
    )
    floats = torch.stack((raw[:, 1], processed[:, 1], raw[:, 0], processed[:, 0]))
    return ints, torch.cat((floats, noise.T))
