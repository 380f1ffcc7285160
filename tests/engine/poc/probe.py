"""Worker extension of these tests: the project's own, and a look at what a forward leaves behind.

``--worker-extension-cls tests.engine.poc.probe.ProbeWorker``. Faults are injected by ordinary
module hooks of the test's own, put on for one call; the forward itself is the real one.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from vllm.forward_context import set_forward_context

from assay.errors import AssayError
from assay.plugin.poc import metadata as attention
from assay.plugin.poc.scratch import bound
from assay.plugin.worker import AssayWorker


class InjectedError(RuntimeError):
    """What a broken kernel would raise in the middle of a layer."""


class ProbeWorker(AssayWorker):
    """Plain data in and out, like the extension it adds to."""

    def probe_caches(self) -> dict[str, list[Any]]:
        """Layer -> [address of the bound tensor's object, of its data, digest of its bytes]."""
        found: dict[str, list[Any]] = {}
        for name, layer in self._caching_layers().items():
            cache = layer.kv_cache
            # A strided view cannot be taken as bytes; a copy in memory order can.
            raw = cache.contiguous().view(torch.uint8).numpy()
            found[name] = [id(cache), cache.data_ptr(), hashlib.sha256(raw.tobytes()).hexdigest()]
        return found

    def probe_hooks(self) -> int:
        """Forward hooks on any module of the model."""
        modules = self.model_runner.get_model().modules()
        return sum(len(module._forward_hooks) for module in modules)

    def probe_shape(self) -> dict[str, Any]:
        """How many layers the forward reflects and what its scratch cache holds."""
        forward = self._forward()
        return {
            "reflected": sorted(forward._decoder),
            "layers": forward.n_layers,
            "groups": [[len(g.layer_names), g.block_size] for g in forward._groups],
            "scratch_tensors": len(forward._scratch._tensors),
            "scratch_bytes": forward._scratch.bytes,
            "live_bytes": sum(
                layer.kv_cache.numel() * layer.kv_cache.element_size()
                for layer in self._caching_layers().values()
            ),
            "dtype": str(forward.dtype),
        }

    def probe_vectors(  # noqa: PLR0917 - vLLM passes RPC arguments by position
        self,
        block_hash: str,
        public_key: str,
        nonces: list[int],
        seq_len: int,
        stronger: bool = False,
        k_dim: int = 12,
    ) -> dict[str, Any] | None:
        """``assay_poc_forward`` with vectors as lists, or the error it raised by name and words."""
        try:
            answer = self.assay_poc_forward(
                block_hash, public_key, nonces, seq_len, k_dim, stronger
            )
        except (AssayError, InjectedError) as error:
            return {"error": type(error).__name__, "message": str(error)}
        if answer is None:
            return None
        assert isinstance(answer["vectors"], bytes)
        vectors = np.frombuffer(answer["vectors"], dtype="<f2").reshape(len(nonces), k_dim)
        return {**answer, "vectors": vectors.astype(float).tolist()}

    def probe_kinds(self) -> dict[str, str] | None:
        """The types in the answer that goes over RPC, containers with those of their items."""
        answer = self.assay_poc_forward("BLOCK", "KEY", [1, 2], 50, 12, False)
        return None if answer is None else {name: _kind(part) for name, part in answer.items()}

    def probe_prefill(self, prompts: list[list[int]], wanted: list[list[int]]) -> list[list[float]]:
        """Log probabilities of ``wanted`` ids after prompts of one length, by the PoC forward's own
        metadata and scratch cache, on token embeddings and without reflections."""
        forward = self._forward()
        model, device = self.model_runner.get_model(), self.model_runner.device
        batch, seq_len = len(prompts), len(prompts[0])
        ids = torch.tensor(prompts, dtype=torch.int32, device=device).view(-1)
        with torch.inference_mode():
            built, slots, positions = attention.build(forward._groups, batch, seq_len, device)
            with (
                bound(forward._layers, forward._caches(batch, seq_len)),
                set_forward_context(
                    built,
                    self.vllm_config,
                    num_tokens=batch * seq_len,
                    slot_mapping=slots,
                    skip_compiled=True,
                ),
            ):
                embedded = {"inputs_embeds": model.embed_input_ids(ids), "input_ids": ids}
                states = forward._through(positions, embedded)
            assert states is not None
            last = states.view(batch, seq_len, -1)[:, -1]
            logprobs = model.compute_logits(last).log_softmax(-1)
        return [row[torch.tensor(ids)].tolist() for row, ids in zip(logprobs, wanted, strict=True)]

    def probe_faulty(self, fault: str, nonces: list[int], seq_len: int) -> dict[str, Any] | None:
        """One forward with ``fault`` in the last decoder layer of this rank.

        ``raise``: the layer raises. ``nan``: its states become NaN. ``nan_cache``: the states
        entering the first layer are NaN, so that its keys and values are too. ``one_nan``: those
        of the first sequence only. ``shape``: it returns three tensors. ``skipped``: its output is
        computed past the module's call, so no hook sees it.
        """
        layers = self._forward()._decoder
        layer = layers[min(layers) if "cache" in fault or "one" in fault else max(layers)]
        undo = _inject(fault, layer, seq_len)
        try:
            return self.probe_vectors("BLOCK", "KEY", nonces, seq_len)
        finally:
            undo()

    def _caching_layers(self) -> dict[str, Any]:
        context = self.vllm_config.compilation_config.static_forward_context
        return {
            name: layer
            for name, layer in context.items()
            if isinstance(getattr(layer, "kv_cache", None), torch.Tensor)
            and layer.kv_cache.numel() > 0
        }


def _kind(value: Any) -> str:
    name = type(value).__name__
    if isinstance(value, dict):
        inner = {f"{type(key).__name__}, {type(item).__name__}" for key, item in value.items()}
    elif isinstance(value, list):
        inner = {type(item).__name__ for item in value}
    else:
        return name
    return f"{name}[{' | '.join(sorted(inner))}]"


def _inject(fault: str, layer: torch.nn.Module, seq_len: int) -> Any:
    if fault == "skipped":
        # As a compiled or fused stack would: the layer's computation without the module's call.
        kind = type(layer)
        skipping = type(kind.__name__, (kind,), {"__call__": kind.forward})
        layer.__class__ = skipping

        def restore() -> None:
            layer.__class__ = kind

        return restore
    if fault in ("nan_cache", "one_nan"):

        def before(_module: Any, args: Any, kwargs: Any) -> None:
            for part in (*args, *kwargs.values()):
                if isinstance(part, torch.Tensor) and part.is_floating_point():
                    part[: seq_len if fault == "one_nan" else None].fill_(float("nan"))

        return layer.register_forward_pre_hook(before, with_kwargs=True).remove

    def after(_module: Any, _args: Any, output: Any) -> Any:
        if fault == "raise":
            raise InjectedError("a kernel failed")
        if fault == "nan":
            parts = output if isinstance(output, tuple) else (output,)
            for part in parts:
                part.fill_(float("nan"))
            return output
        assert fault == "shape", fault
        return (*output, output[0]) if isinstance(output, tuple) else (output, output, output)

    return layer.register_forward_hook(after).remove
