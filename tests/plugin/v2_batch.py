"""A V2 batch as the runner builds it: stock request slots, stock input batch, a real sampler."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from typing import Any

import numpy as np
import torch
from tests.plugin.v1_batch import RAW, VOCAB, Row, Step
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.sample.sampler import Sampler
from vllm.v1.worker.gpu.states import RequestState

from assay.plugin.sampler_v2 import AssaySamplerV2

# What the CPU worker imports first: host buffers and no-ops where the GPU runner has pinned ones.
importlib.import_module("vllm.v1.worker.cpu.shm")

SLOTS = 16
PROMPT = (3, 4, 5)
DEVICE = torch.device("cpu")


@functools.cache
def vllm_config() -> VllmConfig:
    return VllmConfig()


class Engine:
    """Slots and a sampler of one runner; requests come, go, and are sampled in any order."""

    def __init__(self, kind: type[Sampler], deployment: str = RAW, slots: int = SLOTS) -> None:
        self.states = RequestState(
            max_num_reqs=slots,
            max_model_len=64,
            max_num_batched_tokens=64,
            num_speculative_steps=0,
            vocab_size=VOCAB,
            device=DEVICE,
        )
        self.buffers = InputBuffers(slots, 64, DEVICE)
        self.sampler = kind(
            vllm_config(), slots, VOCAB, DEVICE, self.states, logprobs_mode=deployment
        )

    def add(self, name: str, row: Row, *, resumed: bool = True) -> int:
        """A request with its outputs: ``resumed`` = they were part of its (re)fill."""
        filled = [*PROMPT, *row.outputs] if resumed else list(PROMPT)
        self.states.add_request(name, len(PROMPT), filled, 0, 50)
        slot = self.states.req_id_to_index[name]
        extra = row.extra if isinstance(self.sampler, AssaySamplerV2) else None
        params = SamplingParams(**row.params, extra_args=extra)
        params.update_from_generation_config({}, eos_token_id=2)
        self.sampler.add_request(slot, params)
        self.states.apply_staged_writes()
        self.sampler.apply_staged_writes()
        return slot

    def step(self, lengths: dict[str, int], logits: torch.Tensor) -> Step:
        """Sample the named requests in this order; ``lengths``: tokens after this step's input."""
        count = len(lengths)
        batch = InputBatch.make_dummy(count, count, self.buffers)
        slots = np.array([self.states.req_id_to_index[name] for name in lengths], dtype=np.intp)
        held = torch.tensor(list(lengths.values()), dtype=torch.int32)
        mapping = torch.from_numpy(slots).to(torch.int64)
        batch = dataclasses.replace(
            batch,
            req_ids=list(lengths),
            idx_mapping=mapping,
            idx_mapping_np=slots,
            expanded_idx_mapping=mapping,
            seq_lens=held,
            seq_lens_cpu_upper_bound=held.clone(),
            positions=held.to(torch.int64) - 1,
        )
        output = self.sampler(logits.clone(), batch)
        return Step(output.sampled_token_ids[:, 0].tolist(), output.logprobs_tensors, self.sampler)


def run(kind: type[Sampler], rows: list[Row], logits: torch.Tensor, deployment: str = RAW) -> Step:
    """One step over fresh requests, in the order of ``rows``."""
    engine = Engine(kind, deployment)
    lengths = {}
    for at, row in enumerate(rows):
        engine.add(f"r{at}", row)
        lengths[f"r{at}"] = len(PROMPT) + len(row.outputs)
    return engine.step(lengths, logits)


def ours(rows: list[Row], logits: torch.Tensor, deployment: str = RAW) -> Step:
    return run(AssaySamplerV2, rows, logits, deployment)


def stock(rows: list[Row], logits: torch.Tensor, deployment: str = RAW) -> Step:
    return run(Sampler, rows, logits, deployment)


def stock_scores(rows: list[Row], logits: torch.Tensor, mode: str) -> torch.Tensor:
    """[rows, vocab]: every number a stock server in ``mode`` returns when asked for all of them."""
    everything = [Row({**row.params, "logprobs": VOCAB}, row.outputs) for row in rows]
    tensors: Any = stock(everything, logits, mode).logprobs
    full = torch.full((len(rows), VOCAB), torch.nan)
    return full.scatter(1, tensors.logprob_token_ids.to(torch.int64), tensors.logprobs)
