"""One proof-of-compute forward on one worker: nonces in, vectors out, nothing left behind.

embeddings -> fresh metadata -> scratch cache -> model with layer reflections -> last states ->
vectors. A batch is one forward. Any exit path restores caches and detaches reflections.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed import get_pp_group, get_tp_group
from vllm.forward_context import set_forward_context
from vllm.sequence import IntermediateTensors

from assay.errors import SettingsError, SurfaceError
from assay.plugin.poc import metadata as attention
from assay.plugin.poc.reflect import decoder_layers, reflections
from assay.plugin.poc.scratch import ScratchCache, bound, layout_of, shared_owners
from assay.poc.torch_batch import (
    embedding_dtype,
    input_embeddings,
    layer_vectors,
    project,
    pseudo_token_ids,
)


@dataclass(frozen=True)
class Batch:
    """One forward's worth of work; ``stronger`` selects the 256-bit seeding."""

    block_hash: str
    public_key: str
    nonces: tuple[int, ...]
    seq_len: int
    k_dim: int
    stronger: bool


@dataclass(frozen=True)
class Vectors:
    """``values`` [batch, k] float16 on the host, ``finite`` [batch], seconds of each part."""

    values: torch.Tensor
    finite: torch.Tensor
    seconds: dict[str, float]


