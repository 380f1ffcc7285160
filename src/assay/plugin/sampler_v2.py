"""Model Runner V2: the sampler that forces ids and gives each row its own log probability mode.

A subclass of the stock sampler only; ``surfaces.py`` lists what it relies on. vLLM's native trace
replay is not used: it refuses structured output, bad words and prompt log probabilities, keeps a
[max_num_reqs, max_model_len] table, and never says what would have been drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu.input_batch import InputBatch
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.sample.sampler import Sampler

from assay.plugin import select, tape
from assay.plugin.evidence import EvidenceStore
from assay.plugin.rows import LOGIT_MODES, RowState, StepPlan, plan_step, row_state


class AssaySamplerV2(Sampler):
    """Stock V2 sampler plus enforced ids, per-row log probability modes and evidence.

    State is kept per request slot and rewritten whenever a slot gets a new occupant (F60). A step
    without a row of ours takes the stock path untouched.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.assay_evidence = EvidenceStore()
        self._assay_slots: dict[int, RowState] = {}
        self._assay_ours = np.zeros(self.req_states.max_num_reqs, dtype=np.bool_)
        self._assay_step: select.StepTensors | None = None

    @property
    def assay_generation(self) -> int:
        """Number of the noise function (``scoring/tape.py``)."""
        return tape.GENERATION

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> None:
        super().add_request(req_idx, sampling_params)
        state = row_state(
            sampling_params.extra_args,
            self.req_states.vocab_size,
            temperature=sampling_params.temperature,
            seed=sampling_params.seed,
        )
        self._assay_ours[req_idx] = state is not None
        if state is None:
            self._assay_slots.pop(req_idx, None)
        else:
            self._assay_slots[req_idx] = state

    def __call__(self, logits: torch.Tensor, input_batch: InputBatch) -> SamplerOutput:
        plan = self._plan(logits, input_batch)
        if plan is None:
            return super().__call__(logits, input_batch)
        self._assay_step = select.upload(plan, logits.device)
        stock = self.logprobs_mode
        # Stock code scores `processed_logits`; `sample` below returns every row's own numbers
        # there. Naming a processed mode also keeps the fused samplers away, which have none (F10).
        self.logprobs_mode = (
            "processed_logits"
            if any(mode in LOGIT_MODES for mode in plan.modes)
            else "processed_logprobs"
        )
        try:
            return super().__call__(logits, input_batch)
        finally:
            self.logprobs_mode = stock
            self._assay_step = None

    def sample(
        self,
        logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        pos: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Any, Any]:
        stock = (logits, expanded_idx_mapping, idx_mapping, idx_mapping_np, pos, *args)
        step = self._assay_step
        if step is None:
            return super().sample(*stock, **kwargs)
        kwargs["return_logprobs"] = True
        drawn, processed = super().sample(*stock, **kwargs)
        sampled = select.force(drawn, step)
        if step.plan.evidence:
            ids = select.pairs(drawn, sampled)
            self.assay_evidence.add(
                *select.measure(
                    step,
                    ids,
                    logits,
                    processed,
                    select.noise_columns(step, self._noise(step, idx_mapping, pos, ids)),
                ),
                step.plan.evidence,
            )
        if self.logprobs_mode in LOGIT_MODES:
            # Stock code gathers without a softmax in this mode: hand it finished numbers.
            return sampled, select.scores(logits, processed, step)
        # Otherwise stock code takes the log-softmax itself, row by row.
        return sampled, torch.where(step.raw, logits.to(torch.float32), processed.to(torch.float32))

    def _noise(
        self, step: select.StepTensors, slots: torch.Tensor, pos: torch.Tensor, ids: torch.Tensor
    ) -> torch.Tensor:
        """Noise [n, 2] of the seeded rows' two ids; ``slots`` and ``pos`` [batch], ids [batch, 2]."""
        rows = step.seeded
        return tape.gumbel(
            self.sampling_states.seeds.gpu[slots[rows]],
            pos[rows],
            ids[rows],
            fp64=self.use_fp64_gumbel,
        )

    def _plan(self, logits: torch.Tensor, batch: InputBatch) -> StepPlan | None:
        slots = batch.idx_mapping_np
        if not self._assay_ours[slots].any() or logits.shape[0] != slots.shape[0]:
            # The second case is speculative decoding (several logits a request), where requests
            # with fields of ours are refused before they get here.
            return None
        # Tokens of each sequence after this step's input; exact without speculative decoding.
        lengths = batch.seq_lens_cpu_upper_bound.numpy()
        prompts = self.req_states.prompt_len.np
        prefills = self.req_states.prefill_len.np
        return plan_step(
            (
                (
                    int(row),
                    self._assay_slots[int(slots[row])],
                    # Below the prefill length the sample of a chunked prefill is thrown away.
                    int(lengths[row] - prompts[slots[row]])
                    if lengths[row] >= prefills[slots[row]]
                    else -1,
                )
                for row in np.flatnonzero(self._assay_ours[slots])
            ),
            len(slots),
            self.logprobs_mode,
        )
