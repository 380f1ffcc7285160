"""Worker side of proof of compute over ``collective_rpc``: plain data in, plain data out."""

from __future__ import annotations

from typing import Any

import vllm
from vllm.platforms import current_platform

from assay.plugin.poc.digest import model_commit, model_digest
from assay.plugin.poc.forward import Batch, PocForward
from assay.plugin.runner import runner_name


class PocWorker:
    """Mixed into the worker extension; the forward is built on first use and kept on the worker."""

    model_runner: Any
    vllm_config: Any
    rank: int
    _assay_poc: PocForward | None = None

    def assay_poc_profile(self) -> dict[str, Any]:
        """What a vector's value depends on, and the engine's token budget per forward."""
        forward = self._forward()
        config = self.vllm_config
        model, parallel = config.model_config, config.parallel_config
        backends = {
            group.backend.get_name() for groups in self.model_runner.attn_groups for group in groups
        }
        return {
            "engine_version": vllm.__version__,
            "hardware": current_platform.get_device_name(),
            "runner": runner_name(self.model_runner),
            "dtype": str(model.dtype).removeprefix("torch."),
            "kv_cache_dtype": str(config.cache_config.cache_dtype),
            "attention_backend": ",".join(sorted(backends)),
            "quantization": model.quantization,
            "tensor_parallel_size": parallel.tensor_parallel_size,
            "pipeline_parallel_size": parallel.pipeline_parallel_size,
            "data_parallel_size": parallel.data_parallel_size,
            "n_layers": forward.n_layers,
            "hidden_size": forward.hidden_size,
            "vocab_size": model.get_vocab_size(),
            "model_digest": model_digest(model.model, model.revision),
            "model_commit": model_commit(model.model, model.revision),
            "token_budget": forward.token_budget,
            "max_model_len": model.max_model_len,
        }

    def assay_poc_forward(  # noqa: PLR0917 - vLLM passes RPC arguments by position
        self,
        block_hash: str,
        public_key: str,
        nonces: list[int],
        seq_len: int,
        k_dim: int,
        stronger: bool,
    ) -> dict[str, Any] | None:
        """Vectors of one batch; ``None`` on every rank but the one that returns (last stage, TP 0).

        ``vectors`` is n x k_dim float16, little endian, rows in the order of ``nonces``; ``finite``
        says which rows may be sent.
        """
        batch = Batch(block_hash, public_key, tuple(nonces), seq_len, k_dim, stronger)
        result = self._forward().run(batch)
        if result is None or self.rank % self.vllm_config.parallel_config.tensor_parallel_size:
            return None
        return {
            "nonces": list(nonces),
            "vectors": result.values.contiguous().numpy().astype("<f2").tobytes(),
            "finite": result.finite.tolist(),
            "seconds": result.seconds,
        }

    def _forward(self) -> PocForward:
        if self._assay_poc is None:
            self._assay_poc = PocForward(self.model_runner, runner_name(self.model_runner))
        return self._assay_poc
