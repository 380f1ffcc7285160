"""A V1 batch as the runner builds it: stock ``InputBatch``, stock logits processors, our RowBook."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch

from assay.plugin.constants import KEY_ARG, MODE_ARG, TRACE_ARG
from assay.plugin.sampler_v1 import AssaySamplerV1, RowBook

VOCAB = 97
RAW, PROCESSED = "raw_logprobs", "processed_logprobs"


@dataclass(frozen=True)
class Row:
    """One request: sampling parameters, ids generated so far, and what the plugin is asked."""

    params: dict[str, Any] = field(default_factory=dict)
    outputs: tuple[int, ...] = ()
    trace: tuple[int, ...] | None = None
    mode: str | None = None
    key: str | None = None

    @property
    def extra(self) -> dict[str, Any] | None:
        held = {TRACE_ARG: self.trace, MODE_ARG: self.mode, KEY_ARG: self.key}
        return {name: value for name, value in held.items() if value is not None} or None

    @property
    def forced(self) -> int | None:
        """The id this step must force."""
        inside = self.trace is not None and len(self.outputs) < len(self.trace)
        return self.trace[len(self.outputs)] if self.trace and inside else None


TOPS = 5
TOP = {"logprobs": TOPS}
SHAPED = {
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.9,
    "min_p": 0.01,
    "repetition_penalty": 1.2,
    "frequency_penalty": 0.4,
    "presence_penalty": 0.3,
    "logit_bias": {9: 3.0, 11: -100.0},
}


def mixed(top: dict[str, Any] = TOP) -> list[Row]:
    """Every kind of row in one batch."""
    return [
        Row({"seed": 1, **top}),
        Row({"seed": 2, **top}, trace=(40, 41), key="a"),
        Row(
            {"seed": 3, **SHAPED, **top},
            outputs=(9, 12),
            trace=(9, 12, 50, 51),
            mode=PROCESSED,
            key="b",
        ),
        Row({"seed": 4, **SHAPED, **top}, outputs=(9,), mode=PROCESSED),
        Row({"temperature": 0.0, **top}),
        Row({"temperature": 0.0, **top}, trace=(60,), mode=PROCESSED, key="c"),
        Row(
            {"seed": 7, "allowed_token_ids": [10, 20, 30], **top},
            trace=(20,),
            mode=PROCESSED,
            key="d",
        ),
        Row({"seed": 8, "allowed_token_ids": [10, 20, 30], **top}, trace=(21,), key="e"),
        Row({"seed": 9, "min_tokens": 3, "bad_words": [], **top}, outputs=(5,), mode=RAW),
        Row({"seed": 10, **SHAPED, **top}, outputs=(9, 12), trace=(9, 12), key="f"),
        Row(
            {"seed": 11, "temperature": 1.3, **top},
            outputs=(1, 2, 3),
            trace=(1, 2, 3),
            mode=PROCESSED,
        ),
        Row({"seed": 12, **SHAPED, **top}),
    ]


@functools.cache
def vllm_config() -> VllmConfig:
    """The engine's configuration with every default; its processors read ``max_num_seqs`` from it."""
    return VllmConfig()


def metadata(rows: list[Row], *, plugin: bool) -> SamplingMetadata:
    """Sampling metadata of a step over ``rows``; fresh generators, so two builds draw alike."""
    config = vllm_config()
    device = torch.device("cpu")
    processors = build_logitsprocs(config, device, False, False, ())
    if plugin:
        processors.argmax_invariant.append(RowBook(VOCAB))
    batch = InputBatch(
        max_num_reqs=len(rows) + 1,
        max_model_len=64,
        max_num_batched_tokens=64,
        device=device,
        vocab_size=VOCAB,
        block_sizes=[16],
        max_num_blocks_per_req=[4],
        logitsprocs=processors,
    )
    for index, row in enumerate(rows):
        params = SamplingParams(**row.params, extra_args=row.extra if plugin else None)
        # What the engine's front end does before a request reaches a worker.
        params.update_from_generation_config({}, eos_token_id=2)
        generator = None
        if params.seed is not None:
            generator = torch.Generator().manual_seed(params.seed)
        batch.add_request(
            CachedRequestState(
                req_id=f"r{index}",
                prompt_token_ids=[3, 4, 5 + index],
                mm_features=[],
                sampling_params=params,
                generator=generator,
                block_ids=([0],),
                num_computed_tokens=0,
                output_token_ids=list(row.outputs),
            )
        )
    batch.condense()
    batch.refresh_metadata()
    return batch.sampling_metadata


def random_logits(rows: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> torch.Tensor:
    """Logits [rows, vocab] with a spread of 3 nats, as the model hands them over."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, VOCAB, generator=generator) * 3).to(dtype)


@dataclass(frozen=True)
class Step:
    """What a sampler returned for one step."""

    ids: list[int]
    logprobs: Any
    sampler: Any


def ours(rows: list[Row], logits: torch.Tensor, deployment: str = RAW, **call: Any) -> Step:
    return _run(AssaySamplerV1(deployment), metadata(rows, plugin=True), logits, call)


def stock(rows: list[Row], logits: torch.Tensor, deployment: str = RAW, **call: Any) -> Step:
    return _run(Sampler(deployment), metadata(rows, plugin=False), logits, call)


def _run(sampler: Any, data: SamplingMetadata, logits: torch.Tensor, call: dict[str, Any]) -> Step:
    torch.manual_seed(99)  # rows without a seed of their own draw from the global generator
    output = sampler(logits=logits.clone(), sampling_metadata=data, **call)
    return Step(output.sampled_token_ids[:, 0].tolist(), output.logprobs_tensors, sampler)


def stock_scores(rows: list[Row], logits: torch.Tensor, mode: str) -> torch.Tensor:
    """[rows, vocab]: every number a stock server in ``mode`` would have chosen its top-k from."""
    everything = [Row({**row.params, "logprobs": -1}, row.outputs) for row in rows]
    data = metadata(everything, plugin=False)
    data.max_num_logprobs = -1
    data.logprob_token_ids = None
    torch.manual_seed(99)
    output = Sampler(mode)(logits=logits.clone(), sampling_metadata=data)
    return output.logprobs_tensors.logprobs
