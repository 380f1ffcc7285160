"""Model Runner V1: the sampler that forces ids, and the bookkeeping that follows rows.

Subclasses of stock classes only; ``surfaces.py`` lists what they rely on.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.outputs import SamplerOutput
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
from vllm.v1.sample.sampler import Sampler

from assay.plugin import select
from assay.plugin.evidence import EvidenceStore
from assay.plugin.rows import RowState, StepPlan, plan_step, row_state
from assay.plugin.tape_v1 import SequentialTape


class RowBook(LogitsProcessor):
    """Follows which request sits in which row; changes no logits.

    vLLM tells logits processors about every add, remove, move and swap of its persistent batch,
    and hands over each request's live output list. Under async scheduling that list holds -1
    placeholders, so only its length is used (case 16).
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.rows: dict[int, tuple[RowState, list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.rows.pop(index, None)
        for index, params, _prompt_ids, output_ids in batch_update.added:
            state = row_state(
                params.extra_args,
                self.vocab_size,
                temperature=params.temperature,
                seed=params.seed,
            )
            if state is None:
                self.rows.pop(index, None)  # an added request may replace one of ours
            else:
                self.rows[index] = (state, output_ids)
        for source, target, direction in batch_update.moved:
            ours, theirs = self.rows.pop(source, None), self.rows.pop(target, None)
            if ours is not None:
                self.rows[target] = ours
            if theirs is not None and direction == MoveDirectionality.SWAP:
                self.rows[source] = theirs


def row_book(metadata: SamplingMetadata) -> RowBook | None:
    """The batch's :class:`RowBook`; ``None`` in profiling runs, which bring their own processors."""
    for processor in metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, RowBook):
            return processor
    return None


class AssaySamplerV1(Sampler):
    """Stock V1 sampler plus enforced ids, per-row log probability modes and evidence.

    A step without a row of ours, and a rejection sampler's call (which names its own mode), take
    the stock path untouched.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # FlashInfer and aiter kernels never expose processed logits (F10): steps with a row of ours
        # use this one, which vLLM itself picks when the deployment asks for processed numbers.
        self.assay_native = TopKTopPSampler("processed_logits", self.use_fp64_gumbel)
        self.assay_tape = SequentialTape.of(self.assay_native, fp64=self.use_fp64_gumbel)
        self.assay_evidence = EvidenceStore()
        self._assay_step: select.StepTensors | None = None
        self._assay_raw: torch.Tensor | None = None

    @property
    def assay_generation(self) -> int | None:
        """Number of the noise function (``scoring/tape.py``); ``None`` = not one known here."""
        return self.assay_tape.generation

    def forward(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        predict_bonus_token: bool = False,
        logprobs_mode_override: Any = None,
    ) -> SamplerOutput:
        plan = None
        if logprobs_mode_override is None:
            plan = self._plan(sampling_metadata, logits.shape[0])
        if plan is None:
            return super().forward(
                logits, sampling_metadata, predict_bonus_token, logprobs_mode_override
            )
        # The stock steps below change float32 logits in place, so the raw ones are copied first.
        self._assay_raw = logits.to(torch.float32, copy=True)
        self._assay_step = select.upload(plan, logits.device)
        try:
            # This override keeps the stock code from computing raw numbers of its own: `sample`
            # below returns every row's own, which stock code then gathers from.
            return super().forward(
                logits, sampling_metadata, predict_bonus_token, "processed_logprobs"
            )
        finally:
            self._assay_step = self._assay_raw = None

    def sample(
        self,
        logits: torch.Tensor,
        sampling_metadata: SamplingMetadata,
        logprobs_mode_override: Any = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        step, raw = self._assay_step, self._assay_raw
        if step is None or raw is None:
            return super().sample(logits, sampling_metadata, logprobs_mode_override)
        # Stock code consumes the generators of seeded rows: copies draw the same noise afterwards.
        copies = self.assay_tape.copies(sampling_metadata.generators, step.plan.seeded)
        stock = self.topk_topp_sampler
        self.topk_topp_sampler = self.assay_native
        try:
            drawn, processed = super().sample(logits, sampling_metadata, "processed_logits")
        finally:
            self.topk_topp_sampler = stock
        if processed is None:
            # An all-greedy batch without log probabilities: nothing was done after the processors.
            processed = logits
        sampled = select.force(drawn, step)
        if step.plan.evidence:
            ids = select.pairs(drawn, sampled)
            noise = self.assay_tape.noise(copies, ids.index_select(0, step.seeded), logits.shape[1])
            self.assay_evidence.add(
                *select.measure(step, ids, raw, processed, select.noise_columns(step, noise)),
                step.plan.evidence,
            )
        wants_scores = sampling_metadata.max_num_logprobs is not None or bool(
            sampling_metadata.logprob_token_ids
        )
        return sampled, select.scores(raw, processed, step) if wants_scores else None

    def _plan(self, metadata: SamplingMetadata, batch: int) -> StepPlan | None:
        book = row_book(metadata)
        if book is None or not book.rows:
            return None
        return plan_step(
            (
                (row, state, len(output))
                for row, (state, output) in book.rows.items()
                if row < batch
            ),
            batch,
            self.logprobs_mode,
        )