class PocForward:
    """The forward of one model runner, V1 or V2. Built once; keeps only the scratch cache."""

    def __init__(self, runner: Any, runner_name: str) -> None:
        self._runner = runner
        self._config = runner.vllm_config
        self._scratch = ScratchCache()
        refuse_unsupported(self._config, runner_name)
        model = runner.get_model()
        context = self._config.compilation_config.static_forward_context
        self._groups = attention.groups_of(runner)
        names = [name for group in self._groups for name in group.layer_names]
        self._layers = {name: context[name] for name in names}
        self._owners = shared_owners(self._layers)
        self.n_layers = self._config.model_config.get_total_num_hidden_layers()
        self._decoder = decoder_layers(
            model,
            self.n_layers,
            range(
                *self._config.model_config.get_layers_start_end_indices(
                    self._config.parallel_config
                )
            ),
            {id(module) for module in self._layers.values()},
        )
        self.hidden_size = self._config.model_config.get_hidden_size()
        self.token_budget = self._config.scheduler_config.max_num_batched_tokens
        self.dtype = embedding_dtype(self._config.model_config.dtype)

    @torch.inference_mode()
    def run(self, batch: Batch) -> Vectors | None:
        """Vectors of one batch on the last pipeline stage, ``None`` on the others.

        Raises SettingsError when batch x seq_len exceeds the token budget, or seq_len the context.
        """
        self._check(batch)
        device = self._runner.device
        clock = _Clock(device)
        inputs = self._inputs(batch, device)
        reflect_by = layer_vectors(
            batch.block_hash, self.n_layers, self.hidden_size, device=device, dtype=self.dtype
        )
        clock.lap("inputs")
        built, slots, positions = attention.build(
            self._groups, len(batch.nonces), batch.seq_len, device
        )
        caches = self._caches(len(batch.nonces), batch.seq_len)
        clock.lap("metadata")
        tokens = len(batch.nonces) * batch.seq_len
        with (
            bound(self._layers, caches),
            reflections(self._decoder, reflect_by),
            set_forward_context(
                built, self._config, num_tokens=tokens, slot_mapping=slots, skip_compiled=True
            ),
        ):
            output = self._through(positions, inputs)
        clock.lap("forward")
        if output is None:
            return None
        last = output.view(len(batch.nonces), batch.seq_len, -1)[:, -1]
        values, finite = project(
            last, batch.block_hash, batch.public_key, batch.nonces, batch.k_dim
        )
        result = values.cpu(), finite.cpu()
        clock.lap("projection")
        return Vectors(*result, clock.seconds)

    def _check(self, batch: Batch) -> None:
        tokens = len(batch.nonces) * batch.seq_len
        if not batch.nonces:
            raise SettingsError("nonces: empty; a forward needs at least one")
        if batch.seq_len > self._config.model_config.max_model_len:
            raise SettingsError(
                f"seq_len: {batch.seq_len} is longer than this engine's context of "
                f"{self._config.model_config.max_model_len}"
            )
        if tokens > self.token_budget:
            raise SettingsError(
                f"batch_size x seq_len: {len(batch.nonces)} x {batch.seq_len} = {tokens} tokens "
                f"exceed the engine's budget of {self.token_budget}; lower batch_size or start "
                f"with --max-num-batched-tokens {tokens}"
            )

    def _inputs(self, batch: Batch, device: torch.device) -> dict[str, torch.Tensor]:
        """Embeddings [tokens, hidden], and the ids beside them that some models read (F30)."""
        tokens = len(batch.nonces) * batch.seq_len
        identity = (batch.block_hash, batch.public_key, batch.nonces, batch.seq_len)
        if not get_pp_group().is_first_rank:
            return {}
        embeddings = input_embeddings(
            *identity, self.hidden_size, batch.stronger, device=device, dtype=self.dtype
        )
        if getattr(self._runner.get_model(), "requires_raw_input_tokens", False):
            vocab = self._config.model_config.get_vocab_size()
            ids = pseudo_token_ids(*identity, vocab, device=device).view(-1)
        else:
            ids = torch.zeros(tokens, dtype=torch.int32, device=device)
        return {"inputs_embeds": embeddings.view(tokens, -1), "input_ids": ids}

    def _caches(self, batch: int, seq_len: int) -> dict[str, torch.Tensor]:
        """The scratch tensor of every layer, zero in the slots that the batch leaves empty."""
        device = self._runner.device
        caches = {}
        for group in self._groups:
            blocks = attention.blocks_needed(batch, seq_len, group.block_size)
            layouts = set()
            for name in group.layer_names:
                cache = self._layers[name].kv_cache
                kernel_blocks = self._kernel_blocks(group.block_size, cache)
                layout = layout_of(cache, kernel_blocks, name, self._owners.get(name, ""))
                caches[name] = self._scratch.get(layout, blocks)
                layouts.add(layout)
            tails = attention.part_filled(batch, seq_len, group.block_size, device)
            if tails is not None:
                for layout in layouts:
                    self._scratch.clear(layout, tails)
        return caches

    def _kernel_blocks(self, kernel_block_size: int, cache: Any) -> int:
        """Kernel blocks of a live cache: manager blocks split into the kernel's block size."""
        blocks = self._runner.kv_cache_config.num_blocks
        sizes = {
            blocks * (group.kv_cache_spec.block_size // kernel_block_size)
            for group in self._runner.kv_cache_config.kv_cache_groups
            if group.kv_cache_spec.block_size % kernel_block_size == 0
        }
        shape = tuple(getattr(cache, "shape", ()))[:2]
        fitting = [size for size in shape if size in sizes]
        return fitting[0] if fitting else blocks

    def _through(
        self, positions: torch.Tensor, inputs: dict[str, torch.Tensor]
    ) -> torch.Tensor | None:
        """Through this stage's layers: hidden states [tokens, hidden] on the last stage."""
        stage = get_pp_group()
        intermediate = None
        if not stage.is_first_rank:
            received = stage.recv_tensor_dict(all_gather_group=get_tp_group())
            intermediate = IntermediateTensors(received)
        output = self._runner.get_model()(
            input_ids=inputs.get("input_ids"),
            positions=positions,
            intermediate_tensors=intermediate,
            inputs_embeds=inputs.get("inputs_embeds"),
        )
        if not stage.is_last_rank:
            stage.send_tensor_dict(output.tensors, all_gather_group=get_tp_group())
            return None
        # Models with auxiliary outputs return (hidden states, extras).
        return output[0] if isinstance(output, tuple) else output


def refuse_unsupported(config: Any, runner_name: str) -> None:
    """Deployments in which a forward of ours would be wrong or would hang, each with its reason."""
    model, parallel = config.model_config, config.parallel_config
    pipeline = parallel.pipeline_parallel_size > 1
    refusals = (
        (pipeline and runner_name == "v1", "pipeline parallelism needs Model Runner V2"),
        (model.is_encoder_decoder, "encoder-decoder models have no single decoder stack"),
        (model.uses_mrope, "multi-axis rotary positions are not defined for proof of compute"),
        (config.lora_config is not None, "LoRA adapters of other requests would be applied"),
        (config.kv_transfer_config is not None, "a KV connector would ship the scratch cache"),
        (config.speculative_config is not None, "speculative decoding adds layers of its own"),
        (
            parallel.data_parallel_size > 1 and parallel.is_moe_model is not False,
            "experts spread over data-parallel ranks would wait for ranks that never enter",
        ),
        (
            "per_token_head" in str(config.cache_config.cache_dtype),
            "KV scales kept per token and head live outside the cache tensor",
        ),
    )
    for refused, why in refusals:
        if refused:
            raise SurfaceError(f"proof of compute is refused on this deployment: {why}")


class _Clock:
    """Seconds between laps, the device drained at each lap."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.seconds: dict[str, float] = {}
        self._last = self._now()

    def _now(self) -> float:
        if self._cuda:
            torch.cuda.synchronize()
        return time.perf_counter()

    def lap(self, name: str) -> None:
        now = self._now()
        self.seconds[name] = now - self._last
        self._last = now
